// SPDX-License-Identifier: Apache-2.0
//
// The tiles of a block in emulated shared memory, with the state of every byte.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "machine/memory.h"
#include "machine/warp_times.h"

namespace wt::emulator {

// One operand in shared memory
struct Tile {
    char name;
    int rows, columns;
    int leading_dimension;  // elements between the starts of two rows (row-major) or columns
    int element_bytes;
    int alignment;  // of the base and of every row or column, in bytes
    bool row_major;
    bool writable;
    bool initialised;
    std::size_t offset;  // of the first byte; SharedMemory::reset sets it

    int lines() const { return row_major ? rows : columns; }
    int line_length() const { return row_major ? columns : rows; }
    std::size_t span() const { return std::size_t(lines()) * leading_dimension * element_bytes; }
};

// Tiles have addresses in a window without access rights, so that a dereference that bypasses arch/memory.cuh raises a
// signal. The bytes themselves are stored elsewhere.
class SharedMemory : public Memory {
public:
    SharedMemory() = default;
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;
    ~SharedMemory() override;

    // Places tiles at addresses with exactly the promised alignment, and fills them.
    void reset(const std::vector<Tile>& tiles, const std::vector<const unsigned char*>& contents);

    const std::vector<Tile>& tiles() const { return tiles_; }
    void* address(int tile) const { return window_ + tiles_[tile].offset; }
    const unsigned char* bytes(int tile) const { return &bytes_[tiles_[tile].offset]; }

    // Checks the access, copies the bytes, and returns the index of the tile. Throws Fault.
    int read(const Access& access, const void* address, void* to) override;
    int write(const Access& access, void* address, const void* from) override;

    // Returns the offset in bytes from the start of the window. The address has passed the checks.
    std::size_t offset_of(const void* address) const override;

    // Notes a block barrier. Accesses before it do not race with accesses after it.
    void pass_barrier() override { ++epoch_; }
    void pass_warp_barrier(int warp) override { warp_times_.pass_barrier(warp); }

    // Throws Fault if a writable tile has an element that no thread has written.
    void require_all_written() const;

    // Explains a dereference that bypasses arch/memory.cuh.
    std::string describe_misuse(const void* address) const override;
    std::string describe(const void* address) const;

private:
    struct Byte {
        std::int8_t tile = -1;  // -1: no tile
        bool initialised = false;
        bool written = false;  // by a thread
        std::int16_t writer = 0, reader = 0;
        std::uint32_t write_epoch = 0, read_epoch = 0;
        std::uint32_t write_warp_time = 0, read_warp_time = 0;
    };

    std::string describe_offset(std::ptrdiff_t offset) const;
    std::string describe_byte(const Tile& tile, std::size_t offset) const;
    int check_bounds(const Access& access, std::ptrdiff_t offset) const;
    // True if no barrier separates an access of a thread from earlier ones in an epoch and at a time of their warp.
    bool races(std::uint32_t epoch, int other, std::uint32_t warp_time, int thread) const;
    [[noreturn]] void report_race(const Access& access, int other, std::size_t offset, const char* verb) const;

    std::vector<Tile> tiles_;
    std::vector<unsigned char> bytes_;
    std::vector<Byte> state_;
    unsigned char* window_ = nullptr;
    std::size_t window_bytes_ = 0;
    std::uint32_t epoch_ = 1;
    WarpTimes warp_times_;
};

}  // namespace wt::emulator
