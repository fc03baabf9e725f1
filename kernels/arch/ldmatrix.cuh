// SPDX-License-Identifier: Apache-2.0
//
// Collective loads and stores of 8 x 8 matrices of 16-bit elements.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-load-instruction-ldmatrix

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// Loads N transposed matrices. Lane l passes the address of 16-byte row l % 8 of matrix l / 8; addresses of lanes from
// 8 * N on are ignored. With g = l / 4 and q = l % 4, the lane receives elements (row 2q, column g) and (row 2q + 1,
// column g) of matrix i in result[i].
WT_DEVICE void ldmatrix_transposed(u32 (&result)[2], const void* row)
{
    const u32 address = u32(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(result[0]), "=r"(result[1])
                 : "r"(address)
                 : "memory");
}

WT_DEVICE void ldmatrix_transposed(u32 (&result)[4], const void* row)
{
    const u32 address = u32(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address)
                 : "memory");
}

// Loads four matrices as they are, from an address of shared memory. With g and q as above, the lane receives elements
// (row g, columns 2q and 2q + 1) of matrix i in result[i].
WT_DEVICE void ldmatrix(u32 (&result)[4], u32 row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(row)
                 : "memory");
}

// Loads four transposed matrices, from an address of shared memory.
WT_DEVICE void ldmatrix_transposed(u32 (&result)[4], u32 row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(row)
                 : "memory");
}

// Stores four matrices to an address of shared memory; the reverse of ldmatrix(). It needs sm_90.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-store-instruction-stmatrix
WT_DEVICE void stmatrix(u32 row, const u32 (&words)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
                 :
                 : "r"(row), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

}  // namespace wt::arch
