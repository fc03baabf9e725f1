// SPDX-License-Identifier: Apache-2.0
//
// The functions that code compiled with -fsanitize=thread calls before each access to memory. They take the place of the
// sanitizer's run-time library. https://clang.llvm.org/docs/ThreadSanitizer.html

#include "grid/grid.h"

using wt::emulator::AccessKind;

namespace {

void traced(AccessKind kind, const void* address, int bytes, int alignment)
{
    wt::emulator::grid->access(kind, address, bytes, alignment);
}

}  // namespace

#define WT_TRACED(BYTES)                                                                                               \
    void __tsan_read##BYTES(void* at) { traced(AccessKind::read, at, BYTES, BYTES); }                                         \
    void __tsan_write##BYTES(void* at) { traced(AccessKind::write, at, BYTES, BYTES); }                                       \
    void __tsan_volatile_read##BYTES(void* at) { traced(AccessKind::read, at, BYTES, BYTES); }                                \
    void __tsan_volatile_write##BYTES(void* at) { traced(AccessKind::write, at, BYTES, BYTES); }                              \
    void __tsan_unaligned_read##BYTES(void* at) { traced(AccessKind::read, at, BYTES, 1); }                                   \
    void __tsan_unaligned_write##BYTES(void* at) { traced(AccessKind::write, at, BYTES, 1); }

extern "C" {
WT_TRACED(1)
WT_TRACED(2)
WT_TRACED(4)
WT_TRACED(8)
WT_TRACED(16)
void __tsan_read_range(void* at, unsigned long bytes) { traced(AccessKind::read, at, int(bytes), 1); }
void __tsan_write_range(void* at, unsigned long bytes) { traced(AccessKind::write, at, int(bytes), 1); }
void __tsan_vptr_update(void**, void*) { }
void __tsan_func_entry(void*) { }
void __tsan_func_exit(void) { }
void __tsan_init(void) { }
}
