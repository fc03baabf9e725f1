// SPDX-License-Identifier: Apache-2.0
//
// Execution of the threads of a block: scheduling, collectives and barriers.

#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "machine/fault.h"
#include "machine/fiber.h"
#include "machine/machine.h"
#include "machine/memory.h"
#include "machine/wavefronts.h"

namespace wt::emulator {

class Threads {
public:
    explicit Threads(Memory& memory);
    virtual ~Threads() = default;

    Wavefronts wavefronts;

    // ---- called by threads
    void collective(Kind kind, const Operands& operands);
    void load(void* to, const void* address, int bytes);
    void store(void* address, const void* from, int bytes);
    int thread_index() const { return current_; }

    // Ends the current thread and the launch with a message. Destructors are not called.
    [[noreturn]] void fail(const std::string& text);

    // Handles a synchronous signal. Returns only if no emulated thread is running.
    void interrupt(const std::string& signal, const void* address);

protected:
    // The code that every thread runs. Throws Fault.
    virtual void body() = 0;

    // Calls act(), and ends the current thread if that throws a Fault. Emulated code cannot propagate exceptions.
    template <class Act> void guarded(Act&& act)
    {
        std::string error;
        try {
            return act();
        } catch (const Fault& fault) {
            error = fault.text;
        }
        fail(error);
    }

    // Called before a thread starts or continues.
    virtual void resumed(int) { }

    // Runs an asynchronous product of a warp, or waits for some. Throws Fault.
    virtual void run_async(Kind kind, int warp, const std::array<const Operands*, warp_lanes>& lanes);

    // True if a thread that waits for an mbarrier or for a cluster may continue. The other describes such a wait if it never ends. Throws Fault.
    virtual bool has_completed(int thread, const Operands& wait);
    virtual std::string describe_wait(int thread, const Operands& wait) const;

    // Notes a barrier of some warps. Accesses of their threads before it do not race with those after it. Throws Fault.
    virtual void pass_named_barrier(const std::vector<int>& warps);

    // Runs the threads of some blocks, a cluster, to their end. Throws Fault.
    void run_threads(int threads, int sm, int blocks = 1);

private:
    struct Thread {
        Fiber fiber;
        Threads* threads = nullptr;
        Kind waits_for = Kind::none;  // none: it can run
        Operands operands{};
        bool started = false;
    };

    // How far a warp has come
    enum class Progress { waiting, at_barrier, ended };  // waiting: for an mbarrier, a cluster or some warps

    static void thread_main(void* thread);
    void run_lane(int thread);
    Progress run_warp(int warp);
    static bool is_waiting_alone(Kind kind) { return kind == Kind::mbarrier_wait || kind == Kind::cluster_wait; }
    int barrier_of(int thread) const;
    bool arrive_at_named_barrier(int warp);
    void report_deadlock() const;
    Kind awaited_collective(int warp) const;
    void run_collective(Kind kind, int warp);

    int warp_count() const { return (count_ + warp_lanes - 1) / warp_lanes; }
    int lane_count(int warp) const;

    Memory& memory_;
    std::vector<std::unique_ptr<Thread>> threads_;
    int count_ = 0, of_block_ = 0;
    int sm_ = 0;  // compute capability, e.g. 90
    bool moved_ = false;  // true if a thread has run since the warps last had their turns
    int current_ = -1;
    std::string fault_;
    std::map<int, std::vector<int>> at_named_barriers_;  // warps, by 16 times the block and the number of the barrier
};

// The threads that the functions in machine.h act on
extern Threads* threads;

// Catches the signals that threads raise: invalid addresses, stack overflows and traps of the sanitizer.
void install_signal_handlers();

}  // namespace wt::emulator
