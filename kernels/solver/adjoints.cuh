// SPDX-License-Identifier: Apache-2.0
//
// Adjoints of the Cholesky factor and of the solve with a lower triangle. Murray, Differentiation of the Cholesky
// decomposition, 2016, section 3.2.

#pragma once

#include "solver/substitute.cuh"
#include "solver/triangle.cuh"

namespace wt::solver {

// Tiles of a triangle that keep most of the threads busy: 1, 2 or 4 rows.
WT_DEVICE constexpr int tile_for(int n, int threads)
{
    return n * n / 32 >= threads ? 4 : n * n / 8 >= threads ? 2 : 1;
}

// With P = L^T * G, whose lower triangle is mirrored: adj_A += L^-T * P * L^-1, the lower triangle, half of the diagonal.
// Variant has L, G (the gradient of L) and A (that of A), read as lower triangles, n, lanes and threads. The scratch
// memory holds n * (n + 1) elements.
template <class Variant>
struct CholeskyAdjoint {
    using L = typename Variant::L;
    using G = typename Variant::G;
    using A = typename Variant::A;
    using T = typename L::Element;

    static constexpr int n = Variant::n, threads = Variant::threads, tile = tile_for(n, threads);
    // A line more than n long: lanes that read a column meet no bank twice, nor those that read a row.
    using W = Matrix<T, n + 1, 1, int(sizeof(T))>;

    static WT_DEVICE void run(L l, G g, A a, W w)
    {
        arch::block_barrier();
        // P(i, j) is the sum of L(k, i) * G(k, j) over k >= i, because L has zeros above its diagonal.
        lower_product<tile, n, n, threads>(
            l.transposed(), g.transposed(), 0, [](int i) { return i; },
            [w](int i, int j, const T (&accumulators)[tile][tile]) {
                for_tile(i, j, [&](int r, int c) {
                    w.set(i + r, j + c, accumulators[r][c]);
                    w.set(j + c, i + r, accumulators[r][c]);
                });
            });
        arch::block_barrier();
        solve(l, w);
        arch::block_barrier();
        solve(l, w.transposed());
        arch::block_barrier();
        for (int at = arch::thread_index(); at < n * n; at += threads) {
            const int line = at / n, place = at % n;
            const int i = a.rows_are_lines ? line : place, j = a.rows_are_lines ? place : line;
            if (i >= j)
                a.set(i, j, a.get(i, j) + (i == j ? T(0.5) : T(1)) * w.get(i, j));
        }
        arch::block_barrier();
    }

private:
    template <class Use>
    static WT_DEVICE void for_tile(int i, int j, Use use)
    {
#pragma unroll
        for (int r = 0; r < tile; ++r)
#pragma unroll
            for (int c = 0; c < tile; ++c)
                if (i + r < n && j + c <= i + r)
                    use(r, c);
    }

    // w = L^-T * w
    template <class M>
    static WT_DEVICE void solve(L l, M w)
    {
        solve_columns<Order::backward, n, n, Variant::lanes, threads>(l.transposed(), w, w);
    }
};

// With W = L^-T * GX: adj_Y += W, and adj_L -= W * X^T, the lower triangle. Variant has L and GL (the gradient of L) of
// n x n elements, X, GX and GY (gradients of X and Y) of n x columns, n, columns, lanes and threads. The scratch memory
// holds (n | 1) * columns elements.
template <class Variant>
struct LowerSolveAdjoint {
    using L = typename Variant::L;
    using T = typename L::Element;

    static constexpr int n = Variant::n, columns = Variant::columns, threads = Variant::threads;
    static constexpr int tile = tile_for(n, threads);
    using W = Matrix<T, 1, n | 1, int(sizeof(T))>;  // an odd stride: columns begin in different banks

    static WT_DEVICE void run(L l, typename Variant::X x, typename Variant::GX gx, typename Variant::GY gy,
                              typename Variant::GL gl, W w)
    {
        arch::block_barrier();
        solve_columns<Order::backward, n, columns, Variant::lanes, threads>(l.transposed(), gx, w);
        arch::block_barrier();
        for (int at = arch::thread_index(); at < n * columns; at += threads) {
            const int i = gy.rows_are_lines ? at / columns : at % n, column = gy.rows_are_lines ? at % columns : at / n;
            gy.set(i, column, gy.get(i, column) + w.get(i, column));
        }
        lower_product<tile, n, columns, threads>(
            w, x, 0, [](int) { return 0; },
            [gl](int i, int j, const T (&accumulators)[tile][tile]) { subtract_lower<n>(gl, i, j, accumulators); });
        arch::block_barrier();
    }
};

}  // namespace wt::solver
