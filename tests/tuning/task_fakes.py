"""Questions of loops and functions, and a machine that measures their configurations by a formula."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import warp as wp

from warp_tiles.gemm.main_loop import LoopProblem
from warp_tiles.gemm.pipeline import LoopMemory
from warp_tiles.gemm.problem import DType, GemmProblem, Operand
from warp_tiles.tuning.measure import Candidate, SearchDevice
from warp_tiles.tuning.record import Config, Environment, Timing, identity
from warp_tiles.tuning.tasks import TuningTask
from warp_tiles.util.version import __version__

H200 = Environment("NVIDIA H200", 90, 132, wp.__version__, "13.0", __version__)


def problem(m: int, n: int, k: int, threads: int, dtype: DType = "float16", total: DType = "float32") -> GemmProblem:
    """A dense product whose matrices are all row-major."""
    a, b = Operand(dtype, "row_major", k, 16), Operand(dtype, "row_major", n, 16)
    return GemmProblem(m, n, k, a, b, Operand(total, "row_major", n, 16), "default", threads, 90)


def loop(product: GemmProblem | None = None, **fields: Any) -> LoopProblem:
    """The task of a loop whose C is idle, in a kernel without other tiles."""
    found = product or problem(128, 128, 64, 256)
    size = {"float16": 2, "float32": 4, "float64": 8}
    stage = (found.m + found.n) * found.k * size[found.a.dtype]
    idle = stage + found.m * found.n * size[found.c.dtype]
    return LoopProblem(((found,),), (0,), ("wgmma", "mma"), LoopMemory(stage, idle, idle), **fields)


def timing(config: Config, median_us: float, **fields: Any) -> Timing:
    """A finished timing with a narrow interval."""
    given = {"low_us": median_us - 0.01, "high_us": median_us + 0.01, "samples": 50, "soft": H200.soft()}
    return Timing(config, "ok", median_us, **{**given, **fields})


@dataclass(frozen=True)
class Built(Candidate):
    config: Config
    shared_bytes: int = 1024


@dataclass
class Machine:
    """A GPU whose times are given; 100 us for each configuration that is not named.

    Attributes:
        times_us: The times of configurations, by their identities.
        broken_by: The configuration after which the GPU does not work any more.
        built: The configurations that were built.
    """

    times_us: Mapping[str, float] = field(default_factory=dict)
    broken_by: str = ""
    built: list[str] = field(default_factory=list)
    sampled: list[str] = field(default_factory=list)
    is_broken: bool = False

    def build(self, config: Config) -> Built:
        self.built.append(identity(config))
        return Built(config)

    def sample_us(self, candidate: Any, runs: int) -> list[float]:
        name = identity(candidate.config)
        self.sampled.append(name)
        self.is_broken = self.is_broken or name == self.broken_by
        if self.is_broken:
            raise RuntimeError("an illegal memory access")
        return [self.times_us.get(name, 100.0) * (1 + 1e-4 * (run % 3)) for run in range(runs)]

    @contextmanager
    def devices(self, task: TuningTask, configs: Sequence[Config]) -> Iterator[list[SearchDevice]]:
        """See :attr:`warp_tiles.tuning.in_kernels.Tuner.devices`."""
        yield [SearchDevice(self.build, self, "cuda:7", lambda: not self.is_broken)]


def task(task: TuningTask) -> TuningTask:
    """A task with a launch of a kernel by name alone."""
    kernel = SimpleNamespace(key="gemm", hash=b"", module=SimpleNamespace(hashers={}, get_module_hash=bytes))
    return replace(task, launch=SimpleNamespace(kernel=kernel, block_dim=128))
