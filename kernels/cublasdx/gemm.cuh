// SPDX-License-Identifier: Apache-2.0
//
// A block GEMM with cuBLASDx's tiling and MMA instructions, as a device function.
//
// cuBLASDx's own execute() spends most of a compilation on instantiating CuTe's
// generic partitioning. This file uses only its configuration database.

#pragma once

#include "cublasdx_database.cuh"

#if !defined(WT_SYMBOL)
#error "WT_SYMBOL must name the device function"
#endif
#if !defined(WT_M) || !defined(WT_N) || !defined(WT_K)
#error "WT_M, WT_N and WT_K must give the problem size"
#endif
#if !defined(WT_A_DTYPE) || !defined(WT_B_DTYPE) || !defined(WT_C_DTYPE) || !defined(WT_TF32)
#error "WT_A_DTYPE, WT_B_DTYPE, WT_C_DTYPE and WT_TF32 must give the precision"
#endif
#if !defined(WT_A_ROW_MAJOR) || !defined(WT_B_ROW_MAJOR) || !defined(WT_C_ROW_MAJOR)
#error "WT_A_ROW_MAJOR, WT_B_ROW_MAJOR and WT_C_ROW_MAJOR must give the arrangement"
#endif
#if !defined(WT_LDA) || !defined(WT_LDB) || !defined(WT_LDC)
#error "WT_LDA, WT_LDB and WT_LDC must give the leading dimensions, or 0 for dense matrices"
#endif
#if !defined(WT_ALIGN_A) || !defined(WT_ALIGN_B) || !defined(WT_ALIGN_C)
#error "WT_ALIGN_A, WT_ALIGN_B and WT_ALIGN_C must give the alignment in bytes, or 0 for that of the element"
#endif
#if !defined(WT_THREADS) || !defined(WT_SM)
#error "WT_THREADS and WT_SM must give the block size and the target architecture"
#endif

#include "block_gemm.cuh"

namespace wt {

namespace database = cublasdx::detail::cute_backend;

// cuBLASDx reads float operands of a TF32 product as TF32 and does not round them.
template <class T>
using Operand = cute::conditional_t<WT_TF32, cublasdx::tfloat32_t, cublasdx::detail::convert_to_cutlass_type_t<T>>;

constexpr int dense(int ld, bool row_major, int rows, int columns) { return ld ? ld : row_major ? columns : rows; }

constexpr int alignment(int bytes, int element) { return bytes == 0 ? element : bytes < 16 ? bytes : 16; }

// ldmatrix and stmatrix move 16-byte lines. They can transpose 16-bit elements, but not wider ones.
constexpr bool matrix_access(int element, bool along_line, int alignment, int ld)
{
    return alignment == 16 && ld * element % 16 == 0 && (element == 2 || (element == 4 && along_line));
}

// CuTe's scalar FMA multiplies in the operands' own type: for a float result of half operands it would round
// products to half. If the result is at least as wide as the operands, this FMA widens them first.
template <class D, class A, class B>
struct WideningFma {
    using ARegisters = A[1];
    using BRegisters = B[1];
    using DRegisters = D[1];
    __device__ __forceinline__ static void fma(D& d, const A& a, const B& b, const D& c) { d = D(a) * D(b) + c; }
};

struct GemmConfig {
    using A = Operand<WT_A_DTYPE>;
    using B = Operand<WT_B_DTYPE>;
    using C = cublasdx::detail::convert_to_cutlass_type_t<WT_C_DTYPE>;

    static constexpr auto choice = database::get_tile_config<A, B, C, WT_M, WT_N, WT_K,
                                                             cublasdx::SM<WT_SM>, true, WT_THREADS>();
    static constexpr auto chosen_atom = cute::get<0>(choice);
    static constexpr bool units_row_major = WT_A_ROW_MAJOR && WT_B_ROW_MAJOR;
    static constexpr bool fma2 = database::is_vectorized_fma(chosen_atom);
    static constexpr auto atom = fma2 && units_row_major ? database::mma_atom::SM100_1x2x1_F32F32F32F32 : chosen_atom;

    using DatabaseOp = decltype(database::convert_mma_atom_to_cute<A, B, C, atom>());
    using Traits = cute::MMA_Traits<DatabaseOp>;
    static constexpr bool mixed = !(cute::is_same_v<A, C> && cute::is_same_v<B, C>);
    static constexpr bool widens = mixed && atom == database::mma_atom::universal_fma
        && sizeof(C) >= sizeof(A) && sizeof(C) >= sizeof(B);
    // The k loop is unrolled up to about this many operations. With mixed types, each also needs conversions.
    static constexpr int unrolled_operations = mixed ? 128 : 512;
    using Op = cute::conditional_t<widens, WideningFma<C, A, B>, DatabaseOp>;

    enum : int {
        lanes = decltype(cute::size(typename Traits::ThrID{}))::value,
        atom_m = decltype(cute::size<0>(typename Traits::Shape_MNK{}))::value,
        atom_n = decltype(cute::size<1>(typename Traits::Shape_MNK{}))::value,
        atom_k = decltype(cute::size<2>(typename Traits::Shape_MNK{}))::value,
        m_units = units_row_major ? cute::get<2>(choice) : cute::get<1>(choice),
        n_units = units_row_major ? cute::get<1>(choice) : cute::get<2>(choice),
        threads = lanes * m_units * n_units,
        block_threads = WT_THREADS,
        lda = dense(WT_LDA, WT_A_ROW_MAJOR, WT_M, WT_K),
        ldb = dense(WT_LDB, WT_B_ROW_MAJOR, WT_K, WT_N),
        ldc = dense(WT_LDC, WT_C_ROW_MAJOR, WT_M, WT_N),
        align_a = alignment(WT_ALIGN_A, sizeof(A)),
        align_b = alignment(WT_ALIGN_B, sizeof(B)),
        align_c = alignment(WT_ALIGN_C, sizeof(C)),
    };

    using K = Axis<WT_K, atom_k, 1>;
    static constexpr bool exact_a = WT_M % (atom_m * m_units) == 0 && K::exact;
    static constexpr bool exact_b = WT_N % (atom_n * n_units) == 0 && K::exact;
    static constexpr bool matrix_a =
        lanes == 32 && exact_a && matrix_access(sizeof(A), WT_A_ROW_MAJOR, align_a, lda);
    static constexpr bool matrix_b =
        lanes == 32 && exact_b && matrix_access(sizeof(B), !WT_B_ROW_MAJOR, align_b, ldb);

    // Repetitions that one vector load covers if k is not the contiguous dimension.
    enum : int {
        load_a = fma2 ? sizeof(typename Op::ARegisters) : sizeof(A),
        load_b = fma2 ? sizeof(typename Op::BRegisters) : sizeof(B),
        m_interleave = !WT_A_ROW_MAJOR && exact_a && !matrix_a ? gcd(WT_M / (atom_m * m_units), align_a / load_a) : 1,
        n_interleave = WT_B_ROW_MAJOR && exact_b && !matrix_b ? gcd(WT_N / (atom_n * n_units), align_b / load_b) : 1,
    };
    using M = Axis<WT_M, atom_m, m_units, m_interleave, (fma2 && atom_m > 1)>;
    using N = Axis<WT_N, atom_n, n_units, n_interleave, (fma2 && atom_n > 1)>;

    using MapA = FragmentMap<typename Traits::ALayout, A, sizeof(typename Op::ARegisters) / sizeof(A), atom_m,
                             M, K, !WT_A_ROW_MAJOR, lda, align_a, 1>;
    using MapB = FragmentMap<typename Traits::BLayout, B, sizeof(typename Op::BRegisters) / sizeof(B), atom_n,
                             N, K, WT_B_ROW_MAJOR, ldb, align_b, 1>;
    using MapC = FragmentMap<typename Traits::CLayout, C, sizeof(typename Op::DRegisters) / sizeof(C), atom_m,
                             M, N, !WT_C_ROW_MAJOR, ldc, align_c, N::repetitions>;

    static constexpr bool matrix_c = lanes == 32 && sizeof(C) == 2 && M::exact && N::exact && m_interleave == 1
        && n_interleave == 1 && matrix_access(sizeof(C), WT_C_ROW_MAJOR, align_c, ldc);

    using CopyA = FragmentCopy<A, MapA, M, K, !WT_A_ROW_MAJOR, matrix_a, false>;
    using CopyB = FragmentCopy<B, MapB, N, K, WT_B_ROW_MAJOR, matrix_b, false>;
    using CopyC = FragmentCopy<C, MapC, M, N, !WT_C_ROW_MAJOR, matrix_c, matrix_c && WT_SM >= 900>;

    static_assert(!matrix_a || MapA::has_matrix_blocks(), "The MMA's A operand does not match ldmatrix");
    static_assert(!matrix_b || MapB::has_matrix_blocks(), "The MMA's B operand does not match ldmatrix");
    static_assert(!matrix_c || MapC::has_matrix_blocks(), "The MMA's accumulator does not match stmatrix");
    static_assert(!database::is_quadpair_mma(atom), "Quad-pair MMAs are not supported");
    static_assert(int(threads) <= int(block_threads), "The MMA tiling needs more threads than the block has");
    static_assert(WT_THREADS >= 32 && WT_THREADS <= 1024, "A block must have 32 to 1024 threads");
    static_assert(lda >= dense(0, WT_A_ROW_MAJOR, WT_M, WT_K), "The leading dimension of A is too small");
    static_assert(ldb >= dense(0, WT_B_ROW_MAJOR, WT_K, WT_N), "The leading dimension of B is too small");
    static_assert(ldc >= dense(0, WT_C_ROW_MAJOR, WT_M, WT_N), "The leading dimension of C is too small");

#if AFFECTED_BY_NVBUG_5218000 && !defined(CUBLASDX_IGNORE_NVBUG_5218000_ASSERT)
    static_assert(!(WT_LDA && sizeof(A) < 4 && sizeof(B) < 4 && (WT_M % 16 || WT_N % 16 || WT_K % 16)
                    && (WT_SM == 800 || WT_SM == 900 || WT_SM >= 1000)),
                  "This CUDA compiler can miscompile this configuration (bug 5218000); use 12.9.1 or newer");
#endif
};

}  // namespace wt

extern "C" __device__ void
WT_SYMBOL(WT_C_DTYPE* alpha, WT_A_DTYPE* a, WT_B_DTYPE* b, WT_C_DTYPE* beta, WT_C_DTYPE* c)
{
    using Config = wt::GemmConfig;
    wt::block_gemm<Config>(reinterpret_cast<const Config::C&>(*alpha), reinterpret_cast<Config::A*>(a),
                           reinterpret_cast<Config::B*>(b), reinterpret_cast<const Config::C&>(*beta),
                           reinterpret_cast<Config::C*>(c));
}
