// SPDX-License-Identifier: Apache-2.0
//
// The thread's index, shuffles between the lanes of a warp, byte permutation and barriers.

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// Index of the thread in its block. Warp's blocks are one-dimensional.
WT_DEVICE int thread_index() { return int(threadIdx.x); }

// The same index, hidden from the compiler: it computes what depends on the index where it is used, and keeps nothing of it in
// registers over a loop.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mov
WT_DEVICE int opaque_thread_index()
{
    int same;
    asm volatile("mov.b32 %0, %1;" : "=r"(same) : "r"(thread_index()));
    return same;
}

// Returns x of the lane whose index differs in the bits of mask. Every lane of the warp calls it.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-shfl-sync
WT_DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
WT_DEVICE double shuffle_xor(double x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }

// Returns x of a lane among WIDTH neighbours, a power of two. Every lane of the warp calls it.
WT_DEVICE float shuffle(float x, int lane, int width = 32) { return __shfl_sync(0xffffffffu, x, lane, width); }
WT_DEVICE double shuffle(double x, int lane, int width = 32) { return __shfl_sync(0xffffffffu, x, lane, width); }

// Selects four of the eight bytes of two words by the four digits of the selector; b has the upper four bytes.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prmt
WT_DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

// Waits for every thread of the block and makes their writes to shared memory visible.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
WT_DEVICE void block_barrier() { __syncthreads(); }

// Waits for every lane of the warp and makes their writes to shared memory visible to each other.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar-warp-sync
WT_DEVICE void warp_barrier() { __syncwarp(); }

}  // namespace wt::arch
