// SPDX-License-Identifier: Apache-2.0
//
// Maps rows and columns of an instruction to rows and columns of the tile. Instructions see groups of eight. The order
// within a tile is free as long as the operand and C agree; a placement makes accesses wide and free of bank conflicts.

#pragma once

#include "arch/types.cuh"

namespace wt::tile {

enum class Placement {
    single,        // group j: 8j + p
    spread,        // 8-byte elements: like single, with swapped halves in groups 2 and 3 of four, so that banks differ
    pairs_across,  // groups 2u and 2u + 1: two neighbours of a lane lie in one group
    pairs_along,   // groups 2u and 2u + 1: one of two neighbours of a lane lies in each group
    pairs_spread,  // 4-byte elements: like pairs_along, with swapped halves in pairs 2 and 3 of four
};

WT_DEVICE constexpr bool is_paired(Placement placement)
{
    return placement != Placement::single && placement != Placement::spread;
}

// Returns the row or column of member p (0 to 7) of a group.
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

// The vectors of C that lane q holds: 2 elements of one group, or 4 of a pair of groups. The columns are members 2q and
// 2q + 1. column() is a vector's first column; element e is member member_of(e) of group group_of(e).
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
