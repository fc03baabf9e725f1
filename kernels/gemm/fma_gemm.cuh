// SPDX-License-Identifier: Apache-2.0
//
// A block GEMM without tensor cores. The lanes of a warp form a grid over a warp tile of C; each lane multiplies rows of A
// with columns of B. Lanes may also share the sum over K, which keeps them busy where C is small.

#pragma once

#include "arch/convert.cuh"
#include "arch/lane.cuh"
#include "arch/memory.cuh"
#include "gemm/problem.cuh"
#include "gemm/tile_schedule.cuh"
#include "tile/accumulator.cuh"
#include "tile/operand.cuh"

namespace wt {

template <class Variant>
struct FmaGemm {
    using P = ProblemOf<Variant>;
    using Config = typename Variant::Config;
    using Schedule = TileSchedule<Variant>;
    using A = typename P::A;
    using B = typename P::B;
    using C = typename P::C;
    using T = Sum<P>;

    static constexpr int lanes_m = Config::lanes_m, lanes_n = Config::lanes_n, lanes_k = Config::lanes_k;
    static constexpr int rows = Config::tile_m / lanes_m, cols = Config::tile_n / lanes_n;  // per lane
    static constexpr int vector = Config::k_vector;
    static constexpr int step_k = vector * lanes_k;
    static constexpr bool exact_k = P::k % step_k == 0;

    static_assert(lanes_m * lanes_n * lanes_k == 32, "A warp has 32 lanes");

    // Lanes that share a sum are neighbours. If eight or more lanes read a row of B, they are far apart instead: neighbours
    // would conflict in the banks of several rows.
    static constexpr int lane_k_stride = P::b_row_major && lanes_n >= 8 ? 32 / lanes_k : 1;
    static_assert(Config::tile_m % lanes_m == 0 && Config::tile_n % lanes_n == 0,
                  "The grid of lanes must divide the warp tile");

    // Returns how many neighbours along M or N a lane reads at once.
    static WT_DEVICE constexpr int vector_across_k(int count, int size, int align, int extent, int ld)
    {
        return tile::smaller(tile::smaller(tile::power_of_two_in(count), tile::smaller(16, align) / size),
                             tile::smaller(tile::power_of_two_in(extent), tile::power_of_two_in(ld)));
    }
    static constexpr int run_m = P::a_row_major ? 1 : vector_across_k(rows, sizeof(A), P::align_a, P::m, P::lda);
    static constexpr int run_n =
        P::b_row_major ? vector_across_k(cols, sizeof(B), P::align_b, P::n, P::ldb)
        : P::c_row_major ? vector_across_k(cols, sizeof(C), P::align_c, P::n, P::ldc) : 1;

    // Returns the row or column of a lane's index-th element. A lane has runs of Run neighbours; runs of all lanes alternate.
    template <int Run, int Lanes>
    static WT_DEVICE int line(int lane, int index)
    {
        return index / Run * (Run * Lanes) + lane * Run + index % Run;
    }

    // The accumulators that a lane holds: of one warp tile, and of all warp tiles.
    using TileAccumulators = T[rows][cols];
    using Accumulators = TileAccumulators[Schedule::iterations];

    static WT_DEVICE void run(const void* alpha, const A* a, const B* b, const void* beta, C* c)
    {
        const auto scale = tile::scale_of<C, T>(alpha, beta);
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
                TileAccumulators accumulators = {};
                const bool accumulators_hold_c = Config::c_first && lanes_k == 1 && scale.alpha == T(1);
                if (accumulators_hold_c && scale.beta != T(0))
                    start(accumulators, scale.beta, c, warp_tile);
                accumulate(accumulators, a, b, warp_tile);
                reduce_lanes(accumulators);
                store(accumulators, accumulators_hold_c ? tile::Scale<T>{T(1), T(0)} : scale, c, warp_tile);
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

    // C += accumulators. Lanes that share a sum each hold a part of it.
    static WT_DEVICE void finish(Accumulators& accumulators, C* c, int thread)
    {
        if constexpr (Schedule::slices > 1) {
            store_serially(accumulators[0], {T(1), T(1)}, c, LaneTile(0, thread));
        } else {
#pragma unroll
            for (int iteration = 0; iteration < Schedule::iterations; ++iteration) {
                const LaneTile warp_tile(iteration, thread);
                if (warp_tile.inside) {
                    reduce_lanes(accumulators[iteration]);
                    store(accumulators[iteration], {T(1), T(1)}, c, warp_tile);
                }
            }
        }
    }

private:
    // The warp tile of an iteration, and the lane's position in the grid of lanes.
    struct LaneTile : Schedule::WarpTile {
        int lane_m, lane_n, lane_k;

        WT_DEVICE explicit LaneTile(int iteration, int thread = arch::thread_index()) : Schedule::WarpTile(iteration, thread)
        {
            lane_k = this->lane / lane_k_stride % lanes_k;
            const int rest = lane_k_stride == 1 ? this->lane / lanes_k : this->lane % lane_k_stride;
            lane_n = rest % lanes_n;
            lane_m = rest / lanes_n;
        }

        WT_DEVICE int row_of(int i) const { return this->row + line<run_m, lanes_m>(lane_m, i); }
        WT_DEVICE int col_of(int j) const { return this->col + line<run_n, lanes_n>(lane_n, j); }
    };

    static WT_DEVICE void store_serially(TileAccumulators& accumulators, tile::Scale<T> scale, C* c, const LaneTile& warp_tile)
    {
        reduce_lanes(accumulators);
        Schedule::reduce_serially(warp_tile.inside, [&](bool first) {
            store(accumulators, {scale.alpha, first ? scale.beta : T(1)}, c, warp_tile);
        });
    }

    static constexpr int steps = (P::k + step_k - 1) / step_k / Schedule::slices;  // per warp
    static constexpr int slice_k = Schedule::slices == 1 ? P::k : steps * step_k;
    static_assert(Schedule::slices * slice_k >= P::k && (Schedule::slices == 1 || !Config::c_first),
                  "Slices must cover K, and split-K excludes c_first");
    static constexpr int unrolled = tile::smaller(Config::k_unroll, steps);

    static WT_DEVICE void accumulate(TileAccumulators& accumulators, const A* a, const B* b, const LaneTile& warp_tile)
    {
        const int k_begin = Schedule::slices == 1 ? 0 : Schedule::slice() * slice_k;
        if constexpr (Config::swizzle_a > 1 || Config::swizzle_b > 1) {
            // Lanes that would read K-major rows from the same banks start at different offsets along K.
            const int swizzle = (warp_tile.lane_m & (Config::swizzle_a - 1)) ^ (warp_tile.lane_n & (Config::swizzle_b - 1));
#pragma unroll(Config::k_unroll)
            for (int k0 = 0; k0 < slice_k; k0 += step_k)
                step(accumulators, a, b, warp_tile, k_begin + (k0 ^ swizzle * step_k) + warp_tile.lane_k * vector, P::k);
        } else {
            // Pointers advance, so unrolled reads have constant offsets.
            constexpr int k_stride_a = P::a_row_major ? 1 : P::lda, k_stride_b = P::b_row_major ? P::ldb : 1;
            if constexpr (Schedule::slices > 1) {
                a += k_begin * k_stride_a;
                b += k_begin * k_stride_b;
            }
#pragma unroll 1
            for (int chunk = 0; chunk < steps / unrolled; ++chunk) {
                const int done = k_begin + chunk * unrolled * step_k;
                unrolled_steps<unrolled>(accumulators, a, b, warp_tile, P::k - done);
                a += unrolled * step_k * k_stride_a;
                b += unrolled * step_k * k_stride_b;
            }
            unrolled_steps<steps % unrolled>(accumulators, a, b, warp_tile, P::k - k_begin - steps / unrolled * unrolled * step_k);
        }
    }

    template <int Count>
    static WT_DEVICE void unrolled_steps(TileAccumulators& accumulators, const A* a, const B* b, const LaneTile& warp_tile, int k_left)
    {
#pragma unroll
        for (int i = 0; i < Count; ++i)
            step(accumulators, a, b, warp_tile, i * step_k + warp_tile.lane_k * vector, k_left);
    }

    static constexpr bool exact_m = P::m % Config::tile_m == 0, exact_n = P::n % Config::tile_n == 0;

    // Loads values[i][e]: element k + e of line i. Lines are rows of A or columns of B; they have k_left elements of K.
    template <bool KMajor, int Count, int Run, int Lanes, int Extent, int LD, int Align, bool ExactExtent, class E>
    static WT_DEVICE void load(T (&values)[Count][vector], const E* from, int line0, int lane, int k, int k_left)
    {
        constexpr int vector_k = tile::smaller(tile::smaller(tile::power_of_two_in(vector), tile::smaller(16, Align) / int(sizeof(E))),
                                            tile::smaller(tile::power_of_two_in(P::k), tile::power_of_two_in(LD)));
        constexpr int step_line = KMajor ? 1 : Run, step_e = KMajor ? vector_k : 1;
#pragma unroll
        for (int i = 0; i < Count; i += step_line) {
            const int outer = line0 + line<Run, Lanes>(lane, i);
#pragma unroll
            for (int e = 0; e < vector; e += step_e) {
                Vector<E, step_line * step_e> part{};
                if ((ExactExtent || outer < Extent) && (exact_k || k + e < k_left))
                    part = arch::load<step_line * step_e>(from + (KMajor ? outer * LD + k + e : (k + e) * LD + outer));
#pragma unroll
                for (int x = 0; x < step_line; ++x) {
#pragma unroll
                    for (int y = 0; y < step_e; ++y)
                        values[i + x][e + y] = arch::Convert<T, E>::of(part.at[x + y]);
                }
            }
        }
    }

    static WT_DEVICE void step(TileAccumulators& accumulators, const A* a, const B* b, const LaneTile& warp_tile, int k, int k_left)
    {
        T as[rows][vector], bs[cols][vector];
        load<P::a_row_major, rows, run_m, lanes_m, P::m, P::lda, P::align_a, exact_m>(
            as, a, warp_tile.row, warp_tile.lane_m, k, k_left);
        load<!P::b_row_major, cols, run_n, lanes_n, P::n, P::ldb, P::align_b, exact_n>(
            bs, b, warp_tile.col, warp_tile.lane_n, k, k_left);
#pragma unroll
        for (int e = 0; e < vector; ++e) {
#pragma unroll
            for (int i = 0; i < rows; ++i) {
#pragma unroll
                for (int j = 0; j < cols; ++j)
                    accumulators[i][j] += as[i][e] * bs[j][e];
            }
        }
    }

    static WT_DEVICE void reduce_lanes(TileAccumulators& accumulators)
    {
#pragma unroll
        for (int mask = lane_k_stride; mask < lane_k_stride * lanes_k; mask *= 2) {
#pragma unroll
            for (int i = 0; i < rows; ++i) {
#pragma unroll
                for (int j = 0; j < cols; ++j)
                    accumulators[i][j] += arch::shuffle_xor(accumulators[i][j], mask);
            }
        }
    }

    static constexpr int width =
        P::c_row_major ? tile::smaller(run_n, vector_across_k(cols, sizeof(C), P::align_c, P::n, P::ldc)) : 1;

    // Initialises the accumulators with beta * C.
    static WT_DEVICE void start(TileAccumulators& accumulators, T beta, const C* c, const LaneTile& warp_tile)
    {
#pragma unroll
        for (int i = 0; i < rows; ++i) {
#pragma unroll
            for (int j = 0; j < cols; j += width) {
                const int row = warp_tile.row_of(i), col = warp_tile.col_of(j);
                if ((!exact_m && row >= P::m) || (!exact_n && col >= P::n))
                    continue;
                const Vector<C, width> old = arch::load<width>(c + offset(row, col));
#pragma unroll
                for (int e = 0; e < width; ++e)
                    accumulators[i][j + e] = beta * arch::Convert<T, C>::of(old.at[e]);
            }
        }
    }

    static WT_DEVICE int offset(int row, int col) { return P::c_row_major ? row * P::ldc + col : col * P::ldc + row; }

    // Writes C. Lanes that share a sum all hold it, and one of them writes.
    static WT_DEVICE void store(const TileAccumulators& accumulators, tile::Scale<T> scale, C* c, const LaneTile& warp_tile)
    {
#pragma unroll
        for (int i = 0; i < rows; ++i) {
            const int row = warp_tile.row_of(i);
#pragma unroll
            for (int j = 0; j < cols; j += width) {
                const int col = warp_tile.col_of(j);
                if ((lanes_k > 1 && warp_tile.lane_k != (i * cols + j) / width % lanes_k)
                    || (!exact_m && row >= P::m) || (!exact_n && col >= P::n))
                    continue;
                C* const to = c + offset(row, col);
                Vector<C, width> old{}, value;
                if (scale.beta != T(0))
                    old = arch::load<width>(to);
#pragma unroll
                for (int e = 0; e < width; ++e) {
                    T sum = scale.alpha * accumulators[i][j + e];
                    if (scale.beta != T(0))
                        sum = scale.beta * arch::Convert<T, C>::of(old.at[e]) + sum;
                    value.at[e] = arch::Convert<C, T>::of(sum);
                }
                arch::store(to, value);
            }
        }
    }
};

}  // namespace wt
