"""Measures candidates of a GEMM variant on a GPU. No other module of ``tuning`` launches kernels without Warp."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from warp_tiles.errors import BuildError, ToolchainError
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.tuning import gemm_bench
from warp_tiles.tuning.gemm_build import Benchmark, FailedBuild, TuningContext, build_in_parallel
from warp_tiles.tuning.measure import Clock, EventClock, Runner, describe_error, race
from warp_tiles.tuning.record import Config, Timing

if TYPE_CHECKING:
    from warp_tiles.tuning.measure import Candidate

_LEADERS = 3  # the fastest candidates, which also run against the next batch
_MIN_BATCH = 8
_CHECKED_PRODUCTS = 2


class GpuMeasurer:
    """Builds, checks and times candidates on one of Warp's CUDA devices.

    Args:
        context: Builds candidates.
        device: Warp's device.
        batch: Number of candidates that run against each other; 0 for as many as are built at once.
    """

    def __init__(self, context: TuningContext, device: Any, batch: int = 0) -> None:
        self._context = context
        self._batch = batch
        self._gpu = _Gpu(device)

    @property
    def name(self) -> str:
        """Warp's name of the GPU, e.g. ``cuda:0``."""
        return str(self._gpu.device.alias)

    def measure(
        self,
        variant: GemmProblem,
        configs: Sequence[Config],
        *,
        deadline: float = math.inf,
        on_timings: Callable[[Sequence[Timing]], None],
    ) -> None:
        """Measure candidates against each other, batch by batch. The fastest also run against the next batch.

        Args:
            variant: The GEMM variant.
            configs: The candidates.
            deadline: When to stop, by ``time.monotonic()``; candidates not measured by then have no timing.
            on_timings: Called after each batch with its timings, and with those of the earlier candidates in it.

        Raises:
            ToolchainError: The GPU cannot be used, lacks memory, or was lost to a candidate. That candidate then has
                a failed timing.
        """
        size = self._batch or max(_MIN_BATCH, self._context.pool.jobs)
        clock = _GuardedClock(self._ready_clock(), self._gpu)
        leaders: list[Runner] = []
        for first in range(0, len(configs), size):
            if time.monotonic() >= deadline:
                return
            ready = list(build_in_parallel(self._context, variant, configs[first : first + size], deadline))
            failed = [
                Timing(item.config, "failed", reason=item.reason) for item in ready if isinstance(item, FailedBuild)
            ]
            launches = [_Launches(variant, item, self._gpu) for item in ready if isinstance(item, Benchmark)]
            runners = [*leaders, *(Runner(gemm_bench.KERNEL, launch) for launch in launches)]
            race(runners, clock, deadline=deadline)
            lost = self._gpu.lost_to
            timings = [timing_of(runner, variant) for runner in runners if lost is None or runner.candidate is lost]
            on_timings([*failed, *(timing for timing in timings if timing is not None)])
            if lost is not None:
                raise ToolchainError(
                    f"the GPU {self.name} cannot be used any more since {variant.describe()} ran with "
                    f"{dict(lost.config)}",
                    remedy="run the same command again: it continues after that candidate",
                )
            measured = [runner for runner in runners if runner.status == "ok"]
            leaders = sorted(measured, key=lambda runner: runner.statistics().median_us)[:_LEADERS]

    def _ready_clock(self) -> EventClock:
        clock = EventClock(self._gpu.device)
        try:
            clock.reserve()
        except Exception as error:  # no candidate caused it
            raise ToolchainError(
                f"nothing can be measured on the GPU {self.name}: {describe_error(error)}",
                remedy="free its memory, or name other GPUs with `warp-tiles tune --devices` or CUDA_VISIBLE_DEVICES",
            ) from error
        return clock


def timing_of(runner: Runner, variant: GemmProblem) -> Timing | None:
    """The timing of a candidate after a race; None if it never ran."""
    candidate = runner.candidate
    assert isinstance(candidate, _Launches)
    if runner.status == "running":
        return None
    shared_bytes = gemm_bench.layout(variant).size_bytes
    if runner.status == "failed" or not runner.samples_us:
        return Timing(candidate.config, "failed", shared_bytes=shared_bytes, reason=runner.reason)
    found = runner.statistics()
    return Timing(
        candidate.config, runner.status, found.median_us, found.low_us, found.high_us, found.samples,
        shared_bytes, runner.reason, unfinished=runner.unfinished,
    )  # fmt: skip


class _Gpu:
    """One GPU: its limits, and the candidate that broke it, if one did."""

    def __init__(self, device: Any) -> None:
        from cuda.core import Device

        self.device = device
        self.multiprocessors = int(device.sm_count)
        properties = Device(device.ordinal).properties
        self.shared_bytes = int(properties.max_shared_memory_per_block_optin)
        self.lost_to: _Launches | None = None

    @contextmanager
    def watched(self, candidate: _Launches) -> Iterator[None]:
        """Remember the candidate that broke the GPU. Later errors say nothing about other candidates."""
        if self.lost_to is not None:
            raise BuildError("not measured: the GPU was lost to another candidate")
        try:
            yield
        except Exception:
            if not self._is_usable():
                self.lost_to = candidate
            raise

    def _is_usable(self) -> bool:
        import warp as wp

        try:
            return bool(wp.ones(1, dtype=wp.int32, device=self.device).numpy()[0] == 1)
        except Exception:
            return False


class _GuardedClock:
    """A clock that remembers which candidate broke the GPU."""

    def __init__(self, clock: Clock, gpu: _Gpu) -> None:
        self._clock, self._gpu = clock, gpu

    def sample_us(self, candidate: Candidate, runs: int) -> list[float]:
        assert isinstance(candidate, _Launches)
        with self._gpu.watched(candidate):
            return self._clock.sample_us(candidate, runs)


class _Launches:
    """The launches of a candidate: half of the products in a loop, if it can keep their sums, and half one by one."""

    def __init__(self, variant: GemmProblem, benchmark: Benchmark, gpu: _Gpu) -> None:
        self.config = benchmark.config
        self._variant, self._benchmark, self._gpu = variant, benchmark, gpu
        self._kernels: list[Any] = []
        self._launches: list[tuple[Any, Any, tuple[Any, ...]]] = []

    def prepare(self) -> None:
        """Load the kernels, and check their results.

        Raises:
            BuildError: A kernel does not fit, or its result is wrong.
        """
        with self._gpu.watched(self):
            self._load()
            self._check()

    def _load(self) -> None:
        import warp as wp
        from cuda.bindings import driver
        from cuda.core import Device, LaunchConfig, ObjectCode

        variant, gpu = self._variant, self._gpu
        needed = gemm_bench.layout(variant).size_bytes
        if needed > gpu.shared_bytes:
            raise BuildError(f"A, B and C take {needed} bytes of shared memory, and a block has {gpu.shared_bytes}")
        Device(gpu.device.ordinal).set_current()
        code = ObjectCode.from_cubin(self._benchmark.cubin, name=f"{variant.symbol}_benchmark")
        names = [gemm_bench.KERNEL, gemm_bench.LOOP_KERNEL if self._benchmark.has_loop else gemm_bench.KERNEL]
        self._kernels = [code.get_kernel(name) for name in names]
        self._image = wp.array(gemm_bench.image(variant), dtype=wp.uint8, device=gpu.device)
        self._result = wp.empty_like(self._image)
        pointers = (int(self._image.ptr), int(self._result.ptr))
        products = gemm_bench.products_per_launch(variant) // len(names)
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        for kernel in self._kernels:
            (status,) = driver.cuKernelSetAttribute(attribute, needed, kernel.handle, gpu.device.ordinal)
            if status != driver.CUresult.CUDA_SUCCESS:
                raise BuildError(f"{needed} bytes of dynamic shared memory were refused: {status.name}")
            blocks = kernel.occupancy.max_active_blocks_per_multiprocessor(variant.threads, needed)
            if blocks < 1:
                raise BuildError(f"no block fits: {kernel.attributes.num_regs} registers for {variant.threads} threads")
            share, left = divmod(products, blocks)
            grid = LaunchConfig(grid=blocks * gpu.multiprocessors, block=variant.threads, shmem_size=needed)
            arguments = (*pointers, np.int32(share), np.int32(left * gpu.multiprocessors))
            self._launches.append((grid, kernel, arguments))

    def _check(self) -> None:
        import warp as wp
        from cuda.core import LaunchConfig, launch

        stream = self._stream()
        needed = gemm_bench.layout(self._variant).size_bytes
        once = LaunchConfig(grid=1, block=self._variant.threads, shmem_size=needed)
        for kernel in self._kernels:
            self._result.zero_()
            arguments = (int(self._image.ptr), int(self._result.ptr), np.int32(_CHECKED_PRODUCTS), np.int32(0))
            launch(stream, once, kernel, *arguments)
            wp.synchronize_stream(self._gpu.device.stream)
            problem = gemm_bench.problem_with(self._variant, self._result.numpy(), _CHECKED_PRODUCTS)
            if problem:
                raise BuildError(problem)

    def _stream(self) -> Any:
        from cuda.core import Stream

        return Stream.from_handle(int(self._gpu.device.stream.cuda_stream))

    def run(self) -> None:
        """Compute all products of a launch, on the device's current stream."""
        from cuda.core import launch

        stream = self._stream()
        for grid, kernel, arguments in self._launches:
            launch(stream, grid, kernel, *arguments)

    def restore(self) -> None:
        """Does nothing: blocks read their tiles again in each launch."""
