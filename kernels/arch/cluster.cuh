// SPDX-License-Identifier: Apache-2.0
//
// Clusters of blocks: tensor copies to several blocks, arrivals at mbarriers of another block, and the barrier of a cluster. sm_90.
// https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/cluster-launch-control.html
//
// Addresses of shared memory are those of __cvta_generic_to_shared(). All blocks of a cluster have the same layout of shared memory.

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// Starts a copy of a map's box to the blocks whose bits are set in `blocks`, to the same place in the shared memory of each. The bytes
// arrive at the mbarrier at the same place: cp.async.bulk.tensor with .multicast::cluster. See copy_tensor().
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
WT_DEVICE void copy_tensor_to_blocks(u32 to, const void* map, u32 mbarrier, int x, int y, int z, u16 blocks)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;"
                 :
                 : "r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(mbarrier), "h"(blocks)
                 : "memory");
}

// The address of another block's shared memory that corresponds to an address of this block's: mapa.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-mapa
WT_DEVICE u32 shared_address_of_block(u32 address, u32 block)
{
    u32 found;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(address), "r"(block));
    return found;
}

// Arrives at the present phase of an mbarrier of any block of the cluster.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
WT_DEVICE void mbarrier_arrive_at_block(u32 mbarrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" : : "r"(mbarrier) : "memory");
}

// The barrier of all threads of a cluster. No block may use the shared memory of another one before it has started, or after it has ended.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster
WT_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" : : : "memory"); }
WT_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" : : : "memory"); }

}  // namespace wt::arch
