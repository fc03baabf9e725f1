// SPDX-License-Identifier: Apache-2.0
//
// Stores of tiles that elementwise operations compute: tile_map, tile_astype and operators. Warp keeps the result of each
// operation in registers, from which tile_store writes single elements. Here each thread reads vectors of shared tiles,
// computes a vector of results and stores it.
//
//   store_computed<SOURCES>(compute, store, result, tiles...)
//
// is `compute(result, tiles...); store(result)`: statements of the program, as functions of their tiles. The first SOURCES
// of `tiles` are operands, the others intermediate results in registers. If all operands are shared tiles, `store` gets a
// Computed in place of the result. For each vector that it stores, `compute` runs with Elements in place of the tiles, for
// which Warp's functions are overloaded below. Warp's operators call tile_map, so they need no overloads of their own.
#pragma once

#include "arch/memory.cuh"
#include "module/loads.cuh"

namespace wt_module {

using Coord = wp::tile_coord_t<2>;

template <int N> struct Count {
    static constexpr int value = N;
};

template <typename T, int COUNT> struct Elements {
    T at[COUNT];
};

// Returns COUNT neighbouring elements of a shared tile.
template <int COUNT, typename T, typename Layout, bool Owner>
inline __device__ Elements<T, COUNT> elements(const wp::tile_shared_t<T, Layout, Owner>& tile, Coord coord)
{
    using Stride = typename Layout::Stride;
    constexpr int SIZE = static_cast<int>(sizeof(T)), WIDEST = VECTOR_BYTES % SIZE == 0 ? VECTOR_BYTES / SIZE : 1;
    constexpr int PIECE = COUNT < WIDEST ? COUNT : WIDEST;
    Elements<T, COUNT> found;
    const T* const start = tile.data.ptr + Layout::index_from_coord(coord);
    if constexpr (PIECE > 1 && Stride::dim(1) == 1 && Stride::dim(0) % PIECE == 0) {
        if (__cvta_generic_to_shared(tile.data.ptr) % VECTOR_BYTES == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; i += PIECE) {
                const auto piece = wt::arch::load<PIECE>(start + i);
#pragma unroll
                for (int e = 0; e < PIECE; ++e)
                    found.at[i + e] = piece.at[e];
            }
            return found;
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        found.at[i] = start[i * Stride::dim(1)];
    return found;
}

// Returns room for COUNT neighbouring elements of an intermediate result.
template <int COUNT, typename T, typename Layout>
inline __device__ Elements<T, COUNT> elements(const wp::tile_register_t<T, Layout>&, Coord)
{
    return {};
}

// Returns an element of an operand. An operand that is no tile has one value for all.
template <typename T> inline __device__ const T& element(const T& value, int) { return value; }

template <typename T, int COUNT> inline __device__ const T& element(const Elements<T, COUNT>& values, int index)
{
    return values.at[index];
}

// Calls a function with each of COUNT elements of its operands.
template <int COUNT, typename Function, typename... Operands>
inline __device__ auto call(const Function& function, const Operands&... operands)
{
    Elements<decltype(function(element(operands, 0)...)), COUNT> results;
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        results.at[i] = function(element(operands, i)...);
    return results;
}

// The target of a store: an array, and the place of a tile in it.
template <typename Global> struct StoreTarget {
    using T = typename Global::Type;
    static constexpr int SIZE = static_cast<int>(sizeof(T));

    const Global& to;
    bool has_vectors;  // true if the tile begins and its rows begin with vectors

    // Makes Warp's checks for aligned=True.
    template <typename Shape> static inline __device__ StoreTarget of(const Global& to)
    {
        if constexpr (Global::is_aligned) {
            using Check = wp::tile_vectorized_check_t<T, Shape>;
            Check::validate_aligned_compile_time();
            Check::validate_aligned_runtime(to, to.byte_offset_from_coord(wp::tile_coord(0, 0)));
        }
        const auto& strides = to.data.strides;
        const void* const array = to.data.data;
        const bool starts_with_vectors = __isGlobal(array) && strides[1] == SIZE && strides[0] % VECTOR_BYTES == 0
            && reinterpret_cast<uint64_t>(array) % VECTOR_BYTES == 0;
        const bool lies_in_vectors = to.offset[1] * SIZE % VECTOR_BYTES == 0 && to.offset[1] >= 0 && to.offset[0] >= 0;
        return {to, starts_with_vectors && lies_in_vectors};
    }

    // Stores neighbouring elements of a row. If there are vectors, `column` is a multiple of COUNT.
    template <typename U, int COUNT> inline __device__ void put(int row, int column, const Elements<U, COUNT>& elements) const
    {
        const int y = to.offset[0] + row, x = to.offset[1] + column;
        const auto& array = to.data;
        if constexpr (COUNT * SIZE <= VECTOR_BYTES && (COUNT & (COUNT - 1)) == 0) {
            if (has_vectors && (!Global::bounds_check || (y < array.shape[0] && x + COUNT <= array.shape[1]))) {
                wt::Vector<T, COUNT> vector;
#pragma unroll
                for (int e = 0; e < COUNT; ++e)
                    vector.at[e] = elements.at[e];
                char* const start = reinterpret_cast<char*>(array.data) + int64_t(array.strides[0]) * y + int64_t(x) * int64_t(SIZE);
                wt::arch::store(reinterpret_cast<T*>(start), vector);
                return;
            }
        }
#pragma unroll
        for (int e = 0; e < COUNT; ++e)
            to.store(wp::tile_coord(row, column + e), elements.at[e]);
    }
};

// A tile whose elements are computed when it is stored. at(Count<N>, coord) returns N neighbouring ones.
template <typename Shape_, typename At> struct Computed {
    struct Layout {
        using Shape = Shape_;
    };

    At at;

    template <typename Global> inline __device__ void copy_to_global(const Global& to) const
    {
        constexpr int SIZE = static_cast<int>(sizeof(typename Global::Type));
        constexpr int COUNT = VECTOR_BYTES % SIZE == 0 ? VECTOR_BYTES / SIZE : 1;
        const auto target = StoreTarget<Global>::template of<Shape_>(to);
        if constexpr (COUNT > 1 && Shape_::dim(1) % COUNT == 0) {
            if (target.has_vectors) {
                constexpr int PER_ROW = Shape_::dim(1) / COUNT;
#pragma unroll 4
                for (int i = static_cast<int>(threadIdx.x); i < Shape_::dim(0) * PER_ROW; i += WP_TILE_BLOCK_DIM) {
                    const int row = i / PER_ROW, column = i % PER_ROW * COUNT;
                    target.put(row, column, at(Count<COUNT> {}, wp::tile_coord(row, column)));
                }
                return;
            }
        }
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < Shape_::size(); i += WP_TILE_BLOCK_DIM) {
            const auto coord = wp::tile_coord(i / Shape_::dim(1), i % Shape_::dim(1));
            to.store(coord, at(Count<1> {}, coord).at[0]);
        }
    }
};

// True for a shared tile, whose elements any thread can read.
template <typename Tile> struct IsShared {
    static constexpr bool value = false;
};

template <typename T, typename Layout, bool Owner> struct IsShared<wp::tile_shared_t<T, Layout, Owner>> {
    static constexpr bool value = true;
};

template <int SOURCES, typename Compute, typename Store, typename Result, typename... Tiles>
inline __device__ void store_computed(const Compute& compute, const Store& store, Result& result, Tiles&... tiles)
{
    using Shape = typename Result::Layout::Shape;
    if constexpr (Shape::N == 2 && (0 + ... + (IsShared<Tiles>::value ? 1 : 0)) == SOURCES) {
        const auto at = [&](auto count, Coord coord) {
            constexpr int COUNT = decltype(count)::value;
            Elements<typename Result::Type, COUNT> results;
            [&](auto... values) { compute(results, values...); }(elements<COUNT>(tiles, coord)...);
            return results;
        };
        const Computed<Shape, decltype(at)> computed {at};
        store(computed);
    } else {
        compute(result, tiles...);
        store(result);
    }
}

}  // namespace wt_module

namespace wp {

template <typename Result, typename T, int N> inline __device__ auto tile_astype(wt_module::Elements<T, N>& a)
{
    return wt_module::call<N>([](auto x) { return static_cast<typename Result::Type>(x); }, a);
}

template <typename T, int N, typename Fwd> inline __device__ auto tile_map(Fwd op, wt_module::Elements<T, N>& a)
{
    return wt_module::call<N>(op, a);
}

template <typename T, int N, typename B, typename Fwd>
inline __device__ auto tile_map(Fwd op, wt_module::Elements<T, N>& a, const B& b)
{
    return wt_module::call<N>(op, a, b);
}

template <typename Fwd, typename T, int N, typename T2, typename T3>
inline __device__ auto tile_map(Fwd op, wt_module::Elements<T, N>& t1, T2& t2, T3& t3)
{
    return wt_module::call<N>(op, t1, t2, t3);
}

template <typename Fwd, typename T, int N, typename T2, typename T3, typename T4>
inline __device__ auto tile_map(Fwd op, wt_module::Elements<T, N>& t1, T2& t2, T3& t3, T4& t4)
{
    return wt_module::call<N>(op, t1, t2, t3, t4);
}

template <typename Fwd, typename T, int N, typename T2, typename T3, typename T4, typename T5>
inline __device__ auto tile_map(Fwd op, wt_module::Elements<T, N>& t1, T2& t2, T3& t3, T4& t4, T5& t5)
{
    return wt_module::call<N>(op, t1, t2, t3, t4, t5);
}

template <typename Fwd, typename T, int N, typename T2, typename T3, typename T4, typename T5, typename T6>
inline __device__ auto tile_map(Fwd op, wt_module::Elements<T, N>& t1, T2& t2, T3& t3, T4& t4, T5& t5, T6& t6)
{
    return wt_module::call<N>(op, t1, t2, t3, t4, t5, t6);
}

template <typename Fwd, typename T, int N, typename T2, typename T3, typename T4, typename T5, typename T6, typename T7>
inline __device__ auto tile_map(Fwd op, wt_module::Elements<T, N>& t1, T2& t2, T3& t3, T4& t4, T5& t5, T6& t6, T7& t7)
{
    return wt_module::call<N>(op, t1, t2, t3, t4, t5, t6, t7);
}

template <
    typename Fwd, typename T, int N, typename T2, typename T3, typename T4, typename T5, typename T6, typename T7, typename T8>
inline __device__ auto
tile_map(Fwd op, wt_module::Elements<T, N>& t1, T2& t2, T3& t3, T4& t4, T5& t5, T6& t6, T7& t7, T8& t8)
{
    return wt_module::call<N>(op, t1, t2, t3, t4, t5, t6, t7, t8);
}

template <typename T, int N, typename S> inline __device__ auto tile_div(wt_module::Elements<T, N>& a, const S& s)
{
    return wt_module::call<N>([](auto x, auto y) { return div(x, y); }, a, s);
}

template <typename S, typename T, int N> inline __device__ auto tile_div(const S& s, wt_module::Elements<T, N>& a)
{
    return wt_module::call<N>([](auto x, auto y) { return div(x, y); }, s, a);
}

template <typename T, typename U, int N>
inline __device__ void tile_add_inplace(wt_module::Elements<T, N>& a, wt_module::Elements<U, N>& b)
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        a.at[i] += b.at[i];
}

template <typename T, typename U, int N>
inline __device__ void tile_sub_inplace(wt_module::Elements<T, N>& a, wt_module::Elements<U, N>& b)
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        a.at[i] -= b.at[i];
}

}  // namespace wp
