// SPDX-License-Identifier: Apache-2.0
//
// Stores of sums from the registers that hold them. The program stores C, or a tile that elementwise operations compute from
// it, so C needs no shared memory.
//
//   store_sums<OTHERS, Product>(sums, compute, store, result, c, tiles...)
//
// is `compute(result, c, tiles...); store(result)`, as in stores.cuh. The elements of c are the sums of a product. OTHERS of `tiles`
// are operands: shared tiles and LoadedTiles.
#pragma once

#include "module/staged_sums.cuh"
#include "module/stores.cuh"

namespace wt_module {

// Returns the value of another type that has the same bits.
template <class To, class From> inline __device__ To bits_as(const From& from)
{
    static_assert(sizeof(To) == sizeof(From), "both have the same bits");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

template <typename T, int COUNT> inline __device__ Elements<T, COUNT> elements_of(const wt::Vector<T, COUNT>& vector)
{
    return bits_as<Elements<T, COUNT>>(vector);
}

// A tile whose elements are computed from sums when it is stored. For neighbouring ones, fetch(count, coord) loads operands from
// arrays, and compute(coord, sums, fetched) returns the elements. If ALONE, they depend on the sums alone.
template <typename Product, bool ALONE, typename Shape_, typename Fetch, typename Compute> struct ComputedFromSums {
    struct Layout {
        using Shape = Shape_;
    };

    const typename Product::Sums& sums;
    Fetch fetch;
    Compute compute;

    template <typename Global> inline __device__ void copy_to_global(const Global& to) const
    {
        using T = typename Global::Type;
        constexpr int FITTING = VECTOR_BYTES / static_cast<int>(sizeof(T)) / 2;  // pairs of neighbouring elements in a vector
        constexpr int PAIRS = FITTING < 1 ? 1 : FITTING < Product::PAIRS ? FITTING : Product::PAIRS;
        check_alignment<Shape_>(to);
        const auto place = Place<Global>::of(to);
        const auto fetch_at = [&](int row, int column) { return fetch(Count<2 * PAIRS> {}, wp::tile_coord(row, column)); };
        if constexpr (PAIRS == 1) {
            Product::visit(sums, [&](int row, int column, auto vector) {
                const auto found = elements_of(vector);
                constexpr int COUNT = sizeof(found.at) / sizeof(found.at[0]);
                const auto coord = wp::tile_coord(row, column);
                place.put(row, column, compute(coord, found, fetch(Count<COUNT> {}, coord)));
            });
        } else if constexpr (ALONE && sizeof(T) == 2) {  // half the words to exchange
            const auto nothing = [](int, int) { return Nothing {}; };
            const auto rounded = [&](wt::Vector<float, 2> pair) {
                const auto results = compute(Coord {}, elements_of(pair), fetch(Count<2> {}, Coord {}));
                return bits_as<wt::Vector<wt::u32, 1>>(results);
            };
            Product::template visit<PAIRS, 1>(sums, rounded, nothing, [&](int row, int column, const auto& words, Nothing) {
                place.put(row, column, bits_as<Elements<T, 2 * PAIRS>>(words));
            });
        } else {
            const auto both = [](wt::Vector<float, 2> pair) { return bits_as<wt::Vector<wt::u32, 2>>(pair); };
            const auto act = [&](int row, int column, const auto& words, const auto& fetched) {
                const auto found = bits_as<Elements<float, 2 * PAIRS>>(words);
                place.put(row, column, compute(wp::tile_coord(row, column), found, fetched));
            };
            Product::template visit<PAIRS, 2>(sums, both, fetch_at, act);
        }
    }
};

template <int OTHERS, typename Product, typename Compute, typename Store, typename Result, typename C, typename... Tiles>
inline __device__ void
store_sums(const typename Product::Sums& sums, const Compute& compute, const Store& store, Result&, C&, Tiles&... tiles)
{
    using Shape = typename Result::Layout::Shape;
    const auto fetched = [&](auto count, Coord coord) { return values_of(fetch<decltype(count)::value>(tiles, coord)...); };
    const auto computed = [&](Coord coord, auto own, const auto& before) {
        constexpr int COUNT = sizeof(own.at) / sizeof(own.at[0]);
        Elements<typename Result::Type, COUNT> results;
        before.pass([&](const auto&... found) {
            [&](auto... operands) { compute(results, own, operands...); }(operand<COUNT>(tiles, coord, found)...);
        });
        return results;
    };
    const ComputedFromSums<Product, OTHERS == 0, Shape, decltype(fetched), decltype(computed)> tile {sums, fetched, computed};
    store(tile);
}

}  // namespace wt_module
