// SPDX-License-Identifier: Apache-2.0
//
// A launch of a module's kernel: blocks one after the other, on shared memory and on the arrays of the launch.

#pragma once

#include <string>
#include <vector>

#include "machine/threads.h"
#include "grid/byte_states.h"
#include "grid/module.h"

namespace wt::emulator {

// An array in the memory of the launch
struct Array {
    std::string name;
    std::size_t offset, size;
};

struct GridLaunch {
    void (*call)(void** arguments);
    std::vector<void*> arguments;
    int blocks, threads;
    int sm;  // compute capability, e.g. 90
    int shared_bytes;
    std::vector<Array> arrays;
};

// Every plain access of the module comes here by the calls that -fsanitize=thread puts in front of it, see traced.cpp.
class Grid : public Threads, private Memory {
public:
    // Arrays lie in so many bytes from `arrays` on.
    Grid(char* arrays, std::size_t arrays_bytes);
    ~Grid() override;

    // Runs a kernel and returns what is wrong, or "".
    std::string run(const GridLaunch& launch);

    // ---- called by threads; what is wrong ends the thread
    void access(Way way, const void* address, int bytes, int alignment);
    void access_global(void* address, int bytes);  // atomic and aligned
    void start_copy(unsigned to, const void* from, int bytes, int there);
    void wait_for_copies();

    bool is_global(const void* address) const;
    bool is_shared(const void* address) const;
    unsigned long shared_address(const void* pointer) const;
    void* shared_pointer(unsigned long address) const;

private:
    struct Copy {
        void* to;
        const void* from;
        int bytes, there;
        unsigned char data[16];  // what was to be read when the copy started
    };

    void body() override;
    void resumed(int thread) override;

    int read(const Access& access, const void* address, void* to) override;
    int write(const Access& access, void* address, const void* from) override;
    std::size_t offset_of(const void* address) const override;
    void pass_barrier() override { clock_.pass_barrier(); }
    std::string misuse(const void* address) const override;

    Clock clock_;
    ByteStates shared_states_{clock_}, array_states_{clock_};
    ByteStates static_states_{clock_};  // of __shared__ variables, which are static ones of the program
    char* arrays_;
    std::size_t arrays_bytes_;
    char* window_;  // shared memory
    GridLaunch launch_{};
    std::vector<std::vector<Copy>> copies_;  // of each thread, on their way
};

extern Grid* grid;

}  // namespace wt::emulator
