// SPDX-License-Identifier: Apache-2.0
//
// The coordinates that wp.tid() returns. Each block computes them before its first load.
#pragma once

namespace wt_module {

// Returns the coordinates of a thread in a launch. Warp divides by the number of threads that have the same ones (coord_mult, at least
// 1), which takes about a hundred cycles. In a tiled launch it is the size of a block, which the compiler knows.
template <int N> inline __device__ wp::launch_coord_t coord_of(size_t thread, wp::launch_bounds_t<N> bounds)
{
    const size_t number = bounds.coord_mult == WP_TILE_BLOCK_DIM ? thread / WP_TILE_BLOCK_DIM : thread / bounds.coord_mult;
    bounds.coord_mult = 1;
    return wp::launch_coord(number, bounds);
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
