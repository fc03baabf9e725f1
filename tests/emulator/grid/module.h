// SPDX-License-Identifier: Apache-2.0
//
// The functions that an emulated module calls besides those of machine.h. This header includes no standard headers.

#pragma once

#include "machine/machine.h"

namespace wt::emulator {

struct Index {
    unsigned x, y, z;
};

// The indices of the running thread and the sizes of the launch
extern Index threadIdx, blockIdx, blockDim, gridDim;

// Ends the launch with a message.
[[noreturn]] void fail(const char* text, const char* file, int line);

// Every lane of the warp must take part in these. A mask of fewer lanes is not emulated and is an error.
void warp_barrier(unsigned lanes);
unsigned ballot(unsigned lanes, bool vote);
void shuffle(unsigned lanes, void* result, const void* value, int bytes, int source);
unsigned active_lanes();

// Conversions between pointers and 32-bit addresses of shared memory
bool is_global(const void* pointer);
constexpr unsigned long shared_start = 1024;  // of dynamic shared memory; sm_90 reserves the first 1 KB
unsigned long shared_address(const void* pointer);
void* shared_pointer(unsigned long address);

// Checks an atomic access to shared or global memory.
void atomic(void* address, int bytes);
void fence();        // __threadfence
void fence_proxy();  // fence.proxy.async
void fence_wgmma();  // wgmma.fence

// red.global.add.v4: adds four floats, or four pairs of 16-bit numbers, each atomically.
void vector_add_f32(void* to, float a, float b, float c, float d);
void vector_add_f16x2(void* to, unsigned a, unsigned b, unsigned c, unsigned d);
void vector_add_bf16x2(void* to, unsigned a, unsigned b, unsigned c, unsigned d);

// cp.async: reads `valid_bytes` and fills the rest with zeros. The bytes arrive in wait_for_copies() and not before.
void start_copy(unsigned to, const void* from, int bytes, int valid_bytes);
void commit_copies();
void wait_for_copies(int pending = 0);  // groups that may stay pending; 0 waits for all copies

// mbarriers and tensor copies, whose bytes arrive in wait_for_phase() and not before
void start_mbarrier(unsigned mbarrier, unsigned arrivals);
void end_mbarrier(unsigned mbarrier);
void fence_mbarriers();
void arrive_and_expect(unsigned mbarrier, unsigned bytes);
void arrive_at_block(unsigned mbarrier);
unsigned address_of_block(unsigned address, unsigned block);
void arrive_at_cluster();
void wait_for_cluster();
void wait_for_phase(unsigned mbarrier, unsigned parity);
void start_tensor_copy(unsigned to, const void* map, unsigned mbarrier, const int* start, int rank);
void start_tensor_copy_to_blocks(unsigned to, const void* map, unsigned mbarrier, const int* start, int rank, unsigned blocks);
void check_tensor_map(const void* map);

// Tensor copies to global memory, whose bytes arrive at the end of the block
void start_tensor_store(const void* map, const int* start, int rank, unsigned from);
void commit_tensor_stores();
void wait_for_tensor_stores(int pending);  // groups that may still read shared memory

void named_barrier(int number, int threads);
void set_registers(int count, bool takes);

// A function that every thread of the grid calls with the addresses of its arguments
struct ModuleKernel {
    const char* name;
    void (*call)(void** arguments);
};
extern const ModuleKernel module_kernels[];
extern const int module_kernel_count;

}  // namespace wt::emulator
