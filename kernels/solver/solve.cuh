// SPDX-License-Identifier: Apache-2.0
//
// Solves with one triangle, T * X = Y, and with a Cholesky factor, L * L^T * X = Y.

#pragma once

#include "solver/substitute.cuh"

namespace wt::solver {

// Variant has T (a matrix of n x n), Y and X (of n x columns), n, columns, lanes (of one column), threads and order. X may
// be Y.
template <class Variant>
struct TriangularSolve {
    static WT_DEVICE void run(typename Variant::T t, typename Variant::Y y, typename Variant::X x)
    {
        arch::block_barrier();
        solve_columns<Variant::order, Variant::n, Variant::columns, Variant::lanes, Variant::threads>(t, y, x);
        arch::block_barrier();
    }
};

// Variant has L (read as a lower triangle) in place of T, and no order.
template <class Variant>
struct CholeskySolve {
    static WT_DEVICE void run(typename Variant::L l, typename Variant::Y y, typename Variant::X x)
    {
        using L = typename Variant::L;
        arch::block_barrier();
        for_columns<Variant::columns, Variant::lanes, Variant::threads>([&](int column, int lane, bool counts) {
            if constexpr (Variant::lanes == 1) {
                ColumnFactorSolve<Variant::n, L>::run(l, y, x, column, counts);
            } else {
                using Forward = Substitution<Order::forward, Variant::n, Variant::lanes, L>;
                using Backward = Substitution<Order::backward, Variant::n, Variant::lanes, typename L::Transposed>;
                typename Forward::Lines lines;
                lines.load(y, column, lane, counts);
                Forward::run(lines, l, lane);
                Backward::run(lines, l.transposed(), lane);
                if (counts)
                    lines.store(x, column, lane);
            }
        });
        arch::block_barrier();
    }
};

}  // namespace wt::solver
