// SPDX-License-Identifier: Apache-2.0
//
// A block GEMM on tensor cores: each warp computes register tiles of C.

#pragma once

#include "gemm/multiply.cuh"
#include "gemm/rounds.cuh"
#include "tile/accumulator.cuh"
#include "tile/operand.cuh"

namespace wt {

template <class Variant>
struct MmaGemm {
    using P = ProblemOf<Variant>;
    using Config = typename Variant::Config;
    using R = Rounds<Variant>;
    using A = typename P::A;
    using B = typename P::B;
    using C = typename P::C;
    using Multiply = Multiplier<A, B, any_double<P>, P::tf32, P::sm, Config::instruction>;
    using Value = typename Multiply::Value;

    static constexpr int rows = Config::tile_m / 8, cols = Config::tile_n / 8;  // groups of eight
    static constexpr int block_k = 4 * Config::k_vector;
    static constexpr int steps = block_k / Multiply::k;
    // As many blocks at a time as the swizzle has patterns, where lines go along K
    static constexpr int blocks_a = P::a_row_major ? Config::swizzle_a : 1;
    static constexpr int blocks_b = P::b_row_major ? 1 : Config::swizzle_b;
    static constexpr int blocks = blocks_a > blocks_b ? blocks_a : blocks_b;
    static constexpr int step_k = block_k * blocks;
    static constexpr int share_k = R::parts == 1 ? P::k : (P::k + step_k - 1) / step_k / R::parts * step_k;  // of a warp

    static_assert(Config::tile_m % (8 * Multiply::rows) == 0 && Config::tile_n % 8 == 0, "A tile holds whole instructions");
    static_assert(block_k % Multiply::k == 0, "A block of K holds whole instructions");
    static_assert(R::parts * share_k >= P::k && (R::parts == 1 || !Config::c_first), "Warps share all of K, and take turns at C");

    // Interleaved rows let 16-bit neighbours be read together, interleaved columns make C's vectors 16 bytes long.
    static constexpr bool wide_a = !P::a_row_major, wide_b = !P::b_row_major ? sizeof(C) <= 4 : true;
    // Structures of their own, because their names are part of those of all functions.
    struct ShapeA : tile::OperandShape<A, P::m, P::k, P::lda, P::align_a, rows, Config::k_vector, blocks, Config::swizzle_a, wide_a> {};
    struct ShapeB : tile::OperandShape<B, P::n, P::k, P::ldb, P::align_b, cols, Config::k_vector, blocks, Config::swizzle_b, wide_b> {};
    using ReadA = typename tile::OperandReader<P::a_row_major, ShapeA>::Type;
    using ReadB = typename tile::OperandReader<!P::b_row_major, ShapeB>::Type;
    struct ShapeC : tile::AccumulatorShape<C, Sum<P>, P::m, P::n, P::ldc, P::c_row_major, P::align_c, rows, cols, Multiply::rows, Config::swizzle_c,
                                           ReadA::placement, ReadB::placement> {};
    using Result = tile::Accumulator<ShapeC>;

    // What a lane holds of C
    using TileSums = typename Multiply::template Sums<rows, cols>;
    using Sums = TileSums[R::count];

    static WT_DEVICE void run(const void* alpha, const A* a, const B* b, const void* beta, C* c)
    {
        const auto scale = tile::scale_of<C, Sum<P>>(alpha, beta);
        if constexpr (R::parts > 1) {
            const Place place(0);
            TileSums sums = {};
            if (place.inside)
                accumulate(sums, a, b, place);
            store_in_turn(sums, scale, c, place);
        } else {
#pragma unroll 1
            for (int round = 0; round < R::count; ++round) {
                const Place place(round);
                if (!place.inside)
                    break;
                typename Result::Values old[rows][Result::vectors];
                if (Config::c_first && scale.beta != Sum<P>(0))
                    Result::fetch(old, c, place.row, place.col, place.g, place.q);
                TileSums sums = {};
                accumulate(sums, a, b, place);
                Result::template store<Config::c_first>(sums, scale, old, c, place.row, place.col, place.g, place.q);
            }
        }
    }

    // sums += A * B
    static WT_DEVICE void add(Sums& sums, const A* a, const B* b)
    {
#pragma unroll
        for (int round = 0; round < R::count; ++round) {
            const Place place(round);
            if (place.inside)
                accumulate(sums[round], a, b, place);
        }
    }

    // C += sums
    static WT_DEVICE void finish(const Sums& sums, C* c)
    {
        if constexpr (R::parts > 1) {
            store_in_turn(sums[0], {Sum<P>(1), Sum<P>(1)}, c, Place(0));
        } else {
#pragma unroll
            for (int round = 0; round < R::count; ++round) {
                const Place place(round);
                if (place.inside) {
                    typename Result::Values old[rows][Result::vectors];
                    if (Config::c_first)
                        Result::fetch(old, c, place.row, place.col, place.g, place.q);
                    Result::template store<Config::c_first>(sums[round], {Sum<P>(1), Sum<P>(1)}, old, c, place.row, place.col,
                                                            place.g, place.q);
                }
            }
        }
    }

private:
    // Where a lane works in a round: its register tile, and its place in an instruction
    struct Place : R::Place {
        int g, q;

        WT_DEVICE explicit Place(int round) : R::Place(round)
        {
            g = this->lane / 4;
            q = this->lane % 4;
        }
    };

    static WT_DEVICE void store_in_turn(const TileSums& sums, tile::Scale<Sum<P>> scale, C* c, const Place& place)
    {
        R::in_turn(place.inside, [&](bool first) {
            typename Result::Values old[rows][Result::vectors];
            Result::template store<false>(sums, {scale.alpha, first ? scale.beta : Sum<P>(1)}, old, c, place.row, place.col,
                                          place.g, place.q);
        });
    }

    static WT_DEVICE void accumulate(TileSums& sums, const A* a, const B* b, const Place& place)
    {
        const int first = R::parts == 1 ? 0 : R::part() * share_k;
#pragma unroll(Config::k_unroll)
        for (int k0 = 0; k0 < share_k; k0 += step_k) {
            tile::Units<ShapeA> units_a;
            tile::Units<ShapeB> units_b;
            ReadA::load(units_a, a, place.row, first + k0, place.g, place.q);
            ReadB::load(units_b, b, place.col, first + k0, place.g, place.q);
#pragma unroll
            for (int block = 0; block < blocks; ++block)
                multiply_block(sums, units_a[block], units_b[block]);
        }
    }

    // What is not stored as it is multiplied is converted, A before B.
    template <class UnitA, int CountA, class UnitB, int CountB>
    static WT_DEVICE void multiply_block(TileSums& sums, const UnitA (&a)[rows][CountA], const UnitB (&b)[cols][CountB])
    {
        if constexpr (Multiply::multiplicand == Multiplicand::half_words || (same<UnitA, Value> && same<UnitB, Value>)) {
#pragma unroll
            for (int step = 0; step < steps; ++step)
                Multiply::template multiply<rows>(sums, a, b, step);
        } else if constexpr (!same<UnitA, Value>) {
            Value values[rows][Config::k_vector];
            convert<ShapeA>(values, a);
            multiply_block(sums, values, b);
        } else {
            Value values[cols][Config::k_vector];
            convert<ShapeB>(values, b);
            multiply_block(sums, a, values);
        }
    }

    template <class Shape, int Groups>
    static WT_DEVICE void convert(Value (&values)[Groups][Config::k_vector], const tile::Unit<Shape> (&units)[Groups][Shape::units])
    {
        using T = typename Shape::Element;
#pragma unroll
        for (int group = 0; group < Groups; ++group) {
#pragma unroll
            for (int e = 0; e < Config::k_vector; ++e) {
                if constexpr (Shape::packed)
                    values[group][e] = arch::Convert<Value, T>::of(T{u16(units[group][e / 2] >> (e % 2 * 16))});
                else
                    values[group][e] = arch::Convert<Value, T>::of(units[group][e]);
            }
        }
    }
};

}  // namespace wt
