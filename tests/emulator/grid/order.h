// SPDX-License-Identifier: Apache-2.0
//
// The order of a block's or a cluster's accesses that barriers and mbarriers guarantee: a vector clock for each thread. Barriers of a
// warp, of some warps, of the block or of the cluster join the clocks of their threads. An arrival at an mbarrier releases what its thread knows, and who waits
// for the phase acquires it.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "machine/warp_times.h"

namespace wt::emulator {

constexpr int most_threads = 4096;  // of a cluster

class Order {
public:
    using Times = std::vector<std::uint32_t>;  // of each thread; 0 is before its first access

    void reset(int threads)
    {
        known_.assign(std::size_t(threads), Times(std::size_t(threads), 0));
        passed_.assign(std::size_t(threads), 0);
        for (int thread = 0; thread < threads; ++thread) advance(thread);
    }

    std::uint32_t now(int thread) const { return known_[std::size_t(thread)][std::size_t(thread)]; }

    // True if accesses of another thread up to that time are ordered before those of this thread from now on.
    bool is_past(int other, std::uint32_t time, int thread) const
    {
        return other == thread || time <= passed_[std::size_t(other)] || time <= known_[std::size_t(thread)][std::size_t(other)];
    }

    void release(int thread, Times& to)
    {
        join(to, known_[std::size_t(thread)]);
        advance(thread);
    }
    // What a thread knows of the block's accesses, for threads of other blocks.
    Times released(int thread)
    {
        Times found = passed_;
        release(thread, found);
        return found;
    }
    void acquire(int thread, const Times& from)
    {
        join(known_[std::size_t(thread)], from);
        advance(thread);
    }

    void pass_barrier()
    {
        for (int thread = 0; thread < int(known_.size()); ++thread) {
            passed_[std::size_t(thread)] = now(thread);
            advance(thread);
        }
    }
    void pass_barrier(const std::vector<int>& warps)
    {
        Times all;
        const auto each = [&](auto act) {
            for (const int warp : warps)
                for (int lane = 0; lane < threads_of_warp; ++lane) act(warp * threads_of_warp + lane);
        };
        each([&](int thread) { release(thread, all); });
        each([&](int thread) { acquire(thread, all); });
    }

private:
    void advance(int thread) { ++known_[std::size_t(thread)][std::size_t(thread)]; }
    static void join(Times& to, const Times& from)
    {
        if (to.size() < from.size()) to.resize(from.size(), 0);
        for (std::size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
    }

    std::vector<Times> known_;  // what each thread knows of all others
    Times passed_;              // known to all threads, by barriers of the block
};

// The threads that read a byte since the last barrier of the block, each with its time: one, or a set.
struct Readers {
    static constexpr std::int16_t several = -1;

    std::int16_t thread;
    std::uint32_t time;  // or the number of the set
};

class ReaderSets {
public:
    void clear()
    {
        sets_.clear();
        next_.clear();
    }

    // The readers when a thread reads the byte too. Reads that are ordered before need not be remembered.
    Readers with(Readers before, int thread, const Order& order)
    {
        const Readers alone{std::int16_t(thread), order.now(thread)};
        if (before.thread != Readers::several && order.is_past(before.thread, before.time, thread)) return alone;
        const auto [found, is_new] = next_.try_emplace(Key{before, alone}, alone);
        if (!is_new) return found->second;
        Set left;
        each(before, [&](Readers one) {
            if (!order.is_past(one.thread, one.time, thread)) left.push_back(one);
        });
        if (left.empty()) return alone;
        left.push_back(alone);
        sets_.push_back(std::move(left));
        return found->second = {Readers::several, std::uint32_t(sets_.size()) - 1};
    }

    // True if all reads are ordered before the accesses of a thread from now on.
    bool are_past(Readers readers, int thread, const Order& order) const
    {
        bool all = true;
        each(readers, [&](Readers one) { all = all && order.is_past(one.thread, one.time, thread); });
        return all;
    }

private:
    using Set = std::vector<Readers>;
    struct Key {
        Readers before, alone;

        bool operator==(const Key& other) const
        {
            return before.thread == other.before.thread && before.time == other.before.time && alone.thread == other.alone.thread
                && alone.time == other.alone.time;
        }
    };
    struct Hash {
        std::size_t operator()(const Key& key) const
        {
            const std::uint64_t before = std::uint64_t(std::uint16_t(key.before.thread)) << 32 | key.before.time;
            const std::uint64_t alone = std::uint64_t(std::uint16_t(key.alone.thread)) << 32 | key.alone.time;
            return std::size_t((before * 0x9e3779b97f4a7c15u ^ alone) * 0xff51afd7ed558ccdu >> 16);
        }
    };

    template <class Act> void each(Readers readers, Act&& act) const
    {
        if (readers.thread != Readers::several) return act(readers);
        for (const Readers one : sets_[readers.time]) act(one);
    }

    std::vector<Set> sets_;
    std::unordered_map<Key, Readers, Hash> next_;
};

}  // namespace wt::emulator
