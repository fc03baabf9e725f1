"""A loop with products as a plan shows it: the decision in words and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from warp_tiles.codegen.module_code import AccumulatorStore, LoopDecision, ReverseRing, Ring, extra_bytes
from warp_tiles.gemm.problem import DTYPE_BYTES
from warp_tiles.gemm.rejected import Rejected, code_of

_SHORTEST_COPY = 4  # bytes of an async copy, as shortest_copy() in kernels/module/stage_buffers.cuh


@dataclass(frozen=True)
class PlannedLoop:
    """The treatment of one loop that contains products.

    Attributes:
        kernel: Key of a kernel that runs it.
        file, line: Its place in the user's source.
        products: The number of its products, without those of inner loops.
        state: ``pipelined``: tiles are loaded ahead and accumulators stay in registers; ``register_accumulators``: no
            tile is loaded ahead; ``as_warp``: the loop is unchanged.
        stages: Number of buffers of each tile that the loop loads.
        reason: The reason for this state.
        codes: The codes of the rejections in ``reason``. ``gradients_code``, ``reverse_code`` and ``store_code`` belong
            to the texts of these names; they are empty without a rejection.
        instruction: ``wgmma``, an ``mma.sync`` such as ``mma_m16n8k16``, or ``fma`` if it multiplies tiles in stages,
            else empty.
        accumulators: Registers of a thread that hold accumulators of such products.
        gradients: How a ``wp.Tape`` computes its gradients, and why; empty if the kernel has no adjoint.
        reverse: How the adjoint kernel multiplies from stages, or ``no stages`` and why; empty without an adjoint.
        reverse_instructions: The instructions of these products.
        store: How the accumulators of a loop with stages reach an array, and why; empty without stages.
        operands: Registers of a thread that hold operands of ``fma``.
        loads: How tiles reach the stages of a loop, also from arrays with unaligned rows; empty without stages.
        cost: What a setting that forbids stages costs the loop, and the remedy; empty if none does.
        shared_bytes: Dynamic shared memory of a block with stages, with the tiles around the loop; 0 without stages.
        registers: Registers of a thread that products from stages take, by estimate, in both directions; 0 without any.
        resident_blocks: Blocks that a multiprocessor runs at a time with its shared bytes and the registers that the
            module allows; 0 without stages.
    """

    kernel: str
    file: str
    line: int
    products: int
    state: str
    stages: int
    reason: str
    instruction: str = ""
    accumulators: int = 0
    codes: tuple[str, ...] = ()
    gradients: str = ""
    gradients_code: str = ""
    reverse: str = ""
    reverse_code: str = ""
    reverse_instructions: tuple[str, ...] = ()
    store: str = ""
    store_code: str = ""
    operands: int = 0
    loads: str = ""
    cost: str = ""
    shared_bytes: int = 0
    registers: int = 0
    resident_blocks: int = 0

    @classmethod
    def of(cls, decision: LoopDecision, kernel: str, gradients: str, gradients_code: str) -> PlannedLoop:
        """The decision about a loop in a kernel that runs it."""
        ring, reverse = decision.ring, decision.reverse_ring
        reasons = list(_reasons(decision))
        found = cls(
            kernel,
            decision.file,
            decision.line,
            decision.products,
            decision.state,
            2 if decision.loads else 1,
            "; ".join(dict.fromkeys(map(str, reasons))),
            accumulators=decision.accumulators,
            codes=tuple(dict.fromkeys(one.code for one in reasons if isinstance(one, Rejected))),
            gradients=gradients,
            gradients_code=gradients_code,
            reverse=_reverse_reason(decision.reverse),
            reverse_code=code_of(decision.reverse),
            reverse_instructions=reverse.answer.instructions if reverse else (),
            store=_store_reason(decision.accumulator_store),
            store_code=code_of(decision.accumulator_store),
            cost=str(decision.cost or ""),
            registers=decision.registers,
        )
        if ring is None:
            return found
        return replace(
            found,
            stages=ring.loop.stages,
            instruction=ring.loop.instruction,
            operands=max(product.plan.operands for product in ring.products),
            loads=_load_reason(ring),
            shared_bytes=ring.loop.shared_bytes,
            resident_blocks=ring.loop.blocks,
        )

    def to_json(self) -> dict[str, Any]:
        """The fields that ``warp-tiles plan --json`` prints."""
        lists = {name: list(getattr(self, name)) for name in ("codes", "reverse_instructions")}
        return {**vars(self), **lists, "treatment": self.describe()}

    def describe(self) -> str:
        """The decision in words."""
        words = {"pipelined": f"pipelined, {self.stages} stages", "register_accumulators": "accumulators in registers"}
        return words.get(self.state, "as Warp does it")

    @property
    def explanation(self) -> str:
        """The reasons in words."""
        return "; ".join(filter(None, (self.reason, self.store, self.cost)))

    def summary(self) -> str:
        """One line for the log."""
        products = f"{self.products} product{'s' * (self.products > 1)}"
        return f"kernel {self.kernel}, {self.file}:{self.line}: {products}, {self.describe()}: {self.explanation}"


def _where(extra_bytes: int) -> str:
    return f"with {extra_bytes} bytes of extra shared memory" if extra_bytes else "in idle tiles"


def _reasons(decision: LoopDecision) -> Iterator[Rejected | str]:
    """How a loop is computed, and why not otherwise."""
    ring = decision.ring
    if ring is None:
        extra = extra_bytes(decision.buffers)
        if in_c := sum(buffer.size_bytes for buffer in decision.buffers) - extra:
            yield f"double buffers of {in_c} bytes lie in C's memory, which is idle in the loop"
        if extra:
            yield f"double buffers of {extra} bytes lie in extra shared memory"
        if decision.loads and not decision.buffers:
            yield "Warp unrolls the loop, so that each iteration has tiles of its own"
        yield from decision.reasons
        return
    loop = ring.loop
    yield f"{loop.instruction} multiplies {loop.stages} stages of {loop.stage_bytes} bytes, {_where(loop.extra_bytes)}"
    yield f"a block has {loop.shared_bytes} of {loop.shared_limit} bytes of shared memory"
    yield from filter(None, (loop.rejection, *decision.reasons, ring.rejection, ring.measured))
    if any(product.plan.swapped for product in ring.products):
        yield "it computes the transpose of C"


def _reverse_reason(reverse: ReverseRing | Rejected | None) -> str:
    """The decision about the reverse pass of a loop; empty without one."""
    if not isinstance(reverse, ReverseRing):
        return f"no stages: {reverse}" if reverse else ""
    instructions = " and ".join(reverse.answer.instructions)
    return f"{instructions} from stages of {reverse.stage_bytes} bytes, {_where(reverse.answer.extra_bytes)}"


def _store_reason(store: AccumulatorStore | Rejected | None) -> str:
    """How the accumulators of a loop reach an array; empty without stages."""
    if isinstance(store, AccumulatorStore):
        return "the accumulators are stored from registers"
    return f"the accumulators pass through shared memory, because {store}" if store else ""


def _load_reason(ring: Ring) -> str:
    """How tiles reach the stages (``kernels/module/stage_buffers.cuh``)."""
    size_bytes = DTYPE_BYTES[ring.products[0].variant.a.dtype]
    word = max(size_bytes, _SHORTEST_COPY)
    odd = " or begins at an odd element" if size_bytes < word else ""
    transposed = {buffer.transposed for buffer in ring.buffers.values()}
    texts = []
    if False in transposed:
        texts.append(
            f"async copies of 16 bytes load tiles, or of {word} bytes where rows begin at other multiples of "
            f"{word}, or threads load elements where a row has gaps{odd}"
        )
    if True in transposed:
        texts.append("async copies of single elements transpose tiles on their way")
    return "; ".join(texts)
