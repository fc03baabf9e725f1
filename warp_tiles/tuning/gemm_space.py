"""The configurations of a GEMM variant that are worth measuring. Pure functions, the same on every machine.

A configuration names the provider and, for ``mma``, its tile configuration. A record has one timing for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from warp_tiles.errors import UnsupportedVariant
from warp_tiles.gemm.hardware import LANES
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.heuristics import choose as chooser
from warp_tiles.heuristics.choose import fma_candidates, mma_candidates
from warp_tiles.heuristics.cost import cost
from warp_tiles.heuristics.limits import INSTRUCTION_MNK, instructions, problem_of, transposed
from warp_tiles.providers.cublasdx import require_served
from warp_tiles.tuning.record import Config

LIMIT = 40
_HOPELESS = 2.5  # times the estimate of the chooser's pick; candidates above it are left out
_SEEDS = 4  # candidates whose neighbours are tried as well
_UNROLLED = 2 * 64 * 64 * 16  # largest number of unrolled multiplications of a lane; more of them build slowly


#: The providers whose candidates a search measures.
MEASURED = ("mma", "cublasdx")


def config_of(provider: str, tile_config: TileConfig | None = None) -> dict[str, Any]:
    """Returns the configuration as a record holds it."""
    return {"provider": provider} | ({"tile_config": tile_config.to_json()} if tile_config else {})


def tile_config_of(config: Config) -> TileConfig | None:
    """Returns the tile configuration of a record's configuration; None if its provider has none.

    Raises:
        ValueError: The tile configuration is not valid.
    """
    return TileConfig.from_json(config.get("tile_config")) if config.get("provider") == "mma" else None


def candidates(variant: GemmProblem, limit: int = LIMIT) -> tuple[dict[str, Any], ...]:
    """Returns the candidates: the chooser's pick, at most ``limit`` - 1 others of ``mma``, then ``cublasdx``.

    Raises:
        UnsupportedVariant: Neither provider can compute the variant.
    """
    found = [config_of("mma", config) for config in tile_candidates(variant, limit)]
    try:
        require_served("cublasdx", variant)
    except UnsupportedVariant:
        if not found:
            raise
    else:
        found.append(config_of("cublasdx"))
    return tuple(found)


def tile_candidates(variant: GemmProblem, limit: int = LIMIT) -> tuple[TileConfig, ...]:
    """Returns tile configurations that fit: the chooser's pick, the best ones by estimate, and neighbours of both.

    Half of them are the best by estimate. The others differ from the best in one field, because the estimate does not
    model how k_unroll and c_first interact with the compiler's scheduling.
    """
    try:
        picked = chooser.choose(variant)
    except UnsupportedVariant:
        return ()
    most = _HOPELESS * estimated_cycles(variant, picked)
    ranked = _ranked(variant, _all_configs(variant), most)
    best = list(dict.fromkeys([picked, *ranked]))[: max(1, limit // 2)]
    near = chain.from_iterable(_ranked(variant, neighbours(seed), most) for seed in best[:_SEEDS])
    return tuple(dict.fromkeys([*best, *near, *ranked]))[:limit]


def estimated_cycles(variant: GemmProblem, config: TileConfig) -> float:
    """The chooser's estimate of a configuration in either orientation."""
    view = transposed(variant) if config.transposed else variant
    return cost(view, replace(config, transposed=False))


def neighbours(config: TileConfig) -> Iterator[TileConfig]:
    """Yield configurations that differ from one in one field, or in the split over lanes. Not all of them fit."""
    yield _with(config, c_first=not config.c_first)
    for unroll in (2 * config.k_unroll, config.k_unroll // 2, 1):
        yield _with(config, k_unroll=unroll)
    for parts in (2 * config.warps_k, config.warps_k // 2):
        unroll = max(1, config.k_unroll * config.warps_k // max(1, parts))
        yield _with(config, warps_k=parts, k_unroll=unroll, c_first=config.c_first and parts == 1)
    for name in ("tile_m", "tile_n", "k_vector"):
        value = getattr(config, name)
        yield from (_with(config, **{name: other}) for other in (2 * value, value // 2))
    for name in ("swizzle_a", "swizzle_b", *(() if config.instruction == "fma" else ("swizzle_c",))):
        yield from (_with(config, **{name: ways}) for ways in (1, 2, 4))
    # the transposed product: rows and columns swap in every field
    yield _with(
        config,
        transposed=not config.transposed,
        tile_m=config.tile_n,
        tile_n=config.tile_m,
        lanes_m=config.lanes_n,
        lanes_n=config.lanes_m,
        swizzle_a=config.swizzle_b,
        swizzle_b=config.swizzle_a,
    )
    if config.instruction == "fma":
        for more, fewer in (("lanes_m", "lanes_n"), ("lanes_n", "lanes_m"), ("lanes_k", "lanes_m")):
            yield _with(config, **{more: 2 * getattr(config, more), fewer: getattr(config, fewer) // 2})


def _with(config: TileConfig, **changes: Any) -> TileConfig:
    return replace(config, **changes)


def _all_configs(variant: GemmProblem) -> Iterator[TileConfig]:
    """Yield the configurations of every allowed instruction, in both orientations."""
    for flip in (False, True):
        view = transposed(variant) if flip else variant
        for instruction in instructions(view):
            found = fma_candidates(view) if instruction == "fma" else mma_candidates(view, instruction)
            yield from (replace(config, transposed=flip) for config in found)


def _ranked(variant: GemmProblem, configs: Iterable[TileConfig], most_cycles: float) -> list[TileConfig]:
    """Returns the configurations that fit and may be fast, best first."""
    fitting = (config for config in dict.fromkeys(configs) if is_sensible(variant, config))
    estimates = {config: estimated_cycles(variant, config) for config in fitting if not problem_of(variant, config)}
    return sorted((config for config, cycles in estimates.items() if cycles <= most_cycles), key=estimates.__getitem__)


def is_sensible(variant: GemmProblem, config: TileConfig) -> bool:
    """Returns True if no step lies beyond K and no tile lies mostly outside C."""
    sizes = ("tile_m", "tile_n", "lanes_m", "lanes_n", "lanes_k", "warps_k", "k_vector", "k_unroll")
    if min(getattr(config, name) for name in sizes) < 1:
        return False
    view = transposed(variant) if config.transposed else variant
    if config.instruction == "fma":
        rows, cols, along_k, across = config.lanes_m, config.lanes_n, config.lanes_k, config.lanes_m * config.lanes_n
    else:
        rows, cols, _ = INSTRUCTION_MNK[config.instruction]
        along_k, across = 4, LANES
    if config.tile_m >= 2 * view.m + rows or config.tile_n >= 2 * view.n + cols:
        return False
    steps = -(-view.k // (config.k_vector * along_k * config.warps_k))
    unrolled = config.k_unroll * config.k_vector * config.tile_m * config.tile_n * LANES // across
    return config.k_unroll == 1 or (config.k_unroll <= steps and unrolled <= _UNROLLED)
