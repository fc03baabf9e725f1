// SPDX-License-Identifier: Apache-2.0
//
// The order that fences and atomic operations give to the accesses of different blocks.
//
// A thread that executes a fence and then an atomic operation releases the accesses that barriers order before the fence.
// A thread that executes an atomic operation on the same address later, and then a fence, acquires them for its block,
// whose threads may rely on them after the next barrier.

#pragma once

#include <cstdint>
#include <map>
#include <vector>

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

    void fence(int thread, std::uint32_t now)
    {
        fenced_[thread] = now;
        for (const Span& span : found_[thread]) acquired_.push_back({span, now});
        found_[thread].clear();
    }

    void atomic(int thread, const void* address)
    {
        const auto fenced = fenced_.find(thread);
        const auto released = released_.find(address);
        if (released != released_.end())
            found_[thread].insert(found_[thread].end(), released->second.begin(), released->second.end());
        if (fenced != fenced_.end() && fenced->second > block_)
            released_[address].push_back({block_, fenced->second - 1});
    }

    // Returns true if accesses of another block at that time are ordered before those from now on.
    bool is_ordered(std::uint32_t time, std::uint32_t now) const
    {
        for (const Acquired& one : acquired_)
            if (one.span.first <= time && time <= one.span.last && one.since < now) return true;
        return false;
    }

private:
    struct Span {
        std::uint32_t first, last;
    };
    struct Acquired {
        Span span;
        std::uint32_t since;
    };

    std::uint32_t block_ = 1;                             // start of the present block
    std::map<const void*, std::vector<Span>> released_;  // by the atomic operations on an address
    std::map<int, std::uint32_t> fenced_;                // time of each thread's last fence
    std::map<int, std::vector<Span>> found_;             // by each thread's atomic operations since its last fence
    std::vector<Acquired> acquired_;
};

}  // namespace wt::emulator
