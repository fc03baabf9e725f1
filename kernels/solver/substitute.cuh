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

constexpr int group_rows = 4;  // rows that a thread solves together: their sums do not wait for each other

// Rows of a column that a thread holds in registers
template <class T>
constexpr int register_rows = 128 / int(sizeof(T));

// The reciprocal of an element of the diagonal: that of row `lane` modulo SIZE
template <int SIZE, class M>
WT_DEVICE typename M::Element reciprocal_of_lane(M block)
{
    const int row = arch::thread_index() % 32 % SIZE;
    const auto reciprocal = typename M::Element(1) / block.get(row, row);  // infinite for a singular T, as with libmathdx
    arch::warp_barrier();  // the division branches; without it, the compiler writes the shuffles twice
    return reciprocal;
}

// x[to + r] -= T(row + r, column + c) * known[from + c] for ROWS x COLUMNS elements
template <int ROWS, int COLUMNS, class M, class T, int SIZE, int KNOWN>
WT_DEVICE void subtract_patch(T (&x)[SIZE], int to, M t, int row, int column, const T (&known)[KNOWN], int from)
{
    T patch[ROWS][COLUMNS];
    read_patch(patch, t, row, column);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            x[to + r] = arch::multiply_add(-patch[r][c], known[from + c], x[to + r]);
}

// Solves T * x = x in registers for a block on the diagonal, group by group. `reciprocal(i)` is that of element (i, i).
template <Order ORDER, int SIZE, class M>
struct BlockSolve {
    using T = typename M::Element;
    static constexpr bool forward = ORDER == Order::forward;
    static constexpr int vector = 16 / int(sizeof(T));
    static constexpr int rest = SIZE % group_rows, whole = SIZE - rest, tail = SIZE % vector;

    template <class Reciprocal>
    static WT_DEVICE void run(T (&x)[SIZE], M block, Reciprocal reciprocal)
    {
        if constexpr (!forward && rest > 0)
            group<rest>(x, block, whole, reciprocal);
#pragma unroll
        for (int step = 0; step < whole; step += group_rows)
            group<group_rows>(x, block, forward ? step : whole - group_rows - step, reciprocal);
        if constexpr (forward && rest > 0)
            group<rest>(x, block, whole, reciprocal);
    }

private:
    template <int ROWS, class Reciprocal>
    static WT_DEVICE void group(T (&x)[SIZE], M block, int first, Reciprocal reciprocal)
    {
        const int begin = forward ? 0 : first + ROWS, end = forward ? first : SIZE - tail;
#pragma unroll
        for (int k = begin; k < end; k += vector)
            subtract_patch<ROWS, vector>(x, first, block, first, k, x, k);
        if constexpr (!forward && tail > 0 && ROWS == group_rows)
            subtract_patch<ROWS, tail>(x, first, block, first, SIZE - tail, x, SIZE - tail);
        T patch[ROWS][ROWS];
        read_patch(patch, block, first, first);
#pragma unroll
        for (int step = 0; step < ROWS; ++step) {
            const int i = forward ? step : ROWS - 1 - step;
            x[first + i] *= reciprocal(first + i);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                if (forward ? r > i : r < i)
                    x[first + r] = arch::multiply_add(-patch[r][i], x[first + i], x[first + r]);
        }
    }
};

// Reads COUNT elements of a column; zeros if it does not count.
template <int COUNT, class M, class T>
WT_DEVICE void read_column(T (&to)[COUNT], M m, int first, int column, bool counts)
{
#pragma unroll
    for (int row = 0; row < COUNT; ++row)
        to[row] = T(0);
    if (counts)
        read_column(to, m, first, column);
}

// Solves T * x = y for a column of N rows. Y may be X. All lanes of a warp call it; nothing is read or written for a column
// that does not count.
template <Order ORDER, int N, class M>
struct ColumnSolve {
    using T = typename M::Element;
    static constexpr bool forward = ORDER == Order::forward;
    static constexpr int block_rows = register_rows<T>, vector = 16 / int(sizeof(T));
    static constexpr int rest = N % block_rows, tail = rest % vector;

    template <class Y, class X>
    static WT_DEVICE void run(M t, Y y, X x, int column, bool counts)
    {
        if constexpr (!forward && rest > 0)
            rows<rest>(t, y, x, N - rest, column, counts);
#pragma unroll 1
        for (int step = 0; step < N - rest; step += block_rows)
            rows<block_rows>(t, y, x, forward ? step : N - rest - block_rows - step, column, counts);
        if constexpr (forward && rest > 0)
            rows<rest>(t, y, x, N - rest, column, counts);
    }

private:
    // SIZE rows from `first` on
    template <int SIZE, class Y, class X>
    static WT_DEVICE void rows(M t, Y y, X x, int first, int column, bool counts)
    {
        const M block = t.block(first, first);
        const T own = reciprocal_of_lane<SIZE>(block);
        T values[SIZE];
        read_column(values, y, first, column, counts);
        const int begin = forward ? 0 : first + SIZE, end = forward ? first : N - tail;
#pragma unroll 1
        for (int k = begin; k < end; k += vector)
            subtract<vector>(values, t, x, first, k, column, counts);
        if constexpr (!forward && tail > 0 && SIZE == block_rows)
            subtract<tail>(values, t, x, first, N - tail, column, counts);
        BlockSolve<ORDER, SIZE, M>::run(values, block, [own](int i) { return arch::shuffle(own, i); });
        if (counts)
            write_column(x, first, column, values);
    }

    // values -= T(first..., k...) * x(k...) for COLUMNS columns of T
    template <int COLUMNS, int SIZE, class X>
    static WT_DEVICE void subtract(T (&values)[SIZE], M t, X x, int first, int k, int column, bool counts)
    {
        T known[COLUMNS];
        read_column(known, x, k, column, counts);
#pragma unroll
        for (int row = 0; row + group_rows <= SIZE; row += group_rows)
            subtract_patch<group_rows, COLUMNS>(values, row, t, first + row, k, known, 0);
        if constexpr (SIZE % group_rows > 0) {
            constexpr int row = SIZE / group_rows * group_rows;
            subtract_patch<SIZE % group_rows, COLUMNS>(values, row, t, first + row, k, known, 0);
        }
    }
};

// Solves L * L^T * x = y in the same way.
template <int N, class M>
struct ColumnFactorSolve {
    using T = typename M::Element;
    using Transposed = typename M::Transposed;

    template <class Y, class X>
    static WT_DEVICE void run(M l, Y y, X x, int column, bool counts)
    {
        if constexpr (N <= register_rows<T>) {
            const T own = reciprocal_of_lane<N>(l);
            const auto reciprocal = [own](int i) { return arch::shuffle(own, i); };
            T values[N];
            read_column(values, y, 0, column, counts);
            BlockSolve<Order::forward, N, M>::run(values, l, reciprocal);
            arch::warp_barrier();  // without it, the compiler would keep all of L in registers
            BlockSolve<Order::backward, N, Transposed>::run(values, l.transposed(), reciprocal);
            if (counts)
                write_column(x, 0, column, values);
        } else {
            ColumnSolve<Order::forward, N, M>::run(l, y, x, column, counts);
            ColumnSolve<Order::backward, N, Transposed>::run(l.transposed(), x, x, column, counts);
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
