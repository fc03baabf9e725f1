"""The chooser of the reverse pass of a loop of products. It is pure: every machine gets the same result.

The reverse pass of ``C += A B`` computes two products in each iteration: G B^T and A^T G, where G is the gradient of C.
Each is computed in the orientation of the tile that the loop loads, so that the result has the tile's place in a stage.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from warp_tiles.gemm.hardware import LANES, accumulator_registers, shared_limit
from warp_tiles.gemm.mma_choice import staged_product
from warp_tiles.gemm.pipeline import STAGE_ALIGNMENT, InstructionFamily, LoopMemory, MmaPlan, products_registers
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem, Operand, dense_operand
from warp_tiles.gemm.rejected import Rejected, accepted, refuse, rejectable

# An iteration's products take longer than the loads of the next one. A third stage gains nothing, because atomic
# additions to the L2 cache take the time (docs/experiments.md).
STAGES = 2


@dataclass(frozen=True)
class GradientProduct:
    """The product that computes the gradient of a tile, by the threads that take part. G may be its left operand."""

    variant: GemmProblem
    answer: MmaPlan
    gradient_is_a: bool


@dataclass(frozen=True)
class ReverseLoop:
    """How a block computes the reverse pass of a loop.

    Attributes:
        extra_bytes: Bytes of shared memory that the kernel needs for that beyond its tiles and their gradients.
    """

    of_a: GradientProduct
    of_b: GradientProduct
    needed_bytes: int
    extra_bytes: int

    @property
    def instructions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.of_a.answer.instruction, self.of_b.answer.instruction)))

    @property
    def accumulators(self) -> int:
        return self.of_a.answer.accumulators + self.of_b.answer.accumulators

    @property
    def registers(self) -> int:
        """Registers of a thread that its products take, by estimate."""
        arch, plans = self.of_a.variant.arch, (self.of_a.answer, self.of_b.answer)
        return products_registers(arch, plans, self.accumulators, reverse=True)


@rejectable
def reverse_loop(
    forward: GemmProblem,
    families: Collection[InstructionFamily],
    memory: LoopMemory,
) -> ReverseLoop:
    """The reverse pass of a loop, or the reason why it has no stages. ``memory`` has a gradient beside each tile."""
    products = []
    for variant, gradient_is_a in gradient_variants(forward):
        shared = _shared_product(variant, families)
        if isinstance(shared, Rejected):
            shared = shared.after(f"gradients of {variant.size}: ")
        products.append(GradientProduct(*accepted(shared), gradient_is_a))
    needed = gradient_bytes(forward) + STAGES * memory.stage_bytes
    of_a, of_b = products
    found = ReverseLoop(of_a, of_b, needed, memory.extra_bytes(needed))
    available = accumulator_registers(forward.arch, forward.threads)
    refuse(found.accumulators > available, "many_gradient_accumulators", found.accumulators, available)
    total, limit = memory.total_bytes(needed), shared_limit(forward.arch, forward.threads)
    refuse(total > limit, "gradients_do_not_fit", STAGES, total, limit)
    return found


def _shared_product(
    variant: GemmProblem, families: Collection[InstructionFamily]
) -> tuple[GemmProblem, MmaPlan] | Rejected:
    """The product, by as many threads of the block as can share it, or the reason why none can.

    A short step along K leaves few rows or columns in the gradient of a tile.
    """
    answer = staged_product(variant, families)
    if isinstance(answer, MmaPlan):
        return variant, answer
    if variant.threads >= 2 * LANES:
        shared = _shared_product(replace(variant, threads=variant.threads // 2), families)
        if not isinstance(shared, Rejected):
            return shared
    return answer


def gradient_bytes(forward: GemmProblem) -> int:
    """Bytes of the copies of G: one in the operands' type, or two parts of 16-bit operands."""
    size = DTYPE_BYTES[forward.a.dtype]
    part = -(-forward.m * forward.n * size // STAGE_ALIGNMENT) * STAGE_ALIGNMENT
    return part * (2 if size == 2 else 1)


def gradient_variants(forward: GemmProblem) -> Sequence[tuple[GemmProblem, bool]]:
    """The products for the gradients of A and B, and whether G is their left operand.

    The gradient of an operand that is loaded as its transpose is computed transposed. G is row-major.
    """
    m, n, k, dtype = forward.m, forward.n, forward.k, forward.a.dtype
    a_transposed, b_transposed = (operand.arrangement == "col_major" for operand in (forward.a, forward.b))
    a = dense_operand(dtype, m, k, transposed=a_transposed)
    b = dense_operand(dtype, k, n, transposed=b_transposed)
    g = dense_operand(dtype, m, n)
    of_a = (b, g.transposed(), (k, m, n)) if a_transposed else (g, b.transposed(), (m, k, n))
    of_b = (g.transposed(), a, (n, k, m)) if b_transposed else (a.transposed(), g, (k, n, m))
    return (_variant(forward, *of_a), not a_transposed), (_variant(forward, *of_b), b_transposed)


def _variant(forward: GemmProblem, a: Operand, b: Operand, sizes: tuple[int, int, int]) -> GemmProblem:
    m, n, k = sizes
    return replace(forward, m=m, n=n, k=k, a=a, b=b, c=dense_operand(forward.c.dtype, m, n))
