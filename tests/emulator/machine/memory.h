// SPDX-License-Identifier: Apache-2.0
//
// What threads need of the memory that they access.

#pragma once

#include <cstddef>
#include <string>

namespace wt::emulator {

// What a thread is about to do
struct Access {
    int thread;
    const char* instruction;
    int bytes;

    // "thread 0 (warp 0, lane 0): load of 16 bytes"
    std::string text() const;
};

class Memory {
public:
    virtual ~Memory() = default;

    // Moves bytes after all checks, and returns the index of the tile, or -1 where there are no tiles. Throws Fault.
    virtual int read(const Access& access, const void* address, void* to) = 0;
    virtual int write(const Access& access, void* address, const void* from) = 0;

    // Bytes from the start of shared memory; for an address that passed a check
    virtual std::size_t offset_of(const void* address) const = 0;

    // A block barrier: accesses before it do not race with accesses after it.
    virtual void pass_barrier() = 0;

    // What is wrong with an address that a thread dereferenced and must not, or "".
    virtual std::string misuse(const void* address) const = 0;
};

}  // namespace wt::emulator
