// SPDX-License-Identifier: Apache-2.0
//
// Collective loads of 8 x 8 matrices of 16-bit elements, emulated by machine/collectives.cpp.

#pragma once

#include "arch/types.cuh"
#include "machine/machine.h"

namespace wt::arch {

WT_DEVICE void ldmatrix_transposed(u32 (&result)[2], const void* row)
{
    emulator::collective(emulator::Kind::ldmatrix_x2_trans, {result, row, nullptr, 0});
}

WT_DEVICE void ldmatrix_transposed(u32 (&result)[4], const void* row)
{
    emulator::collective(emulator::Kind::ldmatrix_x4_trans, {result, row, nullptr, 0});
}

#ifdef __CUDACC_RTC__  // in modules, whose addresses of shared memory are numbers
WT_DEVICE void ldmatrix(u32 (&result)[4], u32 row)
{
    emulator::collective(emulator::Kind::ldmatrix_x4, {result, emulator::shared_pointer(row), nullptr, 0});
}

WT_DEVICE void ldmatrix_transposed(u32 (&result)[4], u32 row)
{
    emulator::collective(emulator::Kind::ldmatrix_x4_trans, {result, emulator::shared_pointer(row), nullptr, 0});
}

WT_DEVICE void stmatrix(u32 row, const u32 (&words)[4])
{
    wt_ptx::stmatrix_sync_aligned_m8n8_x4_shared_b16(row, words[0], words[1], words[2], words[3]);
}
#endif

}  // namespace wt::arch
