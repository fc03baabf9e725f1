// SPDX-License-Identifier: Apache-2.0
//
// Shared memory, and predicated stores to global memory. Operands are generic pointers. Converting them to the shared state
// space and back tells the compiler the state space, so plain loads and stores become ld.shared and st.shared.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvta

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

template <class T>
WT_DEVICE T* in_shared(void* pointer)
{
    return static_cast<T*>(__cvta_shared_to_generic(__cvta_generic_to_shared(pointer)));
}

// Reads N elements at once. The address is a multiple of N * sizeof(T).
template <int N, class T>
WT_DEVICE Vector<T, N> load(const T* address)
{
    return *reinterpret_cast<const Vector<T, N>*>(address);
}

template <int N, class T>
WT_DEVICE void store(T* address, const Vector<T, N>& value)
{
    *reinterpret_cast<Vector<T, N>*>(address) = value;
}

// Stores 16 bytes if a condition holds, by an instruction with a predicate in place of a branch. The address is one of global memory.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st
WT_DEVICE void store_global_if(bool condition, void* address, const Vector<u32, 4>& value)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.v4.b32 [%1], {%2,%3,%4,%5}; }"
                 :
                 : "r"(u32(condition)), "l"(address), "r"(value.at[0]), "r"(value.at[1]), "r"(value.at[2]), "r"(value.at[3])
                 : "memory");
}

}  // namespace wt::arch
