// SPDX-License-Identifier: Apache-2.0
//
// Which row or column of the tile an instruction's row or column stands for. Instructions see groups of eight; the
// order within a tile is free, as long as the operand and C agree, and is chosen for wide accesses without conflicts.

#pragma once

#include "arch/types.cuh"

namespace wt::tile {

enum class Placement {
    single,        // group j: 8j + p
    spread,        // 8-byte elements: as single, but groups 2, 3 of four change halves, so that their banks differ
    pairs_across,  // groups 2u, 2u + 1: two neighbours of each lane lie in one group
    pairs_along,   // groups 2u, 2u + 1: two neighbours of each lane lie one in each group
    pairs_spread,  // 4-byte elements: as pairs_along, but pairs of groups 2, 3 of four change halves
};

WT_DEVICE constexpr bool is_paired(Placement placement)
{
    return placement != Placement::single && placement != Placement::spread;
}

// Position of member p (0 to 7) of a group
template <Placement P>
WT_DEVICE int position(int group, int p)
{
    const int pair = group / 2;
    if constexpr (P == Placement::single)
        return 8 * group + p;
    else if constexpr (P == Placement::spread)
        return 8 * group + (p ^ 4 * (pair & 1));
    else if constexpr (P == Placement::pairs_across)
        return 16 * pair + 4 * (p / 2) + 2 * (group % 2) + p % 2;
    else if constexpr (P == Placement::pairs_along)
        return 16 * pair + 2 * p + group % 2;
    else
        return 16 * pair + 2 * (p ^ 4 * (pair / 2 & 1)) + group % 2;
}

// Of the values that lane q holds in C, whose columns are members 2q and 2q + 1: the vector's first column, and in which
// group and member its element e is. Vectors hold 2 elements of one group, or 4 of a pair of groups.
template <Placement P>
struct ColumnVector {
    static constexpr int groups = is_paired(P) ? 2 : 1;
    static constexpr int elements = 2 * groups;

    static WT_DEVICE int column(int vector, int q)
    {
        if constexpr (P == Placement::single)
            return 8 * vector + 2 * q;
        else if constexpr (P == Placement::spread)
            return 8 * vector + (2 * q ^ 4 * (vector / 2 & 1));
        else if constexpr (P == Placement::pairs_spread)
            return 16 * vector + 4 * (q ^ 2 * (vector / 2 & 1));
        else
            return 16 * vector + 4 * q;
    }

    static WT_DEVICE constexpr int group_of(int e) { return groups == 1 ? 0 : P == Placement::pairs_across ? e / 2 : e % 2; }
    static WT_DEVICE constexpr int member_of(int e) { return groups == 1 ? e : P == Placement::pairs_across ? e % 2 : e / 2; }
};

}  // namespace wt::tile
