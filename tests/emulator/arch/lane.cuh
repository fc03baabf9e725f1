// SPDX-License-Identifier: Apache-2.0
//
// The emulated thread's index, shuffles between the lanes of a warp, byte permutation and barriers.

#pragma once

#include "arch/types.cuh"
#include "machine/machine.h"

namespace wt::arch {

// Index of the thread in its block. Warp's blocks are one-dimensional.
WT_DEVICE int thread_index() { return emulator::thread_index(); }
WT_DEVICE int opaque_thread_index() { return thread_index(); }

// Returns x of the lane whose index differs in the bits of mask. Every lane of the warp calls it.
template <class T>
WT_DEVICE T shuffle_xor(T x, int mask)
{
    T result;
    const int bytes = int(sizeof(T));
    const emulator::Kind kind = bytes == 4 ? emulator::Kind::shuffle_xor_f32 : emulator::Kind::shuffle_xor_f64;
    emulator::collective(kind, {&result, &x, &bytes, thread_index() ^ mask});
    return result;
}

// Returns x of a lane among WIDTH neighbours, a power of two. Every lane of the warp calls it.
template <class T>
WT_DEVICE T shuffle(T x, int lane, int width = 32)
{
    T result;
    const int bytes = int(sizeof(T)), first = emulator::thread_index() % 32 / width * width;
    emulator::collective(emulator::Kind::shuffle, {&result, &x, &bytes, first + lane % width});
    return result;
}

// Selects four of the eight bytes of two words by the four digits of the selector; b has the upper four bytes.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-prmt
WT_DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector)
{
    const u64 bytes = u64(b) << 32 | a;
    u32 result = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 digit = selector >> (4 * i) & 15u;
        const u32 byte = u32(bytes >> (8 * (digit & 7u))) & 255u;
        const u32 replicated_sign = byte & 128u ? 255u : 0u;
        result |= (digit & 8u ? replicated_sign : byte) << (8 * i);
    }
    return result;
}

// Waits for every thread of the block and makes their writes to shared memory visible.
WT_DEVICE void block_barrier() { emulator::collective(emulator::Kind::barrier, {nullptr, nullptr, nullptr, 0}); }

// Waits for every lane of the warp and makes their writes to shared memory visible to each other.
WT_DEVICE void warp_barrier() { emulator::collective(emulator::Kind::warp_barrier, {nullptr, nullptr, nullptr, 0}); }

}  // namespace wt::arch
