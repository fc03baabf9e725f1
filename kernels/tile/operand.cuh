// SPDX-License-Identifier: Apache-2.0
//
// Reads an operand of a tensor-core product from a dense tile. A lane has g = lane / 4 and q = lane % 4. It reads row (A)
// or column (B) g of each group of eight. Of each block of 4V elements of K it reads the V elements from Vq on. The order of
// K is free as long as A and B agree; this order makes a lane's elements contiguous.

#pragma once

#include "arch/convert.cuh"
#include "arch/lane.cuh"
#include "arch/ldmatrix.cuh"
#include "arch/memory.cuh"
#include "tile/placement.cuh"
#include "tile/swizzle.cuh"

namespace wt::tile {

WT_DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }

// Returns the largest power of two that divides a.
WT_DEVICE constexpr int power_of_two_in(int a) { return a & -a; }

// T           stored type
// Extent, K   size along M or N, and along K, in elements
// LD, Align   leading dimension in elements; alignment of every row or column in bytes
// Groups      groups of eight rows or columns that are read at a time
// V, Blocks   elements of K that a lane reads from a block; blocks of K that are read at a time
// Ways        number of XOR patterns of the swizzle
// Wide        allows interleaving two groups, which makes C's vectors four elements long
template <class T, int Extent, int K, int LD, int Align, int Groups, int V, int Blocks, int Ways, bool Wide>
struct OperandShape {
    using Element = T;
    // These are enumerators, because NVRTC emits static members into the LTO-IR.
    enum : int { extent = Extent, k = K, ld = LD, align = Align, groups = Groups, vector = V, blocks = Blocks, ways = Ways };
    enum : bool { paired = Wide && Groups % 2 == 0, exact = Extent % (8 * Groups) == 0 && K % (4 * V * Blocks) == 0 };
    // A unit is a word of two 16-bit neighbours along K if packed, else one element.
    enum : bool { packed = sizeof(T) == 2 && V % 2 == 0 };
    enum : int { units = packed ? V / 2 : V };
};

template <bool Packed, class T>
struct UnitOf {
    using Type = T;
};
template <class T>
struct UnitOf<true, T> {
    using Type = u32;
};

template <class S>
using Unit = typename UnitOf<S::packed, typename S::Element>::Type;

template <class S>
using Units = Unit<S>[S::blocks][S::groups][S::units];

// ---- K-major: contiguous along K

template <class S>
struct KMajor {
    using T = typename S::Element;
    static constexpr Placement placement = S::paired ? Placement::pairs_across : Placement::single;
    // Elements per access. Either all of them or none lie inside K.
    static constexpr int width =
        smaller(smaller(S::vector, S::align / int(sizeof(T))), smaller(power_of_two_in(S::k), power_of_two_in(S::ld)));
    static constexpr int shift = swizzle_shift(S::ld * int(sizeof(T)));

    static WT_DEVICE void load(Units<S>& units, const T* tile, int outer0, int k0, int g, int q)
    {
        const int swizzle = (g >> shift) & (S::ways - 1);
#pragma unroll
        for (int group = 0; group < S::groups; ++group) {
            const int outer = outer0 + position<placement>(group, g);
#pragma unroll
            for (int buffer = 0; buffer < S::blocks; ++buffer) {
                const int k = k0 + 4 * S::vector * (buffer ^ swizzle) + S::vector * q;
                load_vector(units[buffer][group], tile + outer * S::ld + k, outer < S::extent, k);
            }
        }
        if constexpr (S::ways > 1)
            unswizzle_blocks(units, swizzle);
    }

private:
    static WT_DEVICE void load_vector(Unit<S> (&units)[S::units], const T* from, bool inside, int k)
    {
        constexpr int unit_elements = S::vector / S::units;
#pragma unroll
        for (int e = 0; e < S::vector; e += width) {
            const bool valid = S::exact || (inside && k + e < S::k);
            if constexpr (width < unit_elements) {
                const u32 bits = valid ? arch::load<1>(from + e).at[0].bits : 0;
                units[e / 2] = e % 2 ? units[e / 2] | bits << 16 : bits;
            } else {
                constexpr int count = width / unit_elements;
                Vector<Unit<S>, count> value{};
                if (valid)
                    value = arch::load<count>(reinterpret_cast<const Unit<S>*>(from + e));
#pragma unroll
                for (int i = 0; i < count; ++i)
                    units[e / unit_elements + i] = value.at[i];
            }
        }
    }

    // Blocks of K are the stage buffers of the swizzle.
    static WT_DEVICE void unswizzle_blocks(Units<S>& units, int swizzle)
    {
#pragma unroll
        for (int group = 0; group < S::groups; ++group) {
#pragma unroll
            for (int u = 0; u < S::units; ++u) {
                Unit<S> buffers[S::blocks];
#pragma unroll
                for (int block = 0; block < S::blocks; ++block)
                    buffers[block] = units[block][group][u];
                unswizzle<S::ways>(buffers, swizzle);
#pragma unroll
                for (int block = 0; block < S::blocks; ++block)
                    units[block][group][u] = buffers[block];
            }
        }
    }
};

// ---- MN-major: contiguous along M or N

template <class S>
struct MnMajor {
    using T = typename S::Element;
    static constexpr int size = int(sizeof(T));
    // Two neighbours are read at once if they are always aligned and inside the tile.
    static constexpr bool pairs = S::paired && (size == 2 ? S::packed : size == 4) && S::extent % 2 == 0 && S::ld % 2 == 0
        && S::align >= 2 * size;
    static constexpr int pair = pairs ? 2 : 1;
    static constexpr Placement placement = !pairs ? (size == 8 && S::groups % 4 == 0 ? Placement::spread : Placement::single)
        : size == 2                              ? Placement::pairs_along
                                                 : Placement::pairs_spread;
    static constexpr int slots_across = S::groups / pair;
    // ldmatrix reads single groups of 16-bit elements if their rows are aligned.
    static constexpr bool matrices = size == 2 && S::packed && !pairs && S::exact && S::align >= 16 && S::ld % 8 == 0
        && (S::units == 2 || S::units == 4);

    // A part is a word of two 16-bit neighbours, or one element.
    using Part = typename UnitOf<pairs && size == 2, T>::Type;
    static constexpr int parts = pair * size / int(sizeof(Part));
    using Access = Vector<Part, parts>;

    static WT_DEVICE void load(Units<S>& units, const T* tile, int outer0, int k0, int g, int q)
    {
        const int swizzle = q & (S::ways - 1);
#pragma unroll
        for (int block = 0; block < S::blocks; ++block) {
            if constexpr (matrices) {
                load_matrices(units[block], tile, outer0, k0 + 4 * S::vector * block, 4 * g + q);
                continue;
            }
            Access buffers[S::vector * slots_across];
#pragma unroll
            for (int buffer = 0; buffer < S::vector * slots_across; ++buffer) {
                const int source = buffer ^ swizzle;
                const int k = k0 + S::vector * (4 * block + q) + source / slots_across;
                const int outer = outer0 + position<placement>(source % slots_across * pair, g);
                const bool valid = S::exact || (outer < S::extent && k < S::k);
                buffers[buffer] = valid ? arch::load<parts>(reinterpret_cast<const Part*>(tile + k * S::ld + outer)) : Access{};
            }
            if constexpr (S::ways > 1)
                unswizzle<S::ways>(buffers, swizzle);
            transpose(units[block], buffers);
        }
    }

private:
    // Matrix i holds elements 2i and 2i + 1 of every lane's vector, in rows 2q and 2q + 1.
    static WT_DEVICE void load_matrices(Unit<S> (&units)[S::groups][S::units], const T* tile, int outer0, int k0, int lane)
    {
        const int row = lane % 8, matrix = lane / 8 % S::units;
        const int k = k0 + S::vector * (row / 2) + 2 * matrix + row % 2;
#pragma unroll
        for (int group = 0; group < S::groups; ++group)
            arch::ldmatrix_transposed(units[group], tile + k * S::ld + outer0 + 8 * group);
    }

    // Transposes stage buffers, which run along M or N, into units, which run along K.
    static WT_DEVICE void transpose(Unit<S> (&units)[S::groups][S::units], const Access (&buffers)[S::vector * slots_across])
    {
#pragma unroll
        for (int u = 0; u < slots_across; ++u) {
#pragma unroll
            for (int e = 0; e < S::vector; ++e) {
                const Access& value = buffers[e * slots_across + u];
                if constexpr (pairs && size == 2) {
                    if (e % 2 == 0) {
                        const Access& next = buffers[(e + 1) * slots_across + u];
                        units[2 * u][e / 2] = arch::permute_bytes(value.at[0], next.at[0], 0x5410);
                        units[2 * u + 1][e / 2] = arch::permute_bytes(value.at[0], next.at[0], 0x7632);
                    }
                } else if constexpr (S::packed) {
                    if (e % 2 == 0)
                        units[u][e / 2] = arch::pack(value.at[0], buffers[(e + 1) * slots_across + u].at[0]);
                } else {
#pragma unroll
                    for (int h = 0; h < pair; ++h)
                        units[pair * u + h][e] = value.at[h];
                }
            }
        }
    }
};

template <bool IsKMajor, class S>
struct OperandReader {
    using Type = KMajor<S>;
};
template <class S>
struct OperandReader<false, S> {
    using Type = MnMajor<S>;
};

}  // namespace wt::tile
