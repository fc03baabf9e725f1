// SPDX-License-Identifier: Apache-2.0
//
// What is written into the source of a Warp module, behind Warp's own headers, whose types it uses: array_t,
// tile_global_t, tile_shared_t (native/array.h, native/tile.h). Generated sources define int(x) and float(x) as macros, so
// that casts to these types are static_cast here.
#pragma once

#include "module/adjoint_loads.cuh"
#include "module/pipeline.cuh"
