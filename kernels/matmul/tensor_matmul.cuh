// SPDX-License-Identifier: Apache-2.0
//
// C = function(alpha * A * B + beta * C + bias) on sm_90a, as one kernel with a launch of its own. It reads from top to bottom, after
// tensor_tiles.cuh with the constants, the shared memory, and the order in which blocks compute tiles of C:
//
//     load_tiles         the loading warp: tensor copies into the stages of the ring
//     store_tile         the epilogue: accumulators -> elements of C -> shared memory -> tensor copies to C, or stores by the threads
//     multiply_tiles     a multiplying warpgroup: the products of its tiles by wgmma, then their epilogue
//     matmul             persistent blocks with one loading warp and two multiplying warpgroups
//
// A block computes the items number, number + blocks, number + 2 * blocks, ... An item is a tile of C. If the last tiles are fewer than
// the blocks, they may be cut into slices of K, and an item is a slice. The loading warp is as many stages ahead as the ring has, also
// across tiles. The multiplying warpgroups take turns: one multiplies a tile while the other is in the epilogue of the tile before.
// CUTLASS calls such a kernel ping-pong. A tile whose sums do not fit the registers of a warpgroup is computed by both, each with half of
// the rows, which CUTLASS calls cooperative. Such a tile loads fewer bytes for each product.
//
// A stage has rows of 128 bytes, whose 16-byte vectors are permuted (swizzling mode 128B). An operand that is contiguous along K has
// a row for each of its rows of M or N. An operand that is contiguous along M or N has panels of 128 bytes of it, with a row for
// each element of K. Elements outside of the arrays are zeros when they are loaded, and are not stored.
//
// Blocks may form clusters, whose tiles lie side by side. Then an item is a tile or slice for each block of a cluster. The blocks of a row
// share A's part of a stage, those of a column B's: each loads a piece of it, for all of them. So a block fills stages of the blocks of its
// row and column, and a stage is empty when these blocks have multiplied theirs. Tiles outside of C are computed, too, and not stored.
//
// wgmma reads tf32 operands from shared memory only if they are contiguous along K. One that is not, A or B, passes through registers: it is
// the instruction's A, whose rows are called lines here. If it is B, the instruction computes the transpose of C.
#pragma once

#include "arch/cluster.cuh"
#include "arch/ldmatrix.cuh"
#include "arch/memory.cuh"
#include "arch/tensor_copy.cuh"
#include "arch/tensor_store.cuh"
#include "arch/wgmma.cuh"
#include "matmul/tensor_tiles.cuh"

namespace wt_matmul {

using namespace wt;
using namespace wt::arch;

// ---- loads

// Starts the copies of an operand's elements (x, k) and EXTENT - 1 more rows or columns to a stage: all of them, or one of several pieces
// to all `blocks` that share them.
template <int EXTENT, int DEPTH, bool ALONG_MN, int PIECES>
WT_DEVICE void copy_operand(u32 to, u32 full, const TensorMap& map, int x, int k, int matrix, int piece, u16 blocks)
{
    if constexpr (PIECES > 1) {
        constexpr int LINES = (ALONG_MN ? DEPTH : EXTENT) / PIECES;
        to += piece * LINES * ROW_BYTES;
        if constexpr (ALONG_MN) {
#pragma unroll
            for (int done = 0; done < EXTENT; done += DEPTH)
                copy_tensor_to_blocks(to + done * ROW_BYTES, &map, full, x + done, k + piece * LINES, matrix, blocks);
        } else {
            copy_tensor_to_blocks(to, &map, full, k, x + piece * LINES, matrix, blocks);
        }
    } else if constexpr (ALONG_MN) {
#pragma unroll
        for (int done = 0; done < EXTENT; done += DEPTH)  // a panel is as wide as deep
            copy_tensor(to + done * ROW_BYTES, &map, full, x + done, k, matrix);
    } else {
        copy_tensor(to, &map, full, k, x, matrix);
    }
}

template <class P> WT_DEVICE void load_tiles(Ring<P> ring, const TensorMap& a, const TensorMap& b, const Arguments& given)
{
    const int row = P::cluster_row(), column = P::cluster_column();
    u16 blocks_of_row = 0;
    for (int i = 0; i < P::CLUSTER_N; ++i)
        blocks_of_row |= 1 << (i * P::CLUSTER_M + row);
    const u16 blocks_of_column = ((1 << P::CLUSTER_M) - 1) << column * P::CLUSTER_M;
    for (Tiles<P> tiles(given); tiles.has_next();) {
        const Tile tile = tiles.next();
        for (int k = tile.start; k < tile.end; k += P::TILE_K, ring.advance()) {
            mbarrier_wait(ring.empty(), ring.parity ^ 1);  // in the first round, nobody has to empty it
            mbarrier_arrive_and_expect(ring.full(), P::STAGE_BYTES);
            copy_operand<P::TILE_M, P::TILE_K, P::A_MN, P::CLUSTER_N>(
                ring.a(), ring.full(), a, tile.row, k, tile.matrix * given.a_step, column, blocks_of_row);
            copy_operand<P::TILE_N, P::TILE_K, P::B_MN, P::CLUSTER_M>(
                ring.b(), ring.full(), b, tile.column, k, tile.matrix * given.b_step, row, blocks_of_column);
        }
    }
    if constexpr (P::CLUSTER > 1)  // a block must not end before the others have arrived at its mbarriers
        for (int stage = 0; stage < P::STAGES; ++stage, ring.advance())
            mbarrier_wait(ring.empty(), ring.parity ^ 1);
}

// ---- the epilogue

// The first of the two lines of 64 that a thread holds of an operand in registers: neighbours. The eight threads whose lanes have g = lane / 4
// of 4h to 4h + 3 and equal lane % 4 have lines of two vectors, x and x ^ 5. So half a warp has no bank conflicts, neither when it reads
// four rows of a stage, nor when it writes to a chunk.
WT_DEVICE int own_line()
{
    const int warp = threadIdx.x % WARPGROUP / 32, g = threadIdx.x % 32 / 4, vector = (warp % 2 * 2 + g / 4) ^ (g / 2 % 2 * 5);
    return warp / 2 * 32 + vector * 4 + g % 2 * 2;
}

// The row and the first column in a chunk of a thread's pair in a block of eight columns of the accumulators. The halves are the lower
// and the upper rows of an instruction, or the even and the odd rows of C.
template <class P> WT_DEVICE int own_row(int block, int half)
{
    if constexpr (P::SWAPPED)
        return block * 8 + threadIdx.x % 4 * 2 + half;
    else if constexpr (P::IN_REGISTERS)
        return own_line() + half;
    else
        return threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
}
template <class P> WT_DEVICE int own_column(int block) { return P::SWAPPED ? own_line() : block * 8 + threadIdx.x % 4 * 2; }

// A pair of elements of C
template <class P>
WT_DEVICE Vector<f32, 2> finished(f32 first, f32 second, const Vector<f32, 2>& previous, f32 alpha, const Arguments& given, int column)
{
    Vector<f32, 2> found {alpha * first, alpha * second};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if constexpr (P::HAS_BETA)
            found.at[i] += f32(given.beta) * previous.at[i];
        if constexpr (!same<typename P::Bias, void>)
            found.at[i] += column + i < given.n ? element<typename P::Bias>(given.bias, (column + i) * given.bias_step) : 0.0f;
        if constexpr (!same<typename P::Function, void>)
            found.at[i] = P::Function::of(found.at[i]);
    }
    return found;
}

template <class Out> WT_DEVICE Vector<f32, 2> unpacked(u32 pair)
{
    if constexpr (same<Out, f16>)
        return {Convert<f32, f16>::of(f16 {u16(pair)}), Convert<f32, f16>::of(f16 {u16(pair >> 16)})};
    else
        return {float_of(pair << 16), float_of(pair & 0xffff0000u)};
}

template <class Out> WT_DEVICE u32 rounded(const Vector<f32, 2>& pair) { return pack_rounded<Out>(pair.at[0], pair.at[1]); }

// Writes the elements of C of a warp's 16 rows and the chunk's columns to shared memory, as the tensor copies read them. They replace
// the previous ones, if C is read. finish() gives the pair in a block of eight columns and a half of the rows.
template <class P, class Finish> WT_DEVICE void write_chunk(u32 chunk, const Finish& finish)
{
    const int lane = threadIdx.x % 32;
    if constexpr (sizeof(typename P::Out) == 2) {
        // lanes of stmatrix have the rows of 8x8 matrices: both halves of the rows, two blocks
        const int to = threadIdx.x % WARPGROUP / 32 * 16 + lane % 16;
#pragma unroll
        for (int j = 0; j < P::COLUMNS / 8; j += 2) {
            const u32 at = chunk + P::vector_of_chunk(to, j + lane / 16);
            u32 words[4] = {};
            if constexpr (P::HAS_BETA) {
                ldmatrix(words, at);
                __syncwarp();
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
                words[i] = rounded<typename P::Out>(finish(j + i / 2, i % 2, unpacked<typename P::Out>(words[i])));
            stmatrix(at, words);
        }
    } else {
#pragma unroll
        for (int j = 0; j < P::COLUMNS / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int vector = P::SWAPPED ? own_line() % P::COLUMNS / 4 : 2 * j + lane % 4 / 2;
                const int to = own_row<P>(j, half) + (P::SWAPPED ? own_line() / P::COLUMNS * P::BOX_ROWS : 0);
                const u32 address = chunk + P::vector_of_chunk(to, vector) + (P::SWAPPED ? lane / 4 : lane) % 2 * 8;
                f32* const at = static_cast<f32*>(__cvta_shared_to_generic(address));
                store(at, finish(j, half, P::HAS_BETA ? load<2>(at) : Vector<f32, 2> {}));
            }
    }
}

// The chunks of a warpgroup's part of a tile
template <class P> struct Chunks {
    static constexpr int ACROSS = P::WIDTH / P::COLUMNS, COUNT = P::BLOCKS * ACROSS;
    const Ring<P>& ring;
    const TensorMap& c;
    const Tile& tile;
    int group;

    WT_DEVICE int row(int number) const
    {
        return P::SWAPPED ? tile.row + number % ACROSS * P::COLUMNS : tile.row + P::first_line(group) + number / ACROSS * ROWS;
    }
    WT_DEVICE int column(int number) const
    {
        return P::SWAPPED ? tile.column + P::first_line(group) + number / ACROSS * ROWS : tile.column + number % ACROSS * P::COLUMNS;
    }

    // Starts to read the previous elements, after the stores from the chunk's memory.
    WT_DEVICE void read(int number) const
    {
        wait_for_tensor_stores<0>();
        mbarrier_arrive_and_expect(ring.previous(group, number), P::CHUNK_BYTES);
#pragma unroll
        for (int box = 0; box < P::BOXES; ++box)
            copy_tensor(memory(number, box), &c, ring.previous(group, number), column(number) + box * P::COLUMNS, row(number), tile.matrix);
    }

    WT_DEVICE void store(int number) const
    {
#pragma unroll
        for (int box = 0; box < P::BOXES; ++box)
            store_tensor(&c, memory(number, box), column(number) + box * P::COLUMNS, row(number), tile.matrix);
        commit_tensor_stores();
    }

    // Stores a chunk that all of the warpgroup have written, element by element: lanes have columns, warps every fourth row. The rows are
    // read before the first one is stored: the compiler cannot know that a store does not change what it reads.
    WT_DEVICE void store_elements(int number, const Arguments& given) const
    {
        using Out = typename P::Out;
        constexpr int WARPS = WARPGROUP / 32, LINES = P::BOX_ROWS / WARPS;
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32, first = row(number) + warp;
        Out* const from = static_cast<Out*>(given.c) + tile.matrix * given.c_matrix + first * given.c_row;
#pragma unroll
        for (int box = 0; box < P::BOXES; ++box)
#pragma unroll
            for (int x = lane; x < P::COLUMNS; x += 32) {
                const int n = column(number) + box * P::COLUMNS + x, byte = x * int(sizeof(Out));
                Out found[LINES];
#pragma unroll
                for (int i = 0; i < LINES; ++i) {
                    const u32 at = memory(number, box) + P::vector_of_chunk(i * WARPS + warp, byte / 16) + byte % 16;
                    found[i] = *static_cast<const Out*>(__cvta_shared_to_generic(at));
                }
                Out* to = from + n;
#pragma unroll
                for (int i = 0; i < LINES; ++i, to += WARPS * given.c_row)
                    if (first + i * WARPS < given.m && n < given.n)
                        *to = found[i];
            }
    }

    WT_DEVICE void read_first() const
    {
        for (int number = 0; number < min(CHUNKS, COUNT); ++number)
            read(number);
    }

private:
    WT_DEVICE u32 memory(int number, int box) const { return ring.chunk(group, number) + box * P::BOX_ROWS * P::CHUNK_ROW; }
};

// `parities` has a bit for the mbarrier of each chunk.
template <class P>
WT_DEVICE void store_tile(const typename P::Accumulators& accumulators, const Chunks<P>& chunks, const Arguments& given, u32& parities)
{
    constexpr int ACROSS = Chunks<P>::ACROSS, COUNT = Chunks<P>::COUNT;
    constexpr bool IS_ODD = COUNT % CHUNKS != 0;  // the first chunk lies where the last tile's last one does
    const Ring<P>& ring = chunks.ring;
    const int group = chunks.group;
    const bool is_storing = threadIdx.x % WARPGROUP == 0;
    const f32 alpha = given.factor == nullptr ? f32(given.alpha) : f32(given.alpha) * *given.factor;
#pragma unroll
    for (int number = 0; number < COUNT; ++number) {
        const u32 chunk = ring.chunk(group, number);
        if constexpr (P::HAS_BETA) {
            mbarrier_wait(ring.previous(group, number), parities >> number % CHUNKS & 1);
            parities ^= 1 << number % CHUNKS;
        } else {
            if (P::HAS_MAP && is_storing && IS_ODD && number == 0)
                wait_for_tensor_stores<0>();
            else if (P::HAS_MAP && is_storing)
                wait_for_tensor_stores<CHUNKS - 1>();
            if (P::HAS_MAP || (IS_ODD && number == 0))  // else a chunk has been read before the next one was stored
                warpgroup_barrier(group);
        }
        write_chunk<P>(chunk, [&](int block, int half, const Vector<f32, 2>& previous) {
            const f32* const sums = accumulators[number / ACROSS][number % ACROSS * P::COLUMNS / 8 + block];
            const int first = P::SWAPPED ? half : 2 * half, second = P::SWAPPED ? half + 2 : first + 1;
            const int column = chunks.column(number) + own_column<P>(block);
            return finished<P>(sums[first], sums[second], previous, alpha, given, column);
        });
        if constexpr (!P::HAS_MAP) {
            warpgroup_barrier(group);
            chunks.store_elements(number, given);
        } else {
            fence_for_wgmma();
            warpgroup_barrier(group);
            if (is_storing) {
                chunks.store(number);
                if (P::HAS_BETA && number + CHUNKS < COUNT)
                    chunks.read(number + CHUNKS);
            }
        }
    }
}

// ---- products

// The descriptor of an operand of a stage
template <int DEPTH, bool ALONG_MN> WT_DEVICE u64 operand(u32 start)
{
    return wgmma_operand(start, PATTERN_ROWS * ROW_BYTES, DEPTH * ROW_BYTES, ROW_BYTES);
}

// A warp has multiplied a stage, which the blocks of this one's row and column fill. Its mbarrier has the same place in all blocks.
template <class P> WT_DEVICE void empty_stage(u32 empty)
{
    if constexpr (P::CLUSTER == 1) {
        mbarrier_arrive(empty);
    } else {
        const int row = P::cluster_row(), column = P::cluster_column();
#pragma unroll
        for (int i = 0; i < P::CLUSTER_N; ++i)
            mbarrier_arrive_at_block(shared_address_of_block(empty, i * P::CLUSTER_M + row));
#pragma unroll
        for (int i = 1; i < P::CLUSTER_M; ++i)
            mbarrier_arrive_at_block(shared_address_of_block(empty, column * P::CLUSTER_M + (row + i) % P::CLUSTER_M));
    }
}

// Reads the instruction's A of a step from a stage: two neighbouring lines of K = lane % 4, and those of K = lane % 4 + 4.
template <class P> WT_DEVICE void read_lines(u32 (&registers)[P::BLOCKS][4], const Ring<P>& ring, int group, int step)
{
    const int line = own_line(), k = threadIdx.x % 4;
    const u32 lines = (P::SWAPPED ? ring.b() : ring.a()) + P::first_line(group) * ROW_BYTES;
    const u32 from = lines + line / P::TILE_K * P::TILE_K * ROW_BYTES + k * ROW_BYTES + (line % P::TILE_K / 4 ^ k) * 16 + line % 4 * 4;
#pragma unroll
    for (int i = 0; i < P::BLOCKS; ++i)
#pragma unroll
        for (int high = 0; high < 2; ++high) {
            const u32 at = (from ^ high * 4 * 16) + (i * ROWS + step * P::STEP + high * 4) * ROW_BYTES;
            const auto pair = load<2>(static_cast<const u32*>(__cvta_shared_to_generic(at)));
            registers[i][2 * high] = pair.at[0];
            registers[i][2 * high + 1] = pair.at[1];
        }
}

template <class P> WT_DEVICE void multiply_tiles(Ring<P> ring, const TensorMap& c, const Arguments& given, int group)
{
    constexpr int A_STEP = P::A_MN ? P::STEP * ROW_BYTES : 32, B_STEP = P::B_MN ? P::STEP * ROW_BYTES : 32;  // bytes
    const bool is_first_lane = threadIdx.x % 32 == 0, is_storing = threadIdx.x % WARPGROUP == 0;
    u32 parities = 0;      // of the chunks' mbarriers
    u32 turn = group ^ 1;  // the parity: nobody is before the first warpgroup's first turn
    int owner = 0;         // of a tile
    for (Tiles<P> tiles(given); tiles.has_next(); owner ^= 1) {
        const Tile tile = tiles.next();
        if constexpr (P::OWNERS == 1) {
            if (owner != group) {
                ring.skip((tile.end - tile.start + P::TILE_K - 1) / P::TILE_K);
                continue;
            }
            // then the stages of all earlier tiles have been filled, so that a stage's parity is unambiguous
            mbarrier_wait(ring.turn(group), turn);
            turn ^= 1;
        }
        const Chunks<P> chunks {ring, c, tile, group};
        typename P::Accumulators accumulators = {};
        u32 registers[P::SETS][P::BLOCKS][4] = {};  // of the operand in registers
        u32 multiplied = 0;  // the mbarrier of the stage before
        if constexpr (P::IN_REGISTERS)
            if (tile.start < tile.end) {
                mbarrier_wait(ring.full(), ring.parity);
                read_lines<P>(registers[0], ring, group, 0);
            }
        for (int k = tile.start; k < tile.end; k += P::TILE_K, ring.advance()) {
            if constexpr (P::IN_REGISTERS) {
                const u64 columns = operand<P::TILE_K, false>(P::SWAPPED ? ring.a() : ring.b());
#pragma unroll
                for (int step = 0; step < P::STEPS; ++step) {
                    auto& next = registers[(step + 1) % P::SETS];
                    wgmma_wait<1>();  // ptxas serializes if products of more steps are in flight
                    if (step == 1) {
                        __syncwarp();  // all lanes have read the stage before
                        if (is_first_lane && k != tile.start)
                            empty_stage<P>(multiplied);
                    }
                    wgmma_has_read(next);
                    if (step + 1 < P::STEPS) {
                        read_lines<P>(next, ring, group, step + 1);
                    } else {
                        Ring<P> after = ring;
                        if (k + P::TILE_K < tile.end)  // else these lines are not multiplied
                            after.advance();
                        mbarrier_wait(after.full(), after.parity);
                        read_lines<P>(next, after, group, 0);
                    }
                    wgmma_fence();
#pragma unroll
                    for (int i = 0; i < P::BLOCKS; ++i)
                        wgmma_tf32(accumulators[i], registers[step % P::SETS][i], wgmma_after(columns, step * 32));
                    wgmma_commit();
                }
            } else {
                mbarrier_wait(ring.full(), ring.parity);
                const u64 a = operand<P::TILE_K, P::A_MN>(ring.a() + P::first_line(group) * ROW_BYTES);
                const u64 b = operand<P::TILE_K, P::B_MN>(ring.b());
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < P::TILE_K / P::STEP; ++step)
#pragma unroll
                    for (int i = 0; i < P::BLOCKS; ++i)
                        wgmma<P::A_MN, P::B_MN>(
                            accumulators[i], wgmma_after(a, i * ROWS * ROW_BYTES + step * A_STEP), wgmma_after(b, step * B_STEP), typename P::T {});
                wgmma_commit();
            }
            if constexpr (P::HAS_BETA) {
                if (is_storing && k == tile.start && tile.slice < 0)  // only the last slice that arrives needs C
                    chunks.read_first();  // while the tile is multiplied
                __syncwarp();  // wgmma.wait_group needs all lanes of the warp
            }
            if constexpr (!P::IN_REGISTERS) {
                wgmma_wait<1>();  // until the products of the stage before are complete
                if (is_first_lane && k != tile.start)
                    empty_stage<P>(multiplied);
            }
            multiplied = ring.empty();
        }
        if (P::OWNERS == 1 && is_first_lane)
            mbarrier_arrive(ring.turn(group ^ 1));
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < P::BLOCKS; ++i)
            wgmma_has_written(accumulators[i]);
        if constexpr (P::IN_REGISTERS)
            __syncwarp();  // all lanes have read the last stage
        if (is_first_lane && tile.start < tile.end)
            empty_stage<P>(multiplied);
        if constexpr (P::HAS_SLICES)
            if (tile.slice >= 0) {
                constexpr int VECTORS = P::WIDTH / 8, COUNT = P::BLOCKS * VECTORS;
                const auto vector = [&](int i) -> f32* { return accumulators[i / VECTORS][i % VECTORS]; };
                if (!add_slices<f32, WARPGROUP, COUNT, 4, COUNT>(vector, given, tile, ring.flag(group), [&] { warpgroup_barrier(group); }))
                    continue;
                if (P::HAS_BETA && is_storing)
                    chunks.read_first();
            }
        store_tile<P>(accumulators, chunks, given, parities);
    }
}

// ---- the kernel

template <class P> WT_DEVICE void matmul(const TensorMap& a, const TensorMap& b, const TensorMap& c, const Arguments& given)
{
    extern __shared__ char memory[];
    Ring<P> ring {(u32(__cvta_generic_to_shared(memory)) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT};
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&a);
        prefetch_tensor_map(&b);
        if constexpr (P::HAS_MAP)
            prefetch_tensor_map(&c);
        for (int stage = 0; stage < P::STAGES; ++stage, ring.advance()) {
            mbarrier_initialize(ring.full(), 1);
            mbarrier_initialize(ring.empty(), P::SHARING * P::OWNERS * WARPGROUP / 32);
        }
        ring.parity = 0;
        for (int group = 0; group < MULTIPLYING; ++group)
            mbarrier_initialize(ring.turn(group), WARPGROUP / 32);
        for (int number = 0; number < MULTIPLYING * CHUNKS; ++number)
            mbarrier_initialize(ring.previous(0, 0) + 8 * number, 1);
        fence_initialized_mbarriers();
    }
    if constexpr (P::CLUSTER > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }
    const int warpgroup = __shfl_sync(0xffffffffu, int(threadIdx.x) / WARPGROUP, 0);  // the compiler learns that lanes agree
    if (warpgroup == MULTIPLYING) {
        keep_registers<LOADING_REGISTERS>();
        if (threadIdx.x == MULTIPLYING * WARPGROUP)
            load_tiles(ring, a, b, given);
    } else {
        take_registers<MULTIPLYING_REGISTERS>();
        multiply_tiles(ring, c, given, warpgroup);
        if (threadIdx.x % WARPGROUP == 0)
            wait_for_tensor_stores<0>();
    }
}

}  // namespace wt_matmul
