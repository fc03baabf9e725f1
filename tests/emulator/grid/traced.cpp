// SPDX-License-Identifier: Apache-2.0
//
// The functions that -fsanitize=thread calls before each access to memory: the interface of the compiler's pass, in
// place of the run-time library. https://clang.llvm.org/docs/ThreadSanitizer.html

#include "grid/grid.h"

using wt::emulator::Way;

namespace {

void traced(Way way, const void* address, int bytes, int alignment)
{
    wt::emulator::grid->access(way, address, bytes, alignment);
}

}  // namespace

#define WT_TRACED(BYTES)                                                                                               \
    void __tsan_read##BYTES(void* at) { traced(Way::read, at, BYTES, BYTES); }                                         \
    void __tsan_write##BYTES(void* at) { traced(Way::write, at, BYTES, BYTES); }                                       \
    void __tsan_volatile_read##BYTES(void* at) { traced(Way::read, at, BYTES, BYTES); }                                \
    void __tsan_volatile_write##BYTES(void* at) { traced(Way::write, at, BYTES, BYTES); }                              \
    void __tsan_unaligned_read##BYTES(void* at) { traced(Way::read, at, BYTES, 1); }                                   \
    void __tsan_unaligned_write##BYTES(void* at) { traced(Way::write, at, BYTES, 1); }

extern "C" {
WT_TRACED(1)
WT_TRACED(2)
WT_TRACED(4)
WT_TRACED(8)
WT_TRACED(16)
void __tsan_read_range(void* at, unsigned long bytes) { traced(Way::read, at, int(bytes), 1); }
void __tsan_write_range(void* at, unsigned long bytes) { traced(Way::write, at, int(bytes), 1); }
void __tsan_vptr_update(void**, void*) { }
void __tsan_func_entry(void*) { }
void __tsan_func_exit(void) { }
void __tsan_init(void) { }
}
