// SPDX-License-Identifier: Apache-2.0
//
// Tensor copies from shared to global memory, and the registers of warpgroups. sm_90a.

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// Starts a copy of a map's box from shared memory to the tensor, in the present group of this thread. Elements outside of the
// tensor are not written. Before it, the writers of these bytes need fence_for_wgmma() and a barrier.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
WT_DEVICE void store_tensor(const void* map, u32 from, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 :
                 : "l"(map), "r"(x), "r"(y), "r"(z), "r"(from)
                 : "memory");
}

// Ends the present group of copies: cp.async.bulk.commit_group.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-commit-group
WT_DEVICE void commit_tensor_stores() { asm volatile("cp.async.bulk.commit_group;" : : : "memory"); }

// Waits until shared memory is no longer read by the groups of this thread except its last PENDING ones:
// cp.async.bulk.wait_group.read.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-wait-group
template <int PENDING> WT_DEVICE void wait_for_tensor_stores()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(PENDING) : "memory");
}

// Gives registers of this warpgroup back, or takes those that others gave back: setmaxnreg.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
template <int COUNT> WT_DEVICE void keep_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(COUNT) : "memory");
}

template <int COUNT> WT_DEVICE void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(COUNT) : "memory");
}

// Waits for so many threads, of whole warps. Barrier 0 is that of the block.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
template <int THREADS> WT_DEVICE void named_barrier(int number)
{
    asm volatile("bar.sync %0, %1;" : : "r"(number), "n"(THREADS) : "memory");
}

WT_DEVICE void warpgroup_barrier(int group) { named_barrier<128>(1 + group); }

}  // namespace wt::arch
