// SPDX-License-Identifier: Apache-2.0

#include "machine/threads.h"

#include <algorithm>

#include "machine/collectives.h"
#include "machine/fault.h"

namespace wt::emulator {

Threads* threads = nullptr;

std::string Access::text() const
{
    return name_of_thread(thread) + ": " + instruction + " of " + std::to_string(bytes) + " bytes";
}

Threads::Threads(Memory& memory) : memory_(memory) { threads = this; }

int Threads::lane_count(int warp) const { return std::min(warp_lanes, count_ - warp * warp_lanes); }

// Runs each warp up to the next block barrier, until all threads have ended.
void Threads::run_threads(int threads, int sm, int blocks)
{
    const int count = count_ = threads * blocks;
    of_block_ = threads;
    sm_ = sm;
    fault_.clear();
    wavefronts.reset();
    while (int(threads_.size()) < count) threads_.push_back(std::make_unique<Thread>());
    for (const auto& thread : threads_) {
        thread->threads = this;
        thread->waits_for = Kind::none;
        thread->started = false;
    }
    at_named_barriers_.clear();
    for (;;) {
        int ended = 0, waiting = 0;
        moved_ = false;
        for (int warp = 0; warp < warp_count(); ++warp) {
            const Progress progress = run_warp(warp);
            ended += progress == Progress::ended;
            waiting += progress == Progress::waiting;
        }
        if (ended == warp_count()) return;
        if (waiting != 0) {  // another warp may have completed the phase
            if (!moved_) report_deadlock();
            continue;
        }
        if (ended != 0) {
            int left = 0, gone = 0;
            for (int i = 0; i < count_; ++i) (threads_[i]->waits_for == Kind::exit ? gone : left) = i;
            throw Fault{"divergent collective: " + name_of_thread(left) + " is at bar.sync, but "
                        + name_of_thread(gone) + " has ended"};
        }
        memory_.pass_barrier();
        for (int i = 0; i < count_; ++i) threads_[i]->waits_for = Kind::none;
    }
}

// Runs a warp up to the next block barrier, to a phase of an mbarrier that is not complete, or to its end.
Threads::Progress Threads::run_warp(int warp)
{
    const int first = warp * warp_lanes;
    for (;;) {
        bool at_mbarrier = false;
        for (int lane = 0; lane < lane_count(warp); ++lane) {
            Thread& thread = *threads_[first + lane];
            if (is_waiting_alone(thread.waits_for) && has_completed(first + lane, thread.operands)) thread.waits_for = Kind::none;
            if (thread.waits_for == Kind::none) run_lane(first + lane);
            at_mbarrier = at_mbarrier || is_waiting_alone(thread.waits_for);
        }
        wavefronts.match();
        if (at_mbarrier) return Progress::waiting;
        const Kind kind = awaited_collective(warp);
        if (kind == Kind::exit) return Progress::ended;
        if (kind == Kind::barrier && of_block_ == count_) return Progress::at_barrier;
        if (kind == Kind::named_barrier || kind == Kind::barrier) {
            if (!arrive_at_named_barrier(warp)) return Progress::waiting;
            continue;
        }
        run_collective(kind, warp);
        for (int lane = 0; lane < lane_count(warp); ++lane) threads_[first + lane]->waits_for = Kind::none;
    }
}

void Threads::report_deadlock() const
{
    for (int i = 0; i < count_; ++i)
        if (is_waiting_alone(threads_[i]->waits_for)) throw Fault{describe_wait(i, threads_[i]->operands)};
    for (const auto& [number, warps] : at_named_barriers_)
        if (!warps.empty())
            throw Fault{name_of_thread(warps[0] * warp_lanes) + " waits at the barrier " + std::to_string(number % 16)
                        + ", where too few threads arrive: " + std::to_string(warps.size() * warp_lanes)};
}

// The number of the barrier at which a thread is, and 16 times the number of threads that it waits for. Barrier 0 is that of the block.
int Threads::barrier_of(int thread) const
{
    return threads_[thread]->waits_for == Kind::barrier ? 16 * of_block_ : threads_[thread]->operands.mask;
}

// Returns true if the warp is the last one that its barrier waits for.
bool Threads::arrive_at_named_barrier(int warp)
{
    const int first = warp * warp_lanes, asked = barrier_of(first), number = asked % 16, count = asked / 16;
    const std::string where = name_of_thread(first) + " is at the barrier " + std::to_string(number) + " of " + std::to_string(count)
                            + " threads";
    if (count <= 0 || count % warp_lanes != 0) throw Fault{where + ", which are not those of warps"};
    std::vector<int>& warps = at_named_barriers_[first / of_block_ * 16 + number];
    for (const int other : warps) {
        if (other == warp) return false;
        if (barrier_of(other * warp_lanes) != asked)
            throw Fault{where + ", and " + name_of_thread(other * warp_lanes) + " waits there for others"};
    }
    for (int lane = 1; lane < warp_lanes; ++lane)
        if (barrier_of(first + lane) != asked) throw Fault{where + ", and its warp is at several barriers"};
    warps.push_back(warp);
    if (int(warps.size()) * warp_lanes < count) return false;
    pass_named_barrier(warps);
    for (const int other : warps)
        for (int lane = 0; lane < warp_lanes; ++lane) threads_[other * warp_lanes + lane]->waits_for = Kind::none;
    warps.clear();
    return true;
}

void Threads::run_lane(int thread)
{
    Thread& self = *threads_[thread];
    moved_ = true;
    current_ = thread;
    resumed(thread);
    if (self.started) {
        self.fiber.resume();
    } else {
        self.started = true;
        self.fiber.start(thread_main, &self);
    }
    current_ = -1;
    if (!fault_.empty()) throw Fault{fault_};
}

void Threads::thread_main(void* thread)
{
    Thread& self = *static_cast<Thread*>(thread);
    Threads& all = *self.threads;
    try {
        all.body();
    } catch (const Fault& fault) {
        all.fault_ = fault.text;
    }
    self.waits_for = Kind::exit;
}

// Returns the collective that all lanes of a warp wait at.
Kind Threads::awaited_collective(int warp) const
{
    const int first = warp * warp_lanes;
    const Kind kind = threads_[first]->waits_for;
    for (int lane = 1; lane < lane_count(warp); ++lane) {
        const Kind other = threads_[first + lane]->waits_for;
        if (other != kind)
            throw Fault{"divergent collective: " + name_of_thread(first) + " is at " + name_of(kind) + ", but "
                        + name_of_thread(first + lane) + " is at " + name_of(other)};
    }
    if (kind != Kind::exit && kind != Kind::barrier && lane_count(warp) < warp_lanes)
        throw Fault{std::string("divergent collective: ") + name_of(kind) + " in a warp of "
                    + std::to_string(lane_count(warp)) + " threads"};
    return kind;
}

void Threads::run_collective(Kind kind, int warp)
{
    if (sm_ < minimum_sm(kind))
        throw Fault{std::string(name_of(kind)) + " needs sm_" + std::to_string(minimum_sm(kind)) + ", but this is sm_"
                    + std::to_string(sm_)};
    const int first = warp * warp_lanes;
    WarpOperands lanes;
    for (int lane = 0; lane < warp_lanes; ++lane) lanes[lane] = &threads_[first + lane]->operands;
    if (is_mma(kind))
        run_mma(kind, lanes);
    else if (kind == Kind::shuffle || kind == Kind::shuffle_xor_f32 || kind == Kind::shuffle_xor_f64)
        run_shuffle(lanes);
    else if (kind == Kind::ballot)
        run_ballot(lanes);
    else if (kind == Kind::warp_barrier)
        memory_.pass_warp_barrier(warp);
    else if (kind == Kind::wgmma || kind == Kind::wgmma_commit || kind == Kind::wgmma_wait || kind == Kind::keep_registers
             || kind == Kind::take_registers)
        run_async(kind, warp, lanes);
    else
        run_ldmatrix(kind, lanes, first, sm_, memory_, wavefronts);
}

void Threads::run_async(Kind kind, int, const WarpOperands&)
{
    throw Fault{std::string(name_of(kind)) + " is emulated in modules alone"};
}

void Threads::pass_named_barrier(const std::vector<int>&) { throw Fault{"barriers of some threads are emulated in modules alone"}; }
bool Threads::has_completed(int, const Operands&) { throw Fault{"mbarriers are emulated in modules alone"}; }
std::string Threads::describe_wait(int, const Operands&) const { return ""; }

void Threads::collective(Kind kind, const Operands& operands)
{
    Thread& self = *threads_[current_];
    self.waits_for = kind;
    self.operands = operands;
    self.fiber.suspend();
}

void Threads::load(void* to, const void* address, int bytes)
{
    guarded([&] {
        const int tile = memory_.read({current_, "load", bytes}, address, to);
        if (tile >= 0) wavefronts.record(tile, current_ % warp_lanes, bytes, memory_.offset_of(address));
    });
}

void Threads::store(void* address, const void* from, int bytes)
{
    guarded([&] {
        const int tile = memory_.write({current_, "store", bytes}, address, from);
        if (tile >= 0) wavefronts.record(tile + 1, current_ % warp_lanes, bytes, memory_.offset_of(address));
    });
}

void Threads::fail(const std::string& text)
{
    fault_ = text;
    threads_[current_]->fiber.abandon();
}

void Threads::interrupt(const std::string& signal, const void* address)
{
    if (current_ < 0) return;
    std::string what = address ? memory_.describe_misuse(address) : "";
    if (what.empty()) what = threads_[current_]->fiber.overflowed_at(address) ? "the stack overflows" : signal;
    fail(name_of_thread(current_) + ": " + what);
}

void collective(Kind kind, const Operands& operands) { threads->collective(kind, operands); }
void load(void* to, const void* address, int bytes) { threads->load(to, address, bytes); }
void store(void* address, const void* from, int bytes) { threads->store(address, from, bytes); }
int thread_index() { return threads->thread_index(); }

}  // namespace wt::emulator
