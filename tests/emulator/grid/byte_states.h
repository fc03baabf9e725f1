// SPDX-License-Identifier: Apache-2.0
//
// What is known of every byte of a piece of memory: who accessed it last, and whether a copy is on its way to it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "machine/memory.h"

namespace wt::emulator {

enum class Way { read, write, atomic };  // how memory is accessed

// Barriers and blocks have numbers that rise through a launch; a block's threads order their accesses by barriers, and
// nothing orders those of two blocks.
class Clock {
public:
    void start_launch() { now_ = block_ = 1; }
    void start_block() { block_ = ++now_; }
    void pass_barrier() { ++now_; }

    std::uint32_t now() const { return now_; }

    // Whether what happened at a time is ordered before this moment for all threads
    bool is_past(std::uint32_t time) const { return time >= block_ && time < now_; }

private:
    std::uint32_t now_ = 1, block_ = 1;
};

class ByteStates {
public:
    explicit ByteStates(const Clock& clock) : clock_(clock) { }

    // All bytes are of nobody; `start` is where they lie, `name` what messages call them.
    void reset(std::string name, const void* start, std::size_t size);

    // Bytes that belong together and may be accessed
    void own(std::string name, std::size_t offset, std::size_t size, bool initialised);

    bool contains(const void* address) const { return std::size_t(at(address)) < states_.size(); }

    // Checks an access and remembers it. Throws Fault.
    void access(const Access& access, Way way, const void* address, int alignment);

    // A copy to these bytes starts, and ends; in between nobody may access them.
    void start_copy(const Access& access, const void* address, int alignment);
    void end_copy(int thread, const void* address, int bytes);

    // "shared memory + 16 bytes"
    std::string describe(const void* address) const;

private:
    struct State {
        std::int16_t piece = -1;
        std::int16_t writer = 0, reader = 0, copier = 0;
        bool initialised = false, atomic = false, awaited = false;
        std::uint32_t write_time = 0, read_time = 0;  // 0: never
    };
    struct Piece {
        std::string name;
        std::size_t offset, size;
    };

    std::ptrdiff_t at(const void* address) const { return static_cast<const char*>(address) - start_; }
    void locate(const Access& access, const void* address, int alignment) const;
    void check_race(const Access& access, const void* address, std::uint32_t time, int other, const char* done) const;

    const Clock& clock_;
    std::string name_;
    const char* start_ = nullptr;
    std::vector<State> states_;
    std::vector<Piece> pieces_;
};

}  // namespace wt::emulator
