// SPDX-License-Identifier: Apache-2.0

#include "grid/grid.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "machine/fault.h"

// The program's static variables lie between these two symbols, which the linker defines.
extern "C" char __data_start, _end;

namespace wt::emulator {

namespace {

constexpr std::size_t window_bytes = 256 * 1024, guard_bytes = 4096;  // of a block; a GPU has at most 228 KB
constexpr int most_blocks = 8;                                        // of a cluster
constexpr int unset = 0xfe;  // unwritten bytes; they are large negative numbers in every type

}  // namespace

Index threadIdx, blockIdx, blockDim, gridDim;
Grid* grid = nullptr;

Grid::Grid(char* arrays, std::size_t arrays_bytes)
    : Threads(static_cast<Memory&>(*this))
    , arrays_(arrays)
    , arrays_bytes_(arrays_bytes)
{
    // An access beyond the window raises a signal.
    void* const memory = mmap(nullptr, most_blocks * window_bytes + 2 * guard_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    window_ = static_cast<char*>(memory) + guard_bytes;
    mprotect(window_, most_blocks * window_bytes, PROT_READ | PROT_WRITE);
    grid = this;
}

Grid::~Grid() { munmap(window_ - guard_bytes, most_blocks * window_bytes + 2 * guard_bytes); }

std::string Grid::run(const GridLaunch& launch)
{
    launch_ = launch;
    if (std::size_t(launch.shared_bytes) > window_bytes) return "the emulator has only 256 KB of shared memory";
    const int cluster = launch.cluster, threads = launch.threads * cluster;
    if (cluster < 1 || cluster > most_blocks || threads > most_threads) return "the emulator has no clusters of this size";
    if (launch.blocks % cluster != 0) return "the blocks are not those of whole clusters";
    if (cluster > 1 && (launch.sm < 90 || launch.threads % warp_lanes != 0)) return "clusters need sm_90 and whole warps";
    clock_.start_launch();
    array_states_.reset("the arrays", arrays_, arrays_bytes_);
    for (const Array& array : launch.arrays) array_states_.add_region(array.name, array.offset, array.size, true);
    blockDim = {unsigned(launch.threads), 1, 1};
    gridDim = {unsigned(launch.blocks), 1, 1};
    for (int block = first_block_ = 0; block < launch.blocks; block = first_block_ += cluster) {
        clock_.start_block(threads);
        std::memset(window_, unset, std::size_t(cluster) * window_bytes);
        shared_states_.reset("shared memory", window_, std::size_t(cluster) * window_bytes);
        for (int i = 0; i < cluster; ++i) {
            const std::string name = cluster == 1 ? "shared memory" : "shared memory of block " + std::to_string(block + i);
            shared_states_.add_region(name, std::size_t(i) * window_bytes, std::size_t(launch.shared_bytes), false);
        }
        // It is unknown which of them are written, so all count as initialised.
        static_states_.reset("static memory", &__data_start, std::size_t(&_end - &__data_start));
        static_states_.add_region("static memory", 0, std::size_t(&_end - &__data_start), true);
        copies_.assign(std::size_t(threads), {});
        commits_.assign(std::size_t(threads), 0);
        tensor_copies_.start_block(window_ - shared_start);
        tensor_stores_.start_block(window_ - shared_start, threads);
        registers_.assign(std::size_t(cluster), {});
        for (Registers& registers : registers_) registers.start_block(launch.threads);
        cluster_barrier_.start_cluster(threads);
        products_.assign(std::size_t(threads + warp_lanes - 1) / warp_lanes, {});
        try {
            run_threads(launch.threads, launch.sm, cluster);
            tensor_copies_.end_block(launch.threads);
            tensor_stores_.end_block();
            for (const Registers& registers : registers_) registers.end_block();
            cluster_barrier_.end_cluster();
            for (const AsyncProducts& products : products_)
                if (!products.empty()) throw Fault{"the kernel ends while products are in flight"};
        } catch (const Fault& fault) {
            return "block " + std::to_string(block) + ", " + fault.text;
        }
    }
    return "";
}

void Grid::body() { launch_.call(launch_.arguments.data()); }
void Grid::resumed(int thread)
{
    threadIdx = {unsigned(thread % launch_.threads), 0, 0};
    blockIdx = {unsigned(first_block_ + block_of(thread)), 0, 0};
}

void Grid::access(AccessKind kind, const void* address, int bytes, int alignment)
{
    ByteStates* const states = is_shared(address)                ? &shared_states_
                             : is_global(address)                ? &array_states_
                             : static_states_.contains(address) ? &static_states_
                                                                 : nullptr;
    if (!states || thread_index() < 0) return;  // the thread's own memory
    const char* const names[] = {"load", "store", "atomic operation"};
    guarded([&] { states->access({thread_index(), names[int(kind)], bytes}, kind, address, alignment); });
}

void Grid::atomic(void* address, int bytes)
{
    access(AccessKind::atomic, address, bytes, bytes);
    if (thread_index() >= 0 && is_global(address)) clock_.fences.atomic(thread_index(), address);
}

void Grid::fence() { if (thread_index() >= 0) clock_.fences.fence(thread_index(), clock_.now(), clock_.order); }

void Grid::access_global(void* address, int bytes)
{
    guarded([&] { array_states_.access({thread_index(), "atomic operation", bytes}, AccessKind::atomic, address, bytes); });
}

void Grid::start_copy(unsigned to, const void* from, int bytes, int valid_bytes)
{
    Copy copy{shared_pointer(to), from, bytes, valid_bytes, {}, commits_[std::size_t(thread_index())]};
    guarded([&] {
        const Access reads{thread_index(), "asynchronous load", bytes}, writes{thread_index(), "asynchronous store", bytes};
        if (launch_.sm < 80) throw Fault{writes.text() + " needs sm_80"};
        if (valid_bytes < 0 || valid_bytes > bytes)
            throw Fault{reads.text() + ": the source size is " + std::to_string(valid_bytes) + " bytes"};
        if (reinterpret_cast<std::uintptr_t>(from) % std::size_t(bytes) != 0)
            throw Fault{reads.text() + " misaligned at " + array_states_.describe(from)};
        if (valid_bytes > 0)
            array_states_.access({thread_index(), "asynchronous load", valid_bytes}, AccessKind::read, from, 1);
        shared_states_.start_copy(writes, copy.to, bytes);
    });
    if (valid_bytes > 0) std::memcpy(copy.data, from, std::size_t(valid_bytes));
    std::memset(copy.to, unset, std::size_t(bytes));  // the old values may be overwritten at any time
    copies_[std::size_t(thread_index())].push_back(copy);
}

void Grid::commit_copies() { ++commits_[std::size_t(thread_index())]; }

void Grid::wait_for_copies(int pending)
{
    std::vector<Copy>& copies = copies_[std::size_t(thread_index())];
    const int first_pending = pending ? commits_[std::size_t(thread_index())] - pending : commits_[std::size_t(thread_index())] + 1;
    std::vector<Copy> left;
    for (const Copy& copy : copies) {
        if (copy.group >= first_pending) {
            left.push_back(copy);
            continue;
        }
        guarded([&] {
            if (std::memcmp(copy.data, copy.from, std::size_t(copy.valid_bytes)) != 0)
                throw Fault{name_of_thread(thread_index()) + ": the source of its copy changed at "
                            + array_states_.describe(copy.from)};
        });
        std::memcpy(copy.to, copy.data, std::size_t(copy.bytes));
        shared_states_.end_copy(thread_index(), copy.to, copy.bytes);
    }
    copies = std::move(left);
}

struct Grid::SharedReader : AsyncProducts::Reader {
    Grid& grid;
    int thread;

    SharedReader(Grid& grid, int thread)
        : grid(grid)
        , thread(thread)
    {
    }
    void read(unsigned vector) override
    {
        const Access access{thread, "wgmma operand", int(AsyncProducts::vector_bytes)};
        grid.shared_states_.access(access, AccessKind::read, grid.shared_pointer(vector, thread), access.bytes);
        grid.shared_states_.check_proxy(access, grid.shared_pointer(vector, thread));
    }
    const char* bytes(unsigned address) const override { return static_cast<const char*>(grid.shared_pointer(address, thread)); }
};

void Grid::run_async(Kind kind, int warp, const WarpOperands& lanes)
{
    AsyncProducts& products = products_[std::size_t(warp)];
    SharedReader reader(*this, warp * warp_lanes);
    if (kind == Kind::keep_registers || kind == Kind::take_registers)
        registers_[std::size_t(warp / warps_of_block())].set(warp % warps_of_block(), lanes[0]->mask, kind == Kind::take_registers);
    else if (kind == Kind::wgmma)
        products.issue(warp % 4, lanes, reader);
    else if (kind == Kind::wgmma_commit)
        products.commit();
    else
        products.wait(lanes[0]->mask, reader);
}

namespace {

unsigned mbarrier_of(const Operands& wait) { return *static_cast<const unsigned*>(wait.a); }

}  // namespace

void Grid::wait_for_phase(unsigned mbarrier, unsigned parity)
{
    bool complete = false;
    mbarrier = own(mbarrier);
    with_tensor_copies([&](TensorCopies& copies, int thread) {
        copies.begin_wait(thread, mbarrier, parity);
        complete = copies.is_complete(mbarrier, parity);
    });
    if (!complete) collective(Kind::mbarrier_wait, {nullptr, &mbarrier, nullptr, int(parity)});
    with_tensor_copies([&](TensorCopies& copies, int thread) { copies.end_wait(thread, mbarrier); });
}

void Grid::arrive_at_cluster() { guarded([&] { cluster_barrier_.arrive(thread_index()); }); }

void Grid::wait_for_cluster()
{
    bool complete = false;
    guarded([&] { complete = cluster_barrier_.is_complete(thread_index()); });
    if (!complete) collective(Kind::cluster_wait, {});
    cluster_barrier_.end_wait(thread_index());
}

// A wait for a cluster names no mbarrier.
bool Grid::has_completed(int thread, const Operands& wait)
{
    return wait.a ? tensor_copies_.is_complete(mbarrier_of(wait), unsigned(wait.mask)) : cluster_barrier_.is_complete(thread);
}

std::string Grid::describe_wait(int thread, const Operands& wait) const
{
    return wait.a ? tensor_copies_.describe_wait(thread, mbarrier_of(wait)) : cluster_barrier_.describe_wait(thread);
}

unsigned Grid::in_block(unsigned address, int block) const
{
    if (block < 0 || block >= launch_.cluster) throw Fault{"a cluster of " + std::to_string(launch_.cluster) + " blocks has no block " + std::to_string(block)};
    return address + unsigned(block) * unsigned(window_bytes);
}

bool Grid::is_global(const void* address) const
{
    const char* const at = static_cast<const char*>(address);
    return at == nullptr || (at >= arrays_ && at < arrays_ + arrays_bytes_);
}

bool Grid::is_shared(const void* address) const
{
    const char* const at = static_cast<const char*>(address);
    return at >= window_ && at < window_ + std::size_t(launch_.cluster) * window_bytes;
}

unsigned long Grid::shared_address(const void* pointer) const
{
    return static_cast<unsigned long>(static_cast<const char*>(pointer) - window_) - own(0) + shared_start;
}

void* Grid::shared_pointer(unsigned long address, int thread) const
{
    return window_ + (long(address) - long(shared_start)) + in_block(0, block_of(thread));
}

// Templates access dynamic shared memory, and __shared__ variables that they are given.
ByteStates& Grid::states_of_templates(const void* address)
{
    return static_states_.contains(address) ? static_states_ : is_global(address) ? array_states_ : shared_states_;
}

int Grid::read(const Access& access, const void* address, void* to)
{
    states_of_templates(address).access(access, AccessKind::read, address, access.bytes);
    std::memcpy(to, address, std::size_t(access.bytes));
    return -1;
}

int Grid::write(const Access& access, void* address, const void* from)
{
    states_of_templates(address).access(access, AccessKind::write, address, access.bytes);
    std::memcpy(address, from, std::size_t(access.bytes));
    return -1;
}

std::size_t Grid::offset_of(const void* address) const
{
    return std::size_t(static_cast<const char*>(address) - window_);
}

std::string Grid::describe_misuse(const void* address) const
{
    const char* const at = static_cast<const char*>(address);
    if (at < window_ - guard_bytes || at >= window_ + most_blocks * window_bytes + guard_bytes) return "";
    return "an access out of bounds at " + shared_states_.describe(address);
}

}  // namespace wt::emulator
