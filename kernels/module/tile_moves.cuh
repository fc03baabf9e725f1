// SPDX-License-Identifier: Apache-2.0
//
// Tiles between arrays and shared memory, 16 bytes at a time. Written into the source of a Warp module, behind Warp's
// own headers, whose types it uses: array_t, tile_global_t, tile_shared_t (native/array.h, native/tile.h).
#pragma once

#include "arch/copy.cuh"

namespace wt_module {

constexpr int MOVE_BYTES = 16;

// Whether all of a tile lies inside an array, in lines that are contiguous and aligned; `start`: where, if it does. The
// array may be a thread's own, in local memory, which instructions for global memory do not reach.
template <typename Shape, typename T, typename Global>
inline __device__ bool is_movable(T* array, const Global& where, char*& start)
{
    const auto& strides = where.data.strides;
    const auto& sizes = where.data.shape;
    using wt::arch::mad_wide;
    char* const first = reinterpret_cast<char*>(array);
    start = mad_wide(strides[0], where.offset[0], mad_wide(int(sizeof(T)), where.offset[1], first));
    bool whole = __isGlobal(array) && strides[1] == sizeof(T) && strides[0] % MOVE_BYTES == 0;
    whole = whole && reinterpret_cast<uint64_t>(start) % MOVE_BYTES == 0;
    for (int d = 0; d < 2; ++d) {
        const int last = sizes[d] - Shape::dim(d);
        whole = whole && last >= 0 && unsigned(where.offset[d]) <= unsigned(last);
    }
    return whole;
}

// Calls move(i, address) for each 16 bytes of a tile, shared by the threads of the block: the i-th of the dense tile,
// and where it lies in the array.
template <typename T, typename Shape, typename Move>
inline __device__ void for_each_move(int stride, char* start, Move&& move)
{
    constexpr int IN_LINE = Shape::dim(1) * int(sizeof(T)) / MOVE_BYTES;
    constexpr int MOVES = Shape::dim(0) * IN_LINE;
    constexpr int ROUNDS = (MOVES + WP_TILE_BLOCK_DIM - 1) / WP_TILE_BLOCK_DIM;
    constexpr int UNROLLED = ROUNDS < 16 ? ROUNDS : 16;
    const unsigned thread = threadIdx.x;
    char* address = wt::arch::mad_wide(stride, thread / IN_LINE, start + thread % IN_LINE * MOVE_BYTES);
    const int64_t next = int64_t(stride) * (WP_TILE_BLOCK_DIM / IN_LINE);
#pragma unroll(UNROLLED)
    for (int round = 0; round < ROUNDS; ++round) {
        const unsigned i = round * WP_TILE_BLOCK_DIM + thread;
        if (MOVES % WP_TILE_BLOCK_DIM != 0 && i >= MOVES)
            break;
        if (WP_TILE_BLOCK_DIM % IN_LINE != 0)  // rounds start at different places of lines
            address = wt::arch::mad_wide(stride, i / IN_LINE, start + i % IN_LINE * MOVE_BYTES);
        move(i, address);
        address += next;
    }
}

template <typename T, typename Layout> constexpr bool moves_whole()
{
    return Layout::Shape::N == 2 && Layout::Dense && Layout::Shape::dim(Layout::Shape::N - 1) * sizeof(T) % MOVE_BYTES == 0;
}

// The i-th element of a tile in its array, by bytes, because the stride of a struct need not be a multiple of its size;
// null outside the array.
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

// Starts to load a shared tile; loaded() waits for it. `First`: other threads may still read what it held.
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
        if constexpr (Global::is_aligned) {  // what Warp makes sure of where a kernel says aligned=True
            using Check = wp::tile_vectorized_check_t<T, Shape>;
            Check::validate_aligned_compile_time();
            Check::validate_aligned_runtime(source, source.byte_offset_from_coord(wp::tile_coord(0, 0)));
        }
        if (First)
            WP_TILE_SYNC();
        tile.initialized = true;
        const unsigned to = unsigned(__cvta_generic_to_shared(tile.data.ptr));
        if constexpr (moves_whole<T, Layout>()) {
            char* from;
            if (is_movable<Shape>(source.data.data, source, from) && to % MOVE_BYTES == 0) {
                for_each_move<T, Shape>(source.data.strides[0], from, [&](unsigned i, const char* address) {
#if __CUDA_ARCH__ >= 800
                    wt::arch::copy_async_16(to + i * MOVE_BYTES, address);
#else
                    reinterpret_cast<uint4*>(tile.data.ptr)[i] = *reinterpret_cast<const uint4*>(address);
#endif
                });
                return;
            }
        }
        // element by element; zero outside the array
#if __CUDA_ARCH__ >= 800
        if constexpr ((sizeof(T) == 4 || sizeof(T) == 8) && alignof(T) == sizeof(T)) {
            if (__isGlobal(source.data.data)) {
#pragma unroll 1
                for (int i = int(threadIdx.x); i < Layout::Size; i += WP_TILE_BLOCK_DIM) {
                    const T* const from = element<T>(source, i);
                    wt::arch::copy_async<int(sizeof(T))>(to + i * unsigned(sizeof(T)), from ? from : source.data.data,
                                                         from ? unsigned(sizeof(T)) : 0u);
                }
                return;
            }
        }
#endif
#pragma unroll 4
        for (int i = int(threadIdx.x); i < Layout::Size; i += WP_TILE_BLOCK_DIM) {
            const T* const from = element<T>(source, i);
            tile.data.ptr[i] = from ? *from : T {};
        }
    }
}

// Waits for all loads of the block.
inline __device__ void loaded()
{
#if __CUDA_ARCH__ >= 800
    wt::arch::wait_for_copies();
#endif
    WP_TILE_SYNC();
}

// The buffers of a loop that loads the tiles of one turn while it multiplies those of the turn before: each of A and B
// has its own memory and a part of C's, which is idle until the loop ends. Addresses are of shared memory.
template <typename A, typename B> struct Turns {
    using PointerA = decltype(A::data.ptr);
    using PointerB = decltype(B::data.ptr);
    static constexpr unsigned BYTES  // of A's buffer in C
        = (A::Layout::Size * unsigned(sizeof(typename A::Type)) + MOVE_BYTES - 1) / MOVE_BYTES * MOVE_BYTES;

    unsigned ready_a, ready_b;  // what is multiplied next
    unsigned both_a, both_b;  // sums of the addresses of the two buffers
    int any, more;  // whether there is a turn before, and tiles in this one

    inline __device__ void start(const A& tile_a, const B& tile_b, void* c)
    {
        const unsigned lent = address(c);
        both_a = address(tile_a.data.ptr) + lent;
        both_b = address(tile_b.data.ptr) + lent + BYTES;
        ready_a = lent;
        ready_b = lent + BYTES;
        any = false;
    }

    // Before the loads of a turn: those of the turn before are there, and nobody reads the other buffers any more.
    inline __device__ void next(A& tile_a, B& tile_b)
    {
        loaded();
        point(tile_a, both_a - ready_a);
        point(tile_b, both_b - ready_b);
    }

    // After them. False in the first turn; the last one has none.
    inline __device__ bool earlier()
    {
        if (!more)
            loaded();
        return any;
    }

    inline __device__ PointerA a() const { return static_cast<PointerA>(__cvta_shared_to_generic(ready_a)); }
    inline __device__ PointerB b() const { return static_cast<PointerB>(__cvta_shared_to_generic(ready_b)); }

    inline __device__ void keep()
    {
        ready_a = both_a - ready_a;
        ready_b = both_b - ready_b;
        any = true;
    }

    // Behind the loop: gives the tiles their own memory back.
    inline __device__ void end(A& tile_a, B& tile_b, void* c)
    {
        point(tile_a, both_a - address(c));
        point(tile_b, both_b - address(c) - BYTES);
    }

private:
    static inline __device__ unsigned address(const void* pointer)
    {
        return unsigned(__cvta_generic_to_shared(pointer));
    }

    template <typename Tile> static inline __device__ void point(Tile& tile, unsigned to)
    {
        tile.data.ptr = static_cast<decltype(tile.data.ptr)>(__cvta_shared_to_generic(to));
    }
};

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

// The adjoint of a load, wp::adj_tile_load: adds the tile's gradient to that of the array.
template <typename T, typename Tile>
inline __device__ void
adj_load(wp::array_t<T>& array, int x, int y, wp::array_t<T>& adj_array, int adj_x, int adj_y, Tile& adj_tile)
{
    wp::adj_tile_load(array, x, y, adj_array, adj_x, adj_y, adj_tile);
}

template <typename T, typename Layout, bool Owner>
inline __device__ void adj_load(wp::array_t<T>& array, int x, int y, wp::array_t<T>& adj_array, int adj_x, int adj_y,
                                wp::tile_shared_t<T, Layout, Owner>& adj_tile)
{
    if constexpr (VectorAdd<T>::EXISTS && moves_whole<T, Layout>()) {
        using Shape = typename Layout::Shape;
        wp::tile_global_t<T, Shape> where(array, wp::tile_coord(x, y));
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
    wp::adj_tile_load(array, x, y, adj_array, adj_x, adj_y, adj_tile);
}

}  // namespace wt_module
