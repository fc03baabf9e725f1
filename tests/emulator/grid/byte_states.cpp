// SPDX-License-Identifier: Apache-2.0

#include "grid/byte_states.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "machine/fault.h"

namespace wt::emulator {

void ByteStates::reset(std::string name, const void* start, std::size_t size)
{
    name_ = std::move(name);
    start_ = static_cast<const char*>(start);
    states_.assign(size, State{});
    regions_.clear();
    for (std::vector<Stamp>& fences : proxy_fences_) fences.clear();
}

void ByteStates::add_region(std::string name, std::size_t offset, std::size_t size, bool initialised)
{
    for (std::size_t i = offset; i < offset + size; ++i) {
        states_[i].region = std::int16_t(regions_.size());
        states_[i].initialised = initialised;
    }
    regions_.push_back({std::move(name), offset, size});
}

std::string ByteStates::describe(const void* address) const
{
    const std::ptrdiff_t offset = offset_of(address);
    if (offset >= 0 && std::size_t(offset) < states_.size() && states_[offset].region >= 0) {
        const Region& region = regions_[states_[offset].region];
        return region.name + ", byte " + std::to_string(std::size_t(offset) - region.offset);
    }
    std::string nearest = "nothing in " + name_ + ", byte " + std::to_string(offset);
    for (const Region& region : regions_)
        if (offset >= std::ptrdiff_t(region.offset))
            nearest = std::to_string(offset - std::ptrdiff_t(region.offset + region.size)) + " bytes past the end of "
                    + region.name;
    return nearest;
}

void ByteStates::check_bounds(const Access& access, const void* address, int alignment, int bytes) const
{
    const std::ptrdiff_t offset = offset_of(address);
    const auto region_at = [&](std::ptrdiff_t i) { return std::size_t(i) < states_.size() ? states_[i].region : -1; };
    for (std::ptrdiff_t i = offset; i < offset + bytes; ++i)
        if (region_at(i) < 0 || region_at(i) != region_at(offset))
            throw Fault{access.text() + " out of bounds at " + describe(start_ + i)};
    if (reinterpret_cast<std::uintptr_t>(address) % std::size_t(alignment) != 0)
        throw Fault{access.text() + " misaligned at " + describe(address)};
}

// Throws Fault if other threads made an access at `time` that is not ordered before this access.
void ByteStates::check_race(
    const Access& access, const void* address, std::uint32_t time, Readers others, const char* verb) const
{
    const bool here = time == clock_.now();
    if (time == 0 || clock_.is_past(time, others, access.thread)) return;
    if (here && clock_.readers.are_past(others, access.thread, clock_.order)) return;
    const std::string who = others.thread == Readers::several ? "several threads" : name_of_thread(others.thread);
    throw Fault{access.text() + " races at " + describe(address) + " with " + who + (here ? "" : " of another block")
                + ", which " + verb + (here ? " it since the last barrier" : " it")};
}

// Throws Fault if a copy to a byte has not arrived, or if this thread does not know that it has.
void ByteStates::check_copies(const Access& access, const char* byte, const State& state) const
{
    const char* reason = nullptr;
    if (state.copy_pending) {
        reason = state.arrival == 0 ? " has not arrived, because that thread has not waited"
                                    : " has not arrived, because no thread has waited for its mbarrier";
    } else if (!clock_.arrivals.is_visible(state.arrival, access.thread, clock_.order)) {
        reason = " has arrived, but this thread has not waited for its mbarrier";
    }
    if (reason)
        throw Fault{access.text() + " at " + describe(byte) + ", where a " + (state.arrival ? "tensor copy of " : "copy of ")
                    + name_of_thread(state.copier) + reason};
}

bool ByteStates::all_equal(std::ptrdiff_t offset, int bytes) const
{
    if (bytes < 1 || offset < 0 || std::size_t(offset) + std::size_t(bytes) > states_.size()) return false;
    const State* const first = &states_[offset];
    return std::memcmp(first, first + 1, std::size_t(bytes - 1) * sizeof(State)) == 0;
}

void ByteStates::access(const Access& access, AccessKind kind, const void* address, int alignment)
{
    const std::ptrdiff_t offset = offset_of(address);
    const bool equal = all_equal(offset, access.bytes);  // then the check of one byte serves for all
    check_bounds(access, address, alignment, equal ? 1 : access.bytes);
    const std::int16_t thread = std::int16_t(access.thread);
    const std::uint32_t now = clock_.now();
    for (int i = 0; i < (equal ? 1 : access.bytes); ++i) {
        const char* const byte = static_cast<const char*>(address) + i;
        State& state = states_[offset_of(byte)];
        if (state.copy_pending || state.arrival != 0) check_copies(access, byte, state);
        if (state.content == Content::mbarrier && kind != AccessKind::mbarrier)
            throw Fault{access.text() + " at " + describe(byte) + ", which is an mbarrier"};
        if (kind != AccessKind::write && !state.initialised)
            throw Fault{access.text() + " of unwritten memory at " + describe(byte)};
        if (!(kind == AccessKind::atomic && state.atomic))
            check_race(access, byte, state.write_time, {state.writer, state.write_order}, "wrote");
        if (kind == AccessKind::read) {
            const Readers before = state.read_time == now ? Readers{state.reader, state.read_order} : Readers{thread, 0};
            const Readers found = clock_.readers.with(before, access.thread, clock_.order);
            state.reader = found.thread;
            state.read_time = now;
            state.read_order = found.time;
        } else if (kind != AccessKind::mbarrier) {
            check_race(access, byte, state.read_time, {state.reader, state.read_order}, "read");
            if (state.storer != 0)
                throw Fault{access.text() + " at " + describe(byte) + ", which a tensor store of " + name_of_thread(state.storer - 1)
                            + " still reads, because that thread has not waited"};
            if (kind == AccessKind::write) state.read_time = 0;  // what is ordered after this is ordered after the reads
            state.initialised = true;
            state.atomic = kind == AccessKind::atomic;
            state.content = Content::stored;
            state.arrival = 0;
            state.proxy_fences = proxy_fences(thread);
            state.writer = thread;
            state.write_time = now;
            state.write_order = clock_.order.now(access.thread);
        }
    }
    if (equal) std::fill_n(states_.begin() + offset + 1, access.bytes - 1, states_[offset]);
}

void ByteStates::start_copy(const Access& access, const void* address, int alignment)
{
    this->access(access, AccessKind::write, address, alignment);
    for (int i = 0; i < access.bytes; ++i) {
        State& state = states_[offset_of(address) + i];
        state.copy_pending = true;
        state.content = Content::copied;
        state.copier = std::int16_t(access.thread);
    }
}

void ByteStates::check_proxy(const Access& access, const void* address) const
{
    for (int i = 0; i < access.bytes; ++i) {
        const State& state = states_[offset_of(address) + i];
        if (state.content != Content::stored) continue;
        const std::vector<Stamp>& fences = proxy_fences_[std::size_t(state.writer)];
        const bool fenced = state.proxy_fences < fences.size();
        if (fenced) {
            const Stamp fence = fences[state.proxy_fences];
            if (clock_.is_past(fence.time, {state.writer, fence.order}, access.thread) || clock_.order.is_past(state.writer, fence.order, access.thread)) continue;
        }
        throw Fault{access.text() + " at " + describe(address) + " was stored by " + name_of_thread(state.writer)
                    + " without fence.proxy.async" + (fenced ? " before the barrier" : "")};
    }
}

void ByteStates::start_tensor_store(const Access& access, const void* address)
{
    this->access(access, AccessKind::read, address, 1);
    check_proxy(access, address);
    set_storer(address, access.bytes, access.thread + 1);
}

// The bytes were read at any time up to now.
void ByteStates::end_tensor_store(const Access& access, const void* address)
{
    set_storer(address, access.bytes, 0);
    this->access(access, AccessKind::read, address, 1);
}

void ByteStates::set_storer(const void* address, int bytes, std::int32_t storer)
{
    for (int i = 0; i < bytes; ++i) states_[offset_of(address) + i].storer = storer;
}

void ByteStates::start_tensor_copy(const Access& access, const void* address, std::int32_t phase)
{
    start_copy(access, address, 1);
    for (int i = 0; i < access.bytes; ++i) states_[offset_of(address) + i].arrival = phase;
}

// The writer is no thread, so the bytes do not race with a thread's accesses.
void ByteStates::end_tensor_copy(const void* address, int bytes)
{
    for (int i = 0; i < bytes; ++i) {
        State& state = states_[offset_of(address) + i];
        state.copy_pending = false;
        state.write_time = 0;
    }
}

void ByteStates::start_mbarrier(const Access& access, const void* address)
{
    this->access(access, AccessKind::write, address, access.bytes);
    set_content(address, access.bytes, Content::mbarrier);
}

void ByteStates::end_mbarrier(const Access& access, const void* address)
{
    set_content(address, access.bytes, Content::stored);
    this->access(access, AccessKind::write, address, access.bytes);
}

void ByteStates::set_content(const void* address, int bytes, Content content)
{
    for (int i = 0; i < bytes; ++i) states_[offset_of(address) + i].content = content;
}

void ByteStates::end_copy(int thread, const void* address, int bytes)
{
    for (int i = 0; i < bytes; ++i) {
        State& state = states_[offset_of(address) + i];
        state.copy_pending = false;
        state.writer = std::int16_t(thread);
        state.write_time = clock_.now();
        state.write_order = clock_.order.now(thread);
    }
}

}  // namespace wt::emulator
