// SPDX-License-Identifier: Apache-2.0
//
// The registers that warps give back and take: setmaxnreg. A block begins with as many for each thread as fit, and has no others.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg

#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "machine/fault.h"
#include "machine/warp_times.h"

namespace wt::emulator {

class Registers {
public:
    void start_block(int threads)
    {
        first_ = std::min(most, multiprocessor / threads / step * step);
        of_warps_.assign(std::size_t((threads + threads_of_warp - 1) / threads_of_warp), {first_, 0});
    }

    void set(int warp, int count, bool takes)
    {
        Warp& own = of_warps_[std::size_t(warp)];
        if (count % step != 0 || count < least || count > most || (takes ? count < own.count : count > own.count))
            throw Fault{name_of_thread(warp * threads_of_warp) + ": setmaxnreg." + (takes ? "inc" : "dec") + " from "
                        + std::to_string(own.count) + " to " + std::to_string(count) + " registers"};
        own = {count, own.changes + 1};
    }

    void end_block() const
    {
        int sum = 0;
        for (std::size_t warp = 0; warp < of_warps_.size(); ++warp) {
            const Warp &own = of_warps_[warp], &leader = of_warps_[warp / 4 * 4];
            if (own.count != leader.count || own.changes != leader.changes)
                throw Fault{name_of_thread(int(warp) * threads_of_warp) + ": the warps of its warpgroup have other setmaxnreg"};
            sum += own.count * threads_of_warp;
        }
        const int all = first_ * threads_of_warp * int(of_warps_.size());
        if (sum > all)
            throw Fault{"setmaxnreg takes " + std::to_string(sum) + " registers, and the block has " + std::to_string(all)};
    }

private:
    static constexpr int step = 8, least = 24, most = 256, multiprocessor = 64 * 1024;
    struct Warp {
        int count, changes;
    };

    int first_ = 0;
    std::vector<Warp> of_warps_;
};

}  // namespace wt::emulator
