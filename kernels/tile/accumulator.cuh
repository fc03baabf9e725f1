// SPDX-License-Identifier: Apache-2.0
//
// The epilogue of a tensor-core product: C = alpha * acc + beta * C. If beta is zero, C is not read.
// A lane with g = lane / 4 and q = lane % 4 holds, of each 8 x 8 group, row g and columns 2q and 2q + 1.

#pragma once

#include "arch/convert.cuh"
#include "arch/memory.cuh"
#include "tile/operand.cuh"
#include "tile/placement.cuh"
#include "tile/swizzle.cuh"

namespace wt::tile {

template <class Sum>
struct Scale {
    Sum alpha, beta;
};

template <class T, class Sum>
WT_DEVICE Scale<Sum> scale_of(const void* alpha, const void* beta)
{
    using To = arch::Convert<Sum, T>;
    return {To::of(*static_cast<const T*>(alpha)), To::of(*static_cast<const T*>(beta))};
}

// T, Total     stored type; type of the accumulators, float or double
// M, N, LD     size and leading dimension in elements
// Align        alignment of every row, or column where RowMajor is false, in bytes
// Rows, Cols   groups of eight rows or columns that a warp holds
// MmaRows      groups of eight rows in one instruction
// Ways         number of XOR patterns of the swizzle
template <class T, class Total, int M, int N, int LD, bool RowMajor, int Align, int Rows, int Cols, int MmaRows,
          int Ways, Placement RowPlacement, Placement ColPlacement>
struct AccumulatorShape {
    using Element = T;
    using Sum = Total;
    // These are enumerators, because NVRTC emits static members into the LTO-IR.
    enum : int { m = M, n = N, ld = LD, align = Align, rows = Rows, cols = Cols, mma_rows = MmaRows, ways = Ways };
    enum : bool { row_major = RowMajor };
    static constexpr Placement row_placement = RowPlacement, col_placement = ColPlacement;
};

template <class S>
struct Accumulator {
    using T = typename S::Element;
    using Sum = typename S::Sum;
    using Columns = ColumnVector<S::col_placement>;
    static constexpr int elements = Columns::elements;
    static constexpr int vectors = S::cols / Columns::groups;
    static constexpr bool exact = S::m % (8 * S::rows) == 0 && S::n % (8 * S::cols) == 0;
    // Elements per access. Either all of them or none lie inside the tile.
    static constexpr int width = !S::row_major
        ? 1
        : smaller(smaller(elements, smaller(16, S::align) / int(sizeof(T))),
                  smaller(power_of_two_in(S::n), power_of_two_in(S::ld)));
    static constexpr int ways = vectors % S::ways == 0 ? S::ways : 1;
    static constexpr bool rows_paired =
        S::row_placement == Placement::pairs_along || S::row_placement == Placement::pairs_spread;
    static constexpr int shift = swizzle_shift((rows_paired ? 2 : 1) * S::ld * int(sizeof(T)));

    using Values = Vector<T, elements>;
    using Accumulators = Sum[S::rows / S::mma_rows][S::cols][2 * S::mma_rows];

    // Reads the lane's elements of C in swizzled order.
    static WT_DEVICE void fetch(Values (&values)[S::rows][vectors], const T* tile, int row0, int col0, int g, int q)
    {
        const int swizzle = (g >> shift) & (ways - 1);
#pragma unroll
        for (int group = 0; group < S::rows; ++group)
            fetch(values[group], tile, row0 + position<S::row_placement>(group, g), col0, swizzle, q);
    }

    // Writes C. If Fetched, `values` holds C already. If beta is zero, they are not used.
    template <bool Fetched>
    static WT_DEVICE void store(const Accumulators& accumulators, Scale<Sum> scale, Values (&values)[S::rows][vectors], T* tile,
                                int row0, int col0, int g, int q)
    {
        const int swizzle = (g >> shift) & (ways - 1);
#pragma unroll
        for (int group = 0; group < S::rows; ++group) {
            const int row = row0 + position<S::row_placement>(group, g);
            Vector<Sum, elements> totals[vectors];
#pragma unroll
            for (int v = 0; v < vectors; ++v) {
#pragma unroll
                for (int e = 0; e < elements; ++e)
                    totals[v].at[e] = scale.alpha
                        * accumulators[group / S::mma_rows][v * Columns::groups + Columns::group_of(e)]
                              [2 * (group % S::mma_rows) + Columns::member_of(e)];
            }
            if constexpr (ways > 1)
                unswizzle<ways>(totals, swizzle);
            if (scale.beta != Sum(0)) {
                if constexpr (!Fetched)
                    fetch(values[group], tile, row, col0, swizzle, q);
#pragma unroll
                for (int buffer = 0; buffer < vectors; ++buffer) {
#pragma unroll
                    for (int e = 0; e < elements; ++e)
                        totals[buffer].at[e] += scale.beta * arch::Convert<Sum, T>::of(values[group][buffer].at[e]);
                }
            }
#pragma unroll
            for (int buffer = 0; buffer < vectors; ++buffer)
                write(totals[buffer], tile, row, col0 + Columns::column(buffer ^ swizzle, q));
        }
    }

private:
    static WT_DEVICE int offset(int row, int col) { return S::row_major ? row * S::ld + col : col * S::ld + row; }

    static WT_DEVICE void fetch(Values (&values)[vectors], const T* tile, int row, int col0, int swizzle, int q)
    {
#pragma unroll
        for (int buffer = 0; buffer < vectors; ++buffer) {
            const int col = col0 + Columns::column(buffer ^ swizzle, q);
#pragma unroll
            for (int e = 0; e < elements; e += width) {
                Vector<T, width> part{};
                if (exact || (row < S::m && col + e < S::n))
                    part = arch::load<width>(tile + offset(row, col + e));
#pragma unroll
                for (int i = 0; i < width; ++i)
                    values[buffer].at[e + i] = part.at[i];
            }
        }
    }

    static WT_DEVICE void write(const Vector<Sum, elements>& totals, T* tile, int row, int col)
    {
#pragma unroll
        for (int e = 0; e < elements; e += width) {
            Vector<T, width> part;
#pragma unroll
            for (int i = 0; i < width; ++i)
                part.at[i] = arch::Convert<T, Sum>::of(totals.at[e + i]);
            if (exact || (row < S::m && col + e < S::n))
                arch::store(tile + offset(row, col + e), part);
        }
    }
};

}  // namespace wt::tile
