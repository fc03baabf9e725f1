// SPDX-License-Identifier: Apache-2.0
//
// What a whole emulated module asks of the machine, besides what templates do. Free of standard headers.

#pragma once

#include "machine/machine.h"

namespace wt::emulator {

struct Index {
    unsigned x, y, z;
};

// Of the thread that runs
extern Index threadIdx, blockIdx, blockDim, gridDim;

// Ends the launch with a message.
[[noreturn]] void fail(const char* text, const char* file, int line);

// Every lane of the warp takes part in these; a mask of fewer lanes is an error, because it is not emulated.
void meet(unsigned lanes);
unsigned ballot(unsigned lanes, bool vote);
void shuffle(unsigned lanes, void* result, const void* value, int bytes, int source);
unsigned active_lanes();

// Addresses of shared memory as 32-bit numbers, and back
bool is_global(const void* pointer);
constexpr unsigned long shared_start = 1024;  // where dynamic shared memory starts; sm_90 keeps the first 1 KB
unsigned long shared_address(const void* pointer);
void* shared_pointer(unsigned long address);

// Checks an atomic access to shared or global memory.
void atomic(void* address, int bytes);

// red.global.add.v4: four floats, or four pairs of 16-bit numbers, each added by itself
void vector_add_f32(void* to, float a, float b, float c, float d);
void vector_add_f16x2(void* to, unsigned a, unsigned b, unsigned c, unsigned d);
void vector_add_bf16x2(void* to, unsigned a, unsigned b, unsigned c, unsigned d);

// cp.async: the bytes arrive in wait_for_copies() and not before. Behind the `there` bytes that are read lie zeros.
void start_copy(unsigned to, const void* from, int bytes, int there);
void wait_for_copies();

// A function that every thread of the grid calls, with addresses of its arguments
struct ModuleKernel {
    const char* name;
    void (*call)(void** arguments);
};
extern const ModuleKernel module_kernels[];
extern const int module_kernel_count;

}  // namespace wt::emulator
