"""Variants, plan rows and jobs; several test modules use them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from warp_tiles.aot.manifest import Job
from warp_tiles.gemm.problem import GemmProblem, Operand, Role
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.heuristics.choose import choose
from warp_tiles.heuristics.solver import choose as choose_solver
from warp_tiles.plan.planning import PlannedVariant
from warp_tiles.solver.variant import SolverVariant

_OPERAND, _NARROW = Operand("float32", "row_major", 8, 16), Operand("float32", "row_major", 2, 8)
TINY = GemmProblem(8, 8, 8, _OPERAND, _OPERAND, _OPERAND, "default", 32, 90)
#: Another tile configuration of TINY than the chooser's.
OTHER = TileConfig("fma", 8, 4, lanes_m=8, lanes_n=4)
FACTOR = SolverVariant("cholesky", 8, 8, (_OPERAND, _OPERAND), False, 32, 90)
SOLVE = SolverVariant("lower_solve", 8, 2, (_OPERAND, _NARROW, _NARROW), False, 32, 90)


def row(variant: GemmProblem | None = TINY, **changes: Any) -> dict[str, Any]:
    """A row of the provider cublasdx."""
    planned = PlannedVariant(variant, Role.FORWARD, "tile_matmul", "gemm", ("gemm",), True, "why", "cublasdx")
    return {**planned.to_json(), **changes}


def mma_row(variant: GemmProblem = TINY, config: TileConfig | None = None, **changes: Any) -> dict[str, Any]:
    """A row of the provider mma."""
    return row(variant, **{"provider": "mma", "tile_config": (config or choose(variant)).to_json(), **changes})


def solver_row(variant: SolverVariant = FACTOR, **changes: Any) -> dict[str, Any]:
    """A row of a solver function."""
    config = changes.pop("config", choose_solver(variant))
    planned = PlannedVariant(variant, Role.FORWARD, "tile_cholesky", "factor", ("factor",), True, "why", "mma")
    return {**replace(planned, tile_config=config).to_json(), **changes}


def jobs(*variants: GemmProblem) -> tuple[Job, ...]:
    """Jobs of the provider cublasdx."""
    return tuple(Job("cublasdx", variant) for variant in variants)


def manifest(*rows: dict[str, Any]) -> dict[str, Any]:
    """A manifest with one module."""
    return {"modules": [{"name": "m", "arch": 90, "block_dim": 32, "kernels": ["gemm"], "variants": list(rows)}]}
