// SPDX-License-Identifier: Apache-2.0
//
// Loops that load the tiles of one iteration while they multiply those of the iteration before.
#pragma once

#include "module/loads.cuh"

namespace wt_module {

inline __device__ unsigned address(const void* pointer) { return unsigned(__cvta_generic_to_shared(pointer)); }

template <typename Tile> inline __device__ void zero(Tile& tile)
{
    using Shape = typename Tile::Layout::Shape;
    tile = wp::tile_zeros<typename Tile::Type, Shape::dim(0), Shape::dim(1)>();
}

// The state of a loop. Behind its last iteration it waits and enters the products once more, with `more` false.
struct Steps {
    int any, more;  // whether there are loaded tiles to multiply, and whether another iteration may follow

    inline __device__ void start()
    {
        any = false;
        more = true;
    }
};

// The two buffers of a tile: its own memory, and memory that is lent. Addresses are of shared memory.
template <typename Tile> struct DoubleBuffer {
    using Pointer = decltype(Tile::data.ptr);

    unsigned current;  // what is multiplied next
    unsigned sum;  // of the addresses of both buffers

    inline __device__ void start(const Tile& tile, unsigned lent)
    {
        sum = address(tile.data.ptr) + lent;
        current = lent;
    }

    // The tile is loaded into the buffer that is not multiplied next.
    inline __device__ void load_next(Tile& tile) { point(tile, sum - current); }

    inline __device__ Pointer ready() const { return static_cast<Pointer>(__cvta_shared_to_generic(current)); }

    // The same for a view of the tile that begins so many bytes behind it.
    inline __device__ Pointer ready(unsigned offset) const
    {
        return static_cast<Pointer>(__cvta_shared_to_generic(current + offset));
    }

    // How many bytes a view begins behind the tile.
    template <typename View> static inline __device__ unsigned offset(const View& view, const Tile& tile)
    {
        return address(view.data.ptr) - address(tile.data.ptr);
    }

    inline __device__ void swap() { current = sum - current; }

    // Behind the loop: gives the tile its own memory back.
    inline __device__ void end(Tile& tile, unsigned lent) { point(tile, sum - lent); }

private:
    static inline __device__ void point(Tile& tile, unsigned to)
    {
        tile.data.ptr = static_cast<Pointer>(__cvta_shared_to_generic(to));
    }
};

}  // namespace wt_module
