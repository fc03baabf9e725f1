// SPDX-License-Identifier: Apache-2.0
//
// Async copies of tiles from arrays to shared memory, 16 bytes at a time where possible.
#pragma once

#include "arch/copy.cuh"

namespace wt_module {

constexpr int VECTOR_BYTES = 16;

// Returns true if a tile lies inside an array whose rows are contiguous, and sets `start` to the address of the tile's first
// element. With VECTORS, the array must also be in global memory and its rows aligned. These conditions come first: small products
// took up to 44 more registers when they came last.
template <typename Shape, bool VECTORS = false, typename T, typename Global>
inline __device__ bool is_inside(T* array, const Global& region, char*& start)
{
    const auto& strides = region.data.strides;
    const auto& sizes = region.data.shape;
    using wt::arch::mad_wide;
    char* const first = reinterpret_cast<char*>(array);
    start = mad_wide(strides[0], region.offset[0], mad_wide(static_cast<int>(sizeof(T)), region.offset[1], first));
    bool whole = strides[1] == sizeof(T);
    if constexpr (VECTORS) {
        whole = __isGlobal(array) && whole && strides[0] % VECTOR_BYTES == 0;
        whole = whole && reinterpret_cast<uint64_t>(start) % VECTOR_BYTES == 0;
    }
    for (int d = 0; d < 2; ++d) {
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
    constexpr int PER_ROW = Shape::dim(1) * static_cast<int>(sizeof(T)) / VECTOR_BYTES;
    constexpr int VECTORS = Shape::dim(0) * PER_ROW;
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

// True for a dense two-dimensional tile whose rows are whole 16-byte vectors.
template <typename T, typename Layout> constexpr bool has_whole_vectors()
{
    return Layout::Shape::N == 2 && Layout::Dense && Layout::Shape::dim(Layout::Shape::N - 1) * sizeof(T) % VECTOR_BYTES == 0;
}

// The bytes of the shortest async copies of elements.
template <typename T> constexpr int shortest_copy() { return sizeof(T) < 4 ? 4 : static_cast<int>(sizeof(T)); }

// True for a tile with many vectors for each thread. The code for its edges is worth the registers that it takes.
template <typename T, typename Layout>
inline constexpr bool has_many_vectors = Layout::Size * static_cast<int>(sizeof(T)) >= 4 * VECTOR_BYTES * WP_TILE_BLOCK_DIM;

// Returns the address of a tile's i-th element in its array, or null outside the array. Strides are in bytes, because the
// stride of a struct need not be a multiple of its size.
template <typename T, typename Global> inline __device__ const T* element(const Global& source, int i)
{
    using Shape = typename Global::Shape;
    const auto coord = wp::tile_coord(i / Shape::dim(1), i % Shape::dim(1));
    if (Global::bounds_check) {
        for (int d = 0; d < 2; ++d)
            if (source.offset[d] + coord[d] >= source.data.shape[d])
                return nullptr;
    }
    const char* const array = reinterpret_cast<const char*>(source.data.data);
    return reinterpret_cast<const T*>(array + source.byte_offset_from_coord(coord));
}

// Returns the bytes of the async copies that can load a tile: 16, or the shortest ones if its rows begin at multiples of them. 0 if
// none can, because its rows begin elsewhere or their elements have gaps.
template <typename T, typename Global> inline __device__ int copy_alignment(const Global& source)
{
    constexpr int SIZE = static_cast<int>(sizeof(T)), WORD = shortest_copy<T>();
    const auto& strides = source.data.strides;
    if (!__isGlobal(source.data.data) || strides[1] != SIZE || source.offset[0] < 0 || source.offset[1] < 0)
        return 0;
    const unsigned all = unsigned(reinterpret_cast<uint64_t>(source.data.data)) | unsigned(strides[0]) | unsigned(source.offset[1]) * SIZE;
    return all % VECTOR_BYTES == 0 ? VECTOR_BYTES : all % WORD == 0 ? WORD : 0;
}

// Loads a tile into shared memory by async copies of BYTES, with zeros outside the array. All copies must be aligned.
template <typename Layout, typename T, typename Shape, int BYTES, typename Global>
inline __device__ void copy_clipped(unsigned memory, const Global& source)
{
    constexpr int SIZE = static_cast<int>(sizeof(T)), ROWS = Shape::dim(0), PER_ROW = Shape::dim(1) * SIZE / BYTES;
    constexpr int THREADS = WP_TILE_BLOCK_DIM, ALONG = PER_ROW < THREADS ? PER_ROW : THREADS, PASS_ROWS = THREADS / ALONG;
    const int64_t stride = source.data.strides[0];
    const int y = source.offset[0], x = source.offset[1], thread = wt::arch::opaque(static_cast<int>(threadIdx.x));
    const int rows = min(source.data.shape[0] - y, ROWS), row_bytes = max(0, min(source.data.shape[1] - x, Shape::dim(1))) * SIZE;
    const char* const tile = reinterpret_cast<const char*>(source.data.data) + int64_t(x) * SIZE + stride * y;
    if (thread >= PASS_ROWS * ALONG)
        return;
#pragma unroll 1
    for (int column = thread % ALONG; column < PER_ROW; column += ALONG) {
        const int at = column * BYTES;
        const unsigned inside = max(0, min(row_bytes - at, BYTES));
        const char* from = tile + stride * (thread / ALONG) + at;
#pragma unroll 2
        for (int row = thread / ALONG; row < ROWS; row += PASS_ROWS) {
            const unsigned to = memory + Layout::offset(row, at / VECTOR_BYTES) + at % VECTOR_BYTES;
            const unsigned valid = row < rows ? inside : 0;
            if constexpr (BYTES == VECTOR_BYTES)
                wt::arch::copy_async_16(to, from, valid);
            else
                wt::arch::copy_async<BYTES>(to, from, valid);
            from += stride * PASS_ROWS;
        }
    }
}

// The layout of a dense tile in shared memory, for copy_clipped().
template <int ROW_BYTES> struct DenseRows {
    static inline __device__ unsigned offset(unsigned row, unsigned vector) { return row * ROW_BYTES + vector * VECTOR_BYTES; }
};

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
    if constexpr (Shape::N != 2 || !Layout::Dense) {
        tile = source;
    } else {
        if constexpr (Global::is_aligned) {  // Warp's checks for aligned=True
            using Check = wp::tile_vectorized_check_t<T, Shape>;
            Check::validate_aligned_compile_time();
            Check::validate_aligned_runtime(source, source.byte_offset_from_coord(wp::tile_coord(0, 0)));
        }
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
#if __CUDA_ARCH__ >= 800
        if constexpr (has_whole_vectors<T, Layout>() && has_many_vectors<T, Layout>) {
            using Rows = DenseRows<Shape::dim(1) * static_cast<int>(sizeof(T))>;
            const int alignment = copy_alignment<T>(source);
            if (alignment == VECTOR_BYTES && to % VECTOR_BYTES == 0) {
                copy_clipped<Rows, T, Shape, VECTOR_BYTES>(to, source);
                return;
            }
            if constexpr (sizeof(T) < shortest_copy<T>()) {
                if (alignment != 0) {
                    copy_clipped<Rows, T, Shape, shortest_copy<T>()>(to, source);
                    return;
                }
            }
        }
#endif
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
