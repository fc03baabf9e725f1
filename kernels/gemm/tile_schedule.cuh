// SPDX-License-Identifier: Apache-2.0
//
// The assignment of warp tiles to warps. C is cut into warp tiles. Warp w computes tiles w, w + warps, w + 2 * warps, ..., one
// per iteration. Split-K: where C has few warp tiles, warps w, w + warps, w + 2 * warps, ... each sum a slice of K of tile w.

#pragma once

#include "arch/lane.cuh"
#include "gemm/problem.cuh"

namespace wt {

template <class Variant>
struct TileSchedule {
    using P = ProblemOf<Variant>;
    using Config = typename Variant::Config;

    static constexpr int tiles_m = (P::m + Config::tile_m - 1) / Config::tile_m;
    static constexpr int tiles_n = (P::n + Config::tile_n - 1) / Config::tile_n;
    static constexpr int slices = Config::warps_k;  // of K
    static constexpr int warps = P::threads / 32 / slices;  // per slice
    static constexpr int iterations = (tiles_m * tiles_n + warps - 1) / warps;

    static_assert(slices == 1 || (iterations == 1 && P::threads / 32 % slices == 0),
                  "Each warp tile must have a warp for every slice of K");

    // The warp tile of a thread's warp in one iteration. `inside` is false if the warp has none.
    struct WarpTile {
        int row, col;  // its first row and column in C
        int lane;
        bool inside;

        WT_DEVICE explicit WarpTile(int iteration, int thread)
        {
            const int warp = thread / 32;
            const int tile = slices == 1 ? warp + iteration * warps : warp % warps;
            lane = thread % 32;
            row = tile / tiles_n * Config::tile_m;
            col = tile % tiles_n * Config::tile_n;
            inside = tiles_m * tiles_n % warps == 0 || tile < tiles_m * tiles_n;
        }
    };

    // Returns the slice of K that the thread's warp sums.
    static WT_DEVICE int slice() { return arch::thread_index() / 32 / warps; }

    // Serial split-K reduction: calls add(first) for one slice after the other. add() adds the warp's accumulators to C.
    template <class Add>
    static WT_DEVICE void reduce_serially(bool inside, const Add& add)
    {
#pragma unroll 1
        for (int i = 0; i < slices; ++i) {
            if (i > 0)
                arch::block_barrier();
            if (inside && i == slice())
                add(i == 0);
        }
    }
};

}  // namespace wt
