// SPDX-License-Identifier: Apache-2.0

#include "grid/module.h"

#include <string>

#include "machine/fault.h"
#include "grid/grid.h"

namespace wt::emulator {

void fail(const char* text, const char* file, int line)
{
    const std::string location = *file ? ", " + std::string(file) + ":" + std::to_string(line) : "";
    grid->fail(name_of_thread(grid->thread_index()) + ": " + text + location);
}

namespace {

void require_all(unsigned lanes)
{
    if (lanes != 0xffffffffu) fail("a collective of only some lanes of a warp is not emulated", "", 0);
}

template <class Widen, class Narrow> void add_pairs(void* to, const unsigned (&pairs)[4], Widen widen, Narrow narrow)
{
    grid->access_global(to, 16);
    unsigned short* const sums = static_cast<unsigned short*>(to);
    for (int i = 0; i < 8; ++i) {
        const unsigned short term = (unsigned short)(pairs[i / 2] >> 16 * (i % 2));
        sums[i] = narrow(double(widen(sums[i])) + double(widen(term)));
    }
}

}  // namespace

void warp_barrier(unsigned lanes)
{
    require_all(lanes);
    collective(Kind::warp_barrier, {nullptr, nullptr, nullptr, 0});
}

unsigned ballot(unsigned lanes, bool vote)
{
    require_all(lanes);
    unsigned votes = 0;
    collective(Kind::ballot, {&votes, nullptr, nullptr, vote});
    return votes;
}

void shuffle(unsigned lanes, void* result, const void* value, int bytes, int source)
{
    require_all(lanes);
    collective(Kind::shuffle, {result, value, &bytes, source});
}

// The four additions are separate, but no other thread runs in between.
void vector_add_f32(void* to, float a, float b, float c, float d)
{
    grid->access_global(to, 16);
    float* const sums = static_cast<float*>(to);
    const float terms[] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) sums[i] += terms[i];
}

void vector_add_f16x2(void* to, unsigned a, unsigned b, unsigned c, unsigned d)
{
    add_pairs(to, {a, b, c, d}, [](unsigned short x) { return float_of_f16(x); }, f16_of);
}

void vector_add_bf16x2(void* to, unsigned a, unsigned b, unsigned c, unsigned d)
{
    add_pairs(to, {a, b, c, d}, [](unsigned short x) { return float_of_bits(unsigned(x) << 16); }, bf16_of);
}

unsigned active_lanes() { fail("activemask is not emulated", "", 0); }
bool is_global(const void* pointer) { return grid->is_global(pointer); }
unsigned long shared_address(const void* pointer) { return grid->shared_address(pointer); }
void* shared_pointer(unsigned long address) { return grid->shared_pointer(address); }
void atomic(void* address, int bytes) { grid->atomic(address, bytes); }
void fence() { grid->fence(); }
void fence_proxy() { grid->fence_proxy(); }
void fence_wgmma() { grid->fence_wgmma(); }
void start_copy(unsigned to, const void* from, int bytes, int valid_bytes)
{
    grid->start_copy(to, from, bytes, valid_bytes);
}
void commit_copies() { grid->commit_copies(); }
void wait_for_copies(int pending) { grid->wait_for_copies(pending); }

// Calls a function of the tensor copies for the running thread.
template <class... Parameters, class... Arguments>
void copies(void (TensorCopies::*act)(int, Parameters...), Arguments... arguments)
{
    grid->with_tensor_copies([&](TensorCopies& copies, int thread) { (copies.*act)(thread, arguments...); });
}
void start_mbarrier(unsigned mbarrier, unsigned arrivals) { copies(&TensorCopies::initialize, grid->own(mbarrier), arrivals); }
void end_mbarrier(unsigned mbarrier) { copies(&TensorCopies::invalidate, grid->own(mbarrier)); }
void fence_mbarriers() { copies(&TensorCopies::fence); }
void arrive_and_expect(unsigned mbarrier, unsigned bytes) { copies(&TensorCopies::arrive, grid->own(mbarrier), bytes); }
void arrive_at_block(unsigned mbarrier) { copies(&TensorCopies::arrive, grid->of_any_block(mbarrier), 0u); }
unsigned address_of_block(unsigned address, unsigned block)
{
    unsigned found = 0;
    grid->with_tensor_copies([&](TensorCopies&, int) { found = grid->mapped_address(address, int(block)); });
    return found;
}
void arrive_at_cluster() { grid->arrive_at_cluster(); }
void wait_for_cluster() { grid->wait_for_cluster(); }
void wait_for_phase(unsigned mbarrier, unsigned parity) { grid->wait_for_phase(mbarrier, parity); }
void start_tensor_copy(unsigned to, const void* map, unsigned mbarrier, const int* start, int rank)
{
    copies(&TensorCopies::copy, grid->own(to), map, grid->is_global(map), grid->own(mbarrier), start, rank);
}
void start_tensor_copy_to_blocks(unsigned to, const void* map, unsigned mbarrier, const int* start, int rank, unsigned blocks)
{
    grid->with_tensor_copies([&](TensorCopies& copies, int thread) {
        if (blocks == 0) throw Fault{name_of_thread(thread) + ": tensor copy to no block"};
        for (int block = 0; blocks >> block != 0; ++block)
            if (blocks >> block & 1)
                copies.copy(thread, grid->in_block(to, block), map, grid->is_global(map), grid->in_block(mbarrier, block), start, rank);
    });
}
template <class... Parameters, class... Arguments>
void stores(void (TensorStores::*act)(int, Parameters...), Arguments... arguments)
{
    grid->with_tensor_stores([&](TensorStores& stores, int thread) { (stores.*act)(thread, arguments...); });
}
void start_tensor_store(const void* map, const int* start, int rank, unsigned from)
{
    stores(&TensorStores::store, map, grid->is_global(map), grid->own(from), start, rank);
}
void commit_tensor_stores() { stores(&TensorStores::commit); }
void wait_for_tensor_stores(int pending) { stores(&TensorStores::wait, pending); }
void named_barrier(int number, int threads)
{
    if (number < 0 || number > 15) fail("a barrier's number is 0 to 15", "", 0);
    collective(Kind::named_barrier, {nullptr, nullptr, nullptr, number + 16 * threads});
}
void set_registers(int count, bool takes)
{
    collective(takes ? Kind::take_registers : Kind::keep_registers, {nullptr, nullptr, nullptr, count});
}
void check_tensor_map(const void* map) { grid->with_tensor_copies([&](TensorCopies&, int) { TensorMap::at(map); }); }

}  // namespace wt::emulator
