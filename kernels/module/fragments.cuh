// SPDX-License-Identifier: Apache-2.0
//
// Fragments of operands in slots, for mma.sync. A lane has g = lane / 4 and q = lane % 4. A fragment has eight lines, which
// are rows of A or columns of B, and a step of K in two halves: fragment[line / 8][half] is the lane's value for line g.
//
// Instructions sum over K, so any permutation of K serves, if A and B share it. Any permutation of lines serves too, if C is
// written accordingly. line_of() is that permutation. It is chosen so that reads of swizzled slots have no bank conflicts.
#pragma once

#include "arch/ldmatrix.cuh"
#include "arch/mma.cuh"
#include "module/staged_sums.cuh"

namespace wt_module {

template <class T> struct MmaTypes {  // of f16 and bf16
    using Value = unsigned;  // of a fragment: the lane's values k = 2q and 2q + 1
    using Sum = wt::f32;
    static constexpr int STEP = 16;  // of K
};
template <> struct MmaTypes<wt::f32> {  // tf32
    using Value = unsigned;  // k = q
    using Sum = wt::f32;
    static constexpr int STEP = 8;
};
template <> struct MmaTypes<double> {
    using Value = double;  // k = 2q in the first half, k = 2q + 1 in the second
    using Sum = double;
    static constexpr int STEP = 8;
};

// Reads a vector of a slot.
template <class T> inline __device__ wt::Vector<T, VECTOR_BYTES / static_cast<int>(sizeof(T))> read(unsigned address)
{
    return wt::arch::load<VECTOR_BYTES / static_cast<int>(sizeof(T))>(static_cast<const T*>(__cvta_shared_to_generic(address)));
}

// The line of eight that g stands for, where lines 2g' and 2g' + 1 would read the same banks.
inline __device__ int spread(int g) { return g / 2 + g % 2 * 4; }

// Fragments of LINES lines of an operand, from ldmatrix. `half` below is the index of a matrix of 8 lines and 16 bytes of K.
template <class Slot, class T, int LINES> struct Fragments {
    using Layout = typename Slot::Layout;
    using Values = unsigned[LINES / 8][2];
    static constexpr bool FITS = LINES % 16 == 0, IN_ORDER = true;

    static inline __device__ int line_of(int group, int g) { return 8 * group + g; }

    static __forceinline__ __device__ void load(Values& values, unsigned slot, int first, int k)
    {
        constexpr int PER_VECTOR = VECTOR_BYTES / static_cast<int>(sizeof(T));
        const int lane = threadIdx.x % 32, row = lane % 8, half = lane / 8 % 2, next = lane / 16;
#pragma unroll
        for (int i = 0; i < LINES / 8; i += 2) {
            auto& four = reinterpret_cast<unsigned (&)[4]>(values[i]);
            if constexpr (Slot::K_MAJOR)
                wt::arch::ldmatrix(four, slot + Layout::offset(first + 8 * (i + next) + row, k / PER_VECTOR + half));
            else
                wt::arch::ldmatrix_transposed(four, slot + Layout::offset(k + row + 8 * half, first / 8 + i + next));
        }
    }
};

// tf32, contiguous along M or N: a vector has four lines of one k, and belongs to four fragments.
template <class Slot, int LINES> struct FragmentsTf32Lines {
    using Layout = typename Slot::Layout;
    using Values = unsigned[LINES / 8][2];
    static constexpr bool FITS = LINES % 32 == 0 && Layout::WIDTH == 128, IN_ORDER = false;

    static inline __device__ int line_of(int group, int g) { return group / 4 * 32 + 4 * spread(g) + group % 4; }

    static __forceinline__ __device__ void load(Values& values, unsigned slot, int first, int k)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
        for (int i = 0; i < LINES / 8; i += 4)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const auto vector = read<unsigned>(slot + Layout::offset(k + q + 4 * half, first / 4 + 2 * i + spread(g)));
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    values[i + j][half] = vector.at[j];
            }
    }
};

// fp64, contiguous along K: a vector has both halves of a line.
template <class Slot, int LINES> struct FragmentsF64Depth {
    using Layout = typename Slot::Layout;
    using Values = double[LINES / 8][2];
    static constexpr bool FITS = Layout::WIDTH >= 64, IN_ORDER = false;

    static inline __device__ int line_of(int group, int g) { return 8 * group + (Layout::WIDTH == 128 ? spread(g) : g); }

    static __forceinline__ __device__ void load(Values& values, unsigned slot, int first, int k)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
        for (int i = 0; i < LINES / 8; ++i) {
            const auto vector = read<double>(slot + Layout::offset(first + line_of(i, g), k / 2 + q));
            values[i][0] = vector.at[0];
            values[i][1] = vector.at[1];
        }
    }
};

// fp64, contiguous along M or N: a vector has two lines of one k, and belongs to two fragments.
template <class Slot, int LINES> struct FragmentsF64Lines {
    using Layout = typename Slot::Layout;
    using Values = double[LINES / 8][2];
    static constexpr bool FITS = LINES % 16 == 0 && Layout::WIDTH == 128, IN_ORDER = false;

    static inline __device__ int line_of(int group, int g) { return group / 2 * 16 + 2 * g + group % 2; }

    static __forceinline__ __device__ void load(Values& values, unsigned slot, int first, int k)
    {
        const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
        for (int i = 0; i < LINES / 8; i += 2)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const auto vector = read<double>(slot + Layout::offset(k + 2 * q + half, first / 2 + 4 * i + g));
                values[i][half] = vector.at[0];
                values[i + 1][half] = vector.at[1];
            }
    }
};

template <class Slot, class T, int LINES> struct FragmentsOf {
    using Type = Fragments<Slot, T, LINES>;
};
template <bool K_MAJOR, class Yes, class No> struct Either {
    using Type = Yes;
};
template <class Yes, class No> struct Either<false, Yes, No> {
    using Type = No;
};
template <class Slot, int LINES> struct FragmentsOf<Slot, wt::f32, LINES> {
    using Type = typename Either<Slot::K_MAJOR, Fragments<Slot, wt::f32, LINES>, FragmentsTf32Lines<Slot, LINES>>::Type;
};
template <class Slot, int LINES> struct FragmentsOf<Slot, double, LINES> {
    using Type = typename Either<Slot::K_MAJOR, FragmentsF64Depth<Slot, LINES>, FragmentsF64Lines<Slot, LINES>>::Type;
};

// D += A * B for 16 rows and eight columns. `a` has the fragments of rows 0 to 7 and 8 to 15.
template <class T> inline __device__ void multiply(wt::f32 (&d)[4], const unsigned (&a)[2][2], const unsigned (&b)[2])
{
    const unsigned four[4] = {a[0][0], a[1][0], a[0][1], a[1][1]};
    if constexpr (wt::same<T, wt::f32>)
        wt::arch::mma_m16n8k8_tf32(d, four, b);
    else
        wt::arch::mma_m16n8k16(d, four, b, T {});
}

template <class T> inline __device__ void multiply(double (&d)[4], const double (&a)[2][2], const double (&b)[2])
{
#if __CUDA_ARCH__ >= 900
    const double four[4] = {a[0][0], a[1][0], a[0][1], a[1][1]};
    wt::arch::mma_m16n8k8(d, four, b);
#else
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int rows = 0; rows < 2; ++rows)
            wt::arch::mma_m8n8k4(reinterpret_cast<double (&)[2]>(d[2 * rows]), a[rows][half], b[half]);
#endif
}

}  // namespace wt_module
