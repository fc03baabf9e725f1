// SPDX-License-Identifier: Apache-2.0
//
// Loads of fp32 tiles into stage buffers that have the tile's columns as rows. Products without tensor cores multiply vectors
// along M or N, so tiles that are contiguous along K are transposed on their way. Async copies of single elements do it without
// registers.
#pragma once

#include "module/stage_buffers.cuh"

namespace wt_module {

// The index that the i-th of four neighbouring elements has in its vector, in the `row`-th row of a stage buffer with a
// transposed tile. With it, a warp that copies parts of rows of the tile writes to 32 different banks: the layout of stage
// buffers has different vectors for eight rows, and this for up to four times as many. `period` is buffer_period() of the tile's
// columns.
inline __device__ constexpr int place_in_vector(int i, int row, int period) { return i ^ row / 8 % (period / 8); }

// Loads the transposes of the tiles of one array into stage buffers, as BufferLoader does with the tiles.
template <typename Tile> struct TransposingBufferLoader {
    using T = typename Tile::Type;
    using Shape = typename Tile::Layout::Shape;
    static constexpr int ROWS = Shape::dim(0), COLUMNS = Shape::dim(1), BYTES = static_cast<int>(sizeof(T));  // of the tile
    using Layout = BufferLayout<COLUMNS, ROWS * BYTES>;
    static constexpr int GROUP = VECTOR_BYTES / BYTES;  // rows of the tile that are in one vector of the stage buffer

    static_assert(GROUP == 4 && COLUMNS % 8 == 0 && ROWS % GROUP == 0 && WP_TILE_BLOCK_DIM % 32 == 0, "copies are whole");

    // A warp copies elements of one, two or four rows at a time, all of one group. It reads as few lines of the cache as it can.
    static constexpr int ALONG = buffer_period(COLUMNS), ACROSS = 32 / ALONG;
    static constexpr int STEPS = COLUMNS / ALONG, COPIES = ROWS / ACROSS, OF_GROUP = GROUP / ACROSS;

    // The warps form a grid over the tile. It has a power of two along the copies. So the index of a thread's first copy and the
    // distances to its others have no bit in common, and addresses in the stage buffer differ by constants and XOR with
    // constants.
    static constexpr int WARPS = WP_TILE_BLOCK_DIM / 32;
    static constexpr int power_of_two_in(int number) { return number & -number; }
    static constexpr int WARPS_ACROSS = power_of_two_in(WARPS) < power_of_two_in(COPIES) ? power_of_two_in(WARPS) : power_of_two_in(COPIES);
    static constexpr int WARPS_ALONG = WARPS / WARPS_ACROSS;

    const char* thread_start;  // the thread's first element of the tile at the array's start
    int stride;                // bytes between rows
    int rows, columns;         // Below these offsets a tile lies inside the array. They are zero if its rows are not contiguous.
    unsigned to;               // offset in a stage buffer of the thread's first element
    int first_step;            // of the thread's warp

    template <typename Array> inline __device__ void begin(const Array& array)
    {
        const char* const first = reinterpret_cast<const char*>(array.data);
        stride = array.strides[0];
        const bool copies = __isGlobal(first) && array.strides[1] == BYTES && stride % BYTES == 0
            && reinterpret_cast<uint64_t>(first) % BYTES == 0;
        rows = uniform(copies ? max(array.shape[0] - ROWS + 1, 0) : 0);
        columns = uniform(copies ? max(array.shape[1] - COLUMNS + 1, 0) : 0);
        const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
        first_step = uniform(warp / WARPS_ACROSS);
        const int row = row_of(warp % WARPS_ACROSS, lane), column = first_step * ALONG + lane % ALONG;
        thread_start = first + int64_t(stride) * row + column * BYTES;
        to = offset(row, column);
    }

    template <typename Global> inline __device__ void load(unsigned buffer, const Global& source) const
    {
        const int y = source.offset[0], x = source.offset[1];
        const auto& array = source.data;
        if (unsigned(y) < unsigned(rows) && unsigned(x) < unsigned(columns))
            copy<false>(buffer, y, x, ROWS, COLUMNS);
        else if (__isGlobal(array.data) && array.strides[1] == BYTES && array.strides[0] % BYTES == 0 && y >= 0 && x >= 0)
            copy<true>(buffer, y, x, wt::arch::opaque(array.shape[0] - y), wt::arch::opaque(array.shape[1] - x));
        else
            load_elements(buffer, source);
    }

private:
    // Returns the row of the tile that a lane copies.
    static inline __device__ constexpr int row_of(int copy, int lane)
    {
        return copy / OF_GROUP * GROUP + copy % OF_GROUP + lane / ALONG * OF_GROUP;
    }

    // Copies the tile at row y and column x of the array. CLIPPED: only `inside_rows` and `inside_columns` of it lie in the
    // array.
    template <bool CLIPPED> inline __device__ void copy(unsigned buffer, int y, int x, int inside_rows, int inside_columns) const
    {
        const char* const from = thread_start + int64_t(stride) * y + unsigned(x) * unsigned(BYTES);
        const unsigned first = buffer + to;
        if constexpr (CLIPPED) {  // from the thread's first element on
            const int thread = wt::arch::opaque(static_cast<int>(threadIdx.x));
            inside_rows -= row_of(thread / 32 % WARPS_ACROSS, thread % 32);
            inside_columns -= thread / 32 / WARPS_ACROSS * ALONG + thread % ALONG;
        }
#pragma unroll
        for (int copy = 0; copy < COPIES; copy += WARPS_ACROSS)
#pragma unroll
            for (int step = 0; step < STEPS; step += WARPS_ALONG)
                if (STEPS % WARPS_ALONG == 0 || first_step + step < STEPS) {
                    const unsigned group = Layout::after(first ^ copy % OF_GROUP * BYTES, copy / OF_GROUP);
                    const bool inside = !CLIPPED || (row_of(copy, 0) < inside_rows && step * ALONG < inside_columns);
                    wt::arch::copy_async<BYTES>(group + step * ALONG * Layout::WIDTH,
                        from + int64_t(stride) * row_of(copy, 0) + step * ALONG * BYTES, inside ? unsigned(BYTES) : 0u);
                }
    }

    // Returns the offset of an element of the tile in a stage buffer.
    static inline __device__ unsigned offset(int row, int column)
    {
        return Layout::offset(column, row / GROUP) + place_in_vector(row % GROUP, column, ALONG) * BYTES;
    }

    // The general case: arrays with any strides, and offsets below zero.
    template <typename Global> static __device__ void load_elements(unsigned buffer, const Global& source)
    {
        const bool is_global = __isGlobal(source.data.data);
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < ROWS * COLUMNS; i += WP_TILE_BLOCK_DIM) {
            const int row = row_of(i / 32 / STEPS, i % 32), column = i / 32 % STEPS * ALONG + i % ALONG;
            const T* const from = element<T>(source, row * COLUMNS + column);
            const unsigned address = buffer + offset(row, column);
            if (is_global)
                wt::arch::copy_async<BYTES>(address, from ? from : source.data.data, from ? unsigned(BYTES) : 0u);
            else
                *static_cast<T*>(__cvta_shared_to_generic(address)) = from ? *from : T {};
        }
    }
};

}  // namespace wt_module
