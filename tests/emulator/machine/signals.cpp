// SPDX-License-Identifier: Apache-2.0

#include <signal.h>
#include <unistd.h>

#include <vector>

#include "machine/threads.h"

namespace wt::emulator {

namespace {

const char* name_of_signal(int number)
{
    switch (number) {
    case SIGSEGV: return "invalid address (SIGSEGV)";
    case SIGBUS: return "invalid address (SIGBUS)";
    case SIGFPE: return "integer division by zero (SIGFPE)";
    default: return "undefined behaviour: an index out of an array's bounds, a shift or an integer overflow";
    }
}

void handle(int number, siginfo_t* info, void*)
{
    const bool has_address = number == SIGSEGV || number == SIGBUS;
    threads->interrupt(name_of_signal(number), has_address ? info->si_addr : nullptr);
    signal(number, SIG_DFL);  // no thread caused it, so it ends the process
}

}  // namespace

void install_signal_handlers()
{
    static std::vector<char> own_stack(64 * 1024);  // the thread's own stack may have overflowed
    stack_t stack{};
    stack.ss_sp = own_stack.data();
    stack.ss_size = own_stack.size();
    sigaltstack(&stack, nullptr);
    struct sigaction action {};
    action.sa_sigaction = handle;
    // The signal is not masked while the handler runs, because the handler ends with a jump.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigaction(number, &action, nullptr);
}

}  // namespace wt::emulator
