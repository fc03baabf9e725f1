// SPDX-License-Identifier: Apache-2.0
//
// Clusters of two blocks, correct ones and then those with one fault each, which the emulator must report. The map is that of x, a matrix
// of 8 rows of 64 floats, and its box has 4 rows of 32: half of what a block adds to y. A block's threads are four warps.

using namespace wt::arch;

struct alignas(64) TensorMap {
    char bytes[128];
};

constexpr unsigned FULL = 1024, EMPTY = FULL + 8, TILE = 2048, BYTES = 4 * 128;

inline unsigned rank() { return blockIdx.x % 2; }
inline float& shared(int i) { return reinterpret_cast<float*>(__cvta_shared_to_generic(TILE))[i]; }

inline void initialize(unsigned arrivals = 2)
{
    if (threadIdx.x == 0) {
        mbarrier_initialize(FULL, 1);
        mbarrier_initialize(EMPTY, arrivals);
        fence_initialized_mbarriers();
    }
}

inline void pass_cluster() { cluster_arrive(); cluster_wait(); }
inline void start() { initialize(); pass_cluster(); }

// Each block loads half of the tile for both.
inline void load(const TensorMap& map, int column, unsigned blocks = 3, unsigned bytes = 2 * BYTES)
{
    mbarrier_arrive_and_expect(FULL, bytes);
    copy_tensor_to_blocks(TILE + rank() * BYTES, &map, FULL, column, int(rank()) * 4, 0, blocks);
}

// Adds the tile's elements to y, whose parts are those of blocks.
inline void add(float* y)
{
    for (int i = threadIdx.x; i < 8 * 32; i += 128) y[blockIdx.x * 8 * 32 + i] += shared(i);
}

// The first thread of a block says that all its threads have read the stage.
inline void release()
{
    __syncthreads();
    if (threadIdx.x < 2) mbarrier_arrive_at_block(shared_address_of_block(EMPTY, threadIdx.x));
}

// ---- correct

extern "C" __global__ void shared_loads(const TensorMap map, float* y)
{
    start();
    for (int i = 0; i < 4; ++i) {
        if (threadIdx.x == 0) {
            mbarrier_wait(EMPTY, i % 2 ^ 1);
            load(map, i % 2 * 32);
        }
        mbarrier_wait(FULL, i % 2);
        add(y);
        release();
    }
    pass_cluster();
}

// ---- faulty

extern "C" __global__ void without_the_first_barrier(const TensorMap map, float* y)
{
    initialize();
    __syncthreads();
    if (threadIdx.x == 0) load(map, 0);
    mbarrier_wait(FULL, 0);
    pass_cluster();
}

extern "C" __global__ void without_the_last_barrier(const TensorMap map, float* y)
{
    start();
    if (threadIdx.x == 0) load(map, 0);
    mbarrier_wait(FULL, 0);
    add(y);
    release();
}

extern "C" __global__ void arrival_at_the_own_block(const TensorMap map, float* y)
{
    initialize(1);
    pass_cluster();
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) {
            mbarrier_wait(EMPTY, i % 2 ^ 1);
            load(map, 0);
        }
        mbarrier_wait(FULL, i % 2);
        add(y);
        __syncthreads();
        if (threadIdx.x == 0) mbarrier_arrive(EMPTY);
    }
    pass_cluster();
}

extern "C" __global__ void too_few_blocks(const TensorMap map, float* y)
{
    start();
    if (threadIdx.x == 0) load(map, 0, 1u << rank());
    mbarrier_wait(FULL, 0);
    pass_cluster();
}

extern "C" __global__ void too_many_blocks(const TensorMap map, float* y)
{
    start();
    if (threadIdx.x == 0) load(map, 0, 7);
    pass_cluster();
}

extern "C" __global__ void half_of_the_bytes(const TensorMap map, float* y)
{
    start();
    if (threadIdx.x == 0) load(map, 0, 3, BYTES);
    mbarrier_wait(FULL, 0);
    pass_cluster();
}

extern "C" __global__ void another_address(const TensorMap map, float* y)
{
    start();
    if (threadIdx.x == 0) mbarrier_arrive(shared_address_of_block(EMPTY, 1));
    pass_cluster();
}

extern "C" __global__ void arrives_twice(const TensorMap map, float* y)
{
    cluster_arrive();
    cluster_arrive();
    cluster_wait();
}

extern "C" __global__ void waits_alone(const TensorMap map, float* y) { cluster_wait(); }

extern "C" __global__ void never_waits(const TensorMap map, float* y) { cluster_arrive(); }

extern "C" __global__ void a_block_is_missing(const TensorMap map, float* y) { if (rank() == 0) pass_cluster(); }

extern "C" __global__ void a_warp_is_missing(const TensorMap map, float* y)
{
    if (threadIdx.x >= 32 || rank() == 1) __syncthreads();
}

// The barrier of a block orders nothing of another one.
extern "C" __global__ void races_between_blocks(const TensorMap map, float* y)
{
    if (rank() == 0 && threadIdx.x == 0) y[0] = 1;
    __syncthreads();
    if (rank() == 1 && threadIdx.x == 0) y[0] = 2;
}
