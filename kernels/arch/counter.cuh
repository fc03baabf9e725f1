// SPDX-License-Identifier: Apache-2.0
//
// Counters in global memory by which blocks find out which of them is the last. sm_70.

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// Adds 1 to a counter, and returns its previous value. What barriers order before it in this block is visible behind the additions of other
// blocks that come later, and their barriers: atom.acq_rel.gpu.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom
WT_DEVICE int count_arrival(int* counter)
{
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

}  // namespace wt::arch
