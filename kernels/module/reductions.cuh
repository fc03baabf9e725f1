// SPDX-License-Identifier: Apache-2.0
//
// Maxima, minima and sums of the rows of a tile: wp.tile_reduce and wp.tile_sum along the second axis. In Warp, a warp reduces one
// row after the other, with five exchanges for 32 elements, each of which waits for the one before. Here a thread reduces a row.
//
// The order is Warp's, so results are equal: of each 32 elements, i and i + 16 first, then i and i + 8, down to i and i + 1; then the
// parts of a row from left to right. In each pair, operands may be swapped, so the function has to be commutative.
#pragma once

#include "arch/memory.cuh"

namespace wt_module {

constexpr int REDUCED_PART = 32;  // elements that a warp of Warp's reduces together

// Reduces 32 elements. Threads that have neighbouring rows read their vectors in turn, from different banks. The turn does not change
// which vectors are paired.
template <typename Function> inline __device__ float reduce_part(const Function& function, const float* part)
{
    constexpr int WIDTH = 4, VECTORS = REDUCED_PART / WIDTH;
    wt::Vector<float, WIDTH> values[VECTORS];
    const int turn = static_cast<int>(threadIdx.x) % VECTORS;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
        values[i] = wt::arch::load<WIDTH>(part + (i + turn) % VECTORS * WIDTH);
#pragma unroll
    for (int distance = VECTORS / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int i = 0; i < distance; ++i) {
#pragma unroll
            for (int e = 0; e < WIDTH; ++e)
                values[i].at[e] = function(values[i].at[e], values[i + distance].at[e]);
        }
    }
    const auto& last = values[0].at;
    return function(function(last[0], last[2]), function(last[1], last[3]));
}

// Returns the reduced rows of a dense shared tile, whose rows are whole parts. A barrier follows, as in Warp, so that the tile may be
// changed.
template <typename Function, typename Layout, bool Owner>
inline __device__ auto reduce_rows(const Function& function, const wp::tile_shared_t<float, Layout, Owner>& tile)
{
    constexpr int ROWS = Layout::Shape::dim(0), COLUMNS = Layout::Shape::dim(1);
    static_assert(Layout::Dense && COLUMNS % REDUCED_PART == 0, "rows are whole parts");
    wp::tile_register_t<float, wp::tile_layout_register_t<wp::tile_shape_t<ROWS>>> result;
    using Rows = typename decltype(result)::Layout;
#pragma unroll
    for (int i = 0; i < Rows::NumRegs; ++i) {
        const int number = Rows::linear_from_register(i);
        if (!Rows::valid(number))
            break;
        const float* const row = wt::arch::in_shared<float>(tile.data.ptr) + number * COLUMNS;
        float total = reduce_part(function, row);
#pragma unroll
        for (int part = REDUCED_PART; part < COLUMNS; part += REDUCED_PART)
            total = function(total, reduce_part(function, row + part));
        result.data[i] = total;
    }
    WP_TILE_SYNC();
    return result;
}

}  // namespace wt_module
