// SPDX-License-Identifier: Apache-2.0
//
// In place of kernels/cublasdx/cublasdx_database.cuh on the emulator: the names of CuTe and cuBLASDx that the templates use,
// with the MMA operations of the emulator. A test chooses the operation and the number of warps (or threads) along M and N,
// which cuBLASDx's database chooses on a GPU: WT_ATOM, WT_M_UNITS and WT_N_UNITS.

#pragma once

namespace cute {

template <int... I> struct int_sequence { };
template <class T, T... I> struct sequence_of {
    using type = int_sequence<int(I)...>;
};
template <int N> using make_int_sequence = typename sequence_of<int, __integer_pack(N)...>::type;

template <bool Condition, class Yes, class No> struct conditional {
    using type = Yes;
};
template <class Yes, class No> struct conditional<false, Yes, No> {
    using type = No;
};
template <bool Condition, class Yes, class No> using conditional_t = typename conditional<Condition, Yes, No>::type;
template <class T, class U> inline constexpr bool is_same_v = false;
template <class T> inline constexpr bool is_same_v<T, T> = true;

template <int Value> struct Int {
    static constexpr int value = Value;
};
template <int M, int N, int K> struct Shape { };
template <int I, int M, int N, int K> constexpr auto size(Shape<M, N, K>) { return Int<I == 0 ? M : I == 1 ? N : K> {}; }
template <int Value> constexpr auto size(Int<Value>) { return Int<Value> {}; }

template <class Op> struct MMA_Traits {
    using ThrID = Int<Op::lanes>;
    using Shape_MNK = Shape<Op::m, Op::n, Op::k>;
    using ALayout = typename Op::ALayout;
    using BLayout = typename Op::BLayout;
    using CLayout = typename Op::CLayout;
};

}  // namespace cute

namespace cublasdx {

using tfloat32_t = float;
template <int Arch> struct SM { };

struct half {
    unsigned short bits;

    half() = default;
    explicit half(float x) : bits(wt::emulator::f16_of(double(x))) { }
    operator float() const { return wt::emulator::float_of_f16(bits); }
};
inline half operator*(half x, half y) { return half(float(x) * float(y)); }
inline half operator+(half x, half y) { return half(float(x) + float(y)); }
inline bool operator==(half x, half y) { return float(x) == float(y); }

// ---- MMA operations. A layout maps (lane, value) to the column-major position in A (M x K), B (N x K) or C (M x N).

template <int Rows, int (*Row)(int, int), int (*Column)(int, int)> struct Layout {
    constexpr int operator()(int lane, int value) const { return Row(lane, value) + Rows * Column(lane, value); }
};
constexpr int group(int lane, int) { return lane / 4; }
constexpr int group_or_8_more(int lane, int value) { return lane / 4 + value / 2 % 2 * 8; }
constexpr int alternating_group(int lane, int value) { return lane / 4 + value % 2 * 8; }
constexpr int pair(int lane, int value) { return lane % 4 * 2 + value % 2; }
constexpr int pair_of_a(int lane, int value) { return lane % 4 * 2 + value % 2 + value / 4 * 8; }
constexpr int pair_of_b(int lane, int value) { return lane % 4 * 2 + value % 2 + value / 2 * 8; }
constexpr int single(int lane, int) { return lane % 4; }
constexpr int fourth_of_a(int lane, int value) { return lane % 4 + value / 2 * 4; }
constexpr int fourth_of_b(int lane, int value) { return lane % 4 + value * 4; }
constexpr int zero(int, int) { return 0; }

using Kind = wt::emulator::Kind;

// Four sums of float, which an operation reads from c and writes to d
template <Kind K>
inline void run(float& d0, float& d1, float& d2, float& d3, const unsigned* a, const unsigned* b, float c0, float c1, float c2, float c3)
{
    float d[] = {c0, c1, c2, c3};
    wt::emulator::collective(K, {d, a, b, 0});
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}

// An operation of M x 8 x K with so many registers of a lane for A, B and D
template <int M, int K, class A, class B, class D, class Rows, class Columns, class Sums> struct Operation {
    static constexpr int lanes = 32, m = M, n = 8, k = K;
    using ARegisters = A;
    using BRegisters = B;
    using DRegisters = D;
    using ALayout = Rows;
    using BLayout = Columns;
    using CLayout = Sums;
};
using Sums = Layout<16, group_or_8_more, pair>;

struct Half16816 : Operation<16, 16, unsigned[4], unsigned[2], float[4], Layout<16, group_or_8_more, pair_of_a>,
                       Layout<8, group, pair_of_b>, Sums> {
    static void fma(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                    unsigned b0, unsigned b1, float c0, float c1, float c2, float c3)
    {
        const unsigned a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
        run<Kind::mma_m16n8k16_f16>(d0, d1, d2, d3, a, b, c0, c1, c2, c3);
    }
};

// The same with sums in half precision
struct Half16816ToHalf : Half16816 {
    using DRegisters = unsigned[2];

    static float low(unsigned x) { return wt::emulator::float_of_f16((unsigned short)(x)); }
    static float high(unsigned x) { return wt::emulator::float_of_f16((unsigned short)(x >> 16)); }
    static unsigned pack(float x, float y)
    {
        return unsigned(wt::emulator::f16_of(double(x))) | unsigned(wt::emulator::f16_of(double(y))) << 16;
    }
    static void fma(unsigned& d0, unsigned& d1, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1,
                    unsigned c0, unsigned c1)
    {
        const unsigned a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
        float d[4];
        run<Kind::mma_m16n8k16_f16>(d[0], d[1], d[2], d[3], a, b, low(c0), high(c0), low(c1), high(c1));
        d0 = pack(d[0], d[1]), d1 = pack(d[2], d[3]);
    }
};

struct Half1688 : Operation<16, 8, unsigned[2], unsigned[1], float[4], Sums, Layout<8, group, pair>, Sums> {
    static void fma(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned b0, float c0, float c1,
                    float c2, float c3)
    {
        const unsigned a[] = {a0, a1}, b[] = {b0};
        run<Kind::mma_m16n8k8_f16>(d0, d1, d2, d3, a, b, c0, c1, c2, c3);
    }
};

struct Tf321688 : Operation<16, 8, unsigned[4], unsigned[2], float[4], Layout<16, alternating_group, fourth_of_a>,
                      Layout<8, group, fourth_of_b>, Sums> {
    static void fma(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                    unsigned b0, unsigned b1, float c0, float c1, float c2, float c3)
    {
        const unsigned a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
        run<Kind::mma_m16n8k8_tf32>(d0, d1, d2, d3, a, b, c0, c1, c2, c3);
    }
};

using Singles = Layout<8, group, single>;
struct Double884 : Operation<8, 4, double[1], double[1], double[2], Singles, Singles, Layout<8, group, pair>> {
    static void fma(double& d0, double& d1, double a, double b, double c0, double c1)
    {
        double d[] = {c0, c1};
        wt::emulator::collective(Kind::mma_m8n8k4_f64, {d, &a, &b, 0});
        d0 = d[0], d1 = d[1];
    }
};

template <class D, class A, class B> struct Fma {
    static constexpr int lanes = 1, m = 1, n = 1, k = 1;
    using ARegisters = A[1];
    using BRegisters = B[1];
    using DRegisters = D[1];
    using ALayout = Layout<1, zero, zero>;
    using BLayout = Layout<1, zero, zero>;
    using CLayout = Layout<1, zero, zero>;

    static void fma(D& d, const A& a, const B& b, const D& c) { d = D(a * b) + c; }  // rounds the product, as CuTe does
};

}  // namespace cublasdx

namespace cublasdx::detail {

template <class T> struct Cutlass {
    using type = T;
};
template <class T> using convert_to_cutlass_type_t = typename Cutlass<T>::type;

}  // namespace cublasdx::detail

namespace cublasdx::detail::cute_backend {

enum class mma_atom { half_16816, half_16816_to_half, half_1688, tf32_1688, double_884, universal_fma, SM100_1x2x1_F32F32F32F32 };

struct Choice {
    mma_atom atom;
    int m_units, n_units;
};

constexpr bool is_vectorized_fma(mma_atom atom) { return atom == mma_atom::SM100_1x2x1_F32F32F32F32; }
constexpr bool is_quadpair_mma(mma_atom) { return false; }

template <class A, class B, class C, mma_atom Atom> constexpr auto convert_mma_atom_to_cute()
{
    if constexpr (Atom == mma_atom::half_16816) return Half16816 {};
    else if constexpr (Atom == mma_atom::half_16816_to_half) return Half16816ToHalf {};
    else if constexpr (Atom == mma_atom::half_1688) return Half1688 {};
    else if constexpr (Atom == mma_atom::tf32_1688) return Tf321688 {};
    else if constexpr (Atom == mma_atom::double_884) return Double884 {};
    else return Fma<C, A, B> {};
}

}  // namespace cublasdx::detail::cute_backend

namespace cute {

template <int I> constexpr auto get(cublasdx::detail::cute_backend::Choice choice)
{
    if constexpr (I == 0) return choice.atom;
    else return I == 1 ? choice.m_units : choice.n_units;
}

}  // namespace cute
