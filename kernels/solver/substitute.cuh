// SPDX-License-Identifier: Apache-2.0
//
// Forward and back substitution: T * x = y for a triangular T and several columns y. Either several lanes share a column,
// or a thread has a column and solves it in blocks of rows.

#pragma once

#include "arch/lane.cuh"
#include "arch/math.cuh"
#include "solver/matrix.cuh"

namespace wt::solver {

enum class Order { forward, backward };  // from the first row of a lower, or the last row of an upper triangle

// ---- one column for a thread

constexpr int block_rows = 16;

// Reciprocals of the diagonal of a block. All lanes of the warp call it.
template <int SIZE, class M, class T>
WT_DEVICE void reciprocals_of(T (&reciprocals)[SIZE], M block)
{
    const int own_row = arch::thread_index() % 32 % SIZE;
    const T own = T(1) / block.get(own_row, own_row);  // infinite for a singular T, as with libmathdx
#pragma unroll
    for (int k = 0; k < SIZE; ++k)
        reciprocals[k] = arch::shuffle(own, k);
}

// Solves T * x = x in registers for a block on the diagonal.
template <Order ORDER, int SIZE, class M, class T>
WT_DEVICE void solve_block(T (&x)[SIZE], M block, const T (&reciprocals)[SIZE])
{
    constexpr int width = M::width(SIZE);
#pragma unroll
    for (int step = 0; step < SIZE; ++step) {
        const int i = ORDER == Order::forward ? step : SIZE - 1 - step;
        if constexpr (M::rows_are_lines) {
#pragma unroll
            for (int first = 0; first < SIZE; first += width) {
                if (ORDER == Order::forward ? first >= i : first + width <= i + 1)
                    continue;
                const auto vector = arch::load<width>(block.address(i, first));
#pragma unroll
                for (int e = 0; e < width; ++e)
                    if (ORDER == Order::forward ? first + e < i : first + e > i)
                        x[i] = arch::multiply_add(-vector.at[e], x[first + e], x[i]);
            }
            x[i] *= reciprocals[i];
        } else {
            x[i] *= reciprocals[i];
#pragma unroll
            for (int first = 0; first < SIZE; first += width) {
                if (ORDER == Order::forward ? first + width <= i + 1 : first >= i)
                    continue;
                const auto vector = arch::load<width>(block.address(first, i));
#pragma unroll
                for (int e = 0; e < width; ++e)
                    if (ORDER == Order::forward ? first + e > i : first + e < i)
                        x[first + e] = arch::multiply_add(-vector.at[e], x[i], x[first + e]);
            }
        }
    }
}

// Solves T * x = y for a column of N rows. Y may be X. All lanes of a warp call it; nothing is written for a column that
// does not count.
template <Order ORDER, int N, class M>
struct ColumnSolve {
    using T = typename M::Element;
    static constexpr int rest = N % block_rows;
    static constexpr int width = M::width(rest ? power_of_two_in(rest) : block_rows);

    template <class Y, class X>
    static WT_DEVICE void run(M t, Y y, X x, int column, bool counts)
    {
        if constexpr (ORDER == Order::forward) {
#pragma unroll 1
            for (int first = 0; first < N - rest; first += block_rows)
                rows<block_rows>(t, y, x, first, 0, first, column, counts);
            if constexpr (rest > 0)
                rows<rest>(t, y, x, N - rest, 0, N - rest, column, counts);
        } else {
            if constexpr (rest > 0)
                rows<rest>(t, y, x, N - rest, N, N, column, counts);
#pragma unroll 1
            for (int first = N - rest - block_rows; first >= 0; first -= block_rows)
                rows<block_rows>(t, y, x, first, first + block_rows, N, column, counts);
        }
    }

private:
    // Rows from `first` on, of which those from `from` to `to` are solved and no others count.
    template <int SIZE, class Y, class X>
    static WT_DEVICE void rows(M t, Y y, X x, int first, int from, int to, int column, bool counts)
    {
        const M block = t.block(first, first);
        T reciprocals[SIZE], values[SIZE];
        reciprocals_of(reciprocals, block);
        if (!counts)
            return;
#pragma unroll
        for (int row = 0; row < SIZE; ++row)
            values[row] = y.get(first + row, column);
#pragma unroll 1
        for (int k = from; k < to; k += width)
            subtract(values, t, x, first, k, column);
        solve_block<ORDER>(values, block, reciprocals);
#pragma unroll
        for (int row = 0; row < SIZE; ++row)
            x.set(first + row, column, values[row]);
    }

    // values -= T(first..., k...) * x(k...)
    template <int SIZE, class X>
    static WT_DEVICE void subtract(T (&values)[SIZE], M t, X x, int first, int k, int column)
    {
        T known[width];
#pragma unroll
        for (int e = 0; e < width; ++e)
            known[e] = x.get(k + e, column);
        if constexpr (M::rows_are_lines) {
#pragma unroll
            for (int row = 0; row < SIZE; ++row) {
                const auto vector = arch::load<width>(t.address(first + row, k));
#pragma unroll
                for (int e = 0; e < width; ++e)
                    values[row] = arch::multiply_add(-vector.at[e], known[e], values[row]);
            }
        } else {
            constexpr int along = M::width(SIZE);
#pragma unroll
            for (int e = 0; e < width; ++e)
#pragma unroll
                for (int row = 0; row < SIZE; row += along) {
                    const auto vector = arch::load<along>(t.address(first + row, k + e));
#pragma unroll
                    for (int r = 0; r < along; ++r)
                        values[row + r] = arch::multiply_add(-vector.at[r], known[e], values[row + r]);
                }
        }
    }
};

// ---- several lanes for a column

// Lane g of LANES neighbours holds rows g, g + LANES, ... of a column of N elements.
template <int N, int LANES, class T>
struct Column {
    static constexpr int buffers = (N + LANES - 1) / LANES;
    static constexpr bool exact = N % LANES == 0;

    T at[buffers];

    // The row in a stage buffer; stage buffers after the last row repeat it.
    static WT_DEVICE int row(int buffer, int lane)
    {
        return exact ? buffer * LANES + lane : smaller(buffer * LANES + lane, N - 1);
    }

    static WT_DEVICE bool is_inside(int buffer, int lane) { return exact || buffer * LANES + lane < N; }

    // Stage buffers without a row are zero, and all of them where the column does not count.
    template <class M>
    WT_DEVICE void load(M m, int column, int lane, bool counts)
    {
#pragma unroll
        for (int buffer = 0; buffer < buffers; ++buffer)
            at[buffer] = counts && is_inside(buffer, lane) ? m.get(buffer * LANES + lane, column) : T(0);
    }

    template <class M>
    WT_DEVICE void store(M m, int column, int lane) const
    {
#pragma unroll
        for (int buffer = 0; buffer < buffers; ++buffer)
            if (is_inside(buffer, lane))
                m.set(buffer * LANES + lane, column, at[buffer]);
    }
};

// Solves T * x = y in place for one column. The other triangle of T counts as zeros, whatever it holds. All lanes of a
// warp call it.
template <Order ORDER, int N, int LANES, class M, class T = typename M::Element>
struct Substitution {
    using Lines = Column<N, LANES, T>;
    static constexpr int buffers = Lines::buffers;
    static constexpr int across = M::rows_are_lines ? M::width(N) : 1;  // columns of T read at once

    static WT_DEVICE void run(Lines& y, M m, int lane)
    {
        T reciprocals[buffers];
#pragma unroll
        for (int buffer = 0; buffer < buffers; ++buffer) {
            const int row = Lines::row(buffer, lane);
            reciprocals[buffer] = T(1) / m.get(row, row);
        }
#pragma unroll
        for (int step = 0; step < N; step += across) {
            const int first = ORDER == Order::forward ? step : N - across - step;
            T coefficients[buffers][across];
#pragma unroll
            for (int buffer = 0; buffer < buffers; ++buffer)
                load(coefficients[buffer], m, buffer, first, lane);
#pragma unroll
            for (int e = 0; e < across; ++e) {
                const int column = ORDER == Order::forward ? e : across - 1 - e;
                eliminate(y, reciprocals, coefficients, first + column, column, lane);
            }
        }
#pragma unroll
        for (int buffer = 0; buffer < buffers; ++buffer)
            y.at[buffer] *= reciprocals[buffer];
    }

private:
    // True if a row needs the solution's element of another row
    static WT_DEVICE constexpr bool needs(int row, int other)
    {
        return ORDER == Order::forward ? row > other : row < other;
    }

    // True if a stage buffer has a row that needs the solution's element of this row
    static WT_DEVICE constexpr bool is_open(int buffer, int row)
    {
        return needs(ORDER == Order::forward ? smaller(buffer * LANES + LANES - 1, N - 1) : buffer * LANES, row);
    }

    // Lanes whose row needs none of the columns read nothing, because rows may lie in the same banks.
    static WT_DEVICE void load(T (&to)[across], M m, int buffer, int first, int lane)
    {
        const int earliest = ORDER == Order::forward ? first : first + across - 1;
        if (is_open(buffer, earliest) && needs(buffer * LANES + lane, earliest))
            read<across>(to, m.address(Lines::row(buffer, lane), first));
    }

    static WT_DEVICE void eliminate(Lines& y, const T (&reciprocals)[buffers], const T (&coefficients)[buffers][across],
                                    int row, int column, int lane)
    {
        const T x = arch::shuffle(y.at[row / LANES] * reciprocals[row / LANES], row % LANES, LANES);
#pragma unroll
        for (int buffer = 0; buffer < buffers; ++buffer)
            if (is_open(buffer, row) && needs(buffer * LANES + lane, row))
                y.at[buffer] = arch::multiply_add(-coefficients[buffer][column], x, y.at[buffer]);
    }
};

// ---- all columns

// Deals COUNT columns out to groups of LANES lanes, and calls solve(column, lane of the group, whether it counts). All
// lanes of a warp call it together; a group without a column gets one that does not count.
template <int COUNT, int LANES, int Threads, class Solve>
WT_DEVICE void for_columns(Solve solve)
{
    constexpr int groups = Threads / LANES, groups_of_warp = 32 / LANES;
    const int group = arch::thread_index() / LANES, lane = arch::thread_index() % LANES;
    const int first_of_warp = group / groups_of_warp * groups_of_warp;
    for (int first = 0; first + first_of_warp < COUNT; first += groups) {
        const int column = first + group;
        solve(column, lane, column < COUNT);
    }
}

// Solves T * X = Y for all columns. Y may be X.
template <Order ORDER, int N, int COUNT, int LANES, int Threads, class M, class Y, class X>
WT_DEVICE void solve_columns(M t, Y y, X x)
{
    for_columns<COUNT, LANES, Threads>([&](int column, int lane, bool counts) {
        if constexpr (LANES == 1) {
            ColumnSolve<ORDER, N, M>::run(t, y, x, column, counts);
        } else {
            using S = Substitution<ORDER, N, LANES, M>;
            typename S::Lines lines;
            lines.load(y, column, lane, counts);
            S::run(lines, t, lane);
            if (counts)
                lines.store(x, column, lane);
        }
    });
}

}  // namespace wt::solver
