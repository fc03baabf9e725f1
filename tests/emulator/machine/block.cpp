// SPDX-License-Identifier: Apache-2.0

#include "machine/block.h"

#include <algorithm>
#include <cstring>

#include "machine/collectives.h"
#include "machine/fault.h"

namespace wt::emulator {

Block* block = nullptr;

Block::Block() { block = this; }

int Block::lane_count(int warp) const { return std::min(warp_lanes, launch_.threads - warp * warp_lanes); }

std::string Block::run(const Launch& launch)
{
    launch_ = launch;
    fault_.clear();
    wavefronts.reset();
    while (int(threads_.size()) < launch.threads) threads_.push_back(std::make_unique<Thread>());
    for (const auto& thread : threads_) {
        thread->block = this;
        thread->waits_for = Kind::none;
        thread->started = false;
    }
    try {
        run_threads();
        if (launch.complete) memory.require_all_written();
    } catch (const Fault& fault) {
        wavefronts.match();
        return fault.text;
    }
    return "";
}

// Runs warp after warp up to a block barrier, until all threads have ended.
void Block::run_threads()
{
    for (;;) {
        int ended = 0;
        for (int warp = 0; warp < warp_count(); ++warp) ended += run_warp(warp) ? 1 : 0;
        if (ended == warp_count()) return;
        if (ended != 0) {
            int waiting = 0, gone = 0;
            for (int i = 0; i < launch_.threads; ++i) (threads_[i]->waits_for == Kind::exit ? gone : waiting) = i;
            throw Fault{"divergent collective: " + name_of_thread(waiting) + " is at bar.sync, but "
                        + name_of_thread(gone) + " has ended"};
        }
        memory.pass_barrier();
        for (int i = 0; i < launch_.threads; ++i) threads_[i]->waits_for = Kind::none;
    }
}

// Runs a warp up to a block barrier (false) or its end (true).
bool Block::run_warp(int warp)
{
    const int first = warp * warp_lanes;
    for (;;) {
        for (int lane = 0; lane < lane_count(warp); ++lane)
            if (threads_[first + lane]->waits_for == Kind::none) run_lane(first + lane);
        wavefronts.match();
        const Kind kind = meeting(warp);
        if (kind == Kind::exit) return true;
        if (kind == Kind::barrier) return false;
        perform(kind, warp);
        for (int lane = 0; lane < lane_count(warp); ++lane) threads_[first + lane]->waits_for = Kind::none;
    }
}

void Block::run_lane(int thread)
{
    Thread& self = *threads_[thread];
    current_ = thread;
    if (self.started) {
        self.fiber.resume();
    } else {
        self.started = true;
        self.fiber.start(thread_main, &self);
    }
    current_ = -1;
    if (!fault_.empty()) throw Fault{fault_};
}

void Block::thread_main(void* thread)
{
    Thread& self = *static_cast<Thread*>(thread);
    Block& block = *self.block;
    const SharedMemory& memory = block.memory;
    alignas(16) unsigned char alpha[8], beta[8];
    std::memcpy(alpha, block.launch_.alpha, std::size_t(block.launch_.scalar_bytes));
    std::memcpy(beta, block.launch_.beta, std::size_t(block.launch_.scalar_bytes));
    try {
        block.launch_.kernel(alpha, memory.address(0), memory.address(1), beta, memory.address(2));
    } catch (const Fault& fault) {
        block.fault_ = fault.text;
    }
    self.waits_for = Kind::exit;
}

Kind Block::meeting(int warp) const
{
    const int first = warp * warp_lanes;
    const Kind kind = threads_[first]->waits_for;
    for (int lane = 1; lane < lane_count(warp); ++lane) {
        const Kind other = threads_[first + lane]->waits_for;
        if (other != kind)
            throw Fault{"divergent collective: " + name_of_thread(first) + " is at " + name_of(kind) + ", but "
                        + name_of_thread(first + lane) + " at " + name_of(other)};
    }
    if (kind != Kind::exit && kind != Kind::barrier && lane_count(warp) < warp_lanes)
        throw Fault{std::string("divergent collective: ") + name_of(kind) + " in a warp of "
                    + std::to_string(lane_count(warp)) + " threads"};
    return kind;
}

void Block::perform(Kind kind, int warp)
{
    if (launch_.sm < minimum_sm(kind))
        throw Fault{std::string(name_of(kind)) + " needs sm_" + std::to_string(minimum_sm(kind)) + ", this is sm_"
                    + std::to_string(launch_.sm)};
    const int first = warp * warp_lanes;
    WarpOperands lanes;
    for (int lane = 0; lane < warp_lanes; ++lane) lanes[lane] = &threads_[first + lane]->operands;
    if (is_mma(kind))
        run_mma(kind, lanes);
    else if (kind == Kind::exchange_f32 || kind == Kind::exchange_f64)
        run_exchange(kind, lanes);
    else
        run_ldmatrix(kind, lanes, first, launch_.sm, memory, wavefronts);
}

void Block::collective(Kind kind, const Operands& operands)
{
    Thread& self = *threads_[current_];
    self.waits_for = kind;
    self.operands = operands;
    self.fiber.suspend();
}

void Block::load(void* to, const void* address, int bytes)
{
    const int tile = memory.read({current_, "load", bytes}, address, to);
    wavefronts.record(tile, current_ % warp_lanes, bytes, memory.offset_of(address));
}

void Block::store(void* address, const void* from, int bytes)
{
    const int tile = memory.write({current_, "store", bytes}, address, from);
    wavefronts.record(tile + 1, current_ % warp_lanes, bytes, memory.offset_of(address));
}

void Block::interrupt(const std::string& signal, const void* address)
{
    if (current_ < 0) return;
    Fiber& fiber = threads_[current_]->fiber;
    std::string what = signal;
    if (memory.contains(address))
        what = "shared memory is reached other than through arch/memory.cuh at " + memory.describe(address);
    else if (fiber.overflowed_at(address))
        what = "the stack overflows";
    fault_ = name_of_thread(current_) + ": " + what;
    fiber.abandon();
}

void collective(Kind kind, const Operands& operands) { block->collective(kind, operands); }
void load(void* to, const void* address, int bytes) { block->load(to, address, bytes); }
void store(void* address, const void* from, int bytes) { block->store(address, from, bytes); }
int thread_index() { return block->thread_index(); }

}  // namespace wt::emulator
