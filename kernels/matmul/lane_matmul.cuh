// SPDX-License-Identifier: Apache-2.0
//
// C = function(alpha * A * B + beta * C + bias) for float32 without tensor cores, as one kernel with a launch of its own. It reads from top
// to bottom, after tensor_tiles.cuh:
//
//     transpose_panel    32 lines of an operand that is contiguous along K
//     Lanes              a warp's part of a tile: its products, and their epilogue
//     lane_matmul        a block with a tile of C or a slice of it
//
// The first thread of a block starts the tensor copies to its stages. All warps multiply, each a part of the tile, and store C from
// registers, so that C's rows may begin anywhere. The blocks of a multiprocessor hide one another's first loads and last stores.
//
// An operand has panels of 32 lines (rows of A or columns of B) in a stage, with a row of 128 bytes for each element of K. One that is
// contiguous along K arrives with a row for each line, whose 16-byte vectors are permuted (swizzling mode 128B). Warps transpose its panels
// in place, half a stage before they are multiplied.
#pragma once

#include "arch/tensor_copy.cuh"
#include "arch/wgmma.cuh"
#include "matmul/tensor_tiles.cuh"

namespace wt_matmul {

constexpr int PANEL = 32, PANEL_BYTES = PANEL * ROW_BYTES;  // lines, and as many elements of K

// The element type of the bias, a class whose of() is applied to each element of C (both void without one), the rows and columns of a tile,
// the warps along M and N, the lanes of a warp along M, the elements of K whose products are unrolled, the number of stages, whether A is
// contiguous along M and B along N, whether C is read, whether tiles have slices of K, and whether the rows of C begin anywhere.
template <class Bias_, class Function_, int M, int N, int WARPS_ALONG_M, int WARPS_ALONG_N, int LANES_ALONG_M, int UNROLLED_, int STAGES_,
          bool A_ALONG_M, bool B_ALONG_N, bool BETA, bool SLICES, bool ANYWHERE>
struct LaneConfig {
    using Bias = Bias_;
    using Function = Function_;
    static constexpr int TILE_M = M, TILE_N = N, TILE_K = PANEL, STAGES = STAGES_, UNROLLED = UNROLLED_;
    static constexpr bool A_MN = A_ALONG_M, B_MN = B_ALONG_N, HAS_BETA = BETA, HAS_SLICES = SLICES, ALIGNED = !ANYWHERE;
    static constexpr int WARPS_M = WARPS_ALONG_M, WARPS_N = WARPS_ALONG_N, WARPS = WARPS_M * WARPS_N;
    static constexpr int LANES_M = LANES_ALONG_M, LANES_N = 32 / LANES_M;
    static constexpr int ROWS = M / WARPS_M / LANES_M, COLUMNS = N / WARPS_N / LANES_N;  // of a lane
    static constexpr int A_BYTES = M * ROW_BYTES, STAGE_BYTES = A_BYTES + N * ROW_BYTES, BARRIERS_START = STAGES * STAGE_BYTES;
    static constexpr int TRANSPOSED = ((A_MN ? 0 : M) + (B_MN ? 0 : N)) / PANEL;  // panels of a stage
    static constexpr int CLUSTER_M = 1, CLUSTER_N = 1, CLUSTER = 1;

    static_assert(M % PANEL == 0 && N % PANEL == 0, "an operand has whole panels");
    static_assert(ROWS % 4 == 0 && COLUMNS % 4 == 0 && M / WARPS_M % PANEL == 0 && N / WARPS_N % PANEL == 0, "a lane has whole vectors");
};

// ---- loads

// Starts the copies of an operand's elements (x, k) and EXTENT - 1 more lines to a stage.
template <int EXTENT, bool ALONG_MN> WT_DEVICE void copy_panels(u32 to, u32 full, const TensorMap& map, int x, int k, int matrix)
{
    if constexpr (ALONG_MN) {
#pragma unroll
        for (int done = 0; done < EXTENT; done += PANEL)
            copy_tensor(to + done * ROW_BYTES, &map, full, x + done, k, matrix);
    } else {
        copy_tensor(to, &map, full, k, x, matrix);
    }
}

WT_DEVICE f32* in_stage(u32 address) { return static_cast<f32*>(__cvta_shared_to_generic(address)); }

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
            lines[half][i] = load<4>(in_stage(panel + (4 * four + i) * ROW_BYTES + (first[half] ^ (4 * four + i) % PATTERN_ROWS) * 16));
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            store(in_stage(panel + (4 * first[half] + i) * ROW_BYTES + four * 16),
                  Vector<f32, 4> {lines[half][0].at[i], lines[half][1].at[i], lines[half][2].at[i], lines[half][3].at[i]});
}

// ---- products

// A stage's mbarrier at which warps arrive when its copies have arrived and their panels are transposed, or the one of its copies
template <class P> WT_DEVICE u32 ready(const Ring<P>& ring) { return P::TRANSPOSED > 0 ? ring.empty() + 8 * P::STAGES : ring.full(); }

template <class P> struct Lanes {
    f32 sums[P::ROWS][P::COLUMNS];
    Vector<f32, 4> rows[2][P::ROWS / 4], columns[2][P::COLUMNS / 4];  // the values of two steps

    // In each 2 x 2 group of lanes, two share a vector of A and two share a vector of B.
    static WT_DEVICE int bit(int number) { return int(threadIdx.x) >> number & 1; }
    static WT_DEVICE int lane_m() { return bit(1) + 2 * bit(3) + (P::LANES_M == 8 ? 4 * bit(4) : 0); }
    static WT_DEVICE int lane_n() { return bit(0) + 2 * bit(2) + (P::LANES_N == 8 ? 4 * bit(4) : 0); }

    // A lane's i-th row and column of a tile. Vectors of four lie beside those of the other lanes.
    static WT_DEVICE int row(int i)
    {
        return int(threadIdx.x) / 32 / P::WARPS_N * (P::TILE_M / P::WARPS_M) + (i / 4 * P::LANES_M + lane_m()) * 4 + i % 4;
    }
    static WT_DEVICE int column(int i)
    {
        return int(threadIdx.x) / 32 % P::WARPS_N * (P::TILE_N / P::WARPS_N) + (i / 4 * P::LANES_N + lane_n()) * 4 + i % 4;
    }

    // Reads the values of a step. `set`: k % 2
    WT_DEVICE void read(const Ring<P>& ring, int k, int set)
    {
        // pointers, because NVRTC 13.0 adds integers by an instruction for each load
        const f32* const a = in_stage(ring.a()) + place(row(0)) + k * PANEL;
        const f32* const b = in_stage(ring.b()) + place(column(0)) + k * PANEL;
#pragma unroll
        for (int i = 0; i < P::ROWS; i += 4)
            rows[set][i / 4] = load<4>(a + place(i * P::LANES_M));
#pragma unroll
        for (int j = 0; j < P::COLUMNS; j += 4)
            columns[set][j / 4] = load<4>(b + place(j * P::LANES_N));
    }

    // The outer product of a step in serpentine order: consecutive FMAs share an operand, which the reuse cache holds.
    WT_DEVICE void multiply(int set)
    {
        constexpr bool BY_ROWS = P::ROWS >= P::COLUMNS;
        constexpr int OUTER = BY_ROWS ? P::ROWS : P::COLUMNS, INNER = BY_ROWS ? P::COLUMNS : P::ROWS;
#pragma unroll
        for (int outer = 0; outer < OUTER; ++outer)
#pragma unroll
            for (int x = 0; x < INNER; ++x) {
                const int inner = outer % 2 ? INNER - 1 - x : x;
                const int i = BY_ROWS ? outer : inner, j = BY_ROWS ? inner : outer;
                sums[i][j] += rows[set][i / 4].at[i % 4] * columns[set][j / 4].at[j % 4];
            }
    }

    // Transposes the warp's panels of a stage.
    static WT_DEVICE void transpose(const Ring<P>& ring)
    {
        const int warp = threadIdx.x / 32;
        if (warp >= P::TRANSPOSED)
            return;
        mbarrier_wait(ring.full(), ring.parity);
#pragma unroll 1
        for (int panel = warp; panel < P::TRANSPOSED; panel += P::WARPS)
            transpose_panel((P::A_MN ? ring.b() : ring.a()) + panel * PANEL_BYTES);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            mbarrier_arrive(ready(ring));
    }

    // Multiplies a tile. The values of a step are read in the one before, also those of the next stage. In the middle of a stage,
    // refill(ring, k) loads the one before it, and the next one is transposed.
    template <class Refill> WT_DEVICE void multiply_tile(Ring<P> ring, const Tile& tile, const Refill& refill)
    {
#pragma unroll
        for (int i = 0; i < P::ROWS; ++i)
#pragma unroll
            for (int j = 0; j < P::COLUMNS; ++j)
                sums[i][j] = 0.0f;
        if (tile.start >= tile.end)
            return;
        transpose(ring);
        mbarrier_wait(ready(ring), ring.parity);
        read(ring, 0, 0);
        Ring<P> before = ring;
#pragma unroll 1
        for (int k = tile.start; k < tile.end; k += P::TILE_K) {
            const bool has_next = k + P::TILE_K < tile.end;
            Ring<P> next = ring;
            if (has_next)  // else its values are not multiplied
                next.advance();
#pragma unroll 1
            for (int first = 0; first < P::TILE_K; first += P::UNROLLED)
#pragma unroll
                for (int i = 0; i < P::UNROLLED; ++i) {
                    const int step = first + i;
                    if (i == P::TILE_K / 2 % P::UNROLLED && step == P::TILE_K / 2) {
                        if (k != tile.start)
                            refill(before, k + (P::STAGES - 1) * P::TILE_K);
                        if (has_next)
                            transpose(next);
                    }
                    if (i + 1 < P::UNROLLED || step + 1 < P::TILE_K) {
                        read(ring, step + 1, (i + 1) % 2);
                    } else {
                        mbarrier_wait(ready(next), next.parity);
                        read(next, 0, 0);
                        __syncwarp();  // all lanes have read the stage
                        if (threadIdx.x % 32 == 0)
                            mbarrier_arrive(ring.empty());
                    }
                    multiply(i % 2);
                }
            before = ring;
            ring.advance();
        }
    }

    // The epilogue
    WT_DEVICE void store_tile(const Arguments& given, const Tile& tile) const
    {
        const f32 alpha = given.factor == nullptr ? given.alpha : given.alpha * *given.factor;
        f32* const start = static_cast<f32*>(given.c) + tile.matrix * given.c_matrix;
#pragma unroll
        for (int i = 0; i < P::ROWS; ++i) {
            const int y = tile.row + row(i);
            f32* const to = start + y * given.c_row;
#pragma unroll
            for (int j = 0; j < P::COLUMNS; j += 4) {
                const int x = tile.column + column(j);
                Vector<f32, 4> found;
#pragma unroll
                for (int n = 0; n < 4; ++n) {
                    const bool is_inside = y < given.m && x + n < given.n;
                    f32& value = found.at[n];
                    value = alpha * sums[i][j + n];
                    if (P::HAS_BETA && is_inside)
                        value += given.beta * to[x + n];
                    if constexpr (!same<typename P::Bias, void>)
                        value += x + n < given.n ? element<typename P::Bias>(given.bias, (x + n) * given.bias_step) : 0.0f;
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

private:
    // Where a line begins in an operand, in elements
    static WT_DEVICE int place(int line) { return line / PANEL * (PANEL * PANEL) + line % PANEL; }
};

// ---- the kernel

template <class P> WT_DEVICE void lane_matmul(const TensorMap& a, const TensorMap& b, const TensorMap&, const Arguments& given)
{
    extern __shared__ char memory[];
    const Ring<P> ring {(u32(__cvta_generic_to_shared(memory)) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT};
    const Tile tile = Tiles<P>(given).next();
    const auto load_stage = [&](const Ring<P>& to, int k) {
        mbarrier_arrive_and_expect(to.full(), P::STAGE_BYTES);
        copy_panels<P::TILE_M, P::A_MN>(to.a(), to.full(), a, tile.row, k, tile.matrix * given.a_step);
        copy_panels<P::TILE_N, P::B_MN>(to.b(), to.full(), b, tile.column, k, tile.matrix * given.b_step);
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
    Lanes<P> lanes;
    lanes.multiply_tile(ring, tile, [&](const Ring<P>& to, int k) {
        if (threadIdx.x == 0 && k < tile.end) {
            mbarrier_wait(to.empty(), to.parity);
            if constexpr (P::TRANSPOSED > 0)
                fence_for_wgmma();  // the transposition's writes (generic proxy) before the copy's (async proxy)
            load_stage(to, k);
        }
    });
    if constexpr (P::HAS_SLICES)
        if (tile.slice >= 0) {
            constexpr int VECTORS = P::COLUMNS / 4;
            const auto vector = [&](int i) -> f32* { return lanes.sums[i / VECTORS] + i % VECTORS * 4; };
            const u32 flag = ring.start + P::BARRIERS_START + 3 * 8 * P::STAGES;
            if (!add_slices<32 * P::WARPS, P::ROWS * VECTORS>(vector, given, tile, flag, [] { __syncthreads(); }))
                return;
        }
    lanes.store_tile(given, tile);
}

}  // namespace wt_matmul
