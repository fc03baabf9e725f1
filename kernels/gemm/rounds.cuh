// SPDX-License-Identifier: Apache-2.0
//
// How warps share C: it is cut into register tiles, and warp w computes tiles w, w + warps, w + 2 * warps, ..., one a round.

#pragma once

#include "arch/lane.cuh"
#include "gemm/problem.cuh"

namespace wt {

template <class Variant>
struct Rounds {
    using P = ProblemOf<Variant>;
    using Config = typename Variant::Config;

    static constexpr int tiles_m = (P::m + Config::tile_m - 1) / Config::tile_m;
    static constexpr int tiles_n = (P::n + Config::tile_n - 1) / Config::tile_n;
    static constexpr int warps = P::threads / 32;
    static constexpr int count = (tiles_m * tiles_n + warps - 1) / warps;

    // A thread's register tile in a round: its first row and column in C, and whether there is one
    struct Place {
        int row, col, lane;
        bool inside;

        WT_DEVICE explicit Place(int round)
        {
            const int tile = arch::thread_index() / 32 + round * warps;
            lane = arch::thread_index() % 32;
            row = tile / tiles_n * Config::tile_m;
            col = tile % tiles_n * Config::tile_n;
            inside = tiles_m * tiles_n % warps == 0 || tile < tiles_m * tiles_n;
        }
    };
};

}  // namespace wt
