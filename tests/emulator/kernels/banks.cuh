// SPDX-License-Identifier: Apache-2.0
//
// Functions of one warp with known bank conflicts.

#pragma once

#include "arch/lane.cuh"
#include "arch/ldmatrix.cuh"
#include "arch/memory.cuh"

namespace banks {

// Lane l reads N elements of A, from element l * Stride on, if l is a multiple of Every.
template <class T, int N, int Stride, int Every = 1>
void load(void*, void* a, void*, void*, void*)
{
    const int lane = wt::arch::thread_index();
    if (lane % Every == 0) wt::arch::load<N>(wt::arch::in_shared<const T>(a) + lane * Stride);
}

// Lane l writes N elements of C, from element l * Stride on.
template <class T, int N, int Stride>
void store(void*, void*, void*, void*, void* c)
{
    wt::arch::store(wt::arch::in_shared<T>(c) + wt::arch::thread_index() * Stride, wt::Vector<T, N>{});
}

// Lane l reads N elements of A, from the l-th offset on.
template <class T, int N, int... Offsets>
void gather(void*, void* a, void*, void*, void*)
{
    const int offsets[] = {Offsets...};
    wt::arch::load<N>(wt::arch::in_shared<const T>(a) + offsets[wt::arch::thread_index()]);
}

// Lane l passes the address of the row that starts at element l * Stride of A.
template <int Matrices, int Stride>
void matrices(void*, void* a, void*, void*, void*)
{
    wt::u32 result[Matrices];
    wt::arch::ldmatrix_transposed(result, wt::arch::in_shared<const wt::f16>(a) + wt::arch::thread_index() * Stride);
}

// Even lanes load element l and then l + 32; odd lanes load them in reverse order. Each instruction mixes both.
template <class T>
void alternating(void*, void* a, void*, void*, void*)
{
    const int lane = wt::arch::thread_index(), odd = lane % 2;
    for (int i = 0; i < 2; ++i) wt::arch::load<1>(wt::arch::in_shared<const T>(a) + lane + 32 * (i ^ odd));
}

// Odd lanes load once more than even lanes. The collective aligns them again.
inline void realigned(void*, void* a, void*, void*, void*)
{
    const float* const from = wt::arch::in_shared<const float>(a);
    const int lane = wt::arch::thread_index();
    if (lane % 2) wt::arch::load<1>(from + 32 * lane);
    wt::arch::shuffle_xor(1.0f, 1);
    wt::arch::load<1>(from + lane);
}

}  // namespace banks
