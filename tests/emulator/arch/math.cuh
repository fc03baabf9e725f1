// SPDX-License-Identifier: Apache-2.0
//
// Emulated square roots, and products that are rounded once.

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

WT_DEVICE float root(float x) { return __builtin_sqrtf(x); }
WT_DEVICE double root(double x) { return __builtin_sqrt(x); }

// The estimates of a GPU are off by about 2^-22 (float) and 2^-19 (double), and take subnormal numbers for zero; these are
// and do, too.
WT_DEVICE float reciprocal_root_estimate(float x)
{
    const bool subnormal = __builtin_fabsf(x) < 0x1p-126f;
    return float(1.0 / __builtin_sqrt(subnormal ? __builtin_copysign(0.0, x) : double(x)) * (1.0 + 0x1p-22));
}
WT_DEVICE double reciprocal_root_estimate(double x)
{
    const bool subnormal = __builtin_fabs(x) < 0x1p-1022;
    return 1.0 / __builtin_sqrt(subnormal ? __builtin_copysign(0.0, x) : x) * (1.0 + 0x1p-19);
}

WT_DEVICE float multiply_add(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
WT_DEVICE double multiply_add(double x, double y, double z) { return __builtin_fma(x, y, z); }

}  // namespace wt::arch
