// SPDX-License-Identifier: Apache-2.0
//
// Kernels of 128 threads that load tiles by tensor copies. Mbarriers lie at the start of shared memory, tiles after 1 KB.
// tensor_copy.cuh and kernels/module/stage_buffers.cuh come before this text, and mbarriers.cu after it.

using namespace wt::arch;

struct alignas(64) TensorMap {
    unsigned long long words[16];
};

constexpr unsigned MBARRIER = wt::emulator::shared_start, TILES = MBARRIER + 1024;

inline char* at(unsigned address) { return static_cast<char*>(__cvta_shared_to_generic(address)); }

__device__ void initialize(int mbarriers)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < mbarriers; ++i) mbarrier_initialize(MBARRIER + 8 * i, 1);
        fence_initialized_mbarriers();
    }
    __syncthreads();
}

// ---- copies of one box

extern "C" __global__ void copied(
    const TensorMap map, char* out, int rank, int bytes, int shift, int x, int y, int z, int u, int v)
{
    const unsigned to = TILES + shift;
    prefetch_tensor_map(&map);
    initialize(1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_and_expect(MBARRIER, bytes);
        if (rank == 2) copy_tensor(to, &map, MBARRIER, x, y);
        else if (rank == 3) copy_tensor(to, &map, MBARRIER, x, y, z);
        else if (rank == 4) copy_tensor(to, &map, MBARRIER, x, y, z, u);
        else copy_tensor(to, &map, MBARRIER, x, y, z, u, v);
    }
    mbarrier_wait(MBARRIER, 0);
    for (int i = threadIdx.x; i < bytes; i += 128) out[i] = *at(to + i);
    __syncthreads();
    if (threadIdx.x == 0) mbarrier_invalidate(MBARRIER);
}

// The tile at row y and column x of halves, read by the layout of slots. Each copy moves a panel. The map is in an array.
template <int ROWS, int ROW_BYTES> __device__ void read_slot(const char* map, uint4* out, int x, int y)
{
    using Layout = wt_module::BufferLayout<ROWS, ROW_BYTES>;
    initialize(1);
    if (threadIdx.x == 0) {
        mbarrier_arrive_and_expect(MBARRIER, ROWS * ROW_BYTES);
        for (int panel = 0; panel < ROW_BYTES / Layout::WIDTH; ++panel)
            copy_tensor(TILES + panel * Layout::PANEL_BYTES, map, MBARRIER, x + panel * Layout::WIDTH / 2, y);
    }
    mbarrier_wait(MBARRIER, 0);
    for (int i = threadIdx.x; i < ROWS * ROW_BYTES / 16; i += 128)
        out[i] = *reinterpret_cast<const uint4*>(at(TILES + Layout::offset(i * 16 / ROW_BYTES, i % (ROW_BYTES / 16))));
}

extern "C" __global__ void slot(const char* map, uint4* out, int x, int y, int rows, int row_bytes)
{
    const auto is = [&](int a, int b) { return rows == a && row_bytes == b; };
    if (is(16, 32)) read_slot<16, 32>(map, out, x, y);
    if (is(16, 96)) read_slot<16, 96>(map, out, x, y);
    if (is(24, 64)) read_slot<24, 64>(map, out, x, y);
    if (is(8, 192)) read_slot<8, 192>(map, out, x, y);
    if (is(64, 128)) read_slot<64, 128>(map, out, x, y);
    if (is(40, 384)) read_slot<40, 384>(map, out, x, y);
}

// ---- a ring of three stages: C, 64 x 128 floats, is the product of halves A, 64 x K, and B, K x 128. Panels of B are 64
// columns wide.

enum Change { none, no_wait, warp_without_wait, wrong_parity, too_few_bytes, too_many_bytes, loaded_too_early, no_barrier };

extern "C" __global__ void ring(const TensorMap a, const TensorMap b, float* c, int steps, Change change)
{
    constexpr int STAGES = 3, PANEL = 64 * 128, STAGE = 3 * PANEL;
    initialize(STAGES);
    const auto load = [&](int step) {
        const unsigned stage = TILES + step % STAGES * STAGE, mbarrier = MBARRIER + 8 * (step % STAGES);
        if (threadIdx.x != 0 || step >= steps) return;
        mbarrier_arrive_and_expect(mbarrier, STAGE + (change == too_few_bytes ? -16 : change == too_many_bytes ? 16 : 0));
        copy_tensor(stage, &a, mbarrier, 64 * step, 0);
        copy_tensor(stage + PANEL, &b, mbarrier, 0, 64 * step, 0);
    };
    for (int step = 0; step < STAGES - 1; ++step) load(step);
    float sums[16][4] = {};
    for (int step = 0; step < steps; ++step) {
        const unsigned stage = TILES + step % STAGES * STAGE;
        const bool waits = !(change == no_wait && step == 4) && !(change == warp_without_wait && threadIdx.x / 32 == 2);
        if (waits)
            mbarrier_wait(MBARRIER + 8 * (step % STAGES), (step / STAGES + (change == wrong_parity && step == 4)) % 2);
        const auto left = wgmma_operand(stage, 1024, 0, 128), right = wgmma_operand(stage + PANEL, 1024, PANEL, 128);
        wgmma_fence();
        for (int k = 0; k < 4; ++k)
            wgmma<false, true>(sums, wgmma_after(left, k * 32), wgmma_after(right, k * 2048), wt::f16 {});
        wgmma_commit();
        change == loaded_too_early ? wgmma_wait<2>() : wgmma_wait<1>();
        if (change != no_barrier) __syncthreads();
        load(step + STAGES - 1);
    }
    wgmma_wait<0>();
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < 16; ++i)
        for (int e = 0; e < 4; ++e) c[(row + e / 2 * 8) * 128 + i * 8 + column + e % 2] = sums[i][e];
}
