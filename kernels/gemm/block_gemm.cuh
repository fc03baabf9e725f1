// SPDX-License-Identifier: Apache-2.0
//
// C = alpha * A * B + beta * C on dense tiles in shared memory. All threads of a block call it. It may have block barriers
// inside, but has none at its start and end. If beta is zero, C is not read.

#pragma once

#include "arch/lane.cuh"
#include "arch/memory.cuh"
#include "gemm/fma_gemm.cuh"
#include "gemm/mma_gemm.cuh"
#include "gemm/problem.cuh"

namespace wt {

template <Instruction I, class Variant>
struct GemmOf {
    using Type = MmaGemm<Variant>;
};
template <class Variant>
struct GemmOf<Instruction::fma, Variant> {
    using Type = FmaGemm<Variant>;
};

template <class Variant>
struct BlockGemm {
    using P = ProblemOf<Variant>;
    using Gemm = typename GemmOf<Variant::Config::instruction, Variant>::Type;
    using Accumulators = typename Gemm::Accumulators;
    static_assert(P::threads % 32 == 0 && P::threads <= 1024, "A block must have 1 to 32 whole warps");

    static WT_DEVICE const typename P::A* left(void* a, void* b)
    {
        return arch::in_shared<const typename P::A>(Variant::Config::transposed ? b : a);
    }
    static WT_DEVICE const typename P::B* right(void* a, void* b)
    {
        return arch::in_shared<const typename P::B>(Variant::Config::transposed ? a : b);
    }
};

// The index of the thread in its block, see block_gemm_add().
WT_DEVICE int thread_index(bool recompute)
{
    return recompute ? arch::opaque_thread_index() : arch::thread_index();
}

// alpha and beta point to one element of C's type each.
template <class Variant>
WT_DEVICE void block_gemm(const void* alpha, void* a, void* b, const void* beta, void* c)
{
    using G = BlockGemm<Variant>;
    G::Gemm::run(alpha, G::left(a, b), G::right(a, b), beta, arch::in_shared<typename G::P::C>(c));
}

// The same in two parts, for a loop that adds many products to one C: accumulators += A * B in the loop, and C += accumulators at
// its end. `accumulators` points to the thread's BlockGemm<Variant>::Accumulators, which are zero before the loop. With
// `recompute`, the lanes compute their addresses in each call. Otherwise the compiler keeps them in registers over the loop, also
// where other code needs these.
template <class Variant>
WT_DEVICE void block_gemm_add(void* accumulators, void* a, void* b, bool recompute)
{
    using G = BlockGemm<Variant>;
    G::Gemm::add(*static_cast<typename G::Accumulators*>(accumulators), G::left(a, b), G::right(a, b), thread_index(recompute));
}

template <class Variant>
WT_DEVICE void block_gemm_finish(void* accumulators, void* c, bool recompute)
{
    using G = BlockGemm<Variant>;
    G::Gemm::finish(*static_cast<typename G::Accumulators*>(accumulators), arch::in_shared<typename G::P::C>(c),
                    thread_index(recompute));
}

}  // namespace wt
