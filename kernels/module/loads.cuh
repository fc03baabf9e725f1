// SPDX-License-Identifier: Apache-2.0
//
// Async copies of tiles from arrays to shared memory, 16 bytes at a time where possible.
#pragma once

#include "arch/copy.cuh"

namespace wt_module {

constexpr int VECTOR_BYTES = 16;

// The rows of a tile. A tile with one dimension is one row.
template <typename Shape> constexpr int rows_of()
{
    if constexpr (Shape::N == 1)
        return 1;
    else
        return Shape::dim(0);
}

// Returns true if a tile lies inside an array whose rows are contiguous, and sets `start` to the address of the tile's first
// element. With VECTORS, the array must also be in global memory and its rows aligned. These conditions come first: small products
// took up to 44 more registers when they came last.
template <typename Shape, bool VECTORS = false, typename T, typename Global>
inline __device__ bool is_inside(T* array, const Global& region, char*& start)
{
    const auto& strides = region.data.strides;
    const auto& sizes = region.data.shape;
    using wt::arch::mad_wide;
    constexpr int LAST = Shape::N - 1;
    char* const first = reinterpret_cast<char*>(array);
    start = mad_wide(static_cast<int>(sizeof(T)), region.offset[LAST], first);
    if constexpr (Shape::N == 2)
        start = mad_wide(strides[0], region.offset[0], start);
    bool whole = strides[LAST] == sizeof(T);
    if constexpr (VECTORS) {
        whole = __isGlobal(array) && whole && (Shape::N == 1 || strides[0] % VECTOR_BYTES == 0);
        whole = whole && reinterpret_cast<uint64_t>(start) % VECTOR_BYTES == 0;
    }
    for (int d = 0; d < Shape::N; ++d) {
        const int last = sizes[d] - Shape::dim(d);
        whole = whole && last >= 0 && unsigned(region.offset[d]) <= unsigned(last);
    }
    return whole;
}

// Returns true if 16-byte accesses can read or write the whole tile. Sets `start` as is_inside() does.
template <typename Shape, typename T, typename Global>
inline __device__ bool is_vectorizable(T* array, const Global& region, char*& start)
{
    return is_inside<Shape, true>(array, region, start);
}

// Calls act(i, address) for each 16-byte vector of a tile: its index in the dense tile and its address in the array. The
// threads of the block share the vectors.
template <typename T, typename Shape, typename Act>
inline __device__ void for_each_vector(int stride, char* start, Act&& act)
{
    constexpr int PER_ROW = Shape::dim(Shape::N - 1) * static_cast<int>(sizeof(T)) / VECTOR_BYTES;
    constexpr int VECTORS = rows_of<Shape>() * PER_ROW;
    constexpr int ITERATIONS = (VECTORS + WP_TILE_BLOCK_DIM - 1) / WP_TILE_BLOCK_DIM;
    constexpr int UNROLLED = ITERATIONS < 16 ? ITERATIONS : 16;
    const unsigned thread = threadIdx.x;
    char* address = wt::arch::mad_wide(stride, thread / PER_ROW, start + thread % PER_ROW * VECTOR_BYTES);
    const int64_t next = int64_t(stride) * (WP_TILE_BLOCK_DIM / PER_ROW);
#pragma unroll(UNROLLED)
    for (int iteration = 0; iteration < ITERATIONS; ++iteration) {
        const unsigned i = iteration * WP_TILE_BLOCK_DIM + thread;
        if (VECTORS % WP_TILE_BLOCK_DIM != 0 && i >= VECTORS)
            break;
        if (WP_TILE_BLOCK_DIM % PER_ROW != 0)  // the offset in the row differs between iterations
            address = wt::arch::mad_wide(stride, i / PER_ROW, start + i % PER_ROW * VECTOR_BYTES);
        act(i, address);
        address += next;
    }
}

// True for a dense tile of one or two dimensions whose rows are whole 16-byte vectors.
template <typename T, typename Layout> constexpr bool has_whole_vectors()
{
    return Layout::Shape::N <= 2 && Layout::Dense && Layout::Shape::dim(Layout::Shape::N - 1) * sizeof(T) % VECTOR_BYTES == 0;
}

// The coordinates of a tile's i-th element.
template <typename Shape> inline __device__ auto coordinates(int i)
{
    if constexpr (Shape::N == 1)
        return wp::tile_coord(i);
    else
        return wp::tile_coord(i / Shape::dim(1), i % Shape::dim(1));
}

// Returns the address of a tile's i-th element in its array, or null outside the array. Strides are in bytes, because the
// stride of a struct need not be a multiple of its size.
template <typename T, typename Global> inline __device__ const T* element(const Global& source, int i)
{
    using Shape = typename Global::Shape;
    const auto coord = coordinates<Shape>(i);
    if (Global::bounds_check) {
        for (int d = 0; d < Shape::N; ++d)
            if (source.offset[d] + coord[d] >= source.data.shape[d])
                return nullptr;
    }
    const char* const array = reinterpret_cast<const char*>(source.data.data);
    return reinterpret_cast<const T*>(array + source.byte_offset_from_coord(coord));
}

// Makes Warp's checks for aligned=True.
template <typename Shape, typename Global> inline __device__ void check_alignment(const Global& tile)
{
    if constexpr (Global::is_aligned) {
        using Check = wp::tile_vectorized_check_t<typename Global::Type, Shape>;
        Check::validate_aligned_compile_time();
        Check::validate_aligned_runtime(tile, tile.byte_offset_from_coord(coordinates<Shape>(0)));
    }
}

// Starts to load a shared tile; wait_for_loads() waits for it. If First, other threads may still read the tile's old values,
// so a barrier comes first.
template <bool First, typename Tile, typename Global> inline __device__ void load(Tile& tile, const Global& source)
{
    tile = source;
}

template <bool First, typename T, typename Layout, bool Owner, typename Global>
inline __device__ void load(wp::tile_shared_t<T, Layout, Owner>& tile, const Global& source)
{
    using Shape = typename Layout::Shape;
    if constexpr (Shape::N > 2 || !Layout::Dense) {
        tile = source;
    } else {
        check_alignment<Shape>(source);
        if (First)
            WP_TILE_SYNC();
        tile.initialized = true;
        const unsigned to = unsigned(__cvta_generic_to_shared(tile.data.ptr));
        if constexpr (has_whole_vectors<T, Layout>()) {
            char* from;
            if (is_vectorizable<Shape>(source.data.data, source, from) && to % VECTOR_BYTES == 0) {
                for_each_vector<T, Shape>(source.data.strides[0], from, [&](unsigned i, const char* address) {
#if __CUDA_ARCH__ >= 800
                    wt::arch::copy_async_16(to + i * VECTOR_BYTES, address);
#else
                    reinterpret_cast<uint4*>(tile.data.ptr)[i] = *reinterpret_cast<const uint4*>(address);
#endif
                });
                return;
            }
        }
        // Loads single elements, and zeros outside the array.
#if __CUDA_ARCH__ >= 800
        if constexpr ((sizeof(T) == 4 || sizeof(T) == 8) && alignof(T) == sizeof(T)) {
            if (__isGlobal(source.data.data)) {
#pragma unroll 1
                for (int i = static_cast<int>(threadIdx.x); i < Layout::Size; i += WP_TILE_BLOCK_DIM) {
                    const T* const from = element<T>(source, i);
                    wt::arch::copy_async<static_cast<int>(sizeof(T))>(to + i * unsigned(sizeof(T)), from ? from : source.data.data,
                                                         from ? unsigned(sizeof(T)) : 0u);
                }
                return;
            }
        }
#endif
#pragma unroll 4
        for (int i = static_cast<int>(threadIdx.x); i < Layout::Size; i += WP_TILE_BLOCK_DIM) {
            const T* const from = element<T>(source, i);
            tile.data.ptr[i] = from ? *from : T {};
        }
    }
}

// Waits until all loads of the block have arrived.
inline __device__ void wait_for_loads()
{
#if __CUDA_ARCH__ >= 800
    wt::arch::wait_for_copies();
#endif
    WP_TILE_SYNC();
}

// The left side of an assignment that starts a load: Load<First>() << tile = source.
template <bool First, typename Tile> struct Destination {
    Tile& tile;

    template <typename Global> inline __device__ void operator=(const Global& source) { load<First>(tile, source); }
};

template <bool First> struct Load {
    template <typename Tile> inline __device__ Destination<First, Tile> operator<<(Tile& tile) const { return {tile}; }
};

}  // namespace wt_module
