// SPDX-License-Identifier: Apache-2.0
//
// The number of passes over the banks of shared memory that the instructions of a warp take.
//
// The model has 32 banks, with successive 4-byte words in successive banks. A pass serves one word of every bank, to all
// lanes that request it (CUDA C++ Programming Guide, "Shared Memory" of compute capabilities 5.x to 9.x). The hardware
// serves lanes in groups: a quarter-warp for accesses of 16 bytes, a half-warp for 8 bytes, and twice as many lanes if
// each lane shares its address with the lane next to it or the next but one (measured on an H200). For ldmatrix a group
// is an 8 x 8 matrix. A group takes at least one pass, and as many passes as its fullest bank has distinct words. Nsight
// Compute calls a pass a wavefront (Profiling Guide, "Metrics Decoder") and reports the same ideal: the group's distinct
// words divided by 32, rounded up.

#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace wt::emulator {

constexpr int warp_lanes = 32;

struct Count {
    std::uint64_t instructions = 0, wavefronts = 0, ideal = 0;
};

// Counts of A reads, B reads, C reads and C writes
constexpr int role_count = 4;
using Counts = std::array<Count, role_count>;

class Wavefronts {
public:
    void reset() { counts_ = Counts{}; }

    // Records a plain load or store of a lane. Since the warp's last collective, the k-th accesses of all lanes with one
    // role and size are one instruction. A lane with fewer accesses is predicated off.
    void record(int role, int lane, int bytes, std::size_t offset);

    // Counts the recorded accesses. Called when the warp has reached a collective.
    void match();

    // Counts one ldmatrix. `rows` has the offsets of all rows, eight per matrix.
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
