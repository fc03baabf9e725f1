// SPDX-License-Identifier: Apache-2.0
//
// Products of fp32 tiles in stage buffers without tensor cores. P is described in staged_accumulators.cuh. It also has the lanes
// of a warp along M and N (lanes_m and lanes_n), and a_transposed and b_transposed (true for stage buffers that
// TransposingBufferLoader fills).
#pragma once

#include "module/fragments.cuh"
#include "module/transposed_buffers.cuh"

namespace wt_module {

// The elements of an operand that a lane multiplies: LINES rows of A or columns of B. If the stage buffer is contiguous along K,
// a vector is DEPTH elements of one line, else four lines of one k. Neighbouring lanes read neighbouring rows or vectors.
template <class StageBuffer, bool TRANSPOSED, int PERIOD, int LINES, int LANES> struct FmaOperand {
    using Layout = typename StageBuffer::Layout;
    static constexpr int DEPTH = StageBuffer::K_MAJOR ? 4 : 1, WIDTH = StageBuffer::K_MAJOR ? 1 : 4;
    using Values = wt::Vector<float, 4>[LINES / WIDTH];

    static_assert(LINES % WIDTH == 0 && LINES * LANES % (StageBuffer::K_MAJOR ? 8 : 4 * Layout::VECTORS) == 0,
                  "a lane has whole vectors, a warp whole patterns");

    static inline __device__ int line_of(int i, int lane) { return (i / WIDTH * LANES + lane) * WIDTH + i % WIDTH; }
    static inline __device__ float value(const Values& values, int i, int k)
    {
        return values[i / WIDTH].at[StageBuffer::K_MAJOR ? k % 4 : TRANSPOSED ? place_in_vector(i % 4, k, PERIOD) : i % 4];
    }

    // Returns the offset of the k-th elements in a stage buffer, for multiples of PERIOD.
    static inline __device__ constexpr unsigned offset(int k)
    {
        return StageBuffer::K_MAJOR ? k / PERIOD * Layout::PANEL_BYTES : k * Layout::WIDTH;
    }

    // A lane's vectors lie at addresses that differ by constants, and in a part of the swizzling pattern that differs by XOR
    // with constants. So there is one address for each part.
    unsigned addresses[Layout::VECTORS];

    inline __device__ FmaOperand(unsigned buffer, int first, int lane)
    {
        const int row = StageBuffer::K_MAJOR ? first + lane : 0, vector = StageBuffer::K_MAJOR ? 0 : first / 4 + lane;
        const unsigned start = buffer + vector / Layout::VECTORS * Layout::PANEL_BYTES + row * Layout::WIDTH;
        const unsigned part = StageBuffer::K_MAJOR ? pattern(row) : vector % Layout::VECTORS;
#pragma unroll
        for (int x = 0; x < Layout::VECTORS; ++x)
            addresses[x] = start + (part ^ x) * VECTOR_BYTES;
    }

    __forceinline__ __device__ void load(Values& values, int k) const
    {
#pragma unroll
        for (int i = 0; i < LINES / WIDTH; ++i) {
            const int row = StageBuffer::K_MAJOR ? i * LANES : k, vector = StageBuffer::K_MAJOR ? k / 4 : i * LANES;
            const int constant = vector / Layout::VECTORS * Layout::PANEL_BYTES + row * Layout::WIDTH;
            values[i] = read<float, 4>(addresses[vector % Layout::VECTORS ^ pattern(row)] + constant);
        }
    }

private:
    // What the swizzle permutes the vectors of a row by
    static inline __device__ constexpr int pattern(int row) { return row * Layout::WIDTH / 128 % Layout::VECTORS; }
};

// A lane holds ROWS x COLS accumulators.
template <class P> struct FmaProduct {
    using Problem = P;
    using Sum = wt::f32;
    static constexpr int M = P::m / P::warps_m, N = P::n / P::warps_n;
    static constexpr int ROWS = M / P::lanes_m, COLS = N / P::lanes_n, PERIOD = buffer_period(P::k);
    using A = FmaOperand<OperandBuffer<P, true>, P::a_transposed, PERIOD, ROWS, P::lanes_m>;
    using B = FmaOperand<OperandBuffer<P, false>, P::b_transposed, PERIOD, COLS, P::lanes_n>;
    static constexpr int GROUPS = 0;  // of asynchronous products in an iteration
    static constexpr int PAIRS = 1;  // of neighbouring accumulators that lanes can gather
    // With two sets of values, the next ones are loaded while these are multiplied, if the registers hold both.
    static constexpr int SETS_A = ROWS <= 8 || A::DEPTH == 1 ? 2 : 1, SETS_B = COLS <= 8 || B::DEPTH == 1 ? 2 : 1;
    // If LATE, the last products of an iteration wait until the first values of the next one were requested.
    static constexpr bool LATE = P::in_loop && SETS_A == 2 && SETS_B == 2;
    // Steps that are unrolled. More would not fit the instruction cache.
    static constexpr int UNROLLED = P::k <= 32 ? P::k : PERIOD;

    struct Accumulators {
        float values[ROWS][COLS];
        typename A::Values as[SETS_A];
        typename B::Values bs[SETS_B];
    };

    static_assert(P::lanes_m * P::lanes_n == 32 && M % P::lanes_m == 0 && N % P::lanes_n == 0, "a warp tile has whole lanes");
    static_assert(P::k % 8 == 0, "vectors lie inside the tile, and iterations begin with the same sets");

    static inline __device__ void start(Accumulators& accumulators)
    {
        clear(accumulators.values);
        if constexpr (LATE) {  // the first products have no values yet
            clear(accumulators.as);
            clear(accumulators.bs);
        }
    }

    // Begins with the values of a row-major C
    static inline __device__ void start(Accumulators& accumulators, const float* c)
    {
        start(accumulators);
        each(accumulators, [c](int row, int column, float* values) {
            const auto found = wt::arch::load<B::WIDTH>(c + row * P::n + column);
#pragma unroll
            for (int i = 0; i < B::WIDTH; ++i)
                values[i] += found.at[i];  // add_values() says why it is added and not loaded
        });
    }

    static __forceinline__ __device__ void add(Accumulators& accumulators, unsigned a, unsigned b)
    {
#pragma unroll 1
        for (int first = 0; first < P::k; first += UNROLLED) {
            const A operand_a(a + A::offset(first), first_row(), lane_m());
            const B operand_b(b + B::offset(first), first_col(), lane_n());
            if (!LATE && SETS_A == 2)
                operand_a.load(accumulators.as[0], 0);
            if (!LATE && SETS_B == 2)
                operand_b.load(accumulators.bs[0], 0);
#pragma unroll
            for (int k = 0; k < UNROLLED; ++k) {
                load_for(accumulators.as, operand_a, k);
                load_for(accumulators.bs, operand_b, k);
                multiply(accumulators, LATE ? (k + UNROLLED - 1) % UNROLLED : k);
            }
        }
    }

    static __forceinline__ __device__ void complete(Accumulators& accumulators)
    {
        if constexpr (LATE)
            multiply(accumulators, UNROLLED - 1);
    }

    template <class Factor> static inline __device__ void scale(Accumulators& accumulators, Factor factor) { scale_all(accumulators.values, factor); }

    template <bool ADD> static __forceinline__ __device__ void finish(const Accumulators& accumulators, float* c)
    {
        visit(accumulators, [c](int row, int column, auto values) { put<ADD>(c + row * P::n + column, values); });
    }

    template <class Act> static __forceinline__ __device__ void visit(const Accumulators& accumulators, const Act& act)
    {
        each(accumulators, [&act](int row, int column, const float* values) {
            wt::Vector<float, B::WIDTH> found;
#pragma unroll
            for (int i = 0; i < B::WIDTH; ++i)
                found.at[i] = values[i];
            act(row, column, found);
        });
    }

private:
    // Calls act(row, column, values) for B::WIDTH neighbouring accumulators of a row of C.
    template <class S, class Act> static __forceinline__ __device__ void each(S& accumulators, const Act& act)
    {
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLS; j += B::WIDTH)
                act(first_row() + A::line_of(i, lane_m()), first_col() + B::line_of(j, lane_n()), accumulators.values[i] + j);
    }

    // Loads values in the k-th step: those of this step if they are multiplied in the next one or if there is a single set, else
    // those of the next vectors.
    template <class Values, int SETS, class Operand>
    static __forceinline__ __device__ void load_for(Values (&values)[SETS], const Operand& operand, int k)
    {
        const int loaded = LATE ? k : k + (SETS - 1) * Operand::DEPTH;
        if (k % Operand::DEPTH == 0 && loaded < UNROLLED)
            operand.load(values[loaded / Operand::DEPTH % SETS], loaded);
    }

    // Adds the k-th products. Each has a value of A or B in common with the one before it, which the multiplier still holds: it
    // can read two registers in a cycle, one of each bank, and needs three.
    static __forceinline__ __device__ void multiply(Accumulators& accumulators, int k)
    {
        constexpr bool BY_ROWS = ROWS >= COLS;
        constexpr int OUTER = BY_ROWS ? ROWS : COLS, INNER = BY_ROWS ? COLS : ROWS;
        const auto& as = accumulators.as[k / A::DEPTH % SETS_A];
        const auto& bs = accumulators.bs[k / B::DEPTH % SETS_B];
#pragma unroll
        for (int outer = 0; outer < OUTER; ++outer)
#pragma unroll
            for (int x = 0; x < INNER; ++x) {
                const int inner = outer % 2 ? INNER - 1 - x : x;
                const int i = BY_ROWS ? outer : inner, j = BY_ROWS ? inner : outer;
                accumulators.values[i][j] += A::value(as, i, k) * B::value(bs, j, k);
            }
    }

    // Neighbouring lanes alternate between M and N: in groups of 2 x 2, each pair shares a vector, so that twice as many
    // lanes are served at once (docs/templates.md).
    static inline __device__ int bit(int number) { return static_cast<int>(threadIdx.x) >> number & 1; }
    static inline __device__ int lane_m() { return bit(1) + 2 * bit(3) + (P::lanes_m == 8 ? 4 * bit(4) : 0); }
    static inline __device__ int lane_n() { return bit(0) + 2 * bit(2) + (P::lanes_n == 8 ? 4 * bit(4) : 0); }
    static inline __device__ int first_row() { return static_cast<int>(threadIdx.x) / 32 / P::warps_n * M; }
    static inline __device__ int first_col() { return static_cast<int>(threadIdx.x) / 32 % P::warps_n * N; }
};

}  // namespace wt_module
