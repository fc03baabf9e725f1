// SPDX-License-Identifier: Apache-2.0
//
// What a warp does together, once all its lanes have arrived.

#pragma once

#include <array>

#include "machine/machine.h"
#include "machine/memory.h"
#include "machine/wavefronts.h"

namespace wt::emulator {

using WarpOperands = std::array<const Operands*, warp_lanes>;

const char* name_of(Kind kind);

// The first compute capability that has the instruction
int minimum_sm(Kind kind);

bool is_mma(Kind kind);
void run_mma(Kind kind, const WarpOperands& lanes);
void run_exchange(Kind kind, const WarpOperands& lanes);
void run_shuffle(const WarpOperands& lanes);
void run_ballot(const WarpOperands& lanes);

// Throws Fault for a row that a lane must not read. first_thread is the warp's.
void run_ldmatrix(
    Kind kind, const WarpOperands& lanes, int first_thread, int sm, Memory& memory, Wavefronts& wavefronts);

}  // namespace wt::emulator
