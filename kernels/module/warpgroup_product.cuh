// SPDX-License-Identifier: Apache-2.0
//
// Products of tiles in stage buffers by wgmma. staged_accumulators.cuh describes P. WarpgroupProduct needs one more constant of
// it: swapped is true if the instruction computes the transpose of C, so that its rows are columns of B.
#pragma once

#include "arch/wgmma.cuh"
#include "module/fragments.cuh"

namespace wt_module {

constexpr int WGMMA_BYTES = 32;  // of a row of an operand: an instruction's step of K

// The warpgroup's index is the same in all lanes. The shuffle lets the compiler know, so descriptors stay uniform.
inline __device__ int warpgroup() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0); }

// The offset of an operand's elements from (row or column x, k) on in its stage buffer, where a panel or a swizzling pattern
// begins.
template <class StageBuffer> inline __device__ unsigned wgmma_offset(int x, int k)
{
    using Layout = typename StageBuffer::Layout;
    constexpr int SIZE = static_cast<int>(sizeof(typename StageBuffer::T)), WIDTH = Layout::WIDTH, PER_PANEL = WIDTH / SIZE;
    return StageBuffer::K_MAJOR ? k / PER_PANEL * Layout::PANEL_BYTES + x * WIDTH + k % PER_PANEL * SIZE
                                : x / PER_PANEL * Layout::PANEL_BYTES + k * WIDTH;
}

// The descriptor of an operand's elements from (row or column x, 0) on. Those of others differ by constants, so that few
// instructions lie between two products.
template <class StageBuffer> inline __device__ wt::u64 wgmma_operand(unsigned buffer, int x)
{
    using Layout = typename StageBuffer::Layout;
    return wt::arch::wgmma_operand(buffer + wgmma_offset<StageBuffer>(x, 0), 8 * Layout::WIDTH, Layout::PANEL_BYTES, Layout::WIDTH);
}

// Waits for all products of a group.
template <int BLOCKS, int COUNT> inline __device__ void complete_products(wt::f32 (&accumulators)[BLOCKS][COUNT][4])
{
    wt::arch::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
        wt::arch::wgmma_has_written(accumulators[i]);
}

// wgmma reads both operands from stage buffers. If they are swapped, it computes C's transpose, B^T A^T, so that a tile may have
// any multiple of 16 rows. A group holds LINES rows of C, or of its transpose, and WIDTH of its columns.
template <class P> struct WarpgroupProduct {
    using Problem = P;
    using Sum = wt::f32;
    using T = typename P::T;
    static constexpr bool SWAPPED = P::swapped;
    using X = OperandBuffer<P, !SWAPPED>;  // the instruction's A
    using Y = OperandBuffer<P, SWAPPED>;   // and its B
    static constexpr int LINES = SWAPPED ? P::n / P::warps_n : P::m / P::warps_m;
    static constexpr int WIDTH = SWAPPED ? P::m / P::warps_m : P::n / P::warps_n;
    static constexpr int BLOCKS = LINES / 64, STEP = WGMMA_BYTES / static_cast<int>(sizeof(T));
    static constexpr int GROUPS = 1;  // of products in an iteration
    static constexpr int PAIRS = SWAPPED ? 1 : pairs_of(WIDTH);
    struct Accumulators {
        wt::f32 accumulators[BLOCKS][WIDTH / 8][4];
        int line, column;  // the group's first ones
    };

    static_assert(P::m % P::warps_m == 0 && P::n % P::warps_n == 0 && LINES % 64 == 0 && WIDTH % 16 == 0 && P::k % STEP == 0,
                  "a warpgroup has whole instructions");
    static_assert(sizeof(T) == 2 || (P::a_k_major && P::b_k_major), "tf32 operands in shared memory are K-major");

    static inline __device__ void start(Accumulators& s)
    {
        clear(s.accumulators);
        const int group = warpgroup(), m = group / P::warps_n, n = group % P::warps_n;
        s.line = (SWAPPED ? n : m) * LINES;
        s.column = (SWAPPED ? m : n) * WIDTH;
    }

    // Begins with the values of a row-major C
    static inline __device__ void start(Accumulators& s, const float* c)
    {
        start(s);
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            if constexpr (SWAPPED)
                add_columns<WIDTH, P::n>(s.accumulators[i], c, s.column, first_line(s, i));
            else
                add_rows<WIDTH, P::n>(s.accumulators[i], c, first_line(s, i), s.column);
        }
    }

    static __forceinline__ __device__ void add(Accumulators& s, unsigned a, unsigned b)
    {
        const wt::u64 first_x = wgmma_operand<X>(SWAPPED ? b : a, s.line), first_y = wgmma_operand<Y>(SWAPPED ? a : b, s.column);
        wt::arch::wgmma_fence();
#pragma unroll
        for (int k = 0; k < P::k; k += STEP) {
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i)
                columns<WIDTH, 0>(s.accumulators[i], wt::arch::wgmma_after(first_x, wgmma_offset<X>(64 * i, k)), first_y, k);
        }
        wt::arch::wgmma_commit();
    }

    static inline __device__ void complete(Accumulators& s) { complete_products(s.accumulators); }

    template <class Factor> static inline __device__ void scale(Accumulators& s, Factor factor) { scale_all(s.accumulators, factor); }

    template <bool ADD> static __forceinline__ __device__ void finish(const Accumulators& s, float* c)
    {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            if constexpr (SWAPPED)
                put_columns<ADD, WIDTH, P::n>(s.accumulators[i], c, s.column, first_line(s, i));
            else
                put_rows<ADD, WIDTH, P::n>(s.accumulators[i], c, first_line(s, i), s.column);
        }
    }

    template <class Act> static __forceinline__ __device__ void visit(const Accumulators& s, const Act& act)
    {
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            if constexpr (SWAPPED)
                visit_columns<WIDTH>(s.accumulators[i], s.column, first_line(s, i), act);
            else
                visit_rows<WIDTH>(s.accumulators[i], first_line(s, i), s.column, act);
        }
    }

    // Visits 2 * COUNT neighbouring accumulators at a time, as visit_rows() says. `memory` has the size of C in fp32.
    template <int COUNT, int WORDS, class Make, class Fetch, class Act>
    static __forceinline__ __device__ void visit(const Accumulators& s, char* memory, const Make& make, const Fetch& fetch, const Act& act)
    {
        static_assert(!SWAPPED, "a lane has accumulators of a column, which visit_rows() does not exchange");
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
            visit_rows<P, WIDTH, COUNT, WORDS>(s.accumulators[i], memory, first_line(s, i), s.column, make, fetch, act);
    }

private:
    // The first of the 16 lines of a block whose accumulators the warp has
    static inline __device__ int first_line(const Accumulators& s, int i) { return s.line + 64 * i + static_cast<int>(threadIdx.x) / 32 % 4 * 16; }

    // The products of all columns, the largest power of two first.
    template <int LEFT, int DONE>
    static __forceinline__ __device__ void columns(wt::f32 (&accumulators)[WIDTH / 8][4], wt::u64 x, wt::u64 first_y, int k)
    {
        constexpr int N = LEFT >= 256 ? 256 : LEFT >= 128 ? 128 : LEFT >= 64 ? 64 : LEFT >= 32 ? 32 : 16;
        auto& part = *reinterpret_cast<wt::f32 (*)[N / 8][4]>(&accumulators[DONE / 8]);
        wt::arch::wgmma<!X::K_MAJOR, !Y::K_MAJOR>(part, x, wt::arch::wgmma_after(first_y, wgmma_offset<Y>(DONE, k)), T {});
        if constexpr (LEFT > N)
            columns<LEFT - N, DONE + N>(accumulators, x, first_y, k);
    }
};

// wgmma reads tf32 operands from shared memory only if they are K-major. An operand that is contiguous along M or N
// passes through registers: as the instruction's A, so that the product is C, or its transpose if the operand is B.
// A group holds LINES rows of C, or of its transpose, and WIDTH of its columns.
template <class P> struct WarpgroupRegisterProduct {
    using Problem = P;
    using Sum = wt::f32;
    static constexpr bool SWAPPED = P::a_k_major;
    using X = OperandBuffer<P, !SWAPPED>;  // in registers
    using Y = OperandBuffer<P, SWAPPED>;   // in shared memory
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

    // The fragments belong to the accumulators, because wgmma reads them until it is complete.
    struct Accumulators {
        wt::f32 accumulators[BLOCKS][WIDTH / 8][4];
        typename Fragments::Values fragments[SETS];
        int line, column;  // the group's first ones
    };

    static inline __device__ void start(Accumulators& s)
    {
        clear(s.accumulators);
        clear(s.fragments);
        const int group = warpgroup(), m = group / P::warps_n, n = group % P::warps_n;
        s.line = (SWAPPED ? n : m) * LINES;
        s.column = (SWAPPED ? m : n) * WIDTH;
    }

    // Begins with the values of a row-major C
    static inline __device__ void start(Accumulators& s, const float* c)
    {
        start(s);
        each(s, [c](int row, int column, auto&... accumulators) { add_values(c + row * P::n + column, accumulators...); });
    }

    static __forceinline__ __device__ void add(Accumulators& s, unsigned a, unsigned b)
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
                columns<WIDTH, 0>(s.accumulators[i], fragments[i], first_y, k);
            wt::arch::wgmma_commit();
        }
    }

    static inline __device__ void complete(Accumulators& s) { complete_products(s.accumulators); }

    template <class Factor> static inline __device__ void scale(Accumulators& s, Factor factor) { scale_all(s.accumulators, factor); }

    template <bool ADD> static __forceinline__ __device__ void finish(const Accumulators& s, float* c)
    {
        visit(s, [c](int row, int column, auto accumulators) { put<ADD>(c + row * P::n + column, accumulators); });
    }

    template <class Act> static __forceinline__ __device__ void visit(const Accumulators& s, const Act& act)
    {
        each(s, [&act](int row, int column, float x, float y) { act(row, column, wt::Vector<float, 2> {x, y}); });
    }

private:
    // Calls act(row, column, x, y) for two neighbouring accumulators of a row of C.
    template <class S, class Act> static __forceinline__ __device__ void each(S& s, const Act& act)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
            for (int j = 0; j < WIDTH / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    auto& accumulators = s.accumulators[i][j];
                    const int column = s.column + 8 * j + 2 * q;
                    if constexpr (SWAPPED) {
                        const int line = s.line + Fragments::line_of(first_fragment() + i, 0, g);  // and the next one
                        act(column + e, line, accumulators[e], accumulators[2 + e]);
                    } else {
                        const int line = s.line + Fragments::line_of(first_fragment() + i, e, g);
                        act(line, column, accumulators[2 * e], accumulators[2 * e + 1]);
                    }
                }
    }

    // The index of the warp's first fragment in the group
    static inline __device__ int first_fragment() { return static_cast<int>(threadIdx.x) / 32 % 4 * BLOCKS; }

    template <int LEFT, int DONE>
    static __forceinline__ __device__ void columns(wt::f32 (&accumulators)[WIDTH / 8][4], const wt::u32 (&x)[4], wt::u64 first_y, int k)
    {
        constexpr int N = LEFT >= 256 ? 256 : LEFT >= 128 ? 128 : LEFT >= 64 ? 64 : LEFT >= 32 ? 32 : 16;
        auto& part = *reinterpret_cast<wt::f32 (*)[N / 8][4]>(&accumulators[DONE / 8]);
        wt::arch::wgmma_tf32(part, x, wt::arch::wgmma_after(first_y, wgmma_offset<Y>(DONE, k)));
        if constexpr (LEFT > N)
            columns<LEFT - N, DONE + N>(accumulators, x, first_y, k);
    }
};

}  // namespace wt_module
