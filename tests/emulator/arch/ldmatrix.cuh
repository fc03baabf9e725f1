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
#endif

}  // namespace wt::arch
