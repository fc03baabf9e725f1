// SPDX-License-Identifier: Apache-2.0
//
// Adjoints of stores of tiles that elementwise operations compute (stores.cuh). Warp's statements hold whole tiles in
// registers and are unrolled for each element. Here the block computes bands of the tile, one after the other. In a band each
// thread has the neighbouring elements of one 16-byte vector of the array.
//
//   reverse_store<SOURCES, OVERLAP>(forward, store, reverse, result, tiles...)
//
// is `forward(values...); store(value, adjoint); reverse(values..., adjoints...)`: the operations of the program, the adjoint
// of the store and the adjoints of the operations in reverse order, as functions of their tiles. `result` and `tiles` are
// pairs of a tile and its adjoint. The first SOURCES of `tiles` are operands, the others intermediate results. OVERLAP is true
// if operands may share memory. If all operands are shared tiles, `forward` and `reverse` run for each band. A band is one of
// Warp's tiles in registers, so Warp's functions compute it.
#pragma once

#include "arch/memory.cuh"
#include "module/loads.cuh"
#include "module/stores.cuh"

namespace wt_module {

// The shape of a tile with N elements in each thread.
template <int N> struct BandShape : wp::tile_shape_t<N * WP_TILE_BLOCK_DIM> { };

template <typename T, int N> using Band = wp::tile_register_t<T, wp::tile_layout_register_t<BandShape<N>>>;

template <typename Tile_, typename Adjoint> struct Pair {
    using Tile = Tile_;

    Tile& tile;
    Adjoint& adjoint;
};

template <typename Tile, typename Adjoint> inline __device__ Pair<Tile, Adjoint> pair(Tile& tile, Adjoint& adjoint)
{
    return {tile, adjoint};
}

// Adds to neighbouring elements of a shared tile's gradient. ATOMIC if other threads may add to them at the same time.
template <bool ATOMIC, int COUNT, typename T, typename Layout, bool Owner>
inline __device__ void add(wp::tile_shared_t<T, Layout, Owner>& adjoint, Coord coord, const Band<T, COUNT>& added)
{
    using Stride = typename Layout::Stride;
    constexpr int SIZE = static_cast<int>(sizeof(T)), WIDEST = VECTOR_BYTES / SIZE, PIECE = COUNT < WIDEST ? COUNT : WIDEST;
    T* const start = adjoint.grad.ptr + Layout::index_from_coord(coord);
    if constexpr (ATOMIC && Stride::dim(1) == 0) {
        T sum = added.data[0];
#pragma unroll
        for (int i = 1; i < COUNT; ++i)
            sum += added.data[i];
        wp::tile_adj_atomic_add_value(start, sum);
        return;
    }
    if constexpr (!ATOMIC && Stride::dim(1) == 1 && Stride::dim(0) % PIECE == 0) {
        if (__cvta_generic_to_shared(adjoint.grad.ptr) % VECTOR_BYTES == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; i += PIECE) {
                auto accumulators = wt::arch::load<PIECE>(const_cast<const T*>(start + i));
#pragma unroll
                for (int e = 0; e < PIECE; ++e)
                    accumulators.at[e] += added.data[i + e];
                wt::arch::store(start + i, accumulators);
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        if constexpr (ATOMIC)
            wp::tile_adj_atomic_add_value(start + i * Stride::dim(1), added.data[i]);
        else
            start[i * Stride::dim(1)] += added.data[i];
    }
}

// A band of a tile. FIXED is true if all bands of a thread have the same columns.
template <int COUNT, bool FIXED, bool OVERLAP, typename Tile> struct Banded;

// A result.
template <int COUNT, bool FIXED, bool OVERLAP, typename T, typename Layout>
struct Banded<COUNT, FIXED, OVERLAP, wp::tile_register_t<T, Layout>> {
    wp::tile_register_t<T, Layout>& tile;
    wp::tile_register_t<T, Layout>& adjoint;
    Band<T, COUNT> value, gradient;

    inline __device__ void begin(Coord) { gradient.zero(); }

    inline __device__ void end(Coord) { }

    inline __device__ void finish(Coord) { }
};

// An operand.
template <int COUNT, bool FIXED, bool OVERLAP, typename T, typename Layout, bool Owner>
struct Banded<COUNT, FIXED, OVERLAP, wp::tile_shared_t<T, Layout, Owner>> {
    static constexpr bool ATOMIC = OVERLAP || !Layout::Unique;
    static constexpr bool ACCUMULATORS = FIXED && Layout::Stride::dim(0) == 0;  // all bands of a thread have the same elements

    wp::tile_shared_t<T, Layout, Owner>& tile;
    wp::tile_shared_t<T, Layout, Owner>& adjoint;
    Band<T, COUNT> value, gradient;

    inline __device__ void begin(Coord coord)
    {
        const auto found = elements<COUNT>(tile, coord);
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            value.data[i] = found.at[i];
        if (!ACCUMULATORS)
            gradient.zero();
    }

    inline __device__ void end(Coord coord)
    {
        if (!ACCUMULATORS)
            add<ATOMIC>(adjoint, coord, gradient);
    }

    inline __device__ void finish(Coord coord)
    {
        if (ACCUMULATORS)
            add<ATOMIC>(adjoint, coord, gradient);
    }
};

// Reads the array's gradient and sets it to zeros, and adds to the gradients of the operands.
template <int COUNT, typename Shape, typename T, typename Global, typename Forward, typename Reverse, typename Result, typename... Tiles>
inline __device__ void reverse_bands(T* array, const Global& region, const Forward& forward, const Reverse& reverse, Result result,
                                     Tiles... tiles)
{
    constexpr int PER_ROW = Shape::dim(1) / COUNT, VECTORS = Shape::dim(0) * PER_ROW;
    constexpr int AHEAD = 4;  // vectors that a thread reads at once
    const int thread = static_cast<int>(threadIdx.x);
    char* start;
    const bool whole = is_vectorizable<Shape>(array, region, start);
#pragma unroll 1
    for (int first = thread; first < VECTORS; first += AHEAD * WP_TILE_BLOCK_DIM) {
        wt::Vector<T, COUNT> given[AHEAD];
        const auto for_each = [&](auto&& act) {
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int index = first + i * WP_TILE_BLOCK_DIM;
                if (index < VECTORS)
                    act(given[i], index / PER_ROW, index % PER_ROW * COUNT);
            }
        };
        if (whole) {
            const auto address = [&](int row, int column) {
                return wt::arch::mad_wide(region.data.strides[0], row, start) + column * static_cast<int>(sizeof(T));
            };
            for_each([&](auto& vector, int row, int column) {
                vector = wt::arch::load<COUNT>(reinterpret_cast<const T*>(address(row, column)));
            });
            for_each([&](auto&, int row, int column) {
                *reinterpret_cast<uint4*>(address(row, column)) = uint4 {0, 0, 0, 0};
            });
        } else {
            for_each([&](auto& vector, int row, int column) {
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    int64_t index;
                    const bool inside = region.index(wp::tile_coord(row, column + i), index);
                    vector.at[i] = inside ? array[index] : T {};
                    if (inside)
                        array[index] = T {};
                }
            });
        }
        for_each([&](auto& vector, int row, int column) {
            const auto coord = wp::tile_coord(row, column);
            (tiles.begin(coord), ...);
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                result.gradient.data[i] = vector.at[i];
            forward(result.value, tiles.value...);
            reverse(result.value, tiles.value..., result.gradient, tiles.gradient...);
            (tiles.end(coord), ...);
        });
    }
    if (thread < VECTORS)
        (tiles.finish(wp::tile_coord(thread / PER_ROW, thread % PER_ROW * COUNT)), ...);
    WP_TILE_SYNC();  // other threads read the gradients next
}

// Stands for the adjoint of a stored tile. run(array, region) gets the array's gradient.
template <typename Shape_, typename Run> struct BandedAdjoint {
    using Shape = Shape_;

    Run run;
};

template <int SOURCES, bool OVERLAP, typename Forward, typename Store, typename Reverse, typename Result, typename... Tiles>
inline __device__ void
reverse_store(const Forward& forward, const Store& store, const Reverse& reverse, Result result, Tiles... tiles)
{
    using T = typename Result::Tile::Type;
    using Shape = typename Result::Tile::Layout::Shape;
    constexpr int COUNT = VECTOR_BYTES / static_cast<int>(sizeof(T));
    constexpr bool SHARED = (0 + ... + (IsShared<typename Tiles::Tile>::value ? 1 : 0)) == SOURCES;
    if constexpr (Shape::N == 2 && SHARED && Shape::dim(Shape::N - 1) % COUNT == 0) {
        const auto run = [&](T* array, const auto& region) {
            constexpr bool FIXED = WP_TILE_BLOCK_DIM % (Shape::dim(1) / COUNT) == 0;
            using Stored = Banded<COUNT, FIXED, OVERLAP, typename Result::Tile>;
            reverse_bands<COUNT, Shape>(array, region, forward, reverse, Stored {result.tile, result.adjoint},
                                        Banded<COUNT, FIXED, OVERLAP, typename Tiles::Tile> {tiles.tile, tiles.adjoint}...);
        };
        BandedAdjoint<Shape, decltype(run)> adjoint {run};
        store(result.tile, adjoint);
    } else {
        forward(result.tile, tiles.tile...);
        store(result.tile, result.adjoint);
        reverse(result.tile, tiles.tile..., result.adjoint, tiles.adjoint...);
    }
}

}  // namespace wt_module

namespace wp {

template <typename T, typename Tile, typename Shape, typename Run>
#ifdef __CUDACC_DEBUG__  // the linker of CUDA 13.4 rejects symbols that some stores have if this is inlined in debug builds
__noinline__
#else
inline
#endif
    __device__ void adj_tile_store(array_t<T>& array, int x, int y, Tile&, array_t<T>& adj_array, int, int,
                                      wt_module::BandedAdjoint<Shape, Run>& adjoint)
{
    T* const gradient = adj_array.data ? adj_array.data : array.grad;
    if (gradient)
        adjoint.run(gradient, tile_global_t<T, Shape>(array, tile_coord(x, y)));
}

// The program names the type of the whole result.
template <typename Result, typename T, int N>
inline __device__ auto tile_astype(tile_register_t<T, tile_layout_register_t<wt_module::BandShape<N>>>& a)
{
    wt_module::Band<typename Result::Type, N> result;
#pragma unroll
    for (int i = 0; i < N; ++i)
        result.data[i] = static_cast<typename Result::Type>(a.data[i]);
    return result;
}

}  // namespace wp
