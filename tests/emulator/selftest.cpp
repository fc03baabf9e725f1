// SPDX-License-Identifier: Apache-2.0
//
// A test of the emulator and the templates without Python: each tensor-core instruction on matrices of small integers,
// whose products are exact, and one GEMM for each instruction. It prints a line per check and returns the number of failures.

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "gemm/block_gemm.cuh"
#include "kernels/registers.cuh"
#include "machine/block.h"

namespace wt::emulator {
// batch.cpp needs this table; this program does not.
const Kernel kernels[] = {nullptr};
const int kernel_count = 0;
}  // namespace wt::emulator

namespace {

using namespace wt::emulator;

int failures = 0;

void report(const std::string& name, const std::string& error)
{
    std::printf("%-28s %s\n", name.c_str(), error.empty() ? "passed" : error.c_str());
    failures += error.empty() ? 0 : 1;
}

// Returns a small integer of either sign. Neighbouring elements differ.
int value_of(int row, int column, int salt) { return (row * 17 + column * 5 + salt * 3) % 23 - 11; }

template <class T>
T stored(int value)
{
    return wt::arch::Convert<T, float>::of(float(value));
}

template <>
double stored(int value)
{
    return value;
}

template <class T>
struct Buffer {
    Tile tile;
    std::vector<T> elements;

    Buffer(char name, int rows, int columns, int leading_dimension, bool row_major, int alignment, bool writable)
        : tile{name, rows, columns, leading_dimension, int(sizeof(T)), alignment, row_major, writable, true, 0},
          elements(tile.span() / sizeof(T))
    {
    }
    T& at(int row, int column)
    {
        return elements[std::size_t(tile.row_major ? row * tile.leading_dimension + column
                                                   : column * tile.leading_dimension + row)];
    }
    void fill(int salt)
    {
        for (int row = 0; row < tile.rows; ++row)
            for (int column = 0; column < tile.columns; ++column)
                at(row, column) = stored<T>(value_of(row, column, salt));
    }
    const unsigned char* bytes() const { return reinterpret_cast<const unsigned char*>(elements.data()); }
};

Block* block = nullptr;

// Runs a kernel with alpha = beta = 1, and copies C back.
template <class A, class B, class C>
std::string run(Kernel kernel, int threads, int sm, const Buffer<A>& a, const Buffer<B>& b, Buffer<C>& c)
{
    const C one = stored<C>(1);
    block->memory.reset({a.tile, b.tile, c.tile}, {a.bytes(), b.bytes(), c.bytes()});
    const std::string error = block->run({kernel, threads, sm, &one, &one, int(sizeof(C)), true});
    std::memcpy(c.elements.data(), block->memory.bytes(2), c.tile.span());
    return error;
}

std::string difference(int row, int column, double got, double expected)
{
    return "row " + std::to_string(row) + ", column " + std::to_string(column) + " is " + std::to_string(got)
         + ", expected " + std::to_string(expected);
}

int product(int row, int column, int k)
{
    int sum = value_of(row, column, 2);
    for (int i = 0; i < k; ++i) sum += value_of(row, i, 0) * value_of(i, column, 1);
    return sum;
}

struct At {
    int row, column;
};
// Returns the position of the i-th element of lane 4 g + q.
using Layout = At (*)(int g, int q, int i);

// The layouts are those of the comment in kernels/arch/mma.cuh. machine/mma.cpp follows the text of the PTX ISA instead.
template <class T, class C>
void check_instruction(const char* name, Kernel kernel, int m, int n, int k, Layout a_at, Layout b_at, Layout c_at)
{
    const int counts[3] = {m * k / 32, k * n / 32, m * n / 32};
    Buffer<T> a('A', 32, counts[0], counts[0], true, 8, false), b('B', 32, counts[1], counts[1], true, 8, false);
    Buffer<C> c('C', 32, counts[2], counts[2], true, 8, true);
    for (int lane = 0; lane < 32; ++lane) {
        const auto fill = [lane](auto& buffer, int count, Layout layout, int salt) {
            for (int i = 0; i < count; ++i) {
                const At at = layout(lane / 4, lane % 4, i);
                buffer.at(lane, i) = stored<std::decay_t<decltype(buffer.at(0, 0))>>(value_of(at.row, at.column, salt));
            }
        };
        fill(a, counts[0], a_at, 0);
        fill(b, counts[1], b_at, 1);
        fill(c, counts[2], c_at, 2);
    }
    std::string error = run(kernel, 32, 90, a, b, c);
    for (int lane = 0; lane < 32 && error.empty(); ++lane)
        for (int i = 0; i < counts[2] && error.empty(); ++i) {
            const At at = c_at(lane / 4, lane % 4, i);
            const double got = double(c.at(lane, i)), expected = product(at.row, at.column, k);
            if (got != expected) error = difference(at.row, at.column, got, expected);
        }
    report(name, error);
}

template <class T, class TC, int Sm>
struct FixedProblem {
    using A = T;
    using B = T;
    using C = TC;
    static constexpr int m = 40, n = 48, k = 32, lda = k, ldb = k + 8, ldc = n;
    static constexpr int align_a = 16, align_b = 16, align_c = 16;
    static constexpr bool a_row_major = true, b_row_major = false, c_row_major = true, tf32 = true;
    static constexpr int threads = 64, sm = Sm;
};

template <wt::Instruction I, int Vector>
struct FixedConfig {
    static constexpr bool fma = I == wt::Instruction::fma;
    static constexpr wt::Instruction instruction = I;
    static constexpr int tile_m = 16, tile_n = 16, lanes_m = fma ? 4 : 1, lanes_n = fma ? 4 : 1, lanes_k = fma ? 2 : 1;
    static constexpr int warps_k = 1, k_vector = Vector, k_unroll = 1, swizzle_a = 1, swizzle_b = 1, swizzle_c = 1;
    static constexpr bool transposed = false, c_first = false;
};

template <class P, class C>
struct Variant {
    using Problem = P;
    using Config = C;
};

template <class P, class Config>
void gemm(void* alpha, void* a, void* b, void* beta, void* c)
{
    wt::block_gemm<Variant<P, Config>>(alpha, a, b, beta, c);
}

template <class P, class Config>
void check_gemm(const char* name)
{
    using T = typename P::A;
    using C = typename P::C;
    Buffer<T> a('A', P::m, P::k, P::lda, P::a_row_major, P::align_a, false);
    Buffer<T> b('B', P::k, P::n, P::ldb, P::b_row_major, P::align_b, false);
    Buffer<C> c('C', P::m, P::n, P::ldc, P::c_row_major, P::align_c, true);
    a.fill(0);
    b.fill(1);
    c.fill(2);
    std::string error = run(gemm<P, Config>, P::threads, P::sm, a, b, c);
    for (int row = 0; row < P::m && error.empty(); ++row)
        for (int column = 0; column < P::n && error.empty(); ++column) {
            const double got = double(c.at(row, column)), expected = product(row, column, P::k);
            if (got != expected) error = difference(row, column, got, expected);
        }
    report(name, error);
}

At c_16(int g, int q, int i) { return {g + 8 * (i / 2), 2 * q + i % 2}; }
At a_16(int g, int q, int i) { return {g + 8 * (i / 2 % 2), 2 * q + i % 2 + 8 * (i / 4)}; }
At b_16(int g, int q, int i) { return {2 * q + i % 2 + 8 * (i / 2), g}; }
At a_8_half(int g, int q, int i) { return {g + 8 * (i / 2), 2 * q + i % 2}; }
At b_8_half(int g, int q, int i) { return {2 * q + i, g}; }
At a_8(int g, int q, int i) { return {g + 8 * (i % 2), q + 4 * (i / 2)}; }
At b_8(int g, int q, int i) { return {q + 4 * i, g}; }
At a_4(int g, int q, int) { return {g, q}; }
At b_4(int g, int q, int) { return {q, g}; }
At c_8(int g, int q, int i) { return {g, 2 * q + i}; }

}  // namespace

int main()
{
    using namespace registers;
    using wt::Instruction;
    using wt::bf16;
    using wt::f16;
    static Block machine;
    block = &machine;
    install_signal_handlers();

    check_instruction<f16, float>("mma.m16n8k16.f16", mma_m16n8k16_f16<1>, 16, 8, 16, a_16, b_16, c_16);
    check_instruction<bf16, float>("mma.m16n8k16.bf16", mma_m16n8k16_bf16<1>, 16, 8, 16, a_16, b_16, c_16);
    check_instruction<f16, float>("mma.m16n8k8.f16", mma_m16n8k8_f16<1>, 16, 8, 8, a_8_half, b_8_half, c_16);
    check_instruction<float, float>("mma.m16n8k8.tf32", mma_m16n8k8_tf32<1>, 16, 8, 8, a_8, b_8, c_16);
    check_instruction<double, double>("mma.m8n8k4.f64", mma_m8n8k4_f64<1>, 8, 8, 4, a_4, b_4, c_8);
    check_instruction<double, double>("mma.m16n8k8.f64", mma_m16n8k8_f64<1>, 16, 8, 8, a_8, b_8, c_16);

    check_gemm<FixedProblem<f16, float, 80>, FixedConfig<Instruction::mma_m16n8k16, 8>>("GEMM fp16, m16n8k16");
    check_gemm<FixedProblem<bf16, float, 90>, FixedConfig<Instruction::mma_m16n8k16, 4>>("GEMM bf16, m16n8k16");
    check_gemm<FixedProblem<f16, float, 75>, FixedConfig<Instruction::mma_m16n8k8, 2>>("GEMM fp16, m16n8k8");
    check_gemm<FixedProblem<float, float, 80>, FixedConfig<Instruction::mma_m16n8k8, 4>>("GEMM tf32, m16n8k8");
    check_gemm<FixedProblem<double, double, 80>, FixedConfig<Instruction::mma_m8n8k4, 2>>("GEMM fp64, m8n8k4");
    check_gemm<FixedProblem<double, double, 90>, FixedConfig<Instruction::mma_m16n8k8, 2>>("GEMM fp64, m16n8k8");
    check_gemm<FixedProblem<float, float, 75>, FixedConfig<Instruction::fma, 2>>("GEMM fp32, fma");
    return failures;
}
