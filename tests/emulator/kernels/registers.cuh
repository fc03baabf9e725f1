// SPDX-License-Identifier: Apache-2.0
//
// Collectives whose registers the tiles hold: A has a row of registers per instruction and lane, B has a row per lane,
// and C has a row per instruction and lane, which is read and written.

#pragma once

#include "arch/convert.cuh"
#include "arch/lane.cuh"
#include "arch/ldmatrix.cuh"
#include "arch/memory.cuh"
#include "arch/mma.cuh"

namespace registers {

template <class Register, int ACount, int BCount, class Result, int CCount, class Instruction>
void repeat(int count, void* a, void* b, void* c, Instruction instruction)
{
    using namespace wt::arch;
    const int lane = thread_index();
    const Register* const from_a = in_shared<const Register>(a);
    const Register* const from_b = in_shared<const Register>(b);
    Result* const to = in_shared<Result>(c);
    for (int i = 0; i < count; ++i) {
        Register as[ACount], bs[BCount];
        Result cs[CCount];
        for (int r = 0; r < ACount; ++r) as[r] = load<1>(from_a + (i * 32 + lane) * ACount + r).at[0];
        for (int r = 0; r < BCount; ++r) bs[r] = load<1>(from_b + lane * BCount + r).at[0];
        for (int r = 0; r < CCount; ++r) cs[r] = load<1>(to + (i * 32 + lane) * CCount + r).at[0];
        instruction(cs, as, bs);
        for (int r = 0; r < CCount; ++r) store<1>(to + (i * 32 + lane) * CCount + r, {cs[r]});
    }
}

// The counts are those of registers in A, B and C. The call has d, x and y.
#define WT_REGISTERS(name, Register, a_count, b_count, Result, c_count, call)                                          \
    template <int Count> void name(void*, void* a, void* b, void*, void* c)                                            \
    {                                                                                                                  \
        const auto instruction = [](auto& d, auto& x, auto& y) { wt::arch::call; };                                    \
        repeat<Register, a_count, b_count, Result, c_count>(Count, a, b, c, instruction);                              \
    }
WT_REGISTERS(mma_m16n8k16_f16, wt::u32, 4, 2, float, 4, mma_m16n8k16(d, x, y, wt::f16{}))
WT_REGISTERS(mma_m16n8k16_bf16, wt::u32, 4, 2, float, 4, mma_m16n8k16(d, x, y, wt::bf16{}))
WT_REGISTERS(mma_m16n8k8_f16, wt::u32, 2, 1, float, 4, mma_m16n8k8(d, x, y, wt::f16{}))
WT_REGISTERS(mma_m16n8k8_tf32, wt::u32, 4, 2, float, 4, mma_m16n8k8_tf32(d, x, y))
WT_REGISTERS(mma_m8n8k4_f64, double, 1, 1, double, 2, mma_m8n8k4(d, x[0], y[0]))
WT_REGISTERS(mma_m16n8k8_f64, double, 4, 2, double, 4, mma_m16n8k8(d, x, y))
#undef WT_REGISTERS

// Lane l passes the address of row l of A, and writes row l of C.
template <int Matrices>
void ldmatrix(void*, void* a, void*, void*, void* c)
{
    const int lane = wt::arch::thread_index();
    wt::u32 words[Matrices];
    wt::arch::ldmatrix_transposed(words, wt::arch::in_shared<const wt::f16>(a) + 8 * lane);
    wt::u32* const to = wt::arch::in_shared<wt::u32>(c) + Matrices * lane;
    for (int i = 0; i < Matrices; ++i) wt::arch::store<1>(to + i, {words[i]});
}

template <class T, int Mask>
void shuffle_xor(void*, void* a, void*, void*, void* c)
{
    const int lane = wt::arch::thread_index();
    const T value = wt::arch::load<1>(wt::arch::in_shared<const T>(a) + lane).at[0];
    wt::arch::store<1>(wt::arch::in_shared<T>(c) + lane, {wt::arch::shuffle_xor(value, Mask)});
}

// C = alpha + beta, in every thread
template <class T>
void scalars(void* alpha, void*, void*, void* beta, void* c)
{
    const int thread = wt::arch::thread_index();
    wt::arch::store<1>(wt::arch::in_shared<T>(c) + thread, {*static_cast<T*>(alpha) + *static_cast<T*>(beta)});
}

// Each thread converts one element.
template <class To, class From>
void convert(void*, void* a, void*, void*, void* c)
{
    const int thread = wt::arch::thread_index();
    const From value = wt::arch::load<1>(wt::arch::in_shared<const From>(a) + thread).at[0];
    wt::arch::store<1>(wt::arch::in_shared<To>(c) + thread, {wt::arch::Convert<To, From>::of(value)});
}

// Each thread permutes the bytes of two neighbouring words of A.
template <unsigned Selector>
void permute(void*, void* a, void*, void*, void* c)
{
    const wt::u32* const from = wt::arch::in_shared<const wt::u32>(a);
    const int thread = wt::arch::thread_index();
    const wt::u32 low = wt::arch::load<1>(from + 2 * thread).at[0];
    const wt::u32 high = wt::arch::load<1>(from + 2 * thread + 1).at[0];
    wt::arch::store<1>(wt::arch::in_shared<wt::u32>(c) + thread, {wt::arch::permute_bytes(low, high, Selector)});
}

}  // namespace registers
