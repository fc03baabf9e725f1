// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous products of a warpgroup, four warps: D = A * B + D with B, and mostly A, in shared memory. sm_90a.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
//
// D has 64 rows. Warp w of the group holds rows 16 w to 16 w + 15, with the layout of mma.m16n8k16's D for each eight
// columns. A thread must not touch D, nor any thread the bytes of A and B, before the product is complete.

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// Returns the descriptor of an operand in shared memory. A panel's rows have `width` bytes, contiguous along K or along M
// or N. Sixteen-byte vectors are permuted within 8 rows (#matrix-descriptor-format, swizzling modes).
// start: address, group: bytes between 8 rows, panel: bytes between panels (contiguous along M or N), width: 128, 64 or 32
WT_DEVICE u64 wgmma_operand(u32 start, u32 group, u32 panel, u32 width)
{
    const u64 swizzle = width == 128 ? 1 : width == 64 ? 2 : 3;
    return u64((start & 0x3ffff) >> 4) | u64(panel >> 4) << 16 | u64(group >> 4) << 32 | swizzle << 62;
}

// Returns the descriptor of elements that lie `bytes` after those of another descriptor, in the same layout. `bytes` is a multiple
// of 16.
WT_DEVICE u64 wgmma_after(u64 operand, u32 bytes) { return (operand >> 32 << 32) | (u32(operand) + (bytes >> 4)); }

// Orders this warp's accesses to D before the products that follow.
WT_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }

// Makes a group of the products that this warp started since its last group.
WT_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }

// Waits for the groups of this warp except its last PENDING ones.
template <int PENDING>
WT_DEVICE void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(PENDING) : "memory");
}

// Makes this thread's writes to shared memory visible to asynchronous products, after a barrier.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar
WT_DEVICE void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

// Keeps registers as they are up to here, because a product that is now complete has read them.
template <int BLOCKS>
WT_DEVICE void wgmma_has_read(u32 (&registers)[BLOCKS][4])
{
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
        asm volatile("" : "+r"(registers[i][0]), "+r"(registers[i][1]), "+r"(registers[i][2]), "+r"(registers[i][3]) : : "memory");
}

// Keeps instructions that read the accumulators of a product behind the wait for it. Without this, the compiler may move those
// that use only registers before the wait.
template <int BLOCKS>
WT_DEVICE void wgmma_has_written(f32 (&accumulators)[BLOCKS][4])
{
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
        asm volatile("" : "+f"(accumulators[i][0]), "+f"(accumulators[i][1]), "+f"(accumulators[i][2]), "+f"(accumulators[i][3]) : : "memory");
}

#define WT_D4(i) "+f"(d[(i) / 4][0]), "+f"(d[(i) / 4][1]), "+f"(d[(i) / 4][2]), "+f"(d[(i) / 4][3])
#define WT_D16(i) WT_D4(i), WT_D4(i + 4), WT_D4(i + 8), WT_D4(i + 12)
#define WT_D64(i) WT_D16(i), WT_D16(i + 16), WT_D16(i + 32), WT_D16(i + 48)
#define WT_L8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define WT_L16 WT_L8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WT_L32 WT_L16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WT_L48 WT_L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define WT_L64                                                                                                         \
    WT_L32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"                                          \
           ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WT_L80 WT_L64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define WT_L96                                                                                                         \
    WT_L64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"                                          \
           ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WT_L128                                                                                                        \
    WT_L96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"                              \
           ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

#define WT_WGMMA(N, K, TYPE) "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." TYPE "." TYPE " "

// The product of 64 x 16 elements of A and 16 x N elements of B, where D has N / 8 groups of eight columns. An operand is
// MN-major if it is contiguous along M or N. A may be in registers: those of each warp hold 16 rows, in the layout of
// mma.m16n8k16's A. If not ADD, D has no value before, and is the product. P0 to P6 are the operands behind those of D.
#define WT_DEFINE_HALF(N, TYPE, NAME, LIST, P0, P1, P2, P3, P4, P5, P6, ...)                                           \
    template <bool A_IS_MN_MAJOR, bool B_IS_MN_MAJOR, bool ADD = true>                                                 \
    WT_DEVICE void wgmma(f32 (&d)[N / 8][4], u64 a, u64 b, TYPE)                                                       \
    {                                                                                                                  \
        asm volatile(WT_WGMMA(N, 16, NAME) "{" LIST "}, " P0 ", " P1 ", " P2 ", 1, 1, " P3 ", " P4 ";"                 \
                     : __VA_ARGS__                                                                                     \
                     : "l"(a), "l"(b), "n"(ADD), "n"(A_IS_MN_MAJOR), "n"(B_IS_MN_MAJOR));                              \
    }                                                                                                                  \
    template <bool B_IS_MN_MAJOR, bool ADD = true>                                                                     \
    WT_DEVICE void wgmma(f32 (&d)[N / 8][4], const u32 (&a)[4], u64 b, TYPE)                                           \
    {                                                                                                                  \
        asm volatile(WT_WGMMA(N, 16, NAME) "{" LIST "}, {" P0 "," P1 "," P2 "," P3 "}, " P4 ", " P5 ", 1, 1, " P6 ";"  \
                     : __VA_ARGS__                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD), "n"(B_IS_MN_MAJOR));              \
    }

// The product of 64 x 8 and 8 x N elements, fp32 bits whose lower 13 the hardware ignores. Both operands are K-major. A may
// be in registers: those of each warp hold 16 rows, in the layout of mma.m16n8k8's A.
#define WT_DEFINE_TF32(N, LIST, A0, A1, A2, A3, A4, ...)                                                               \
    template <bool A_IS_MN_MAJOR, bool B_IS_MN_MAJOR>                                                                  \
    WT_DEVICE void wgmma(f32 (&d)[N / 8][4], u64 a, u64 b, f32)                                                        \
    {                                                                                                                  \
        static_assert(!A_IS_MN_MAJOR && !B_IS_MN_MAJOR, "tf32 operands are K-major");                                  \
        asm volatile(WT_WGMMA(N, 8, "tf32") "{" LIST "}, " A0 ", " A1 ", 1, 1, 1;"                                     \
                     : __VA_ARGS__                                                                                     \
                     : "l"(a), "l"(b));                                                                                \
    }                                                                                                                  \
    WT_DEVICE void wgmma_tf32(f32 (&d)[N / 8][4], const u32 (&a)[4], u64 b)                                            \
    {                                                                                                                  \
        asm volatile(WT_WGMMA(N, 8, "tf32") "{" LIST "}, {" A0 "," A1 "," A2 "," A3 "}, " A4 ", 1, 1, 1;"              \
                     : __VA_ARGS__                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
    }

#define WT_DEFINE_HALVES(TYPE, NAME)                                                                                   \
    WT_DEFINE_HALF(16, TYPE, NAME, WT_L8, "%8", "%9", "%10", "%11", "%12", "%13", "%14", WT_D4(0), WT_D4(4))           \
    WT_DEFINE_HALF(32, TYPE, NAME, WT_L16, "%16", "%17", "%18", "%19", "%20", "%21", "%22", WT_D16(0))                 \
    WT_DEFINE_HALF(64, TYPE, NAME, WT_L32, "%32", "%33", "%34", "%35", "%36", "%37", "%38", WT_D16(0), WT_D16(16))     \
    WT_DEFINE_HALF(96, TYPE, NAME, WT_L48, "%48", "%49", "%50", "%51", "%52", "%53", "%54", WT_D16(0), WT_D16(16), WT_D16(32)) \
    WT_DEFINE_HALF(128, TYPE, NAME, WT_L64, "%64", "%65", "%66", "%67", "%68", "%69", "%70", WT_D64(0))                \
    WT_DEFINE_HALF(160, TYPE, NAME, WT_L80, "%80", "%81", "%82", "%83", "%84", "%85", "%86", WT_D64(0), WT_D16(64))    \
    WT_DEFINE_HALF(192, TYPE, NAME, WT_L96, "%96", "%97", "%98", "%99", "%100", "%101", "%102", WT_D64(0), WT_D16(64), WT_D16(80)) \
    WT_DEFINE_HALF(256, TYPE, NAME, WT_L128, "%128", "%129", "%130", "%131", "%132", "%133", "%134", WT_D64(0), WT_D64(64))
WT_DEFINE_HALVES(f16, "f16")
WT_DEFINE_HALVES(bf16, "bf16")
WT_DEFINE_TF32(16, WT_L8, "%8", "%9", "%10", "%11", "%12", WT_D4(0), WT_D4(4))
WT_DEFINE_TF32(32, WT_L16, "%16", "%17", "%18", "%19", "%20", WT_D16(0))
WT_DEFINE_TF32(64, WT_L32, "%32", "%33", "%34", "%35", "%36", WT_D16(0), WT_D16(16))
WT_DEFINE_TF32(96, WT_L48, "%48", "%49", "%50", "%51", "%52", WT_D16(0), WT_D16(16), WT_D16(32))
WT_DEFINE_TF32(128, WT_L64, "%64", "%65", "%66", "%67", "%68", WT_D64(0))
WT_DEFINE_TF32(160, WT_L80, "%80", "%81", "%82", "%83", "%84", WT_D64(0), WT_D16(64))
WT_DEFINE_TF32(192, WT_L96, "%96", "%97", "%98", "%99", "%100", WT_D64(0), WT_D16(64), WT_D16(80))
WT_DEFINE_TF32(256, WT_L128, "%128", "%129", "%130", "%131", "%132", WT_D64(0), WT_D64(64))

#undef WT_DEFINE_HALVES
#undef WT_DEFINE_TF32
#undef WT_DEFINE_HALF
#undef WT_WGMMA
#undef WT_L128
#undef WT_L96
#undef WT_L80
#undef WT_L64
#undef WT_L48
#undef WT_L32
#undef WT_L16
#undef WT_L8
#undef WT_D64
#undef WT_D16
#undef WT_D4

}  // namespace wt::arch
