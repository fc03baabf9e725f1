// SPDX-License-Identifier: Apache-2.0
//
// The state of every byte of a memory: the threads that accessed it last, and whether an async copy to it is pending.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "grid/arrivals.h"
#include "grid/fences.h"
#include "grid/order.h"
#include "machine/memory.h"

namespace wt::emulator {

enum class AccessKind { read, write, atomic, mbarrier };  // mbarrier: an instruction that takes an mbarrier

// A logical clock that advances at each barrier of a block and each block. Between two barriers, `order` has the order of the
// block's threads. Only fences and atomic operations order the accesses of two blocks. A cluster counts as one block, and `order`
// has its barriers.
class Clock {
public:
    void start_launch()
    {
        now_ = block_ = 1;
        fences.start_launch();
    }
    void start_block(int threads)
    {
        block_ = ++now_;
        order.reset(threads);
        readers.clear();
        arrivals.reset();
        fences.start_block(block_);
    }
    void pass_barrier()
    {
        ++now_;
        order.pass_barrier();
        readers.clear();
    }

    std::uint32_t now() const { return now_; }

    // Returns true if a barrier of the block or fences order an access of another thread before those of this one from now on.
    bool is_past(std::uint32_t time, const Readers& other, int thread) const
    {
        return time >= block_ ? time < now_ : fences.is_ordered(time, other, thread, order);
    }

    Order order;
    ReaderSets readers;
    Arrivals arrivals;
    Fences fences;

private:
    std::uint32_t now_ = 1, block_ = 1;
};

class ByteStates {
public:
    explicit ByteStates(Clock& clock) : clock_(clock) { }

    // Forgets all regions. `start` is the address of the memory, and `name` its name in messages.
    void reset(std::string name, const void* start, std::size_t size);

    // Adds a region that threads may access. One access must not span two regions.
    void add_region(std::string name, std::size_t offset, std::size_t size, bool initialised);

    bool contains(const void* address) const { return std::size_t(offset_of(address)) < states_.size(); }

    // Checks an access and records it. Throws Fault.
    void access(const Access& access, AccessKind kind, const void* address, int alignment);

    // Starts and ends an async copy to these bytes. In between no thread may access them.
    void start_copy(const Access& access, const void* address, int alignment);
    void end_copy(int thread, const void* address, int bytes);

    // The same for a tensor copy, and the phase that the copy belongs to. Threads that wait for it may access the bytes then.
    void start_tensor_copy(const Access& access, const void* address, std::int32_t phase);
    void end_tensor_copy(const void* address, int bytes);

    // Makes eight bytes an mbarrier, which only its own instructions may access, or ends it.
    void start_mbarrier(const Access& access, const void* address);
    void end_mbarrier(const Access& access, const void* address);

    // Notes a thread's fence.proxy.async, and checks that one lies between the stores that wgmma or a tensor store
    // sees and the barrier. Async copies need none.
    void fence_proxy(int thread) { proxy_fences_[std::size_t(thread)].push_back({clock_.now(), clock_.order.now(thread)}); }
    void check_proxy(const Access& access, const void* address) const;
    std::uint32_t proxy_fences(int thread) const { return std::uint32_t(proxy_fences_[std::size_t(thread)].size()); }

    // Starts and ends a tensor store from these bytes. In between no thread may write them.
    void start_tensor_store(const Access& access, const void* address);
    void end_tensor_store(const Access& access, const void* address);

    // Returns for example "shared memory, byte 16".
    std::string describe(const void* address) const;

private:
    enum class Content : unsigned char { copied, stored, mbarrier };
    struct State {
        std::int16_t region = -1;
        std::int16_t writer = 0, reader = 0, copier = 0;
        bool initialised = false, atomic = false, copy_pending = false;
        Content content = Content::copied;
        std::int32_t arrival = 0;  // the phase of a tensor copy to this byte, or 0
        std::int32_t storer = 0;   // 1 + the thread whose tensor store reads this byte, or 0
        std::uint32_t proxy_fences = 0;  // of the writer, before it stored
        std::uint32_t write_time = 0, read_time = 0;    // 0 means never
        std::uint32_t write_order = 0, read_order = 0;  // as in Order, and as in Readers
    };
    static_assert(std::has_unique_object_representations_v<State>);
    struct Stamp {
        std::uint32_t time, order;
    };
    struct Region {
        std::string name;
        std::size_t offset, size;
    };

    std::ptrdiff_t offset_of(const void* address) const { return static_cast<const char*>(address) - start_; }
    // True if these bytes have equal states.
    bool all_equal(std::ptrdiff_t offset, int bytes) const;
    void check_bounds(const Access& access, const void* address, int alignment, int bytes) const;
    void check_copies(const Access& access, const char* byte, const State& state) const;
    void set_content(const void* address, int bytes, Content content);
    void set_storer(const void* address, int bytes, std::int32_t storer);
    void check_race(const Access& access, const void* address, std::uint32_t time, Readers others, const char* verb) const;

    Clock& clock_;
    std::string name_;
    const char* start_ = nullptr;
    std::vector<State> states_;
    std::array<std::vector<Stamp>, most_threads> proxy_fences_;  // of each thread
    std::vector<Region> regions_;
};

}  // namespace wt::emulator
