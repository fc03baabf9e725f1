// SPDX-License-Identifier: Apache-2.0
//
// Products of tiles in slots, whose sums stay in registers. A warp holds ROWS x COLS sums: for each 16 rows and each eight
// columns, the four values per lane of mma.m16n8k16's D.
//
// P has the element type (T), m, n, k, a_k_major and b_k_major (true for a tile that is contiguous along K), warps_m and
// warps_n (the grid of warps, or of warpgroups with wgmma).
#pragma once

#include "arch/ldmatrix.cuh"
#include "arch/mma.cuh"
#include "arch/wgmma.cuh"
#include "module/slots.cuh"

namespace wt_module {

// The slots of A and B. A tile that is contiguous along K has rows along M or N.
template <class P, bool IS_A> struct OperandSlot {
    static constexpr int EXTENT = IS_A ? P::m : P::n;
    static constexpr bool K_MAJOR = IS_A ? P::a_k_major : P::b_k_major;
    using Layout = SlotLayout<K_MAJOR ? EXTENT : P::k, 2 * (K_MAJOR ? P::k : EXTENT)>;
};

// Sets sums to zero.
template <int I, int J> inline __device__ void clear(wt::f32 (&sums)[I][J][4])
{
#pragma unroll
    for (int i = 0; i < I; ++i)
#pragma unroll
        for (int j = 0; j < J; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                sums[i][j][e] = 0;
}

// With BIT set in `group`, exchanges the elements whose indices differ in this bit.
template <int BIT> inline __device__ void exchange(wt::f32 (&x)[4], int group)
{
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (!(i & BIT)) {
            const float low = x[i], high = x[i | BIT];
            x[i] = group & BIT ? high : low;
            x[i | BIT] = group & BIT ? low : high;
        }
}

template <bool ADD> inline __device__ void put_pair(float* to, float x, float y)
{
    float2* const pair = reinterpret_cast<float2*>(to);
    if constexpr (ADD) {
        const float2 old = *pair;
        x += old.x;
        y += old.y;
    }
    *pair = float2 {x, y};
}

// Writes the sums of 16 rows to a row-major C, or adds them to it. `row` and `col` are the first ones.
template <bool ADD, int COLS, int LD>
inline __device__ void put_rows(const wt::f32 (&sums)[COLS / 8][4], float* c, int row, int col)
{
    constexpr int BLOCKS = COLS % 32 == 0 ? 4 : 1;  // of eight columns, that a lane writes in an order of its own
    const int lane = threadIdx.x % 32, group = lane / 4, quarter = lane % 4;
    const int order = BLOCKS == 4 ? group % 4 : 0;  // rows may start in one bank, so neighbouring groups differ in columns
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float* const line = c + (row + group + 8 * half) * LD + col + 2 * quarter;
#pragma unroll
        for (int j = 0; j < COLS / 8; j += BLOCKS) {
            float x[4], y[4];
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i) {
                x[i] = sums[j + i][2 * half];
                y[i] = sums[j + i][2 * half + 1];
            }
            if constexpr (BLOCKS == 4) {
                exchange<1>(x, order);
                exchange<1>(y, order);
                exchange<2>(x, order);
                exchange<2>(y, order);
            }
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i)
                put_pair<ADD>(line + 8 * (j + (i ^ order)), x[i], y[i]);
        }
    }
}

// Products by mma.sync
template <class P> struct WarpProduct {
    using A = OperandSlot<P, true>;
    using B = OperandSlot<P, false>;
    static constexpr int ROWS = P::m / P::warps_m, COLS = P::n / P::warps_n;
    using Sums = float[ROWS / 16][COLS / 8][4];

    static_assert(ROWS % 16 == 0 && COLS % 16 == 0 && P::k % 16 == 0, "a warp tile has whole instructions");

    static inline __device__ int first_row() { return static_cast<int>(threadIdx.x) / 32 / P::warps_n * ROWS; }
    static inline __device__ int first_col() { return static_cast<int>(threadIdx.x) / 32 % P::warps_n * COLS; }

    static __forceinline__ __device__ void add(Sums& sums, unsigned a, unsigned b)
    {
        // fragments of the next step are loaded while this step is multiplied
        unsigned as[2][ROWS / 16][4], bs[2][COLS / 16][4];
        load(as[0], bs[0], a, b, 0);
#pragma unroll
        for (int k = 0; k < P::k; k += 16) {
            const int now = k / 16 % 2;
            if (k + 16 < P::k)
                load(as[1 - now], bs[1 - now], a, b, k + 16);
#pragma unroll
            for (int i = 0; i < ROWS / 16; ++i)
#pragma unroll
                for (int j = 0; j < COLS / 8; ++j) {
                    const unsigned pair[2] = {bs[now][j / 2][j % 2 * 2], bs[now][j / 2][j % 2 * 2 + 1]};
                    wt::arch::mma_m16n8k16(sums[i][j], as[now][i], pair, typename P::T {});
                }
        }
    }

    static inline __device__ void complete() { }

    template <bool ADD> static __forceinline__ __device__ void finish(const Sums& sums, float* c)
    {
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i)
            put_rows<ADD, COLS, P::n>(sums[i], c, first_row() + 16 * i, first_col());
    }

private:
    // Loads the fragments of one instruction along K.
    static __forceinline__ __device__ void load(unsigned (&as)[ROWS / 16][4], unsigned (&bs)[COLS / 16][4], unsigned a,
                                                unsigned b, int k)
    {
        const int lane = threadIdx.x % 32, row = lane % 8, low = lane / 8 % 2, high = lane / 16;
        const int m = first_row(), n = first_col();
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i) {
            // matrices 0 to 3: the upper left, lower left, upper right and lower right 8 x 8 elements
            if constexpr (P::a_k_major)
                wt::arch::ldmatrix(as[i], a + A::Layout::offset(m + 16 * i + row + 8 * low, k / 8 + high));
            else
                wt::arch::ldmatrix_transposed(as[i], a + A::Layout::offset(k + row + 8 * high, m / 8 + 2 * i + low));
        }
#pragma unroll
        for (int j = 0; j < COLS / 16; ++j) {
            // matrices 0 and 1: upper and lower half of the first eight columns; 2 and 3: of the next
            if constexpr (P::b_k_major)
                wt::arch::ldmatrix(bs[j], b + B::Layout::offset(n + 16 * j + row + 8 * high, k / 8 + low));
            else
                wt::arch::ldmatrix_transposed(bs[j], b + B::Layout::offset(k + row + 8 * low, n / 8 + 2 * j + high));
        }
    }
};

// Products by wgmma
template <class P> struct WarpgroupProduct {
    using A = OperandSlot<P, true>;
    using B = OperandSlot<P, false>;
    static constexpr int BLOCKS = P::m / P::warps_m / 64, COLS = P::n / P::warps_n;  // of 64 rows; columns
    using Sums = float[BLOCKS][COLS / 8][4];

    static_assert(P::m % (64 * P::warps_m) == 0 && P::n % P::warps_n == 0 && COLS % 16 == 0 && P::k % 16 == 0,
                  "a warpgroup has whole instructions");

    // The warpgroup's index is the same in all lanes. The shuffle lets the compiler know, so descriptors stay uniform.
    static inline __device__ int group() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0); }

    static __forceinline__ __device__ void add(Sums& sums, unsigned a, unsigned b)
    {
        const int m = group() / P::warps_n * (64 * BLOCKS), n = group() % P::warps_n * COLS;
        wt::arch::wgmma_fence();
#pragma unroll
        for (int k = 0; k < P::k; k += 16) {
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i)
                columns<COLS, 0>(sums[i], start<A>(a, m + 64 * i, k), b, n, k);
        }
        wt::arch::wgmma_commit();
    }

    static inline __device__ void complete() { wt::arch::wgmma_wait<0>(); }

    template <bool ADD> static __forceinline__ __device__ void finish(const Sums& sums, float* c)
    {
        const int row = group() / P::warps_n * (64 * BLOCKS) + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
            put_rows<ADD, COLS, P::n>(sums[i], c, row + 64 * i, group() % P::warps_n * COLS);
    }

private:
    // The address of an operand's element (row or column x, k), where a panel or a swizzling pattern begins.
    template <class Operand> static inline __device__ unsigned start(unsigned slot, int x, int k)
    {
        using Layout = typename Operand::Layout;
        constexpr int WIDTH = Layout::WIDTH, PER_PANEL = WIDTH / 2;
        if constexpr (Operand::K_MAJOR)
            return slot + k / PER_PANEL * Layout::PANEL_BYTES + x * WIDTH + k % PER_PANEL * 2;
        else
            return slot + x / PER_PANEL * Layout::PANEL_BYTES + k * WIDTH;
    }

    template <class Operand> static inline __device__ wt::u64 operand(unsigned address)
    {
        using Layout = typename Operand::Layout;
        return wt::arch::wgmma_operand(address, 8 * Layout::WIDTH, Layout::PANEL_BYTES, Layout::WIDTH);
    }

    // The products of all columns, the largest power of two first.
    template <int LEFT, int DONE>
    static __forceinline__ __device__ void columns(wt::f32 (&sums)[COLS / 8][4], unsigned a, unsigned b, int n, int k)
    {
        constexpr int N = LEFT >= 256 ? 256 : LEFT >= 128 ? 128 : LEFT >= 64 ? 64 : LEFT >= 32 ? 32 : 16;
        auto& part = *reinterpret_cast<wt::f32 (*)[N / 8][4]>(&sums[DONE / 8]);
        wt::arch::wgmma<!P::a_k_major, !P::b_k_major>(part, operand<A>(a), operand<B>(start<B>(b, n + DONE, k)),
                                                      typename P::T {});
        if constexpr (LEFT > N)
            columns<LEFT - N, DONE + N>(sums, a, b, n, k);
    }
};

}  // namespace wt_module
