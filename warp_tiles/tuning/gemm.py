"""Tunes the GEMM variants of ``wp.tile_matmul``: their provider and tile configuration.

Builds of modules look the records up (:mod:`warp_tiles.tuning.gemm_records`), so a script needs no change.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from warp_tiles.errors import ToolchainError, UnsupportedVariant
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.settings import Settings, current
from warp_tiles.tuning.distribute import Report, distribute
from warp_tiles.tuning.environment import environment_of
from warp_tiles.tuning.gemm_key import key_of, source_of
from warp_tiles.tuning.gemm_space import LIMIT, candidates
from warp_tiles.tuning.key import Environment
from warp_tiles.tuning.open_store import open_store
from warp_tiles.tuning.record import Config, Record, Timing, identity, settled
from warp_tiles.tuning.store import RecordStore
from warp_tiles.util.warn import warn

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine
    from warp_tiles.tuning.gemm_build import TuningContext

log = logging.getLogger("warp_tiles")


class Measurer(Protocol):
    """Measures candidates; see :class:`warp_tiles.tuning.gemm_device.GpuMeasurer`."""

    @property
    def name(self) -> str:
        """The device of the measurements."""

    def measure(
        self,
        variant: GemmProblem,
        configs: Sequence[Config],
        *,
        deadline: float = math.inf,
        on_timings: Callable[[Sequence[Timing]], None],
    ) -> None:
        """Measure candidates against each other, and call ``on_timings`` with the timings of each batch.

        Raises:
            ToolchainError: The device cannot be used, or was lost.
        """


class Progress(Protocol):
    """Called after each batch of candidates with the variant, its record so far and the device."""

    def __call__(self, variant: GemmProblem, record: Record, device: str) -> None: ...


def silent(variant: GemmProblem, record: Record, device: str) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class TunedVariant:
    """The result of tuning a variant.

    Attributes:
        variant: The variant.
        record: All timings, those of earlier searches included.
        winner: The fastest candidate; None if none was measured.
        measured: Number of candidates that were measured now.
        device: The GPU that measured, the last one if others failed; empty if nothing was measured.
        error: The failure of the GPUs that left the variant unfinished; empty if there was none.
    """

    variant: GemmProblem
    record: Record
    winner: Timing | None
    measured: int
    device: str = ""
    error: str = ""


@dataclass
class _Measured:
    """The candidates of a variant that were measured so far, and their GPU."""

    identities: set[str] = field(default_factory=set)
    device: str = ""


@dataclass(frozen=True)
class Tuner:
    """Measures the missing candidates of GEMM variants, and stores their timings.

    Attributes:
        store: The records.
        environment: The GPU of the measurements.
        measurer: Measures on that GPU.
        source: See :func:`warp_tiles.tuning.gemm_key.source_of`.
        arch: Architecture to compile for, e.g. ``90``.
        limit: Largest number of tile configurations of ``mma`` for each variant.
        reuse_stale: True if timings of another driver or Warp patch release count.
        helpers: Measure on further GPUs like it. Each variant is measured on one GPU, so that its candidates run under
            one clock.
    """

    store: RecordStore
    environment: Environment
    measurer: Measurer
    source: str
    arch: int
    limit: int = LIMIT
    reuse_stale: bool = True
    helpers: tuple[Measurer, ...] = ()

    def record(self, variant: GemmProblem) -> Record:
        """The record of a variant; empty if there is none."""
        key = key_of(variant, self.source, self.environment)
        return self.store.load(key) or Record(key)

    def missing(self, variant: GemmProblem, record: Record) -> list[Config]:
        """Candidates without a usable timing; those that were never measured come first."""
        known = {
            timing.identity
            for timing in record.timings
            if not timing.unfinished and (self.reuse_stale or dict(timing.soft or {}) == self.environment.soft())
        }
        found = {identity(config): config for config in candidates(variant, self.limit)}
        measured = {timing.identity for timing in record.timings}
        missing = [name for name in found if name not in known]
        return [found[name] for name in sorted(missing, key=measured.__contains__)]

    def tune(self, variant: GemmProblem, deadline: float = math.inf, progress: Progress = silent) -> TunedVariant:
        """Measure the candidates without a usable timing. Each batch is stored as soon as it is measured.

        Args:
            variant: The variant.
            deadline: When to stop, by ``time.monotonic()``.
            progress: Called after each batch.

        Raises:
            UnsupportedVariant: Neither provider serves the variant.
            ToolchainError: Nothing can be built or measured here.
        """
        found = _Measured()
        self._measure(self.measurer, variant, deadline, progress, found)
        return self._tuned(variant, found)

    def _measure(
        self, measurer: Measurer, variant: GemmProblem, deadline: float, progress: Progress, found: _Measured
    ) -> None:
        key = key_of(variant, self.source, self.environment)
        wait_s = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        with self.store.single_flight(key, wait_s) as may_search:
            record = self.record(variant)
            missing = self.missing(variant, record)
            if not (may_search and missing and time.monotonic() < deadline):
                return
            missing_names = {identity(config) for config in missing}
            best = record.winner()  # measured again, so that all candidates run under one clock

            def store_timings(timings: Sequence[Timing]) -> None:
                soft = self.environment.soft()
                final = settled([replace(timing, soft=soft) for timing in timings], record.timings)
                known = self.store.merge(key, final)
                found.identities.update(timing.identity for timing in timings if timing.identity in missing_names)
                found.device = measurer.name
                progress(variant, known, measurer.name)

            configs = [*([best.config] if best and best.identity not in missing_names else []), *missing]
            measurer.measure(variant, configs, deadline=deadline, on_timings=store_timings)

    def _tuned(self, variant: GemmProblem, found: _Measured, error: str = "") -> TunedVariant:
        record = self.record(variant)
        return TunedVariant(variant, record, record.winner(), len(found.identities), found.device, error)

    def tune_all(
        self, variants: Iterable[GemmProblem], budget_s: float = 0.0, progress: Progress = silent
    ) -> list[TunedVariant]:
        """Tune variants, each on one GPU, as many at once as there are GPUs. Time that a variant leaves goes to others.

        If one of several GPUs fails, there is a warning and it gets no more work. Another GPU continues its variant.

        Args:
            variants: The variants; those that neither provider serves are left out.
            budget_s: Seconds for all of them; 0 for no limit.
            progress: Called after each batch, in the calling thread.

        Raises:
            ToolchainError: Nothing can be built here, or measured on the only GPU.
        """
        wanted = [variant for variant in dict.fromkeys(variants) if self._is_served(variant)]
        measured = {variant: _Measured() for variant in wanted}

        def work(measurer: Measurer, variant: GemmProblem, deadline: float, report: Report) -> TunedVariant:
            def report_progress(variant: GemmProblem, record: Record, device: str) -> None:
                report(partial(progress, variant, record, device))

            self._measure(measurer, variant, deadline, report_progress, measured[variant])
            return self._tuned(variant, measured[variant])

        end = time.monotonic() + budget_s if budget_s else math.inf
        results = distribute(wanted, [self.measurer, *self.helpers], work, end=end, lost=_warn_of_lost_gpu)
        return [
            self._tuned(variant, measured[variant], result.message) if isinstance(result, ToolchainError) else result
            for variant, result in zip(wanted, results)
        ]

    def _is_served(self, variant: GemmProblem) -> bool:
        try:
            return bool(candidates(variant, 1))
        except UnsupportedVariant as error:
            log.info("%s is not tuned: %s", variant.describe(), error.message)
            return False


def _warn_of_lost_gpu(measurer: Measurer, error: ToolchainError) -> None:
    warn(f"{measurer.name} is no longer used for tuning: {error.message}")


def tune_variant(
    engine: Engine,
    variant: GemmProblem,
    store: RecordStore,
    environment: Environment,
    *,
    measurer: Measurer | None = None,
    budget_s: float = 0.0,
) -> Record:
    """Measure the candidates of one variant that have no usable timing, and store the timings.

    Args:
        engine: Builds the candidates.
        variant: The variant.
        store: Receives the timings.
        environment: The GPU of the measurements.
        measurer: Measures candidates; None measures on Warp's default GPU.
        budget_s: Time limit in seconds; 0 for no limit.

    Raises:
        UnsupportedVariant: Neither provider serves the variant.
        ToolchainError: There is no GPU or no compiler.
    """
    context = engine.build_context(current())
    measurer = measurer or _measurer(context, present_device())
    tuner = Tuner(store, environment, measurer, source_of(context.store), variant.arch)
    found = tuner.tune(variant, time.monotonic() + budget_s if budget_s else math.inf)
    engine.records_changed()
    return found.record


def tune_missing(engine: Engine, variants: Sequence[GemmProblem], now: Settings) -> None:
    """Tune the variants that have no record for this machine's GPU, as the policy ``max`` does before a build.

    Nothing happens without a GPU, or for another architecture. A missing toolchain causes a warning, and the build
    continues with the known records.
    """
    device = _device()
    matching = [variant for variant in variants if device is not None and variant.arch == compile_arch(device)]
    if not matching:
        return
    try:
        tuned = default_tuner(engine, now).tune_all(matching, now.tune_budget_s)
    except ToolchainError as error:
        warn(f"{error.message}; building with the known records")
        tuned = []
    if any(item.measured for item in tuned):
        engine.records_changed()


def default_tuner(engine: Engine, now: Settings, devices: Sequence[Any] = ()) -> Tuner:
    """Returns the tuner of a GPU.

    Args:
        engine: Builds candidates.
        now: The settings.
        devices: Warp's devices: the GPU, then others like it that share the work. Empty for Warp's default GPU alone.

    Raises:
        ToolchainError: There is no GPU or no compiler.
    """
    device, *others = devices or [present_device()]
    context = engine.build_context(now)
    return Tuner(
        open_store(now),
        environment_of(device),
        _measurer(context, device),
        source_of(context.store),
        compile_arch(device),
        reuse_stale=now.record_driver_mismatch == "reuse",
        helpers=tuple(_measurer(context, other) for other in others),
    )


def present_device() -> Any:
    """Warp's default CUDA device.

    Raises:
        ToolchainError: There is none.
    """
    import warp as wp

    device = _device()
    if device is None:
        names = ", ".join(f"{device.alias} ({device.name})" for device in wp.get_devices())
        raise ToolchainError(
            f"tuning GEMM variants needs an NVIDIA GPU, and Warp found none: {names}",
            remedy="run it on the machine whose GPU is to be tuned, and copy its records with `warp-tiles tune export`",
        )
    return device


def _device() -> Any:
    import warp as wp

    wp.init()
    if wp.get_device().is_cuda:
        return wp.get_device()
    devices = wp.get_cuda_devices()
    return devices[0] if devices else None


def compile_arch(device: Any) -> int:
    """The architecture that Warp compiles for on a GPU: its own, or the newest that Warp's compiler knows."""
    return int(device.get_cuda_compile_arch())


def _measurer(context: TuningContext, device: Any) -> Measurer:
    from warp_tiles.tuning.gemm_device import GpuMeasurer

    return GpuMeasurer(context, device)
