"""The register limit of a module: how many registers a thread may have in a cubin that warp_tiles links."""

from __future__ import annotations

from dataclasses import replace

from warp_tiles.heuristics.registers import max_registers, resident_blocks
from warp_tiles.heuristics.solver import register_limit, registers_of_indexed
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.solver.variant import SolverVariant


def with_register_limit(plan: ModulePlan) -> ModulePlan:
    """The plan with its register limit and the reason.

    Args:
        plan: A plan whose needed variants have providers.
    """
    functions = [v for v in plan.needed if v.provider != "scalar"]
    if not functions or plan.settings.linker == "warp":
        return replace(plan, register_limit=None, register_limit_reason="")
    limits: dict[int, str] = {}
    own = [v for v in functions if v.provider == "mma"]
    blocks = resident_blocks(plan.block_dim, bool(own), plan.loops)
    if (limit := max_registers(plan.block_dim, blocks)) is not None:
        alone = f"a block of {plan.block_dim} threads cannot launch with more"
        limits[limit] = alone if blocks == 1 else f"{blocks} resident blocks hide latency"
    solvers = [(v.variant, v.kernels) for v in own if isinstance(v.variant, SolverVariant)]
    if solvers and set(plan.kernels) == {kernel for _, kernels in solvers for kernel in kernels}:
        reason = "every kernel calls a solver function, which gains more from resident blocks than from registers"
        wanted = max(register_limit(variant) for variant, _ in solvers)
        if (indexed := registers_of_indexed(plan.indexed_elements)) > wanted:
            wanted, reason = indexed, f"an indexed load or store has {plan.indexed_elements} elements for each thread"
        limits.setdefault(wanted, reason)
    least = min(limits, default=None)
    return replace(plan, register_limit=least, register_limit_reason="" if least is None else limits[least])
