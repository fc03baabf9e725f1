"""The worker's side of tuning on a cluster: its GPUs, and a batch of measurements on one of them."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

from warp_tiles import settings
from warp_tiles.build.context import BuildContext, Resources
from warp_tiles.build.installation import Facts, Installation
from warp_tiles.errors import ToolchainError, WarpTilesError, WorkerError
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.tuning.environment import environment_of
from warp_tiles.tuning.gemm import compile_arch
from warp_tiles.tuning.gemm_device import GpuMeasurer
from warp_tiles.tuning.key import Environment
from warp_tiles.tuning.record import Config, Timing

BATCH = 8  # new candidates of a task


@dataclass(frozen=True)
class ClusterGpu:
    """One GPU of a worker.

    Attributes:
        alias: Warp's name of it in its worker, e.g. ``cuda:0``.
        uuid: Identifies it among all workers, several of which may see it.
        environment: The machine of its measurements.
        arch: The architecture that Warp compiles for on it.
    """

    alias: str
    uuid: str
    environment: Environment
    arch: int


@dataclass(frozen=True)
class Batch:
    """Candidates of one variant that a worker measures against each other.

    Attributes:
        gpu: Warp's name of the GPU.
        variant: The variant.
        configs: The candidates.
        budget_s: Seconds for all of them; infinite for no limit.
        expected: The parts of the sender's installation that decide the timings.
    """

    gpu: str
    variant: GemmProblem
    configs: tuple[Config, ...]
    budget_s: float
    expected: Facts


@dataclass(frozen=True)
class Measured:
    """The answer of a worker.

    Attributes:
        found: The same parts of the worker's installation. If they differ, nothing was measured.
        timings: The timings.
        lost: The reason why the GPU cannot be used any more; empty if it can.
        failure: The error in place of timings.
    """

    found: Facts
    timings: tuple[Timing, ...] = ()
    lost: str = ""
    failure: WarpTilesError | None = None


def gpus_here() -> list[ClusterGpu]:
    """The GPUs that this worker sees."""
    import warp as wp

    wp.init()
    return [
        ClusterGpu(device.alias, str(device.uuid), environment_of(device), compile_arch(device))
        for device in wp.get_cuda_devices()
    ]


def measure_here(batch: Batch) -> Measured:
    """Build, check and time a batch on one of this worker's GPUs."""
    found: Facts = ()
    try:
        context = _context()
        found = Installation(context.store).facts([name for name, _ in batch.expected])
        if found != batch.expected:
            return Measured(found)
        timings: list[Timing] = []
        deadline = time.monotonic() + batch.budget_s if batch.budget_s != math.inf else math.inf
        try:
            _measurer(batch.gpu, context).measure(
                batch.variant, batch.configs, deadline=deadline, on_timings=timings.extend
            )
        except WorkerError:
            raise  # it says nothing about the GPU
        except ToolchainError as error:
            return Measured(found, tuple(timings), lost=error.message)
        return Measured(found, tuple(timings))
    except WarpTilesError as error:
        return Measured(found, failure=error)


_lock = threading.Lock()
_resources: list[Resources] = []
_measurers: dict[str, GpuMeasurer] = {}


def _context() -> BuildContext:
    from warp_tiles._warp.internals import toolkit_version

    with _lock:
        if not _resources:
            _resources.append(Resources(toolkit_version(), None))
        return BuildContext(_resources[0], settings.current())


def _measurer(gpu: str, context: BuildContext) -> GpuMeasurer:
    import warp as wp

    with _lock:
        if gpu not in _measurers:
            _measurers[gpu] = GpuMeasurer(context, wp.get_device(gpu), batch=2 * BATCH)
        return _measurers[gpu]
