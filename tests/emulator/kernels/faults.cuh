// SPDX-License-Identifier: Apache-2.0
//
// Functions with one fault each. A, B and C are 8 x 7 floats with gaps between the rows.

#pragma once

#include "arch/lane.cuh"
#include "arch/memory.cuh"
#include "arch/mma.cuh"

namespace faults {

using wt::arch::load;
using wt::arch::store;
using wt::arch::thread_index;

constexpr int pitch = 12, rows = 8, columns = 7;

struct Tiles {
    const float* a;
    const float* b;
    float* c;
};

inline Tiles tiles(void* a, void* b, void* c)
{
    using wt::arch::in_shared;
    return {in_shared<const float>(a), in_shared<const float>(b), in_shared<float>(c)};
}

#define WT_FAULT(name) inline void name(void*, void* a, void* b, void*, void* c)

WT_FAULT(past_the_end) { if (thread_index() == 3) load<1>(tiles(a, b, c).a + rows * pitch); }
WT_FAULT(before_the_start) { if (thread_index() == 3) load<1>(tiles(a, b, c).b - 1); }
WT_FAULT(gap) { if (thread_index() == 3) load<1>(tiles(a, b, c).a + 2 * pitch + columns); }

// The first half of this load is an element; the second half lies in a gap.
WT_FAULT(half_in_gap) { if (thread_index() == 3) load<2>(tiles(a, b, c).a + 2 * pitch + columns - 1); }
WT_FAULT(gap_store) { if (thread_index() == 3) store<1>(tiles(a, b, c).c + 2 * pitch + columns, {1.0f}); }
WT_FAULT(unwritten) { if (thread_index() == 3) load<1>(tiles(a, b, c).c + 2 * pitch + 5); }
WT_FAULT(read_only) { if (thread_index() == 3) store<1>(const_cast<float*>(tiles(a, b, c).b) + 5, {1.0f}); }
WT_FAULT(misaligned) { if (thread_index() == 3) load<2>(tiles(a, b, c).a + 2 * pitch + 1); }

// The address is aligned to 8 bytes, like the tile, and not to 16.
WT_FAULT(more_aligned_than_promised) { if (thread_index() == 3) load<4>(tiles(a, b, c).a); }

WT_FAULT(two_writers)
{
    const int thread = thread_index();
    if (thread == 3 || thread == 40) store<1>(tiles(a, b, c).c + 1, {1.0f});
}

WT_FAULT(write_after_read)
{
    const int thread = thread_index();
    if (thread == 3) load<1>(tiles(a, b, c).c + 1);
    if (thread == 40) store<1>(tiles(a, b, c).c + 1, {1.0f});
}

WT_FAULT(read_after_write)
{
    const int thread = thread_index();
    if (thread == 3) store<1>(tiles(a, b, c).c + 1, {1.0f});
    wt::arch::shuffle_xor(1.0f, 1);  // this orders lanes but not memory accesses
    if (thread == 4) load<1>(tiles(a, b, c).c + 1);
}

WT_FAULT(missing_element)
{
    const int thread = thread_index(), row = thread / columns, column = thread % columns;
    if (row < rows && thread != 17) store<1>(tiles(a, b, c).c + row * pitch + column, {1.0f});
}

WT_FAULT(two_instructions)
{
    if (thread_index() == 35) wt::arch::shuffle_xor(1.0f, 1);
    else wt::arch::shuffle_xor(1.0, 1);
}

WT_FAULT(lane_exited) { if (thread_index() != 35) wt::arch::shuffle_xor(1.0f, 1); }
WT_FAULT(warp_exited) { if (thread_index() >= 32) wt::arch::block_barrier(); }
WT_FAULT(barrier_in_half_a_warp) { if (thread_index() % 32 < 16) wt::arch::block_barrier(); }

WT_FAULT(newer_instruction)
{
    float d[4] = {};
    const wt::u32 as[4] = {}, bs[2] = {};
    wt::arch::mma_m16n8k16(d, as, bs, wt::f16{});
}

WT_FAULT(bypass) { if (thread_index() == 3) *static_cast<volatile float*>(a) = 1.0f; }

WT_FAULT(array_bounds)
{
    volatile int index = 4;
    float values[4] = {};
    if (thread_index() == 3) values[index] = 1.0f;
}

WT_FAULT(deep_stack)
{
    volatile char filler[4096] = {};
    if (thread_index() == 3) deep_stack(nullptr, a, b, nullptr, c);
    filler[0] = 1;
}

WT_FAULT(null_pointer) { if (thread_index() == 3) *static_cast<volatile int*>(nullptr) = 1; }

// ---- correct functions, each close to a faulty one

// Threads exchange elements across a barrier.
WT_FAULT(barrier_between)
{
    const int thread = thread_index(), row = thread / columns, column = thread % columns;
    float* const at = tiles(a, b, c).c + row * pitch + column;
    if (row < rows) store<1>(at, {float(thread)});
    wt::arch::block_barrier();
    const int other = rows * columns - 1 - thread;
    float* const from = tiles(a, b, c).c + other / columns * pitch + other % columns;
    const float value = row < rows ? load<1>(from).at[0] : 0.0f;
    wt::arch::block_barrier();
    if (row < rows) store<1>(at, {value});
}

// Each thread reads, writes and reads again its own element.
WT_FAULT(own_elements)
{
    const int thread = thread_index(), row = thread / columns, column = thread % columns;
    if (row >= rows) return;
    float* const at = tiles(a, b, c).c + row * pitch + column;
    store<1>(at, {load<1>(at).at[0] + load<1>(tiles(a, b, c).a).at[0]});
    store<1>(at, {load<1>(at).at[0] + 1.0f});
}

// Thread 9 stores a register that was never set.
WT_FAULT(unset_register)
{
    const int thread = thread_index(), row = thread / columns, column = thread % columns;
    float values[2];
    values[1] = 1.0f;
    if (row < rows) store<1>(tiles(a, b, c).c + row * pitch + column, {values[thread == 9 ? 0 : 1]});
}

#undef WT_FAULT

}  // namespace faults
