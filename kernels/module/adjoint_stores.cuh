// SPDX-License-Identifier: Apache-2.0
//
// Adjoints of stores: the tile's gradient receives the array's gradient, which becomes zero. Warp computes the index of each
// element and checks it. Here a tile that lies inside an array with contiguous rows needs neither. Tiles with few elements keep
// Warp's adjoint. A second path takes registers, and small products gain more from resident blocks.
#pragma once

#include "arch/memory.cuh"
#include "module/loads.cuh"

namespace wt_module {

// True for tiles whose threads have so many elements that an index for each is much of the code.
template <typename Shape> inline constexpr bool has_many_elements = Shape::size() > 32 * WP_TILE_BLOCK_DIM;

}  // namespace wt_module

namespace wp {

// Warp's own template takes any tile. These overloads are more specialised, so overload resolution picks them in generated code.
template <typename T, typename Shape>
inline __device__ void adj_tile_store(array_t<T>& array, int x, int y, tile_register_t<T, tile_layout_register_t<Shape>>& tile,
                                      array_t<T>& adj_array, int adj_x, int adj_y,
                                      tile_register_t<T, tile_layout_register_t<Shape>>& adj_tile)
{
    using Layout = tile_layout_register_t<Shape>;
    if constexpr (Shape::N == 2 && Layout::Aligned && wt_module::has_many_elements<Shape>) {
        const tile_global_t<T, Shape> region(array, tile_coord(x, y));
        T* const gradient = adj_array.data ? adj_array.data : array.grad;
        char* start;
        if (gradient && wt_module::is_inside<Shape>(gradient, region, start)) {
            const auto element = [&](int i) -> T& {
                const int linear = i * WP_TILE_BLOCK_DIM + static_cast<int>(threadIdx.x);
                const int row = linear / Shape::dim(1), column = linear % Shape::dim(1);
                return *reinterpret_cast<T*>(wt::arch::mad_wide(array.strides[0], row, start) + column * int64_t(sizeof(T)));
            };
#pragma unroll
            for (int i = 0; i < Layout::NumRegs; ++i)
                adj_tile.data[i] += element(i);
#pragma unroll
            for (int i = 0; i < Layout::NumRegs; ++i)
                element(i) = T {};
            return;
        }
    }
    adj_tile_store(array, tile_coord(x, y), tile, adj_array, tile_coord(0, 0), adj_tile);
}

template <typename T, typename Layout, bool Owner>
inline __device__ void adj_tile_store(array_t<T>& array, int x, int y, tile_shared_t<T, Layout, Owner>& tile, array_t<T>& adj_array,
                                      int adj_x, int adj_y, tile_shared_t<T, Layout, Owner>& adj_tile)
{
    using namespace wt_module;
    using Shape = typename Layout::Shape;
    if constexpr (has_whole_vectors<T, Layout>() && VECTOR_BYTES % sizeof(T) == 0 && has_many_elements<Shape>) {
        constexpr int COUNT = VECTOR_BYTES / static_cast<int>(sizeof(T));
        const tile_global_t<T, Shape> region(array, tile_coord(x, y));
        T* const gradient = adj_array.data ? adj_array.data : array.grad;
        char* start;
        if (gradient && is_vectorizable<Shape>(gradient, region, start)
            && reinterpret_cast<uint64_t>(adj_tile.grad.ptr) % VECTOR_BYTES == 0) {
            for_each_vector<T, Shape>(array.strides[0], start, [&](int i, char* address) {
                T* const to = adj_tile.grad.ptr + i * COUNT;
                const auto added = wt::arch::load<COUNT>(reinterpret_cast<const T*>(address));
                auto accumulators = wt::arch::load<COUNT>(const_cast<const T*>(to));
#pragma unroll
                for (int e = 0; e < COUNT; ++e)
                    accumulators.at[e] += added.at[e];
                wt::arch::store(to, accumulators);
            });
            for_each_vector<T, Shape>(array.strides[0], start, [](int, char* address) {
                *reinterpret_cast<uint4*>(address) = uint4 {0, 0, 0, 0};
            });
            WP_TILE_SYNC();
            return;
        }
    }
    adj_tile_store(array, tile_coord(x, y), tile, adj_array, tile_coord(0, 0), adj_tile);
}

}  // namespace wp
