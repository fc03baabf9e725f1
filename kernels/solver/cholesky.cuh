// SPDX-License-Identifier: Apache-2.0
//
// The Cholesky factor L of A = L * L^T by one block, in panels of 16 columns: one warp factors the block on the
// diagonal, each thread solves rows below it, and all threads update the rest of A. Golub and Van Loan, Matrix
// Computations, 4.2.9.

#pragma once

#include "solver/factor.cuh"
#include "solver/substitute.cuh"
#include "solver/triangle.cuh"

namespace wt::solver {

// Variant has A and L (matrices that are read as lower triangles), n, threads and in_place.
template <class Variant>
struct Cholesky {
    using A = typename Variant::A;
    using L = typename Variant::L;
    using T = typename L::Element;

    static constexpr int n = Variant::n, threads = Variant::threads;
    static constexpr int panel = 16;
    static constexpr bool one_warp = n <= 32;
    static constexpr int tile = 4;

    static WT_DEVICE void run(A a, L l)
    {
        arch::block_barrier();
        if constexpr (FactorInThread<n, A, L>::serves) {
            if (arch::thread_index() == 0)
                FactorInThread<n, A, L>::run(a, l);
        } else if constexpr (one_warp) {
            if (arch::thread_index() < 32)
                Factor<n, A, L>::run(a, l, arch::thread_index());
        } else {
            if constexpr (!Variant::in_place) {
                copy(a, l);
                arch::block_barrier();
            }
            constexpr int last = (n - 1) / panel * panel;
#pragma unroll 1
            for (int first = 0; first < last; first += panel) {
                factor_diagonal<panel>(l, first);
                arch::block_barrier();
                solve_panel(l, first);
                arch::block_barrier();
                update(l, first);
                arch::block_barrier();
            }
            factor_diagonal<n - last>(l, last);
            clear(l);
        }
        arch::block_barrier();
    }

private:
    static WT_DEVICE void copy(A a, L l)
    {
        constexpr bool alike = A::rows_are_lines == L::rows_are_lines;
        constexpr int width = alike ? smaller(A::width(n), L::width(n)) : 1;
        for (int at = arch::thread_index() * width; at < n * n; at += threads * width) {
            const int line = at / n, first = at % n;
            if constexpr (alike)
                arch::store(l.line(line) + first, arch::load<width>(a.line(line) + first));
            else
                l.set(line, first, a.get(line, first));
        }
    }

    template <int SIZE>
    static WT_DEVICE void factor_diagonal(L l, int first)
    {
        if (arch::thread_index() < 32) {
            const L block = l.block(first, first);
            Factor<SIZE, L, L>::run(block, block, arch::thread_index());
        }
    }

    // Each thread solves x * L^T = a for rows a of the panel. Columns of L are written in lines for update(): where L has
    // rows as lines, the place is the opposite triangle, which is free until clear().
    static WT_DEVICE void solve_panel(L l, int first)
    {
        const L block = l.block(first, first);
        T reciprocals[panel];
        const T own = reciprocal_of_lane<panel>(block);
#pragma unroll
        for (int k = 0; k < panel; ++k)
            reciprocals[k] = arch::shuffle(own, k);  // before the loop, which some lanes leave earlier
        for (int row = first + panel + arch::thread_index(); row < n; row += threads) {
            T x[panel];
            read_column(x, l.transposed(), first, row);
            BlockSolve<Order::forward, panel, L>::run(x, block, [&](int k) { return reciprocals[k]; });
            if constexpr (L::rows_are_lines)
                write_column(l.transposed(), first, row, x);
#pragma unroll
            for (int k = 0; k < panel; ++k)
                arch::store(l.line(first + k) + row, Vector<T, 1>{{x[k]}});
        }
    }

    // A -= P * P^T after the panel P, whose columns lie in lines
    static WT_DEVICE void update(L l, int first)
    {
        using Panel = Matrix<T, 1, L::line_stride, L::align>;
        const Panel p{l.line(first)};
        lower_product<tile, n, panel, threads>(
            p, p, first + panel, [](int) { return 0; },
            [l](int i, int j, const T (&accumulators)[tile][tile]) { subtract(l, i, j, accumulators); });
    }

    static WT_DEVICE void subtract(L l, int i, int j, const T (&accumulators)[tile][tile])
    {
        if constexpr (n % tile == 0) {
#pragma unroll
            for (int r = 0; r < tile; ++r) {
                T line[tile];
                T* const place = l.rows_are_lines ? l.address(i + r, j) : l.address(i, j + r);
                read<L::width(tile)>(line, place);
#pragma unroll
                for (int c = 0; c < tile; ++c)
                    line[c] -= l.rows_are_lines ? accumulators[r][c] : accumulators[c][r];
                write<L::width(tile)>(place, line);
            }
        } else {
            subtract_lower<n>(l, i, j, accumulators);
        }
    }

    // Zeros above the blocks on the diagonal, which have theirs
    static WT_DEVICE void clear(L l)
    {
        for (int at = arch::thread_index(); at < n * n; at += threads) {
            const int row = l.rows_are_lines ? at / n : at % n, column = l.rows_are_lines ? at % n : at / n;
            if (row / panel < column / panel)
                l.set(row, column, T(0));
        }
    }
};

}  // namespace wt::solver
