// SPDX-License-Identifier: Apache-2.0
//
// The order of accesses within a warp: its barriers separate accesses that no block barrier separates.

#pragma once

#include <array>
#include <cstdint>

namespace wt::emulator {

constexpr int threads_of_warp = 32, warps_of_block = 32;

// The threads that accessed a byte since the last block barrier: one, several of one warp, or several warps
class Accessors {
public:
    static constexpr std::int16_t several_warps = -1;

    static bool is_thread(int accessors) { return accessors >= 0; }
    static int warp(int accessors)
    {
        return accessors >= 0 ? accessors / threads_of_warp : accessors == several_warps ? -1 : -2 - accessors;
    }
    static std::int16_t joined(int accessors, int thread)
    {
        if (accessors == thread) return std::int16_t(thread);
        const int own = thread / threads_of_warp;
        return warp(accessors) == own ? std::int16_t(-2 - own) : several_warps;
    }
};

// Counts the barriers of each warp.
class WarpTimes {
public:
    void reset() { times_.fill(1); }
    void pass_barrier(int warp) { ++times_[std::size_t(warp)]; }
    std::uint32_t now(int thread) const { return times_[std::size_t(thread / threads_of_warp)]; }

    // True if a barrier of the thread's warp separates it from accesses at a time of that warp.
    bool is_past(int accessors, std::uint32_t time, int thread) const
    {
        return Accessors::warp(accessors) == thread / threads_of_warp && time < now(thread);
    }

private:
    std::array<std::uint32_t, warps_of_block> times_{};
};

}  // namespace wt::emulator
