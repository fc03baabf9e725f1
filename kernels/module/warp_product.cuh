// SPDX-License-Identifier: Apache-2.0
//
// Products of tiles in slots by mma.sync. A warp holds ROWS x COLS sums: for each 16 rows and each eight columns, the four
// values per lane of an instruction's D. P is described in staged_sums.cuh.
#pragma once

#include "module/fragments.cuh"

namespace wt_module {

template <class P> struct WarpProduct {
    using T = typename P::T;
    using Sum = typename MmaTypes<T>::Sum;
    static constexpr int ROWS = P::m / P::warps_m, COLS = P::n / P::warps_n, STEP = MmaTypes<T>::STEP;
    using A = typename FragmentsOf<OperandSlot<P, true>, T, ROWS>::Type;
    using B = typename FragmentsOf<OperandSlot<P, false>, T, COLS>::Type;
    using Sums = Sum[ROWS / 16][COLS / 8][4];

    // With two sets of fragments, those of the next step are loaded while this step is multiplied. One set must do where
    // both would not fit the registers.
    static constexpr int SET_WORDS = static_cast<int>(sizeof(Sum)) / 2 * (ROWS + COLS) / 8, SUM_WORDS = static_cast<int>(sizeof(Sum)) / 4 * ROWS * COLS / 32;
    static constexpr int SETS = SUM_WORDS + 2 * SET_WORDS <= 200 ? 2 : 1;

    static_assert(ROWS % 16 == 0 && A::FITS && B::FITS && P::k % STEP == 0, "a warp tile has whole instructions");

    static inline __device__ int first_row() { return static_cast<int>(threadIdx.x) / 32 / P::warps_n * ROWS; }
    static inline __device__ int first_col() { return static_cast<int>(threadIdx.x) / 32 % P::warps_n * COLS; }

    static inline __device__ void start(Sums& sums) { clear(sums); }

    static __forceinline__ __device__ void add(Sums& sums, unsigned a, unsigned b)
    {
        typename A::Values as[SETS];
        typename B::Values bs[SETS];
#pragma unroll
        for (int k = (1 - SETS) * STEP; k < P::k; k += STEP) {
            const int now = k / STEP % SETS, next = k + (SETS - 1) * STEP;
            if (next < P::k) {
                A::load(as[next / STEP % SETS], a, first_row(), next);
                B::load(bs[next / STEP % SETS], b, first_col(), next);
            }
            if (k < 0)
                continue;
#pragma unroll
            for (int i = 0; i < ROWS / 16; ++i)
#pragma unroll
                for (int j = 0; j < COLS / 8; ++j)
                    multiply<T>(sums[i][j], reinterpret_cast<const typename MmaTypes<T>::Value (&)[2][2]>(as[now][2 * i]), bs[now][j]);
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
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int j = 0; j < COLS / 8; ++j) {
                        const int row = first_row() + A::line_of(2 * i + e / 2, g);
                        const int col = first_col() + B::line_of(j, 2 * q + e % 2);
                        put<ADD>(c + row * P::n + col, wt::Vector<Sum, 1> {sums[i][j][e]});
                    }
            }
        }
    }
};

}  // namespace wt_module
