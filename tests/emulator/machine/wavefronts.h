// SPDX-License-Identifier: Apache-2.0
//
// How many passes over the banks of shared memory the instructions of a warp take.
//
// Model: 32 banks, successive 4-byte words in successive banks; a pass serves one word of every bank, to all lanes that
// ask for it (CUDA C++ Programming Guide, "Shared Memory" of compute capabilities 5.x to 9.x). Accesses of 16 bytes are
// served a quarter-warp at a time, of 8 bytes a half-warp, twice as many lanes where each shares its address with the
// lane next to it or the next but one (measured on an H200), and ldmatrix an 8 x 8 matrix. Each such group takes at
// least one pass, as many as the fullest bank has distinct words. Nsight Compute calls a pass a wavefront (Profiling
// Guide, "Metrics Decoder"), and reports the same ideal: the group's distinct words divided by 32, rounded up.

#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace wt::emulator {

constexpr int warp_lanes = 32;

struct Count {
    std::uint64_t instructions = 0, wavefronts = 0, ideal = 0;
};

// Of A read, B read, C read, C written
constexpr int role_count = 4;
using Counts = std::array<Count, role_count>;

class Wavefronts {
public:
    void reset() { counts_ = Counts{}; }

    // A plain load or store of a lane. The k-th of one role and size since the warp's last collective
    // is one instruction with the k-th of the other lanes; a lane that made fewer is predicated off.
    void record(int role, int lane, int bytes, std::size_t offset);

    // The warp met: what was recorded is matched and counted.
    void match();

    // One ldmatrix: offsets of all rows, eight to a matrix.
    void count_matrices(int role, const std::vector<std::size_t>& rows);

    const Counts& counts() const { return counts_; }

private:
    static constexpr int size_count = 5;  // 1, 2, 4, 8, 16 bytes
    using Lanes = std::array<std::vector<std::size_t>, warp_lanes>;  // offsets of each lane's accesses

    void count_instruction(int role, const Lanes& lanes, std::size_t k, int bytes);
    void count_group(int role, const std::size_t* offsets, int count, int bytes);

    std::array<std::array<Lanes, size_count>, role_count> pending_;
    std::array<std::array<bool, size_count>, role_count> touched_{};
    Counts counts_;
};

}  // namespace wt::emulator
