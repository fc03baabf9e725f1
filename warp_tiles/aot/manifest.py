"""From the JSON of a plan to the functions that a build system has to build."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from warp_tiles.errors import BuildError, PlanError, SettingError, UnsupportedVariant
from warp_tiles.gemm.hardware import MIN_ARCH, TF32_MIN_ARCH
from warp_tiles.gemm.problem import GemmProblem, Role
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.heuristics.choose import check, choose
from warp_tiles.heuristics.solver import choose as choose_solver
from warp_tiles.heuristics.solver import reason_unsupported
from warp_tiles.plan.planning import PlannedVariant
from warp_tiles.providers.cublasdx import CublasdxProvider, promised
from warp_tiles.providers.mma import MmaProvider
from warp_tiles.solver.variant import Config, SolverConfig, SolverVariant, Variant
from warp_tiles.util.files import read_json

_PLAN_AGAIN = "create it with `warp-tiles plan SCRIPT --json` of this version of warp-tiles"
_PLAN_FIELDS = frozenset(PlannedVariant(None, Role.FORWARD, "", "", (), True, "").to_json())
_SOLVER_FIELDS = frozenset(("solver", "columns", "dtype", "in_place"))


@dataclass(frozen=True)
class Job:
    """One function to build.

    Attributes:
        provider: ``mma`` or ``cublasdx``.
        variant: Its variant, with the provider's promises about alignment.
        tile_config: Configuration of ``mma``; None with others.
    """

    provider: str
    variant: Variant
    tile_config: Config | None = None

    @property
    def name(self) -> str:
        """Name of its files and of its target."""
        return f"{self.variant.symbol}_{self.provider}"

    def to_json(self) -> dict[str, Any]:
        """The job as in the build system's files."""
        return {
            "provider": self.provider,
            "variant": self.variant.to_json(),
            "tile_config": self.tile_config.to_json() if self.tile_config else None,
        }

    @classmethod
    def from_json(cls, data: Any) -> Job:
        """Rebuild a job from :meth:`to_json`.

        Raises:
            ValueError: A field is missing or has an unknown value.
        """
        try:
            provider, variant, config = (data[name] for name in ("provider", "variant", "tile_config"))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a job, {error!r}: {data!r:.200}") from error
        found = _variant_from_json(variant)
        return cls(str(provider), found, _config_from_json(found, config))


def _variant_from_json(data: Any) -> Variant:
    is_solver = isinstance(data, dict) and "solver" in data
    return SolverVariant.from_json(data) if is_solver else GemmProblem.from_json(data)


def _config_from_json(variant: Variant, data: Any) -> Config | None:
    """The configuration of a variant; None if there is none."""
    if data is None:
        return None
    return SolverConfig.from_json(data) if isinstance(variant, SolverVariant) else TileConfig.from_json(data)


@dataclass(frozen=True)
class Selection:
    """The jobs of a manifest.

    Attributes:
        jobs: Each job once, in the order of first mention.
        notes: Notes for the user, e.g. about omitted rows.
    """

    jobs: tuple[Job, ...]
    notes: tuple[str, ...] = ()


def parse_archs(text: str) -> tuple[int, ...]:
    """Compute capabilities from a list such as ``80;90``. An empty list stands for those of the plan.

    Raises:
        SettingError: An entry is not a number, or is below the oldest supported one.
    """
    archs: dict[int, None] = {}
    for entry in text.replace(";", " ").replace(",", " ").split():
        if not (entry.isascii() and entry.isdigit() and len(entry) < 6):
            raise SettingError(
                f"WARP_TILES_ARCHS is {text!r}, but {entry!r} is not a compute capability",
                remedy='give numbers, e.g. -DWARP_TILES_ARCHS="80;90" for sm_80 and sm_90',
            )
        if int(entry) < MIN_ARCH:
            raise SettingError(
                f"WARP_TILES_ARCHS is {text!r}, but sm_{entry} is not supported",
                remedy=f"give {MIN_ARCH} or newer; older GPUs take Warp's scalar path, which needs no bundle",
            )
        archs[int(entry)] = None
    return tuple(archs)


def read_manifest(path: Path) -> Any:
    """The JSON of a manifest.

    Raises:
        PlanError: The file cannot be read or is not JSON.
    """
    try:
        return read_json(path)
    except OSError as error:
        raise PlanError(
            f"the manifest {path} cannot be read: {error.strerror or error}",
            remedy=f"give -DWARP_TILES_MANIFEST the path of a plan; {_PLAN_AGAIN}",
        ) from error
    except ValueError as error:
        raise PlanError(f"the manifest {path} is not JSON: {error}", remedy=_PLAN_AGAIN) from error


def select(manifest: Any, archs: Sequence[int] = ()) -> Selection:
    """The functions of a manifest that NVRTC builds.

    Args:
        manifest: The JSON of ``warp-tiles plan --json``.
        archs: Targets of every variant, in place of the plan's.

    Raises:
        PlanError: The manifest is malformed. The message names the place.
    """
    jobs: dict[str, Job] = {}
    notes: dict[str, None] = {}
    for where, data in _rows(manifest):
        variant = _variant_of(where, data)
        if variant is None:
            continue
        known = (MmaProvider.name, CublasdxProvider.name) if isinstance(variant, GemmProblem) else (MmaProvider.name,)
        if data["provider"] not in known:
            notes[
                f"{variant.describe()} is omitted: it was planned for the provider {data['provider']!r} "
                f"({data.get('reason', 'no reason given')})"
            ] = None
            continue
        for arch in archs or (variant.arch,):
            job = _job(where, data, variant, arch)
            if jobs.setdefault(job.name, job) != job:
                raise _malformed(f"{where} gives {job.variant.describe()} another tile_config than an earlier row")
            if _may_be_tf32(variant) and variant.arch < TF32_MIN_ARCH <= arch:
                notes[
                    f"the plan is for sm_{variant.arch}, which has no tf32: a product with tf32 precision is built "
                    f"in float32 for sm_{arch} and compiled again at run time; plan with --arch {arch}"
                ] = None
    return Selection(tuple(jobs.values()), tuple(notes))


def _may_be_tf32(variant: Variant) -> bool:
    """True for a product of float32 tiles, which may request tf32 on a newer target than the plan's."""
    return isinstance(variant, GemmProblem) and {variant.a.dtype, variant.b.dtype, variant.c.dtype} == {"float32"}


def _job(where: str, data: dict[str, Any], planned: Variant, arch: int) -> Job:
    """The job of a row for one target. On another target than the plan's, the configuration is chosen again."""
    if arch < MIN_ARCH:
        raise PlanError(
            f"{where} is for sm_{arch}, but functions are built only for sm_{MIN_ARCH} and newer",
            remedy="plan with --arch, or set WARP_TILES_ARCHS",
        )
    variant = replace(planned, arch=arch) if isinstance(planned, SolverVariant) else for_arch(planned, arch)
    if data["provider"] == CublasdxProvider.name and isinstance(variant, GemmProblem):
        return Job(CublasdxProvider.name, promised(variant))
    try:
        config = _config_from_json(variant, data.get("tile_config"))
        return Job(MmaProvider.name, variant, _checked(variant, config if variant == planned else None))
    except (ValueError, BuildError) as error:
        raise _malformed(f"{where}: {error}") from error


def _checked(variant: Variant, config: Config | None) -> Config:
    """The configuration of a variant for ``mma``, by default the chooser's.

    Raises:
        UnsupportedVariant: The templates do not serve the variant.
        SettingError: The configuration does not fit it.
    """
    if isinstance(variant, SolverVariant):
        if reason := reason_unsupported(variant):
            raise UnsupportedVariant(reason)
        return config or choose_solver(variant)
    found = config or choose(variant)
    assert isinstance(found, TileConfig)
    check(variant, found)
    return found


def for_arch(variant: GemmProblem, arch: int) -> GemmProblem:
    """The same product for another target, by the rules of :func:`warp_tiles.gemm.dispatch.products`."""
    return replace(variant, arch=arch, precision="default" if arch < TF32_MIN_ARCH else variant.precision)


def _rows(manifest: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    """Every variant of a manifest, and its place in it."""
    for number, module in enumerate(_list_in(manifest, "modules", "the manifest")):
        where = f"modules[{number}]"
        for index, data in enumerate(_list_in(module, "variants", where)):
            if not isinstance(data, dict):
                raise _malformed(f"{where}.variants[{index}] is not an object")
            yield f"{where}.variants[{index}]", data


def _list_in(data: Any, name: str, where: str) -> list[Any]:
    if not isinstance(data, dict) or not isinstance(data.get(name), list):
        raise _malformed(f"{where} is not an object with a list {name!r}")
    found: list[Any] = data[name]
    return found


def _malformed(what: str) -> PlanError:
    return PlanError(f"the manifest is malformed: {what}", remedy=_PLAN_AGAIN)


def _variant_of(where: str, data: dict[str, Any]) -> Variant | None:
    """The variant of a row, or None if it needs no build."""
    unknown = sorted(set(data) - _PLAN_FIELDS - (_SOLVER_FIELDS if "solver" in data else frozenset()))
    if unknown:
        raise _malformed(f"{where} has the unknown field {', '.join(map(repr, unknown))}")
    if not isinstance(data.get("needed"), bool) or not isinstance(data.get("provider"), str):
        raise _malformed(f"{where} has no boolean 'needed' or no text 'provider'")
    if not data["needed"] or (data.get("m", 0) is None and "solver" not in data):
        return None
    try:
        variant = _variant_from_json(data)
    except ValueError as error:
        raise _malformed(f"{where} is {error}") from error
    expected = variant
    if isinstance(variant, GemmProblem) and data["provider"] == CublasdxProvider.name:
        expected = promised(variant)
    if data.get("symbol", variant.symbol) not in (variant.symbol, expected.symbol):
        raise _malformed(f"{where} has the symbol {data['symbol']!r:.120}, but its sizes give {variant.symbol!r}")
    return variant
