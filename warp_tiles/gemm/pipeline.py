"""The configuration of a loop of products: how its block loads and multiplies the tiles of an iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from warp_tiles.gemm.hardware import loop_registers
from warp_tiles.gemm.rejected import Rejected

LoopInstruction = Literal["wgmma", "mma_m16n8k16", "mma_m16n8k8", "mma_m8n8k4", "fma"]

# What loops may use besides fma: wgmma, or the instructions of mma.sync
InstructionFamily = Literal["wgmma", "mma"]

STAGE_ALIGNMENT = 1024  # bytes; the swizzling pattern of a stage buffer repeats after so many


LEAST_STAGES, MOST_STAGES = 2, 12
_FIELDS = {
    "stages": range(LEAST_STAGES, MOST_STAGES + 1),
    "in_flight": range(2),
    "warps_m": range(1, 33),
    "blocks": range(1, 5),
}


@dataclass(frozen=True)
class PipelineOverrides:
    """What the setting ``main_loop`` fixes of a loop's pipeline. The chooser decides about each field that is None.

    Attributes:
        family: The instructions of staged products, or ``double_buffered`` for double buffers in place of stages.
        stages, in_flight: Those of :class:`PipelineConfig`. Only ``wgmma`` has products in flight.
        warps_m: That of :class:`MmaPlan`.
        blocks: Resident blocks of a multiprocessor for which the stages leave room, if they fit. A launch with few
            blocks wants a small number, because more stages hide the latency of loads that no other block hides.
    """

    family: Literal["wgmma", "mma", "double_buffered"] | None = None
    stages: int | None = None
    in_flight: int | None = None
    warps_m: int | None = None
    blocks: int | None = None

    @staticmethod
    def parse(text: str) -> PipelineOverrides:
        """The choice in a setting's text: ``auto``, or words and fields with commas between, e.g. ``mma,stages=3``.

        Raises:
            ValueError: A word, field or number is unknown. The message names it.
        """
        fields: dict[str, Any] = {}
        for part in text.split(","):
            name, is_number, value = part.strip().partition("=")
            if not is_number:
                name, value = "family", name
            if name in fields:
                raise ValueError(f"{name} is given twice")
            if name == "family" and value in ("auto", "wgmma", "mma", "double_buffered"):
                fields[name] = None if value == "auto" else value
            elif name in _FIELDS and value.isdecimal() and int(value) in _FIELDS[name]:
                fields[name] = int(value)
            else:
                raise ValueError(f"{part.strip()!r} is unknown")
        if fields.get("family") == "double_buffered" and len(fields) > 1:
            raise ValueError("double buffers have no other fields")
        return PipelineOverrides(**fields)

    @property
    def text(self) -> str:
        """The choice as the setting has it: the inverse of :meth:`parse`."""
        fixed = [f"{name}={value}" for name in _FIELDS if (value := getattr(self, name)) is not None]
        return ",".join([*([self.family] if self.family else []), *fixed]) or "auto"


AUTO = PipelineOverrides()  # fixes nothing


@dataclass(frozen=True)
class MmaPlan:
    """How a block multiplies two tiles in stage buffers (``*_product.cuh`` in ``kernels/module``).

    Attributes:
        instruction: ``wgmma`` (sm_90a); an ``mma.sync`` of 16-bit types, of tf32 or of fp64; or ``fma`` of fp32.
        warps_m, warps_n: The grid of warps over C, or of warpgroups (four warps) with ``wgmma``.
        operands: Registers of a thread that hold operands of ``fma``.
        through_registers: The operand that ``wgmma`` reads from registers; empty if it reads both from shared memory.
        lanes_m: Lanes of a warp along M with ``fma``; the others lie along N.
        swapped: True if ``wgmma`` reads both operands from shared memory and computes the transpose of C.
    """

    instruction: LoopInstruction
    warps_m: int
    warps_n: int
    accumulators: int
    through_registers: Literal["", "a", "b"] = ""
    lanes_m: int = 0
    operands: int = 0
    swapped: bool = False


def products_registers(arch: int, plans: Sequence[MmaPlan], accumulators: int, *, reverse: bool = False) -> int:
    """Registers of a thread that a loop of products takes, by estimate. ``accumulators`` are those of all products."""
    return max(
        loop_registers(
            arch,
            plan.instruction,
            accumulators,
            plan.operands,
            through_registers=bool(plan.through_registers),
            reverse=reverse,
        )
        for plan in plans
    )


@dataclass(frozen=True)
class LoopMemory:
    """The shared memory of a loop's block.

    Attributes:
        tile_bytes: Bytes of all tiles of the function.
        idle_bytes: Bytes of neighbouring tiles that are idle in the loop; the stages may lie there.
        at_end: True if these tiles are the last ones of the function, so that extra memory continues them.
        around_bytes: Bytes of the tiles of functions that call this one.
        beside_solvers: True if the function also calls solvers, which wait for latency that other blocks hide.
    """

    stage_bytes: int
    tile_bytes: int
    idle_bytes: int
    at_end: bool = True
    around_bytes: int = 0
    beside_solvers: bool = False

    def extra_bytes(self, needed: int) -> int:
        """Bytes that a ring of so many bytes needs beyond idle tiles. It may begin up to an alignment later."""
        needed += STAGE_ALIGNMENT
        if needed <= self.idle_bytes:
            return 0
        return needed - self.idle_bytes if self.at_end else needed

    def total_bytes(self, needed: int) -> int:
        return self.around_bytes + self.tile_bytes + self.extra_bytes(needed)


@dataclass(frozen=True)
class PipelineConfig:
    """The pipeline of a loop: a ring of stages, each with the tiles that one iteration loads.

    Attributes:
        in_flight: Iterations whose products may be in progress while the next ones are issued: 0 or 1.
        extra_bytes: Bytes of shared memory that the kernel needs beyond its tiles.
        blocks: Resident blocks of a multiprocessor, as far as shared memory and the registers of a thread decide,
            within the limit of the module.
        shared_bytes: Bytes of shared memory of the function with its stages, and of the tiles around it.
        registers: Registers of a thread that the loop takes, by estimate, without a limit of the module.
        rejection: Why it has no more stages; None if more would not help, or if a setting fixes their number.
    """

    instruction: LoopInstruction
    stages: int
    in_flight: int
    stage_bytes: int
    extra_bytes: int
    blocks: int
    shared_bytes: int
    shared_limit: int
    registers: int
    rejection: Rejected | None = None
