// SPDX-License-Identifier: Apache-2.0
//
// Tensor-core instructions, one function for each: D = A * B + D.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
//
// Fragment layouts with g = lane / 4 and q = lane % 4. i is an element's index in the lane's registers:
//
//   16-bit, m16n8k16   A(i): row g + 8 * (i / 2 % 2), k = 2q + i % 2 + 8 * (i / 4)   i counts elements, two per word
//                      B(i): k = 2q + i % 2 + 8 * (i / 2), column g
//   16-bit, m16n8k8    A(i): row g + 8 * (i / 2), k = 2q + i % 2;   B(i): k = 2q + i, column g
//   tf32, m16n8k8      A(i): row g + 8 * (i % 2), k = q + 4 * (i / 2);   B(i): k = q + 4i, column g
//   fp64, m8n8k4       A: row g, k = q;   B: k = q, column g
//   fp64, m16n8k8      as tf32
//   C, D with 16 rows  C(i): row g + 8 * (i / 2), column 2q + i % 2
//   C, D with 8 rows   C(i): row g, column 2q + i

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// #warp-level-matrix-fragment-mma-16816-float, sm_80
WT_DEVICE void mma_m16n8k16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], f16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// #warp-level-matrix-fragment-mma-16816-float, sm_80
WT_DEVICE void mma_m16n8k16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], bf16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// #warp-level-matrix-fragment-mma-1688, sm_75
WT_DEVICE void mma_m16n8k8(f32 (&d)[4], const u32 (&a)[2], const u32 (&b)[1], f16)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}

// #warp-level-matrix-fragment-mma-1688, sm_80. Operands are fp32 bits; the hardware ignores the lower 13.
WT_DEVICE void mma_m16n8k8_tf32(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// #warp-level-matrix-fragment-mma-884-f64, sm_80
WT_DEVICE void mma_m8n8k4(double (&d)[2], double a, double b)
{
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+d"(d[0]), "+d"(d[1])
        : "d"(a), "d"(b));
}

// #warp-level-matrix-fragment-mma-1688, sm_90
WT_DEVICE void mma_m16n8k8(double (&d)[4], const double (&a)[4], const double (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}

}  // namespace wt::arch
