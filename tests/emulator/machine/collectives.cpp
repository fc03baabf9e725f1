// SPDX-License-Identifier: Apache-2.0

#include "machine/collectives.h"

#include <cstring>
#include <vector>

#include "machine/fault.h"

namespace wt::emulator {

const char* name_of(Kind kind)
{
    switch (kind) {
    case Kind::none: return "nothing";
    case Kind::barrier: return "bar.sync";
    case Kind::shuffle_xor_f32: return "shfl.sync.bfly of a float";
    case Kind::shuffle_xor_f64: return "shfl.sync.bfly of a double";
    case Kind::shuffle: return "shfl.sync";
    case Kind::ballot: return "vote.sync.ballot";
    case Kind::warp_barrier: return "bar.warp.sync";
    case Kind::ldmatrix_x2_trans: return "ldmatrix.x2.trans";
    case Kind::ldmatrix_x4_trans: return "ldmatrix.x4.trans";
    case Kind::ldmatrix_x4: return "ldmatrix.x4";
    case Kind::mma_m16n8k16_f16: return "mma.m16n8k16.f16";
    case Kind::mma_m16n8k16_bf16: return "mma.m16n8k16.bf16";
    case Kind::mma_m16n8k8_f16: return "mma.m16n8k8.f16";
    case Kind::mma_m16n8k8_tf32: return "mma.m16n8k8.tf32";
    case Kind::mma_m8n8k4_f64: return "mma.m8n8k4.f64";
    case Kind::mma_m16n8k8_f64: return "mma.m16n8k8.f64";
    case Kind::wgmma: return "wgmma.mma_async";
    case Kind::wgmma_commit: return "wgmma.commit_group";
    case Kind::wgmma_wait: return "wgmma.wait_group";
    case Kind::mbarrier_wait: return "mbarrier.try_wait";
    case Kind::cluster_wait: return "barrier.cluster.wait";
    case Kind::named_barrier: return "bar.sync of some threads";
    case Kind::keep_registers: return "setmaxnreg.dec";
    case Kind::take_registers: return "setmaxnreg.inc";
    case Kind::exit: return "the end";
    }
    return "?";
}

int minimum_sm(Kind kind)
{
    switch (kind) {
    case Kind::ldmatrix_x2_trans:
    case Kind::ldmatrix_x4_trans:
    case Kind::ldmatrix_x4:
    case Kind::mma_m16n8k8_f16: return 75;
    case Kind::mma_m16n8k16_f16:
    case Kind::mma_m16n8k16_bf16:
    case Kind::mma_m16n8k8_tf32:
    case Kind::mma_m8n8k4_f64: return 80;
    case Kind::mma_m16n8k8_f64:
    case Kind::wgmma:
    case Kind::wgmma_commit:
    case Kind::wgmma_wait:
    case Kind::keep_registers:
    case Kind::take_registers: return 90;
    default: return 0;
    }
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-shfl-sync
void run_shuffle(const WarpOperands& lanes)
{
    for (const Operands* lane : lanes)
        std::memcpy(lane->result, lanes[lane->mask & (warp_lanes - 1)]->a, *static_cast<const int*>(lane->b));
}

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-vote-sync
void run_ballot(const WarpOperands& lanes)
{
    unsigned int votes = 0;
    for (int lane = 0; lane < warp_lanes; ++lane) votes |= (lanes[lane]->mask ? 1u : 0u) << lane;
    for (const Operands* lane : lanes) *static_cast<unsigned int*>(lane->result) = votes;
}

// Lane 8 i + r passes the address of row r of matrix i. With .trans a lane receives two elements of every matrix: rows
// 2 (lane % 4) and 2 (lane % 4) + 1 of column lane / 4; without it, these columns of row lane / 4. Before sm_80 the addresses of all lanes must be valid, even
// those that the instruction ignores.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-load-instruction-ldmatrix
void run_ldmatrix(
    Kind kind, const WarpOperands& lanes, int first_thread, int sm, Memory& memory, Wavefronts& wavefronts)
{
    constexpr int rows = 8, columns = 8;
    const int matrices = kind == Kind::ldmatrix_x2_trans ? 2 : 4;
    unsigned short elements[4][rows][columns];
    std::vector<std::size_t> offsets;
    int tile = -1;
    for (int lane = 0; lane < warp_lanes; ++lane) {
        const Access access{first_thread + lane, "ldmatrix row", 16};
        if (lane < rows * matrices) {
            const int found = memory.read(access, lanes[lane]->a, elements[lane / rows][lane % rows]);
            if (tile >= 0 && found != tile) throw Fault{access.text() + " lies in another tile than the row of lane 0"};
            tile = found;
            offsets.push_back(memory.offset_of(lanes[lane]->a));
        } else if (sm < 80) {
            unsigned short unused[columns];
            memory.read(access, lanes[lane]->a, unused);
        }
    }
    if (tile >= 0) wavefronts.count_matrices(tile, offsets);
    for (int lane = 0; lane < warp_lanes; ++lane) {
        unsigned int* const result = static_cast<unsigned int*>(lanes[lane]->result);
        const int group = lane / 4, quarter = lane % 4;
        for (int i = 0; i < matrices; ++i)
            if (kind == Kind::ldmatrix_x4)
                result[i] = unsigned(elements[i][group][2 * quarter]) | unsigned(elements[i][group][2 * quarter + 1]) << 16;
            else
                result[i] = unsigned(elements[i][2 * quarter][group]) | unsigned(elements[i][2 * quarter + 1][group]) << 16;
    }
}

}  // namespace wt::emulator
