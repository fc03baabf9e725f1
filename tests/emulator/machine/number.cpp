// SPDX-License-Identifier: Apache-2.0
//
// Conversions from and to 16-bit types by arithmetic. They follow IEEE 754 and round to nearest even.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "machine/machine.h"

namespace wt::emulator {

namespace {

struct Format {
    int fraction_bits;
    int smallest_exponent;  // of a normal number
    int largest_exponent;
};

constexpr Format binary16{10, -14, 15};
constexpr Format bfloat16{7, -126, 127};

unsigned short encode(double x, Format format)
{
    const int exponent_bits = 15 - format.fraction_bits;
    const unsigned short infinity = (unsigned short)(((1u << exponent_bits) - 1u) << format.fraction_bits);
    if (std::isnan(x)) return 0x7fff;
    const unsigned short sign = std::signbit(x) ? 0x8000 : 0;
    const double size = std::fabs(x);
    if (size == 0.0) return sign;
    if (std::isinf(size)) return sign | infinity;
    const int exponent = std::max(std::ilogb(size), format.smallest_exponent);
    // The size in units of the last place. The default rounding mode rounds ties to even.
    const double units = std::nearbyint(std::ldexp(size, format.fraction_bits - exponent));
    if (std::ldexp(units, exponent - format.fraction_bits) >= std::ldexp(1.0, format.largest_exponent + 1))
        return sign | infinity;
    // A carry out of the fraction, or into the first normal number, increments the exponent field.
    const int field = exponent - format.smallest_exponent;
    return (unsigned short)(sign | (unsigned((field << format.fraction_bits)) + unsigned(units)));
}

}  // namespace

float float_of_bits(unsigned int bits)
{
    float result;
    std::memcpy(&result, &bits, sizeof(result));
    return result;
}

unsigned int bits_of_float(float x)
{
    unsigned int result;
    std::memcpy(&result, &x, sizeof(result));
    return result;
}

float float_of_f16(unsigned short bits)
{
    const unsigned int sign = (bits & 0x8000u) << 16;
    const unsigned int exponent = bits >> 10 & 31u;
    const unsigned int fraction = bits & 1023u;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) {
        const float size = float(fraction) * 0x1p-24f;
        return sign ? -size : size;
    }
    return float_of_bits(sign | (exponent + 112u) << 23 | fraction << 13);
}

unsigned short f16_of(double x) { return encode(x, binary16); }
unsigned short bf16_of(double x) { return encode(x, bfloat16); }

}  // namespace wt::emulator
