// SPDX-License-Identifier: Apache-2.0
//
// The coordinates that wp.tid() returns. Each block computes them before its first load.
#pragma once

namespace wt_module {

// Returns the index of a thread's coordinates, which coord_mult threads share. Warp divides by coord_mult, which takes about two
// hundred cycles. In a tiled launch it is the size of a block, which the compiler knows. The other divisions need branches of their
// own: the compiler would execute a division before it selects another value.
template <int N> inline __device__ size_t linear_coordinate(size_t thread, const wp::launch_bounds_t<N>& bounds)
{
    if (bounds.coord_mult == WP_TILE_BLOCK_DIM)
        return thread / WP_TILE_BLOCK_DIM;
    if (bounds.coord_mult > 1)
        return thread / bounds.coord_mult;
    return thread;
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
