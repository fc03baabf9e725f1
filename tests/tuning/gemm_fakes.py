"""Fake records of GEMM variants, and a measurer that needs no GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import warp as wp

from tests.bench import Bench
from warp_tiles import settings
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.heuristics.choose import choose
from warp_tiles.tuning.gemm import Tuner
from warp_tiles.tuning.gemm_key import key_of, source_of
from warp_tiles.tuning.gemm_space import config_of, tile_candidates
from warp_tiles.tuning.key import Environment
from warp_tiles.tuning.open_store import open_store
from warp_tiles.tuning.record import Config, Record, Timing
from warp_tiles.tuning.store import RecordStore
from warp_tiles.version import __version__

GPU = "NVIDIA H200"
H200 = Environment(GPU, 90, 132, wp.__version__, "12.9", __version__)


def timing(config: Config, median_us: float, **fields: Any) -> Timing:
    """A finished timing, whose interval overlaps with no other."""
    return Timing(config, "ok", median_us, median_us - 0.01, median_us + 0.01, 50, soft=H200.soft(), **fields)


def another_tile(variant: GemmProblem) -> TileConfig:
    """A configuration that the chooser does not pick."""
    return tile_candidates(variant)[1]


def store_of(bench: Bench) -> RecordStore:
    """The records that the bench's engine reads."""
    return open_store(settings.current())


def remember(
    bench: Bench, variant: GemmProblem, timings: Sequence[Timing], environment: Environment = H200, source: str = ""
) -> Record:
    """Store timings, and let the engine read them."""
    key = key_of(variant, source or source_of(bench.store), environment)
    record = store_of(bench).merge(key, timings)
    bench.engine.tuned.forget()
    return record


def tuned_to(variant: GemmProblem, config: TileConfig | None = None) -> list[Timing]:
    """Timings in which another tile than the chooser's pick wins."""
    usual = config_of("mma", choose(variant))
    return [timing(usual, 14.1), timing(config_of("mma", config or another_tile(variant)), 12.3)]


class Clock:
    """A clock that only its own :meth:`sleep` moves, so that other processes of the machine change no test."""

    def __init__(self) -> None:
        self._now_s = 1000.0

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds


class FakeMeasurer:
    """A measurer with given times.

    Args:
        time_us: Returns the time of a configuration; an error makes it a failure.
        batch: Number of candidates in a batch.
        batch_s: Time that a batch takes.
        name: Name of the GPU that it replaces.
    """

    def __init__(
        self, time_us: Callable[[Config], float], batch: int = 8, batch_s: float = 0.0, name: str = "cuda:0"
    ) -> None:
        self.time_us, self.batch, self.batch_s, self.name = time_us, batch, batch_s, name
        self.requests: list[tuple[GemmProblem, list[Config]]] = []
        self.stop_after: int | None = None  # number of batches before an error
        self.stops_with: Callable[[], BaseException] = KeyboardInterrupt
        self.clock: Any = time

    def measure(
        self,
        variant: GemmProblem,
        configs: Sequence[Config],
        *,
        deadline: float = math.inf,
        on_timings: Callable[[Sequence[Timing]], None],
    ) -> None:
        self.requests.append((variant, list(configs)))
        for first in range(0, len(configs), self.batch):
            if self.clock.monotonic() >= deadline:
                return
            if self.stop_after is not None:
                self.stop_after -= 1
                if self.stop_after < 0:
                    raise self.stops_with()
            self.clock.sleep(self.batch_s)
            on_timings([self._timing(config) for config in configs[first : first + self.batch]])

    def _timing(self, config: Config) -> Timing:
        try:
            return timing(config, self.time_us(config))
        except ValueError as error:
            return Timing(config, "failed", reason=str(error))


def tuner_of(bench: Bench, measurer: FakeMeasurer, limit: int = 12) -> Tuner:
    """A tuner for the bench's engine."""
    return Tuner(store_of(bench), H200, measurer, source_of(bench.store), 90, limit)
