// SPDX-License-Identifier: Apache-2.0
//
// Kernels with one fault each that the module emulator must report, and correct kernels that it must not report. A block
// has 64 threads. `x` and `y` have 64 floats. Dynamic shared memory has 256 bytes.

inline float* shared() { return static_cast<float*>(__cvta_shared_to_generic(wt::emulator::shared_start)); }
inline unsigned shared_address_of(int i) { return unsigned(wt::emulator::shared_start + 4 * i); }
inline void copy_16(int to, const float* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(shared_address_of(to)), "l"(from) : "memory");
}
inline void copy_4(int to, const float* from, unsigned valid_bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(shared_address_of(to)), "l"(from), "n"(4), "r"(valid_bytes)
                 : "memory");
}
inline void wait() { asm volatile("cp.async.wait_all;" : : : "memory"); }

// ---- correct

extern "C" __global__ void reversed(float* x, float* y)
{
    __shared__ float own[64];
    own[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    shared()[threadIdx.x] = own[63 - threadIdx.x];
    __syncthreads();
    y[63 - threadIdx.x] = shared()[63 - threadIdx.x];
}

extern "C" __global__ void copied(float* x, float* y)
{
    copy_4(threadIdx.x, x + threadIdx.x, threadIdx.x % 2 ? 4 : 0);
    wait();
    __syncthreads();
    y[63 - threadIdx.x] = shared()[63 - threadIdx.x];
}

extern "C" __global__ void summed(float* x, float* y)
{
    atomicAdd(y, x[threadIdx.x]);
    float sum = x[threadIdx.x];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    const unsigned larger = __ballot_sync(0xffffffffu, x[threadIdx.x] >= 32.0f);
    if (threadIdx.x % 32 == 0) {
        y[1 + threadIdx.x / 32] = sum;
        y[3 + threadIdx.x / 32] = float(__popc(larger));
    }
}

// The last block to arrive at x[63] adds what each block stored.
template <bool releases, bool acquires> __device__ void add_in_last_block(float* x, float* y)
{
    if (threadIdx.x < 31) y[1 + blockIdx.x * 31 + threadIdx.x] = 1.0f;
    __syncthreads();
    int is_last = 0;
    if (threadIdx.x == 0) {
        if (releases) __threadfence();
        is_last = atomicAdd(x + 63, 1.0f) == 64.0f;
        if (acquires) __threadfence();
    }
    if (__syncthreads_or(is_last) && threadIdx.x == 5) y[0] = y[1] + y[32];
}

extern "C" __global__ void last_block(float* x, float* y) { add_in_last_block<true, true>(x, y); }

// ---- faulty

extern "C" __global__ void without_release(float* x, float* y) { add_in_last_block<false, true>(x, y); }

extern "C" __global__ void without_acquire(float* x, float* y) { add_in_last_block<true, false>(x, y); }

extern "C" __global__ void static_race(float* x, float* y)
{
    __shared__ float own[64];
    own[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = own[threadIdx.x ^ 1];
}

extern "C" __global__ void dynamic_race(float* x, float* y)
{
    shared()[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = shared()[threadIdx.x ^ 1];
    shared()[threadIdx.x] = 0.0f;
}

extern "C" __global__ void array_race(float* x, float* y) { y[threadIdx.x / 2] = x[threadIdx.x]; }

extern "C" __global__ void block_race(float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }

extern "C" __global__ void unwritten(float* x, float* y) { y[threadIdx.x] = shared()[threadIdx.x]; }

extern "C" __global__ void past_shared_memory(float* x, float* y) { shared()[threadIdx.x + 1] = x[threadIdx.x]; }

extern "C" __global__ void past_the_array(float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }

extern "C" __global__ void far_past_the_array(float* x, float* y) { y[threadIdx.x] = x[1 << 20]; }

extern "C" __global__ void misaligned(float* x, float* y)
{
    *reinterpret_cast<double*>(y + threadIdx.x) = double(x[threadIdx.x]);
}

extern "C" __global__ void misaligned_copy(float* x, float* y) { if (threadIdx.x == 0) copy_16(0, x + 1); }
extern "C" __global__ void misaligned_target(float* x, float* y) { if (threadIdx.x == 0) copy_16(1, x); }
extern "C" __global__ void copy_past_the_array(float* x, float* y) { if (threadIdx.x == 0) copy_4(0, x + 64, 4); }

extern "C" __global__ void copy_without_wait(float* x, float* y)
{
    copy_4(threadIdx.x, x + threadIdx.x, 4);
    __syncthreads();
    y[threadIdx.x] = shared()[threadIdx.x];
}

extern "C" __global__ void copy_without_barrier(float* x, float* y)
{
    copy_4(threadIdx.x, x + threadIdx.x, 4);
    wait();
    if (threadIdx.x > 0) y[threadIdx.x] = shared()[threadIdx.x - 1];
}

extern "C" __global__ void copy_over_read_memory(float* x, float* y)
{
    shared()[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = shared()[threadIdx.x];
    if (threadIdx.x > 0) copy_4(threadIdx.x - 1, x + threadIdx.x, 4);
    wait();
}

extern "C" __global__ void copy_of_modified_source(float* x, float* y)
{
    copy_4(threadIdx.x, x + threadIdx.x, 4);
    x[threadIdx.x] = 0.0f;
    wait();
}

extern "C" __global__ void thread_exited(float* x, float* y) { if (threadIdx.x == 5) return; __syncthreads(); }

extern "C" __global__ void some_lanes(float* x, float* y) { y[threadIdx.x] = __shfl_sync(1u, x[threadIdx.x], 0); }

extern "C" __global__ void other_instruction(float* x, float* y)
{
    asm("ex2.approx.f32 %0, %1;" : "=f"(y[threadIdx.x]) : "f"(x[threadIdx.x]));
}

extern "C" __global__ void failed_assertion(float* x, float* y) { assert(x[threadIdx.x] < 10.0f); }
