"""The questions that are tuned in place: the pipeline of a loop, and the function of a product on shared tiles.

A place is a question of a kernel with the answers that are legal there. It says nothing about the kernel and its
launch, so its record counts for each kernel that asks the same. All functions are pure.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal

from warp_tiles.errors import UnsupportedVariant
from warp_tiles.gemm.choose import choose, ranked
from warp_tiles.gemm.main_loop import LoopAnswer, LoopQuestion
from warp_tiles.gemm.pipeline import AUTO, LEAST_STAGES, PipelineOverrides
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import TileConfig, fits, steps_over_k, view_of
from warp_tiles.providers.cublasdx import require_served
from warp_tiles.store.key import CacheKey
from warp_tiles.tuning.key import Environment, Scalar, TuningKey
from warp_tiles.tuning.record import DEFAULTS, Config

LOOP, FUNCTION = "loop", "function"  # subjects of records
FUNCTIONS = 24  # configurations of a function, at most
_MOST_STAGES = 6  # of a candidate; only launches with few blocks gain from more
_SEEDS = 3  # configurations that are tried with other values of two fields

_Values = tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True)
class Place:
    """A question with the answers that are legal there.

    Attributes:
        subject: ``loop`` or ``function``.
        values: Everything that decides, by name.
        title: A line for messages.
        configs: The answers, as a record holds them. The first one is the default: what the heuristics choose.
        adjoint: True for a function that only adjoint kernels call.
    """

    subject: str
    values: _Values
    title: str = field(compare=False)
    configs: tuple[Config, ...] = field(compare=False)
    adjoint: bool = field(default=False, compare=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the question, in hexadecimal."""
        return digest_of(self.subject, self.values)

    def key(self, source: str, environment: Environment) -> TuningKey:
        """The key of its record on a machine. ``source`` is the digest of the sources of all answers."""
        return TuningKey(self.subject, self.values, source, environment)


def digest_of(subject: str, values: _Values) -> str:
    """SHA-256 of a question, in hexadecimal."""
    return CacheKey.of({"subject": subject, **{f"value {name}": json.dumps(value) for name, value in values}}).digest


def values_of(question: LoopQuestion | GemmProblem) -> _Values:
    """The values of the question of a loop or a function. A field in another has both names: ``products.0.m``."""
    return tuple(sorted(_flat(question.to_json())))


def _flat(data: Any, prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    named = data.items() if isinstance(data, Mapping) else enumerate(data)
    for name, value in named:
        if isinstance(value, (Mapping, list, tuple)):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


# ---- loops


def loop_place(question: LoopQuestion) -> Place:
    """The place of a loop, with every pipeline that is possible there. Those that make equal code occur once."""
    default = question.answer(AUTO)
    found: dict[LoopAnswer | str, PipelineOverrides] = {default if isinstance(default, str) else default.code: AUTO}
    for overrides in _pipelines():
        answer = question.answer(overrides)
        if isinstance(answer, LoopAnswer):
            found.setdefault(answer.code, overrides)
    if isinstance(default, LoopAnswer):
        found["double buffers"] = PipelineOverrides("double_buffered")
    configs = tuple({"pipeline": overrides.text} for overrides in found.values())
    return Place(LOOP, values_of(question), question.describe(), configs)


def _pipelines() -> Iterator[PipelineOverrides]:
    """All stages for the first grid of warps, then the other grids: of the fastest instructions, then of mma.sync."""
    families: tuple[Literal["mma"] | None, ...] = (None, "mma")
    for family in families:
        for stages, in_flight, per_barrier in product(range(LEAST_STAGES, _MOST_STAGES + 1), range(2), (1, 2)):
            yield PipelineOverrides(family, stages, in_flight, per_barrier)
        for warps_m in (1, 2, 4, 8, 16):
            yield PipelineOverrides(family, warps_m=warps_m)


def pipeline_of(config: Config) -> PipelineOverrides:
    """Returns the overrides that a record holds.

    Raises:
        ValueError: They are not valid.
    """
    text = config.get("pipeline")
    if not isinstance(text, str):
        raise ValueError(f"{dict(config)} is no pipeline")
    return PipelineOverrides.parse(text)


# ---- functions

#: The providers whose functions a search measures.
MEASURED = ("mma", "cublasdx")


def function_place(variant: GemmProblem, adjoint: bool = False) -> Place | None:
    """The place of a function on shared tiles; None if there is nothing to choose."""
    found = [function_config("mma", config) for config in tile_configs(variant)[1:]]
    with contextlib.suppress(UnsupportedVariant):
        choose(variant)  # otherwise cublasdx is the default
        require_served("cublasdx", variant)
        found.append(function_config("cublasdx"))
    configs = (DEFAULTS[FUNCTION], *found)
    return Place(FUNCTION, values_of(variant), variant.describe(), configs, adjoint) if found else None


def function_config(provider: str, tile_config: TileConfig | None = None) -> dict[str, Any]:
    """Returns provider and tile configuration as a record holds them."""
    return {"provider": provider} | ({"tile_config": tile_config.to_json()} if tile_config else {})


def tile_config_of(config: Config) -> TileConfig | None:
    """Returns the tile configuration that a record holds; None if its provider has none.

    Raises:
        ValueError: The tile configuration is not valid.
    """
    return TileConfig.from_json(config.get("tile_config")) if config.get("provider") == "mma" else None


def tile_configs(variant: GemmProblem) -> tuple[TileConfig, ...]:
    """Returns tile configurations that fit: the chooser's pick first, then its next ones by estimate.

    The estimate does not model how ``k_unroll`` and ``c_first`` interact with the compiler's scheduling. So the best
    ones are there with other values of both as well.
    """
    try:
        every = ranked(variant)
    except UnsupportedVariant:
        return ()
    near = [replace(config, c_first=not config.c_first) for config in every[:_SEEDS]]
    for config in every[:_SEEDS]:
        steps = steps_over_k(view_of(variant, config), config)
        unrolls = (2 * config.k_unroll, config.k_unroll // 2, 1)
        near += [replace(config, k_unroll=unroll) for unroll in unrolls if 1 <= unroll <= steps]
    near = [config for config in near if fits(variant, config)]
    return tuple(dict.fromkeys([*every[: FUNCTIONS // 2], *near, *every]))[:FUNCTIONS]
