// SPDX-License-Identifier: Apache-2.0
//
// Products of fragments, with one interface for all tensor-core instructions: for each group of eight rows or columns, an
// instruction takes `registers` values per lane, which are consecutive along K.

#pragma once

#include "arch/convert.cuh"
#include "arch/mma.cuh"
#include "gemm/problem.cuh"

namespace wt {

// The operands of the tensor-core instructions: words of two 16-bit elements, tf32, fp32 as two parts of tf32, or fp64
enum class Multiplicand { half_words, tf32, tf32_parts, doubles };

// Double  the accumulators are fp64
// Tf32    fp32 operands may be truncated to tf32
// Sm      90 for sm_90
template <class A, class B, bool Double, bool Tf32, int Sm, Instruction I>
struct Multiplier {
    static constexpr bool half_words =
        same<A, B> && sizeof(A) == 2 && !Double && (I == Instruction::mma_m16n8k16 || Sm < 80);
    static constexpr Multiplicand multiplicand = Double ? Multiplicand::doubles
        : half_words                                          ? Multiplicand::half_words
        : (same<A, float> || same<B, float>) && !Tf32      ? Multiplicand::tf32_parts
                                                              : Multiplicand::tf32;
    static constexpr int rows = I == Instruction::mma_m8n8k4 ? 1 : 2;  // groups of eight
    static constexpr int k = I == Instruction::mma_m16n8k16 ? 16 : I == Instruction::mma_m16n8k8 ? 8 : 4;
    static constexpr int registers = k / 4 / (half_words ? 2 : 1);

    static_assert(I != Instruction::mma_m16n8k16 || half_words, "m16n8k16 multiplies fp16 or bf16");
    static_assert(I != Instruction::mma_m8n8k4 || Double, "m8n8k4 multiplies fp64");
    static_assert(Sm >= 80 || (half_words && same<A, f16>), "Tensor cores of sm_75 multiply only fp16");
    static_assert(!Double || I == Instruction::mma_m8n8k4 || Sm >= 90, "m16n8k8 of fp64 needs sm_90");
    static_assert(multiplicand != Multiplicand::tf32_parts || !(same<A, float> && same<B, float>),
                  "fp32 products of default precision are computed by fma");

    using Value = typename SumOf<Double>::Type;  // of accumulators, and of operands that are not half words

    // The accumulators of a warp tile: for each instruction a lane's four values, or two if it has eight rows.
    template <int Rows, int Cols>
    using Accumulators = Value[Rows / rows][Cols][2 * rows];

    // Issues one instruction for each group of accumulators. `step` counts instructions along K within a block of K.
    template <int Rows, int Cols, int Count>
    static WT_DEVICE void multiply(float (&accumulators)[Rows / 2][Cols][4], const u32 (&a)[Rows][Count], const u32 (&b)[Cols][Count],
                                   int step)
    {
        const int r = step * registers;
#pragma unroll
        for (int i = 0; i < Rows; i += 2) {
#pragma unroll
            for (int j = 0; j < Cols; ++j) {
                if constexpr (registers == 2) {
                    const u32 as[4] = {a[i][r], a[i + 1][r], a[i][r + 1], a[i + 1][r + 1]};
                    const u32 bs[2] = {b[j][r], b[j][r + 1]};
                    arch::mma_m16n8k16(accumulators[i / 2][j], as, bs, A{});
                } else {
                    const u32 as[2] = {a[i][r], a[i + 1][r]};
                    const u32 bs[1] = {b[j][r]};
                    arch::mma_m16n8k8(accumulators[i / 2][j], as, bs, A{});
                }
            }
        }
    }

    template <int Rows, int Cols, int Count>
    static WT_DEVICE void multiply(float (&accumulators)[Rows / 2][Cols][4], const float (&a)[Rows][Count], const float (&b)[Cols][Count],
                                   int step)
    {
        if constexpr (multiplicand == Multiplicand::tf32_parts) {
            if constexpr (same<A, float>) {
                float rest[Rows][Count];
                remainder(rest, a, step);
                tf32<Rows>(accumulators, rest, b, step);
            } else {
                float rest[Cols][Count];
                remainder(rest, b, step);
                tf32<Rows>(accumulators, a, rest, step);
            }
        }
        tf32<Rows>(accumulators, a, b, step);
    }

    template <int Rows, int Cols, int Count>
    static WT_DEVICE void multiply(double (&accumulators)[Rows / rows][Cols][2 * rows], const double (&a)[Rows][Count],
                                   const double (&b)[Cols][Count], int step)
    {
        const int r = step * registers;
#pragma unroll
        for (int i = 0; i < Rows; i += rows) {
#pragma unroll
            for (int j = 0; j < Cols; ++j) {
                if constexpr (rows == 1) {
                    arch::mma_m8n8k4(accumulators[i][j], a[i][r], b[j][r]);
                } else {
                    const double as[4] = {a[i][r], a[i + 1][r], a[i][r + 1], a[i + 1][r + 1]};
                    const double bs[2] = {b[j][r], b[j][r + 1]};
                    arch::mma_m16n8k8(accumulators[i / 2][j], as, bs);
                }
            }
        }
    }

private:
    template <int Rows, int Cols, int Count>
    static WT_DEVICE void tf32(float (&accumulators)[Rows / 2][Cols][4], const float (&a)[Rows][Count], const float (&b)[Cols][Count],
                               int step)
    {
        const int r = step * registers;
#pragma unroll
        for (int i = 0; i < Rows; i += 2) {
#pragma unroll
            for (int j = 0; j < Cols; ++j) {
                const u32 as[4] = {arch::bits_of(a[i][r]), arch::bits_of(a[i + 1][r]), arch::bits_of(a[i][r + 1]),
                                   arch::bits_of(a[i + 1][r + 1])};
                const u32 bs[2] = {arch::bits_of(b[j][r]), arch::bits_of(b[j][r + 1])};
                arch::mma_m16n8k8_tf32(accumulators[i / 2][j], as, bs);
            }
        }
    }

    // Computes what truncation to tf32 drops of each float. For an infinity that is zero.
    template <int Groups, int Count>
    static WT_DEVICE void remainder(float (&rest)[Groups][Count], const float (&values)[Groups][Count], int step)
    {
#pragma unroll
        for (int i = 0; i < Groups; ++i) {
#pragma unroll
            for (int r = step * registers; r < (step + 1) * registers; ++r) {
                const float part = arch::truncate_to_tf32(values[i][r]);
                rest[i][r] = part == values[i][r] ? 0.0f : values[i][r] - part;
            }
        }
    }
};

}  // namespace wt
