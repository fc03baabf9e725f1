// SPDX-License-Identifier: Apache-2.0
//
// Threads of a block as coroutines of one host thread.

#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>

namespace wt::emulator {

// A stack and where it was left. ucontext makes the first switch to a stack and _longjmp all others,
// because swapcontext asks the kernel for the signal mask every time.
class Fiber {
public:
    // A fiber never moves: its stack holds its address.
    Fiber() = default;
    Fiber(const Fiber&) = delete;
    Fiber& operator=(const Fiber&) = delete;
    ~Fiber();

    // Runs body(argument) until it suspends or returns.
    void start(void (*body)(void*), void* argument);

    // Goes on where suspend() left.
    void resume();

    // Back to whoever started or resumed this fiber.
    void suspend();

    // Back to there for good, from a signal handler too; the stack is used again by start().
    [[noreturn]] void abandon();

    // Whether an address lies in the guard page below the stack.
    bool overflowed_at(const void* address) const;

private:
    static void enter();

    void* memory_ = nullptr;
    ucontext_t context_;
    jmp_buf here_;
    jmp_buf caller_;
    void (*body_)(void*) = nullptr;
    void* argument_ = nullptr;
    bool idle_ = false;  // waits inside enter() for another body
};

}  // namespace wt::emulator
