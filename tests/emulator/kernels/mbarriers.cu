// SPDX-License-Identifier: Apache-2.0
//
// Uses of mbarriers, correct ones and then those with one fault each, which the emulator must report. The map is that of x,
// 8 rows of 64 floats, and its box has 8 rows of 32. tensor_copies.cu comes before this text.

constexpr unsigned BYTES = 8 * 128;

inline void load(const TensorMap& map, unsigned to = TILES, unsigned mbarrier = MBARRIER, unsigned bytes = BYTES)
{
    if (threadIdx.x == 0) {
        mbarrier_arrive_and_expect(mbarrier, bytes);
        copy_tensor(to, &map, mbarrier, 0, 0);
    }
}
inline void start(const TensorMap& map) { initialize(1); load(map); }
inline void barrier_of_two_warps() { asm volatile("bar.sync %0, 64;" : : "r"(3) : "memory"); }
inline float& shared(int i) { return reinterpret_cast<float*>(at(TILES))[i]; }

// ---- correct

// The copy arrives before its bytes are expected, because thread 0 waits for it first. Mbarrier 1 delays the arrival.
extern "C" __global__ void expected_late(const TensorMap map, float* x, float* y)
{
    initialize(2);
    if (threadIdx.x == 0) {
        mbarrier_wait(MBARRIER, 0);
        y[0] = shared(0);
    } else if (threadIdx.x == 32) {
        copy_tensor(TILES, &map, MBARRIER, 0, 0);
        mbarrier_wait(MBARRIER + 8, 0);
        mbarrier_arrive_and_expect(MBARRIER, BYTES);
    } else if (threadIdx.x == 64) {
        mbarrier_arrive_and_expect(MBARRIER + 8, 0);
    }
}

// Two arrivals expect the bytes of two copies. One thread waits, and a barrier makes the bytes visible to the others.
extern "C" __global__ void two_arrivals(const TensorMap map, float* x, float* y)
{
    if (threadIdx.x == 0) {
        mbarrier_initialize(MBARRIER, 2);
        fence_initialized_mbarriers();
    }
    __syncthreads();
    if (threadIdx.x == 64 || threadIdx.x == 32) {
        copy_tensor(TILES + BYTES * (threadIdx.x / 64), &map, MBARRIER, 0, 0);
        mbarrier_arrive_and_expect(MBARRIER, threadIdx.x == 64 ? 2 * BYTES : 0);
    }
    if (threadIdx.x == 7) mbarrier_wait(MBARRIER, 0);
    __syncthreads();
    y[threadIdx.x] = shared(threadIdx.x) + shared(threadIdx.x + BYTES / 4);
}

// The memory of an mbarrier becomes an mbarrier again. One lane of each warp waits.
extern "C" __global__ void initialized_again(const TensorMap map, float* x, float* y)
{
    for (int i = 0; i < 3; ++i) {
        initialize(1);
        load(map);
        if (threadIdx.x % 32 == 3) mbarrier_wait(MBARRIER, 0);
        __syncwarp();
        y[threadIdx.x] = shared(threadIdx.x);
        __syncthreads();
        if (threadIdx.x == 0) mbarrier_invalidate(MBARRIER);
    }
    if (threadIdx.x == 0) *at(MBARRIER) = 1;
}

// An mbarrier orders the accesses of two threads, and a barrier of two warps those of a third one.
extern "C" __global__ void handed_over(const TensorMap map, float* x, float* y)
{
    initialize(1);
    if (threadIdx.x == 96) {
        shared(0) = x[1];
        mbarrier_arrive(MBARRIER);
    }
    if (threadIdx.x == 0) mbarrier_wait(MBARRIER, 0);
    if (threadIdx.x < 64) barrier_of_two_warps();
    if (threadIdx.x == 32) y[0] = shared(0);
}

// ---- faulty

extern "C" __global__ void arrival_before_the_store(const TensorMap map, float* x, float* y)
{
    initialize(1);
    if (threadIdx.x == 0) {
        mbarrier_arrive(MBARRIER);
        shared(0) = x[1];
    }
    if (threadIdx.x == 32) {
        mbarrier_wait(MBARRIER, 0);
        y[0] = shared(0);
    }
}

extern "C" __global__ void barrier_of_a_missing_warp(const TensorMap map, float* x, float* y)
{
    if (threadIdx.x < 32) barrier_of_two_warps();
}

extern "C" __global__ void barrier_of_other_warps(const TensorMap map, float* x, float* y)
{
    initialize(1);
    if (threadIdx.x == 0) shared(0) = x[1];
    if (threadIdx.x < 64) barrier_of_two_warps();
    if (threadIdx.x == 64) y[0] = shared(0);
}

extern "C" __global__ void read_in_flight(const TensorMap map, float* x, float* y)
{
    start(map);
    __syncthreads();
    y[threadIdx.x] = shared(threadIdx.x);
}

extern "C" __global__ void written_in_flight(const TensorMap map, float* x, float* y)
{
    start(map);
    __syncthreads();
    if (threadIdx.x == 0) shared(5) = 1.0f;
    mbarrier_wait(MBARRIER, 0);
}

extern "C" __global__ void copied_in_flight(const TensorMap map, float* x, float* y)
{
    initialize(2);
    load(map);
    load(map, TILES, MBARRIER + 8);
}

extern "C" __global__ void copied_over_read_memory(const TensorMap map, float* x, float* y)
{
    start(map);
    mbarrier_wait(MBARRIER, 0);
    if (threadIdx.x == 9) y[0] = shared(9);
    __syncwarp();
    if (threadIdx.x == 32) {
        mbarrier_arrive_and_expect(MBARRIER, BYTES);
        copy_tensor(TILES, &map, MBARRIER, 0, 0);
    }
}

extern "C" __global__ void waited_by_another_thread(const TensorMap map, float* x, float* y)
{
    start(map);
    if (threadIdx.x == 0) mbarrier_wait(MBARRIER, 0);
    if (threadIdx.x == 32) y[0] = shared(0);
}

extern "C" __global__ void without_initialization(const TensorMap map, float* x, float* y)
{
    if (threadIdx.x == 3) mbarrier_wait(MBARRIER, 1);
}

extern "C" __global__ void initialized_twice(const TensorMap map, float* x, float* y) { initialize(1); initialize(1); }

extern "C" __global__ void invalidated_in_flight(const TensorMap map, float* x, float* y)
{
    start(map);
    if (threadIdx.x == 0) mbarrier_invalidate(MBARRIER);
}

extern "C" __global__ void invalidated_while_threads_wait(const TensorMap map, float* x, float* y)
{
    initialize(1);
    if (threadIdx.x == 0) mbarrier_wait(MBARRIER, 0);
    if (threadIdx.x == 1) mbarrier_invalidate(MBARRIER);
}

extern "C" __global__ void used_after_the_end(const TensorMap map, float* x, float* y)
{
    initialize(1);
    if (threadIdx.x == 0) mbarrier_invalidate(MBARRIER);
    load(map);
}

extern "C" __global__ void without_fence(const TensorMap map, float* x, float* y)
{
    if (threadIdx.x == 0) mbarrier_initialize(MBARRIER, 1);
    __syncthreads();
    load(map);
}

extern "C" __global__ void without_barrier(const TensorMap map, float* x, float* y)
{
    if (threadIdx.x == 0) {
        mbarrier_initialize(MBARRIER, 1);
        fence_initialized_mbarriers();
    }
    load(map);
    mbarrier_wait(MBARRIER, 0);
}

extern "C" __global__ void too_many_arrivals(const TensorMap map, float* x, float* y)
{
    start(map);
    load(map, TILES + BYTES);
}

extern "C" __global__ void no_arrival(const TensorMap map, float* x, float* y)
{
    initialize(1);
    if (threadIdx.x == 0) copy_tensor(TILES, &map, MBARRIER, 0, 0);
    mbarrier_wait(MBARRIER, 0);
}

extern "C" __global__ void no_bytes_expected(const TensorMap map, float* x, float* y)
{
    initialize(1);
    if (threadIdx.x == 0) {
        copy_tensor(TILES, &map, MBARRIER, 0, 0);
        mbarrier_arrive_and_expect(MBARRIER, 0);
    }
}

extern "C" __global__ void bytes_of_one_of_two_copies(const TensorMap map, float* x, float* y)
{
    start(map);
    if (threadIdx.x == 0) copy_tensor(TILES + BYTES, &map, MBARRIER, 0, 0);
    mbarrier_wait(MBARRIER, 0);
}

extern "C" __global__ void stored_to_an_mbarrier(const TensorMap map, float* x, float* y)
{
    initialize(1);
    if (threadIdx.x == 1) *at(MBARRIER + 7) = 0;
}

extern "C" __global__ void copied_over_an_mbarrier(const TensorMap map, float* x, float* y)
{
    initialize(1);
    load(map, MBARRIER);
}

extern "C" __global__ void misaligned_tile(const TensorMap map, float* x, float* y)
{
    initialize(1);
    load(map, TILES + 64);
}

extern "C" __global__ void misaligned_mbarrier(const TensorMap map, float* x, float* y)
{
    if (threadIdx.x == 0) mbarrier_initialize(MBARRIER + 4, 1);
}

extern "C" __global__ void past_shared_memory(const TensorMap map, float* x, float* y)
{
    initialize(1);
    load(map, MBARRIER + 8 * 1024 - 128);
}

extern "C" __global__ void other_rank(const TensorMap map, float* x, float* y)
{
    initialize(1);
    if (threadIdx.x == 0) copy_tensor(TILES, &map, MBARRIER, 0, 0, 0);
}

extern "C" __global__ void no_map(const TensorMap map, float* x, float* y)
{
    initialize(1);
    if (threadIdx.x == 0) copy_tensor(TILES, x, MBARRIER, 0, 0);
}

extern "C" __global__ void modified_source(const TensorMap map, float* x, float* y)
{
    start(map);
    if (threadIdx.x == 0) x[65] = -1.0f;
    mbarrier_wait(MBARRIER, 0);
}

extern "C" __global__ void ends_in_flight(const TensorMap map, float* x, float* y) { start(map); }

extern "C" __global__ void wrong_parity_value(const TensorMap map, float* x, float* y)
{
    initialize(1);
    mbarrier_wait(MBARRIER, 2);
}
