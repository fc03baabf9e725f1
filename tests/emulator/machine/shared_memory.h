// SPDX-License-Identifier: Apache-2.0
//
// The tiles of a block in emulated shared memory, with what is known of every byte.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "machine/memory.h"

namespace wt::emulator {

// One operand as it lies in shared memory
struct Tile {
    char name;
    int rows, columns;
    int leading_dimension;  // elements between the starts of two rows (row-major) or columns
    int element_bytes;
    int alignment;  // bytes, of the base and of every row or column
    bool row_major;
    bool writable;
    bool initialised;
    std::size_t offset;  // of the first byte; set by SharedMemory::reset

    int lines() const { return row_major ? rows : columns; }
    int line_length() const { return row_major ? columns : rows; }
    std::size_t span() const { return std::size_t(lines()) * leading_dimension * element_bytes; }
};

// Addresses handed out lie in a window without access rights, so that a dereference that bypasses
// arch/memory.cuh is a signal; the bytes themselves lie elsewhere.
class SharedMemory : public Memory {
public:
    SharedMemory() = default;
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;
    ~SharedMemory() override;

    // Lays tiles out at addresses that are no more aligned than promised, and fills them.
    void reset(const std::vector<Tile>& tiles, const std::vector<const unsigned char*>& contents);

    const std::vector<Tile>& tiles() const { return tiles_; }
    void* address(int tile) const { return window_ + tiles_[tile].offset; }
    const unsigned char* bytes(int tile) const { return &bytes_[tiles_[tile].offset]; }

    // Moves bytes after all checks, and returns the index of the tile. Throws Fault.
    int read(const Access& access, const void* address, void* to) override;
    int write(const Access& access, void* address, const void* from) override;

    // Bytes from the start of the window; for an address that passed a check
    std::size_t offset_of(const void* address) const override;

    // A block barrier: accesses before it do not race with accesses after it.
    void pass_barrier() override { ++epoch_; }

    // Throws Fault if a writable tile has an element that no thread has written.
    void require_all_written() const;

    // A dereference that bypasses arch/memory.cuh
    std::string misuse(const void* address) const override;
    std::string describe(const void* address) const;

private:
    struct Byte {
        std::int8_t tile = -1;  // -1: no element of any
        bool initialised = false;
        bool written = false;  // by a thread
        std::int16_t writer = 0, reader = 0;
        std::uint32_t write_epoch = 0, read_epoch = 0;
    };

    std::string describe_offset(std::ptrdiff_t offset) const;
    std::string where(const Tile& tile, std::size_t offset) const;
    int locate(const Access& access, std::ptrdiff_t offset) const;
    [[noreturn]] void race(const Access& access, int other, std::size_t offset, const char* done) const;

    std::vector<Tile> tiles_;
    std::vector<unsigned char> bytes_;
    std::vector<Byte> state_;
    unsigned char* window_ = nullptr;
    std::size_t window_bytes_ = 0;
    std::uint32_t epoch_ = 1;
};

}  // namespace wt::emulator
