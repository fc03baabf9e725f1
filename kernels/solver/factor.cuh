// SPDX-License-Identifier: Apache-2.0
//
// The Cholesky factor of a block of at most 32 rows, by one warp or, if it is small, by one thread.

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

// One correction follows the estimate, of second order (float) or third (double). Where it fails, the pivot is infinite
// (infinity and 0), zero or subnormal (0 and infinity), or negative (NaN and NaN).
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
    const bool exact = error > T(-1) && error < T(1);  // neither NaN nor infinite
    const T nan = estimate * T(0), limit = x > T(1) ? x : T(0);
    return {exact ? refined : x >= T(0) ? limit : nan, exact ? reciprocal : x >= T(0) ? estimate : nan};
}

// 1 / x for a positive pivot, from the estimate of its root: one correction of second order (float) or third (double). NaN
// or infinite for every other pivot, so that what remains of A becomes NaN, too.
template <class T>
WT_DEVICE T reciprocal_of(T x)
{
    const T root = arch::reciprocal_root_estimate(x), estimate = root * root;
    const T error = arch::multiply_add(-x, estimate, T(1));
    const T both = sizeof(T) == 8 ? arch::multiply_add(error, error, error) : error;
    return arch::multiply_add(estimate, both, estimate);
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
// A may be L. All lanes of one warp call it: lane i has row i. Every lane computes the next pivot itself, from two shuffled
// elements, so it does not wait for the column that the lanes exchange through memory.
template <int N, class A, class L>
struct Factor {
    using T = typename L::Element;
    static_assert(N <= 32, "Each lane holds a row");

    // The lanes exchange a column in lines 0 and 1 of L in turn, until L itself is written. Lines without the alignment of
    // vectors would be read element by element. So if L has no gaps, two aligned buffers in its memory take their place.
    static constexpr int vector = 16 / int(sizeof(T));
    static constexpr int padded = (N + vector - 1) / vector * vector;
    static constexpr bool aligned_buffers =
        L::width(N) < vector && L::line_stride == N && 2 * padded + vector - 1 <= N * N;
    static constexpr int width = aligned_buffers ? vector : L::width(N);

    static WT_DEVICE void run(A a, L l, int lane)
    {
        // Lanes after the block repeat the last row, and write nothing. The other triangle is read as well, and counts for
        // nothing.
        const int row = smaller(lane, N - 1);
        T x[N];
        read_column(x, a.transposed(), 0, row);
        arch::warp_barrier();
        T own = T(1), pivot = arch::shuffle(x[0], 0);
#pragma unroll
        for (int j = 0; j + 1 < N; ++j) {
            own = lane == j ? pivot : own;
            T* const column = publish(l, j, x[j], lane);
            const T below = arch::shuffle(x[j], j + 1), next = arch::shuffle(x[j + 1], j + 1);
            arch::warp_barrier();
            const T reciprocal = reciprocal_of(pivot), factor = x[j] * reciprocal;
            pivot = arch::multiply_add(-below * reciprocal, below, next);
            x[j + 1] = arch::multiply_add(-factor, below, x[j + 1]);
            for_each(column, j + 2, [&](int k, T element) { x[k] = arch::multiply_add(-factor, element, x[k]); });
        }
        const Pivot<T> last = pivot_of(lane < N - 1 ? own : pivot);
        const T* const reciprocals = publish(l, N - 1, last.reciprocal, lane);
        arch::warp_barrier();
        for_each(reciprocals, 0, [&](int k, T reciprocal) {
            x[k] = k < lane ? x[k] * reciprocal : k == lane ? last.root : T(0);
        });
        arch::warp_barrier();
        if (lane < N)
            write_column(l.transposed(), 0, lane, x);
    }

private:
    // Writes an element of each lane to one of two places in turn, and returns the place.
    static WT_DEVICE T* publish(L l, int turn, T element, int lane)
    {
        T* place = l.line(turn % 2);
        if constexpr (aligned_buffers)
            place = l.data + int(-reinterpret_cast<u64>(l.data) % 16) / int(sizeof(T)) + turn % 2 * padded;
        if (lane < (aligned_buffers ? padded : N))
            arch::store(place + lane, Vector<T, 1>{{element}});
        return place;
    }

    // Calls apply(index, element) for the published elements from `begin` on.
    template <class Apply>
    static WT_DEVICE void for_each(const T* place, int begin, Apply apply)
    {
#pragma unroll
        for (int first = 0; first < N; first += width) {
            if (first + width <= begin)
                continue;
            const auto vector = arch::load<width>(place + first);
#pragma unroll
            for (int e = 0; e < width; ++e)
                if (first + e >= begin && first + e < N)
                    apply(first + e, vector.at[e]);
        }
    }
};

}  // namespace wt::solver
