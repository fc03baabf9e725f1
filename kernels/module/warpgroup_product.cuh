// SPDX-License-Identifier: Apache-2.0
//
// Products of tiles in slots by wgmma. P is described in staged_sums.cuh.
#pragma once

#include "arch/wgmma.cuh"
#include "module/fragments.cuh"

namespace wt_module {

constexpr int WGMMA_BYTES = 32;  // of a row of an operand: an instruction's step of K

// The warpgroup's index is the same in all lanes. The shuffle lets the compiler know, so descriptors stay uniform.
inline __device__ int warpgroup() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0); }

// The offset of an operand's elements from (row or column x, k) on in its slot, where a panel or a swizzling pattern begins.
template <class Slot> inline __device__ unsigned wgmma_offset(int x, int k)
{
    using Layout = typename Slot::Layout;
    constexpr int SIZE = static_cast<int>(sizeof(typename Slot::T)), WIDTH = Layout::WIDTH, PER_PANEL = WIDTH / SIZE;
    return Slot::K_MAJOR ? k / PER_PANEL * Layout::PANEL_BYTES + x * WIDTH + k % PER_PANEL * SIZE
                         : x / PER_PANEL * Layout::PANEL_BYTES + k * WIDTH;
}

// The descriptor of an operand's elements from (row or column x, 0) on. Those of others differ by constants, so that few
// instructions lie between two products.
template <class Slot> inline __device__ wt::u64 wgmma_operand(unsigned slot, int x)
{
    using Layout = typename Slot::Layout;
    return wt::arch::wgmma_operand(slot + wgmma_offset<Slot>(x, 0), 8 * Layout::WIDTH, Layout::PANEL_BYTES, Layout::WIDTH);
}

// Waits for all products of a group.
template <int BLOCKS, int COUNT> inline __device__ void complete_products(wt::f32 (&sums)[BLOCKS][COUNT][4])
{
    wt::arch::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
        wt::arch::wgmma_has_written(sums[i]);
}

// Both operands are read from slots. A group holds BLOCKS x 64 rows of sums.
template <class P> struct WarpgroupProduct {
    using Problem = P;
    using T = typename P::T;
    using A = OperandSlot<P, true>;
    using B = OperandSlot<P, false>;
    static constexpr int BLOCKS = P::m / P::warps_m / 64, COLS = P::n / P::warps_n;
    static constexpr int STEP = WGMMA_BYTES / static_cast<int>(sizeof(T));
    static constexpr int GROUPS = 1;  // of products in an iteration
    static constexpr int PAIRS = pairs_of(COLS);
    struct Sums {
        wt::f32 sums[BLOCKS][COLS / 8][4];
        int m, n;  // the group's first row and column
    };

    static_assert(P::m % (64 * P::warps_m) == 0 && P::n % P::warps_n == 0 && COLS % 16 == 0 && P::k % STEP == 0,
                  "a warpgroup has whole instructions");
    static_assert(sizeof(T) == 2 || (P::a_k_major && P::b_k_major), "tf32 operands in shared memory are K-major");

    static inline __device__ void start(Sums& s)
    {
        clear(s.sums);
        const int group = warpgroup();
        s.m = group / P::warps_n * (64 * BLOCKS);
        s.n = group % P::warps_n * COLS;
    }

    static __forceinline__ __device__ void add(Sums& s, unsigned a, unsigned b)
    {
        const wt::u64 first_a = wgmma_operand<A>(a, s.m), first_b = wgmma_operand<B>(b, s.n);
        wt::arch::wgmma_fence();
#pragma unroll
        for (int k = 0; k < P::k; k += STEP) {
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i)
                columns<COLS, 0>(s.sums[i], wt::arch::wgmma_after(first_a, wgmma_offset<A>(64 * i, k)), first_b, k);
        }
        wt::arch::wgmma_commit();
    }

    static inline __device__ void complete(Sums& s) { complete_products(s.sums); }

    template <bool ADD> static __forceinline__ __device__ void finish(const Sums& s, float* c)
    {
        const int row = s.m + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
            put_rows<ADD, COLS, P::n>(s.sums[i], c, row + 64 * i, s.n);
    }

    template <class Act> static __forceinline__ __device__ void visit(const Sums& s, const Act& act)
    {
        const int row = s.m + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
            visit_rows<COLS>(s.sums[i], row + 64 * i, s.n, act);
    }

    // Visits 2 * COUNT neighbouring sums at a time, as visit_rows() says. `memory` has the size of C in fp32.
    template <int COUNT, int WORDS, class Make, class Fetch, class Act>
    static __forceinline__ __device__ void visit(const Sums& s, char* memory, const Make& make, const Fetch& fetch, const Act& act)
    {
        const int row = s.m + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
            visit_rows<P, COLS, COUNT, WORDS>(s.sums[i], memory, row + 64 * i, s.n, make, fetch, act);
    }

private:
    // The products of all columns, the largest power of two first.
    template <int LEFT, int DONE>
    static __forceinline__ __device__ void columns(wt::f32 (&sums)[COLS / 8][4], wt::u64 a, wt::u64 first_b, int k)
    {
        constexpr int N = LEFT >= 256 ? 256 : LEFT >= 128 ? 128 : LEFT >= 64 ? 64 : LEFT >= 32 ? 32 : 16;
        auto& part = *reinterpret_cast<wt::f32 (*)[N / 8][4]>(&sums[DONE / 8]);
        wt::arch::wgmma<!P::a_k_major, !P::b_k_major>(part, a, wt::arch::wgmma_after(first_b, wgmma_offset<B>(DONE, k)), T {});
        if constexpr (LEFT > N)
            columns<LEFT - N, DONE + N>(sums, a, first_b, k);
    }
};

// wgmma reads tf32 operands from shared memory only if they are K-major. An operand that is contiguous along M or N
// passes through registers: as the instruction's A, so that the product is C, or its transpose if the operand is B.
// A group holds LINES rows of C, or of its transpose, and WIDTH of its columns.
template <class P> struct WarpgroupRegisterProduct {
    using Problem = P;
    static constexpr bool SWAPPED = P::a_k_major;
    using X = OperandSlot<P, !SWAPPED>;  // in registers
    using Y = OperandSlot<P, SWAPPED>;   // in shared memory
    static constexpr int LINES = SWAPPED ? P::n / P::warps_n : P::m / P::warps_m;
    static constexpr int WIDTH = SWAPPED ? P::m / P::warps_m : P::n / P::warps_n;
    static constexpr int BLOCKS = LINES / 64, STEP = 8;
    static constexpr int GROUPS = P::k / STEP;           // of products in an iteration
    static constexpr int PAIRS = 1;
    static constexpr int SETS = GROUPS % 4 == 0 ? 4 : 2;  // of fragments
    using Fragments = Tf32Lines<X, BLOCKS>;              // of a warp

    static_assert(!X::K_MAJOR && Y::K_MAJOR && sizeof(typename P::T) == 4, "one tf32 operand is K-major");
    static_assert(LINES % 64 == 0 && X::Layout::WIDTH == 128 && WIDTH % 16 == 0, "a warpgroup has whole instructions");
    static_assert(GROUPS % SETS == 0, "all iterations begin with the same set of fragments");

    // The fragments belong to the sums, because wgmma reads them until it is complete.
    struct Sums {
        wt::f32 sums[BLOCKS][WIDTH / 8][4];
        typename Fragments::Values fragments[SETS];
        int line, column;  // the group's first ones
    };

    static inline __device__ void start(Sums& s)
    {
        clear(s.sums);
        clear(s.fragments);
        const int group = warpgroup(), m = group / P::warps_n, n = group % P::warps_n;
        s.line = (SWAPPED ? n : m) * LINES;
        s.column = (SWAPPED ? m : n) * WIDTH;
    }

    static __forceinline__ __device__ void add(Sums& s, unsigned a, unsigned b)
    {
        const unsigned x = SWAPPED ? b : a, y = SWAPPED ? a : b;
        const wt::u64 first_y = wgmma_operand<Y>(y, s.column);
#pragma unroll
        for (int k = 0; k < P::k; k += STEP) {
            auto& fragments = s.fragments[k / STEP % SETS];
            wt::arch::wgmma_wait<SETS - 1>();  // until the products of SETS steps before have read the fragments
            wt::arch::wgmma_has_read(fragments);
            Fragments::load(fragments, x, s.line, first_fragment(), k);
            wt::arch::wgmma_fence();
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i)
                columns<WIDTH, 0>(s.sums[i], fragments[i], first_y, k);
            wt::arch::wgmma_commit();
        }
    }

    static inline __device__ void complete(Sums& s) { complete_products(s.sums); }

    template <bool ADD> static __forceinline__ __device__ void finish(const Sums& s, float* c)
    {
        visit(s, [c](int row, int column, auto sums) { put<ADD>(c + row * P::n + column, sums); });
    }

    template <class Act> static __forceinline__ __device__ void visit(const Sums& s, const Act& act)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
            for (int j = 0; j < WIDTH / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const auto& sums = s.sums[i][j];
                    const int column = s.column + 8 * j + 2 * q;
                    if constexpr (SWAPPED) {
                        const int line = s.line + Fragments::line_of(first_fragment() + i, 0, g);  // and the next one
                        act(column + e, line, wt::Vector<float, 2> {sums[e], sums[2 + e]});
                    } else {
                        const int line = s.line + Fragments::line_of(first_fragment() + i, e, g);
                        act(line, column, wt::Vector<float, 2> {sums[2 * e], sums[2 * e + 1]});
                    }
                }
    }

private:
    // The index of the warp's first fragment in the group
    static inline __device__ int first_fragment() { return static_cast<int>(threadIdx.x) / 32 % 4 * BLOCKS; }

    template <int LEFT, int DONE>
    static __forceinline__ __device__ void columns(wt::f32 (&sums)[WIDTH / 8][4], const wt::u32 (&x)[4], wt::u64 first_y, int k)
    {
        constexpr int N = LEFT >= 256 ? 256 : LEFT >= 128 ? 128 : LEFT >= 64 ? 64 : LEFT >= 32 ? 32 : 16;
        auto& part = *reinterpret_cast<wt::f32 (*)[N / 8][4]>(&sums[DONE / 8]);
        wt::arch::wgmma_tf32(part, x, wt::arch::wgmma_after(first_y, wgmma_offset<Y>(DONE, k)));
        if constexpr (LEFT > N)
            columns<LEFT - N, DONE + N>(sums, x, first_y, k);
    }
};

}  // namespace wt_module
