// SPDX-License-Identifier: Apache-2.0
//
// A launch of a module's kernel. Its blocks, or its clusters, run one after the other. A static __shared__ variable is one for all blocks
// of a cluster, so that they race for it.

#pragma once

#include <string>
#include <vector>

#include "machine/threads.h"
#include "grid/byte_states.h"
#include "grid/cluster_barrier.h"
#include "grid/module.h"
#include "grid/registers.h"
#include "grid/tensor_copies.h"
#include "grid/tensor_stores.h"
#include "grid/wgmma.h"

namespace wt::emulator {

// An array in the global memory of a launch
struct Array {
    std::string name;
    std::size_t offset, size;
};

struct GridLaunch {
    void (*call)(void** arguments);
    std::vector<void*> arguments;
    int blocks, threads;
    int cluster;  // blocks of a cluster
    int sm;  // compute capability, e.g. 90
    int shared_bytes;
    std::vector<Array> arrays;
};

// Runs a kernel and checks its accesses. -fsanitize=thread adds a call before each plain access of the module; see
// traced.cpp.
class Grid : public Threads, private Memory {
public:
    // `arrays` is the global memory of the launch.
    Grid(char* arrays, std::size_t arrays_bytes);
    ~Grid() override;

    // Runs a kernel and returns its error, or "".
    std::string run(const GridLaunch& launch);

    // ---- called by threads; an error ends the thread
    void access(AccessKind kind, const void* address, int bytes, int alignment);
    void access_global(void* address, int bytes);  // atomic and aligned
    void atomic(void* address, int bytes);
    void fence();
    void fence_proxy() { shared_states_.fence_proxy(thread_index()); }
    void fence_wgmma() { products_[std::size_t(thread_index() / warp_lanes)].fence(); }
    void start_copy(unsigned to, const void* from, int bytes, int valid_bytes);
    void commit_copies();
    void wait_for_copies(int pending = 0);  // groups that may stay pending

    // Runs an operation of mbarriers and tensor copies, which are as in tensor_copies.h and tensor_stores.h.
    template <class Act> void with_tensor_copies(Act&& act);
    template <class Act> void with_tensor_stores(Act&& act)
    {
        with_tensor_copies([&](TensorCopies&, int thread) { act(tensor_stores_, thread); });
    }
    void wait_for_phase(unsigned mbarrier, unsigned parity);
    void arrive_at_cluster();
    void wait_for_cluster();

    // The address in the cluster of an address of the thread's own block, of any block, and of the same one in another block.
    unsigned own(unsigned address) const { return in_block(address, block_of(thread_index())); }
    unsigned of_any_block(unsigned address) const { return address < mapped ? own(address) : address - mapped; }
    unsigned in_block(unsigned address, int block) const;
    // The address of another block's memory, as mapa gives it
    unsigned mapped_address(unsigned address, int block) const { return mapped + in_block(address, block); }

    bool is_global(const void* address) const;
    bool is_shared(const void* address) const;
    unsigned long shared_address(const void* pointer) const;
    void* shared_pointer(unsigned long address) const { return shared_pointer(address, thread_index()); }

private:
    static constexpr unsigned mapped = 1u << 24;  // the least address that mapa gives

    struct Copy {
        void* to;
        const void* from;
        int bytes, valid_bytes;
        unsigned char data[16];  // the source when the copy started
        int group;               // number of commits before it
    };
    struct SharedReader;

    void body() override;
    void resumed(int thread) override;
    void run_async(Kind kind, int warp, const WarpOperands& lanes) override;
    bool has_completed(int thread, const Operands& wait) override;
    std::string describe_wait(int thread, const Operands& wait) const override;

    int block_of(int thread) const { return thread / launch_.threads; }
    int warps_of_block() const { return (launch_.threads + warp_lanes - 1) / warp_lanes; }
    void* shared_pointer(unsigned long address, int thread) const;
    ByteStates& states_of_templates(const void* address);
    int read(const Access& access, const void* address, void* to) override;
    int write(const Access& access, void* address, const void* from) override;
    std::size_t offset_of(const void* address) const override;
    void pass_barrier() override { clock_.pass_barrier(); }
    void pass_warp_barrier(int warp) override { clock_.order.pass_barrier({warp}); }
    void pass_named_barrier(const std::vector<int>& warps) override { clock_.order.pass_barrier(warps); }
    std::string describe_misuse(const void* address) const override;

    Clock clock_;
    ByteStates shared_states_{clock_}, array_states_{clock_};
    ByteStates static_states_{clock_};  // of __shared__ variables, which are static variables of the program
    char* arrays_;
    std::size_t arrays_bytes_;
    char* window_;  // shared memory of all blocks of a cluster
    int first_block_ = 0;  // of the cluster
    GridLaunch launch_{};
    std::vector<std::vector<Copy>> copies_;  // pending copies of each thread
    std::vector<int> commits_;                // groups of copies that each thread has made
    std::vector<AsyncProducts> products_;     // of each warp
    TensorCopies tensor_copies_{clock_, shared_states_, array_states_};
    TensorStores tensor_stores_{tensor_copies_, shared_states_, array_states_};
    std::vector<Registers> registers_;  // of each block
    ClusterBarrier cluster_barrier_{clock_.order};
};

template <class Act> void Grid::with_tensor_copies(Act&& act)
{
    guarded([&] {
        if (launch_.sm < 90) throw Fault{name_of_thread(thread_index()) + ": mbarriers and tensor copies need sm_90"};
        act(tensor_copies_, thread_index());
    });
}

extern Grid* grid;

}  // namespace wt::emulator
