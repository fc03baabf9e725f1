// SPDX-License-Identifier: Apache-2.0
//
// Conversions between stored and computed types. All round to nearest even.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

template <class To, class From>
struct Convert;

template <class T>
struct Convert<T, T> {
    static WT_DEVICE T of(T x) { return x; }
};

template <>
struct Convert<float, f16> {
    static WT_DEVICE float of(f16 x)
    {
        float result;
        asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
        return result;
    }
};

template <>
struct Convert<float, bf16> {
    static WT_DEVICE float of(bf16 x) { return __int_as_float(static_cast<int>(u32(x.bits) << 16)); }
};

template <>
struct Convert<float, double> {
    static WT_DEVICE float of(double x) { return __double2float_rn(x); }
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
    static WT_DEVICE f16 of(float x)
    {
        f16 result;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
        return result;
    }
};

template <>
struct Convert<f16, double> {
    static WT_DEVICE f16 of(double x)
    {
        f16 result;
        asm("cvt.rn.f16.f64 %0, %1;" : "=h"(result.bits) : "d"(x));
        return result;
    }
};

template <>
struct Convert<bf16, float> {
    // This rounds in integers, because cvt.rn.bf16.f32 needs sm_80.
    static WT_DEVICE bf16 of(float x)
    {
        const u32 bits = u32(__float_as_int(x));
        const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        const u32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
        return {u16(nan ? 0x7fffu : rounded >> 16)};
    }
};

template <>
struct Convert<bf16, double> {
    // The first rounding is to odd, so that the second rounding is correct.
    // Boldo and Melquiond, When double rounding is odd, 2005.
    static WT_DEVICE bf16 of(double x)
    {
        u32 bits = u32(__float_as_int(__double2float_rz(x)));
        const bool inexact = double(__int_as_float(static_cast<int>(bits))) != x && x == x;
        return Convert<bf16, float>::of(__int_as_float(static_cast<int>(inexact ? bits | 1u : bits)));
    }
};

// Packs two 16-bit values into one word, the first into the lower half.
template <class T>
WT_DEVICE u32 pack(T low, T high)
{
    return u32(low.bits) | u32(high.bits) << 16;
}

// Rounds two floats to 16 bits and packs them, the first into the lower half. It needs sm_80.
template <class T>
WT_DEVICE u32 pack_rounded(float low, float high)
{
    u32 result;
    if constexpr (same<T, f16>)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

// Truncates a float as the tensor cores do when they read it as tf32: mantissa bits 0 to 12 become zero.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#alternate-floating-point-data-formats
WT_DEVICE float truncate_to_tf32(float x) { return __int_as_float(__float_as_int(x) & static_cast<int>(0xffffe000u)); }

WT_DEVICE u32 bits_of(float x) { return u32(__float_as_int(x)); }
WT_DEVICE float float_of(u32 x) { return __int_as_float(static_cast<int>(x)); }

}  // namespace wt::arch
