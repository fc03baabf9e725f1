// SPDX-License-Identifier: Apache-2.0
//
// The threads that have waited for a phase of an mbarrier. They may access the bytes of its tensor copies, and so may the threads
// whose accesses are ordered after such a wait.

#pragma once

#include <bitset>
#include <cstdint>
#include <vector>

#include "grid/order.h"

namespace wt::emulator {

class Arrivals {
public:
    void reset() { phases_.assign(1, {}); }  // number 0 is no phase

    // Returns the number of a new phase.
    std::int32_t add()
    {
        phases_.emplace_back();
        return std::int32_t(phases_.size()) - 1;
    }

    // Notes that a thread has waited for a phase.
    void wait(std::int32_t phase, int thread, const Order& order)
    {
        Phase& waited = phases_[std::size_t(phase)];
        waited.threads.set(std::size_t(thread));
        waited.waits.push_back({std::int16_t(thread), order.now(thread)});
    }

    // True if the thread has waited, or is ordered after the wait of another one.
    bool is_visible(std::int32_t phase, int thread, const Order& order)
    {
        Phase& waited = phases_[std::size_t(phase)];
        for (std::size_t i = 0; i < waited.waits.size() && !waited.threads[std::size_t(thread)]; ++i)
            waited.threads[std::size_t(thread)] = order.is_past(waited.waits[i].thread, waited.waits[i].time, thread);
        return waited.threads[std::size_t(thread)];
    }

private:
    struct Phase {
        std::bitset<most_threads> threads;  // those that may access the bytes, as far as they asked
        std::vector<Readers> waits;
    };

    std::vector<Phase> phases_{1};
};

}  // namespace wt::emulator
