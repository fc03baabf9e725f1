// SPDX-License-Identifier: Apache-2.0
//
// Stores of converted tiles. Warp's tile_astype reads a shared tile into registers, from which tile_store writes single
// elements. Here each thread reads, converts and writes vectors.
#pragma once

#include "arch/memory.cuh"
#include "module/loads.cuh"

namespace wt_module {

// Converts a tile to elements of Result and stores them as vectors, if tile and array allow it. Returns true if it did.
template <typename Result, typename Tile, typename Global> inline __device__ bool store_vectors(Tile&, const Global&)
{
    return false;
}

template <typename Result, typename T, typename Layout, bool Owner, typename Global>
inline __device__ bool store_vectors(wp::tile_shared_t<T, Layout, Owner>& tile, const Global& to)
{
    using To = typename Result::Type;
    using Shape = typename Layout::Shape;
    if constexpr (!has_whole_vectors<To, Layout>() || !has_whole_vectors<T, Layout>()) {
        return false;
    } else {
        if constexpr (Global::is_aligned) {  // Warp's checks for aligned=True
            using Check = wp::tile_vectorized_check_t<To, Shape>;
            Check::validate_aligned_compile_time();
            Check::validate_aligned_runtime(to, to.byte_offset_from_coord(wp::tile_coord(0, 0)));
        }
        constexpr int COUNT = VECTOR_BYTES / static_cast<int>(sizeof(To)), PER_ROW = Shape::dim(1) / COUNT;  // of a vector, a row
        const auto& strides = to.data.strides;
        char* const array = reinterpret_cast<char*>(to.data.data);
        const int y = to.offset[0], x = to.offset[1];
        if (!__isGlobal(array) || strides[1] != sizeof(To) || strides[0] % VECTOR_BYTES != 0
            || reinterpret_cast<uint64_t>(array) % VECTOR_BYTES != 0
            || __cvta_generic_to_shared(tile.data.ptr) % VECTOR_BYTES != 0 || x % COUNT != 0 || x < 0 || y < 0)
            return false;
#pragma unroll 4
        for (int i = static_cast<int>(threadIdx.x); i < Shape::dim(0) * PER_ROW; i += WP_TILE_BLOCK_DIM) {
            const int row = i / PER_ROW, column = i % PER_ROW * COUNT;
            wt::Vector<To, COUNT> values;
#pragma unroll
            for (int e = 0; e < COUNT; ++e)
                values.at[e] = static_cast<To>(tile.data.ptr[i * COUNT + e]);
            if (!Global::bounds_check || (y + row < to.data.shape[0] && x + column + COUNT <= to.data.shape[1])) {
                char* const start = array + int64_t(strides[0]) * (y + row) + int64_t(x + column) * int64_t(sizeof(To));
                *reinterpret_cast<wt::Vector<To, COUNT>*>(start) = values;
            } else {
                for (int e = 0; e < COUNT; ++e)
                    to.store(wp::tile_coord(row, column + e), values.at[e]);
            }
        }
        return true;
    }
}

// Converts and stores element by element: the general case. Warp would hold all elements in registers.
template <typename Result, typename Tile, typename Global> inline __device__ void store_elements(Tile& tile, const Global& to)
{
    auto values = wp::tile_astype<Result>(tile);
    values.copy_to_global(to);
}

template <typename Result, typename T, typename Layout, bool Owner, typename Global>
inline __device__ void store_elements(wp::tile_shared_t<T, Layout, Owner>& tile, const Global& to)
{
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < Layout::Size; i += WP_TILE_BLOCK_DIM) {
        const auto coord = Layout::coord_from_linear(i);
        to.store(coord, static_cast<typename Result::Type>(tile.data.ptr[Layout::index_from_coord(coord)]));
    }
}

// A tile that is converted when tile_store stores it. Result is the type of Warp's converted tile.
template <typename Result, typename Tile> struct Converted {
    using Layout = typename Result::Layout;

    Tile& tile;

    template <typename Global> inline __device__ void copy_to_global(const Global& to)
    {
        if (!store_vectors<Result>(tile, to))
            store_elements<Result>(tile, to);
    }
};

template <typename Result, typename Tile> inline __device__ Converted<Result, Tile> converted(Tile& tile) { return {tile}; }

}  // namespace wt_module
