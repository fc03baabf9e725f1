// SPDX-License-Identifier: Apache-2.0
//
// Conversions between stored and computed types on the host. All round to nearest even.

#pragma once

#include "arch/types.cuh"
#include "machine/machine.h"

namespace wt::arch {

template <class To, class From>
struct Convert;

template <class T>
struct Convert<T, T> {
    static WT_DEVICE T of(T x) { return x; }
};

template <>
struct Convert<float, f16> {
    static WT_DEVICE float of(f16 x) { return emulator::float_of_f16(x.bits); }
};

template <>
struct Convert<float, bf16> {
    static WT_DEVICE float of(bf16 x) { return emulator::float_of_bits(u32(x.bits) << 16); }
};

template <>
struct Convert<float, double> {
    static WT_DEVICE float of(double x) { return static_cast<float>(x); }
};

template <class From>
struct Convert<double, From> {
    static WT_DEVICE double of(From x) { return double(Convert<float, From>::of(x)); }
};

template <>
struct Convert<double, double> {
    static WT_DEVICE double of(double x) { return x; }
};

template <>
struct Convert<f16, float> {
    static WT_DEVICE f16 of(float x) { return {emulator::f16_of(double(x))}; }
};

template <>
struct Convert<f16, double> {
    static WT_DEVICE f16 of(double x) { return {emulator::f16_of(x)}; }
};

template <>
struct Convert<bf16, float> {
    static WT_DEVICE bf16 of(float x) { return {emulator::bf16_of(double(x))}; }
};

template <>
struct Convert<bf16, double> {
    static WT_DEVICE bf16 of(double x) { return {emulator::bf16_of(x)}; }
};

// Packs two 16-bit values into one word, the first into the lower half.
template <class T>
WT_DEVICE u32 pack(T low, T high)
{
    return u32(low.bits) | u32(high.bits) << 16;
}

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
