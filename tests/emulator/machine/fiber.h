// SPDX-License-Identifier: Apache-2.0
//
// Coroutines: all threads of a block run in one host thread.

#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>

namespace wt::emulator {

// A stack and the point at which it was left. ucontext makes the first switch to a stack, and _longjmp makes all others,
// because swapcontext makes a system call for the signal mask each time.
class Fiber {
public:
    // A fiber must not move, because its stack holds its address.
    Fiber() = default;
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;
    ~Fiber();

    // Runs body(argument) until it suspends or returns.
    void start(void (*body)(void*), void* argument);

    // Continues after the last suspend().
    void resume();

    // Returns to the caller of start() or resume().
    void suspend();

    // Returns to that caller and ends the body; a signal handler may call it. start() uses the stack again.
    [[noreturn]] void abandon();

    // Returns true if an address lies in the guard page below the stack.
    bool overflowed_at(const void* address) const;

private:
    static void enter();

    void* memory_ = nullptr;
    ucontext_t context_;
    jmp_buf here_;
    jmp_buf caller_;
    void (*body_)(void*) = nullptr;
    void* argument_ = nullptr;
    bool idle_ = false;  // true while enter() waits for another body
};

}  // namespace wt::emulator
