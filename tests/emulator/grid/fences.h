// SPDX-License-Identifier: Apache-2.0
//
// The order that fences and atomic operations give to the accesses of different blocks.
//
// A thread that executes a fence and then an atomic operation releases the accesses that barriers order before the fence.
// A thread that executes an atomic operation on the same address later, and then a fence, acquires them. Barriers pass
// them on to other threads of its block.

#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "order.h"

namespace wt::emulator {

class Fences {
public:
    void start_launch() { *this = Fences(); }
    void start_block(std::uint32_t now)
    {
        block_ = now;
        fenced_.clear();
        found_.clear();
        acquired_.clear();
    }

    void fence(int thread, std::uint32_t now, Order& order)
    {
        for (const Released& one : found_[thread]) acquired_.push_back({one, thread, order.now(thread)});
        found_[thread].clear();
        fenced_[thread] = {block_, now, order.released(thread)};
    }

    void atomic(int thread, const void* address)
    {
        const auto fenced = fenced_.find(thread);
        const auto released = released_.find(address);
        if (released != released_.end())
            found_[thread].insert(found_[thread].end(), released->second.begin(), released->second.end());
        if (fenced != fenced_.end()) released_[address].push_back(fenced->second);
    }

    // Returns true if an access of a thread of another block is ordered before those of this thread from now on. Several threads
    // are ordered by barriers of their block.
    bool is_ordered(std::uint32_t time, const Readers& other, int thread, const Order& order) const
    {
        for (const Acquired& one : acquired_) {
            const Released& found = one.released;
            const bool is_known = other.thread == Readers::several ? time < found.fenced
                                                                   : other.time <= found.known[std::size_t(other.thread)];
            if (found.block <= time && time <= found.fenced && is_known && order.is_past(one.thread, one.since, thread)) return true;
        }
        return false;
    }

private:
    struct Released {
        std::uint32_t block, fenced;  // the start of the block, and the barriers of the block before the fence
        Order::Times known;           // of each thread, to the one that released it
    };
    struct Acquired {
        Released released;
        int thread;
        std::uint32_t since;
    };

    std::uint32_t block_ = 1;                                // start of the present block
    std::map<const void*, std::vector<Released>> released_;  // by the atomic operations on an address
    std::map<int, Released> fenced_;                         // by each thread's last fence
    std::map<int, std::vector<Released>> found_;             // by each thread's atomic operations since its last fence
    std::vector<Acquired> acquired_;
};

}  // namespace wt::emulator
