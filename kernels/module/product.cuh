// SPDX-License-Identifier: Apache-2.0
//
// What a product of tiles in stage buffers has to be: the interface between the generated loop (docs/templates.md shows one) and an
// instruction. A new instruction is a class with these members, a branch in emit_loops.py that names it, and a rule in the chooser.
//
//     Problem                     its constants, P of staged_accumulators.cuh
//     Sum                         element type of the accumulators and of C
//     Accumulators                what a thread keeps over the loop: accumulators, and fragments that it fetches ahead
//     GROUPS                      asynchronous groups of products that add() leaves in flight, as wgmma.commit_group counts them
//     PAIRS                       pairs of neighbouring accumulators of a row that lanes can gather by an exchange; 1 without one
//     start(accumulators)         before the loop: zeros
//     start(accumulators, c)      before the loop: the values of a row-major C in shared memory
//     add(accumulators, a, b)     adds the product of two stage buffers, given by their shared addresses. It may leave work to the next
//                                 add() or to complete(); in the loop, Ring::wait() keeps its buffers until GROUPS groups are done
//     add(accumulators, a, b, requested, loaders...)
//                                 the same, and copies tiles between its instructions (BufferLoader::copy_pass); only of mma.sync
//     complete(accumulators)      after the last add(): does what is left, and waits for it
//     scale(accumulators, factor) before the loop or after complete(): multiplies the accumulators by a Sum or RuntimeFactor
//     finish<ADD>(accumulators, c) writes the accumulators to a row-major C in shared memory, or adds them to it
//     visit(accumulators, act)    calls act(row, column, vector) for neighbouring accumulators of a row of C
//     visit<COUNT, WORDS>(accumulators, memory, make, fetch, act)
//                                 the same for 2 * COUNT of them (visit_rows); only if PAIRS is not 1
//
// All are static, all threads of the product's warps call them, and none has a barrier of the block.
#pragma once

#include "arch/types.cuh"

namespace wt_module {

template <class T> __device__ T any();  // only in operands that are not evaluated

struct Visitor {
    template <class Vector> inline __device__ void operator()(int, int, Vector) const {}
};

// Each is true if an expression is valid and has the type void. A reader of a failed assertion finds the line above.
template <class P, class = void> inline constexpr bool HAS_START = false;
template <class P> inline constexpr bool HAS_START<P, decltype(P::start(any<typename P::Accumulators&>()))> = true;
template <class P, class = void> inline constexpr bool HAS_START_VALUE = false;
template <class P>
inline constexpr bool HAS_START_VALUE<P, decltype(P::start(any<typename P::Accumulators&>(), any<const typename P::Sum*>()))> = true;
template <class P, class = void> inline constexpr bool HAS_ADD = false;
template <class P> inline constexpr bool HAS_ADD<P, decltype(P::add(any<typename P::Accumulators&>(), any<unsigned>(), any<unsigned>()))> = true;
template <class P, class = void> inline constexpr bool HAS_COMPLETE = false;
template <class P> inline constexpr bool HAS_COMPLETE<P, decltype(P::complete(any<typename P::Accumulators&>()))> = true;
template <class P, class = void> inline constexpr bool HAS_SCALE = false;
template <class P>
inline constexpr bool HAS_SCALE<P, decltype(P::scale(any<typename P::Accumulators&>(), any<typename P::Sum>()))> = true;
template <class P, class = void> inline constexpr bool HAS_FINISH = false;
template <class P>
inline constexpr bool HAS_FINISH<P, decltype(P::template finish<true>(any<const typename P::Accumulators&>(), any<typename P::Sum*>()))> = true;
template <class P, class = void> inline constexpr bool HAS_VISIT = false;
template <class P> inline constexpr bool HAS_VISIT<P, decltype(P::visit(any<const typename P::Accumulators&>(), any<const Visitor&>()))> = true;
template <class P, class = void> inline constexpr bool HAS_COUNTS = false;
template <class P> inline constexpr bool HAS_COUNTS<P, decltype(void(P::GROUPS + P::PAIRS + P::Problem::m))> = true;

template <class P> struct CheckedProduct {
    static_assert(HAS_START<P>, "a product has start(Accumulators&), which sets its accumulators to zeros");
    static_assert(HAS_START_VALUE<P>, "a product has start(Accumulators&, const Sum* c), which begins with the values of C");
    static_assert(HAS_ADD<P>, "a product has add(Accumulators&, unsigned a, unsigned b), which multiplies two stage buffers");
    static_assert(HAS_COMPLETE<P>, "a product has complete(Accumulators&), which does what add() has left");
    static_assert(HAS_SCALE<P>, "a product has scale(Accumulators&, Sum factor), which multiplies its accumulators");
    static_assert(HAS_FINISH<P>, "a product has finish<ADD>(const Accumulators&, Sum* c), which writes its accumulators to C");
    static_assert(HAS_VISIT<P>, "a product has visit(const Accumulators&, act), which passes neighbouring accumulators");
    static_assert(HAS_COUNTS<P>, "a product has GROUPS, PAIRS and Problem");
    using Type = P;
};

// The class P, if it is a product. The generated source names each product by this alias.
template <class P> using Product = typename CheckedProduct<P>::Type;

}  // namespace wt_module
