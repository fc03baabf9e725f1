// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous products of a warpgroup, emulated by grid/wgmma.cpp.

#pragma once

#include "arch/types.cuh"
#include "machine/machine.h"

namespace wt::arch {

WT_DEVICE u64 wgmma_operand(u32 start, u32 group, u32 panel, u32 width)
{
    const u64 swizzle = width == 128 ? 1 : width == 64 ? 2 : 3;
    return u64((start & 0x3ffff) >> 4) | u64(panel >> 4) << 16 | u64(group >> 4) << 32 | swizzle << 62;
}

WT_DEVICE u64 wgmma_after(u64 operand, u32 bytes) { return (operand >> 32 << 32) | (u32(operand) + (bytes >> 4)); }

WT_DEVICE void wgmma_fence() { emulator::fence_wgmma(); }
template <int BLOCKS>
WT_DEVICE void wgmma_has_read(u32 (&)[BLOCKS][4]) { }
template <int BLOCKS>
WT_DEVICE void wgmma_has_written(f32 (&)[BLOCKS][4]) { }
WT_DEVICE void fence_for_wgmma() { emulator::fence_proxy(); }
WT_DEVICE void wgmma_commit() { emulator::collective(emulator::Kind::wgmma_commit, {nullptr, nullptr, nullptr, 0}); }

template <int PENDING>
WT_DEVICE void wgmma_wait() { emulator::collective(emulator::Kind::wgmma_wait, {nullptr, nullptr, nullptr, PENDING}); }

template <bool A_IS_MN_MAJOR, bool B_IS_MN_MAJOR, bool ADD, int GROUPS, class T>
WT_DEVICE void wgmma(f32 (&d)[GROUPS][4], u64 a, const u32* a_in_registers, u64 b, T)
{
    for (int i = 0; !ADD && i < GROUPS; ++i)
        d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0;
    static_assert(sizeof(T) == 2 || !(A_IS_MN_MAJOR || B_IS_MN_MAJOR), "tf32 operands are K-major");
    using emulator::AsyncType;
    const AsyncType type = same<T, f32> ? AsyncType::tf32 : same<T, bf16> ? AsyncType::bf16 : AsyncType::f16;
    const emulator::AsyncProduct product {a, b, 8 * GROUPS, A_IS_MN_MAJOR, B_IS_MN_MAJOR, a_in_registers != nullptr, type};
    emulator::collective(emulator::Kind::wgmma, {d, &product, a_in_registers, 0});
}

template <bool A_IS_MN_MAJOR, bool B_IS_MN_MAJOR, bool ADD = true, int GROUPS, class T>
WT_DEVICE void wgmma(f32 (&d)[GROUPS][4], u64 a, u64 b, T type)
{
    wgmma<A_IS_MN_MAJOR, B_IS_MN_MAJOR, ADD>(d, a, nullptr, b, type);
}

template <bool B_IS_MN_MAJOR, bool ADD = true, int GROUPS, class T>
WT_DEVICE void wgmma(f32 (&d)[GROUPS][4], const u32 (&a)[4], u64 b, T type) { wgmma<false, B_IS_MN_MAJOR, ADD>(d, 0, a, b, type); }

template <int GROUPS>
WT_DEVICE void wgmma_tf32(f32 (&d)[GROUPS][4], const u32 (&a)[4], u64 b) { wgmma<false, false, true>(d, 0, a, b, f32 {}); }

}  // namespace wt::arch
