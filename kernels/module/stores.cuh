// SPDX-License-Identifier: Apache-2.0
//
// Stores of tiles that elementwise operations compute: tile_map, tile_astype and operators. Warp keeps the result of each
// operation in registers, from which tile_store writes single elements. Here each thread reads vectors of shared tiles,
// computes a vector of results and stores it.
//
//   store_computed<SOURCES, FETCHED>(compute, store, result, tiles...)
//
// is `compute(result, tiles...); store(result)`: statements of the program, as functions of their tiles. The first SOURCES
// of `tiles` are operands, the next FETCHED are LoadedTiles, the others intermediate results in registers. If all operands are
// shared tiles, `store` gets a Computed in place of the result. For each vector that it stores, `compute` runs with Elements in
// place of the tiles, for which Warp's functions are overloaded below. Warp's operators call tile_map, so they need no overloads
// of their own.
#pragma once

#include "module/places.cuh"

namespace wt_module {

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

// Stands for a tile in registers that the program loads from an array before the store. load(tile) is that statement.
template <typename Load, typename Tile> struct LoadedTile {
    const Load& load;
};

template <typename Load, typename Tile> inline __device__ LoadedTile<Load, Tile> loaded_tile(const Load& load, const Tile&)
{
    return {load};
}

// The left side of an assignment that loads some elements of a tile. If WHOLE, the tile is.
template <bool WHOLE, typename T, int COUNT> struct Received {
    Coord coord;
    Elements<T, COUNT> elements;

    template <typename Global> inline __device__ void operator=(const Global& from)
    {
        elements = Place<Global>::of(from).template get<WHOLE, COUNT>(coord[0], coord[1]);
    }
};

// The left side of an assignment that only tells whether the tile is whole.
template <typename Shape> struct Inspected {
    bool is_whole;

    template <typename Global> inline __device__ void operator=(const Global& from)
    {
        is_whole = Place<Global>::of(from).template is_whole<Shape>();
    }
};

template <typename Tile> inline __device__ bool is_whole(const Tile&) { return true; }

template <typename Load, typename Tile> inline __device__ bool is_whole(const LoadedTile<Load, Tile>& tile)
{
    Inspected<typename Tile::Layout::Shape> inspected {};
    tile.load(inspected);
    return inspected.is_whole;
}

// What is fetched of an operand before other vectors are stored, because a load may not overtake a store: elements of a LoadedTile.
// Those of other tiles are read later.
template <typename Tile> struct Later {
    const Tile* tile;
};

template <bool WHOLE, int COUNT, typename Tile> inline __device__ Later<Tile> fetch(const Tile& tile, Coord) { return {&tile}; }

template <bool WHOLE, int COUNT, typename Load, typename Tile>
inline __device__ Elements<typename Tile::Type, COUNT> fetch(const LoadedTile<Load, Tile>& tile, Coord coord)
{
    Received<WHOLE, typename Tile::Type, COUNT> received {coord};
    tile.load(received);
    return received.elements;
}

template <int COUNT, typename Tile> inline __device__ auto operand(Later<Tile> fetched, Coord coord)
{
    return elements<COUNT>(*fetched.tile, coord);
}

template <int COUNT, typename T> inline __device__ Elements<T, COUNT> operand(const Elements<T, COUNT>& fetched, Coord)
{
    return fetched;
}

// Values of several types. pass(act) returns act(values...).
template <typename... Ts> struct Values {
    template <typename Act> inline __device__ auto pass(const Act& act) const { return act(); }
};

template <typename T, typename... Ts> struct Values<T, Ts...> {
    T first;
    Values<Ts...> others;

    template <typename Act> inline __device__ auto pass(const Act& act) const
    {
        return others.pass([&](const auto&... values) { return act(first, values...); });
    }
};

inline __device__ Values<> values_of() { return {}; }

template <typename T, typename... Ts> inline __device__ Values<T, Ts...> values_of(const T& first, const Ts&... others)
{
    return {first, values_of(others...)};
}

// A tile whose elements are computed when it is stored. For COUNT neighbouring ones, fetch(Count<COUNT>, coord) loads operands
// from arrays, and compute(Count<COUNT>, coord, fetched) returns the elements. FETCHED: the number of such operands
template <int FETCHED, typename Shape_, typename Fetch, typename Compute> struct Computed {
    struct Layout {
        using Shape = Shape_;
    };

    Fetch fetch;
    Compute compute;

    template <typename Global> inline __device__ void copy_to_global(const Global& to) const
    {
        constexpr int SIZE = static_cast<int>(sizeof(typename Global::Type));
        constexpr int COUNT = VECTOR_BYTES % SIZE == 0 ? VECTOR_BYTES / SIZE : 1;
        check_alignment<Shape_>(to);
        if constexpr (COUNT > 1 && Shape_::dim(1) % COUNT == 0) {
            const auto place = Place<Global>::of(to);
            if (place.has_vectors) {
                store_vectors(place, Count<COUNT> {});
                return;
            }
        }
        store_elements(to);
    }

    // Like copy_to_global(), but stores one element at a time.
    template <typename Global> inline __device__ void copy_elements(const Global& to) const
    {
        check_alignment<Shape_>(to);
        store_elements(to);
    }

private:
    static constexpr int AT_ONCE = FETCHED == 0 ? 1 : 4;  // stores of a thread whose operands are fetched together

    // Neighbouring threads store neighbouring elements of a row, and each thread goes down a column.
    template <typename Global> inline __device__ void store_elements(const Global& to) const
    {
        using T = typename Global::Type;
        constexpr int ROWS = Shape_::dim(0), COLUMNS = Shape_::dim(1), THREADS = WP_TILE_BLOCK_DIM;
        constexpr int ALONG = COLUMNS < THREADS ? COLUMNS : THREADS, PASS_ROWS = THREADS / ALONG;
        const auto& array = to.data;
        const int thread = static_cast<int>(threadIdx.x), first = thread < PASS_ROWS * ALONG ? thread / ALONG : ROWS;
        const int rows = Global::bounds_check ? min(array.shape[0] - to.offset[0], ROWS) : ROWS;
        const int columns = Global::bounds_check ? min(array.shape[1] - to.offset[1], COLUMNS) : COLUMNS;
        const int64_t stride = array.strides[0];
#pragma unroll 1
        for (int column = thread % ALONG; column < columns; column += ALONG) {
            char* address = reinterpret_cast<char*>(array.data) + stride * (to.offset[0] + first)
                + int64_t(array.strides[1]) * (to.offset[1] + column);
#pragma unroll(FETCHED == 0 ? 4 : 1)
            for (int start = first; start < rows; start += AT_ONCE * PASS_ROWS) {
                decltype(fetch(Count<1> {}, Coord {})) fetched[AT_ONCE];
#pragma unroll
                for (int v = 0; v < AT_ONCE; ++v)
                    if (const int row = start + v * PASS_ROWS; v == 0 || row < rows)
                        fetched[v] = fetch(Count<1> {}, wp::tile_coord(row, column));
#pragma unroll
                for (int v = 0; v < AT_ONCE; ++v) {
                    if (const int row = start + v * PASS_ROWS; v == 0 || row < rows)
                        *reinterpret_cast<T*>(address) = compute(Count<1> {}, wp::tile_coord(row, column), fetched[v]).at[0];
                    address += stride * PASS_ROWS;
                }
            }
        }
    }

    template <typename Target, int COUNT> inline __device__ void store_vectors(const Target& place, Count<COUNT> count) const
    {
        constexpr int PER_ROW = Shape_::dim(1) / COUNT, VECTORS = Shape_::dim(0) * PER_ROW;
#pragma unroll(FETCHED == 0 ? 4 : 1)
        for (int start = static_cast<int>(threadIdx.x); start < VECTORS; start += AT_ONCE * WP_TILE_BLOCK_DIM) {
            decltype(fetch(count, Coord {})) fetched[AT_ONCE];
#pragma unroll
            for (int v = 0; v < AT_ONCE; ++v)
                if (const int i = start + v * WP_TILE_BLOCK_DIM; v == 0 || i < VECTORS)
                    fetched[v] = fetch(count, wp::tile_coord(i / PER_ROW, i % PER_ROW * COUNT));
#pragma unroll
            for (int v = 0; v < AT_ONCE; ++v)
                if (const int i = start + v * WP_TILE_BLOCK_DIM; v == 0 || i < VECTORS) {
                    const auto coord = wp::tile_coord(i / PER_ROW, i % PER_ROW * COUNT);
                    place.put(coord[0], coord[1], compute(count, coord, fetched[v]));
                }
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

template <int SOURCES, int FETCHED, typename Compute, typename Store, typename Result, typename... Tiles>
inline __device__ void store_computed(const Compute& compute, const Store& store, Result& result, Tiles&... tiles)
{
    using Shape = typename Result::Layout::Shape;
    if constexpr (Shape::N == 2 && (0 + ... + (IsShared<Tiles>::value ? 1 : 0)) == SOURCES) {
        const auto fetched = [&](auto count, Coord coord) { return values_of(fetch<false, decltype(count)::value>(tiles, coord)...); };
        const auto computed = [&](auto count, Coord coord, const auto& before) {
            constexpr int COUNT = decltype(count)::value;
            Elements<typename Result::Type, COUNT> results;
            before.pass([&](const auto&... found) {
                [&](auto... operands) { compute(results, operands...); }(operand<COUNT>(found, coord)...);
            });
            return results;
        };
        const Computed<FETCHED, Shape, decltype(fetched), decltype(computed)> tile {fetched, computed};
        store(tile);
    } else {
        static_assert(FETCHED == 0, "all operands are tiles of two dimensions");
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
