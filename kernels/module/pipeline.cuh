// SPDX-License-Identifier: Apache-2.0
//
// Double-buffered loops: an iteration loads its tiles while it multiplies the tiles of the iteration before.
#pragma once

#include "module/loads.cuh"

namespace wt_module {

inline __device__ unsigned address(const void* pointer) { return unsigned(__cvta_generic_to_shared(pointer)); }

template <typename Tile> inline __device__ void zero(Tile& tile)
{
    using Shape = typename Tile::Layout::Shape;
    tile = wp::tile_zeros<typename Tile::Type, Shape::dim(0), Shape::dim(1)>();
}

// The state of a pipelined loop. After the last iteration the program waits for the loads and jumps to the products once
// more, with `more` false.
struct PipelineState {
    int pending;  // true if loaded tiles wait to be multiplied
    int more;     // true if another iteration may follow

    inline __device__ void start()
    {
        pending = false;
        more = true;
    }
};

// The two buffers of a tile: its own memory, and a second buffer elsewhere. Addresses are shared-memory addresses.
template <typename Tile> struct DoubleBuffer {
    using Pointer = decltype(Tile::data.ptr);

    unsigned current;  // address of the buffer that is multiplied next
    unsigned sum;      // of both addresses

    inline __device__ void start(const Tile& tile, unsigned second)
    {
        sum = address(tile.data.ptr) + second;
        current = second;
    }

    // Points the tile at the buffer that is free, for the next load.
    inline __device__ void load_next(Tile& tile) { point(tile, sum - current); }

    // Returns the tile that is multiplied next.
    inline __device__ Pointer ready() const { return static_cast<Pointer>(__cvta_shared_to_generic(current)); }

    // Returns a view of that tile, which starts at an offset in bytes.
    inline __device__ Pointer ready(unsigned offset) const
    {
        return static_cast<Pointer>(__cvta_shared_to_generic(current + offset));
    }

    // Returns the offset of a view from its tile, in bytes.
    template <typename View> static inline __device__ unsigned offset(const View& view, const Tile& tile)
    {
        return address(view.data.ptr) - address(tile.data.ptr);
    }

    inline __device__ void swap() { current = sum - current; }

    // Points the tile at its own memory again, after the loop.
    inline __device__ void end(Tile& tile, unsigned second) { point(tile, sum - second); }

private:
    static inline __device__ void point(Tile& tile, unsigned to)
    {
        tile.data.ptr = static_cast<Pointer>(__cvta_shared_to_generic(to));
    }
};

}  // namespace wt_module
