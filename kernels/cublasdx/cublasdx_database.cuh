// SPDX-License-Identifier: Apache-2.0
//
// cuBLASDx's configuration database and the MMA operations that it refers to. CuTe's
// tensors and algorithms are left out, because parsing them takes longer than the rest.

#pragma once

#include <cublasdx/cublasdx_version.hpp>

#if CUBLASDX_VERSION != 400
#include <cublasdx.hpp>
#else

#include <cublasdx/detail/commondx_config.hpp>
#include <cublasdx/types.hpp>

// The database chooses packed float FMA on sm_100 and sm_103. CuTe enables it on sm_100 only.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 1000 || __CUDA_ARCH__ == 1030)
#define CUTE_ARCH_FFMA2_SM100_ENABLED
#define CUTE_ARCH_FLOAT2_MATH_ENABLED
#endif

// The includes below replace these two headers.
#define COMMONDX_DETAIL_CUTE_TENSOR_HPP
#define CUBLASDX_DATABASE_CUTE_EXTENSION_ALGORITHM_COPY_HPP
#include <cute/tensor_impl.hpp>
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/copy_traits_sm90.hpp>
#include <cute/atom/mma_traits_sm70.hpp>
#include <cute/atom/mma_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm90.hpp>

// The database names this function. It is never called here.
namespace cute { template <class... T> void make_tiled_mma(T...); }

#include <cublasdx/operators.hpp>
#include <cublasdx/database/cute_db.hpp>

#endif
