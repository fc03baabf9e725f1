// SPDX-License-Identifier: Apache-2.0
//
// Stores of sums from the registers that hold them. The program stores C, or a tile that elementwise operations compute from
// it, so C needs no shared memory.
//
//   store_sums<SOURCES, Product>(sums, compute, store, result, c, tiles...)
//
// is `compute(result, c, tiles...); store(result)`, as in stores.cuh. SOURCES of `tiles` are operands, which are shared tiles. The
// elements of c are the sums of a product.
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

// A tile whose elements are computed from sums when it is stored. compute(coord, elements) returns the elements of the tile for
// neighbouring sums. If ALONE, they depend on nothing else.
template <typename Product, bool ALONE, typename Shape_, typename Compute> struct ComputedFromSums {
    struct Layout {
        using Shape = Shape_;
    };

    const typename Product::Sums& sums;
    Compute compute;

    template <typename Global> inline __device__ void copy_to_global(const Global& to) const
    {
        using T = typename Global::Type;
        constexpr int FITTING = VECTOR_BYTES / static_cast<int>(sizeof(T)) / 2;  // pairs of neighbouring elements in a vector
        constexpr int PAIRS = FITTING < 1 ? 1 : FITTING < Product::PAIRS ? FITTING : Product::PAIRS;
        const auto target = StoreTarget<Global>::template of<Shape_>(to);
        if constexpr (PAIRS == 1) {
            Product::visit(sums, [&](int row, int column, auto vector) {
                target.put(row, column, compute(wp::tile_coord(row, column), elements_of(vector)));
            });
        } else if constexpr (ALONE && sizeof(T) == 2) {  // half the words to exchange
            const auto rounded = [&](wt::Vector<float, 2> pair) {
                return bits_as<wt::Vector<wt::u32, 1>>(compute(Coord {}, elements_of(pair)));
            };
            Product::template visit<PAIRS, 1>(sums, rounded, [&](int row, int column, const auto& words) {
                target.put(row, column, bits_as<Elements<T, 2 * PAIRS>>(words));
            });
        } else {
            const auto both = [](wt::Vector<float, 2> pair) { return bits_as<wt::Vector<wt::u32, 2>>(pair); };
            Product::template visit<PAIRS, 2>(sums, both, [&](int row, int column, const auto& words) {
                const auto elements = bits_as<Elements<float, 2 * PAIRS>>(words);
                target.put(row, column, compute(wp::tile_coord(row, column), elements));
            });
        }
    }
};

template <int SOURCES, typename Product, typename Compute, typename Store, typename Result, typename C, typename... Tiles>
inline __device__ void
store_sums(const typename Product::Sums& sums, const Compute& compute, const Store& store, Result&, C&, Tiles&... tiles)
{
    using Shape = typename Result::Layout::Shape;
    const auto from = [&](Coord coord, auto values) {
        constexpr int COUNT = sizeof(values.at) / sizeof(values.at[0]);
        Elements<typename Result::Type, COUNT> results;
        [&](auto... operands) { compute(results, values, operands...); }(elements<COUNT>(tiles, coord)...);
        return results;
    };
    const ComputedFromSums<Product, SOURCES == 0, Shape, decltype(from)> computed {sums, from};
    store(computed);
}

}  // namespace wt_module
