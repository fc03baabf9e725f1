// SPDX-License-Identifier: Apache-2.0
//
// What matmul's kernels (tensor_matmul.cuh, lane_matmul.cuh) have in common: constants and arguments, the shared memory of a block, the
// order of the tiles, and the addition of slices of K.
#pragma once

#include "arch/convert.cuh"
#include "arch/counter.cuh"
#include "arch/memory.cuh"
#include "arch/types.cuh"

namespace wt_matmul {

using namespace wt;
using namespace wt::arch;

constexpr int ROW_BYTES = 128;     // of a stage, and of the memory from which C is stored
constexpr int PATTERN_ROWS = 8;    // of a swizzling pattern
constexpr int WARPGROUP = 128;     // threads
constexpr int MULTIPLYING = 2;     // warpgroups
constexpr int ROWS = 64;           // of C, of an instruction
constexpr int CHUNKS = 2;          // parts of C that a warpgroup may store at a time
constexpr int THREADS = (1 + MULTIPLYING) * WARPGROUP;
constexpr int MOST_OWN_SUMS = 128 * 192;  // of a tile that one warpgroup computes
constexpr int LOADING_REGISTERS = 40, MULTIPLYING_REGISTERS = 232;  // of 65,536 for 128 and 256 threads

// A tensor map, as the driver encodes it. The dimensions are those along a row, across rows, and the matrices of the batch.
struct alignas(64) TensorMap {
    u64 words[16];
};

// The arguments of a product besides its maps.
struct Arguments {
    int m, n, k, batch;         // none is 0
    int a_step, b_step;         // 1, or 0 if all matrices of the batch have the same operand
    int group;                  // rows of tiles that blocks with consecutive numbers compute column by column; of clusters' tiles
    int whole, slices;          // tiles without slices, and the slices of each of the others; of clusters' tiles
    int depth;                  // elements of K of a slice; the last slices of a tile may have fewer, or none
    double alpha, beta;
    const float* factor;        // of alpha; null for 1
    const void* bias;           // read if the configuration has one
    long long bias_step;        // distance in elements
    void* sums;                 // of all slices; not read without slices
    int* arrived;               // the slices of each tile that are complete; zero before and after a launch
    void* c;                    // read where C has no map
    long long c_row, c_matrix;  // distances in elements
};

// The element types of A and B, of C and of the bias (void without one), a class whose of() is applied to each element of C (void
// without one), the rows and columns of a tile, the number of stages, whether A is contiguous along M and B along N, whether C is read,
// whether tiles have slices of K, whether C's rows begin anywhere, so that C has no map, and the blocks of a cluster along M and N.
template <class T_, class Out_, class Bias_, class Function_, int M, int N, int STAGES_, bool A_ALONG_M, bool B_ALONG_N, bool BETA,
          bool SLICES, bool ANYWHERE = false, int CLUSTER_ROWS = 1, int CLUSTER_COLUMNS = 1>
struct Config {
    using T = T_;
    using Out = Out_;
    using Bias = Bias_;
    using Function = Function_;
    static constexpr int TILE_M = M, TILE_N = N, TILE_K = ROW_BYTES / int(sizeof(T)), STAGES = STAGES_;
    static constexpr bool A_MN = A_ALONG_M, B_MN = B_ALONG_N, HAS_BETA = BETA, HAS_SLICES = SLICES, HAS_MAP = !ANYWHERE;
    static constexpr int OWNERS = M * N > MOST_OWN_SUMS ? MULTIPLYING : 1;  // warpgroups that compute a tile
    static constexpr bool IN_REGISTERS = sizeof(T) == 4 && (A_MN || B_MN), SWAPPED = IN_REGISTERS && B_MN;
    static constexpr int LINES = SWAPPED ? N : M, WIDTH = SWAPPED ? M : N;  // of the accumulators: C's or its transpose's
    static constexpr int BLOCKS = LINES / ROWS / OWNERS;          // of lines, of a warpgroup
    static constexpr int STEP = 32 / int(sizeof(T));              // of K, of an instruction
    static constexpr int MOST_COLUMNS = ROW_BYTES / int(sizeof(Out)), COLUMNS = WIDTH % MOST_COLUMNS ? MOST_COLUMNS / 2 : MOST_COLUMNS;  // in a chunk
    static constexpr int CHUNK_ROW = COLUMNS * int(sizeof(Out)), CHUNK_BYTES = ROWS * CHUNK_ROW;
    static constexpr int BOXES = SWAPPED ? ROWS / COLUMNS : 1, BOX_ROWS = ROWS / BOXES;  // of a chunk: tensor copies, side by side
    static constexpr int STEPS = TILE_K / STEP, SETS = 4;         // in a stage; of registers for an operand's part of a step
    static constexpr int A_BYTES = M * ROW_BYTES, B_BYTES = (B_MN ? (N + TILE_K - 1) / TILE_K * TILE_K : N) * ROW_BYTES;  // panels are whole
    static constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
    static constexpr int CHUNKS_START = STAGES * STAGE_BYTES, BARRIERS_START = CHUNKS_START + MULTIPLYING * CHUNKS * CHUNK_BYTES;
    static constexpr bool FIRST_SLICES_FIRST = false;  // of all tiles; else the slices of a tile follow one another
    static constexpr int CLUSTER_M = CLUSTER_ROWS, CLUSTER_N = CLUSTER_COLUMNS, CLUSTER = CLUSTER_M * CLUSTER_N;  // blocks
    static constexpr int SHARING = CLUSTER_M + CLUSTER_N - 1;  // blocks of a row and a column

    using Accumulators = f32[BLOCKS][WIDTH / 8][4];

    static_assert(LINES % (ROWS * OWNERS) == 0 && WIDTH % COLUMNS == 0, "a tile has whole instructions and chunks");
    static_assert(!IN_REGISTERS || STEPS % SETS == 0, "all stages begin with the same registers");
    static_assert(!IN_REGISTERS || (BLOCKS * WIDTH <= 256 && !(A_MN && B_MN)), "registers suffice, and an operand is contiguous along K");
    static_assert(!(OWNERS > 1 && HAS_SLICES), "one warpgroup counts the slices of a tile");
    static_assert(HAS_MAP || !HAS_BETA, "C is read by its map");
    static_assert((A_MN ? TILE_K : M) % (CLUSTER_N * PATTERN_ROWS) == 0 && (B_MN ? TILE_K : N) % (CLUSTER_M * PATTERN_ROWS) == 0,
                  "a piece of a stage has whole swizzling patterns");

    // The first line of a warpgroup's part of a tile
    static WT_DEVICE int first_line(int group) { return OWNERS > 1 ? group * BLOCKS * ROWS : 0; }

    // Where a 16-byte vector of a chunk's row lies, as the tensor copies read it
    static WT_DEVICE int vector_of_chunk(int row, int vector)
    {
        return row * CHUNK_ROW + (vector ^ row * CHUNK_ROW / ROW_BYTES % (CHUNK_ROW / 16)) * 16;
    }

    // The block's row and column in its cluster, whose blocks have consecutive numbers along M, then along N
    static WT_DEVICE int cluster_row() { return int(blockIdx.x) % CLUSTER % CLUSTER_M; }
    static WT_DEVICE int cluster_column() { return int(blockIdx.x) % CLUSTER / CLUSTER_M; }
};

constexpr int ALIGNMENT = 1024;  // of a stage: the swizzling pattern repeats after so many bytes

// The shared memory of a block, and the present stage of a thread. A stage is full when its copies have arrived, and empty when it
// has been multiplied. It is a warpgroup's turn when the other one has found all stages of its tile full. A chunk is a part of C that
// a warpgroup writes; its previous elements arrive at an mbarrier. Addresses are those of __cvta_generic_to_shared().
template <class P> struct Ring {
    u32 start;
    u32 stage = 0, parity = 0;  // the parity changes with each round

    WT_DEVICE u32 a() const { return start + stage * P::STAGE_BYTES; }
    WT_DEVICE u32 b() const { return a() + P::A_BYTES; }
    WT_DEVICE u32 full() const { return start + P::BARRIERS_START + 8 * stage; }
    WT_DEVICE u32 empty() const { return full() + 8 * P::STAGES; }
    WT_DEVICE u32 turn(int group) const { return start + P::BARRIERS_START + 16 * P::STAGES + 8 * group; }
    WT_DEVICE u32 previous(int group, int number) const { return turn(MULTIPLYING) + 8 * (CHUNKS * group + number % CHUNKS); }
    WT_DEVICE u32 flag(int group) const { return previous(MULTIPLYING, 0) + 4 * group; }
    WT_DEVICE u32 chunk(int group, int number) const
    {
        return start + P::CHUNKS_START + (CHUNKS * group + number % CHUNKS) * P::CHUNK_BYTES;
    }

    WT_DEVICE void advance()
    {
        stage = stage + 1 == P::STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }

    WT_DEVICE void skip(int stages)
    {
        stage += stages;
        parity ^= stage / P::STAGES % 2;
        stage %= P::STAGES;
    }
};

// A tile of C or a slice of it: its first row and column, its matrix, its elements of K from start up to end, the number of the slice
// (-1 for a whole tile), and the index of the tile among those with slices
struct Tile {
    int row, column, matrix, start, end, slice, split;
};

// The tiles and slices of a block. The numbers are those of the cluster.
template <class P> struct Tiles {
    static constexpr int ROWS_OF_CLUSTER = P::CLUSTER_M * P::TILE_M, COLUMNS_OF_CLUSTER = P::CLUSTER_N * P::TILE_N;
    const Arguments& given;
    int rows, columns, count;
    int number = int(blockIdx.x) / P::CLUSTER;

    explicit WT_DEVICE Tiles(const Arguments& of)
    : given(of)
    , rows((given.m + ROWS_OF_CLUSTER - 1) / ROWS_OF_CLUSTER)
    , columns((given.n + COLUMNS_OF_CLUSTER - 1) / COLUMNS_OF_CLUSTER)
    , count(given.whole + (rows * columns * given.batch - given.whole) * given.slices)
    {
    }

    WT_DEVICE bool has_next() const { return number < count; }

    WT_DEVICE Tile next()
    {
        int tile = number, start = 0, end = given.k, slice = -1, split = 0;
        if (P::HAS_SLICES && number >= given.whole) {
            const int tiles = rows * columns * given.batch - given.whole;
            split = P::FIRST_SLICES_FIRST ? (number - given.whole) % tiles : (number - given.whole) / given.slices;
            slice = P::FIRST_SLICES_FIRST ? (number - given.whole) / tiles : (number - given.whole) % given.slices;
            tile = given.whole + split;
            start = min(slice * given.depth, given.k);
            end = min(given.k, start + given.depth);
        }
        const int matrix = tile / (rows * columns), index = tile % (rows * columns), group = given.group;
        const int first = index / (group * columns) * group, height = min(group, rows - first), within = index - first * columns;
        number += int(gridDim.x) / P::CLUSTER;
        Tile found {(first + within % height) * ROWS_OF_CLUSTER, within / height * COLUMNS_OF_CLUSTER, matrix, start, end, slice, split};
        if constexpr (P::CLUSTER > 1) {
            found.row += P::cluster_row() * P::TILE_M;
            found.column += P::cluster_column() * P::TILE_N;
            found.split = split * P::CLUSTER + int(blockIdx.x) % P::CLUSTER;
        }
        return found;
    }
};

// Adds the sums of a tile's slices in order (of two, the other block's to its own, which gives the same bits). Returns false if another
// block adds them, because it is later. Each of THREADS threads, which barrier() waits for, has COUNT vectors of WIDTH sums, of which it
// loads AT_ONCE ahead; `flag` is an int in shared memory.
template <class T, int THREADS_, int COUNT, int WIDTH, int AT_ONCE, class Vectors, class Barrier>
WT_DEVICE bool add_slices(const Vectors& vector, const Arguments& given, const Tile& tile, u32 flag, const Barrier& barrier)
{
    constexpr int PASS = THREADS_ * WIDTH, SLICE = COUNT * PASS;
    const int thread = threadIdx.x % THREADS_;
    T* const sums = static_cast<T*>(given.sums) + static_cast<long long>(tile.split) * given.slices * SLICE + WIDTH * thread;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const T* const own = vector(i);
        Vector<T, WIDTH> stored;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j)
            stored.at[j] = own[j];
        store(sums + tile.slice * SLICE + i * PASS, stored);
    }
    barrier();
    int* const is_last = static_cast<int*>(__cvta_shared_to_generic(flag));
    if (thread == 0) {
        *is_last = count_arrival(given.arrived + tile.split) == given.slices - 1;  // then the sums of all blocks are visible
        if (*is_last)
            atomicExch(given.arrived + tile.split, 0);
    }
    barrier();
    if (!*is_last)
        return false;
    // The sum of two has no order, so this block's sums stay in registers. Not with WIDTH 1: that would change the registers of the products.
    const bool are_two = WIDTH > 1 && given.slices == 2;
#pragma unroll
    for (int first = 0; first < COUNT; first += AT_ONCE)
#pragma unroll 1  // else the compiler loads so much ahead that registers lack, also where products are summed
        for (int slice = 0; slice < given.slices; ++slice) {
            if (are_two && slice == tile.slice)
                continue;
#pragma unroll
            for (int i = first; i < min(first + AT_ONCE, COUNT); ++i) {
                T* const own = vector(i);
                const auto loaded = load<WIDTH>(sums + slice * SLICE + i * PASS);
#pragma unroll
                for (int j = 0; j < WIDTH; ++j)
                    own[j] = slice == 0 && !are_two ? loaded.at[j] : own[j] + loaded.at[j];
            }
        }
    return true;
}

// An element of an array as a float, or as another type of sums
template <class T, class Sum = f32> WT_DEVICE Sum element(const void* array, long long index)
{
    return Convert<Sum, T>::of(static_cast<const T*>(array)[index]);
}

}  // namespace wt_matmul
