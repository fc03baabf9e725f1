// SPDX-License-Identifier: Apache-2.0
//
// Stored element types, and the qualifier of all device functions in this folder.

#pragma once

#define WT_DEVICE __device__ __forceinline__

namespace wt {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using f32 = float;  // generated sources define float(x) as a macro, and so need another name before a parenthesis

// IEEE 754 binary16
struct f16 {
    u16 bits;
};

// The upper half of an IEEE 754 binary32
struct bf16 {
    u16 bits;
};

// N elements that one instruction moves
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
    T at[N];
};

template <class T, class U>
inline constexpr bool same = false;
template <class T>
inline constexpr bool same<T, T> = true;

}  // namespace wt
