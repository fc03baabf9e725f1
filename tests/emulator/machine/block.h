// SPDX-License-Identifier: Apache-2.0
//
// A block of threads in execution: scheduling, collectives and barriers.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "machine/fiber.h"
#include "machine/machine.h"
#include "machine/shared_memory.h"
#include "machine/wavefronts.h"

namespace wt::emulator {

// One call of a kernel by all threads of a block
struct Launch {
    Kernel kernel;
    int threads;
    int sm;  // compute capability, e.g. 90
    const void* alpha;
    const void* beta;
    int scalar_bytes;
    bool complete;  // whether every element of a writable tile must be written
};

class Block {
public:
    Block();

    // Runs a kernel on the tiles A, B and C that lie in memory, and returns what is wrong, or "".
    std::string run(const Launch& launch);

    SharedMemory memory;
    Wavefronts wavefronts;

    // ---- called by threads
    void collective(Kind kind, const Operands& operands);
    void load(void* to, const void* address, int bytes);
    void store(void* address, const void* from, int bytes);
    int thread_index() const { return current_; }

    // A synchronous signal in the current thread; does not return unless it is none of the thread's doing.
    void interrupt(const std::string& signal, const void* address);

private:
    struct Thread {
        Fiber fiber;
        Block* block = nullptr;
        Kind waits_for = Kind::none;  // none: it can run
        Operands operands{};
        bool started = false;
    };

    static void thread_main(void* thread);
    void run_threads();
    void run_lane(int thread);
    bool run_warp(int warp);
    Kind meeting(int warp) const;
    void perform(Kind kind, int warp);

    int warp_count() const { return (launch_.threads + warp_lanes - 1) / warp_lanes; }
    int lane_count(int warp) const;

    std::vector<std::unique_ptr<Thread>> threads_;
    Launch launch_{};
    int current_ = -1;
    std::string fault_;
};

// The block that arch functions act on
extern Block* block;

// Catches signals of threads: stray dereferences, stack overflows and traps of the sanitizer.
void install_signal_handlers();

}  // namespace wt::emulator
