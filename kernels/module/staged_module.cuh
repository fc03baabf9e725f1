// SPDX-License-Identifier: Apache-2.0
//
// The device functions of a module with a loop that loads into stages.
#pragma once

#include "module/chains.cuh"
#include "module/fma_product.cuh"
#include "module/module.cuh"
#include "module/product.cuh"
#include "module/accumulator_stores.cuh"
#include "module/warp_product.cuh"
#include "module/warpgroup_product.cuh"
