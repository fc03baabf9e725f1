// SPDX-License-Identifier: Apache-2.0
//
// Adjoints of the Cholesky factor and of the solves. Murray, Differentiation of the Cholesky decomposition, 2016, section
// 3.2; Giles, An extended collection of matrix derivative results, 2008, section 2.3.1. The gradient of a triangle is that
// of the elements that the function reads.
//
// In place, the result lies where the operand was, and so does its gradient. The adjoint reads both, replaces the gradient
// by that of the operand, and computes the operand again, for the adjoints of statements that used it before.

#pragma once

#include "solver/substitute.cuh"
#include "solver/triangle.cuh"

namespace wt::solver {

// Tiles of a triangle that keep most of the threads busy: 1, 2 or 4 rows.
WT_DEVICE constexpr int tile_for(int n, int threads)
{
    return n * n / 32 >= threads ? 4 : n * n / 8 >= threads ? 2 : 1;
}

// Copies a matrix of N x COUNT elements.
template <int N, int COUNT, int Threads, class From, class To>
WT_DEVICE void copy(From from, To to)
{
    for (int at = arch::thread_index(); at < N * COUNT; at += Threads) {
        const int i = to.rows_are_lines ? at / COUNT : at % N, column = to.rows_are_lines ? at % COUNT : at / N;
        to.set(i, column, from.get(i, column));
    }
}

// With P = L^T * G, whose lower triangle is mirrored: adj_A += L^-T * P * L^-1, the lower triangle, half of the diagonal.
// In place A = L * L^T is computed again, both triangles. Variant has L, G (the gradient of L) and A (that of A), read as
// lower triangles, n, lanes, threads and in_place. The scratch memory holds n * (n + 1) elements.
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
        symmetric_product(l.transposed(), g.transposed(), w, [](int i) { return i; });
        arch::block_barrier();
        solve(l, w);
        arch::block_barrier();
        solve(l, w.transposed());
        arch::block_barrier();
        for (int at = arch::thread_index(); at < n * n; at += threads) {
            const int line = at / n, place = at % n;
            const int i = a.rows_are_lines ? line : place, j = a.rows_are_lines ? place : line;
            if (i >= j)
                a.set(i, j, (Variant::in_place ? T(0) : a.get(i, j)) + (i == j ? T(0.5) : T(1)) * w.get(i, j));
            else if (Variant::in_place)
                a.set(i, j, T(0));
        }
        arch::block_barrier();
        if constexpr (Variant::in_place) {
            symmetric_product(l, l, w, [](int) { return 0; });
            arch::block_barrier();
            copy<n, n, threads>(w, l);
            arch::block_barrier();
        }
    }

private:
    // w = the lower triangle of x * y^T, mirrored; sums begin at start(row).
    template <class X, class Y, class Start>
    static WT_DEVICE void symmetric_product(X x, Y y, W w, Start start)
    {
        lower_product<tile, n, n, threads>(x, y, 0, start, [w](int i, int j, const T (&accumulators)[tile][tile]) {
            for_tile(i, j, [&](int r, int c) {
                w.set(i + r, j + c, accumulators[r][c]);
                w.set(j + c, i + r, accumulators[r][c]);
            });
        });
    }

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

// What the adjoints of solves share. Variant has L (the triangle) and GL (its gradient) of n x n elements, X, GX and GY
// (gradients of X and Y) of n x columns, n, columns, lanes, threads and in_place.
template <class Variant>
struct SolveAdjointParts {
    using L = typename Variant::L;
    using X = typename Variant::X;
    using GX = typename Variant::GX;
    using GY = typename Variant::GY;
    using GL = typename Variant::GL;
    using T = typename L::Element;

    static constexpr int n = Variant::n, columns = Variant::columns, threads = Variant::threads;
    static constexpr int tile = tile_for(n, threads);
    using W = Matrix<T, 1, n | 1, int(sizeof(T))>;  // an odd stride: columns begin in different banks

    // The solution of T * w = y
    template <Order ORDER, class M, class Y>
    static WT_DEVICE void solve(M t, Y y, W w)
    {
        solve_columns<ORDER, n, columns, Variant::lanes, threads>(t, y, w);
    }

    // adj_Y += W; in place adj_Y = W
    static WT_DEVICE void add(GY gy, W w)
    {
        for (int at = arch::thread_index(); at < n * columns; at += threads) {
            const int i = gy.rows_are_lines ? at / columns : at % n, column = gy.rows_are_lines ? at % columns : at / n;
            gy.set(i, column, Variant::in_place ? w.get(i, column) : gy.get(i, column) + w.get(i, column));
        }
    }

    // m -= A * B^T, the lower triangle
    template <class M, class A, class B>
    static WT_DEVICE void subtract_product(M m, A a, B b)
    {
        lower_product<tile, n, columns, threads>(
            a, b, 0, [](int) { return 0; },
            [m](int i, int j, const T (&accumulators)[tile][tile]) { subtract_lower<n>(m, i, j, accumulators); });
    }

    // w = T * x for a lower (forward) or upper triangle; the other half of T is not read.
    template <Order ORDER, class M, class From>
    static WT_DEVICE void multiply(M t, From x, W w)
    {
        for (int at = arch::thread_index(); at < n * columns; at += threads) {
            const int i = at % n, column = at / n;
            T sum = T(0);
            for (int k = ORDER == Order::forward ? 0 : i; k < (ORDER == Order::forward ? i + 1 : n); ++k)
                sum = arch::multiply_add(t.get(i, k), x.get(k, column), sum);
            w.set(i, column, sum);
        }
    }

    // In place: Y = T * x, where the solution was
    template <Order ORDER, class From>
    static WT_DEVICE void restore(L t, From x, W w, X y)
    {
        if constexpr (Variant::in_place) {
            arch::block_barrier();
            multiply<ORDER>(t, x, w);
            arch::block_barrier();
            copy<n, columns, threads>(w, y);
        }
    }
};

// With W = T^-T * GX: adj_Y += W, and adj_T -= W * X^T, its triangle. Variant also has the order of the solve. The scratch
// memory holds (n | 1) * columns elements.
template <class Variant>
struct SolveAdjoint : SolveAdjointParts<Variant> {
    using P = SolveAdjointParts<Variant>;
    using W = typename P::W;

    static WT_DEVICE void run(typename P::L l, typename P::X x, typename P::GX gx, typename P::GY gy, typename P::GL gl, W w)
    {
        constexpr bool lower = Variant::order == Order::forward;
        arch::block_barrier();
        P::template solve<lower ? Order::backward : Order::forward>(l.transposed(), gx, w);
        arch::block_barrier();
        P::add(gy, w);
        arch::block_barrier();  // the tiles of Y and of the triangle may share memory
        if constexpr (lower)
            P::subtract_product(gl, w, x);
        else
            P::subtract_product(gl.transposed(), x, w);
        P::template restore<Variant::order>(l, x, w, x);
        arch::block_barrier();
    }
};

// With A = L * L^T, V = L^-1 * GX, W = L^-T * V and Z = L^T * X: adj_Y += W, and adj_L -= W * Z^T + X * V^T, the lower
// triangle. This is the gradient of A, -W * X^T, through A = L * L^T. The scratch memory holds V, then Z; and W.
template <class Variant>
struct CholeskySolveAdjoint : SolveAdjointParts<Variant> {
    using P = SolveAdjointParts<Variant>;
    using W = typename P::W;

    static WT_DEVICE void run(typename P::L l, typename P::X x, typename P::GX gx, typename P::GY gy, typename P::GL gl, W v)
    {
        const W w = v.block(0, P::columns);
        arch::block_barrier();
        P::template solve<Order::forward>(l, gx, v);
        arch::block_barrier();
        P::template solve<Order::backward>(l.transposed(), v, w);
        arch::block_barrier();
        P::add(gy, w);
        arch::block_barrier();  // the tiles of Y and of the factor may share memory
        P::subtract_product(gl, x, v);
        arch::block_barrier();
        const W z = v;
        P::template multiply<Order::backward>(l.transposed(), x, z);
        arch::block_barrier();
        P::subtract_product(gl, w, z);
        P::template restore<Order::forward>(l, z, w, x);
        arch::block_barrier();
    }
};

}  // namespace wt::solver
