// SPDX-License-Identifier: Apache-2.0
//
// Collective instructions, which a warp executes once all its lanes have arrived.

#pragma once

#include <array>

#include "machine/machine.h"
#include "machine/memory.h"
#include "machine/wavefronts.h"

namespace wt::emulator {

using WarpOperands = std::array<const Operands*, warp_lanes>;

const char* name_of(Kind kind);

// Returns the first compute capability that has the instruction.
int minimum_sm(Kind kind);

bool is_mma(Kind kind);
void run_mma(Kind kind, const WarpOperands& lanes);
void run_shuffle(const WarpOperands& lanes);
void run_ballot(const WarpOperands& lanes);

// Throws Fault if a lane must not read its row. first_thread is the first thread of the warp.
void run_ldmatrix(
    Kind kind, const WarpOperands& lanes, int first_thread, int sm, Memory& memory, Wavefronts& wavefronts);

}  // namespace wt::emulator
