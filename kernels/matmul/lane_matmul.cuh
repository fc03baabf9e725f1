// SPDX-License-Identifier: Apache-2.0
//
// C = function(alpha * A * B + beta * C + bias) for float32 and float64, as one kernel with a launch of its own. It reads from top to
// bottom, after tensor_tiles.cuh:
//
//     FmaLanes           the part of a tile that a lane multiplies by fma, for float32
//     MmaLanes           ... and by mma.sync, for float64
//     multiply_tile      the products of a tile
//     store_tile         the epilogue
//     lane_matmul        a block with a tile of C or a slice of it
//
// The first thread of a block starts the tensor copies to its stages. All warps multiply, each a part of the tile, and store C from
// registers, so that C's rows may begin anywhere. The blocks of a multiprocessor hide one another's first loads and last stores.
//
// A stage has an operand as it lies in memory: a row for each of its lines (rows of A or columns of B), or a row for each element of K. Lanes
// read rows of lines of both operands (float32), or of A, and rows of elements of K of B (float64). Else the panels of the operand, of PANEL
// lines and as many elements of K, are transposed in place, about half a stage before they are multiplied. Rows have 128 bytes, whose 16-byte
// vectors are permuted (swizzling mode 128B). Those of all lines of float32 are as long as the tile and not permuted.
#pragma once

#include "arch/mma.cuh"
#include "arch/tensor_copy.cuh"
#include "arch/wgmma.cuh"
#include "matmul/tensor_tiles.cuh"

namespace wt_matmul {

// The element types of A, B and C and of the bias (void without one), a class whose of() is applied to each element of C (void without
// one), the rows and columns of a tile, the warps along M and N, the lanes of a warp along M, the number of stages, whether A is
// contiguous along M and B along N, whether C is read, whether tiles have slices of K, and whether the rows of C begin anywhere.
template <class T_, class Bias_, class Function_, int M, int N, int WARPS_ALONG_M, int WARPS_ALONG_N, int LANES_ALONG_M, int STAGES_,
          bool A_ALONG_M, bool B_ALONG_N, bool BETA, bool SLICES, bool ANYWHERE>
struct LaneConfig {
    using T = T_;
    using Bias = Bias_;
    using Function = Function_;
    static constexpr int TILE_M = M, TILE_N = N, TILE_K = ROW_BYTES / int(sizeof(T)), STAGES = STAGES_;
    static constexpr bool A_MN = A_ALONG_M, B_MN = B_ALONG_N, HAS_BETA = BETA, HAS_SLICES = SLICES, ALIGNED = !ANYWHERE;
    static constexpr int PANEL = TILE_K, PANEL_BYTES = PANEL * ROW_BYTES;
    static constexpr int WARPS_M = WARPS_ALONG_M, WARPS_N = WARPS_ALONG_N, WARPS = WARPS_M * WARPS_N;
    static constexpr int LANES_M = LANES_ALONG_M, LANES_N = 32 / LANES_M;
    static constexpr int ROWS = M / WARPS_M / LANES_M, COLUMNS = N / WARPS_N / LANES_N;  // of a lane
    static constexpr int VECTOR = 16 / int(sizeof(T));                                   // elements
    static constexpr int A_BYTES = M * ROW_BYTES, STAGE_BYTES = A_BYTES + N * ROW_BYTES, BARRIERS_START = STAGES * STAGE_BYTES;
    static constexpr bool BY_MMA = sizeof(T) == 8;
    static constexpr int TRANSPOSED_A = A_MN ? 0 : M / PANEL, TRANSPOSED = TRANSPOSED_A + (B_MN == BY_MMA ? N / PANEL : 0);  // panels
    static constexpr int CLUSTER_M = 1, CLUSTER_N = 1, CLUSTER = 1;

    static_assert(M / WARPS_M % PANEL == 0 && N / WARPS_N % PANEL == 0, "a warp has whole panels");
    static_assert(ROWS % (BY_MMA ? 2 : 4) == 0 && COLUMNS % (BY_MMA ? 2 : 4) == 0 && (!BY_MMA || LANES_M == 8), "a lane has whole vectors");
};

// ---- loads

template <class T> WT_DEVICE T* in_stage(u32 address) { return static_cast<T*>(__cvta_shared_to_generic(address)); }

// Starts the copies of an operand's elements (x, k) and EXTENT - 1 more lines to a stage. WIDTH: lines of a copy, along M or N
template <int EXTENT, int WIDTH, bool ALONG_MN> WT_DEVICE void copy_lines(u32 to, u32 full, const TensorMap& map, int x, int k, int matrix)
{
    if constexpr (ALONG_MN) {
#pragma unroll
        for (int done = 0; done < EXTENT; done += WIDTH)
            copy_tensor(to + done * ROW_BYTES, &map, full, x + done, k, matrix);
    } else {
        copy_tensor(to, &map, full, k, x, matrix);
    }
}

// Transposes a panel by one warp, in blocks of as many rows as a vector has elements, two for each lane. Eight neighbours access different
// banks.
template <class T, bool PERMUTED> WT_DEVICE void transpose_panel(u32 panel)
{
    constexpr int WIDTH = 16 / int(sizeof(T));
    const int lane = threadIdx.x % 32, y = lane % 8;
    Vector<T, WIDTH> rows[2][WIDTH];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const int row = WIDTH * y + i, x = (lane / 8 + 4 * half) ^ y;
            rows[half][i] = load<WIDTH>(in_stage<T>(panel + row * ROW_BYTES + (x ^ row % PATTERN_ROWS) * 16));
        }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const int row = WIDTH * ((lane / 8 + 4 * half) ^ y) + i, vector = PERMUTED ? y ^ row % PATTERN_ROWS : y;
            Vector<T, WIDTH> column;
#pragma unroll
            for (int j = 0; j < WIDTH; ++j)
                column.at[j] = rows[half][j].at[i];
            store(in_stage<T>(panel + row * ROW_BYTES + vector * 16), column);
        }
}

// ---- products

// The first line of a warp's part of a tile
template <class P> WT_DEVICE int first_row() { return int(threadIdx.x) / 32 / P::WARPS_N * (P::TILE_M / P::WARPS_M); }
template <class P> WT_DEVICE int first_column() { return int(threadIdx.x) / 32 % P::WARPS_N * (P::TILE_N / P::WARPS_N); }

template <class P> struct FmaLanes {
    static constexpr int STEPS = P::TILE_K, GROUP = 8, WIDTH = 4;  // of a stage; steps between which warps do other work; neighbouring columns
    static constexpr int UNROLLED = 1024 / (P::ROWS * P::COLUMNS * GROUP);  // groups: more products do not fit the instruction cache
    f32 sums[P::ROWS][P::COLUMNS];
    Vector<f32, 4> rows[2][P::ROWS / 4], columns[2][P::COLUMNS / 4];  // the values of two steps

    // Neighbouring lanes alternate between M and N: in groups of 2 x 2, each pair shares a vector (docs/templates.md).
    static WT_DEVICE int bit(int number) { return int(threadIdx.x) >> number & 1; }
    static WT_DEVICE int lane_m() { return bit(1) + 2 * bit(3) + (P::LANES_M == 8 ? 4 * bit(4) : 0); }
    static WT_DEVICE int lane_n() { return bit(0) + 2 * bit(2) + (P::LANES_N == 8 ? 4 * bit(4) : 0); }

    // A lane's i-th row and column of a tile. Vectors lie beside those of the other lanes.
    static WT_DEVICE int row(int i) { return first_row<P>() + (i / 4 * P::LANES_M + lane_m()) * 4 + i % 4; }
    static WT_DEVICE int column(int i) { return first_column<P>() + (i / 4 * P::LANES_N + lane_n()) * 4 + i % 4; }

    // Reads the values of a step.
    WT_DEVICE void read(const Ring<P>& ring, int step, int set)
    {
#pragma unroll
        for (int i = 0; i < P::ROWS; i += 4)
            rows[set][i / 4] = vector<P::TILE_M, P::A_MN>(ring.a(), step, row(0), i * P::LANES_M);
#pragma unroll
        for (int j = 0; j < P::COLUMNS; j += 4)
            columns[set][j / 4] = vector<P::TILE_N, P::B_MN>(ring.b(), step, column(0), j * P::LANES_N);
    }

    // Adds the products of the values of a set, and reads those of another step for the other one.
    WT_DEVICE void multiply(int set, const Ring<P>& ring, int step)
    {
        read(ring, step, 1 - set);
        constexpr bool BY_ROWS = P::ROWS >= P::COLUMNS;
        constexpr int OUTER = BY_ROWS ? P::ROWS : P::COLUMNS, INNER = BY_ROWS ? P::COLUMNS : P::ROWS;
#pragma unroll
        for (int outer = 0; outer < OUTER; ++outer)
#pragma unroll
            for (int x = 0; x < INNER; ++x) {
                const int inner = outer % 2 ? INNER - 1 - x : x;  // each product has a value in common with the one before
                const int i = BY_ROWS ? outer : inner, j = BY_ROWS ? inner : outer;
                sums[i][j] += rows[set][i / 4].at[i % 4] * columns[set][j / 4].at[j % 4];
            }
    }

private:
    // Four lines of an operand: so many behind a lane's first one
    template <int EXTENT, bool ALONG_MN> static WT_DEVICE Vector<f32, 4> vector(u32 operand, int step, int first, int lines)
    {
        const u32 at = ALONG_MN ? (first + lines) * 4 + step * EXTENT * 4 : place(first) + place(lines) + step * ROW_BYTES;
        return load<4>(in_stage<f32>(operand + at));
    }

    static WT_DEVICE u32 place(int line) { return line / P::PANEL * P::PANEL_BYTES + line % P::PANEL * 4; }
};

// Rows and columns, and elements of K, are permuted among the lanes, so that each vector of a stage is neighbouring registers of an
// instruction, and eight lanes read different banks. g and q are those of arch/mma.cuh; the elements of K are 2q and 2q + 1.
template <class P> struct MmaLanes {
    static constexpr int STEPS = P::TILE_K / 8, GROUP = 1, WIDTH = 1, UNROLLED = STEPS;
    double sums[P::ROWS][P::COLUMNS];
    double rows[P::ROWS / 2][4], columns[2][P::COLUMNS / 2][2];  // operands of instructions: of a step, and of two

    static WT_DEVICE int g() { return threadIdx.x % 32 / 4; }
    static WT_DEVICE int q() { return threadIdx.x % 4; }
    static WT_DEVICE int spread(int line) { return line / 2 + line % 2 * 4; }  // a column of an instruction among eight

    static WT_DEVICE int row(int i) { return first_row<P>() + i / 2 * 16 + 2 * g() + i % 2; }
    static WT_DEVICE int column(int j) { return first_column<P>() + j / 2 * 8 + spread(2 * q() + j % 2); }

    WT_DEVICE void read(const Ring<P>& ring, int step, int set)
    {
        read_columns(ring, step, set);
#pragma unroll
        for (int i = 0; i < P::ROWS / 2; ++i)
            read_rows(ring, step, i);
    }

    // Adds the products of the values of a set, and reads those of another step: rows as soon as they are multiplied.
    WT_DEVICE void multiply(int set, const Ring<P>& ring, int step)
    {
        read_columns(ring, step, 1 - set);
#pragma unroll
        for (int i = 0; i < P::ROWS / 2; ++i) {
#pragma unroll
            for (int x = 0; x < P::COLUMNS / 2; ++x) {
                const int j = i % 2 ? P::COLUMNS / 2 - 1 - x : x;
                double* const first = sums[2 * i] + 2 * j;
                double* const second = sums[2 * i + 1] + 2 * j;
                double four[4] = {first[0], first[1], second[0], second[1]};
                mma_m16n8k8(four, rows[i], columns[set][j]);
                first[0] = four[0];
                first[1] = four[1];
                second[0] = four[2];
                second[1] = four[3];
            }
            read_rows(ring, step, i);
        }
    }

private:
    WT_DEVICE void read_rows(const Ring<P>& ring, int step, int i)
    {
#pragma unroll
        for (int number = 0; number < 2; ++number) {
            const int k = 2 * q() + number;
            const u32 panel = ring.a() + (first_row<P>() + i * 16) * ROW_BYTES;
            const auto pair = load<2>(in_stage<double>(panel + (8 * step + k) * ROW_BYTES + (g() ^ k) * 16));
            rows[i][2 * number] = pair.at[0];
            rows[i][2 * number + 1] = pair.at[1];
        }
    }

    WT_DEVICE void read_columns(const Ring<P>& ring, int step, int set)
    {
#pragma unroll
        for (int j = 0; j < P::COLUMNS / 2; ++j) {
            const u32 line = ring.b() + (first_column<P>() + j * 8 + spread(g())) * ROW_BYTES;
            const auto pair = load<2>(in_stage<double>(line + ((4 * step + q()) ^ spread(g())) * 16));
            columns[set][j][0] = pair.at[0];
            columns[set][j][1] = pair.at[1];
        }
    }
};

// A stage's mbarrier at which warps arrive when its copies have arrived and their panels are transposed, or the one of its copies
template <class P> WT_DEVICE u32 ready(const Ring<P>& ring) { return P::TRANSPOSED > 0 ? ring.empty() + 8 * P::STAGES : ring.full(); }

// Transposes the warp's panels of a stage.
template <class P> WT_DEVICE void transpose(const Ring<P>& ring)
{
    const int warp = threadIdx.x / 32;
    if (warp >= P::TRANSPOSED)
        return;
    mbarrier_wait(ring.full(), ring.parity);
#pragma unroll 1
    for (int panel = warp; panel < P::TRANSPOSED; panel += P::WARPS)
        transpose_panel<typename P::T, P::BY_MMA>(panel < P::TRANSPOSED_A ? ring.a() + panel * P::PANEL_BYTES
                                                                         : ring.b() + (panel - P::TRANSPOSED_A) * P::PANEL_BYTES);
    fence_for_wgmma();  // tensor copies write there later
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(ready(ring));
}

// The values of a step are read in the one before, also those of the next stage. In the course of a stage, refill(ring, k) loads the one
// before it, and the next one is transposed, by the two warps of a scheduler one after the other.
template <class P, class Lanes, class Refill> WT_DEVICE void multiply_tile(Lanes& lanes, Ring<P> ring, const Tile& tile, const Refill& refill)
{
    constexpr int GROUPS = Lanes::STEPS / Lanes::GROUP;
    const int turn = GROUPS / 2 + (GROUPS > 2 ? int(threadIdx.x) / 128 % 2 : 0);
#pragma unroll
    for (int i = 0; i < P::ROWS; ++i)
#pragma unroll
        for (int j = 0; j < P::COLUMNS; ++j)
            lanes.sums[i][j] = 0;
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
#pragma unroll(Lanes::UNROLLED)
        for (int group = 0; group < GROUPS; ++group) {
            if (group == 1 && k != tile.start)
                refill(before, k + (P::STAGES - 1) * P::TILE_K);
            if (group == turn && has_next)
                transpose(next);
#pragma unroll
            for (int i = 0; i < Lanes::GROUP; ++i) {
                const int step = group * Lanes::GROUP + i;
                const bool is_last = i + 1 == Lanes::GROUP && group + 1 == GROUPS;
                if (is_last) {
                    __syncwarp();  // all lanes have read the stage
                    if (threadIdx.x % 32 == 0)
                        mbarrier_arrive(ring.empty());
                    mbarrier_wait(ready(next), next.parity);
                }
                lanes.multiply(step % 2, is_last ? next : ring, is_last ? 0 : step + 1);
            }
        }
        before = ring;
        ring.advance();
    }
}

// ---- the epilogue

template <class P, class Lanes> WT_DEVICE void store_tile(const Lanes& lanes, const Arguments& given, const Tile& tile)
{
    using T = typename P::T;
    T alpha, beta;
    if constexpr (same<T, f32>) {
        alpha = given.factor == nullptr ? given.alpha : given.alpha * *given.factor;
        beta = given.beta;
    } else {
        alpha = given.alpha_64;
        beta = given.beta_64;
    }
    T* const start = static_cast<T*>(given.c) + tile.matrix * given.c_matrix;
#pragma unroll
    for (int i = 0; i < P::ROWS; ++i) {
        const int y = tile.row + Lanes::row(i);
        T* const to = start + y * given.c_row;
#pragma unroll
        for (int j = 0; j < P::COLUMNS; j += Lanes::WIDTH) {
            const int x = tile.column + Lanes::column(j);
            Vector<T, Lanes::WIDTH> values;
#pragma unroll
            for (int n = 0; n < Lanes::WIDTH; ++n) {
                const bool is_inside = y < given.m && x + n < given.n;
                T& value = values.at[n];
                value = alpha * lanes.sums[i][j + n];
                if (P::HAS_BETA && is_inside)
                    value += beta * to[x + n];
                if constexpr (!same<typename P::Bias, void>)
                    value += x + n < given.n ? element<typename P::Bias>(given.bias, (x + n) * given.bias_step) : 0.0f;
                if constexpr (!same<typename P::Function, void>)
                    value = P::Function::of(value);
                if (!P::ALIGNED && is_inside)
                    to[x + n] = value;
            }
            if (P::ALIGNED && y < given.m && x < given.n)  // C has whole vectors
                store(to + x, values);
        }
    }
}

// ---- the kernel

template <class P, bool BY_MMA> struct LanesOf {
    using Type = FmaLanes<P>;
};
template <class P> struct LanesOf<P, true> {
    using Type = MmaLanes<P>;
};

template <class P> WT_DEVICE void lane_matmul(const TensorMap& a, const TensorMap& b, const TensorMap&, const Arguments& given)
{
    extern __shared__ char memory[];
    const Ring<P> ring {(u32(__cvta_generic_to_shared(memory)) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT};
    const Tile tile = Tiles<P>(given).next();
    const auto load_stage = [&](const Ring<P>& to, int k) {
        mbarrier_arrive_and_expect(to.full(), P::STAGE_BYTES);
        copy_lines<P::TILE_M, P::BY_MMA ? P::PANEL : P::TILE_M, P::A_MN>(to.a(), to.full(), a, tile.row, k, tile.matrix * given.a_step);
        copy_lines<P::TILE_N, P::BY_MMA ? P::PANEL : P::TILE_N, P::B_MN>(to.b(), to.full(), b, tile.column, k, tile.matrix * given.b_step);
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
    typename LanesOf<P, P::BY_MMA>::Type lanes;
    multiply_tile(lanes, ring, tile, [&](const Ring<P>& to, int k) {
        if (threadIdx.x == 0 && k < tile.end) {
            mbarrier_wait(to.empty(), to.parity);
            load_stage(to, k);
        }
    });
    if constexpr (P::HAS_SLICES)
        if (tile.slice >= 0) {
            constexpr int VECTORS = P::COLUMNS / P::VECTOR;
            const auto vector = [&](int i) -> typename P::T* { return lanes.sums[i / VECTORS] + i % VECTORS * P::VECTOR; };
            const u32 flag = ring.start + P::BARRIERS_START + 3 * 8 * P::STAGES;
            if (!add_slices<typename P::T, 32 * P::WARPS, P::ROWS * VECTORS>(vector, given, tile, flag, [] { __syncthreads(); }))
                return;
        }
    store_tile<P>(lanes, given, tile);
}

}  // namespace wt_matmul
