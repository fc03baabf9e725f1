// SPDX-License-Identifier: Apache-2.0

#include "machine/block.h"

#include <cstring>

#include "machine/fault.h"

namespace wt::emulator {

std::string Block::run(const Launch& launch)
{
    launch_ = launch;
    try {
        run_threads(launch.threads, launch.sm);
        if (launch.complete) memory.require_all_written();
    } catch (const Fault& fault) {
        wavefronts.match();
        return fault.text;
    }
    return "";
}

void Block::body()
{
    alignas(16) unsigned char alpha[8], beta[8];
    std::memcpy(alpha, launch_.alpha, std::size_t(launch_.scalar_bytes));
    std::memcpy(beta, launch_.beta, std::size_t(launch_.scalar_bytes));
    launch_.kernel(alpha, memory.address(0), memory.address(1), beta, memory.address(2));
}

}  // namespace wt::emulator
