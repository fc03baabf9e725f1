// SPDX-License-Identifier: Apache-2.0
//
// Tiles between arrays and shared memory, 16 bytes at a time. Written into the source of a Warp module, behind Warp's
// own headers, whose types it uses: array_t, tile_global_t, tile_shared_t (native/array.h, native/tile.h).
#pragma once

namespace wt_module {

constexpr int MOVE_BYTES = 16;

// Where a tile starts in an array; null unless all of it lies inside, in lines that are contiguous and aligned.
template <typename Shape, typename T, typename Global>
inline __device__ char* aligned_start(T* array, const Global& where)
{
    const auto& strides = where.data.strides;
    const auto& sizes = where.data.shape;
    char* start = reinterpret_cast<char*>(array) + int64_t(strides[0]) * where.offset[0]
        + int64_t(strides[1]) * where.offset[1];
    bool whole = strides[1] == sizeof(T) && strides[0] % MOVE_BYTES == 0;
    whole = whole && reinterpret_cast<uint64_t>(start) % MOVE_BYTES == 0;
    for (int d = 0; d < 2; ++d)
        whole = whole && where.offset[d] >= 0 && where.offset[d] + Shape::dim(d) <= sizes[d];
    return whole ? start : nullptr;
}

// Calls move(i, bytes) for each 16 bytes of a tile, shared by the threads of the block: the i-th of the dense tile,
// which lies that many bytes behind the start in the array. The trip count is constant, so all can be in flight.
template <typename T, typename Shape, typename Move>
inline __device__ void for_each_move(int stride, Move&& move)
{
    constexpr int IN_LINE = Shape::dim(1) * int(sizeof(T)) / MOVE_BYTES;
    constexpr int MOVES = Shape::dim(0) * IN_LINE;
    constexpr int ROUNDS = (MOVES + WP_TILE_BLOCK_DIM - 1) / WP_TILE_BLOCK_DIM;
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int i = round * WP_TILE_BLOCK_DIM + int(threadIdx.x);
        if (MOVES % WP_TILE_BLOCK_DIM == 0 || i < MOVES)
            move(i, int64_t(i / IN_LINE) * stride + (i % IN_LINE) * MOVE_BYTES);
    }
}

template <typename T, typename Layout> constexpr bool moves_whole()
{
    return Layout::Shape::N == 2 && Layout::Dense && Layout::Shape::dim(Layout::Shape::N - 1) * sizeof(T) % MOVE_BYTES == 0;
}

// Starts to load a shared tile; loaded() waits for it. `First`: other threads may still read what it held.
template <bool First, typename Tile, typename Global> inline __device__ void load(Tile& tile, const Global& source)
{
    tile = source;
}

template <bool First, typename T, typename Layout, bool Owner, typename Global>
inline __device__ void load(wp::tile_shared_t<T, Layout, Owner>& tile, const Global& source)
{
    if constexpr (!moves_whole<T, Layout>()) {
        tile = source;
    } else {
        using Shape = typename Layout::Shape;
        const char* from = aligned_start<Shape>(source.data.data, source);
        const unsigned to = unsigned(__cvta_generic_to_shared(tile.data.ptr));
        if (First)
            WP_TILE_SYNC();
        tile.initialized = true;
#if __CUDA_ARCH__ >= 800
        if (from != nullptr && to % MOVE_BYTES == 0) {
            for_each_move<T, Shape>(source.data.strides[0], [&](int i, int64_t bytes) {
                // PTX ISA, "cp.async": .cg goes past L1
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                             :
                             : "r"(to + i * MOVE_BYTES), "l"(from + bytes)
                             : "memory");
            });
            return;
        }
#endif
        // element by element; zero outside the array
#pragma unroll 4
        for (int i = int(threadIdx.x); i < Layout::Size; i += WP_TILE_BLOCK_DIM) {
            tile.data.ptr[i] = source.load(wp::tile_coord(i / Shape::dim(1), i % Shape::dim(1)));
        }
    }
}

// Waits for all loads of the block.
inline __device__ void loaded()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" : : : "memory");
#endif
    WP_TILE_SYNC();
}

// The buffers of a loop that loads the tiles of one turn while it multiplies those of the turn before: each of A and B
// has its own memory and a part of C's, which is idle until the loop ends.
template <typename A, typename B> struct Turns {
    using PointerA = decltype(A::data.ptr);
    using PointerB = decltype(B::data.ptr);

    PointerA a, a_own, a_lent;  // a: what is multiplied next
    PointerB b, b_own, b_lent;
    bool any, more;  // whether there is a turn before, and tiles in this one

    inline __device__ void start(const A& tile_a, const B& tile_b, void* c)
    {
        constexpr int BYTES = (A::Layout::Size * int(sizeof(typename A::Type)) + MOVE_BYTES - 1) / MOVE_BYTES * MOVE_BYTES;
        a_own = tile_a.data.ptr;
        b_own = tile_b.data.ptr;
        a_lent = reinterpret_cast<PointerA>(c);
        b_lent = reinterpret_cast<PointerB>(static_cast<char*>(c) + BYTES);
        any = false;
    }

    // Before the loads of a turn.
    inline __device__ void next(A& tile_a, B& tile_b)
    {
        if (any) {
            tile_a.data.ptr = a == a_own ? a_lent : a_own;
            tile_b.data.ptr = b == b_own ? b_lent : b_own;
        }
    }

    // After them: waits for the loads of the turn before. False in the first turn.
    inline __device__ bool earlier()
    {
#if __CUDA_ARCH__ >= 800
        // PTX ISA, "cp.async.commit_group" and "cp.async.wait_group"
        asm volatile("cp.async.commit_group;" : : : "memory");
        asm volatile("cp.async.wait_group 1;" : : : "memory");
#endif
        WP_TILE_SYNC();
        return any;
    }

    inline __device__ void keep(const A& tile_a, const B& tile_b)
    {
        a = tile_a.data.ptr;
        b = tile_b.data.ptr;
        any = true;
    }

    // Behind the loop: gives the tiles their own memory back.
    inline __device__ void end(A& tile_a, B& tile_b)
    {
        tile_a.data.ptr = a_own;
        tile_b.data.ptr = b_own;
    }
};

// Adds 16 bytes to an array, each element atomically: PTX ISA, "red", vectors from sm_90 on.
template <typename T> struct VectorAdd {
    static constexpr bool EXISTS = false;
};

#if __CUDA_ARCH__ >= 900
template <> struct VectorAdd<wp::float32> {
    static constexpr bool EXISTS = true;

    static __device__ void add(char* to, uint4 x)
    {
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                     :
                     : "l"(to), "f"(__uint_as_float(x.x)), "f"(__uint_as_float(x.y)), "f"(__uint_as_float(x.z)),
                       "f"(__uint_as_float(x.w))
                     : "memory");
    }
};

#define WT_PACKED_ADD(TYPE, PACKED)                                                                                    \
    template <> struct VectorAdd<TYPE> {                                                                               \
        static constexpr bool EXISTS = true;                                                                           \
                                                                                                                       \
        static __device__ void add(char* to, uint4 x)                                                                  \
        {                                                                                                              \
            asm volatile("red.relaxed.gpu.global.add.noftz.v4." PACKED " [%0], {%1, %2, %3, %4};"                      \
                         :                                                                                             \
                         : "l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)                                             \
                         : "memory");                                                                                  \
        }                                                                                                              \
    };

WT_PACKED_ADD(wp::float16, "f16x2")
#ifndef WP_NO_BFLOAT16
WT_PACKED_ADD(wp::bfloat16, "bf16x2")
#endif
#undef WT_PACKED_ADD
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
        char* to = gradient ? aligned_start<Shape>(gradient, where) : nullptr;
        const uint4* from = reinterpret_cast<const uint4*>(adj_tile.grad.ptr);
        if (to != nullptr && reinterpret_cast<uint64_t>(from) % MOVE_BYTES == 0) {
            for_each_move<T, Shape>(array.strides[0], [&](int i, int64_t bytes) {
                VectorAdd<T>::add(to + bytes, from[i]);
            });
            WP_TILE_SYNC();  // the gradient is zeroed next, each element by another thread
            return;
        }
    }
    wp::adj_tile_load(array, x, y, adj_array, adj_x, adj_y, adj_tile);
}

}  // namespace wt_module
