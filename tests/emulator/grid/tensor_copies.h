// SPDX-License-Identifier: Apache-2.0
//
// The mbarriers of a cluster's blocks, and the tensor copies that are in flight to them. A copy arrives when a thread waits for its
// mbarrier, and not before. Until its phase is complete, the destination holds a pattern.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "grid/byte_states.h"
#include "grid/tensor_map.h"

namespace wt::emulator {

// All functions throw Fault. Addresses are those of shared memory in the cluster, as Grid::own() gives them.
class TensorCopies {
public:
    TensorCopies(Clock& clock, ByteStates& shared, ByteStates& arrays) : clock_(clock), shared_(shared), arrays_(arrays) { }

    // `window` is the pointer to address 0 of shared memory. Threads are those of one block.
    void start_block(char* window);
    void end_block(int threads) const;

    void initialize(int thread, unsigned mbarrier, unsigned arrivals);
    void invalidate(int thread, unsigned mbarrier);
    void fence(int thread);  // fence.mbarrier_init
    void arrive(int thread, unsigned mbarrier, unsigned expected_bytes);

    // A wait has three parts: it begins, the phase is complete or not, and it ends when it is.
    void begin_wait(int thread, unsigned mbarrier, unsigned parity);
    bool is_complete(unsigned mbarrier, unsigned parity);
    void end_wait(int thread, unsigned mbarrier);
    std::string describe_wait(int thread, unsigned mbarrier) const;  // for a phase that never completes

    TensorMap map_of(int thread, const void* map, bool map_is_in_array, int rank, unsigned box, const char* instruction) const;

    // Starts a copy of a box that begins at `start`, coordinates with the innermost first.
    void copy(int thread, unsigned to, const void* map, bool map_is_in_array, unsigned mbarrier, const int* start, int rank);

private:
    struct Copy {
        int thread;
        unsigned to;
        TensorMap map;
        std::vector<char> box;  // its bytes in order, zeros outside of the tensor
        std::vector<TensorMap::Piece> pieces;
    };
    struct Mbarrier {
        int creator;
        std::uint32_t creators_proxy_fences;
        bool fenced;
        int arrivals, pending;  // of each phase, and those that are missing in this one
        long long bytes = 0;    // transaction bytes that this phase still expects, or has had too early if negative
        unsigned phase = 0;     // the first one that is not complete
        int waiting = 0;        // threads
        std::vector<std::int32_t> numbers;  // of the phases up to this one, in Clock::arrivals
        std::vector<Copy> copies;           // that were started in this phase
        std::size_t arrived = 0;            // number of copies whose bytes the phase has counted
        std::vector<unsigned> known;        // number of phases that each thread knows to be complete
        Order::Times used;                  // when each thread used it last
        Order::Times arriving, completed;   // what arrivals released: all of them, and those of complete phases
    };

    // A copy uses the mbarrier until it arrives, so the thread's own time says nothing.
    Mbarrier& at(const Access& access, unsigned address, bool is_copy = false);
    void read(Copy& copy, const int* start);
    void complete_phase(Mbarrier& mbarrier, unsigned address);
    std::string describe(unsigned address) const { return shared_.describe(window_ + address); }

    Clock& clock_;
    ByteStates &shared_, &arrays_;
    char* window_ = nullptr;
    std::map<unsigned, Mbarrier> mbarriers_;
};

}  // namespace wt::emulator
