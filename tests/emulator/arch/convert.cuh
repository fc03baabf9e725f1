// SPDX-License-Identifier: Apache-2.0
//
// Conversions between stored and computed types on the host. All round to nearest even.

#pragma once

#include "arch/types.cuh"
#include "machine/machine.h"

namespace wt::arch {

WT_DEVICE double exact(f16 x) { return double(emulator::float_of_f16(x.bits)); }
WT_DEVICE double exact(bf16 x) { return double(emulator::float_of_bits(u32(x.bits) << 16)); }
WT_DEVICE double exact(double x) { return x; }

WT_DEVICE void round_to(double& to, double x) { to = x; }
WT_DEVICE void round_to(float& to, double x) { to = static_cast<float>(x); }
WT_DEVICE void round_to(f16& to, double x) { to = {emulator::f16_of(x)}; }
WT_DEVICE void round_to(bf16& to, double x) { to = {emulator::bf16_of(x)}; }

template <class To, class From>
struct Convert {
    static WT_DEVICE To of(From x)
    {
        To to;
        round_to(to, exact(x));
        return to;
    }
};

template <class T>
struct Convert<T, T> {
    static WT_DEVICE T of(T x) { return x; }
};

// Packs two 16-bit values into one word, the first into the lower half.
template <class T>
WT_DEVICE u32 pack(T low, T high) { return u32(low.bits) | u32(high.bits) << 16; }

WT_DEVICE u32 bits_of(float x) { return emulator::bits_of_float(x); }
WT_DEVICE float float_of(u32 x) { return emulator::float_of_bits(x); }

template <class T>
WT_DEVICE u32 pack_rounded(float low, float high)
{
    return pack(Convert<T, float>::of(low), Convert<T, float>::of(high));
}

// Truncates a float as the tensor cores do when they read it as tf32: mantissa bits 0 to 12 become zero.
WT_DEVICE float truncate_to_tf32(float x) { return float_of(bits_of(x) & 0xffffe000u); }

}  // namespace wt::arch
