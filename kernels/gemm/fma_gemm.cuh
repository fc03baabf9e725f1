// SPDX-License-Identifier: Apache-2.0
//
// A block GEMM without tensor cores: lanes form a grid over a register tile of C, and each lane multiplies rows of A with
// columns of B. Lanes may also share the sum over K, which keeps them busy where C is small.

#pragma once

#include "arch/convert.cuh"
#include "arch/lane.cuh"
#include "arch/memory.cuh"
#include "gemm/problem.cuh"
#include "gemm/rounds.cuh"
#include "tile/accumulator.cuh"
#include "tile/operand.cuh"

namespace wt {

template <class Variant>
struct FmaGemm {
    using P = ProblemOf<Variant>;
    using Config = typename Variant::Config;
    using R = Rounds<Variant>;
    using A = typename P::A;
    using B = typename P::B;
    using C = typename P::C;
    using T = Sum<P>;

    static constexpr int lanes_m = Config::lanes_m, lanes_n = Config::lanes_n, lanes_k = Config::lanes_k;
    static constexpr int rows = Config::tile_m / lanes_m, cols = Config::tile_n / lanes_n;  // of one lane
    static constexpr int vector = Config::k_vector;
    static constexpr int step_k = vector * lanes_k;
    static constexpr bool exact_k = P::k % step_k == 0;

    static_assert(lanes_m * lanes_n * lanes_k == 32, "A warp has 32 lanes");

    // Lanes that share a sum are neighbours, unless eight lanes read a whole line of B: then they are far apart, so that
    // neighbours do not meet in the same banks of several lines.
    static constexpr int lane_k_stride = P::b_row_major && lanes_n >= 8 ? 32 / lanes_k : 1;
    static_assert(Config::tile_m % lanes_m == 0 && Config::tile_n % lanes_n == 0, "Lanes divide the tile");

    // Neighbours across K that are read together
    static WT_DEVICE constexpr int across(int count, int size, int align, int extent, int ld)
    {
        return tile::smaller(tile::smaller(tile::power_of_two_in(count), tile::smaller(16, align) / size),
                             tile::smaller(tile::power_of_two_in(extent), tile::power_of_two_in(ld)));
    }
    static constexpr int pair_m = P::a_row_major ? 1 : across(rows, sizeof(A), P::align_a, P::m, P::lda);
    static constexpr int pair_n =
        P::b_row_major ? across(cols, sizeof(B), P::align_b, P::n, P::ldb)
        : P::c_row_major ? across(cols, sizeof(C), P::align_c, P::n, P::ldc) : 1;

    // Rows and columns of a lane: neighbours in runs of `pair`, and the runs of all lanes in turn
    template <int Pair, int Lanes>
    static WT_DEVICE int line(int lane, int index)
    {
        return index / Pair * (Pair * Lanes) + lane * Pair + index % Pair;
    }

    // What a lane holds of C
    using TileSums = T[rows][cols];
    using Sums = TileSums[R::count];

    static WT_DEVICE void run(const void* alpha, const A* a, const B* b, const void* beta, C* c)
    {
        const auto scale = tile::scale_of<C, T>(alpha, beta);
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
                TileSums sums = {};
                const bool sums_hold_c = Config::c_first && lanes_k == 1 && scale.alpha == T(1);
                if (sums_hold_c && scale.beta != T(0))
                    start(sums, scale.beta, c, place);
                accumulate(sums, a, b, place);
                add_lanes(sums);
                store(sums, sums_hold_c ? tile::Scale<T>{T(1), T(0)} : scale, c, place);
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

    // C += sums; lanes that share a sum hold a part of it each.
    static WT_DEVICE void finish(Sums& sums, C* c)
    {
        if constexpr (R::parts > 1) {
            store_in_turn(sums[0], {T(1), T(1)}, c, Place(0));
        } else {
#pragma unroll
            for (int round = 0; round < R::count; ++round) {
                const Place place(round);
                if (place.inside) {
                    add_lanes(sums[round]);
                    store(sums[round], {T(1), T(1)}, c, place);
                }
            }
        }
    }

private:
    // Where a lane works in a round: its register tile, and its place in the grid of lanes
    struct Place : R::Place {
        int lane_m, lane_n, lane_k;

        WT_DEVICE explicit Place(int round) : R::Place(round)
        {
            lane_k = this->lane / lane_k_stride % lanes_k;
            const int rest = lane_k_stride == 1 ? this->lane / lanes_k : this->lane % lane_k_stride;
            lane_n = rest % lanes_n;
            lane_m = rest / lanes_n;
        }

        WT_DEVICE int row_of(int i) const { return this->row + line<pair_m, lanes_m>(lane_m, i); }
        WT_DEVICE int col_of(int j) const { return this->col + line<pair_n, lanes_n>(lane_n, j); }
    };

    static WT_DEVICE void store_in_turn(TileSums& sums, tile::Scale<T> scale, C* c, const Place& place)
    {
        add_lanes(sums);
        R::in_turn(place.inside, [&](bool first) { store(sums, {scale.alpha, first ? scale.beta : T(1)}, c, place); });
    }

    static constexpr int steps = (P::k + step_k - 1) / step_k / R::parts;  // of a warp
    static constexpr int share_k = R::parts == 1 ? P::k : steps * step_k;
    static_assert(R::parts * share_k >= P::k && (R::parts == 1 || !Config::c_first), "Warps share all of K, and take turns at C");
    static constexpr int unrolled = tile::smaller(Config::k_unroll, steps);

    static WT_DEVICE void accumulate(TileSums& sums, const A* a, const B* b, const Place& place)
    {
        const int first = R::parts == 1 ? 0 : R::part() * share_k;
        if constexpr (Config::swizzle_a > 1 || Config::swizzle_b > 1) {
            // Lanes that read lines along K at the same banks start at different places.
            const int swizzle = (place.lane_m & (Config::swizzle_a - 1)) ^ (place.lane_n & (Config::swizzle_b - 1));
#pragma unroll(Config::k_unroll)
            for (int k0 = 0; k0 < share_k; k0 += step_k)
                step(sums, a, b, place, first + (k0 ^ swizzle * step_k) + place.lane_k * vector, P::k);
        } else {
            // Pointers advance, so that what is unrolled reads at constant distances from them.
            constexpr int ahead_a = P::a_row_major ? 1 : P::lda, ahead_b = P::b_row_major ? P::ldb : 1;
            if constexpr (R::parts > 1) {
                a += first * ahead_a;
                b += first * ahead_b;
            }
#pragma unroll 1
            for (int chunk = 0; chunk < steps / unrolled; ++chunk) {
                const int done = first + chunk * unrolled * step_k;
                some_steps<unrolled>(sums, a, b, place, P::k - done);
                a += unrolled * step_k * ahead_a;
                b += unrolled * step_k * ahead_b;
            }
            some_steps<steps % unrolled>(sums, a, b, place, P::k - first - steps / unrolled * unrolled * step_k);
        }
    }

    template <int Count>
    static WT_DEVICE void some_steps(TileSums& sums, const A* a, const B* b, const Place& place, int left)
    {
#pragma unroll
        for (int i = 0; i < Count; ++i)
            step(sums, a, b, place, i * step_k + place.lane_k * vector, left);
    }

    static constexpr bool exact_m = P::m % Config::tile_m == 0, exact_n = P::n % Config::tile_n == 0;

    // values[i][e]: element k + e of line i; lines are rows of A or columns of B, which have `left` elements of K.
    template <bool AlongK, int Count, int Pair, int Lanes, int Extent, int LD, int Align, bool ExactExtent, class E>
    static WT_DEVICE void load(T (&values)[Count][vector], const E* from, int line0, int lane, int k, int left)
    {
        constexpr int along = tile::smaller(tile::smaller(tile::power_of_two_in(vector), tile::smaller(16, Align) / int(sizeof(E))),
                                            tile::smaller(tile::power_of_two_in(P::k), tile::power_of_two_in(LD)));
        constexpr int step_line = AlongK ? 1 : Pair, step_e = AlongK ? along : 1;
#pragma unroll
        for (int i = 0; i < Count; i += step_line) {
            const int outer = line0 + line<Pair, Lanes>(lane, i);
#pragma unroll
            for (int e = 0; e < vector; e += step_e) {
                Vector<E, step_line * step_e> part{};
                if ((ExactExtent || outer < Extent) && (exact_k || k + e < left))
                    part = arch::load<step_line * step_e>(from + (AlongK ? outer * LD + k + e : (k + e) * LD + outer));
#pragma unroll
                for (int x = 0; x < step_line; ++x) {
#pragma unroll
                    for (int y = 0; y < step_e; ++y)
                        values[i + x][e + y] = arch::Convert<T, E>::of(part.at[x + y]);
                }
            }
        }
    }

    static WT_DEVICE void step(TileSums& sums, const A* a, const B* b, const Place& place, int k, int left)
    {
        T as[rows][vector], bs[cols][vector];
        load<P::a_row_major, rows, pair_m, lanes_m, P::m, P::lda, P::align_a, exact_m>(as, a, place.row, place.lane_m, k, left);
        load<!P::b_row_major, cols, pair_n, lanes_n, P::n, P::ldb, P::align_b, exact_n>(bs, b, place.col, place.lane_n, k, left);
#pragma unroll
        for (int e = 0; e < vector; ++e) {
#pragma unroll
            for (int i = 0; i < rows; ++i) {
#pragma unroll
                for (int j = 0; j < cols; ++j)
                    sums[i][j] += as[i][e] * bs[j][e];
            }
        }
    }

    static WT_DEVICE void add_lanes(TileSums& sums)
    {
#pragma unroll
        for (int mask = lane_k_stride; mask < lane_k_stride * lanes_k; mask *= 2) {
#pragma unroll
            for (int i = 0; i < rows; ++i) {
#pragma unroll
                for (int j = 0; j < cols; ++j)
                    sums[i][j] += arch::exchange(sums[i][j], mask);
            }
        }
    }

    static constexpr int width = P::c_row_major ? tile::smaller(pair_n, across(cols, sizeof(C), P::align_c, P::n, P::ldc)) : 1;

    // The sums start from beta * C.
    static WT_DEVICE void start(TileSums& sums, T beta, const C* c, const Place& place)
    {
#pragma unroll
        for (int i = 0; i < rows; ++i) {
#pragma unroll
            for (int j = 0; j < cols; j += width) {
                const int row = place.row_of(i), col = place.col_of(j);
                if ((!exact_m && row >= P::m) || (!exact_n && col >= P::n))
                    continue;
                const Vector<C, width> old = arch::load<width>(c + offset(row, col));
#pragma unroll
                for (int e = 0; e < width; ++e)
                    sums[i][j + e] = beta * arch::Convert<T, C>::of(old.at[e]);
            }
        }
    }

    static WT_DEVICE int offset(int row, int col) { return P::c_row_major ? row * P::ldc + col : col * P::ldc + row; }

    // Lanes that share a sum all have it, and one of them writes.
    static WT_DEVICE void store(const TileSums& sums, tile::Scale<T> scale, C* c, const Place& place)
    {
#pragma unroll
        for (int i = 0; i < rows; ++i) {
            const int row = place.row_of(i);
#pragma unroll
            for (int j = 0; j < cols; j += width) {
                const int col = place.col_of(j);
                if ((lanes_k > 1 && place.lane_k != (i * cols + j) / width % lanes_k) || (!exact_m && row >= P::m) || (!exact_n && col >= P::n))
                    continue;
                C* const to = c + offset(row, col);
                Vector<C, width> old{}, value;
                if (scale.beta != T(0))
                    old = arch::load<width>(to);
#pragma unroll
                for (int e = 0; e < width; ++e) {
                    T sum = scale.alpha * sums[i][j + e];
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
