// SPDX-License-Identifier: Apache-2.0
//
// Fragments of operands in stage buffers, for the instructions' A (16 lines) and B (8 lines), where lines are rows or columns of
// C. A lane has g = lane / 4 and q = lane % 4. values[i] are its registers of one instruction, in the instruction's order:
//
//   A   (line g, low), (line g + 8, low), (line g, high), (line g + 8, high)
//   B   (line g, low), (line g, high)
//
// where low and high are the halves of an instruction's step of K. Instructions sum over K, so any permutation of K serves if
// A and B share it. Any permutation of lines serves too, if C is written accordingly: line_of() is that permutation. Both
// are chosen so that reads of swizzled stage buffers have no bank conflicts, and that vectors are registers in the order above.
#pragma once

#include "arch/ldmatrix.cuh"
#include "arch/mma.cuh"
#include "module/staged_accumulators.cuh"

namespace wt_module {

template <class T> struct MmaTypes {  // of f16 and bf16
    using Sum = wt::f32;
    static constexpr int STEP = 16;  // of K. A register has two elements: k = 2q and 2q + 1 of a half
};
template <> struct MmaTypes<wt::f32> {  // tf32
    using Sum = wt::f32;
    static constexpr int STEP = 8;  // low: k = q, high: k = q + 4
};
template <> struct MmaTypes<double> {
    using Sum = double;
    static constexpr int STEP = 8;  // low: k = 2q, high: k = 2q + 1
};

// Reads N elements of a stage buffer.
template <class T, int N> inline __device__ wt::Vector<T, N> read(unsigned address)
{
    return wt::arch::load<N>(static_cast<const T*>(__cvta_shared_to_generic(address)));
}

// The line of eight that g stands for, where lines 2g' and 2g' + 1 would read the same banks.
inline __device__ int spread(int g) { return g / 2 + g % 2 * 4; }

// A lane reads vectors whose addresses differ by constants and XOR with constants from place(first) bytes behind the start of the
// stage buffer, where `first` is the first line of the warp, a multiple of LINES.

// ---- by ldmatrix: 16-bit types, and tf32 that is contiguous along K

template <class StageBuffer, int LINES> struct MatrixRows {
    using Layout = typename StageBuffer::Layout;
    static constexpr int PER_VECTOR = VECTOR_BYTES / static_cast<int>(sizeof(typename StageBuffer::T));
    static constexpr bool IS_POWER = (LINES & (LINES - 1)) == 0;

    // The offset of line `first` + `line` and element `depth` of K, where a vector begins. Both depend on the lane, and are less than
    // 16 and an instruction's step.
    static inline __device__ unsigned place(int first, int line, int depth)
    {
        if constexpr (StageBuffer::K_MAJOR)
            return first * Layout::WIDTH + Layout::offset(line, depth / PER_VECTOR);
        else
            return IS_POWER ? Layout::offset(depth, (first + line) / PER_VECTOR) : 0;
    }

    // The address of the vector that lies `at` lines and `k` elements after place(), which are multiples of 16 and of a step.
    static __forceinline__ __device__ unsigned address(unsigned from, int first, int line, int depth, int at, int k)
    {
        if constexpr (StageBuffer::K_MAJOR)
            return Layout::after(from, k / PER_VECTOR) + at * Layout::WIDTH;
        else if constexpr (IS_POWER)
            return Layout::after(from, at / PER_VECTOR) + k * Layout::WIDTH;
        else
            return from + Layout::offset(depth, (first + at + line) / PER_VECTOR) + k * Layout::WIDTH;
    }
};

template <class StageBuffer, int LINES> struct MatricesA {
    using Values = unsigned[LINES / 16][4];
    using Rows = MatrixRows<StageBuffer, LINES>;
    static constexpr bool FITS = LINES % 16 == 0, IN_ORDER = true;

    static inline __device__ int line_of(int i, int half, int g) { return 16 * i + 8 * half + g; }

    static inline __device__ unsigned place(int first) { return Rows::place(first, line(), depth()); }

    static __forceinline__ __device__ void load(Values& values, unsigned from, int first, int k)
    {
#pragma unroll
        for (int i = 0; i < LINES / 16; ++i) {
            const unsigned address = Rows::address(from, first, line(), depth(), 16 * i, k);
            if constexpr (StageBuffer::K_MAJOR)
                wt::arch::ldmatrix(values[i], address);
            else
                wt::arch::ldmatrix_transposed(values[i], address);
        }
    }

private:
    // The row of a matrix whose address the lane passes
    static inline __device__ int row() { return threadIdx.x % 8; }
    static inline __device__ int lower() { return threadIdx.x / 8 % 2; }
    static inline __device__ int high() { return threadIdx.x / 16 % 2; }
    static inline __device__ int line() { return 8 * lower() + (StageBuffer::K_MAJOR ? row() : 0); }
    static inline __device__ int depth() { return StageBuffer::K_MAJOR ? Rows::PER_VECTOR * high() : 8 * high() + row(); }
};

template <class StageBuffer, int LINES> struct MatricesB {
    using Values = unsigned[LINES / 8][2];
    using Rows = MatrixRows<StageBuffer, LINES>;
    static constexpr bool FITS = LINES % 16 == 0, IN_ORDER = true;

    static inline __device__ int line_of(int j, int g) { return 8 * j + g; }

    static inline __device__ unsigned place(int first) { return Rows::place(first, line(), depth()); }

    // `from` is an address in a stage buffer, or an offset to a `base` that is a multiple of VECTOR_BYTES alone
    static __forceinline__ __device__ void load(Values& values, unsigned from, int first, int k, unsigned base = 0)
    {
#pragma unroll
        for (int j = 0; j < LINES / 8; j += 2) {
            auto& four = reinterpret_cast<unsigned (&)[4]>(values[j]);
            const unsigned address = base + Rows::address(from, first, line(), depth(), 8 * j, k);
            if constexpr (StageBuffer::K_MAJOR)
                wt::arch::ldmatrix(four, address);
            else
                wt::arch::ldmatrix_transposed(four, address);
        }
    }

private:
    static inline __device__ int row() { return threadIdx.x % 8; }
    static inline __device__ int high() { return threadIdx.x / 8 % 2; }
    static inline __device__ int next() { return threadIdx.x / 16 % 2; }
    static inline __device__ int line() { return 8 * next() + (StageBuffer::K_MAJOR ? row() : 0); }
    static inline __device__ int depth() { return StageBuffer::K_MAJOR ? Rows::PER_VECTOR * high() : 8 * high() + row(); }
};

// ---- tf32 that is contiguous along M or N

// A lane reads two neighbouring lines. Half a warp reads vectors x and x + 4 of four rows of the stage buffer. Neighbouring
// fragments share 32 lines. The first one's index is `at`.
template <class StageBuffer, int COUNT> struct Tf32Lines {
    using Values = unsigned[COUNT][4];

    static inline __device__ int line_of(int i, int half, int g) { return i / 2 * 32 + 4 * vector_of(i, g) + g % 2 * 2 + half; }

    static __forceinline__ __device__ void load(Values& values, unsigned buffer, int first, int at, int k)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#pragma unroll
            for (int high = 0; high < 2; ++high) {
                const int vector = first / 4 + (at + i) / 2 * 8 + vector_of(at + i, g);
                // the swizzling pattern repeats after eight rows, so that the offset is constant in the loop
                const unsigned offset = StageBuffer::Layout::offset(q + 4 * high, vector) + g % 2 * 8;
                const auto pair = read<unsigned, 2>(buffer + offset + k * StageBuffer::Layout::WIDTH);
                values[i][2 * high] = pair.at[0];
                values[i][2 * high + 1] = pair.at[1];
            }
    }

    static inline __device__ int vector_of(int i, int g) { return i % 2 * 2 + g / 4 + g / 2 % 2 * 4; }
};

template <class StageBuffer, int LINES> struct Tf32A {
    using Layout = typename StageBuffer::Layout;
    using Pairs = Tf32Lines<StageBuffer, LINES / 16>;
    using Values = typename Pairs::Values;
    static constexpr bool FITS = LINES % 32 == 0 && Layout::WIDTH == 128, IN_ORDER = false;

    static inline __device__ int line_of(int i, int half, int g) { return Pairs::line_of(i, half, g); }

    static inline __device__ unsigned place(int first)
    {
        const int lane = threadIdx.x % 32, g = lane / 4;
        return Layout::offset(lane % 4, first / 4 + Pairs::vector_of(0, g)) + g % 2 * 8;
    }

    static __forceinline__ __device__ void load(Values& values, unsigned from, int, int k)
    {
#pragma unroll
        for (int i = 0; i < LINES / 16; ++i)
#pragma unroll
            for (int high = 0; high < 2; ++high) {
                const unsigned vector = Layout::after(from, i % 2 * 2 + high * 4) + i / 2 * Layout::PANEL_BYTES;
                const auto pair = read<unsigned, 2>(vector + (k + 4 * high) * Layout::WIDTH);
                values[i][2 * high] = pair.at[0];
                values[i][2 * high + 1] = pair.at[1];
            }
    }
};

// A lane reads four neighbouring lines, which belong to four fragments.
template <class StageBuffer, int LINES> struct Tf32B {
    using Layout = typename StageBuffer::Layout;
    using Values = unsigned[LINES / 8][2];
    static constexpr bool FITS = LINES % 32 == 0 && Layout::WIDTH == 128, IN_ORDER = false;

    static inline __device__ int line_of(int j, int g) { return j / 4 * 32 + 4 * spread(g) + j % 4; }

    static inline __device__ unsigned place(int first)
    {
        const int lane = threadIdx.x % 32;
        return Layout::offset(lane % 4, first / 4 + spread(lane / 4));
    }

    static __forceinline__ __device__ void load(Values& values, unsigned from, int, int k)
    {
#pragma unroll
        for (int j = 0; j < LINES / 8; j += 4)
#pragma unroll
            for (int high = 0; high < 2; ++high) {
                const auto four = read<unsigned, 4>(Layout::after(from, 2 * j + 4 * high) + (k + 4 * high) * Layout::WIDTH);
#pragma unroll
                for (int next = 0; next < 4; ++next)
                    values[j + next][high] = four.at[next];
            }
    }
};

// ---- fp64

// Contiguous along K: a vector has both halves of a line.
template <class StageBuffer> struct DepthF64 {
    using Layout = typename StageBuffer::Layout;

    static inline __device__ int line_of(int group, int g) { return 8 * group + (Layout::WIDTH == 128 ? spread(g) : g); }

    static inline __device__ unsigned place(int first)
    {
        const int lane = threadIdx.x % 32;
        return first * Layout::WIDTH + Layout::offset(line_of(0, lane / 4), lane % 4);
    }

    static __forceinline__ __device__ wt::Vector<double, 2> load(unsigned from, int group, int k)
    {
        return read<double, 2>(Layout::after(from, k / 2) + 8 * group * Layout::WIDTH);
    }
};

// Contiguous along M or N: a vector has two lines of one k.
template <class StageBuffer> struct LinesF64 {
    using Layout = typename StageBuffer::Layout;

    static inline __device__ unsigned place(int first)
    {
        const int lane = threadIdx.x % 32;
        return first / 16 * Layout::PANEL_BYTES + Layout::offset(lane % 4 * 2, lane / 4);
    }

    static __forceinline__ __device__ wt::Vector<double, 2> load(unsigned from, int group, int k, int high)
    {
        return read<double, 2>(Layout::after(from, high) + group * Layout::PANEL_BYTES + (k + high) * Layout::WIDTH);
    }
};

template <class StageBuffer, int LINES> struct F64A {
    using Values = double[LINES / 16][4];
    static constexpr bool FITS = LINES % 16 == 0 && StageBuffer::Layout::WIDTH >= (StageBuffer::K_MAJOR ? 64 : 128), IN_ORDER = false;

    static inline __device__ int line_of(int i, int half, int g)
    {
        return StageBuffer::K_MAJOR ? DepthF64<StageBuffer>::line_of(2 * i + half, g) : 16 * i + 2 * g + half;
    }

    static inline __device__ unsigned place(int first)
    {
        return StageBuffer::K_MAJOR ? DepthF64<StageBuffer>::place(first) : LinesF64<StageBuffer>::place(first);
    }

    static __forceinline__ __device__ void load(Values& values, unsigned from, int, int k)
    {
#pragma unroll
        for (int i = 0; i < LINES / 16; ++i)
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                if constexpr (StageBuffer::K_MAJOR) {
                    const auto both = DepthF64<StageBuffer>::load(from, 2 * i + part, k);
                    values[i][part] = both.at[0];
                    values[i][2 + part] = both.at[1];
                } else {
                    const auto pair = LinesF64<StageBuffer>::load(from, i, k, part);
                    values[i][2 * part] = pair.at[0];
                    values[i][2 * part + 1] = pair.at[1];
                }
            }
    }
};

template <class StageBuffer, int LINES> struct F64B {
    using Values = double[LINES / 8][2];
    static constexpr bool FITS = LINES % 16 == 0 && StageBuffer::Layout::WIDTH >= (StageBuffer::K_MAJOR ? 64 : 128), IN_ORDER = false;

    static inline __device__ int line_of(int j, int g)
    {
        return StageBuffer::K_MAJOR ? DepthF64<StageBuffer>::line_of(j, g) : j / 2 * 16 + 2 * g + j % 2;
    }

    static inline __device__ unsigned place(int first)
    {
        return StageBuffer::K_MAJOR ? DepthF64<StageBuffer>::place(first) : LinesF64<StageBuffer>::place(first);
    }

    static __forceinline__ __device__ void load(Values& values, unsigned from, int, int k)
    {
#pragma unroll
        for (int j = 0; j < LINES / 8; ++j) {
            if constexpr (StageBuffer::K_MAJOR) {
                const auto both = DepthF64<StageBuffer>::load(from, j, k);
                values[j][0] = both.at[0];
                values[j][1] = both.at[1];
            } else {
                const auto pair = LinesF64<StageBuffer>::load(from, j / 2, k, j % 2);
                values[j / 2 * 2][j % 2] = pair.at[0];
                values[j / 2 * 2 + 1][j % 2] = pair.at[1];
            }
        }
    }
};

// ---- the choice

template <bool CONDITION, class Yes, class No> struct Either {
    using Type = Yes;
};
template <class Yes, class No> struct Either<false, Yes, No> {
    using Type = No;
};

template <class StageBuffer, class T, int LINES> struct FragmentsOf {
    using A = MatricesA<StageBuffer, LINES>;
    using B = MatricesB<StageBuffer, LINES>;
};
template <class StageBuffer, int LINES> struct FragmentsOf<StageBuffer, wt::f32, LINES> {
    using A = typename Either<StageBuffer::K_MAJOR, MatricesA<StageBuffer, LINES>, Tf32A<StageBuffer, LINES>>::Type;
    using B = typename Either<StageBuffer::K_MAJOR, MatricesB<StageBuffer, LINES>, Tf32B<StageBuffer, LINES>>::Type;
};
template <class StageBuffer, int LINES> struct FragmentsOf<StageBuffer, double, LINES> {
    using A = F64A<StageBuffer, LINES>;
    using B = F64B<StageBuffer, LINES>;
};

// D += A * B
template <class T> inline __device__ void multiply(wt::f32 (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    if constexpr (wt::same<T, wt::f32>)
        wt::arch::mma_m16n8k8_tf32(d, a, b);
    else
        wt::arch::mma_m16n8k16(d, a, b, T {});
}

template <class T> inline __device__ void multiply(double (&d)[4], const double (&a)[4], const double (&b)[2])
{
#if __CUDA_ARCH__ >= 900
    wt::arch::mma_m16n8k8(d, a, b);
#else
#pragma unroll
    for (int high = 0; high < 2; ++high)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            wt::arch::mma_m8n8k4(reinterpret_cast<double (&)[2]>(d[2 * half]), a[2 * high + half], b[high]);
#endif
}

}  // namespace wt_module
