// SPDX-License-Identifier: Apache-2.0
//
// A block of threads that calls a device function on tiles.

#pragma once

#include <string>

#include "machine/shared_memory.h"
#include "machine/threads.h"

namespace wt::emulator {

// One call of a kernel by all threads of a block.
struct Launch {
    Kernel kernel;
    int threads;
    int sm;  // compute capability, e.g. 90
    const void* alpha;
    const void* beta;
    int scalar_bytes;
    bool complete;  // every element of a writable tile must be written
};

class Block : public Threads {
public:
    Block() : Threads(memory) { }

    // Runs a kernel on the tiles A, B and C in memory, and returns its error, or "".
    std::string run(const Launch& launch);

    SharedMemory memory;

private:
    void body() override;

    Launch launch_{};
};

}  // namespace wt::emulator
