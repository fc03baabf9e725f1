// SPDX-License-Identifier: Apache-2.0
//
// XOR swizzle: where lanes would conflict in a bank, a lane with swizzle x accesses stage buffer s ^ x in place of stage buffer
// s. Afterwards each lane puts its registers in order, with one select per register and bit of x.

#pragma once

#include "arch/types.cuh"

namespace wt::tile {

template <class T>
WT_DEVICE T select(bool second, T a, T b)
{
    return second ? b : a;
}

template <class T, int N>
WT_DEVICE Vector<T, N> select(bool second, const Vector<T, N>& a, const Vector<T, N>& b)
{
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        using Words = Vector<u32, N / 2>;
        const Words chosen = select(second, __builtin_bit_cast(Words, a), __builtin_bit_cast(Words, b));
        return __builtin_bit_cast(Vector<T, N>, chosen);
    } else {
        Vector<T, N> result;
#pragma unroll
        for (int i = 0; i < N; ++i)
            result.at[i] = second ? b.at[i] : a.at[i];
        return result;
    }
}

// Moves stage buffer s to stage buffer s ^ swizzle, for swizzle < Ways and every s < Stage buffers.
template <int Ways, int Slots, class T>
WT_DEVICE void unswizzle(T (&buffers)[Slots], int swizzle)
{
    static_assert((Ways & (Ways - 1)) == 0 && Slots % Ways == 0, "Ways must be a power of two that divides Slots");
#pragma unroll
    for (int bit = 1; bit < Ways; bit *= 2) {
        const bool swap = (swizzle & bit) != 0;
#pragma unroll
        for (int s = 0; s < Slots; ++s) {
            if ((s & bit) == 0) {
                const T low = buffers[s], high = buffers[s ^ bit];
                buffers[s] = select(swap, low, high);
                buffers[s ^ bit] = select(swap, high, low);
            }
        }
    }
}

// Returns how many low bits of a row index the swizzle skips. Rows of row_bytes that differ only in these bits lie in
// different banks.
WT_DEVICE constexpr int swizzle_shift(int row_bytes)
{
    return row_bytes % 128 == 0 ? 0 : row_bytes % 64 == 0 ? 1 : row_bytes % 32 == 0 ? 2 : 3;
}

}  // namespace wt::tile
