"""The device functions of one module: as planned and as built, and what they need of the module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from warp_tiles.build.records import Artifact
from warp_tiles.codegen.module_code import DeviceFunction, LoopAccumulators
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.plan.planner import Choose
from warp_tiles.plan.planning import ModulePlan, PlannedVariant
from warp_tiles.providers.own import register_accumulators, unit_of
from warp_tiles.solver.variant import SolverVariant, Variant, variant_from_fields


@dataclass(frozen=True)
class Linked:
    """What a module of warp_tiles is linked from, besides its source.

    Attributes:
        functions: The device functions that its source calls.
        suffix: ``a`` if its loops need ``sm_90a``, else empty.
        register_limit: Registers per thread, at most; None for no limit.
        prefix: Characters at the beginning of its source, which other modules share.
    """

    functions: tuple[Variant, ...]
    suffix: str
    register_limit: int | None
    prefix: int

    @classmethod
    def from_json(cls, data: Any) -> Linked:
        """Read what ``asdict()`` has written, from untrusted JSON values.

        Raises:
            ValueError: A field is missing, unknown or invalid.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or data.keys() != names or not isinstance(data["functions"], list):
            raise ValueError("it has other fields")
        limit, prefix = data["register_limit"], data["prefix"]
        if type(prefix) is not int or prefix < 0 or (limit is not None and (type(limit) is not int or limit < 1)):
            raise ValueError(f"register_limit is {limit!r}, prefix is {prefix!r}")
        if data["suffix"] not in ("", "a"):
            raise ValueError(f"suffix is {data['suffix']!r}")
        return cls(tuple(map(variant_from_fields, data["functions"])), data["suffix"], limit, prefix)


def with_function(planned: PlannedVariant) -> PlannedVariant:
    """A needed variant with the device function of its provider. Only functions of ``own`` have a configuration."""
    variant, config, symbol = planned.variant, planned.tile_config, planned.symbol
    if variant is None or planned.provider == "scalar":
        return replace(planned, device_function=None)
    unit = unit_of(variant, config) if planned.in_source else ""
    accumulators: LoopAccumulators | Rejected
    if isinstance(variant, SolverVariant):
        accumulators = Rejected("solver_function")
    elif isinstance(config, TileConfig):
        accumulators = register_accumulators(variant, symbol, config)
    else:
        accumulators = Rejected("foreign_function", (planned.provider,))
    return replace(planned, device_function=DeviceFunction(symbol, accumulators, unit))


def choose_built(plan: ModulePlan, artifacts: Iterable[Artifact]) -> Choose:
    """Chooses what was built for a plan. A function that was not built takes the scalar path."""
    built = {artifact.variant: artifact for artifact in artifacts}
    planned_as = {(planned.variant, planned.role, planned.no_gradient): planned for planned in plan.variants}

    def choose(planned: PlannedVariant) -> PlannedVariant:
        before = planned_as[planned.variant, planned.role, planned.no_gradient]
        artifact = built.get(planned.variant) if planned.variant is not None else None
        if artifact is not None and is_as_planned(before, artifact):
            return before
        if artifact is None or not artifact.symbol:
            reason = f"{planned.reason}; on Warp's scalar path, because nothing was built"
            return replace(planned, provider="scalar", reason=reason)
        where = "in the module's source" if artifact.in_source else f"built by {artifact.provider}"
        found = replace(
            planned,
            reason=f"{planned.reason}; {where} in place of the function that was planned",
            provider=artifact.provider,
            symbol=artifact.symbol,
            key=artifact.key,
            tile_config=artifact.tile_config,
            choice=before.choice,
            in_source=artifact.in_source,
        )
        return with_function(found)

    return choose


def is_as_planned(planned: PlannedVariant, artifact: Artifact) -> bool:
    """True if a function is the planned one. A fallback can have the same name, and so the same source."""
    if planned.provider == "scalar" or not artifact.symbol:
        return planned.provider == "scalar" and not artifact.symbol
    return (artifact.symbol, artifact.key, artifact.in_source) == (planned.symbol, planned.key, planned.in_source)


def payloads_of(artifacts: Sequence[Artifact]) -> list[bytes]:
    """The LTO-IR of each function once, sorted by the functions' names."""
    return list({a.symbol: a.payload for a in sorted(artifacts, key=lambda a: a.symbol) if a.payload}.values())
