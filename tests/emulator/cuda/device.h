// SPDX-License-Identifier: Apache-2.0
//
// The declarations that NVRTC has built in, for the host's compiler. Generated modules and Warp's headers are compiled after
// this header alone. It includes no standard headers, because Warp declares the C library's types and functions itself.

#pragma once

#include "grid/module.h"

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 9

#define __device__
#define __host__
#define __global__
#define __constant__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __grid_constant__

using size_t = decltype(sizeof(0));

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

using wt::emulator::blockDim;
using wt::emulator::blockIdx;
using wt::emulator::gridDim;
using wt::emulator::threadIdx;

#if !__has_builtin(__is_trivially_destructible)
#define __is_trivially_destructible(T) __has_trivial_destructor(T)
#endif

// ---- textures are not emulated

template <class T, class... Arguments> T tex1D(Arguments...);
template <class T, class... Arguments> T tex2D(Arguments...);
template <class T, class... Arguments> T tex3D(Arguments...);
template <class T, class... Arguments> T tex1DLod(Arguments...);
template <class T, class... Arguments> T tex2DLod(Arguments...);
template <class T, class... Arguments> T tex3DLod(Arguments...);

// ---- the C library functions that NVRTC has

#define assert(condition)                                                                                              \
    ((condition) ? void() : wt::emulator::fail("the assertion failed: " #condition, __FILE__, __LINE__))

extern "C" {
int printf(const char* format, ...);
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
void* malloc(size_t);
void free(void*);
int abs(int) noexcept;
long long llabs(long long) noexcept;
}

// Defines a function of one argument for float, under two names, and for double.
#define WT_MATH(NAME)                                                                                                  \
    inline float NAME##f(float x) { return __builtin_##NAME##f(x); }                                                   \
    inline double NAME(double x) { return __builtin_##NAME(x); }                                                       \
    inline float NAME(float x) { return __builtin_##NAME##f(x); }
WT_MATH(acos) WT_MATH(acosh) WT_MATH(asin) WT_MATH(asinh) WT_MATH(atan) WT_MATH(atanh) WT_MATH(cbrt)
WT_MATH(ceil) WT_MATH(cos) WT_MATH(cosh) WT_MATH(erf) WT_MATH(erfc) WT_MATH(exp) WT_MATH(exp2)
WT_MATH(fabs) WT_MATH(floor) WT_MATH(log) WT_MATH(log10) WT_MATH(log2) WT_MATH(rint) WT_MATH(round)
WT_MATH(sin) WT_MATH(sinh) WT_MATH(sqrt) WT_MATH(tan) WT_MATH(tanh) WT_MATH(trunc)
#undef WT_MATH

#define WT_MATH(NAME)                                                                                                  \
    inline float NAME##f(float x, float y) { return __builtin_##NAME##f(x, y); }                                       \
    inline double NAME(double x, double y) { return __builtin_##NAME(x, y); }                                          \
    inline float NAME(float x, float y) { return __builtin_##NAME##f(x, y); }
WT_MATH(atan2) WT_MATH(copysign) WT_MATH(fmax) WT_MATH(fmin) WT_MATH(fmod) WT_MATH(pow)
#undef WT_MATH

inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float ldexpf(float x, int e) { return __builtin_ldexpf(x, e); }
inline double ldexp(double x, int e) { return __builtin_ldexp(x, e); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
inline bool isnan(double x) { return __builtin_isnan(x); }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }
template <class T> inline T min(T x, T y) { return y < x ? y : x; }
template <class T> inline T max(T x, T y) { return x < y ? y : x; }
// The host's library lacks these functions.
float erfinvf(float);
double erfinv(double);
float erfcinvf(float);
double erfcinv(double);
double normcdfinv(double);

// ---- bits

template <class To, class From> inline To wt_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "Both types must have one size");
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}
inline float __int_as_float(int x) { return wt_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return wt_bits<float>(x); }
inline int __float_as_int(float x) { return wt_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return wt_bits<unsigned>(x); }
inline long long __double_as_longlong(double x) { return wt_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return wt_bits<double>(x); }
inline int __float2int_rd(float x) { return int(__builtin_floorf(x)); }
inline int __double2int_rd(double x) { return int(__builtin_floor(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)(x)) : 64; }
inline void __trap() { wt::emulator::fail("a trap", "", 0); }
inline void __brkpt() { wt::emulator::fail("a breakpoint", "", 0); }

// ---- threads, warps and memory

inline void __syncthreads() { wt::emulator::collective(wt::emulator::Kind::barrier, {}); }
__attribute__((no_sanitize("thread"))) inline int __syncthreads_or(int vote)
{
    static int found;  // blocks run one after another
    __syncthreads();
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    if (vote) found = 1;
    __syncthreads();
    return found;
}
inline void __syncwarp(unsigned lanes = 0xffffffffu) { wt::emulator::warp_barrier(lanes); }
inline void __threadfence() { wt::emulator::fence(); }
inline void __threadfence_block() { }
inline void __nanosleep(unsigned) { }
inline unsigned __activemask() { return wt::emulator::active_lanes(); }
inline unsigned __ballot_sync(unsigned lanes, int vote) { return wt::emulator::ballot(lanes, vote != 0); }

#define WT_SHUFFLE(NAME, SOURCE)                                                                                       \
    template <class T> inline T NAME(unsigned lanes, T value, int by, int width = 32)                                  \
    {                                                                                                                  \
        const int lane = int(threadIdx.x) % 32, first = lane / width * width;                                          \
        const int source = SOURCE;                                                                                     \
        T result;                                                                                                      \
        wt::emulator::shuffle(lanes, &result, &value, int(sizeof(T)), source);                                         \
        return result;                                                                                                 \
    }
WT_SHUFFLE(__shfl_sync, first + by % width)
WT_SHUFFLE(__shfl_up_sync, lane - by < first ? lane : lane - by)
WT_SHUFFLE(__shfl_down_sync, lane + by >= first + width ? lane : lane + by)
WT_SHUFFLE(__shfl_xor_sync, (lane ^ by) >= first + width ? lane : lane ^ by)
#undef WT_SHUFFLE

template <class T> inline T __ldg(const T* address) { return *address; }
inline unsigned __isGlobal(const void* pointer) { return wt::emulator::is_global(pointer); }
inline size_t __cvta_generic_to_shared(const void* pointer) { return wt::emulator::shared_address(pointer); }
inline void* __cvta_shared_to_generic(size_t address) { return wt::emulator::shared_pointer(address); }

#define WT_ATOMIC(NAME, RESULT)                                                                                        \
    template <class T, class U>                                                                                        \
    __attribute__((no_sanitize("thread"))) inline T NAME(T* address, U operand)                                        \
    {                                                                                                                  \
        wt::emulator::atomic(address, int(sizeof(T)));                                                                 \
        const T old = *address, value = T(operand);                                                                    \
        *address = RESULT;                                                                                             \
        return old;                                                                                                    \
    }
WT_ATOMIC(atomicAdd, T(old + value))
WT_ATOMIC(atomicSub, T(old - value))
WT_ATOMIC(atomicMin, (value < old ? value : old))
WT_ATOMIC(atomicMax, (old < value ? value : old))
WT_ATOMIC(atomicAnd, T(old & value))
WT_ATOMIC(atomicOr, T(old | value))
WT_ATOMIC(atomicXor, T(old ^ value))
WT_ATOMIC(atomicExch, value)
#undef WT_ATOMIC

template <class T, class U, class V>
__attribute__((no_sanitize("thread"))) inline T atomicCAS(T* address, U expected, V value)
{
    wt::emulator::atomic(address, int(sizeof(T)));
    const T old = *address;
    if (old == T(expected)) *address = T(value);
    return old;
}

#include "cuda/ptx.h"
