// SPDX-License-Identifier: Apache-2.0
//
// Tensor copies from global to shared memory, and the mbarriers that count their bytes. sm_90.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier
//
// One thread starts a copy of a whole tile. A phase of an mbarrier completes when all its arrivals and all bytes that they
// expect have arrived. The number of transaction bytes may be below zero before, if copies complete before the arrival.
// Addresses of shared memory are those of __cvta_generic_to_shared(). An mbarrier has 8 bytes, aligned to 8 bytes.

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// Initializes an mbarrier, whose phase 0 is then incomplete. Each phase takes `arrivals` arrivals: mbarrier.init.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-init
WT_DEVICE void mbarrier_initialize(u32 mbarrier, u32 arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(mbarrier), "r"(arrivals) : "memory");
}

// Makes the mbarriers that this thread has initialized visible to tensor copies: fence.mbarrier_init. The other threads
// need a barrier.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar
WT_DEVICE void fence_initialized_mbarriers() { asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory"); }

// Ends an mbarrier, so that its memory can be used otherwise: mbarrier.inval. No thread may wait for it, and no copy may be
// in flight to it.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-inval
WT_DEVICE void mbarrier_invalidate(u32 mbarrier)
{
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" : : "r"(mbarrier) : "memory");
}

// Makes the present phase wait for so many more bytes of copies, and arrives at it: mbarrier.arrive.expect_tx.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
WT_DEVICE void mbarrier_arrive_and_expect(u32 mbarrier, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(mbarrier), "r"(bytes) : "memory");
}

// Waits for the present phase if it has this parity, else for none: mbarrier.try_wait.parity. The parity of phase i is i % 2.
// Afterwards this thread, and wgmma without a proxy fence, may read the bytes of the phase's copies. With .acquire.cluster,
// products took 30 % longer (not on record).
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait
WT_DEVICE void mbarrier_wait(u32 mbarrier, u32 parity)
{
    asm volatile("{\n"  // the scope of the labels
                 ".reg .pred complete;\n"
                 "WAIT:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
                 "@complete bra DONE;\n"
                 "bra WAIT;\n"
                 "DONE:\n"
                 "}"
                 :
                 : "r"(mbarrier), "r"(parity)
                 : "memory");
}

// Arrives at the present phase: mbarrier.arrive.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
WT_DEVICE void mbarrier_arrive(u32 mbarrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(mbarrier) : "memory");
}

// Loads a tensor map, an object of 128 bytes that is aligned to 64, before the first copy needs it: prefetch.tensormap.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prefetch-prefetchu
WT_DEVICE void prefetch_tensor_map(const void* map)
{
    asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
}

// Starts a copy of a map's box, which begins at the given coordinates, the innermost first: cp.async.bulk.tensor. Elements
// outside of the tensor are zeros, and count as bytes of the copy. `to` is aligned to 128 bytes. Sixteen-byte vectors are
// permuted by bits 7 and up of their address in shared memory, so a pattern begins at a multiple of 8 rows of 32, 64 or 128
// bytes. Between earlier accesses to these bytes and the copy lies a barrier.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor
WT_DEVICE void copy_tensor(u32 to, const void* map, u32 mbarrier, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :
                 : "r"(to), "l"(map), "r"(x), "r"(y), "r"(mbarrier)
                 : "memory");
}

WT_DEVICE void copy_tensor(u32 to, const void* map, u32 mbarrier, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 :
                 : "r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(mbarrier)
                 : "memory");
}

WT_DEVICE void copy_tensor(u32 to, const void* map, u32 mbarrier, int x, int y, int z, int u)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6];"
                 :
                 : "r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(mbarrier)
                 : "memory");
}

WT_DEVICE void copy_tensor(u32 to, const void* map, u32 mbarrier, int x, int y, int z, int u, int v)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
                 :
                 : "r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(mbarrier)
                 : "memory");
}

}  // namespace wt::arch
