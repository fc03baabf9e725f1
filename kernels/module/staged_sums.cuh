// SPDX-License-Identifier: Apache-2.0
//
// Products of tiles in slots, whose sums stay in registers: the slots of their operands, and the way of the sums to C.
//
// P has the element type (T; float stands for tf32), m, n, k, a_k_major and b_k_major (true for a slot that is contiguous
// along K), warps_m and warps_n (the grid of warps, or of warpgroups with wgmma), and in_loop (true if add() is called for each
// iteration of a loop before complete()).
#pragma once

#include "arch/memory.cuh"
#include "module/slots.cuh"

namespace wt_module {

// The slots of A and B. A tile that is contiguous along K has rows along M or N.
template <class P, bool IS_A> struct OperandSlot {
    using T = typename P::T;
    static constexpr int EXTENT = IS_A ? P::m : P::n;
    static constexpr bool K_MAJOR = IS_A ? P::a_k_major : P::b_k_major;
    using Layout = SlotLayout<K_MAJOR ? EXTENT : P::k, static_cast<int>(sizeof(T)) * (K_MAJOR ? P::k : EXTENT)>;
};

// The number of pairs of neighbouring sums that a lane can gather from the four lanes of a row. In each block of 8 columns, a lane
// holds one pair.
inline constexpr __device__ int pairs_of(int columns) { return columns % 32 == 0 ? 4 : columns % 16 == 0 ? 2 : 1; }

// Sets sums or fragments to zero.
template <class T, int I, int J, int N> inline __device__ void clear(T (&sums)[I][J][N])
{
#pragma unroll
    for (int i = 0; i < I; ++i)
#pragma unroll
        for (int j = 0; j < J; ++j)
#pragma unroll
            for (int e = 0; e < N; ++e)
                sums[i][j][e] = 0;
}

// With BIT set in `group`, exchanges the elements whose indices differ in this bit.
template <int BIT> inline __device__ void exchange(wt::f32 (&x)[4], int group)
{
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (!(i & BIT)) {
            const float low = x[i], high = x[i | BIT];
            x[i] = group & BIT ? high : low;
            x[i | BIT] = group & BIT ? low : high;
        }
}

// Writes N neighbouring sums to C, or adds them to it.
template <bool ADD, class T, int N> inline __device__ void put(T* to, wt::Vector<T, N> sums)
{
    if constexpr (ADD) {
        const wt::Vector<T, N> old = wt::arch::load<N>(to);
#pragma unroll
        for (int i = 0; i < N; ++i)
            sums.at[i] += old.at[i];
    }
    wt::arch::store(to, sums);
}

// Writes the sums of 16 rows to a row-major C, or adds them to it. `row` and `col` are the first ones.
template <bool ADD, int COLS, int LD>
inline __device__ void put_rows(const wt::f32 (&sums)[COLS / 8][4], float* c, int row, int col)
{
    constexpr int BLOCKS = COLS % 32 == 0 ? 4 : 1;  // of eight columns, that a lane writes in an order of its own
    const int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    const int order = BLOCKS == 4 ? group % 4 : 0;  // rows may start in one bank, so neighbouring groups differ in columns
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float* const line = c + (row + group + 8 * half) * LD + col + 2 * quarter;
#pragma unroll
        for (int j = 0; j < COLS / 8; j += BLOCKS) {
            float x[4], y[4];
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) {
                x[i] = sums[j + i][2 * half];
                y[i] = sums[j + i][2 * half + 1];
            }
            if constexpr (BLOCKS == 4) {
                exchange<1>(x, order);
                exchange<1>(y, order);
                exchange<2>(x, order);
                exchange<2>(y, order);
            }
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i)
                put<ADD>(line + 8 * (j + (i ^ order)), wt::Vector<float, 2> {x[i], y[i]});
        }
    }
}

// Exchanges words between neighbouring lanes. Before, words[i] belongs to block i of all lanes. Afterwards a lane has those of
// one block, that of its index modulo BLOCKS, in the order of the lanes.
template <int BLOCKS> inline __device__ void gather_block(wt::u32 (&words)[BLOCKS], int lane)
{
#pragma unroll
    for (int bit = 1; bit < BLOCKS; bit *= 2)
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
            if (!(i & bit)) {
                const bool has_bit = lane & bit;
                const wt::u32 other = __shfl_xor_sync(0xffffffffu, has_bit ? words[i] : words[i | bit], bit);
                words[i] = has_bit ? other : words[i];
                words[i | bit] = has_bit ? words[i | bit] : other;
            }
}

// Calls act(row, column, words, fetched) for 2 * BLOCKS neighbouring sums of 16 rows. `row` and `col` are the first ones. make(pair)
// returns the WORDS words that stand for two neighbouring sums, and words[i] are those of the i-th pair. fetch(row, column) runs
// for several of them before act() runs, and `fetched` is its result.
template <int COLS, int BLOCKS, int WORDS, class Make, class Fetch, class Act>
inline __device__ void visit_rows(
    const wt::f32 (&sums)[COLS / 8][4], int row, int col, const Make& make, const Fetch& fetch, const Act& act)
{
    static_assert(COLS / 8 % BLOCKS == 0, "rows have whole groups of blocks");
    constexpr int VECTORS = COLS / 8 / BLOCKS * 2, AT_ONCE = VECTORS < 8 ? VECTORS : 8;
    const int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4, own = quarter % BLOCKS;
    const int first_row = row + group, first_column = col + 8 * own + 2 * (quarter - own);
#pragma unroll
    for (int start = 0; start < VECTORS; start += AT_ONCE) {
        decltype(fetch(0, 0)) fetched[AT_ONCE];
#pragma unroll
        for (int v = start; v < VECTORS && v < start + AT_ONCE; ++v)
            fetched[v - start] = fetch(first_row + 8 * (v % 2), first_column + 8 * BLOCKS * (v / 2));
#pragma unroll
        for (int v = start; v < VECTORS && v < start + AT_ONCE; ++v) {
            wt::u32 words[WORDS][BLOCKS];
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) {
                const auto& four = sums[v / 2 * BLOCKS + i];
                const auto made = make(wt::Vector<float, 2> {four[v % 2 * 2], four[v % 2 * 2 + 1]});
#pragma unroll
                for (int w = 0; w < WORDS; ++w)
                    words[w][i] = made.at[w];
            }
            wt::Vector<wt::u32, WORDS> gathered[BLOCKS];
#pragma unroll
            for (int w = 0; w < WORDS; ++w) {
                gather_block(words[w], quarter);
#pragma unroll
                for (int i = 0; i < BLOCKS; ++i)
                    gathered[i].at[w] = words[w][i];
            }
            act(first_row + 8 * (v % 2), first_column + 8 * BLOCKS * (v / 2), gathered, fetched[v - start]);
        }
    }
}

// Calls act(row, column, vector) for neighbouring sums of 16 rows. `row` and `col` are the first ones.
template <int COLS, class Act>
inline __device__ void visit_rows(const wt::f32 (&sums)[COLS / 8][4], int row, int col, const Act& act)
{
    const int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
#pragma unroll
    for (int j = 0; j < COLS / 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            act(row + group + 8 * half, col + 8 * j + 2 * quarter, wt::Vector<float, 2> {sums[j][2 * half], sums[j][2 * half + 1]});
}

}  // namespace wt_module
