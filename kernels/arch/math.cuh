// SPDX-License-Identifier: Apache-2.0
//
// Square roots, and products that are rounded once.

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// Return 1 / sqrt(x) with a relative error of about 2^-22 (float) or 2^-19 (double). A subnormal x counts as zero: rsqrtf()
// and rsqrt() scale or branch for it, which delays what waits for the result.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-rsqrt
WT_DEVICE float reciprocal_root_estimate(float x)
{
    float estimate;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(x));
    return estimate;
}
WT_DEVICE double reciprocal_root_estimate(double x)
{
    double estimate;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(estimate) : "d"(x));
    return estimate;
}

WT_DEVICE float root(float x) { return sqrtf(x); }
WT_DEVICE double root(double x) { return sqrt(x); }

// Returns x * y + z, rounded once.
WT_DEVICE float multiply_add(float x, float y, float z) { return fmaf(x, y, z); }
WT_DEVICE double multiply_add(double x, double y, double z) { return fma(x, y, z); }

}  // namespace wt::arch
