// SPDX-License-Identifier: Apache-2.0
//
// C = alpha * A * B + beta * C on dense tiles in shared memory, by all threads of a block, without a barrier before or
// after. Where beta is zero C is not read.

#pragma once

#include "arch/memory.cuh"
#include "gemm/fma_gemm.cuh"
#include "gemm/mma_gemm.cuh"
#include "gemm/problem.cuh"

namespace wt {

template <Instruction I, class P, class Config>
struct Gemm {
    using Type = MmaGemm<P, Config>;
};
template <class P, class Config>
struct Gemm<Instruction::fma, P, Config> {
    using Type = FmaGemm<P, Config>;
};

template <bool Transpose, class P>
struct Oriented {
    using Type = P;
};
template <class P>
struct Oriented<true, P> {
    using Type = Transposed<P>;
};

template <class Problem, class Config>
struct BlockGemm {
    using P = typename Oriented<Config::transposed, Problem>::Type;
    using Type = typename Gemm<Config::instruction, P, Config>::Type;
    using Sums = typename Type::Sums;
    static_assert(P::threads % 32 == 0 && P::threads <= 1024, "A block has 1 to 32 warps");

    static WT_DEVICE const typename P::A* left(void* a, void* b)
    {
        return arch::in_shared<const typename P::A>(Config::transposed ? b : a);
    }
    static WT_DEVICE const typename P::B* right(void* a, void* b)
    {
        return arch::in_shared<const typename P::B>(Config::transposed ? a : b);
    }
};

// alpha and beta point to one element of C's type each. Config: see TileConfig in warp_tiles/tile_config.py.
template <class Problem, class Config>
WT_DEVICE void block_gemm(const void* alpha, void* a, void* b, const void* beta, void* c)
{
    using G = BlockGemm<Problem, Config>;
    G::Type::run(alpha, G::left(a, b), G::right(a, b), beta, arch::in_shared<typename G::P::C>(c));
}

// The same in two parts, for a loop that multiplies many A and B into one C: sums += A * B, and C += sums at the end.
// sums: what each thread holds, BlockGemm<Problem, Config>::Sums, zero before the loop.
template <class Problem, class Config>
WT_DEVICE void block_gemm_add(void* sums, void* a, void* b)
{
    using G = BlockGemm<Problem, Config>;
    G::Type::add(*static_cast<typename G::Sums*>(sums), G::left(a, b), G::right(a, b));
}

template <class Problem, class Config>
WT_DEVICE void block_gemm_finish(void* sums, void* c)
{
    using G = BlockGemm<Problem, Config>;
    G::Type::finish(*static_cast<typename G::Sums*>(sums), arch::in_shared<typename G::P::C>(c));
}

}  // namespace wt
