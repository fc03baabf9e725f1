// SPDX-License-Identifier: Apache-2.0

#include "grid/tensor_copies.h"

#include <cstring>

#include "machine/fault.h"

namespace wt::emulator {

namespace {

constexpr int mbarrier_bytes = 8, box_alignment = 128, unset = 0xfe;
constexpr long long most = (1 << 20) - 1;  // arrivals, and transaction bytes above and below zero

std::string number(long long count, const char* what) { return std::to_string(count) + " " + what; }

}  // namespace

void TensorCopies::start_block(char* window)
{
    window_ = window;
    mbarriers_.clear();
}

void TensorCopies::end_block(int threads) const
{
    for (const auto& [address, mbarrier] : mbarriers_) {
        if (!mbarrier.copies.empty())
            throw Fault{"the kernel ends while tensor copies to the mbarrier at " + describe(address) + " are in flight"};
        const int block = mbarrier.creator / threads;
        for (int user = 0; user < most_threads; ++user) {
            const std::uint32_t time = mbarrier.used[std::size_t(user)];
            bool is_alive = time == 0 || user / threads == block;  // while one of its threads runs
            for (int thread = block * threads; thread < (block + 1) * threads && !is_alive; ++thread)
                is_alive = clock_.order.is_past(user, time, thread);
            if (!is_alive)
                throw Fault{name_of_thread(user) + " uses the mbarrier at " + describe(address) + " of another block, which may have ended"};
        }
    }
}

TensorCopies::Mbarrier& TensorCopies::at(const Access& access, unsigned address, bool is_copy)
{
    const auto found = mbarriers_.find(address);
    if (found == mbarriers_.end()) throw Fault{access.text() + " at " + describe(address) + ", which is no mbarrier"};
    shared_.access(access, AccessKind::mbarrier, window_ + address, mbarrier_bytes);
    if (!is_copy) found->second.used[std::size_t(access.thread)] = clock_.order.now(access.thread);
    return found->second;
}

void TensorCopies::initialize(int thread, unsigned address, unsigned arrivals)
{
    const Access access{thread, "mbarrier.init", mbarrier_bytes};
    if (mbarriers_.count(address)) throw Fault{access.text() + " at " + describe(address) + ", which is an mbarrier already"};
    if (arrivals < 1 || arrivals > most) throw Fault{access.text() + " with " + number(arrivals, "arrivals")};
    shared_.start_mbarrier(access, window_ + address);
    Mbarrier mbarrier{thread, shared_.proxy_fences(thread), false, int(arrivals), int(arrivals)};
    mbarrier.numbers.push_back(clock_.arrivals.add());
    mbarrier.known.assign(most_threads, 0);
    mbarrier.used.assign(most_threads, 0);
    mbarriers_.emplace(address, std::move(mbarrier));
}

void TensorCopies::invalidate(int thread, unsigned address)
{
    const Access access{thread, "mbarrier.inval", mbarrier_bytes};
    const Mbarrier& mbarrier = at(access, address);
    if (!mbarrier.copies.empty()) throw Fault{access.text() + " at " + describe(address) + " while copies to it are in flight"};
    if (mbarrier.waiting) throw Fault{access.text() + " at " + describe(address) + " while threads wait for it"};
    for (int user = 0; user < int(mbarrier.used.size()); ++user)
        if (mbarrier.used[std::size_t(user)] != 0 && !clock_.order.is_past(user, mbarrier.used[std::size_t(user)], thread))
            throw Fault{access.text() + " races at " + describe(address) + " with " + name_of_thread(user) + ", which used it"};
    shared_.end_mbarrier(access, window_ + address);
    mbarriers_.erase(address);
}

void TensorCopies::fence(int thread)
{
    for (auto& [address, mbarrier] : mbarriers_)
        if (mbarrier.creator == thread) mbarrier.fenced = true;
}

void TensorCopies::arrive(int thread, unsigned address, unsigned expected_bytes)
{
    const Access access{thread, "mbarrier.arrive", mbarrier_bytes};
    Mbarrier& mbarrier = at(access, address);
    if (mbarrier.pending == 0)
        throw Fault{access.text() + " at " + describe(address) + ": phase " + std::to_string(mbarrier.phase)
                    + " has all its arrivals, and no thread has waited for it"};
    if (mbarrier.bytes + (long long)(expected_bytes) > most)
        throw Fault{access.text() + " at " + describe(address) + " expects " + number(expected_bytes, "bytes, which are too many")};
    mbarrier.bytes += expected_bytes;
    --mbarrier.pending;
    clock_.order.release(thread, mbarrier.arriving);
    if (mbarrier.pending == 0 && mbarrier.bytes == 0) complete_phase(mbarrier, address);
}

void TensorCopies::begin_wait(int thread, unsigned address, unsigned parity)
{
    const Access access{thread, "mbarrier.try_wait", mbarrier_bytes};
    Mbarrier& mbarrier = at(access, address);
    if (parity > 1) throw Fault{access.text() + " for the parity " + std::to_string(parity)};
    ++mbarrier.waiting;
}

bool TensorCopies::is_complete(unsigned address, unsigned parity)
{
    Mbarrier& mbarrier = mbarriers_.at(address);
    if (mbarrier.phase % 2 != parity) return true;
    while (mbarrier.arrived < mbarrier.copies.size()) {
        const Copy& copy = mbarrier.copies[mbarrier.arrived++];
        mbarrier.bytes -= copy.map.bytes();
        if (mbarrier.pending == 0 && mbarrier.bytes < 0)
            throw Fault{"phase " + std::to_string(mbarrier.phase) + " of the mbarrier at " + describe(address) + " expects "
                        + number(mbarrier.bytes + copy.map.bytes(), "bytes, fewer than the ") + number(copy.map.bytes(), "of a copy of ")
                        + name_of_thread(copy.thread)};
        if (mbarrier.bytes < -most) throw Fault{"too many bytes arrive at the mbarrier at " + describe(address) + " before they are expected"};
        if (mbarrier.pending == 0 && mbarrier.bytes == 0) {
            complete_phase(mbarrier, address);
            return true;
        }
    }
    return false;
}

void TensorCopies::complete_phase(Mbarrier& mbarrier, unsigned address)
{
    if (mbarrier.arrived < mbarrier.copies.size())
        throw Fault{"phase " + std::to_string(mbarrier.phase) + " of the mbarrier at " + describe(address)
                    + " completes while a copy of " + name_of_thread(mbarrier.copies[mbarrier.arrived].thread)
                    + " is in flight, because it expects too few bytes"};
    for (const Copy& copy : mbarrier.copies) {
        for (const TensorMap::Piece& piece : copy.pieces)
            if (std::memcmp(piece.at, &copy.box[piece.offset], std::size_t(piece.bytes)) != 0)
                throw Fault{name_of_thread(copy.thread) + ": the source of its tensor copy changed at " + arrays_.describe(piece.at)};
        for (unsigned i = 0; i < copy.box.size(); ++i) window_[copy.map.place(copy.to, i)] = copy.box[i];
        shared_.end_tensor_copy(window_ + copy.to, int(copy.box.size()));
    }
    mbarrier.copies.clear();
    mbarrier.arrived = 0;
    mbarrier.pending = mbarrier.arrivals;
    ++mbarrier.phase;
    mbarrier.completed = mbarrier.arriving;
    mbarrier.numbers.push_back(clock_.arrivals.add());
}

void TensorCopies::end_wait(int thread, unsigned address)
{
    Mbarrier& mbarrier = mbarriers_.at(address);
    --mbarrier.waiting;
    clock_.order.acquire(thread, mbarrier.completed);
    for (unsigned& known = mbarrier.known[std::size_t(thread)]; known < mbarrier.phase; ++known)
        clock_.arrivals.wait(mbarrier.numbers[known], thread, clock_.order);
    mbarrier.used[std::size_t(thread)] = clock_.order.now(thread);
}

std::string TensorCopies::describe_wait(int thread, unsigned address) const
{
    const Mbarrier& mbarrier = mbarriers_.at(address);
    const unsigned known = mbarrier.known[std::size_t(thread)];
    return name_of_thread(thread) + " waits for phase " + std::to_string(mbarrier.phase) + " of the mbarrier at " + describe(address)
         + ", which never completes: " + number(mbarrier.pending, "arrivals and ") + number(mbarrier.bytes, "bytes are missing. This thread knows of ")
         + number(known, known == 1 ? "complete phase" : "complete phases");
}

// Reads a map, and checks that an instruction may use it with a box in shared memory.
TensorMap TensorCopies::map_of(int thread, const void* map, bool map_is_in_array, int rank, unsigned box, const char* instruction) const
{
    const Access reads_map{thread, "load of a tensor map", int(sizeof(TensorMap))};
    if (map_is_in_array) arrays_.access(reads_map, AccessKind::read, map, TensorMap::alignment);
    const TensorMap found = TensorMap::at(map);
    const Access access{thread, instruction, found.bytes()};
    if (found.rank != rank)
        throw Fault{access.text() + " of " + number(rank, "dimensions, with a map of ") + std::to_string(found.rank)};
    if (found.swizzle && found.row_bytes() != found.swizzle)
        throw Fault{access.text() + ": a box that is narrower than the swizzled rows is not emulated"};
    if (box % box_alignment != 0) throw Fault{access.text() + " misaligned at " + describe(box)};
    return found;
}

void TensorCopies::copy(
    int thread, unsigned to, const void* map, bool map_is_in_array, unsigned address, const int* start, int rank)
{
    Copy copy{thread, to, map_of(thread, map, map_is_in_array, rank, to, "tensor copy"), {}, {}};
    const Access access{thread, "tensor copy", copy.map.bytes()};
    Mbarrier& mbarrier = at({thread, "tensor copy with an mbarrier", mbarrier_bytes}, address, true);
    if (!mbarrier.fenced && mbarrier.creators_proxy_fences == shared_.proxy_fences(mbarrier.creator))
        throw Fault{access.text() + ": " + name_of_thread(mbarrier.creator) + " initialized the mbarrier at " + describe(address)
                    + " without fence.mbarrier_init"};
    read(copy, start);
    shared_.start_tensor_copy(access, window_ + to, mbarrier.numbers.back());
    std::memset(window_ + to, unset, copy.box.size());  // the old values may be overwritten at any time
    mbarrier.copies.push_back(std::move(copy));
}

void TensorCopies::read(Copy& copy, const int* start)
{
    copy.box.assign(std::size_t(copy.map.bytes()), 0);
    copy.pieces = copy.map.pieces(start);
    for (const TensorMap::Piece& piece : copy.pieces) {
        arrays_.access({copy.thread, "tensor copy, load", piece.bytes}, AccessKind::read, piece.at, 1);
        std::memcpy(&copy.box[piece.offset], piece.at, std::size_t(piece.bytes));
    }
}

}  // namespace wt::emulator
