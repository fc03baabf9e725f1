// SPDX-License-Identifier: Apache-2.0
//
// Stores of accumulators from the registers that hold them. The program stores C, or a tile that elementwise operations compute
// from it. If the operands have 16 bits, or wgmma reads both tf32 operands from shared memory, the lanes of a warp exchange
// accumulators through C's memory. If wgmma computes C's transpose, pairs of lanes exchange them by shuffles. C itself is written
// to its memory only if vectors cannot reach an array or end beyond it, or if a tile that is loaded for the store is not whole.
//
//   store_accumulators<OTHERS, FETCHED, Product>(accumulators, compute, store, result, c, tiles...)
//
// is `compute(result, c, tiles...); store(result)`, as in stores.cuh. The elements of c are the accumulators of a product. The
// first OTHERS of `tiles` are operands, the next FETCHED are LoadedTiles.
#pragma once

#include "module/staged_accumulators.cuh"
#include "module/stores.cuh"

namespace wt_module {

template <typename T, int COUNT> inline __device__ Elements<T, COUNT> elements_of(const wt::Vector<T, COUNT>& vector)
{
    return bits_as<Elements<T, COUNT>>(vector);
}

// A tile whose elements are computed from accumulators when it is stored. For neighbouring ones, fetch(count, coord) loads
// operands from arrays, and compute(coord, accumulators, fetched) returns the elements. If ALONE, they depend on the accumulators
// alone.
//
// This code has many instructions, and each runs once. So it has no branches, with which jumps would miss the instruction cache,
// and stores whole vectors only. If the array ends within vectors, or a tile that is fetched (is_whole) is not whole, C is
// written to shared memory, and a short loop stores the elements of `through`, which reads C. This case is rare, so its code is
// short rather than fast: fast code would take a large part of the module's link time.
template <typename Product, bool ALONE, typename C, typename Through, typename Fetch, typename Compute> struct ComputedFromAccumulators {
    using Layout = typename Through::Layout;

    const typename Product::Accumulators& accumulators;
    C& c;
    const Through& through;
    bool is_whole;
    Fetch fetch;
    Compute compute;

    template <typename Global> inline __device__ void copy_to_global(const Global& to) const
    {
        const auto place = Place<Global>::of(to);
        const int has_vectors = is_whole && place.template has_whole_vectors<typename Layout::Shape>();
        if (uniform(has_vectors)) {  // otherwise the compiler provides for lanes that differ
            check_alignment<typename Layout::Shape>(to);
            store_vectors(place);
        } else {
            Product::template finish<false>(accumulators, c.data.ptr);
            WP_TILE_SYNC();
            through.copy_elements(to);
        }
        WP_TILE_SYNC();  // the program may write to C next, whose memory other threads may still read
    }

private:
    template <typename Target> inline __device__ void store_vectors(const Target& place) const
    {
        using T = typename Target::T;
        constexpr int FITTING = VECTOR_BYTES / static_cast<int>(sizeof(T)) / 2;  // pairs of neighbouring elements in a vector
        constexpr int PAIRS = FITTING < 1 ? 1 : FITTING < Product::PAIRS ? FITTING : Product::PAIRS;
        char* const memory = wt::arch::in_shared<char>(c.data.ptr);  // free, because the accumulators are still in registers
        const auto fetch_at = [&](int row, int column) { return fetch(Count<2 * PAIRS> {}, wp::tile_coord(row, column)); };
        if constexpr (PAIRS == 1) {
            Product::visit(accumulators, [&](int row, int column, auto vector) {
                const auto found = elements_of(vector);
                constexpr int COUNT = sizeof(found.at) / sizeof(found.at[0]);
                const auto coord = wp::tile_coord(row, column);
                place.put_vector(row, column, compute(coord, found, fetch(Count<COUNT> {}, coord)));
            });
        } else if constexpr (ALONE && sizeof(T) == 2) {  // half the words to exchange
            const auto nothing = [](int, int) { return Values<> {}; };
            const auto rounded = [&](wt::Vector<float, 2> pair) {
                const auto results = compute(Coord {}, elements_of(pair), fetch(Count<2> {}, Coord {}));
                return bits_as<wt::Vector<wt::u32, 1>>(results);
            };
            Product::template visit<PAIRS, 1>(accumulators, memory, rounded, nothing, [&](int row, int column, const auto& words, Values<>) {
                place.put_vector(row, column, bits_as<Elements<T, 2 * PAIRS>>(words));
            });
        } else {
            const auto both = [](wt::Vector<float, 2> pair) { return bits_as<wt::Vector<wt::u32, 2>>(pair); };
            const auto act = [&](int row, int column, const auto& words, const auto& fetched) {
                const auto found = bits_as<Elements<float, 2 * PAIRS>>(words);
                place.put_vector(row, column, compute(wp::tile_coord(row, column), found, fetched));
            };
            Product::template visit<PAIRS, 2>(accumulators, memory, both, fetch_at, act);
        }
    }
};

template <typename Product, bool ALONE, typename C, typename Through, typename Fetch, typename Compute>
inline __device__ ComputedFromAccumulators<Product, ALONE, C, Through, Fetch, Compute> computed_from_accumulators(
    const typename Product::Accumulators& accumulators, C& c, const Through& through, bool is_whole, const Fetch& fetch, const Compute& compute)
{
    return {accumulators, c, through, is_whole, fetch, compute};
}

template <int OTHERS, int FETCHED, typename Product, typename Compute, typename Store, typename Result, typename C, typename... Tiles>
inline __device__ void
store_accumulators(const typename Product::Accumulators& accumulators, const Compute& compute, const Store& store, Result& result, C& c, Tiles&... tiles)
{
    const auto fetched = [&](auto count, Coord coord) { return values_of(fetch<true, decltype(count)::value>(tiles, coord)...); };
    const auto computed = [&](Coord coord, auto own, const auto& before) {
        constexpr int COUNT = sizeof(own.at) / sizeof(own.at[0]);
        Elements<typename Result::Type, COUNT> results;
        before.pass([&](const auto&... found) {
            [&](auto... operands) { compute(results, own, operands...); }(operand<COUNT>(found, coord)...);
        });
        return results;
    };
    const bool whole = (true && ... && is_whole(tiles));
    const auto store_through = [&](const auto& through) {
        constexpr bool ALONE = OTHERS + FETCHED == 0;
        const auto tile = computed_from_accumulators<Product, ALONE>(accumulators, c, through, whole, fetched, computed);
        store(tile);
    };
    store_computed<OTHERS + 1, FETCHED>(compute, store_through, result, c, tiles...);
}

}  // namespace wt_module
