// SPDX-License-Identifier: Apache-2.0

#include "machine/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

namespace wt::emulator {

namespace {

constexpr std::size_t stack_bytes = 256 * 1024;
Fiber* starting = nullptr;

std::size_t page_bytes() { return std::size_t(sysconf(_SC_PAGESIZE)); }

}  // namespace

Fiber::~Fiber() { if (memory_) munmap(memory_, stack_bytes + page_bytes()); }

void Fiber::enter()
{
    Fiber* const self = starting;
    for (;;) {
        self->idle_ = false;
        self->body_(self->argument_);
        self->idle_ = true;
        self->suspend();
    }
}

void Fiber::start(void (*body)(void*), void* argument)
{
    body_ = body;
    argument_ = argument;
    if (idle_) return resume();
    if (!memory_) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* const memory = mmap(nullptr, stack_bytes + page_bytes(), PROT_READ | PROT_WRITE, flags, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        memory_ = memory;
        mprotect(memory_, page_bytes(), PROT_NONE);
    }
    getcontext(&context_);
    context_.uc_stack.ss_sp = static_cast<char*>(memory_) + page_bytes();
    context_.uc_stack.ss_size = stack_bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, enter, 0);
    starting = this;
    if (_setjmp(caller_) == 0) setcontext(&context_);
}

void Fiber::resume() { if (_setjmp(caller_) == 0) _longjmp(here_, 1); }

void Fiber::suspend() { if (_setjmp(here_) == 0) _longjmp(caller_, 1); }

void Fiber::abandon()
{
    idle_ = false;
    _longjmp(caller_, 1);
}

bool Fiber::overflowed_at(const void* address) const
{
    const char* const start = static_cast<const char*>(memory_);
    return memory_ && address >= start && address < start + page_bytes();
}

}  // namespace wt::emulator
