// SPDX-License-Identifier: Apache-2.0
//
// Adjoints of loads that add vectors, where Warp adds elements one by one.
#pragma once

#include "module/loads.cuh"

namespace wt_module {

// Adds 16 bytes to an array, each element atomically, where there is an instruction for it.
template <typename T> struct VectorAdd {
    static constexpr bool EXISTS = false;
};

#if __CUDA_ARCH__ >= 900
#define WT_VECTOR_ADD(TYPE, ADD)                                                                                       \
    template <> struct VectorAdd<TYPE> {                                                                               \
        static constexpr bool EXISTS = true;                                                                           \
                                                                                                                       \
        static __device__ void add(char* to, uint4 x) { wt::arch::ADD(to, x.x, x.y, x.z, x.w); }                       \
    };

WT_VECTOR_ADD(wp::float32, add_4_f32)
WT_VECTOR_ADD(wp::float16, add_4_f16x2)
#ifndef WP_NO_BFLOAT16
WT_VECTOR_ADD(wp::bfloat16, add_4_bf16x2)
#endif
#undef WT_VECTOR_ADD
#endif

}  // namespace wt_module

namespace wp {

// The adjoint of a load into shared memory: adds the tile's gradient to that of the array. Warp's own template takes any
// tile; this one is more specialised, so that calls of generated code find it.
template <typename T, typename Layout, bool Owner>
inline __device__ void adj_tile_load(array_t<T>& array, int x, int y, array_t<T>& adj_array, int adj_x, int adj_y,
                                     tile_shared_t<T, Layout, Owner>& adj_tile)
{
    using namespace wt_module;
    if constexpr (VectorAdd<T>::EXISTS && moves_whole<T, Layout>()) {
        using Shape = typename Layout::Shape;
        tile_global_t<T, Shape> where(array, tile_coord(x, y));
        T* gradient = adj_array.data ? adj_array.data : array.grad;
        char* to = nullptr;
        const bool movable = gradient && is_movable<Shape>(gradient, where, to);
        const uint4* from = reinterpret_cast<const uint4*>(adj_tile.grad.ptr);
        if (movable && reinterpret_cast<uint64_t>(from) % MOVE_BYTES == 0) {
            for_each_move<T, Shape>(array.strides[0], to, [&](int i, char* address) {
                VectorAdd<T>::add(address, from[i]);
            });
            WP_TILE_SYNC();  // the gradient is zeroed next, each element by another thread
            return;
        }
    }
    adj_tile_load(array, tile_coord(x, y), adj_array, tile_coord(0, 0), adj_tile);
}

}  // namespace wp
