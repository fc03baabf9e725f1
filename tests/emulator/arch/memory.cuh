// SPDX-License-Identifier: Apache-2.0
//
// Shared memory of the emulated block, and predicated stores. Every access is checked, and those to shared memory are counted.

#pragma once

#include "arch/types.cuh"
#include "machine/machine.h"

namespace wt::arch {

template <class T>
WT_DEVICE T* in_shared(void* pointer) { return static_cast<T*>(pointer); }

// Reads N elements at once. The address is a multiple of N * sizeof(T).
template <int N, class T>
WT_DEVICE Vector<T, N> load(const T* address)
{
    Vector<T, N> result;
    emulator::load(&result, address, static_cast<int>(sizeof(result)));
    return result;
}

template <int N, class T>
WT_DEVICE void store(T* address, const Vector<T, N>& value)
{
    emulator::store(address, &value, static_cast<int>(sizeof(value)));
}

WT_DEVICE void store_global_if(bool condition, void* address, const Vector<u32, 4>& value)
{
    if (condition)
        store(static_cast<u32*>(address), value);
}

}  // namespace wt::arch
