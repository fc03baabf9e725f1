// SPDX-License-Identifier: Apache-2.0
//
// mma.sync, with the fragment layouts of the PTX ISA: the position in a matrix of a lane's i-th element.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
//
// The hardware's order of summation and intermediate precision are unspecified. Here fp32 instructions sum their products
// and the accumulator in double and round once. fp64 instructions are a chain of fused multiply-adds in the order of k.

#include <cmath>
#include <cstring>

#include "machine/collectives.h"

namespace wt::emulator {

namespace {

struct Position {
    int row, column;
};

struct Lane {
    int group;             // PTX: groupID = %laneid >> 2
    int thread_in_group;   // PTX: threadID_in_group = %laneid % 4
};

// "Matrix Fragments for mma.m16n8k16 with floating point type", .f16 and .bf16
struct M16N8K16 {
    static constexpr int m = 16, n = 8, k = 16, a_count = 8, b_count = 4, c_count = 4;

    static Position a(Lane lane, int i)
    {
        const bool upper = (0 <= i && i < 2) || (4 <= i && i < 6);
        const int column = lane.thread_in_group * 2 + (i & 1);
        return {upper ? lane.group : lane.group + 8, i < 4 ? column : column + 8};
    }
    static Position b(Lane lane, int i)
    {
        const int row = lane.thread_in_group * 2 + (i & 1);
        return {i < 2 ? row : row + 8, lane.group};
    }
    static Position c(Lane lane, int i)
    {
        return {i < 2 ? lane.group : lane.group + 8, lane.thread_in_group * 2 + (i & 1)};
    }
};

// "Matrix Fragments for mma.m16n8k8", .f16
struct M16N8K8Half {
    static constexpr int m = 16, n = 8, k = 8, a_count = 4, b_count = 2, c_count = 4;

    static Position a(Lane lane, int i)
    {
        return {i < 2 ? lane.group : lane.group + 8, lane.thread_in_group * 2 + (i & 1)};
    }
    static Position b(Lane lane, int i) { return {lane.thread_in_group * 2 + i, lane.group}; }
    static Position c(Lane lane, int i) { return M16N8K16::c(lane, i); }
};

// "Matrix Fragments for mma.m16n8k8", .tf32, and "... with .f64 type"
struct M16N8K8 {
    static constexpr int m = 16, n = 8, k = 8, a_count = 4, b_count = 2, c_count = 4;

    static Position a(Lane lane, int i)
    {
        const bool upper = i == 0 || i == 2, left = i == 0 || i == 1;
        return {upper ? lane.group : lane.group + 8, left ? lane.thread_in_group : lane.thread_in_group + 4};
    }
    static Position b(Lane lane, int i)
    {
        return {i == 0 ? lane.thread_in_group : lane.thread_in_group + 4, lane.group};
    }
    static Position c(Lane lane, int i) { return M16N8K16::c(lane, i); }
};

// "Matrix Fragments for mma.m8n8k4 with .f64 floating point type"
struct M8N8K4 {
    static constexpr int m = 8, n = 8, k = 4, a_count = 1, b_count = 1, c_count = 2;

    static Position a(Lane lane, int) { return {lane.group, lane.thread_in_group}; }
    static Position b(Lane lane, int) { return {lane.thread_in_group, lane.group}; }
    static Position c(Lane lane, int i) { return {lane.group, lane.thread_in_group * 2 + (i & 1)}; }
};

// Returns the i-th element of a fragment, as the instruction reads it.
double half_element(const void* fragment, int i)
{
    unsigned short bits;
    std::memcpy(&bits, static_cast<const unsigned char*>(fragment) + 2 * i, sizeof(bits));
    return float_of_f16(bits);
}

double bfloat16_element(const void* fragment, int i)
{
    unsigned short bits;
    std::memcpy(&bits, static_cast<const unsigned char*>(fragment) + 2 * i, sizeof(bits));
    return float_of_bits((unsigned int)(bits) << 16);
}

double tf32_element(const void* fragment, int i)
{
    return float_of_bits(static_cast<const unsigned int*>(fragment)[i] & ~0x1fffu);
}

double double_element(const void* fragment, int i) { return static_cast<const double*>(fragment)[i]; }

template <class Layout, class Accumulator>
void multiply(const WarpOperands& lanes, double (*element)(const void*, int))
{
    double a[Layout::m][Layout::k], b[Layout::k][Layout::n], c[Layout::m][Layout::n];
    for (int l = 0; l < warp_lanes; ++l) {
        const Lane lane{l >> 2, l % 4};
        for (int i = 0; i < Layout::a_count; ++i) {
            const Position at = Layout::a(lane, i);
            a[at.row][at.column] = element(lanes[l]->a, i);
        }
        for (int i = 0; i < Layout::b_count; ++i) {
            const Position at = Layout::b(lane, i);
            b[at.row][at.column] = element(lanes[l]->b, i);
        }
        for (int i = 0; i < Layout::c_count; ++i) {
            const Position at = Layout::c(lane, i);
            c[at.row][at.column] = static_cast<const Accumulator*>(lanes[l]->result)[i];
        }
    }
    for (int i = 0; i < Layout::m; ++i)
        for (int j = 0; j < Layout::n; ++j)
            for (int k = 0; k < Layout::k; ++k)
                c[i][j] = sizeof(Accumulator) == 8 ? std::fma(a[i][k], b[k][j], c[i][j]) : c[i][j] + a[i][k] * b[k][j];
    for (int l = 0; l < warp_lanes; ++l)
        for (int i = 0; i < Layout::c_count; ++i) {
            const Position at = Layout::c({l >> 2, l % 4}, i);
            static_cast<Accumulator*>(lanes[l]->result)[i] = Accumulator(c[at.row][at.column]);
        }
}

}  // namespace

bool is_mma(Kind kind) { return kind >= Kind::mma_m16n8k16_f16 && kind <= Kind::mma_m16n8k8_f64; }

void run_mma(Kind kind, const WarpOperands& lanes)
{
    switch (kind) {
    case Kind::mma_m16n8k16_f16: return multiply<M16N8K16, float>(lanes, half_element);
    case Kind::mma_m16n8k16_bf16: return multiply<M16N8K16, float>(lanes, bfloat16_element);
    case Kind::mma_m16n8k8_f16: return multiply<M16N8K8Half, float>(lanes, half_element);
    case Kind::mma_m16n8k8_tf32: return multiply<M16N8K8, float>(lanes, tf32_element);
    case Kind::mma_m8n8k4_f64: return multiply<M8N8K4, double>(lanes, double_element);
    case Kind::mma_m16n8k8_f64: return multiply<M16N8K8, double>(lanes, double_element);
    default: return;
    }
}

}  // namespace wt::emulator
