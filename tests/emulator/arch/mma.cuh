// SPDX-License-Identifier: Apache-2.0
//
// Tensor-core instructions, D = A * B + D, emulated by machine/mma.cpp.

#pragma once

#include "arch/types.cuh"
#include "machine/machine.h"

namespace wt::arch {

WT_DEVICE void mma_m16n8k16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], f16)
{
    emulator::collective(emulator::Kind::mma_m16n8k16_f16, {d, a, b, 0});
}

WT_DEVICE void mma_m16n8k16(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2], bf16)
{
    emulator::collective(emulator::Kind::mma_m16n8k16_bf16, {d, a, b, 0});
}

WT_DEVICE void mma_m16n8k8(f32 (&d)[4], const u32 (&a)[2], const u32 (&b)[1], f16)
{
    emulator::collective(emulator::Kind::mma_m16n8k8_f16, {d, a, b, 0});
}

WT_DEVICE void mma_m16n8k8_tf32(f32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2])
{
    emulator::collective(emulator::Kind::mma_m16n8k8_tf32, {d, a, b, 0});
}

WT_DEVICE void mma_m8n8k4(double (&d)[2], double a, double b)
{
    emulator::collective(emulator::Kind::mma_m8n8k4_f64, {d, &a, &b, 0});
}

WT_DEVICE void mma_m16n8k8(double (&d)[4], const double (&a)[4], const double (&b)[2])
{
    emulator::collective(emulator::Kind::mma_m16n8k8_f64, {d, a, b, 0});
}

}  // namespace wt::arch
