// SPDX-License-Identifier: Apache-2.0
//
// The lower triangle of a product A * B^T, in tiles of TILE x TILE elements that threads compute in registers.

#pragma once

#include "arch/lane.cuh"
#include "arch/math.cuh"
#include "solver/matrix.cuh"

namespace wt::solver {

// The row of the lower triangle in which tile t lies if rows of 1, 2, 3, ... tiles are numbered through.
WT_DEVICE int triangle_row(int t)
{
    int row = int((arch::root(float(8 * t + 1)) - 1.0f) * 0.5f);
    if (row * (row + 1) / 2 > t)
        --row;
    if ((row + 1) * (row + 2) / 2 <= t)
        ++row;
    return row;
}

// Elements (first + e, k) for e < TILE of a matrix of N rows; rows after the last repeat it.
template <int TILE, int N, class M, class T>
WT_DEVICE void column_of(T (&to)[TILE], M m, int first, int k)
{
    if constexpr (!M::rows_are_lines && N % TILE == 0) {
        read<M::width(TILE)>(to, m.address(first, k));
    } else {
#pragma unroll
        for (int e = 0; e < TILE; ++e)
            to[e] = m.get(N % TILE == 0 ? first + e : smaller(first + e, N - 1), k);
    }
}

// Subtracts a tile from m, whose lower triangle has N rows. (i, j) is the tile's first element.
template <int N, int TILE, class M, class T>
WT_DEVICE void subtract_lower(M m, int i, int j, const T (&tile)[TILE][TILE])
{
#pragma unroll
    for (int r = 0; r < TILE; ++r)
#pragma unroll
        for (int c = 0; c < TILE; ++c)
            if (i + r < N && j + c <= i + r)
                m.set(i + r, j + c, m.get(i + r, j + c) - tile[r][c]);
}

// Calls use(i, j, accumulators) for each tile on and below the diagonal. (i, j) is its first element; rows and columns begin at
// first_row and end before N. accumulators[r][c] is the sum over k of a(i + r, k) * b(j + c, k), for k from start(i) to K - 1.
template <int TILE, int N, int K, int Threads, class A, class B, class Start, class Use>
WT_DEVICE void lower_product(A a, B b, int first_row, Start start, Use use)
{
    using T = typename A::Element;
    const int lines = (N - first_row + TILE - 1) / TILE;
    constexpr bool square = TILE == 1;  // single elements cost less than their number in the triangle
    for (int t = arch::thread_index(); t < (square ? N * N : lines * (lines + 1) / 2); t += Threads) {
        const int row = square ? t / N : triangle_row(t), column = square ? t % N : t - row * (row + 1) / 2;
        const int i = first_row + row * TILE, j = first_row + column * TILE;
        if (square && (column > row || i >= N))
            continue;
        T accumulators[TILE][TILE] = {};
#pragma unroll 4
        for (int k = start(i); k < K; ++k) {
            T x[TILE], y[TILE];
            column_of<TILE, N>(x, a, i, k);
            column_of<TILE, N>(y, b, j, k);
#pragma unroll
            for (int r = 0; r < TILE; ++r)
#pragma unroll
                for (int c = 0; c < TILE; ++c)
                    accumulators[r][c] = arch::multiply_add(x[r], y[c], accumulators[r][c]);
        }
        use(i, j, accumulators);
    }
}

}  // namespace wt::solver
