// SPDX-License-Identifier: Apache-2.0
//
// The error that ends a launch: the first operation of a thread that is invalid on a GPU.

#pragma once

#include <string>

namespace wt::emulator {

struct Fault {
    std::string text;
};

// Returns for example "thread 37 (warp 1, lane 5)".
inline std::string name_of_thread(int thread)
{
    return "thread " + std::to_string(thread) + " (warp " + std::to_string(thread / 32) + ", lane "
         + std::to_string(thread % 32) + ")";
}

}  // namespace wt::emulator
