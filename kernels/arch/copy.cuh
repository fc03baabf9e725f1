// SPDX-License-Identifier: Apache-2.0
//
// Async copies from global to shared memory, vector reductions in global memory, and address arithmetic for both.
// Addresses of shared memory are those of __cvta_generic_to_shared().

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// Computes x * y + z in one instruction: mad.wide.s32. Otherwise the compiler keeps parts of it in registers over a loop.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-mad
WT_DEVICE char* mad_wide(int x, int y, char* z)
{
    char* sum;
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(sum) : "r"(x), "r"(y), "l"(z));
    return sum;
}

// Returns x. The compiler does not know it, so it computes values from the result where they are used. It would compute them
// before a loop otherwise, and keep them in registers.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mov
WT_DEVICE int opaque(int x)
{
    int same;
    asm volatile("mov.b32 %0, %1;" : "=r"(same) : "r"(x));
    return same;
}

// Starts an async copy of 16 bytes that bypasses L1: cp.async.cg, sm_80.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
WT_DEVICE void copy_async_16(u32 to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
}

// The same if `condition` is not zero, without a branch.
WT_DEVICE void copy_async_16_if(int condition, u32 to, const void* from)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p cp.async.cg.shared.global [%1], [%2], 16; }"
                 :
                 : "r"(condition), "r"(to), "l"(from)
                 : "memory");
}

// Starts an async copy of an element of 4 or 8 bytes: cp.async.ca, sm_80. It reads `valid_bytes` and fills the rest with
// zeros.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
template <int BYTES>
WT_DEVICE void copy_async(u32 to, const void* from, u32 valid_bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(to), "l"(from), "n"(BYTES), "r"(valid_bytes)
                 : "memory");
}

// Starts an async copy of 16 bytes that bypasses L1. It reads `valid_bytes` and fills the rest with zeros.
WT_DEVICE void copy_async_16(u32 to, const void* from, u32 valid_bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(valid_bytes) : "memory");
}

// Makes a group of the copies that this thread started since its last group: cp.async.commit_group, sm_80.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-commit-group
WT_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Waits for the groups of this thread except its last PENDING ones: cp.async.wait_group, sm_80.
template <int PENDING>
WT_DEVICE void wait_for_copy_groups()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}

// Waits for the async copies of this thread alone: cp.async.wait_all, sm_80.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-wait-all
WT_DEVICE void wait_for_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

// Adds four floats to global memory, each atomically: red.global.add.v4.f32, sm_90. The arguments are their bits.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-red
WT_DEVICE void add_4_f32(void* to, u32 a, u32 b, u32 c, u32 d)
{
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(to), "f"(__uint_as_float(a)), "f"(__uint_as_float(b)), "f"(__uint_as_float(c)),
                   "f"(__uint_as_float(d))
                 : "memory");
}

// The same for four pairs of halves: red.global.add.noftz.v4.f16x2, sm_90.
WT_DEVICE void add_4_f16x2(void* to, u32 a, u32 b, u32 c, u32 d)
{
    asm volatile("red.relaxed.gpu.global.add.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// The same for four pairs of bfloat16: red.global.add.noftz.v4.bf16x2, sm_90.
WT_DEVICE void add_4_bf16x2(void* to, u32 a, u32 b, u32 c, u32 d)
{
    asm volatile("red.relaxed.gpu.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

}  // namespace wt::arch
