// SPDX-License-Identifier: Apache-2.0
//
// The device functions of a module with a loop whose reverse pass loads into stages.
#pragma once

#include "module/reverse_loop.cuh"
#include "module/staged_module.cuh"
