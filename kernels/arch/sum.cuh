// SPDX-License-Identifier: Apache-2.0
//
// Sums that are never fused with a product.

#pragma once

#include "arch/types.cuh"

namespace wt::arch {

// Returns x + y: add.rn.f32. With an explicit rounding, neither compiler fuses it with the product that x or y may be.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-add
WT_DEVICE f32 add_unfused(f32 x, f32 y)
{
    f32 sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(x), "f"(y));
    return sum;
}

}  // namespace wt::arch
