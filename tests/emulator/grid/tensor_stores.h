// SPDX-License-Identifier: Apache-2.0
//
// Tensor copies from shared to global memory. Shared memory is read at any time until its thread waits. The bytes arrive when the
// block ends, and not before; until then no thread may access them.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async-bulk-tensor

#pragma once

#include <vector>

#include "grid/tensor_copies.h"

namespace wt::emulator {

// All functions throw Fault. Addresses are those of shared memory in the cluster.
class TensorStores {
public:
    TensorStores(const TensorCopies& copies, ByteStates& shared, ByteStates& arrays) : copies_(copies), shared_(shared), arrays_(arrays) { }

    // `window` is the pointer to address 0 of shared memory.
    void start_block(char* window, int threads);
    void end_block();

    // Starts a store of a box that begins at `start`, coordinates with the innermost first.
    void store(int thread, const void* map, bool map_is_in_array, unsigned from, const int* start, int rank);
    void commit(int thread) { ++threads_[std::size_t(thread)].groups; }
    void wait(int thread, int pending);  // until all groups but so many have read shared memory

private:
    struct Store {
        unsigned from;
        int group;  // number of groups before it
        std::vector<char> box;
        std::vector<TensorMap::Piece> pieces;
    };
    struct Thread {
        int groups = 0;  // that are committed
        std::vector<Store> reading, arriving;
    };

    const TensorCopies& copies_;
    ByteStates &shared_, &arrays_;
    char* window_ = nullptr;
    std::vector<Thread> threads_;
};

}  // namespace wt::emulator
