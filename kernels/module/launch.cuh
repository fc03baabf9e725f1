// SPDX-License-Identifier: Apache-2.0
//
// The coordinates that wp.tid() returns, without divisions of 64 bits. Each block computes them before its first load.
#pragma once

namespace wt_module {

// Returns the coordinates of a thread in a launch. In a tiled launch, all threads of a block have the same ones.
template <int N> inline __device__ wp::launch_coord_t coord_of(size_t thread, const wp::launch_bounds_t<N>& bounds)
{
    const size_t block = thread / WP_TILE_BLOCK_DIM;
    if (bounds.coord_mult != WP_TILE_BLOCK_DIM || block >> 32 != 0)
        return wp::launch_coord(thread, bounds);
    int coords[4] = {};
    unsigned rest = static_cast<unsigned>(block);
#pragma unroll
    for (int d = N - 1; d > 0; --d) {
        const unsigned size = bounds.shape[d], quotient = rest / size;
        coords[d] = rest - quotient * size;
        rest = quotient;
    }
    coords[0] = rest;
    return {coords[0], coords[1], coords[2], coords[3]};
}

// Sets x and further coordinates.
template <typename... Ints> inline __device__ void set_coord(const wp::launch_coord_t& coord, int& x, int& y, Ints&... further)
{
    const int values[] = {coord.k, coord.l};
    x = coord.i;
    y = coord.j;
    int d = 0;
    (void(further = values[d++]), ...);
}

}  // namespace wt_module

// What Warp generates for wp.tid().
#undef builtin_tid1d
#undef builtin_tid2d
#undef builtin_tid3d
#undef builtin_tid4d
#define builtin_tid1d() wt_module::coord_of(_idx, dim).i
#define builtin_tid2d(x, y) wt_module::set_coord(wt_module::coord_of(_idx, dim), x, y)
#define builtin_tid3d(x, y, z) wt_module::set_coord(wt_module::coord_of(_idx, dim), x, y, z)
#define builtin_tid4d(x, y, z, w) wt_module::set_coord(wt_module::coord_of(_idx, dim), x, y, z, w)
