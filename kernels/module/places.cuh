// SPDX-License-Identifier: Apache-2.0
//
// Neighbouring elements of a row of a tile, in shared memory or in an array, as vectors where the memory allows it.
#pragma once

#include "arch/memory.cuh"
#include "module/loads.cuh"

namespace wt_module {

using Coord = wp::tile_coord_t<2>;

template <int N> struct Count {
    static constexpr int value = N;
};

template <typename T, int COUNT> struct Elements {
    T at[COUNT];
};

// Returns a value of another type that has the same bits.
template <class To, class From> inline __device__ To bits_as(const From& from)
{
    static_assert(sizeof(To) == sizeof(From), "both have the same bits");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

// Returns elements of another type as a vector.
template <typename T, typename U, int COUNT> inline __device__ wt::Vector<T, COUNT> converted(const Elements<U, COUNT>& elements)
{
    wt::Vector<T, COUNT> vector;
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
        vector.at[e] = elements.at[e];
    return vector;
}

// Reads COUNT neighbouring elements, PIECE at a time.
template <int COUNT, int PIECE, typename T> inline __device__ Elements<T, COUNT> read_pieces(const T* start)
{
    Elements<T, COUNT> found;
#pragma unroll
    for (int i = 0; i < COUNT; i += PIECE) {
        const auto piece = wt::arch::load<PIECE>(start + i);
#pragma unroll
        for (int e = 0; e < PIECE; ++e)
            found.at[i + e] = piece.at[e];
    }
    return found;
}

// Returns COUNT neighbouring elements of a shared tile.
template <int COUNT, typename T, typename Layout, bool Owner>
inline __device__ Elements<T, COUNT> elements(const wp::tile_shared_t<T, Layout, Owner>& tile, Coord coord)
{
    using Stride = typename Layout::Stride;
    constexpr int SIZE = static_cast<int>(sizeof(T)), WIDEST = VECTOR_BYTES % SIZE == 0 ? VECTOR_BYTES / SIZE : 1;
    constexpr int PIECE = COUNT < WIDEST ? COUNT : WIDEST;
    const T* const start = tile.data.ptr + Layout::index_from_coord(coord);
    if constexpr (PIECE > 1 && Stride::dim(1) == 1 && Stride::dim(0) % PIECE == 0) {
        if (__cvta_generic_to_shared(tile.data.ptr) % VECTOR_BYTES == 0) {
            return read_pieces<COUNT, PIECE>(start);
        }
    }
    Elements<T, COUNT> found;
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        found.at[i] = start[i * Stride::dim(1)];
    return found;
}

// An array, and the place of a tile in it.
template <typename Global> struct Place {
    using T = typename Global::Type;
    static constexpr int SIZE = static_cast<int>(sizeof(T));

    const Global& tile;
    bool has_vectors;  // true if the tile begins and its rows begin with vectors

    static inline __device__ Place of(const Global& tile)
    {
        const auto& strides = tile.data.strides;
        const void* const array = tile.data.data;
        const bool starts_with_vectors = __isGlobal(array) && strides[1] == SIZE && strides[0] % VECTOR_BYTES == 0
            && reinterpret_cast<uint64_t>(array) % VECTOR_BYTES == 0;
        const bool lies_in_vectors = tile.offset[1] * SIZE % VECTOR_BYTES == 0 && tile.offset[1] >= 0 && tile.offset[0] >= 0;
        return {tile, starts_with_vectors && lies_in_vectors};
    }

    // True if the tile lies in the array and consists of vectors.
    template <typename Shape> inline __device__ bool is_whole() const
    {
        const auto& shape = tile.data.shape;
        return has_vectors && Shape::dim(1) * SIZE % VECTOR_BYTES == 0
            && (!Global::bounds_check || (tile.offset[0] + Shape::dim(0) <= shape[0] && tile.offset[1] + Shape::dim(1) <= shape[1]));
    }

    // True if the part of the tile that lies in the array consists of vectors.
    template <typename Shape> inline __device__ bool has_whole_vectors() const
    {
        const int columns = tile.data.shape[1];
        return has_vectors && Shape::dim(1) * SIZE % VECTOR_BYTES == 0
            && (!Global::bounds_check || columns * SIZE % VECTOR_BYTES == 0 || tile.offset[1] + Shape::dim(1) <= columns);
    }

    // True unless an element lies beyond the array's last row or column.
    inline __device__ bool is_before_end(int row, int column) const
    {
        const auto& shape = tile.data.shape;
        return !Global::bounds_check || (tile.offset[0] + row < shape[0] && tile.offset[1] + column < shape[1]);
    }

    // True if COUNT neighbouring elements of a row are vectors. `column` is a multiple of COUNT.
    template <int COUNT> inline __device__ bool is_vector(int row, int column) const
    {
        const auto& shape = tile.data.shape;
        return has_vectors
            && (!Global::bounds_check || (tile.offset[0] + row < shape[0] && tile.offset[1] + column + COUNT <= shape[1]));
    }

    // Stores neighbouring elements of a row, except those beyond the array.
    template <typename U, int COUNT> inline __device__ void put(int row, int column, const Elements<U, COUNT>& elements) const
    {
        if (!is_before_end(row, column))
            return;
        if constexpr (is_piece(COUNT)) {
            if (is_vector<COUNT>(row, column)) {
                store_vector(row, column, elements);
                return;
            }
        }
#pragma unroll
        for (int e = 0; e < COUNT; ++e)
            tile.store(wp::tile_coord(row, column + e), elements.at[e]);
    }

    // The same for a tile that has_whole_vectors(). A store of 16 bytes has a predicate, and no branch.
    template <typename U, int COUNT>
    inline __device__ void put_vector(int row, int column, const Elements<U, COUNT>& elements) const
    {
        static_assert(is_piece(COUNT), "one instruction stores the elements");
        if constexpr (COUNT * SIZE == VECTOR_BYTES) {
            const int y = tile.offset[0] + row, x = tile.offset[1] + column;  // a thread's vectors often have one x
            char* const to = wt::arch::mad_wide(tile.data.strides[0], y, reinterpret_cast<char*>(tile.data.data + x));
            wt::arch::store_global_if(is_before_end(row, column), to, bits_as<wt::Vector<wt::u32, 4>>(converted<T>(elements)));
        } else if (is_before_end(row, column)) {
            store_vector(row, column, elements);
        }
    }

    // Loads neighbouring elements of a row, with zeros outside the array. If WHOLE, the tile is.
    template <bool WHOLE, int COUNT> inline __device__ Elements<T, COUNT> get(int row, int column) const
    {
        constexpr int PIECE = is_piece(COUNT) ? COUNT : VECTOR_BYTES % SIZE == 0 ? VECTOR_BYTES / SIZE : 1;
        if constexpr (COUNT % PIECE == 0 && is_piece(PIECE)) {
            if (WHOLE || is_vector<COUNT>(row, column))
                return read_pieces<COUNT, PIECE>(static_cast<const T*>(address(row, column)));
        }
        Elements<T, COUNT> found;
#pragma unroll
        for (int e = 0; e < COUNT; ++e)
            found.at[e] = tile.load(wp::tile_coord(row, column + e));
        return found;
    }

private:
    // True for a number of elements that one instruction accesses.
    static inline __device__ constexpr bool is_piece(int count)
    {
        const int bytes = count * SIZE;
        return bytes <= VECTOR_BYTES && (bytes & (bytes - 1)) == 0;
    }

    template <typename U, int COUNT>
    inline __device__ void store_vector(int row, int column, const Elements<U, COUNT>& elements) const
    {
        wt::arch::store(address(row, column), converted<T>(elements));
    }

    inline __device__ T* address(int row, int column) const
    {
        const int y = tile.offset[0] + row, x = tile.offset[1] + column;
        return reinterpret_cast<T*>(reinterpret_cast<char*>(tile.data.data) + int64_t(tile.data.strides[0]) * y) + x;
    }
};

}  // namespace wt_module
