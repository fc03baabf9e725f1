// SPDX-License-Identifier: Apache-2.0
//
// The GEMM problem as templates see it. A Variant holds two structures. Problem has the types A, B and C, the sizes m, n
// and k, for each operand lda, align_a (bytes) and a_row_major, and tf32, threads and sm (90 for sm_90). Config has the
// fields of TileConfig in warp_tiles/gemm/tile_config.py. One name stands for both structures, because it is part of every
// function's name.

#pragma once

#include "arch/types.cuh"

namespace wt {

enum class Instruction { mma_m16n8k16, mma_m16n8k8, mma_m8n8k4, fma };

// The transposed problem: C^T = B^T A^T.
template <class P>
struct Transposed {
    using A = typename P::B;
    using B = typename P::A;
    using C = typename P::C;
    static constexpr int m = P::n, n = P::m, k = P::k;
    static constexpr int lda = P::ldb, ldb = P::lda, ldc = P::ldc;
    static constexpr int align_a = P::align_b, align_b = P::align_a, align_c = P::align_c;
    static constexpr bool a_row_major = !P::b_row_major, b_row_major = !P::a_row_major, c_row_major = !P::c_row_major;
    static constexpr bool tf32 = P::tf32;
    static constexpr int threads = P::threads, sm = P::sm;
};

template <bool Transpose, class P>
struct Oriented {
    using Type = P;
};
template <class P>
struct Oriented<true, P> {
    using Type = Transposed<P>;
};

// The problem that the templates compute: Problem, or its transpose if Config::transposed.
template <class Variant>
using ProblemOf = typename Oriented<Variant::Config::transposed, typename Variant::Problem>::Type;

template <class P>
inline constexpr bool any_double = same<typename P::A, double> || same<typename P::B, double> || same<typename P::C, double>;

// The type of the accumulators
template <bool Double>
struct SumOf {
    using Type = float;
};
template <>
struct SumOf<true> {
    using Type = double;
};
template <class P>
using Sum = typename SumOf<any_double<P>>::Type;

}  // namespace wt
