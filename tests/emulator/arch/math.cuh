// SPDX-License-Identifier: Apache-2.0
//
// Emulated square roots, and products that are rounded once.

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

WT_DEVICE float root(float x) { return __builtin_sqrtf(x); }
WT_DEVICE double root(double x) { return __builtin_sqrt(x); }

// The estimates of a GPU are off by up to 2 units in the last place (float) and 1 (double); these are, too.
WT_DEVICE float reciprocal_root(float x) { return float(1.0 / __builtin_sqrt(double(x)) * (1.0 + 1.9 / 8388608)); }
WT_DEVICE double reciprocal_root(double x) { return 1.0 / __builtin_sqrt(x) * (1.0 + 1.0 / 4503599627370496); }

WT_DEVICE float multiply_add(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
WT_DEVICE double multiply_add(double x, double y, double z) { return __builtin_fma(x, y, z); }

}  // namespace wt::arch
