// SPDX-License-Identifier: Apache-2.0
//
// The device functions that warp_tiles writes into the source of a Warp module, after Warp's own headers. They use Warp's
// types array_t, tile_global_t and tile_shared_t (native/array.h, native/tile.h). Generated sources define int(x) and
// float(x) as macros, so casts to these types are static_cast here.
#pragma once

#include "module/adjoint_chains.cuh"
#include "module/adjoint_loads.cuh"
#include "module/adjoint_stores.cuh"
#include "module/launch.cuh"
#include "module/pipeline.cuh"
#include "module/reductions.cuh"
#include "module/stores.cuh"
