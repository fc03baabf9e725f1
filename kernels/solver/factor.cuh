// SPDX-License-Identifier: Apache-2.0
//
// The Cholesky factor of a block of at most 32 rows, by one warp. The block lies in registers: each lane holds a row or a
// column of it, whichever makes its accesses to shared memory free of bank conflicts.

#pragma once

#include "arch/lane.cuh"
#include "arch/math.cuh"
#include "solver/matrix.cuh"

namespace wt::solver {

// The square root of a pivot, and its reciprocal
template <class T>
struct Pivot {
    T root, reciprocal;
};

// One step follows the estimate, of second order (float) or third (double). Where it fails, the pivot is zero (0 and
// infinity), infinite (infinity and 0), or negative (NaN and NaN). A subnormal double counts as zero.
template <class T>
WT_DEVICE Pivot<T> pivot_of(T x)
{
    const T estimate = arch::reciprocal_root_estimate(x);
    const T error = arch::multiply_add(-x * estimate, estimate, T(1));
    const T weight = sizeof(T) == 8 ? arch::multiply_add(T(0.375), error, T(0.5)) : T(0.5);
    const T reciprocal = arch::multiply_add(estimate * error, weight, estimate);
    const T root = x * reciprocal;
    const T rest = arch::multiply_add(-root, root, x);
    const T refined = arch::multiply_add(rest, reciprocal * T(0.5), root);
    const bool exact = error > T(-1);  // neither NaN nor infinite
    return {exact ? refined : x >= T(0) ? x : estimate, exact ? reciprocal : estimate};
}

// L of A = L * L^T for N x N elements, in the registers of one thread. It serves a few rows, for which a warp would spend
// more time on exchanging columns. Only the lower triangle of A counts; zeros are written above the diagonal of L. A may
// be L.
template <int N, class A, class L>
struct FactorInThread {
    using T = typename L::Element;

    // The triangle takes at most 36 registers of 4 bytes.
    static constexpr bool serves = N * (N + 1) / 2 * int(sizeof(T)) <= 36 * 4;

    static WT_DEVICE void run(A a, L l)
    {
        T x[N][N];  // A and L are read and written in lines
#pragma unroll
        for (int line = 0; line < N; ++line)
            read<A::width(N)>(x[line], a.line(line));
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const Pivot<T> pivot = pivot_of(at<A>(x, j, j));
            at<A>(x, j, j) = pivot.root;
#pragma unroll
            for (int i = j + 1; i < N; ++i)
                at<A>(x, i, j) *= pivot.reciprocal;
#pragma unroll
            for (int k = j + 1; k < N; ++k)
#pragma unroll
                for (int i = k; i < N; ++i)
                    at<A>(x, i, k) = arch::multiply_add(-at<A>(x, i, j), at<A>(x, k, j), at<A>(x, i, k));
        }
#pragma unroll
        for (int line = 0; line < N; ++line) {
            T values[N];
#pragma unroll
            for (int place = 0; place < N; ++place) {
                const int i = L::rows_are_lines ? line : place, j = L::rows_are_lines ? place : line;
                values[place] = j <= i ? at<A>(x, i, j) : T(0);
            }
            write<L::width(N)>(l.line(line), values);
        }
    }

private:
    template <class M>
    static WT_DEVICE T& at(T (&x)[N][N], int i, int j)
    {
        return M::rows_are_lines ? x[i][j] : x[j][i];
    }
};

// L of A = L * L^T for N x N elements. Only the lower triangle of A counts; zeros are written above the diagonal of L.
// A may be L. All lanes of one warp call it.
template <int N, class A, class L>
struct Factor {
    using T = typename L::Element;
    static_assert(N <= 32, "Each lane holds a row or a column");

    // A lane holds a row where columns are lines: then the lanes read and write neighbours.
    static constexpr bool lane_holds_row = !L::rows_are_lines;

    // The lanes exchange a column in lines 0 and 1 of L in turn, until L itself is written. Lines without the alignment of
    // vectors would be read element by element. So if L has no gaps, two aligned buffers in its memory take their place.
    static constexpr int vector = 16 / int(sizeof(T));
    static constexpr int padded = (N + vector - 1) / vector * vector;
    static constexpr bool aligned_buffers =
        L::width(N) < vector && L::line_stride == N && 2 * padded + vector - 1 <= N * N;
    static constexpr int width = aligned_buffers ? vector : L::width(N);

    static WT_DEVICE void run(A a, L l, int lane)
    {
        const int own = smaller(lane, N - 1);  // lanes after the block repeat the last one, and write nothing
        T x[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            // elements of the other triangle are read as well, and count for nothing
            x[k] = lane_holds_row ? a.get(own, k) : a.get(k, own);
        }
        arch::warp_barrier();
        if constexpr (lane_holds_row)
            by_rows(x, l, lane);
        else
            by_columns(x, l, lane);
    }

private:
    // The memory for column j of what remains of A
    static WT_DEVICE T* buffer(L l, int j)
    {
        if constexpr (aligned_buffers) {
            const int skipped = int(-reinterpret_cast<u64>(l.data) % 16) / int(sizeof(T));
            return l.data + skipped + j % 2 * padded;
        } else {
            return l.line(j % 2);
        }
    }

    static WT_DEVICE void by_rows(T (&x)[N], L l, int lane)
    {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            const T own = x[j];
            T* const column = buffer(l, j);
            if (j + 1 < N) {
                if (lane < (aligned_buffers ? padded : N))
                    arch::store(column + lane, Vector<T, 1>{{own}});
                arch::warp_barrier();
            }
            const Pivot<T> pivot = pivot_of(arch::shuffle(own, j));
            const T scaled = own * pivot.reciprocal;
            subtract(x, scaled * pivot.reciprocal, column, j);
            x[j] = lane == j ? pivot.root : scaled;
        }
        arch::warp_barrier();
        if (lane < N) {
#pragma unroll
            for (int k = 0; k < N; ++k)
                l.set(lane, k, k <= lane ? x[k] : T(0));
        }
    }

    static WT_DEVICE void by_columns(T (&x)[N], L l, int lane)
    {
        Pivot<T> own{};
#pragma unroll
        for (int j = 0; j < N; ++j) {
            T* const column = buffer(l, j);
            T factor = T(0);
            if (j + 1 < N) {
                if (lane == j)
                    publish(column, x, j);
                arch::warp_barrier();
                if (lane > j)
                    factor = arch::load<1>(column + smaller(lane, N - 1)).at[0];
            }
            const Pivot<T> pivot = pivot_of(arch::shuffle(x[j], j));
            if (lane == j)
                own = pivot;
            if (lane > j)
                subtract(x, factor * pivot.reciprocal * pivot.reciprocal, column, j);
        }
        arch::warp_barrier();
        if (lane < N) {
#pragma unroll
            for (int k = 0; k < N; ++k)
                l.set(k, lane, k < lane ? T(0) : x[k] * own.reciprocal);
            l.set(lane, lane, own.root);
        }
    }

    // Writes elements j + 1 and later, and those before it in the same vector.
    static WT_DEVICE void publish(T* column, const T (&x)[N], int j)
    {
#pragma unroll
        for (int first = 0; first < N; first += width) {
            if (first + width <= j + 1)
                continue;
            Vector<T, width> vector;
#pragma unroll
            for (int e = 0; e < width; ++e)
                vector.at[e] = x[smaller(first + e, N - 1)];
            arch::store(column + first, vector);
        }
    }

    // x[k] -= factor * column[k] for each k after j
    static WT_DEVICE void subtract(T (&x)[N], T factor, const T* column, int j)
    {
#pragma unroll
        for (int first = 0; first < N; first += width) {
            if (first + width <= j + 1)
                continue;
            const auto vector = arch::load<width>(column + first);
#pragma unroll
            for (int e = 0; e < width; ++e) {
                if (first + e > j && first + e < N)
                    x[first + e] = arch::multiply_add(-factor, vector.at[e], x[first + e]);
            }
        }
    }
};

}  // namespace wt::solver
