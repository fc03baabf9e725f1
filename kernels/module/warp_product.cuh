// SPDX-License-Identifier: Apache-2.0
//
// Products of tiles in stage buffers by mma.sync. P is described in staged_accumulators.cuh.
#pragma once

#include "module/fragments.cuh"

#ifndef WT_PASSES
#define WT_PASSES 1  // over the products of a step. benchmarks/other_gpus.py has more, for the ratios of other GPUs
#endif

namespace wt_module {

// A warp holds ROWS x COLS accumulators: for each 16 x 8 of them, the four values per lane of an instruction's D. If the operands
// are swapped, B is the instruction's A and the accumulators are those of C's transpose: then vectors of tiles of fp32 and fp64
// that are contiguous along their rows are fragments.
template <class P> struct WarpProduct {
    using Problem = P;
    using T = typename P::T;
    using Sum = typename MmaTypes<T>::Sum;
    static constexpr bool SWAPPED = sizeof(T) > 2 && P::a_k_major && !P::b_k_major;
    static constexpr int M = P::m / P::warps_m, N = P::n / P::warps_n;
    static constexpr int ROWS = SWAPPED ? N : M, COLS = SWAPPED ? M : N, STEP = MmaTypes<T>::STEP;
    using A = typename FragmentsOf<OperandBuffer<P, !SWAPPED>, T, ROWS>::A;  // of the instruction
    using B = typename FragmentsOf<OperandBuffer<P, SWAPPED>, T, COLS>::B;
    static constexpr int GROUPS = 0;  // of asynchronous products in an iteration
    static constexpr int STEPS = P::k / STEP;
    static constexpr int PAIRS = A::IN_ORDER && B::IN_ORDER ? pairs_of(COLS) : 1;

    static_assert(A::FITS && B::FITS && P::k % STEP == 0, "a warp tile has whole instructions");

    // If LATE, a step is multiplied after the fragments of the next step were requested. So the last step of an iteration is
    // multiplied in the next iteration, and tensor cores do not wait for its first fragments. Two sets of fragments must fit
    // the registers, and all iterations must begin with the same set.
    static constexpr int WORDS = static_cast<int>(sizeof(Sum)) / 4;
    static constexpr bool LATE = STEPS % 2 == 0 && WORDS * (ROWS * COLS / 32 + 4 * (ROWS / 8 + COLS / 8)) <= 224;
    static constexpr int SETS = LATE ? 2 : 1;

    struct Accumulators {
        Sum values[ROWS / 16][COLS / 8][4];
        typename A::Values as[SETS];
        typename B::Values bs[SETS];
        unsigned place_a, place_b;  // in stage buffers of the instruction's A and B
    };

    static inline __device__ void start(Accumulators& accumulators)
    {
        clear(accumulators.values);
        clear(accumulators.as);  // if LATE, the first product has no fragments yet
        clear(accumulators.bs);
        // opaque, so that they are not computed in each iteration
        accumulators.place_a = wt::arch::opaque(static_cast<int>(A::place(first_row())));
        accumulators.place_b = wt::arch::opaque(static_cast<int>(B::place(first_col())));
    }

    // Begins with the values of a row-major C
    static inline __device__ void start(Accumulators& accumulators, const Sum* c)
    {
        start(accumulators);
        if constexpr (A::IN_ORDER && B::IN_ORDER) {
#pragma unroll
            for (int i = 0; i < ROWS / 16; ++i)
                add_rows<COLS, P::n>(accumulators.values[i], c, first_row() + 16 * i, first_col());
        } else {
            each(accumulators, [c](int row, int column, auto&... values) { add_values(c + row * P::n + column, values...); });
        }
    }

    // If `requested`, issues the copies of the tiles that loaders were asked for. Reads of shared memory wait behind them, so they come
    // after all fragments. Loops of fp64 have few copies for their products, and are faster with some after the fragments of each step.
    template <class... Loaders>
    static __forceinline__ __device__ void add(Accumulators& accumulators, unsigned a, unsigned b, int requested = 0, Loaders&... loaders)
    {
        constexpr int PASSES = (0 + ... + Loaders::PASSES), FIRST = sizeof(T) == 8 ? 0 : STEPS - 1;
        constexpr int END = LATE && FIRST == 0 ? STEPS - 1 : STEPS, PARTS = END - FIRST;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            load(accumulators, a, b, step);
            if constexpr (PASSES != 0)
                if (step >= FIRST && step < END)
                    issue_copies(requested, (step - FIRST) * PASSES / PARTS, (step - FIRST + 1) * PASSES / PARTS, loaders...);
            multiply_step(accumulators, LATE ? step + STEPS - 1 : step);
        }
    }

    static inline __device__ void complete(Accumulators& accumulators)
    {
        if constexpr (LATE)
            multiply_step(accumulators, STEPS - 1);
    }

    template <class Factor> static inline __device__ void scale(Accumulators& accumulators, Factor factor) { scale_all(accumulators.values, factor); }

    template <bool ADD> static __forceinline__ __device__ void finish(const Accumulators& accumulators, Sum* c)
    {
        if constexpr (A::IN_ORDER && B::IN_ORDER) {
#pragma unroll
            for (int i = 0; i < ROWS / 16; ++i)
                put_rows<ADD, COLS, P::n>(accumulators.values[i], c, first_row() + 16 * i, first_col());
        } else {
            visit(accumulators, [c](int row, int column, auto values) { put<ADD>(c + row * P::n + column, values); });
        }
    }

    // Calls act(row, column, vector) for neighbouring accumulators of a row of C.
    template <class Act> static __forceinline__ __device__ void visit(const Accumulators& accumulators, const Act& act)
    {
        if constexpr (A::IN_ORDER && B::IN_ORDER) {
#pragma unroll
            for (int i = 0; i < ROWS / 16; ++i)
                visit_rows<COLS>(accumulators.values[i], first_row() + 16 * i, first_col(), act);
        } else {
            each(accumulators, [&act](int row, int column, auto... values) {
                act(row, column, wt::Vector<Sum, sizeof...(values)> {values...});
            });
        }
    }

    // Visits 2 * COUNT neighbouring accumulators at a time, as visit_rows() says. `memory` has the size of C in fp32.
    template <int COUNT, int WORDS, class Make, class Fetch, class Act>
    static __forceinline__ __device__ void visit(const Accumulators& accumulators, char* memory, const Make& make, const Fetch& fetch, const Act& act)
    {
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i)
            visit_rows<P, COLS, COUNT, WORDS>(accumulators.values[i], memory, first_row() + 16 * i, first_col(), make, fetch, act);
    }

private:
    // Calls act(row, column, values...) for one sum, or for two neighbouring ones of a row of C.
    template <class S, class Act> static __forceinline__ __device__ void each(S& accumulators, const Act& act)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i)
#pragma unroll
            for (int j = 0; j < COLS / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    auto& values = accumulators.values[i][j];
                    const int column = first_col() + B::line_of(j, 2 * q + e);
                    const int row = first_row() + A::line_of(i, 0, g), next = first_row() + A::line_of(i, 1, g);
                    if constexpr (SWAPPED) {
                        act(column, row, values[e], values[2 + e]);
                    } else {
                        act(row, column, values[e]);
                        act(next, column, values[2 + e]);
                    }
                }
    }

    // Loads the fragments of a step into its set. The first products need all of B and one fragment of A.
    static __forceinline__ __device__ void load(Accumulators& accumulators, unsigned a, unsigned b, int step)
    {
        const auto load_b = [&] { B::load(accumulators.bs[step % SETS], (SWAPPED ? a : b) + accumulators.place_b, first_col(), step * STEP); };
        if constexpr (sizeof(T) < 8)
            load_b();
        A::load(accumulators.as[step % SETS], (SWAPPED ? b : a) + accumulators.place_a, first_row(), step * STEP);
        if constexpr (sizeof(T) == 8)  // not measured in the other order
            load_b();
    }

    static __forceinline__ __device__ void multiply_step(Accumulators& accumulators, int step)
    {
#pragma unroll
        for (int i = 0; i < WT_PASSES * (ROWS / 16); ++i)
#pragma unroll
            for (int j = 0; j < COLS / 8; ++j)
                multiply<T>(accumulators.values[i % (ROWS / 16)][j], accumulators.as[step % SETS][i % (ROWS / 16)], accumulators.bs[step % SETS][j]);
    }

    // The warp's first row and column of the instruction's D
    static inline __device__ int first_row() { return (SWAPPED ? warp_n() : warp_m()) * ROWS; }
    static inline __device__ int first_col() { return (SWAPPED ? warp_m() : warp_n()) * COLS; }
    static inline __device__ int warp_m() { return static_cast<int>(threadIdx.x) / 32 / P::warps_n; }
    static inline __device__ int warp_n() { return static_cast<int>(threadIdx.x) / 32 % P::warps_n; }
};

}  // namespace wt_module
