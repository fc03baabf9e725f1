// SPDX-License-Identifier: Apache-2.0
//
// Stages that tensor copies fill: one thread starts the copy of a whole panel of a tile. sm_90a.
//
// The threads copy the first tiles as in slots.cuh. Meanwhile the block learns whether its module has maps of all arrays. If not, the
// threads copy all tiles, and the block makes the maps after the loop.
#pragma once

#include "module/slots.cuh"
#include "module/tensor_maps.cuh"

namespace wt_module {

// Loads the tiles of one array, which does not change in the loop.
template <typename Tile> struct TensorSlotLoader : SlotLoader<Tile> {
    using Threads = SlotLoader<Tile>;
    using T = typename Threads::T;
    using Layout = typename Threads::Layout;
    using Box = TensorBox<T, Threads::ROWS, Layout::WIDTH>;
    static constexpr int PANELS = Threads::PER_ROW / Layout::VECTORS, PANEL_COLUMNS = Layout::VECTORS * Threads::PER_VECTOR;

    const void* map;  // of the array, if the block has found one

    // `keys`: memory of SET_BYTES
    template <typename Array> inline __device__ void begin(const Array& array, unsigned keys)
    {
        Threads::begin(array);
        Box::look_up(array, keys);
    }

    // Returns true if the array has a map.
    template <typename Array> inline __device__ bool find(const Array& array, unsigned keys)
    {
        map = Box::find(array, keys);
        return map != nullptr;
    }

    // Starts the copy of a tile. One thread calls it.
    template <typename Global> inline __device__ void copy(unsigned slot, const Global& source, unsigned mbarrier) const
    {
        wt::arch::mbarrier_arrive_and_expect(mbarrier, PANELS * Layout::PANEL_BYTES);
#pragma unroll
        for (int i = 0; i < PANELS; ++i)
            wt::arch::copy_tensor(slot + i * Layout::PANEL_BYTES, map, mbarrier, source.offset[1] + i * PANEL_COLUMNS, source.offset[0]);
    }
};

// A ring whose stages are filled by LOADS loaders, either by threads or by tensor copies. Behind the stages lie an mbarrier for each of
// them, and the keys for each loader.
template <int STAGES, int IN_FLIGHT, int PER_BARRIER, int STAGE_BYTES, int LOADS>
struct TensorRing : Ring<STAGES, IN_FLIGHT, PER_BARRIER, STAGE_BYTES> {
    using Threads = Ring<STAGES, IN_FLIGHT, PER_BARRIER, STAGE_BYTES>;
    using Threads::start, Threads::to, Threads::from;
    static constexpr int MBARRIER_BYTES = 8, KEYS = 128;  // KEYS: where the keys begin behind the stages

    static_assert(STAGES * MBARRIER_BYTES <= KEYS, "the mbarriers lie before the keys");

    enum { UNDECIDED, BY_THREADS, BY_TENSOR_COPIES };

    int way;          // in which stages are filled
    unsigned parity;  // of the next phase. Tensor copies begin with turn LAG, so a phase begins with stage LAG

    inline __device__ void begin(unsigned memory)
    {
        wt::arch::fence_for_wgmma();  // tensor copies overwrite what threads have stored
        Threads::begin(memory);
        way = UNDECIDED;
        parity = 1;  // the wait for the phase before the first one ends at once
        if (threadIdx.x == 0) {
#pragma unroll 1
            for (int i = 0; i < STAGES; ++i)
                wt::arch::mbarrier_initialize(mbarrier(start + i * STAGE_BYTES), LOADS);
            wt::arch::fence_initialized_mbarriers();
        }
    }

    inline __device__ unsigned keys(int load) const { return start + STAGES * STAGE_BYTES + KEYS + load * SET_BYTES; }
    inline __device__ unsigned mbarrier(unsigned stage) const
    {
        return start + STAGES * STAGE_BYTES + (stage - start) / STAGE_BYTES * MBARRIER_BYTES;
    }

    inline __device__ bool is_undecided() const { return way == UNDECIDED; }

    // Decides how stages are filled, after the first wait. `has_maps` is the same for all threads.
    template <typename... Loader> inline __device__ void decide(bool has_maps, const Loader&... loaders)
    {
        way = has_maps ? BY_TENSOR_COPIES : BY_THREADS;
        if (has_maps && threadIdx.x == 0) {
            (wt::arch::acquire_tensor_map(loaders.map), ...);
            wt::arch::fence_for_wgmma();  // tensor copies overwrite what threads have copied
        }
    }

    template <int GROUPS> inline __device__ void wait()
    {
        if (way == BY_TENSOR_COPIES)
            wt::arch::mbarrier_wait(mbarrier(from), parity);
        Threads::template wait<GROUPS>();
    }

    inline __device__ void multiplied()
    {
        Threads::multiplied();
        if (from == start + Threads::LAG * STAGE_BYTES)
            parity ^= 1;
    }

    // Ends the mbarriers, after the last turn. A barrier follows.
    inline __device__ void end() const
    {
        if (threadIdx.x == 0) {
#pragma unroll 1
            for (int i = 0; i < STAGES; ++i)
                wt::arch::mbarrier_invalidate(mbarrier(start + i * STAGE_BYTES));
        }
    }

    // Makes the map of an array for later blocks, if this one had no map of at least one array.
    template <typename Loader, typename Array> inline __device__ void remember(const Loader&, const Array& array, unsigned keys) const
    {
        if (way == BY_THREADS && threadIdx.x == 0)
            Loader::Box::make(array, keys);
    }
};

// The left side of an assignment that starts a load into a slot of a ring, `offset` bytes into its stage:
// LoadTensorSlot {loader, ring, offset} << tile = source.
template <typename Loader, typename Ring> struct TensorSlot {
    const Loader& loader;
    const Ring& ring;
    unsigned offset;

    template <typename Global> inline __device__ void operator=(const Global& source)
    {
        const unsigned address = ring.to + offset;
        if (ring.way != Ring::BY_TENSOR_COPIES)
            Slot<typename Loader::Threads> {loader, address} = source;
        else
            copy(address, source);
    }

private:
    template <typename Global> inline __device__ void copy(unsigned address, const Global& source) const
    {
        check_aligned_load<typename Loader::T, typename Loader::Shape>(source);
        if (threadIdx.x == 0)
            loader.copy(address, source, ring.mbarrier(ring.to));
    }
};

template <typename Loader, typename Ring> struct LoadTensorSlot {
    const Loader& loader;
    const Ring& ring;
    unsigned offset;

    template <typename Tile> inline __device__ TensorSlot<Loader, Ring> operator<<(Tile&) const { return {loader, ring, offset}; }
};

}  // namespace wt_module
