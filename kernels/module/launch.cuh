// SPDX-License-Identifier: Apache-2.0
//
// The coordinates that wp.tid() returns. Each block computes them before its first load.
#pragma once

namespace wt_module {

// Returns the index of a thread's coordinates, which coord_mult threads share. In a tiled launch coord_mult is the size of a block, which
// the compiler knows. Nevertheless it executes Warp's division, which takes about 200 cycles, before it selects the index. With a
// branch around the division, the adjoint of a small product took 32 registers more.
template <int N> inline __device__ size_t linear_coordinate(size_t thread, const wp::launch_bounds_t<N>& bounds)
{
    const size_t divided = bounds.coord_mult > 1 ? thread / bounds.coord_mult : thread;
    return bounds.coord_mult == WP_TILE_BLOCK_DIM ? thread / WP_TILE_BLOCK_DIM : divided;
}

// Returns a thread's coordinate in a launch, or sets several.
template <int N, typename... Coords>
inline __device__ auto tid(size_t thread, wp::launch_bounds_t<N> bounds, Coords&... coords)
{
    const size_t index = linear_coordinate(thread, bounds);
    bounds.coord_mult = 1;
    return wp::tid(coords..., index, bounds);
}

}  // namespace wt_module

// What Warp generates for wp.tid().
#undef builtin_tid1d
#undef builtin_tid2d
#undef builtin_tid3d
#undef builtin_tid4d
#define builtin_tid1d() wt_module::tid(_idx, dim)
#define builtin_tid2d(x, y) wt_module::tid(_idx, dim, x, y)
#define builtin_tid3d(x, y, z) wt_module::tid(_idx, dim, x, y, z)
#define builtin_tid4d(x, y, z, w) wt_module::tid(_idx, dim, x, y, z, w)
