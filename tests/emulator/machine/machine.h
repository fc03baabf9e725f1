// SPDX-License-Identifier: Apache-2.0
//
// The functions that ../arch calls to emulate device code. This header includes no standard headers, because every
// generated translation unit includes it.

#pragma once

namespace wt::emulator {

// Collective instructions. All lanes of the warp, or all threads of the block, arrive before any continues.
enum class Kind : int {
    none,
    barrier,
    shuffle_xor_f32, shuffle_xor_f64,
    shuffle,       // and these: a: the value, mask: the source lane, b: pointer to the number of bytes, an int
    ballot,        // mask: the vote
    warp_barrier,
    ldmatrix_x2_trans,
    ldmatrix_x4_trans,
    ldmatrix_x4,
    mma_m16n8k16_f16,
    mma_m16n8k16_bf16,
    mma_m16n8k8_f16,
    mma_m16n8k8_tf32,
    mma_m8n8k4_f64,
    mma_m16n8k8_f64,
    wgmma,         // result: the sums, a: an AsyncProduct, b: the lane's four registers of A, or null
    wgmma_commit,
    wgmma_wait,    // mask: groups that may stay pending
    mbarrier_wait, // a: the 32-bit address, mask: the parity. Each thread waits alone.
    cluster_wait,  // Each thread waits alone.
    named_barrier, // mask: its number and 16 times the number of threads. Only the warps that it names wait.
    keep_registers, take_registers, // mask: their number
    exit,
};

// The operands of one lane, in its own memory
struct Operands {
    void* result;
    const void* a;
    const void* b;
    int mask;
};

// The operands of a wgmma
enum class AsyncType : unsigned char { f16, bf16, tf32 };

struct AsyncProduct {
    unsigned long long a, b;  // matrix descriptors
    int n;
    bool a_is_mn_major, b_is_mn_major, a_is_in_registers;
    AsyncType type;
};

void collective(Kind kind, const Operands& operands);
void load(void* to, const void* address, int bytes);
void store(void* address, const void* from, int bytes);
int thread_index();

float float_of_f16(unsigned short bits);
unsigned short f16_of(double x);
unsigned short bf16_of(double x);
float float_of_bits(unsigned int bits);
unsigned int bits_of_float(float x);

// The function that every thread of a block calls, with alpha, A, B, beta and C
using Kernel = void (*)(void*, void*, void*, void*, void*);
extern const Kernel kernels[];
extern const int kernel_count;

}  // namespace wt::emulator
