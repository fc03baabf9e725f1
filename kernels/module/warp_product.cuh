// SPDX-License-Identifier: Apache-2.0
//
// Products of tiles in slots by mma.sync. P is described in staged_sums.cuh.
#pragma once

#include "module/fragments.cuh"

namespace wt_module {

// A warp holds ROWS x COLS sums: for each 16 x 8 of them, the four values per lane of an instruction's D. If the operands are
// swapped, B is the instruction's A and the sums are those of C's transpose: then vectors of tiles of fp32 and fp64 that are
// contiguous along their rows are fragments.
template <class P> struct WarpProduct {
    using T = typename P::T;
    using Sum = typename MmaTypes<T>::Sum;
    static constexpr bool SWAPPED = sizeof(T) > 2 && P::a_k_major && !P::b_k_major;
    static constexpr int M = P::m / P::warps_m, N = P::n / P::warps_n;
    static constexpr int ROWS = SWAPPED ? N : M, COLS = SWAPPED ? M : N, STEP = MmaTypes<T>::STEP;
    using A = typename FragmentsOf<OperandSlot<P, !SWAPPED>, T, ROWS>::A;  // of the instruction
    using B = typename FragmentsOf<OperandSlot<P, SWAPPED>, T, COLS>::B;
    static constexpr int GROUPS = 0;  // of asynchronous products in an iteration
    using Sums = Sum[ROWS / 16][COLS / 8][4];

    static_assert(A::FITS && B::FITS && P::k % STEP == 0, "a warp tile has whole instructions");

    // With two sets of fragments, those of the next step are loaded while this step is multiplied. One set must do where
    // both would not fit the registers.
    static constexpr int WORDS = static_cast<int>(sizeof(Sum)) / 4;
    static constexpr int SETS = WORDS * (ROWS * COLS / 32 + 4 * (ROWS / 8 + COLS / 8)) <= 200 ? 2 : 1;

    static inline __device__ void start(Sums& sums) { clear(sums); }

    static __forceinline__ __device__ void add(Sums& sums, unsigned a, unsigned b)
    {
        const unsigned of_a = SWAPPED ? b : a, of_b = SWAPPED ? a : b;
        typename A::Values as[SETS];
        typename B::Values bs[SETS];
#pragma unroll
        for (int k = (1 - SETS) * STEP; k < P::k; k += STEP) {
            const int now = k / STEP % SETS, next = k + (SETS - 1) * STEP;
            if (next < P::k) {
                A::load(as[next / STEP % SETS], of_a, first_row(), next);
                B::load(bs[next / STEP % SETS], of_b, first_col(), next);
            }
            if (k < 0)
                continue;
#pragma unroll
            for (int i = 0; i < ROWS / 16; ++i)
#pragma unroll
                for (int j = 0; j < COLS / 8; ++j)
                    multiply<T>(sums[i][j], as[now][i], bs[now][j]);
        }
    }

    static inline __device__ void complete() { }

    template <bool ADD> static __forceinline__ __device__ void finish(const Sums& sums, Sum* c)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i) {
            if constexpr (A::IN_ORDER && B::IN_ORDER) {
                put_rows<ADD, COLS, P::n>(sums[i], c, first_row() + 16 * i, first_col());
            } else {
#pragma unroll
                for (int j = 0; j < COLS / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int column = first_col() + B::line_of(j, 2 * q + e);
                        const int row = first_row() + A::line_of(i, 0, g), next = first_row() + A::line_of(i, 1, g);
                        if constexpr (SWAPPED) {
                            put<ADD>(c + column * P::n + row, wt::Vector<Sum, 2> {sums[i][j][e], sums[i][j][2 + e]});
                        } else {
                            put<ADD>(c + row * P::n + column, wt::Vector<Sum, 1> {sums[i][j][e]});
                            put<ADD>(c + next * P::n + column, wt::Vector<Sum, 1> {sums[i][j][2 + e]});
                        }
                    }
            }
        }
    }

private:
    // The warp's first row and column of the instruction's D
    static inline __device__ int first_row() { return (SWAPPED ? warp_n() : warp_m()) * ROWS; }
    static inline __device__ int first_col() { return (SWAPPED ? warp_m() : warp_n()) * COLS; }
    static inline __device__ int warp_m() { return static_cast<int>(threadIdx.x) / 32 / P::warps_n; }
    static inline __device__ int warp_n() { return static_cast<int>(threadIdx.x) / 32 % P::warps_n; }
};

}  // namespace wt_module
