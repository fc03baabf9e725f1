"""The register limit of a module: how many registers a thread may have in a cubin that warp_tiles links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from warp_tiles.gemm.hardware import THREAD_REGISTERS
from warp_tiles.gemm.limits import computes_in_double
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.resources import least_registers, limit_of_blocks, loop_registers
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.solver.choose import register_limit, registers_of_indexed
from warp_tiles.solver.variant import SolverVariant


def with_register_limit(plan: ModulePlan) -> ModulePlan:
    """The plan with its register limit and the reason.

    Args:
        plan: A plan whose needed variants have providers.
    """
    if not plan.has_own_code or plan.settings.linker == "warp":
        return replace(plan, register_limit=None, register_limit_reason="")
    limits: dict[int, str] = {}
    own = [v for v in plan.needed if v.provider == "mma"]
    has_stages = any(loop.instruction or loop.reverse_instructions for loop in plan.loops)
    limit, blocks = limit_of_blocks(plan.block_dim, plan.loops, own_templates=bool(own) or has_stages)
    if limit is not None:
        alone = f"a block of {plan.block_dim} threads cannot launch with more"
        limits[limit] = alone if blocks == 1 else f"{blocks} resident blocks hide latency"
    solvers = [(v.variant, v.kernels) for v in own if isinstance(v.variant, SolverVariant)]
    if solvers and set(plan.kernels) == {kernel for _, kernels in solvers for kernel in kernels}:
        reason = "every kernel calls a solver function, which gains more from resident blocks than from registers"
        wanted = max(register_limit(variant) for variant, _ in solvers)
        if (indexed := registers_of_indexed(plan.indexed_elements)) > wanted:
            wanted, reason = indexed, f"an indexed load or store has {plan.indexed_elements} elements for each thread"
        least, needs = max(_needs(plan), default=(0, ""))
        if least > wanted:
            wanted, reason = least, needs
        limits.setdefault(min(wanted, THREAD_REGISTERS), reason)
    least_limit = min(limits, default=None)
    return replace(
        plan,
        register_limit=least_limit,
        register_limit_reason="" if least_limit is None else limits[least_limit],
    )


def _needs(plan: ModulePlan) -> Iterator[tuple[int, str]]:
    """Registers of a thread that products need, and the reasons: with fewer they spill, or cannot be assembled."""
    assert plan.arch is not None
    for planned in plan.needed:
        if isinstance(planned.variant, GemmProblem) and isinstance(planned.tile_config, TileConfig):
            instruction, in_double = planned.tile_config.instruction, computes_in_double(planned.variant)
            yield least_registers(instruction, plan.arch, in_double=in_double), f"{instruction} needs as many"
    for loop in plan.loops:
        if loop.accumulators:
            yield loop_registers(loop.accumulators, loop.operands), f"the loop of {loop.file}:{loop.line} needs as many"
