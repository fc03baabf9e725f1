// SPDX-License-Identifier: Apache-2.0
//
// Adjoints of loads. They add vectors to global memory; Warp's adjoints add single elements.
#pragma once

#include "module/loads.cuh"

namespace wt_module {

// Adds 16 bytes to an array, each element atomically. EXISTS is false if the GPU has no instruction for it.
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

// True for tiles whose single elements are added in a loop. Warp unrolls it fully, which takes up to a fifth of the link of
// a kernel, and registers: adjoints of loops were up to 1.3 times as fast without. One warp was up to 12 % slower.
template <typename Layout>
constexpr bool ADDS_IN_LOOP = Layout::Size >= 16 * WP_TILE_BLOCK_DIM && WP_TILE_BLOCK_DIM > 32;

}  // namespace wt_module

namespace wp {

// The adjoint of a load into shared memory: adds the tile's gradient to the array's gradient. Warp's own template takes any
// tile. This overload is more specialised, so overload resolution picks it in generated code.
template <typename T, typename Layout, bool Owner>
inline __device__ void adj_tile_load(array_t<T>& array, int x, int y, array_t<T>& adj_array, int adj_x, int adj_y,
                                     tile_shared_t<T, Layout, Owner>& adj_tile)
{
    using namespace wt_module;
    if constexpr (VectorAdd<T>::EXISTS && has_whole_vectors<T, Layout>()) {
        using Shape = typename Layout::Shape;
        tile_global_t<T, Shape> region(array, tile_coord(x, y));
        T* gradient = adj_array.data ? adj_array.data : array.grad;
        char* to = nullptr;
        const bool vectorizable = gradient && is_vectorizable<Shape>(gradient, region, to);
        const uint4* from = reinterpret_cast<const uint4*>(adj_tile.grad.ptr);
        if (vectorizable && reinterpret_cast<uint64_t>(from) % VECTOR_BYTES == 0) {
            for_each_vector<T, Shape>(array.strides[0], to, [&](int i, char* address) {
                VectorAdd<T>::add(address, from[i]);
            });
            WP_TILE_SYNC();  // other threads zero the gradient next
            return;
        }
        if constexpr (ADDS_IN_LOOP<Layout>) {
            if (!gradient)
                return;
            region.data.grad = gradient;
#pragma unroll 4
            for (int i = static_cast<int>(threadIdx.x); i < Layout::Size; i += WP_TILE_BLOCK_DIM)
                region.atomic_add_grad(Layout::coord_from_linear(i), adj_tile.grad.ptr[i]);
            WP_TILE_SYNC();
            return;
        }
    }
    adj_tile_load(array, tile_coord(x, y), adj_array, tile_coord(0, 0), adj_tile);
}

}  // namespace wp
