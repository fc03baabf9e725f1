// SPDX-License-Identifier: Apache-2.0
//
// The interface of memory that threads access.

#pragma once

#include <cstddef>
#include <string>

namespace wt::emulator {

// An access that a thread is about to make
struct Access {
    int thread;
    const char* instruction;
    int bytes;

    // Returns for example "thread 0 (warp 0, lane 0): load of 16 bytes".
    std::string text() const;
};

class Memory {
public:
    virtual ~Memory() = default;

    // Checks the access, copies the bytes, and returns the index of the tile, or -1 if the memory has no tiles. Throws Fault.
    virtual int read(const Access& access, const void* address, void* to) = 0;
    virtual int write(const Access& access, void* address, const void* from) = 0;

    // Returns the offset in bytes from the start of shared memory. The address has passed the checks.
    virtual std::size_t offset_of(const void* address) const = 0;

    // Notes a block barrier. Accesses before it do not race with accesses after it.
    virtual void pass_barrier() = 0;

    // Notes a barrier of one warp. Accesses of its lanes before it do not race with those after it.
    virtual void pass_warp_barrier(int warp) = 0;

    // Explains why a thread must not dereference an address, or returns "".
    virtual std::string describe_misuse(const void* address) const = 0;
};

}  // namespace wt::emulator
