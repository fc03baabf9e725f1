// SPDX-License-Identifier: Apache-2.0
//
// All solver functions.

#pragma once

#include "solver/adjoints.cuh"
#include "solver/cholesky.cuh"
#include "solver/solve.cuh"
