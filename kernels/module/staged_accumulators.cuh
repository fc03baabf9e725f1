// SPDX-License-Identifier: Apache-2.0
//
// Products of tiles in stage buffers, whose accumulators stay in registers: the stage buffers of their operands, and the way of
// the accumulators to C.
//
// P has the element type (T; float stands for tf32), m, n, k, a_k_major and b_k_major (true for a stage buffer that is contiguous
// along K), warps_m and warps_n (the grid of warps, or of warpgroups with wgmma), and in_loop (true if add() is called for each
// iteration of a loop before complete()).
#pragma once

#include "arch/memory.cuh"
#include "module/stage_buffers.cuh"

namespace wt_module {

// The stage buffers of A and B. A tile that is contiguous along K has rows along M or N.
template <class P, bool IS_A> struct OperandBuffer {
    using T = typename P::T;
    static constexpr int EXTENT = IS_A ? P::m : P::n;
    static constexpr bool K_MAJOR = IS_A ? P::a_k_major : P::b_k_major;
    using Layout = BufferLayout<K_MAJOR ? EXTENT : P::k, static_cast<int>(sizeof(T)) * (K_MAJOR ? P::k : EXTENT)>;
};

// The most pairs of neighbouring accumulators that a lane can have. wgmma and mma.sync give it one pair in each block of 8
// columns. An exchange (visit_rows) gives it the four pairs of a block, if 16 rows have at least one block for each lane.
inline constexpr __device__ int pairs_of(int columns) { return columns % 16 == 0 ? 4 : 1; }

// Calls act(element) for each element of an array of any number of dimensions.
template <class T, class Act> inline __device__ void for_each(T& element, const Act& act) { act(element); }
template <class T, int N, class Act> inline __device__ void for_each(T (&elements)[N], const Act& act)
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        for_each(elements[i], act);
}

// Sets accumulators or fragments to zero.
template <class T> inline __device__ void clear(T& accumulators)
{
    for_each(accumulators, [](auto& element) { element = {}; });
}

// Multiplies accumulators by a factor.
template <class T, class Sum> inline __device__ void scale_all(T& accumulators, Sum factor)
{
    for_each(accumulators, [factor](Sum& element) { element *= factor; });
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

// Exchanges the elements with the indices i and i ^ order.
inline __device__ void permute(wt::f32 (&x)[4], wt::f32 (&y)[4], int order)
{
    exchange<1>(x, order);
    exchange<1>(y, order);
    exchange<2>(x, order);
    exchange<2>(y, order);
}

// A factor that only the running program knows. It leaves zeros as they are, because it may be infinite, and a loop without
// iterations must not change C.
template <class Sum> struct RuntimeFactor {
    Sum value;
};

template <class T, class Sum> inline __device__ void scale_all(T& accumulators, RuntimeFactor<Sum> factor)
{
    for_each(accumulators, [factor](Sum& element) {
        if (element != Sum(0))
            element *= factor.value;
    });
}

// Writes N neighbouring accumulators to C, or adds them to it.
template <bool ADD, class T, int N> inline __device__ void put(T* to, wt::Vector<T, N> accumulators)
{
    if constexpr (ADD) {
        const wt::Vector<T, N> old = wt::arch::load<N>(to);
#pragma unroll
        for (int i = 0; i < N; ++i)
            accumulators.at[i] += old.at[i];
    }
    wt::arch::store(to, accumulators);
}

// Writes the accumulators of 16 rows to a row-major C, or adds them to it. `row` and `col` are the first ones.
template <bool ADD, int COLS, int LD>
inline __device__ void put_rows(const wt::f32 (&accumulators)[COLS / 8][4], float* c, int row, int col)
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
                x[i] = accumulators[j + i][2 * half];
                y[i] = accumulators[j + i][2 * half + 1];
            }
            if constexpr (BLOCKS == 4)
                permute(x, y, order);
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i)
                put<ADD>(line + 8 * (j + (i ^ order)), wt::Vector<float, 2> {x[i], y[i]});
        }
    }
}

// Writes the accumulators of 16 columns to a row-major C, or adds them to it. The registers hold them as rows of C's transpose.
// `row` and `col` are the first ones of C.
template <bool ADD, int ROWS, int LD>
inline __device__ void put_columns(const wt::f32 (&accumulators)[ROWS / 8][4], float* c, int row, int col)
{
    const int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    const bool later = quarter % 2 != 0;  // rows may start in one bank, so neighbouring quarters differ in columns
#pragma unroll
    for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const float low = accumulators[j][e], high = accumulators[j][2 + e];
            float* const line = c + (row + 8 * j + 2 * quarter + e) * LD + col + group;
            put<ADD>(line + (later ? 8 : 0), wt::Vector<float, 1> {later ? high : low});
            put<ADD>(line + (later ? 0 : 8), wt::Vector<float, 1> {later ? low : high});
        }
}

// Adds neighbouring values of C to accumulators. If loads wrote the accumulators directly, the compiler gave them consecutive
// registers, as the values of a vector have. Then FFMA read three registers of one bank, and loops of fp64 had up to 40 registers
// more.
template <class T, class... Accumulators> inline __device__ void add_values(const T* from, Accumulators&... accumulators)
{
    const wt::Vector<T, sizeof...(Accumulators)> found = wt::arch::load<sizeof...(Accumulators)>(from);
    int i = 0;
    ((accumulators += found.at[i++]), ...);
}

// Adds 16 rows of a row-major C to accumulators, in the order in which put_rows() writes them.
template <int COLS, int LD> inline __device__ void add_rows(wt::f32 (&accumulators)[COLS / 8][4], const float* c, int row, int col)
{
    constexpr int BLOCKS = COLS % 32 == 0 ? 4 : 1;
    const int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    const int order = BLOCKS == 4 ? group % 4 : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float* const line = c + (row + group + 8 * half) * LD + col + 2 * quarter;
#pragma unroll
        for (int j = 0; j < COLS / 8; j += BLOCKS) {
            float x[4], y[4];
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) {
                const auto found = wt::arch::load<2>(line + 8 * (j + (i ^ order)));
                x[i] = found.at[0], y[i] = found.at[1];
            }
            if constexpr (BLOCKS == 4)
                permute(x, y, order);
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) {
                accumulators[j + i][2 * half] += x[i];
                accumulators[j + i][2 * half + 1] += y[i];
            }
        }
    }
}

// Adds 16 columns of a row-major C to accumulators, in the order in which put_columns() writes them.
template <int ROWS, int LD> inline __device__ void add_columns(wt::f32 (&accumulators)[ROWS / 8][4], const float* c, int row, int col)
{
    const int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    const bool later = quarter % 2 != 0;
#pragma unroll
    for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const float* const line = c + (row + 8 * j + 2 * quarter + e) * LD + col + group;
            const float first = line[later ? 8 : 0], second = line[later ? 0 : 8];
            accumulators[j][e] += later ? second : first;
            accumulators[j][2 + e] += later ? first : second;
        }
}

// 16 rows of accumulators in shared memory, through which the lanes of a warp exchange them. WORDS words stand for two
// neighbouring accumulators. A lane writes such words and reads whole vectors. The vectors of a row are permuted by XOR, so that
// lanes of other rows write to other banks, if the number of vectors is a multiple of eight.
template <int COLS, int WORDS> struct ExchangedRows {
    static constexpr int ROW_BYTES = COLS / 2 * WORDS * 4, VECTORS = ROW_BYTES / VECTOR_BYTES;
    static constexpr int PERMUTED = (VECTORS & -VECTORS) < 8 ? VECTORS & -VECTORS : 8;  // neighbouring vectors that are permuted
    static constexpr int LINE_ROWS = ROW_BYTES < 128 ? 128 / ROW_BYTES : 1;             // rows that lie in 128 bytes
    static constexpr int BYTES = 16 * ROW_BYTES;

    static_assert(ROW_BYTES % (2 * VECTOR_BYTES) == 0, "all lanes read vectors");

    static constexpr int PERIOD = PERMUTED * VECTOR_BYTES;

    // Returns the offset of one of the first PERIOD bytes of a row. offset(row + 8, byte) is offset(row, byte) + 8 * ROW_BYTES,
    // because eight rows are whole cycles of permutations.
    static inline __device__ int offset(int row, int byte)
    {
        return row * ROW_BYTES + (byte ^ row / LINE_ROWS * WORDS % PERMUTED * VECTOR_BYTES);
    }
};

// Reads the words of a row with the index `group`, of groups of the size of Words, in vectors of up to 16 bytes.
template <class Rows, class Words> inline __device__ Words read_words(const char* memory, int row, int group)
{
    constexpr int BYTES = static_cast<int>(sizeof(Words)), COUNT = BYTES / 4, PIECE = COUNT < 4 ? COUNT : 4;
    Words words;
#pragma unroll
    for (int w = 0; w < COUNT; w += PIECE) {
        const int byte = BYTES * group + 4 * w;
        const int offset = Rows::offset(row, byte % Rows::PERIOD) + byte / Rows::PERIOD * Rows::PERIOD;
        const auto piece = wt::arch::load<PIECE>(reinterpret_cast<const wt::u32*>(memory + offset));
#pragma unroll
        for (int i = 0; i < PIECE; ++i)
            words.at[w + i] = piece.at[i];
    }
    return words;
}

// Writes the words of 16 rows to their memory, from a block of 8 columns on. make(pair) returns those of two neighbouring
// accumulators.
template <class Rows, int COLS, int WORDS, class Make>
inline __device__ void write_words(const wt::f32 (&accumulators)[COLS / 8][4], int first_block, char* memory, const Make& make)
{
    constexpr int STEP = 16 * WORDS, STEPS = Rows::PERIOD / STEP, BLOCKS = Rows::ROW_BYTES / STEP;  // of 8 columns
    const int lane = threadIdx.x % 32;
    int offsets[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i)  // opaque, so that the compiler does not compute them again for each block
        offsets[i] = wt::arch::opaque(Rows::offset(lane / 4, i * STEP + 4 * WORDS * (lane % 4)));
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j) {
            const auto& four = accumulators[first_block + j];
            const int block = half * 8 * Rows::ROW_BYTES + j / STEPS * Rows::PERIOD;
            wt::arch::store(reinterpret_cast<wt::u32*>(memory + offsets[j % STEPS] + block),
                            make(wt::Vector<float, 2> {four[2 * half], four[2 * half + 1]}));
        }
}

// The number of columns that a warp exchanges at a time: the largest multiple of 16 that divides all columns and is at most
// `most`.
inline constexpr __device__ int exchanged_columns(int columns, int most)
{
    int width = most < columns ? most : columns;
    while (columns % width != 0 || width % 16 != 0)
        --width;
    return width;
}

// Calls act(row, column, words, fetched) for 2 * PAIRS neighbouring accumulators of 16 rows. `row` and `col` are the first ones.
// make(pair) returns the WORDS words that stand for two neighbouring accumulators, and `words` are those of all pairs. fetch(row,
// column) runs for several of them before act() runs, and `fetched` is its result.
//
// A lane has accumulators of whole vectors only after the warp has exchanged them through `memory`, which has as many bytes as C
// in fp32, and which nothing else uses. The accumulators of each 16 rows have a part of it. A warp exchanges some columns at a
// time, so that it stores to global memory early, and needs few registers.
template <class P, int COLS, int PAIRS, int WORDS, class Make, class Fetch, class Act>
inline __device__ void visit_rows(
    const wt::f32 (&accumulators)[COLS / 8][4], char* memory, int row, int col, const Make& make, const Fetch& fetch, const Act& act)
{
    constexpr int WIDTH = exchanged_columns(COLS, WORDS == 1 ? 64 : 16 * PAIRS);
    constexpr int PER_ROW = WIDTH / 2 / PAIRS, VISITS = 16 * PER_ROW / 32;  // groups of 2 * PAIRS accumulators in a row, and for a lane
    using Rows = ExchangedRows<WIDTH, WORDS>;
    using Words = wt::Vector<wt::u32, PAIRS * WORDS>;
    const unsigned lane = threadIdx.x % 32;
    const auto row_of = [lane](unsigned visit) { return static_cast<int>((32 * visit + lane) / PER_ROW); };
    const auto group_of = [lane](unsigned visit) { return static_cast<int>((32 * visit + lane) % PER_ROW); };
    decltype(fetch(0, 0)) fetched[2][VISITS];  // of these columns and the next ones
    const auto fetch_from = [&](int done) {
#pragma unroll
        for (int v = 0; v < VISITS; ++v)
            fetched[done / WIDTH % 2][v] = fetch(row + row_of(v), col + done + 2 * PAIRS * group_of(v));
    };
    memory += (row / 16 * P::n + col) / WIDTH * Rows::BYTES;
    fetch_from(0);
#pragma unroll
    for (int done = 0; done < COLS; done += WIDTH, memory += Rows::BYTES) {
        write_words<Rows, COLS, WORDS>(accumulators, done / 8, memory, make);
        __syncwarp();
        if (done + WIDTH < COLS)
            fetch_from(done + WIDTH);
        Words words[VISITS];
#pragma unroll
        for (int v = 0; v < VISITS; ++v)
            words[v] = read_words<Rows, Words>(memory, row_of(v), group_of(v));
#pragma unroll
        for (int v = 0; v < VISITS; ++v)
            act(row + row_of(v), col + done + 2 * PAIRS * group_of(v), words[v], fetched[done / WIDTH % 2][v]);
    }
}

// Calls act(row, column, vector) for neighbouring accumulators of 16 rows. `row` and `col` are the first ones.
template <int COLS, class Act>
inline __device__ void visit_rows(const wt::f32 (&accumulators)[COLS / 8][4], int row, int col, const Act& act)
{
    const int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
#pragma unroll
    for (int j = 0; j < COLS / 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            act(row + group + 8 * half, col + 8 * j + 2 * quarter, wt::Vector<float, 2> {accumulators[j][2 * half], accumulators[j][2 * half + 1]});
}

// The same for 16 columns, which the registers hold as rows of C's transpose. Two lanes with neighbouring columns exchange
// accumulators. Then one lane has two accumulators of a row, and the other has two of the next row.
template <int ROWS, class Act>
inline __device__ void visit_columns(const wt::f32 (&accumulators)[ROWS / 8][4], int row, int col, const Act& act)
{
    const int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4, odd = group % 2;
#pragma unroll
    for (int j = 0; j < ROWS / 8; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float even_row = accumulators[j][2 * half], odd_row = accumulators[j][2 * half + 1];
            const float other = __shfl_xor_sync(0xffffffffu, odd ? even_row : odd_row, 4);
            const auto pair = odd ? wt::Vector<float, 2> {other, odd_row} : wt::Vector<float, 2> {even_row, other};
            act(row + 8 * j + 2 * quarter + odd, col + 8 * half + group - odd, pair);
        }
}

}  // namespace wt_module
