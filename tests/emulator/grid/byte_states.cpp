// SPDX-License-Identifier: Apache-2.0

#include "grid/byte_states.h"

#include <utility>

#include "machine/fault.h"

namespace wt::emulator {

namespace {

constexpr std::int16_t several = -1;

}  // namespace

void ByteStates::reset(std::string name, const void* start, std::size_t size)
{
    name_ = std::move(name);
    start_ = static_cast<const char*>(start);
    states_.assign(size, State{});
    pieces_.clear();
}

void ByteStates::own(std::string name, std::size_t offset, std::size_t size, bool initialised)
{
    for (std::size_t i = offset; i < offset + size; ++i) {
        states_[i].piece = std::int16_t(pieces_.size());
        states_[i].initialised = initialised;
    }
    pieces_.push_back({std::move(name), offset, size});
}

std::string ByteStates::describe(const void* address) const
{
    const std::ptrdiff_t offset = at(address);
    if (offset >= 0 && std::size_t(offset) < states_.size() && states_[offset].piece >= 0) {
        const Piece& piece = pieces_[states_[offset].piece];
        return piece.name + ", byte " + std::to_string(std::size_t(offset) - piece.offset);
    }
    std::string nearest = "nothing in " + name_ + ", byte " + std::to_string(offset);
    for (const Piece& piece : pieces_)
        if (offset >= std::ptrdiff_t(piece.offset))
            nearest = std::to_string(offset - std::ptrdiff_t(piece.offset + piece.size)) + " bytes past the end of "
                    + piece.name;
    return nearest;
}

void ByteStates::locate(const Access& access, const void* address, int alignment) const
{
    const std::ptrdiff_t offset = at(address);
    const auto piece_at = [&](std::ptrdiff_t i) { return std::size_t(i) < states_.size() ? states_[i].piece : -1; };
    for (std::ptrdiff_t i = offset; i < offset + access.bytes; ++i)
        if (piece_at(i) < 0 || piece_at(i) != piece_at(offset))
            throw Fault{access.text() + " out of bounds at " + describe(start_ + i)};
    if (reinterpret_cast<std::uintptr_t>(address) % std::size_t(alignment) != 0)
        throw Fault{access.text() + " misaligned at " + describe(address)};
}

// Throws Fault if another thread did something at a time that no barrier separates from now.
void ByteStates::check_race(
    const Access& access, const void* address, std::uint32_t time, int other, const char* done) const
{
    if (time == 0 || clock_.is_past(time) || (time == clock_.now() && other == access.thread)) return;
    const bool here = time == clock_.now();
    const std::string who = other == several ? "several threads" : name_of_thread(other);
    throw Fault{access.text() + " races at " + describe(address) + " with " + who + (here ? "" : " of another block")
                + ", which " + done + (here ? " it since the last barrier" : " it")};
}

void ByteStates::access(const Access& access, Way way, const void* address, int alignment)
{
    locate(access, address, alignment);
    const std::int16_t thread = std::int16_t(access.thread);
    const std::uint32_t now = clock_.now();
    for (int i = 0; i < access.bytes; ++i) {
        const char* const byte = static_cast<const char*>(address) + i;
        State& state = states_[at(byte)];
        if (state.awaited)
            throw Fault{access.text() + " at " + describe(byte) + ", where a copy of " + name_of_thread(state.copier)
                        + " has not arrived, because it did not wait"};
        if (way != Way::write && !state.initialised)
            throw Fault{access.text() + " of unwritten memory at " + describe(byte)};
        if (!(way == Way::atomic && state.atomic))
            check_race(access, byte, state.write_time, state.writer, "wrote");
        if (way == Way::read) {
            // several threads that read at one time count as one that is nobody
            state.reader = state.read_time == now && state.reader != thread ? several : thread;
            state.read_time = now;
        } else {
            check_race(access, byte, state.read_time, state.reader, "read");
            state.initialised = true;
            state.atomic = way == Way::atomic;
            state.writer = thread;
            state.write_time = now;
        }
    }
}

void ByteStates::start_copy(const Access& access, const void* address, int alignment)
{
    this->access(access, Way::write, address, alignment);
    for (int i = 0; i < access.bytes; ++i) {
        State& state = states_[at(address) + i];
        state.awaited = true;
        state.copier = std::int16_t(access.thread);
    }
}

void ByteStates::end_copy(int thread, const void* address, int bytes)
{
    for (int i = 0; i < bytes; ++i) {
        State& state = states_[at(address) + i];
        state.awaited = false;
        state.writer = std::int16_t(thread);
        state.write_time = clock_.now();
    }
}

}  // namespace wt::emulator
