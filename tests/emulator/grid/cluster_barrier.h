// SPDX-License-Identifier: Apache-2.0
//
// The barrier of a cluster: barrier.cluster.arrive and barrier.cluster.wait. All threads have to arrive, also those that have ended.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-barrier-cluster

#pragma once

#include <string>
#include <vector>

#include "grid/order.h"
#include "machine/fault.h"

namespace wt::emulator {

// All functions throw Fault.
class ClusterBarrier {
public:
    explicit ClusterBarrier(Order& order) : order_(order) { }

    void start_cluster(int threads)
    {
        threads_.assign(std::size_t(threads), {});
        arriving_ = completed_ = {};
        missing_ = threads;
        phase_ = 0;
    }

    void arrive(int thread)
    {
        Thread& own = threads_[std::size_t(thread)];
        if (own.arrivals != own.waits) throw Fault{name_of_thread(thread) + " arrives twice at the barrier of the cluster"};
        ++own.arrivals;
        order_.release(thread, arriving_);
        if (--missing_ > 0) return;
        completed_ = arriving_;
        missing_ = int(threads_.size());
        ++phase_;
    }

    bool is_complete(int thread) const
    {
        const Thread& own = threads_[std::size_t(thread)];
        if (own.arrivals == own.waits) throw Fault{name_of_thread(thread) + " waits at the barrier of the cluster, where it has not arrived"};
        return phase_ >= own.arrivals;
    }

    void end_wait(int thread)
    {
        ++threads_[std::size_t(thread)].waits;
        order_.acquire(thread, completed_);
    }

    std::string describe_wait(int thread) const
    {
        return name_of_thread(thread) + " waits at the barrier of the cluster, where too few threads arrive: "
             + std::to_string(int(threads_.size()) - missing_);
    }

    void end_cluster() const
    {
        for (int thread = 0; thread < int(threads_.size()); ++thread)
            if (threads_[std::size_t(thread)].arrivals != threads_[std::size_t(thread)].waits)
                throw Fault{name_of_thread(thread) + " ends without a wait at the barrier of the cluster, where it has arrived"};
    }

private:
    struct Thread {
        int arrivals = 0, waits = 0;
    };

    Order& order_;
    std::vector<Thread> threads_;
    Order::Times arriving_, completed_;  // what arrivals released: all of them, and those of complete phases
    int missing_ = 0, phase_ = 0;        // arrivals of this phase, and the number of complete phases
};

}  // namespace wt::emulator
