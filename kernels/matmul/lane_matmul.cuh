// SPDX-License-Identifier: Apache-2.0
//
// C = function(alpha * A * B + beta * C + bias) for float32, by fma, and for float64, by mma.sync, as one kernel with a launch of its own. It
// reads from top to bottom, after tensor_tiles.cuh:
//
//     transpose_panel    32 lines of a float32 operand that is contiguous along K
//     Lanes              a lane's part of a tile, and the products of a step: one class for each type
//     multiply_tile      the products of a tile
//     store_tile         its epilogue
//     lane_matmul        a block with a tile of C or a slice of it
//
// One thread of a block starts the tensor copies to a stage: the first one (float32), that of a warp, in turns (float64), or one of a
// warpgroup that only loads. The other warps multiply, each a part of the tile, and store C from registers, so that C's rows may begin
// anywhere. The blocks of a multiprocessor hide one another's first loads and last stores.
//
// A stage has 128 bytes of each line of an operand (a row of A or a column of B). An operand that is contiguous along its lines has panels
// of as many lines as elements of K, with a row for each element of K. One that is contiguous along K has a row for each line. The 16-byte
// vectors of its rows, and of all rows of float64, are permuted (swizzling mode 128B). Lanes of float32 need rows of lines, so warps
// transpose the panels of an operand along K in place, half a stage before they are multiplied. Those of float64 read both.
#pragma once

#include "arch/mma.cuh"
#include "arch/tensor_copy.cuh"
#include "arch/tensor_store.cuh"
#include "arch/wgmma.cuh"
#include "matmul/tensor_tiles.cuh"

namespace wt_matmul {

// The element types of A, B and C and of the bias, a class whose of() is applied to each element of C (both void without one), the rows and
// columns of a tile, the warps along M and N, whether a warpgroup only loads, the number of stages, whether A is contiguous along M and B
// along N, whether C is read, whether tiles have slices of K, and whether the rows of C begin anywhere. Of float32 also the lanes of a warp
// along M, and the elements of K whose products are unrolled.
template <class T_, class Bias_, class Function_, int M, int N, int WARPS_ALONG_M, int WARPS_ALONG_N, bool LOADING, int STAGES_,
          bool A_ALONG_M, bool B_ALONG_N, bool BETA, bool SLICES, bool ANYWHERE, int LANES_ALONG_M = 1, int UNROLLED_ = 1>
struct LaneConfig {
    using T = T_;
    using Bias = Bias_;
    using Function = Function_;
    static constexpr int TILE_M = M, TILE_N = N, TILE_K = ROW_BYTES / int(sizeof(T)), STAGES = STAGES_, UNROLLED = UNROLLED_;
    static constexpr bool A_MN = A_ALONG_M, B_MN = B_ALONG_N, HAS_BETA = BETA, HAS_SLICES = SLICES, ALIGNED = !ANYWHERE, HAS_LOADERS = LOADING;
    static constexpr int PANEL = TILE_K, PANEL_BYTES = PANEL * ROW_BYTES;  // lines, and as many elements of K
    static constexpr int WARPS_M = WARPS_ALONG_M, WARPS_N = WARPS_ALONG_N, WARPS = WARPS_M * WARPS_N;
    static constexpr int WARP_M = M / WARPS_M, WARP_N = N / WARPS_N;  // rows and columns of a warp
    static constexpr int LANES_M = LANES_ALONG_M, LANES_N = 32 / LANES_M;
    static constexpr int ROWS = WARP_M / LANES_M, COLUMNS = WARP_N / LANES_N;  // of a lane
    static constexpr int A_BYTES = M * ROW_BYTES, STAGE_BYTES = A_BYTES + N * ROW_BYTES, BARRIERS_START = STAGES * STAGE_BYTES;
    static constexpr int TRANSPOSED = same<T, f32> ? ((A_MN ? 0 : M) + (B_MN ? 0 : N)) / PANEL : 0;  // panels of a stage
    static constexpr bool FIRST_SLICES_FIRST = true;  // they may be the longest
    static constexpr int CLUSTER_M = 1, CLUSTER_N = 1, CLUSTER = 1;

    static_assert(WARP_M % PANEL == 0 && WARP_N % PANEL == 0, "a warp has whole panels");

    // The first row and column of the warp
    static WT_DEVICE int warp_m() { return int(threadIdx.x) / 32 / WARPS_N * WARP_M; }
    static WT_DEVICE int warp_n() { return int(threadIdx.x) / 32 % WARPS_N * WARP_N; }
};

// ---- loads

// Starts the copies of an operand's elements (x, k) and EXTENT - 1 more lines to a stage.
template <int EXTENT, int PANEL, bool ALONG_MN> WT_DEVICE void copy_panels(u32 to, u32 full, const TensorMap& map, int x, int k, int matrix)
{
    if constexpr (ALONG_MN) {
#pragma unroll
        for (int done = 0; done < EXTENT; done += PANEL)
            copy_tensor(to + done * ROW_BYTES, &map, full, x + done, k, matrix);
    } else {
        copy_tensor(to, &map, full, k, x, matrix);
    }
}

template <class T> WT_DEVICE T* in_stage(u32 address) { return static_cast<T*>(__cvta_shared_to_generic(address)); }

// Transposes a panel by one warp. A lane has two blocks of four lines and four elements of K. Eight neighbours access different banks.
WT_DEVICE void transpose_panel(u32 panel)
{
    const int lane = threadIdx.x % 32, four = lane % 8;
    Vector<f32, 4> lines[2][4];
    int first[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        first[half] = (lane / 8 + 4 * half) ^ four / 2;  // vector of K
#pragma unroll
        for (int i = 0; i < 4; ++i)
            lines[half][i] = load<4>(in_stage<f32>(panel + (4 * four + i) * ROW_BYTES + (first[half] ^ (4 * four + i) % PATTERN_ROWS) * 16));
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            store(in_stage<f32>(panel + (4 * first[half] + i) * ROW_BYTES + four * 16),
                  Vector<f32, 4> {lines[half][0].at[i], lines[half][1].at[i], lines[half][2].at[i], lines[half][3].at[i]});
}

// ---- products

// A stage's mbarrier at which warps arrive when its copies have arrived and their panels are transposed, or the one of its copies
template <class P> WT_DEVICE u32 ready(const Ring<P>& ring) { return P::TRANSPOSED > 0 ? ring.empty() + 8 * P::STAGES : ring.full(); }

// A lane's part of a tile: its sums as vectors of 16 bytes, and where in the tile they lie. A vector has neighbouring columns.
template <class P, class T = typename P::T> struct Lanes;

// by fma
template <class P> struct Lanes<P, f32> {
    static constexpr int WIDTH = 4, STEPS = P::TILE_K, UNROLLED = P::UNROLLED;  // elements of a vector; steps of a stage, and unrolled ones
    static constexpr int ROWS = P::ROWS, VECTORS = P::ROWS * P::COLUMNS / WIDTH;
    static constexpr int LEAD = 0, PRODUCTS = P::ROWS;  // rows of a step
    f32 sums[P::ROWS][P::COLUMNS];  // of column j at j ^ 1, so that it and B's value lie in registers of different banks, even and odd
    Vector<f32, 4> rows[2][P::ROWS / 4], columns[2][P::COLUMNS / 4];  // the values of two steps

    static_assert(P::ROWS % WIDTH == 0 && P::COLUMNS % WIDTH == 0, "a lane has whole vectors");
    static_assert(P::ROWS >= P::COLUMNS, "FMAs go row by row: a lane has at least as many rows as columns");

    // In each 2 x 2 group of lanes, two share a vector of A and two share a vector of B.
    static WT_DEVICE int bit(int number) { return int(threadIdx.x) >> number & 1; }
    static WT_DEVICE int lane_m() { return bit(1) + 2 * bit(3) + (P::LANES_M == 8 ? 4 * bit(4) : 0); }
    static WT_DEVICE int lane_n() { return bit(0) + 2 * bit(2) + (P::LANES_N == 8 ? 4 * bit(4) : 0); }

    // Vectors of four rows or columns lie beside those of the other lanes.
    static WT_DEVICE int line_m(int i) { return P::warp_m() + (i / 4 * P::LANES_M + lane_m()) * 4 + i % 4; }
    static WT_DEVICE int line_n(int j) { return P::warp_n() + (j / 4 * P::LANES_N + lane_n()) * 4 + j % 4; }

    static WT_DEVICE int row(int i) { return line_m(i); }
    static WT_DEVICE int column(int j) { return line_n(j * WIDTH); }
    WT_DEVICE f32 sum(int i, int j, int n) const { return sums[i][(j * WIDTH + n) ^ 1]; }
    WT_DEVICE f32* vector(int number) { return sums[number * WIDTH / P::COLUMNS] + number * WIDTH % P::COLUMNS; }

    // Reads the values of a step. `set`: k % 2
    WT_DEVICE void read(const Ring<P>& ring, int k, int set)
    {
        // pointers, because NVRTC 13.0 adds integers by an instruction for each load
        const f32* const a = in_stage<f32>(ring.a()) + place(line_m(0)) + k * P::PANEL;
        const f32* const b = in_stage<f32>(ring.b()) + place(line_n(0)) + k * P::PANEL;
#pragma unroll
        for (int i = 0; i < P::ROWS; i += 4)
            rows[set][i / 4] = load<4>(a + place(i * P::LANES_M));
#pragma unroll
        for (int j = 0; j < P::COLUMNS; j += 4)
            columns[set][j / 4] = load<4>(b + place(j * P::LANES_N));
    }

    // Some rows of the outer product of a step in serpentine order: consecutive FMAs share an operand, which the reuse cache holds.
    WT_DEVICE void multiply(int set, int from, int to)
    {
#pragma unroll
        for (int i = from; i < to; ++i)
#pragma unroll
            for (int x = 0; x < P::COLUMNS; ++x) {
                const int j = i % 2 ? P::COLUMNS - 1 - x : x;
                sums[i][j ^ 1] += rows[set][i / 4].at[i % 4] * columns[set][j / 4].at[j % 4];
            }
    }

private:
    // Where a line begins in an operand, in elements
    static WT_DEVICE int place(int line) { return line / P::PANEL * (P::PANEL * P::PANEL) + line % P::PANEL; }
};

// by mma.sync. The instruction's A has FIRST blocks of 16 lines, and its B SECOND blocks of 8. If A is contiguous along K and B along N, A's
// fragments are those of the columns: sums are those of the transpose.
template <class P> struct Lanes<P, double> {
    static constexpr bool SWAPPED = !P::A_MN && P::B_MN;
    static constexpr bool FIRST_MN = P::A_MN || P::B_MN, SECOND_MN = P::A_MN && P::B_MN;  // contiguous along lines
    static constexpr int FIRST = (SWAPPED ? P::WARP_N : P::WARP_M) / 16, SECOND = (SWAPPED ? P::WARP_M : P::WARP_N) / 8;
    static constexpr int STEPS = 2, UNROLLED = STEPS, WIDTH = 2, VECTORS = 2 * FIRST * SECOND, ROWS = 2 * (SWAPPED ? SECOND : FIRST);
    static constexpr int LEAD = 2, PRODUCTS = FIRST * SECOND;
    double sums[FIRST][SECOND][4];
    double first[2][FIRST][4], second[2][SECOND][2];  // fragments of two steps

    static WT_DEVICE int g() { return threadIdx.x % 32 / 4; }
    static WT_DEVICE int q() { return threadIdx.x % 4; }

    // The lines of the warp that stand for line n or n + 8 of a block. Sixteen lanes that read 8 bytes, and eight that read 16, access
    // different banks, and a lane has neighbouring columns of C.
    static WT_DEVICE int first_line(int block, int half, int n) { return 16 * block + half + (FIRST_MN ? 2 * n : n / 4 * 8 + n % 4 * 2); }
    static WT_DEVICE int second_line(int block, int n)
    {
        return SECOND_MN ? 8 * block + n : block / 2 * 16 + n / 4 * 8 + n % 2 * 4 + n / 2 % 2 * 2 + block % 2;
    }

    // Rows and columns of the tile: those of vectors
    static WT_DEVICE int row(int i) { return P::warp_m() + (SWAPPED ? second_line(i / 2, 2 * q() + i % 2) : first_line(i / 2, i % 2, g())); }
    static WT_DEVICE int column(int j)
    {
        return P::warp_n() + (SWAPPED ? first_line(j, 0, g()) : SECOND_MN ? second_line(j, 2 * q()) : second_line(j / 2 * 2, 2 * q() + j % 2));
    }
    WT_DEVICE double sum(int i, int j, int n) const
    {
        return SWAPPED ? sums[j][i / 2][2 * n + i % 2] : SECOND_MN ? sums[i / 2][j][i % 2 * 2 + n] : sums[i / 2][j / 2 * 2 + n][i % 2 * 2 + j % 2];
    }
    WT_DEVICE double* vector(int number) { return sums[number / 2 / SECOND][number / 2 % SECOND] + number % 2 * 2; }

    // Reads the fragments of a step. A lane's elements of K are 2q and 2q + 1, or q and q + 4 if both operands are contiguous along K.
    WT_DEVICE void read(const Ring<P>& ring, int step, int set)
    {
        const u32 a = ring.a() + P::warp_m() * ROW_BYTES, b = ring.b() + P::warp_n() * ROW_BYTES;
        const u32 of_first = SWAPPED ? b : a, of_second = SWAPPED ? a : b;
        u32 places[2];  // other elements lie at constant distances, or where some bits of the vector's number are flipped
#pragma unroll
        for (int i = 0; i < 2; ++i)
            places[i] = SECOND_MN ? place(of_second, 2 * q() + i, g()) : place(of_second, second_line(i, g()), FIRST_MN ? 2 * q() : q());
#pragma unroll
        for (int i = 0; i < SECOND; ++i) {
            if constexpr (FIRST_MN && !SECOND_MN) {
                const auto both = load<2>(at(places[i % 2], 4 * step, i / 2));
                second[set][i][0] = both.at[0];
                second[set][i][1] = both.at[1];
            } else {
#pragma unroll
                for (int high = 0; high < 2; ++high)
                    second[set][i][high] =
                        SECOND_MN ? at(places[high], i % 2 * 4, i / 2)[step * HALF_PANEL] : *at(places[i % 2], 4 * step + 2 * high, i / 2);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i)
            places[i] = FIRST_MN ? place(of_first, 2 * q() + i, 2 * g()) : place(of_first, first_line(0, i, g()), q());
#pragma unroll
        for (int i = 0; i < FIRST; ++i)
#pragma unroll
            for (int high = 0; high < 2; ++high) {
                if constexpr (FIRST_MN) {
                    const auto both = load<2>(at(places[high], 0, i) + step * HALF_PANEL);
                    first[set][i][2 * high] = both.at[0];
                    first[set][i][2 * high + 1] = both.at[1];
                } else {
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        first[set][i][2 * high + half] = *at(places[half], 4 * step + 2 * high, i);
                }
            }
        __syncwarp();  // so that the compiler loads into registers that no product reads any more
    }

    // Some products of a step, column by column
    WT_DEVICE void multiply(int set, int from, int to)
    {
#pragma unroll
        for (int n = from; n < to; ++n) {
            const int j = n / FIRST, i = j % 2 ? FIRST - 1 - n % FIRST : n % FIRST;
            mma_m16n8k8(sums[i][j], first[set][i], second[set][j]);
        }
    }

private:
    static constexpr int HALF_PANEL = P::PANEL * P::PANEL / 2;  // elements

    // The address of an element of a row
    static WT_DEVICE u32 place(u32 operand, int row, int x)
    {
        return operand + row * ROW_BYTES + (x / 2 ^ row % PATTERN_ROWS) * 16 + x % 2 * 8;
    }
    // The element some panels, or 16 rows, behind a place with flipped bits of the vector's number
    static WT_DEVICE const double* at(u32 place, int flipped, int panels)
    {
        return in_stage<double>(place ^ flipped * 16) + panels * P::PANEL * P::PANEL;
    }
};

// ---- a tile

// Transposes the warp's panels of a stage.
template <class P> WT_DEVICE void transpose(const Ring<P>& ring)
{
    const int warp = threadIdx.x / 32;
    if (warp >= P::TRANSPOSED)
        return;
    mbarrier_wait(ring.full(), ring.parity);
#pragma unroll 1
    for (int panel = warp; panel < P::TRANSPOSED; panel += P::WARPS)
        transpose_panel((P::A_MN ? ring.b() : ring.a()) + panel * P::PANEL_BYTES);
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(ready(ring));
}

// Multiplies a tile. The values of a step are read in the one before, also those of the next stage. In the middle of a stage,
// refill(ring, k) loads the one before it, and the next one is transposed.
template <class P, class Refill> WT_DEVICE void multiply_tile(Lanes<P>& lanes, Ring<P> ring, const Tile& tile, const Refill& refill)
{
    using L = Lanes<P>;
#pragma unroll
    for (int i = 0; i < L::VECTORS; ++i)
#pragma unroll
        for (int j = 0; j < L::WIDTH; ++j)
            lanes.vector(i)[j] = 0;
    if (tile.start >= tile.end)
        return;
    transpose(ring);
    mbarrier_wait(ready(ring), ring.parity);
    lanes.read(ring, 0, 0);
    Ring<P> before = ring;
#pragma unroll 1
    for (int k = tile.start; k < tile.end; k += P::TILE_K) {
        const bool has_next = k + P::TILE_K < tile.end;
        Ring<P> next = ring;
        if (has_next)  // else its values are not multiplied
            next.advance();
#pragma unroll 1
        for (int first = 0; first < L::STEPS; first += L::UNROLLED)
#pragma unroll
            for (int i = 0; i < L::UNROLLED; ++i) {
                const int step = first + i;
                lanes.multiply(i % 2, 0, L::LEAD);  // products before the values of the next step are read
                if (i == L::STEPS / 2 % L::UNROLLED && step == L::STEPS / 2) {
                    if (k != tile.start)
                        refill(before, k + (P::STAGES - 1) * P::TILE_K);
                    if (has_next)
                        transpose(next);
                }
                if (i + 1 < L::UNROLLED || step + 1 < L::STEPS) {
                    lanes.read(ring, step + 1, (i + 1) % 2);
                } else {
                    mbarrier_wait(ready(next), next.parity);
                    lanes.read(next, 0, 0);
                    __syncwarp();  // all lanes have read the stage
                    if (threadIdx.x % 32 == 0)
                        mbarrier_arrive(ring.empty());
                }
                lanes.multiply(i % 2, L::LEAD, L::PRODUCTS);
            }
        before = ring;
        ring.advance();
    }
}

// ---- the epilogue

template <class P> WT_DEVICE void store_tile(const Lanes<P>& lanes, const Arguments& given, const Tile& tile)
{
    using T = typename P::T;
    using L = Lanes<P>;
    const T alpha = given.factor == nullptr ? T(given.alpha) : T(given.alpha) * *given.factor, beta = T(given.beta);
    T* const start = static_cast<T*>(given.c) + tile.matrix * given.c_matrix;
#pragma unroll
    for (int i = 0; i < L::ROWS; ++i) {
        const int y = tile.row + L::row(i);
        T* const to = start + y * given.c_row;
#pragma unroll
        for (int j = 0; j < L::VECTORS / L::ROWS; ++j) {
            const int x = tile.column + L::column(j);
            Vector<T, L::WIDTH> found;
#pragma unroll
            for (int n = 0; n < L::WIDTH; ++n) {
                const bool is_inside = y < given.m && x + n < given.n;
                T& value = found.at[n];
                value = alpha * lanes.sum(i, j, n);
                if (P::HAS_BETA && is_inside)
                    value += beta * to[x + n];
                if constexpr (!same<typename P::Bias, void>)
                    value += x + n < given.n ? element<typename P::Bias, T>(given.bias, (x + n) * given.bias_step) : T(0);
                if constexpr (!same<typename P::Function, void>)
                    value = P::Function::of(value);
                if (!P::ALIGNED && is_inside)
                    to[x + n] = value;
            }
            if (P::ALIGNED && y < given.m && x < given.n)  // C has whole vectors
                store(to + x, found);
        }
    }
}

// ---- the kernel

template <class P> WT_DEVICE void lane_matmul(const TensorMap& a, const TensorMap& b, const TensorMap&, const Arguments& given)
{
    extern __shared__ char memory[];
    const Ring<P> ring {(u32(__cvta_generic_to_shared(memory)) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT};
    const Tile tile = Tiles<P>(given).next();
    const auto load_stage = [&](const Ring<P>& to, int k) {
        mbarrier_arrive_and_expect(to.full(), P::STAGE_BYTES);
        copy_panels<P::TILE_M, P::PANEL, P::A_MN>(to.a(), to.full(), a, tile.row, k, tile.matrix * given.a_step);
        copy_panels<P::TILE_N, P::PANEL, P::B_MN>(to.b(), to.full(), b, tile.column, k, tile.matrix * given.b_step);
    };
    if (threadIdx.x == 0) {
        Ring<P> each = ring;
        for (int stage = 0; stage < P::STAGES; ++stage, each.advance()) {
            mbarrier_initialize(each.full(), 1);
            mbarrier_initialize(each.empty(), P::WARPS);
            if constexpr (P::TRANSPOSED > 0)
                mbarrier_initialize(ready(each), min(P::WARPS, P::TRANSPOSED));
        }
        fence_initialized_mbarriers();
        for (int k = tile.start; k < min(tile.end, tile.start + P::STAGES * P::TILE_K); k += P::TILE_K, each.advance())
            load_stage(each, k);
    }
    __syncthreads();
    if constexpr (P::HAS_LOADERS) {
        if (threadIdx.x >= 32 * P::WARPS) {
            keep_registers<24>();
            if (threadIdx.x == 32 * P::WARPS) {
                Ring<P> each = ring;
                for (int k = tile.start + P::STAGES * P::TILE_K; k < tile.end; k += P::TILE_K, each.advance()) {
                    mbarrier_wait(each.empty(), each.parity);
                    load_stage(each, k);
                }
            }
            return;
        }
        take_registers<240>();  // of 65,536 for 384 threads
    }
    Lanes<P> lanes;
    multiply_tile(lanes, ring, tile, [&](const Ring<P>& to, int k) {
        // warps of float64 take turns, because they multiply nothing while one of their threads starts up to 16 copies
        const int loader = same<typename P::T, double> ? 32 * (to.stage % P::WARPS) : 0;
        if (!P::HAS_LOADERS && threadIdx.x == loader && k < tile.end) {
            mbarrier_wait(to.empty(), to.parity);
            if constexpr (P::TRANSPOSED > 0)
                fence_for_wgmma();  // the transposition's writes (generic proxy) before the copy's (async proxy)
            load_stage(to, k);
        }
    });
    if constexpr (P::HAS_SLICES)
        if (tile.slice >= 0) {
            // single sums of float32: stores of vectors would fix which registers hold neighbouring sums
            constexpr int WIDTH = same<typename P::T, f32> ? 1 : 2, VECTORS = Lanes<P>::WIDTH / WIDTH;
            constexpr int AT_ONCE = 128 / (WIDTH * int(sizeof(typename P::T)));
            const auto vector = [&](int i) { return lanes.vector(i / VECTORS) + i % VECTORS * WIDTH; };
            const auto barrier = [] {
                if constexpr (P::HAS_LOADERS)
                    named_barrier<32 * P::WARPS>(1);
                else
                    __syncthreads();
            };
            const u32 flag = ring.start + P::BARRIERS_START + 3 * 8 * P::STAGES;
            if (!add_slices<typename P::T, 32 * P::WARPS, VECTORS * Lanes<P>::VECTORS, WIDTH, AT_ONCE>(vector, given, tile, flag, barrier))
                return;
        }
    store_tile(lanes, given, tile);
}

}  // namespace wt_matmul
