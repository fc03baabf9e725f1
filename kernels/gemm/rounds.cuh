// SPDX-License-Identifier: Apache-2.0
//
// How warps share C: it is cut into register tiles, and warp w computes tiles w, w + warps, w + 2 * warps, ..., one a round.
// Where C has few tiles, warps may share the sum over K: then warps w, w + warps, w + 2 * warps, ... sum parts of tile w.

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
    static constexpr int parts = Config::warps_k;
    static constexpr int warps = P::threads / 32 / parts;  // of each part
    static constexpr int count = (tiles_m * tiles_n + warps - 1) / warps;

    static_assert(parts == 1 || (count == 1 && P::threads / 32 % parts == 0), "Each tile has a warp for every part of K");

    // A thread's register tile in a round: its first row and column in C, and whether there is one
    struct Place {
        int row, col, lane;
        bool inside;

        WT_DEVICE explicit Place(int round)
        {
            const int warp = arch::thread_index() / 32;
            const int tile = parts == 1 ? warp + round * warps : warp % warps;
            lane = arch::thread_index() % 32;
            row = tile / tiles_n * Config::tile_m;
            col = tile % tiles_n * Config::tile_n;
            inside = tiles_m * tiles_n % warps == 0 || tile < tiles_m * tiles_n;
        }
    };

    // The part of K that a thread's warp sums
    static WT_DEVICE int part() { return arch::thread_index() / 32 / warps; }

    // Calls add(first) for one part after the other; it adds the warp's part of a sum to C.
    template <class Add>
    static WT_DEVICE void in_turn(bool inside, const Add& add)
    {
#pragma unroll 1
        for (int turn = 0; turn < parts; ++turn) {
            if (turn > 0)
                arch::block_barrier();
            if (inside && turn == part())
                add(turn == 0);
        }
    }
};

}  // namespace wt
