// SPDX-License-Identifier: Apache-2.0

#include "grid/grid.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "machine/fault.h"

// The program's static variables lie between these symbols of the linker.
extern "C" char __data_start, _end;

namespace wt::emulator {

namespace {

constexpr std::size_t window_bytes = 256 * 1024, before = 4096;  // the largest shared memory is 228 KB
constexpr int unset = 0xfe;  // bytes that nobody wrote: large negative numbers in every type

}  // namespace

Index threadIdx, blockIdx, blockDim, gridDim;
Grid* grid = nullptr;

Grid::Grid(char* arrays, std::size_t arrays_bytes)
    : Threads(static_cast<Memory&>(*this))
    , arrays_(arrays)
    , arrays_bytes_(arrays_bytes)
{
    // accesses beyond are signals
    void* const memory = mmap(nullptr, window_bytes + 2 * before, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    window_ = static_cast<char*>(memory) + before;
    mprotect(window_, window_bytes, PROT_READ | PROT_WRITE);
    grid = this;
}

Grid::~Grid() { munmap(window_ - before, window_bytes + 2 * before); }

std::string Grid::run(const GridLaunch& launch)
{
    launch_ = launch;
    if (std::size_t(launch.shared_bytes) > window_bytes) return "so much shared memory is not emulated";
    clock_.start_launch();
    array_states_.reset("the arrays", arrays_, arrays_bytes_);
    for (const Array& array : launch.arrays) array_states_.own(array.name, array.offset, array.size, true);
    blockDim = {unsigned(launch.threads), 1, 1};
    gridDim = {unsigned(launch.blocks), 1, 1};
    for (int block = 0; block < launch.blocks; ++block) {
        blockIdx = {unsigned(block), 0, 0};
        clock_.start_block();
        std::memset(window_, unset, window_bytes);
        shared_states_.reset("shared memory", window_, window_bytes);
        shared_states_.own("shared memory", 0, std::size_t(launch.shared_bytes), false);
        // it is not known which are written, so that all count as initialised
        static_states_.reset("static memory", &__data_start, std::size_t(&_end - &__data_start));
        static_states_.own("static memory", 0, std::size_t(&_end - &__data_start), true);
        copies_.assign(std::size_t(launch.threads), {});
        try {
            run_threads(launch.threads, launch.sm);
        } catch (const Fault& fault) {
            return "block " + std::to_string(block) + ", " + fault.text;
        }
    }
    return "";
}

void Grid::body() { launch_.call(launch_.arguments.data()); }
void Grid::resumed(int thread) { threadIdx = {unsigned(thread), 0, 0}; }

void Grid::access(Way way, const void* address, int bytes, int alignment)
{
    ByteStates* const states = is_shared(address)                ? &shared_states_
                             : is_global(address)                ? &array_states_
                             : static_states_.contains(address) ? &static_states_
                                                                 : nullptr;
    if (!states || thread_index() < 0) return;  // a thread's own memory
    const char* const names[] = {"load", "store", "atomic operation"};
    guarded([&] { states->access({thread_index(), names[int(way)], bytes}, way, address, alignment); });
}

void Grid::access_global(void* address, int bytes)
{
    guarded([&] { array_states_.access({thread_index(), "atomic operation", bytes}, Way::atomic, address, bytes); });
}

void Grid::start_copy(unsigned to, const void* from, int bytes, int there)
{
    Copy copy{shared_pointer(to), from, bytes, there, {}};
    guarded([&] {
        const Access reads{thread_index(), "asynchronous load", bytes}, writes{thread_index(), "asynchronous store", bytes};
        if (launch_.sm < 80) throw Fault{writes.text() + " needs sm_80"};
        if (there < 0 || there > bytes) throw Fault{reads.text() + ": " + std::to_string(there) + " of them are to be read"};
        if (reinterpret_cast<std::uintptr_t>(from) % std::size_t(bytes) != 0)
            throw Fault{reads.text() + " misaligned at " + array_states_.describe(from)};
        if (there > 0) array_states_.access({thread_index(), "asynchronous load", there}, Way::read, from, 1);
        shared_states_.start_copy(writes, copy.to, bytes);
    });
    if (there > 0) std::memcpy(copy.data, from, std::size_t(there));
    std::memset(copy.to, unset, std::size_t(bytes));  // what was there may be gone at any time from now on
    copies_[std::size_t(thread_index())].push_back(copy);
}

void Grid::wait_for_copies()
{
    for (const Copy& copy : copies_[std::size_t(thread_index())]) {
        guarded([&] {
            if (std::memcmp(copy.data, copy.from, std::size_t(copy.there)) != 0)
                throw Fault{name_of_thread(thread_index()) + ": what it copies changed at "
                            + array_states_.describe(copy.from)};
        });
        std::memcpy(copy.to, copy.data, std::size_t(copy.bytes));
        shared_states_.end_copy(thread_index(), copy.to, copy.bytes);
    }
    copies_[std::size_t(thread_index())].clear();
}

bool Grid::is_global(const void* address) const
{
    const char* const at = static_cast<const char*>(address);
    return at >= arrays_ && at < arrays_ + arrays_bytes_;
}

bool Grid::is_shared(const void* address) const
{
    const char* const at = static_cast<const char*>(address);
    return at >= window_ && at < window_ + window_bytes;
}

unsigned long Grid::shared_address(const void* pointer) const
{
    return static_cast<unsigned long>(static_cast<const char*>(pointer) - window_) + shared_start;
}

void* Grid::shared_pointer(unsigned long address) const { return window_ + (long(address) - long(shared_start)); }

int Grid::read(const Access& access, const void* address, void* to)
{
    shared_states_.access(access, Way::read, address, access.bytes);
    std::memcpy(to, address, std::size_t(access.bytes));
    return -1;
}

int Grid::write(const Access& access, void* address, const void* from)
{
    shared_states_.access(access, Way::write, address, access.bytes);
    std::memcpy(address, from, std::size_t(access.bytes));
    return -1;
}

std::size_t Grid::offset_of(const void* address) const
{
    return std::size_t(static_cast<const char*>(address) - window_);
}

std::string Grid::misuse(const void* address) const
{
    const char* const at = static_cast<const char*>(address);
    if (at < window_ - before || at >= window_ + window_bytes + before) return "";
    return "an access out of bounds at " + shared_states_.describe(address);
}

}  // namespace wt::emulator
