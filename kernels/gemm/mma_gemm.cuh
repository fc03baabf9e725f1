// SPDX-License-Identifier: Apache-2.0
//
// A block GEMM on tensor cores. Each warp computes warp tiles of C.

#pragma once

#include "gemm/multiply.cuh"
#include "gemm/tile_schedule.cuh"
#include "tile/accumulator.cuh"
#include "tile/operand.cuh"

namespace wt {

template <class Variant>
struct MmaGemm {
    using P = ProblemOf<Variant>;
    using Config = typename Variant::Config;
    using Schedule = TileSchedule<Variant>;
    using A = typename P::A;
    using B = typename P::B;
    using C = typename P::C;
    using Multiply = Multiplier<A, B, any_double<P>, P::tf32, P::sm, Config::instruction>;
    using Value = typename Multiply::Value;

    static constexpr int rows = Config::tile_m / 8, cols = Config::tile_n / 8;  // groups of eight
    static constexpr int block_k = 4 * Config::k_vector;
    static constexpr int steps = block_k / Multiply::k;
    // Blocks of K that are read at a time: for a K-major operand, one per pattern of the swizzle.
    static constexpr int blocks_a = P::a_row_major ? Config::swizzle_a : 1;
    static constexpr int blocks_b = P::b_row_major ? 1 : Config::swizzle_b;
    static constexpr int blocks = blocks_a > blocks_b ? blocks_a : blocks_b;
    static constexpr int step_k = block_k * blocks;
    static constexpr int slice_k =  // per warp
        Schedule::slices == 1 ? P::k : (P::k + step_k - 1) / step_k / Schedule::slices * step_k;

    static_assert(Config::tile_m % (8 * Multiply::rows) == 0 && Config::tile_n % 8 == 0,
                  "The warp tile must be a multiple of the instruction");
    static_assert(block_k % Multiply::k == 0, "A block of K must be a multiple of the instruction");
    static_assert(Schedule::slices * slice_k >= P::k && (Schedule::slices == 1 || !Config::c_first),
                  "Slices must cover K, and split-K excludes c_first");

    // With interleaved rows, a lane reads 16-bit neighbours together. With interleaved columns, C's vectors have 16 bytes.
    static constexpr bool wide_a = !P::a_row_major, wide_b = !P::b_row_major ? sizeof(C) <= 4 : true;
    // Derived structures have short names. These names are part of every function's name.
    struct ShapeA : tile::OperandShape<A, P::m, P::k, P::lda, P::align_a, rows, Config::k_vector, blocks, Config::swizzle_a, wide_a> {};
    struct ShapeB : tile::OperandShape<B, P::n, P::k, P::ldb, P::align_b, cols, Config::k_vector, blocks, Config::swizzle_b, wide_b> {};
    using ReadA = typename tile::OperandReader<P::a_row_major, ShapeA>::Type;
    using ReadB = typename tile::OperandReader<!P::b_row_major, ShapeB>::Type;
    struct ShapeC : tile::AccumulatorShape<C, Sum<P>, P::m, P::n, P::ldc, P::c_row_major, P::align_c, rows, cols, Multiply::rows, Config::swizzle_c,
                                           ReadA::placement, ReadB::placement> {};
    using Result = tile::Accumulator<ShapeC>;

    // The accumulators that a lane holds: of one warp tile, and of all warp tiles.
    using TileAccumulators = typename Multiply::template Accumulators<rows, cols>;
    using Accumulators = TileAccumulators[Schedule::iterations];

    static WT_DEVICE void run(const void* alpha, const A* a, const B* b, const void* beta, C* c)
    {
        const auto scale = tile::scale_of<C, Sum<P>>(alpha, beta);
        if constexpr (Schedule::slices > 1) {
            const LaneTile warp_tile(0);
            TileAccumulators accumulators = {};
            if (warp_tile.inside)
                accumulate(accumulators, a, b, warp_tile);
            store_serially(accumulators, scale, c, warp_tile);
        } else {
#pragma unroll 1
            for (int iteration = 0; iteration < Schedule::iterations; ++iteration) {
                const LaneTile warp_tile(iteration);
                if (!warp_tile.inside)
                    break;
                typename Result::Values old[rows][Result::vectors];
                if (Config::c_first && scale.beta != Sum<P>(0))
                    Result::fetch(old, c, warp_tile.row, warp_tile.col, warp_tile.g, warp_tile.q);
                TileAccumulators accumulators = {};
                accumulate(accumulators, a, b, warp_tile);
                Result::template store<Config::c_first>(accumulators, scale, old, c, warp_tile.row, warp_tile.col, warp_tile.g,
                                                        warp_tile.q);
            }
        }
    }

    // accumulators += A * B
    static WT_DEVICE void add(Accumulators& accumulators, const A* a, const B* b, int thread)
    {
#pragma unroll
        for (int iteration = 0; iteration < Schedule::iterations; ++iteration) {
            const LaneTile warp_tile(iteration, thread);
            if (warp_tile.inside)
                accumulate(accumulators[iteration], a, b, warp_tile);
        }
    }

    // C += accumulators
    static WT_DEVICE void finish(const Accumulators& accumulators, C* c, int thread)
    {
        if constexpr (Schedule::slices > 1) {
            store_serially(accumulators[0], {Sum<P>(1), Sum<P>(1)}, c, LaneTile(0, thread));
        } else {
#pragma unroll
            for (int iteration = 0; iteration < Schedule::iterations; ++iteration) {
                const LaneTile warp_tile(iteration, thread);
                if (warp_tile.inside) {
                    typename Result::Values old[rows][Result::vectors];
                    if (Config::c_first)
                        Result::fetch(old, c, warp_tile.row, warp_tile.col, warp_tile.g, warp_tile.q);
                    Result::template store<Config::c_first>(accumulators[iteration], {Sum<P>(1), Sum<P>(1)}, old, c, warp_tile.row,
                                                            warp_tile.col, warp_tile.g, warp_tile.q);
                }
            }
        }
    }

private:
    // The warp tile of an iteration, and the lane's position in an instruction.
    struct LaneTile : Schedule::WarpTile {
        int g, q;

        WT_DEVICE explicit LaneTile(int iteration, int thread = arch::thread_index()) : Schedule::WarpTile(iteration, thread)
        {
            g = this->lane / 4;
            q = this->lane % 4;
        }
    };

    static WT_DEVICE void store_serially(const TileAccumulators& accumulators, tile::Scale<Sum<P>> scale, C* c, const LaneTile& warp_tile)
    {
        Schedule::reduce_serially(warp_tile.inside, [&](bool first) {
            typename Result::Values old[rows][Result::vectors];
            Result::template store<false>(accumulators, {scale.alpha, first ? scale.beta : Sum<P>(1)}, old, c, warp_tile.row,
                                          warp_tile.col, warp_tile.g, warp_tile.q);
        });
    }

    static WT_DEVICE void accumulate(TileAccumulators& accumulators, const A* a, const B* b, const LaneTile& warp_tile)
    {
        const int k_begin = Schedule::slices == 1 ? 0 : Schedule::slice() * slice_k;
#pragma unroll(Config::k_unroll)
        for (int k0 = 0; k0 < slice_k; k0 += step_k) {
            tile::Units<ShapeA> units_a;
            tile::Units<ShapeB> units_b;
            ReadA::load(units_a, a, warp_tile.row, k_begin + k0, warp_tile.g, warp_tile.q);
            ReadB::load(units_b, b, warp_tile.col, k_begin + k0, warp_tile.g, warp_tile.q);
#pragma unroll
            for (int block = 0; block < blocks; ++block)
                multiply_block(accumulators, units_a[block], units_b[block]);
        }
    }

    // Multiplies one block of K. An operand whose stored type the instruction does not take is converted first, A before B.
    template <class UnitA, int CountA, class UnitB, int CountB>
    static WT_DEVICE void multiply_block(TileAccumulators& accumulators, const UnitA (&a)[rows][CountA], const UnitB (&b)[cols][CountB])
    {
        if constexpr (Multiply::multiplicand == Multiplicand::half_words || (same<UnitA, Value> && same<UnitB, Value>)) {
#pragma unroll
            for (int step = 0; step < steps; ++step)
                Multiply::template multiply<rows>(accumulators, a, b, step);
        } else if constexpr (!same<UnitA, Value>) {
            Value values[rows][Config::k_vector];
            convert<ShapeA>(values, a);
            multiply_block(accumulators, values, b);
        } else {
            Value values[cols][Config::k_vector];
            convert<ShapeB>(values, b);
            multiply_block(accumulators, a, values);
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
