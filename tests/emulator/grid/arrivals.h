// SPDX-License-Identifier: Apache-2.0
//
// The threads that have waited for a phase of an mbarrier. They may access the bytes of its tensor copies. Barriers make
// such bytes visible to other threads.

#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <vector>

#include "machine/warp_times.h"

namespace wt::emulator {

class Arrivals {
public:
    void reset() { phases_.assign(1, {}); }  // number 0 is no phase

    // Returns the number of a new phase.
    std::int32_t add()
    {
        phases_.emplace_back();
        return std::int32_t(phases_.size()) - 1;
    }

    // Notes that a thread has waited for a phase at a time of the block.
    void wait(std::int32_t phase, int thread, std::uint32_t now, const WarpTimes& warps)
    {
        Phase& waited = phases_[std::size_t(phase)];
        waited.threads.set(std::size_t(thread));
        if (waited.first == 0) waited.first = now;
        std::uint32_t& warp = waited.first_of_warp[std::size_t(thread / threads_of_warp)];
        if (warp == 0) warp = warps.now(thread);
    }

    // True if the thread has waited, or a barrier of its warp follows a wait of another lane.
    bool is_visible(std::int32_t phase, int thread, const WarpTimes& warps) const
    {
        const Phase& waited = phases_[std::size_t(phase)];
        const std::uint32_t warp = waited.first_of_warp[std::size_t(thread / threads_of_warp)];
        return waited.threads[std::size_t(thread)] || (warp != 0 && warp < warps.now(thread));
    }

    // The time of the first wait, or 0
    std::uint32_t first_wait(std::int32_t phase) const { return phases_[std::size_t(phase)].first; }

private:
    struct Phase {
        std::bitset<1024> threads;
        std::array<std::uint32_t, warps_of_block> first_of_warp{};  // 0: none
        std::uint32_t first = 0;
    };

    std::vector<Phase> phases_{1};
};

}  // namespace wt::emulator
