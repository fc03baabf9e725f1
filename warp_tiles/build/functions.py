"""The device functions of one module: as planned and as built, and what they need of the module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from warp_tiles.build.records import Artifact, ModuleRecord
from warp_tiles.codegen.answers import aligned
from warp_tiles.codegen.module import DeviceFunction, Functions, GeneratedModule
from warp_tiles.gemm.hardware import has_wgmma
from warp_tiles.gemm.problem import Role
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.plan.planning import STAGES, ModulePlan, PlannedVariant
from warp_tiles.providers.mma import register_accumulators, unit_of
from warp_tiles.solver.variant import Config, SolverVariant, Variant, variant_from_fields


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


def _device_function(
    variant: Variant, symbol: str, provider: str, config: Config | None, *, in_source: bool
) -> DeviceFunction:
    """The device function of a variant. Only functions of ``mma`` have a configuration."""
    unit = unit_of(variant, config) if in_source else ""
    if isinstance(variant, SolverVariant):
        return DeviceFunction(symbol, "a solver function has no accumulators", unit)
    if not isinstance(config, TileConfig):
        reason = f"functions of {provider} keep no accumulators in registers: set the provider to 'auto'"
        return DeviceFunction(symbol, reason)
    return DeviceFunction(symbol, register_accumulators(variant, symbol, config), unit)


def planned_function(planned: PlannedVariant) -> DeviceFunction | None:
    """The function of a planned variant; None on the scalar path."""
    variant = planned.variant
    if variant is None or planned.provider == "scalar":
        return None
    symbol, provider = planned.symbol or variant.symbol, planned.provider
    return _device_function(variant, symbol, provider, planned.tile_config, in_source=planned.in_source)


def planned_functions(plan: ModulePlan) -> dict[Variant, DeviceFunction]:
    """The functions of a plan, by variant."""
    return {v.variant: found for v in plan.needed if v.variant is not None and (found := planned_function(v))}


def built_functions(built: Sequence[Artifact]) -> dict[Variant, DeviceFunction]:
    """The functions that were built, by variant."""
    return {
        a.variant: _device_function(a.variant, a.symbol, a.provider, a.tile_config, in_source=a.in_source)
        for a in built
        if a.symbol
    }


def decided(bare: ModulePlan, generated: GeneratedModule, functions: Functions) -> ModulePlan:
    """The plan with the treatment of each loop. Products that loops compute from stages need no function.

    Args:
        bare: The plan without providers.
        generated: The module.
        functions: The functions that may be called; only those that are needed are asked for.
    """
    decision = generated.decide(functions, suffix=may_have_suffix(bare))
    sites = [site for site in generated.session.sites if site.index in decision.calls]
    called = {(site.variants[role], role) for site in sites for role in decision.calls[site.index]}
    staged = {(variant, role) for site in sites for role, variant in site.variants.items()} - called
    variants = tuple(
        replace(
            planned,
            provider=STAGES,
            reason=f"{planned.reason}; computed by its loop from stages, so no function is built",
        )
        if planned.needed and (planned.variant, planned.role) in staged
        else planned
        for planned in bare.variants
    )
    loops = generated.loops(decision)
    return replace(bare, variants=variants, loops=loops, whole_products=generated.whole_products())


def reserved_bytes(plan: ModulePlan, generated: GeneratedModule) -> dict[str, tuple[int, int]]:
    """Bytes of shared memory that functions of a module need beyond their tiles, by the functions' labels.

    The second number is that of the reverse pass, beyond the tiles and their gradients. Both suffice also if the module
    is compiled without the suffix after all.
    """
    functions = planned_functions(plan)
    reserved: dict[str, tuple[int, int]] = {}
    for suffix in {may_have_suffix(plan), False}:
        for loop in generated.decide(functions, suffix=suffix).loops:
            needed = loop.extra_bytes, loop.reverse.answer.extra_bytes if loop.reverse else 0
            if any(needed):
                forward, backward = reserved.get(loop.function, (0, 0))
                reserved[loop.function] = max(forward, needed[0]), max(backward, needed[1])
    for site in generated.session.sites:
        adjoint = site.variants.get(Role.ADJOINT) if site.index in generated.called else None
        if isinstance(adjoint, SolverVariant) and adjoint in functions:
            forward, backward = reserved.get(site.function, (0, 0))
            reserved[site.function] = forward, max(backward, aligned(adjoint.scratch_bytes))
    return reserved


def may_have_suffix(plan: ModulePlan) -> bool:
    """True if the module may be compiled for ``sm_90a``. Warp's own link has the target that the user sets."""
    return plan.arch is not None and has_wgmma(plan.arch) and not plan.linker_reason


def is_as_planned(record: ModuleRecord) -> bool:
    """True if each function is the planned one. A fallback can have the same name, and so the same source."""
    planned = {(v.symbol, v.key) for v in record.plan.needed if v.provider != "scalar"}
    return {(artifact.symbol, artifact.key) for artifact in record.artifacts if artifact.symbol} == planned


def payloads_of(artifacts: Sequence[Artifact]) -> list[bytes]:
    """The LTO-IR of each function once, sorted by the functions' names."""
    return list({a.symbol: a.payload for a in sorted(artifacts, key=lambda a: a.symbol) if a.payload}.values())
