// SPDX-License-Identifier: Apache-2.0
//
// Chains of products: the C of a product goes through elementwise operations and reductions of rows to the A of the next one, in
// registers. Each warp has ROWS rows of all matrices and columns of a chain, 16 of each instruction, which WARPS warps compute together.
// With g = lane / 4, q = lane % 4 and r(i) the first of the warp's rows of instruction i, a lane has of them
//
//   a matrix   at[(i * COLUMNS / 8 + j) * 4 + e]: row r(i) + 8 * (e / 2) + g, column 8 * j + 2 * q + e % 2, as an instruction has D
//   a column   at[2 * i + half]: row r(i) + 8 * half + g, which four lanes have
//
// Elementwise operations are those of stores.cuh, for all elements of a lane at once. The B of a product lies in a stage buffer.
#pragma once

#include "arch/sum.cuh"
#include "arch/tensor_store.cuh"
#include "module/fragments.cuh"
#include "module/pipeline.cuh"
#include "module/reductions.cuh"
#include "module/stores.cuh"
#include "module/warpgroup_product.cuh"

namespace wt_module {

// The address of the stages in some memory.
inline __device__ unsigned first_stage(unsigned memory)
{
    return uniform((memory + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT);
}

// The buffers of a tile in two stages. If there is one stage, they are one.
struct ChainBuffer {
    unsigned current;  // that is multiplied in this iteration
    unsigned sum;      // of both addresses

    inline __device__ void start(unsigned memory, unsigned offset, unsigned distance)
    {
        current = first_stage(memory) + offset;
        sum = 2 * current + distance;
    }
    inline __device__ unsigned next() const { return sum - current; }
    inline __device__ void swap() { current = next(); }
};

template <int ROWS, int WARPS> inline __device__ int chain_row(int thread, int i, int half)
{
    const int warp = thread / 32;
    return warp / WARPS * WARPS * ROWS + (i * WARPS + warp % WARPS) * 16 + 8 * half + thread % 32 / 4;
}

// The index of the thread, hidden from the compiler: otherwise it keeps addresses that follow from the index in registers over the loop.
inline __device__ int chain_thread() { return wt::arch::opaque(static_cast<int>(threadIdx.x)); }

// Calls act(index, row, column) for each pair of neighbouring elements of a lane: the index of the first one, and its place.
template <int ROWS, int WARPS, int COLUMNS, class Act> inline __device__ void for_each_pair(const Act& act)
{
    const int thread = chain_thread(), q = thread % 4;
#pragma unroll
    for (int i = 0; i < ROWS / 16; ++i)
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                act((i * COLUMNS / 8 + j) * 4 + 2 * half, chain_row<ROWS, WARPS>(thread, i, half), 8 * j + 2 * q);
}

// Reads a lane's elements of a dense shared tile: a column, or a matrix.
template <int ROWS, int WARPS, typename T, int COUNT, typename Layout, bool Owner>
inline __device__ void read_fragment(Elements<T, COUNT>& to, const wp::tile_shared_t<T, Layout, Owner>& tile)
{
    if constexpr (COUNT == ROWS / 8) {
        const int thread = chain_thread();
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            to.at[i] = tile.data.ptr[chain_row<ROWS, WARPS>(thread, i / 2, i % 2)];
    } else {
        constexpr int COLUMNS = Layout::Shape::dim(1);
        for_each_pair<ROWS, WARPS, COLUMNS>([&](int index, int row, int column) {
            const auto pair = wt::arch::load<2>(tile.data.ptr + row * COLUMNS + column);
            to.at[index] = pair.at[0], to.at[index + 1] = pair.at[1];
        });
    }
}

// Writes them.
template <int ROWS, int WARPS, typename T, int COUNT, typename Layout, bool Owner>
inline __device__ void write_fragment(const Elements<T, COUNT>& from, wp::tile_shared_t<T, Layout, Owner>& tile)
{
    if constexpr (COUNT == ROWS / 8) {
        if (const int thread = chain_thread(); thread % 4 == 0) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                tile.data.ptr[chain_row<ROWS, WARPS>(thread, i / 2, i % 2)] = from.at[i];
        }
    } else {
        constexpr int COLUMNS = Layout::Shape::dim(1);
        for_each_pair<ROWS, WARPS, COLUMNS>([&](int index, int row, int column) {
            wt::arch::store(tile.data.ptr + row * COLUMNS + column, wt::Vector<T, 2> {from.at[index], from.at[index + 1]});
        });
    }
}

// The same for a column in registers, as Warp's tiles in registers have it. It passes through shared memory that nothing else uses.
template <int ROWS, int WARPS, typename T, int COUNT, typename Layout>
inline __device__ void read_column(Elements<T, COUNT>& to, const wp::tile_register_t<T, Layout>& tile, void* memory)
{
    T* const column = static_cast<T*>(memory);
    WP_TILE_SYNC();
#pragma unroll
    for (int i = 0; i < Layout::NumRegs; ++i)
        if (const int row = Layout::linear_from_register(i); Layout::valid(row))
            column[row] = tile.data[i];
    WP_TILE_SYNC();
    const int thread = chain_thread();
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        to.at[i] = column[chain_row<ROWS, WARPS>(thread, i / 2, i % 2)];
}

template <int ROWS, int WARPS, typename T, int COUNT, typename Layout>
inline __device__ void write_column(const Elements<T, COUNT>& from, wp::tile_register_t<T, Layout>& tile, void* memory)
{
    T* const column = static_cast<T*>(memory);
    if (const int thread = chain_thread(); thread % 4 == 0) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            column[chain_row<ROWS, WARPS>(thread, i / 2, i % 2)] = from.at[i];
    }
    WP_TILE_SYNC();
#pragma unroll
    for (int i = 0; i < Layout::NumRegs; ++i)
        if (const int row = Layout::linear_from_register(i); Layout::valid(row))
            tile.data[i] = column[row];
    WP_TILE_SYNC();
}

// Keeps the compiler from fusing a product with a sum in a later statement: adds -0, which changes no number. In Warp's code it cannot
// fuse them if the product goes to shared memory, or if a barrier lies between.
template <int COUNT> inline __device__ void keep_rounded(Elements<float, COUNT>& elements)
{
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        elements.at[i] = wt::arch::add_unfused(elements.at[i], -0.0f);
}
template <typename T, int COUNT> inline __device__ void keep_rounded(Elements<T, COUNT>&) {}

// Returns a matrix whose columns all are the given one.
template <int COUNT, typename T, int HALVES> inline __device__ Elements<T, COUNT> spread_column(const Elements<T, HALVES>& column)
{
    constexpr int PER_BLOCK = COUNT / (HALVES / 2);  // elements of 16 rows
    Elements<T, COUNT> matrix;
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        matrix.at[i] = column.at[i / PER_BLOCK * 2 + i % 4 / 2];
    return matrix;
}

// Reduces the rows of a matrix with a commutative function. If ORDERED, in the order of reductions.cuh.
template <int ROWS, bool ORDERED, int COUNT, typename Function>
inline __device__ Elements<float, ROWS / 8> reduce_fragment(const Function& function, const Elements<float, COUNT>& matrix)
{
    constexpr int BLOCKS = COUNT / (ROWS / 16) / 4;  // of eight columns
    constexpr int WIDTH = ORDERED ? REDUCED_PART / 8 : BLOCKS;
    constexpr unsigned ALL = 0xffffffffu;
    static_assert(BLOCKS % WIDTH == 0, "rows are whole parts");
    Elements<float, ROWS / 8> result;
#pragma unroll
    for (int half = 0; half < ROWS / 8; ++half) {
#pragma unroll
        for (int part = 0; part < BLOCKS; part += WIDTH) {
            float x[WIDTH][2];
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    x[j][e] = matrix.at[(half / 2 * BLOCKS + part + j) * 4 + half % 2 * 2 + e];
            float total;
            if constexpr (ORDERED) {
                float y[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    y[e] = function(function(x[0][e], x[2][e]), function(x[1][e], x[3][e]));
                    y[e] = function(y[e], __shfl_xor_sync(ALL, y[e], 2));
                    y[e] = function(y[e], __shfl_xor_sync(ALL, y[e], 1));
                }
                total = function(y[0], y[1]);
            } else {
                float y[WIDTH];
#pragma unroll
                for (int j = 0; j < WIDTH; ++j)
                    y[j] = function(x[j][0], x[j][1]);
#pragma unroll
                for (int step = 1; step < WIDTH; step *= 2)
#pragma unroll
                    for (int j = 0; j + step < WIDTH; j += 2 * step)
                        y[j] = function(y[j], y[j + step]);
                total = y[0];
                total = function(total, __shfl_xor_sync(ALL, total, 2));
                total = function(total, __shfl_xor_sync(ALL, total, 1));
            }
            result.at[half] = part == 0 ? total : function(result.at[half], total);
        }
    }
    return result;
}

// ---- products of 16-bit elements. A: a lane's registers of ROWS / 16 x DEPTH / 16 instructions

// Reads A from a dense shared tile.
template <int ROWS, int WARPS, int DEPTH, typename Tile>
inline __device__ void read_operand(unsigned (&a)[ROWS / 16][DEPTH / 16][4], const Tile& tile)
{
    const int thread = chain_thread(), q = thread % 4;
#pragma unroll
    for (int i = 0; i < ROWS / 16; ++i)
#pragma unroll
        for (int step = 0; step < DEPTH / 16; ++step)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int row = chain_row<ROWS, WARPS>(thread, i, r % 2), column = 16 * step + 8 * (r / 2) + 2 * q;
                a[i][step][r] = *reinterpret_cast<const unsigned*>(tile.data.ptr + row * DEPTH + column);
            }
}

// Returns one instruction's registers of a matrix in registers, whose elements are where A has them.
template <int DEPTH, typename T, int COUNT>
inline __device__ void operand_of(unsigned (&a)[4], const Elements<T, COUNT>& matrix, int i, int step)
{
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const int index = (i * DEPTH / 8 + 2 * step + r / 2) * 4 + r % 2 * 2;
        a[r] = bits_as<unsigned>(Elements<T, 2> {matrix.at[index], matrix.at[index + 1]});
    }
}

template <int DEPTH, int ROWS>
inline __device__ void operand_of(unsigned (&a)[4], const unsigned (&operand)[ROWS][DEPTH / 16][4], int i, int step)
{
#pragma unroll
    for (int r = 0; r < 4; ++r)
        a[r] = operand[i][step][r];
}

// A stage buffer with B's columns as rows if K_MAJOR, or else with its rows.
template <class T_, int LINES, int DEPTH, bool IS_K_MAJOR> struct ChainOperand {
    using T = T_;
    static constexpr bool K_MAJOR = IS_K_MAJOR;
    using Layout = BufferLayout<K_MAJOR ? LINES : DEPTH, static_cast<int>(sizeof(T)) * (K_MAJOR ? DEPTH : LINES)>;
};

// The product of A and B, or its sum with a matrix in registers if ADD, by mma.sync. `meanwhile` starts loads.
template <class T, int ROWS, int COLUMNS, int DEPTH, bool K_MAJOR, bool ADD, int COUNT, typename A, class Meanwhile>
inline __device__ void multiply_chain(Elements<float, COUNT>& sums, const A& a, unsigned buffer, const Meanwhile& meanwhile)
{
    using B = MatricesB<ChainOperand<T, COLUMNS, DEPTH, K_MAJOR>, COLUMNS>;
    static_assert(COUNT == ROWS * COLUMNS / 32 && B::FITS, "a warp has whole instructions");
    const unsigned from = B::place(0);
    if constexpr (!ADD)
        clear(sums.at);
    meanwhile();
#pragma unroll
    for (int step = 0; step < DEPTH / 16; ++step) {
        typename B::Values b;
        B::load(b, from, 0, 16 * step, buffer);
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i) {
            unsigned registers[4];
            operand_of<DEPTH>(registers, a, i, step);
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; ++j)
                multiply<T>(reinterpret_cast<wt::f32(&)[4]>(sums.at[(i * COLUMNS / 8 + j) * 4]), registers, b[j]);
        }
    }
}

// Left operands of a warpgroup: that of an instruction, by the index of its rows and its step of K.
template <int ROWS, int DEPTH> struct OperandInRegisters {
    static constexpr int STEPS = DEPTH / 16;

    unsigned registers[ROWS / 16 * STEPS][4];

    template <typename A> inline __device__ explicit OperandInRegisters(const A& a)
    {
#pragma unroll
        for (int i = 0; i < ROWS / 16 * STEPS; ++i)
            operand_of<DEPTH>(registers[i], a, i / STEPS, i % STEPS);
    }

    inline __device__ const auto& at(int i, int step) const { return registers[i * STEPS + step]; }
    inline __device__ void has_read() { wt::arch::wgmma_has_read(registers); }
};

// A left operand in shared memory, where wgmma reads it. It is the copy of a dense tile of LINES rows.
template <class T, int LINES, int DEPTH> struct SharedOperand {
    using Buffer = ChainOperand<T, LINES, DEPTH, true>;

    unsigned buffer;

    template <typename Tile> inline __device__ void start(unsigned memory, unsigned offset, const Tile& tile)
    {
        constexpr int PER_VECTOR = VECTOR_BYTES / static_cast<int>(sizeof(T)), PER_ROW = DEPTH / PER_VECTOR;
        buffer = first_stage(memory) + offset;
        for (int i = chain_thread(); i < LINES * PER_ROW; i += WP_TILE_BLOCK_DIM) {
            const auto vector = wt::arch::load<4>(reinterpret_cast<const unsigned*>(tile.data.ptr + i * PER_VECTOR));
            const unsigned to = buffer + Buffer::Layout::offset(i / PER_ROW, i % PER_ROW);
            wt::arch::store(static_cast<unsigned*>(__cvta_shared_to_generic(to)), vector);
        }
        wt::arch::fence_for_wgmma();
    }
};

template <class Buffer> struct OperandInBuffer {
    wt::u64 first;  // descriptor

    inline __device__ wt::u64 at(int i, int step) const { return wt::arch::wgmma_after(first, wgmma_offset<Buffer>(64 * i, 16 * step)); }
    inline __device__ void has_read() const {}
};

template <int ROWS, int DEPTH, typename A> inline __device__ auto left_operand(const A& a) { return OperandInRegisters<ROWS, DEPTH>(a); }

template <int ROWS, int DEPTH, class T, int LINES> inline __device__ auto left_operand(const SharedOperand<T, LINES, DEPTH>& a)
{
    using Buffer = typename SharedOperand<T, LINES, DEPTH>::Buffer;
    return OperandInBuffer<Buffer> {wgmma_operand<Buffer>(a.buffer, warpgroup() * 4 * ROWS)};
}

template <class B, bool ADD, int BLOCKS> __forceinline__ __device__ void multiply_step(wt::f32 (&sums)[BLOCKS][4], const unsigned (&a)[4], wt::u64 b)
{
    wt::arch::wgmma<!B::K_MAJOR, ADD>(sums, a, b, typename B::T {});
}

template <class B, bool ADD, int BLOCKS> __forceinline__ __device__ void multiply_step(wt::f32 (&sums)[BLOCKS][4], wt::u64 a, wt::u64 b)
{
    wt::arch::wgmma<false, !B::K_MAJOR, ADD>(sums, a, b, typename B::T {});
}

// Columns from DONE on, the largest power of two first, and a step of K, by wgmma.
template <class B, bool ADD, int LEFT, int DONE, int BLOCKS, typename A>
__forceinline__ __device__ void multiply_columns(wt::f32 (&sums)[BLOCKS][4], const A& a, wt::u64 b, int k)
{
    constexpr int N = LEFT >= 256 ? 256 : LEFT >= 128 ? 128 : LEFT >= 64 ? 64 : LEFT >= 32 ? 32 : 16;
    auto& part = reinterpret_cast<wt::f32 (&)[N / 8][4]>(sums[DONE / 8]);
    multiply_step<B, ADD>(part, a, wt::arch::wgmma_after(b, wgmma_offset<B>(DONE, k)));
    if constexpr (LEFT > N)
        multiply_columns<B, ADD, LEFT - N, DONE + N>(sums, a, b, k);
}

// The product of A and B, or its sum with a matrix in registers if ADD, by wgmma. Meanwhile, `meanwhile` starts loads.
template <class T, int ROWS, int COLUMNS, int DEPTH, bool K_MAJOR, bool ADD, int COUNT, typename A, class Meanwhile>
inline __device__ void multiply_chain_by_warpgroups(Elements<float, COUNT>& sums, const A& a, unsigned buffer, const Meanwhile& meanwhile)
{
    using B = ChainOperand<T, COLUMNS, DEPTH, K_MAJOR>;
    constexpr int BLOCKS = ROWS / 16;
    static_assert(COUNT == ROWS * COLUMNS / 32, "a warp has whole instructions");
    auto& accumulators = reinterpret_cast<wt::f32 (&)[BLOCKS][COLUMNS / 8][4]>(sums.at);
    auto left = left_operand<ROWS, DEPTH>(a);
    const wt::u64 b = wgmma_operand<B>(buffer, 0);
    wt::arch::wgmma_fence();
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
        multiply_columns<B, ADD, COLUMNS, 0>(accumulators[i], left.at(i, 0), b, 0);
#pragma unroll
    for (int step = 1; step < DEPTH / 16; ++step)
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
            multiply_columns<B, true, COLUMNS, 0>(accumulators[i], left.at(i, step), b, 16 * step);
    wt::arch::wgmma_commit();
    meanwhile();
    complete_products(accumulators);
    left.has_read();
}

}  // namespace wt_module
