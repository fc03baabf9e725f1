// SPDX-License-Identifier: Apache-2.0
//
// Who a thread is, and what lanes of a warp tell each other.

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// Index of the thread in its block, which Warp makes one-dimensional
WT_DEVICE int thread_index() { return int(threadIdx.x); }

// Value of the lane whose index differs in the bits of mask; every lane of the warp takes part.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-shfl-sync
WT_DEVICE float exchange(float value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
WT_DEVICE double exchange(double value, int mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }

// Four of the eight bytes of two words (b the upper four), chosen by four selector digits.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prmt
WT_DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

// Waits for every thread of the block, and makes their writes to shared memory visible.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
WT_DEVICE void block_barrier() { __syncthreads(); }

}  // namespace wt::arch
