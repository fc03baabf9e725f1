"""What is tuned in kernels: tasks with their legal configurations, and the measurements that records have of them.

The problem of a task is a loop, whose pipeline is chosen, or a product on shared tiles, whose function is chosen. It
says nothing about the kernel and its launch, so its record counts for each kernel with an equal problem. Builds get a
snapshot of records, so that choices are stable within a process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from warp_tiles.compile import sources
from warp_tiles.errors import ToolchainError, UnsupportedProblem
from warp_tiles.gemm.choose import choose, ranked
from warp_tiles.gemm.main_loop import LoopPlan, LoopProblem, MeasuredPipeline
from warp_tiles.gemm.pipeline import AUTO, LEAST_STAGES, PipelineOverrides
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.gemm.tile_config import TileConfig, fits, steps_over_k, view_of
from warp_tiles.providers.base import TunedChoice
from warp_tiles.providers.cublasdx import CublasdxProvider, require_served
from warp_tiles.providers.own import OwnProvider
from warp_tiles.tuning.record import (
    DEFAULTS,
    Config,
    Environment,
    Record,
    Scalar,
    Timing,
    TuningKey,
    Values,
    environment_of,
    problem_digest,
    shipped_records,
)
from warp_tiles.tuning.store import RecordStore
from warp_tiles.util.version import __version__
from warp_tiles.util.warn import warn_once

if TYPE_CHECKING:
    from warp_tiles.compile.toolchain import ToolchainFacts
    from warp_tiles.settings import Settings

T = TypeVar("T")
LOOP, FUNCTION = "loop", "function"  # subjects of records
FUNCTIONS = 24  # configurations of a function, at most
_MOST_STAGES = 6  # of a candidate; only launches with few blocks gain from more
_SEEDS = 3  # configurations that are tried with other values of two fields


@dataclass(frozen=True)
class TuningTask:
    """A problem with the configurations that are legal for it, and a launch on which they are measured.

    Attributes:
        values: Everything that decides, by name.
        configs: The configurations, as a record holds them. The first one is the default: what the heuristics choose.
        adjoint: True for a function that only adjoint kernels call.
        launch: A :class:`NotedLaunch`; None if no kernel is launched.
        devices: Enters a block with the devices that measure configurations; None for copies of the launch's kernel.
    """

    subject: str
    values: Values
    title: str = field(compare=False)
    configs: tuple[Config, ...] = field(compare=False)
    adjoint: bool = field(default=False, compare=False)
    launch: Any = field(default=None, compare=False)
    devices: Callable[[Sequence[Config]], AbstractContextManager[Any]] | None = field(default=None, compare=False)

    @cached_property
    def digest(self) -> str:
        return problem_digest(self.subject, self.values)

    def key(self, source: str, environment: Environment) -> TuningKey:
        """The key of its record on a machine. ``source`` is the digest of the sources of all configurations."""
        return TuningKey(self.subject, self.values, source, environment)


def values_of(problem: LoopProblem | GemmProblem) -> Values:
    """The values of the problem of a loop or a function. A field in another has both names: ``products.0.m``."""
    return tuple(sorted(_flat(problem.to_json())))


def _flat(data: Any, prefix: str = "") -> Iterator[tuple[str, Scalar]]:
    named = data.items() if isinstance(data, Mapping) else enumerate(data)
    for name, value in named:
        if isinstance(value, (Mapping, list, tuple)):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


# ---- loops


def loop_task(problem: LoopProblem) -> TuningTask:
    """The task of a loop, with every pipeline that is possible there. Those that make equal code occur once."""
    default = problem.plan(AUTO)
    distinct: dict[LoopPlan | Rejected | str, PipelineOverrides] = {
        default if isinstance(default, Rejected) else default.code: AUTO
    }
    for overrides in _pipelines():
        plan = problem.plan(overrides)
        if isinstance(plan, LoopPlan):
            distinct.setdefault(plan.code, overrides)
    if isinstance(default, LoopPlan):
        distinct["double buffers"] = PipelineOverrides("double_buffered")
    configs = tuple({"pipeline": overrides.text} for overrides in distinct.values())
    return TuningTask(LOOP, values_of(problem), problem.describe(), configs)


def _pipelines() -> Iterator[PipelineOverrides]:
    """All stages for the first grid of warps, then the other grids: of the fastest instructions, then of mma.sync."""
    families: tuple[Literal["mma"] | None, ...] = (None, "mma")
    for family in families:
        for stages, in_flight in product(range(LEAST_STAGES, _MOST_STAGES + 1), range(2)):
            yield PipelineOverrides(family, stages, in_flight)
        for warps_m in (1, 2, 4, 8, 16):
            yield PipelineOverrides(family, warps_m=warps_m)


def pipeline_of(config: Config) -> PipelineOverrides:
    """The valid overrides of a record, else ValueError is raised."""
    text = config.get("pipeline")
    if not isinstance(text, str):
        raise ValueError(f"{dict(config)} is no pipeline")
    return PipelineOverrides.parse(text)


# ---- functions

#: The providers whose functions a search measures.
MEASURED = ("own", "cublasdx")


def function_task(problem: GemmProblem, adjoint: bool = False) -> TuningTask | None:
    """The task of a function on shared tiles; None if there is nothing to choose."""
    rivals = [function_config("own", config) for config in tile_configs(problem)[1:]]
    with contextlib.suppress(UnsupportedProblem):
        choose(problem)  # otherwise cublasdx is the default
        require_served("cublasdx", problem)
        rivals.append(function_config("cublasdx"))
    configs = (DEFAULTS[FUNCTION], *rivals)
    return TuningTask(FUNCTION, values_of(problem), problem.describe(), configs, adjoint) if rivals else None


def function_config(provider: str, tile_config: TileConfig | None = None) -> dict[str, Any]:
    return {"provider": provider} | ({"tile_config": tile_config.to_json()} if tile_config else {})


def tile_config_of(config: Config) -> TileConfig | None:
    """The valid tile configuration of a record, else ValueError is raised; None if its provider has none."""
    return TileConfig.from_json(config.get("tile_config")) if config.get("provider") == "own" else None


def tile_configs(problem: GemmProblem) -> tuple[TileConfig, ...]:
    """Returns tile configurations that fit: the chooser's pick first, then its next ones by estimate.

    The estimate does not model how ``k_unroll`` and ``c_first`` interact with the compiler's scheduling. So the best
    ones are there with other values of both as well.
    """
    try:
        every = ranked(problem)
    except UnsupportedProblem:
        return ()
    near = [replace(config, c_first=not config.c_first) for config in every[:_SEEDS]]
    for config in every[:_SEEDS]:
        steps = steps_over_k(view_of(problem, config), config)
        unrolls = (2 * config.k_unroll, config.k_unroll // 2, 1)
        near += [replace(config, k_unroll=unroll) for unroll in unrolls if 1 <= unroll <= steps]
    near = [config for config in near if fits(problem, config)]
    return tuple(dict.fromkeys([*every[: FUNCTIONS // 2], *near, *every]))[:FUNCTIONS]


# ---- measured configurations


@dataclass(frozen=True)
class Measurements:
    """The measurements for the problems of a module. See :class:`warp_tiles.providers.base.Tuned`.

    Attributes:
        records, shipped: The user's records by the digests of their problems, and those of the package for the others.
        soft: Soft fields of the present environment; None if they are unknown.
        forced: Configurations that count before the records, by the digests of the problems, as a search forces them.
        asked: Receives the problems of loops, by their digests.
    """

    records: Mapping[str, Record]
    soft: Mapping[str, Scalar] | None = None
    reuse_stale: bool = True
    forced: Mapping[str, Config] = field(default_factory=dict)
    asked: dict[str, LoopProblem] = field(default_factory=dict, compare=False)
    shipped: Mapping[str, Record] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the configurations, for Warp's module hash; empty without any."""
        digest, records = hashlib.sha256(), {**self.shipped, **self.records}
        for name, record in sorted(records.items()):
            for providers in (MEASURED, ("own",)):
                chosen = self._chosen(record, providers)
                digest.update(f"{name} {chosen.identity if chosen else ''}\n".encode())
        digest.update(json.dumps(self.forced, sort_keys=True).encode())
        return digest.hexdigest() if records or self.forced else ""

    def pipeline(self, problem: LoopProblem) -> MeasuredPipeline | None:
        """The fastest measured pipeline of a loop; None without a usable measurement, or if the default won."""
        digest = problem_digest(LOOP, values_of(problem))
        self.asked[digest] = problem

        def parsed(config: Config, reason: str) -> MeasuredPipeline:
            return MeasuredPipeline(pipeline_of(config), reason)

        return self._measured(digest, problem, MEASURED, parsed)

    def best(self, problem: GemmProblem, providers: Sequence[str]) -> TunedChoice | None:
        """The fastest measured function of these providers; None without a usable one, or if the default won."""

        def parsed(config: Config, reason: str) -> TunedChoice:
            tile_config = tile_config_of(config)
            if tile_config is not None and not fits(problem, tile_config):
                raise ValueError(f"its tile configuration does not fit: {tile_config}")
            return TunedChoice(str(config["provider"]), tile_config, reason)

        return self._measured(problem_digest(FUNCTION, values_of(problem)), problem, providers, parsed)

    def _measured(
        self,
        digest: str,
        problem: LoopProblem | GemmProblem,
        providers: Sequence[str],
        parsed: Callable[[Config, str], T],
    ) -> T | None:
        """What was measured, if it fits. A record that does not causes one warning; a forced one is an error."""
        if (choice := self._choice(digest, providers)) is None:
            return None
        try:
            return parsed(*choice)
        except ValueError as error:
            if digest in self.forced:
                raise
            what, remedy = "the shipped tuning record", "warp-tiles tune SCRIPT, whose records count before it"
            if digest in self.records:
                name = self.records[digest].key.digest[:12]
                what, remedy = f"the tuning record {name}", f"warp-tiles tune clear {name}, then tune again"
            warn_once(f"{what} of {problem.describe()} is ignored: {error}. Remedy: {remedy}")
            return None

    def _choice(self, digest: str, providers: Sequence[str]) -> tuple[Config, str] | None:
        """The configuration that counts in place of the default, and the reason; None if the default counts."""
        if (forced := self.forced.get(digest)) is not None:
            return (forced, "a search forces it") if forced.get("provider") in (None, *providers) else None
        record = self.records.get(digest, self.shipped.get(digest))
        if record is None or (chosen := self._chosen(record, providers)) is None:
            return None
        origin = "tuned" if digest in self.records else "shipped record"
        return chosen.config, f"{origin}: {self._reason(record, chosen)}"

    def _chosen(self, record: Record, providers: Sequence[str]) -> Timing | None:
        """The timing in place of the default. A provider that no search measures must not choose a slow build."""
        allowed = {"auto", *MEASURED} & {"auto", *providers}
        usable = tuple(
            timing
            for timing in record.timings
            if timing.config.get("provider", "auto") in allowed
            and (self.reuse_stale or self.soft is None or timing.soft == self.soft)
        )
        record = replace(record, timings=usable)
        winner = record.winner()
        return None if winner is record.default else winner

    def _reason(self, record: Record, chosen: Timing) -> str:
        default = record.default
        text = f"{chosen.median_us:.1f} us"
        if default is not None and default.status != "failed":
            text += f" against {default.median_us:.1f} us of the default"
        elif default is not None:
            text += ", and the default failed"
        known = self.soft or {}
        differing = {name: value for name, value in chosen.soft.items() if value != known.get(name, value)}
        if differing:
            text += f", measured with {', '.join(f'{name} {value}' for name, value in differing.items())}"
        return text


def source_of(facts: ToolchainFacts) -> str:
    """SHA-256 of what builds configurations: all device sources, their headers and the compiler, but not the choosers.

    Raises ToolchainError if there is no compiler.
    """
    parts = [f"modules={facts.digests.digest_folder(sources.kernels_folder(), '*.cuh')}"]  # loops have no function
    parts += [f"{name}={value}" for name, value in OwnProvider(facts).fingerprint().items()]
    try:
        parts += [f"{name}={value}" for name, value in CublasdxProvider(facts).fingerprint().items()]
    except ToolchainError:
        parts.append("no cublasdx")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def present_environments() -> tuple[Environment, ...]:
    """The environments of this machine's GPUs, each once."""
    import warp as wp

    wp.init()
    return tuple(dict.fromkeys(environment_of(device) for device in wp.get_cuda_devices()))


def snapshot(records: RecordStore, toolchain: ToolchainFacts, now: Settings) -> Measurements | None:
    """Returns the records that apply to this machine and these settings, and the configurations that a search forces.

    None if nothing applies, or if nothing can be built here.
    """
    present = present_environments()
    forced = json.loads(now.forced) if now.forced else {}
    applicable, shipped = _applicable(records, toolchain, now, present), _shipped(now.target_gpu, present)
    if not applicable and not shipped and not now.forced:
        return None
    soft = present[0].soft() if present else None
    return Measurements(applicable, soft, now.record_driver_mismatch == "reuse", forced, shipped=shipped)


def by_problem(records: Iterable[Record]) -> dict[str, Record]:
    kept: dict[str, Record] = {}
    for record in records:
        kept.setdefault(record.key.problem_digest, record)
    return kept


def _shipped(named: str, present: Sequence[Environment]) -> dict[str, Record]:
    """The records that the package ships for this machine's GPUs or a named one, by the digests of their problems."""
    gpus: list[tuple[Any, ...]] = [(gpu.device, (gpu.arch, gpu.multiprocessors)) for gpu in present]
    wanted = [(subject, *gpu) for subject in (LOOP, FUNCTION) for gpu in gpus or [(named,)]]
    return by_problem(record for gpu in wanted for record in shipped_records(*gpu))


def _applicable(
    records: RecordStore, toolchain: ToolchainFacts, now: Settings, present: Sequence[Environment]
) -> dict[str, Record]:
    """The records that apply, by the digests of their problems."""
    import warp as wp

    # of a GPU that is only named, architecture and size are open
    named = (Environment(now.target_gpu, None, 0, wp.__version__, "", __version__),) if now.target_gpu else ()
    unknown = () if present else ("arch", "multiprocessors")

    def hard(environment: Environment) -> dict[str, Scalar]:
        return {name: value for name, value in environment.hard().items() if name not in unknown}

    def rank(record: Record) -> tuple[int, int, str]:
        # if a GPU is only named, the record with the most multiprocessors counts
        environment = record.key.environment
        return wanted.index(hard(environment)), -environment.multiprocessors, record.key.digest

    wanted = [hard(environment) for environment in present or named]
    here = present[0] if present else None
    stored = [record for subject in (LOOP, FUNCTION) for record in records.united(subject, here)] if wanted else []
    stored = [
        record for record in stored if record.key.subject in (LOOP, FUNCTION) and hard(record.key.environment) in wanted
    ]
    if not stored:
        return {}
    try:
        source = source_of(toolchain)
    except ToolchainError:
        return {}
    return by_problem(sorted((record for record in stored if record.key.source == source), key=rank))
