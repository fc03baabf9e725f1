"""Tunes GEMM variants on the GPUs of a Dask cluster.

Each GPU of the workers measures whole variants, so that the candidates of a variant run under one clock. A batch of
candidates is one task of its worker. Its timings are stored here as soon as it ends, so an interrupted search loses one
batch at most. Workers build the candidates with their own compilers, if their installation is like the one here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from warp_tiles.build.executor import SAME_PACKAGES, differences, executor_error
from warp_tiles.build.installation import CODE, COMPILER, CUDA_HEADERS, DEVICE_SOURCES, LINKER, Facts, Installation
from warp_tiles.errors import RefusedWorkerError, ToolchainError, WarpTilesError
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.settings import Settings
from warp_tiles.tuning.cluster_worker import BATCH, Batch, ClusterGpu, Measured, gpus_here, measure_here
from warp_tiles.tuning.gemm import Tuner
from warp_tiles.tuning.key import Environment
from warp_tiles.tuning.open_store import open_store
from warp_tiles.tuning.record import Config, Timing

FACTS = (CODE, COMPILER, LINKER, DEVICE_SOURCES, CUDA_HEADERS)
_LEADERS = 3  # the fastest candidates, which also run against the next batch
_POLL_S = 1.0


@dataclass(frozen=True)
class Lab:
    """The functions that run on the workers. Tests replace them.

    Attributes:
        gpus: Returns the GPUs of a worker.
        measure: Measures a batch on one of them.
    """

    gpus: Callable[..., list[ClusterGpu]] = gpus_here
    measure: Callable[[Batch], Measured] = measure_here


class ClusterMeasurer:
    """Measures on one GPU of one worker. See :class:`warp_tiles.tuning.gemm.Measurer`.

    Args:
        client: Dask's client.
        worker: Address of the worker.
        gpu: The GPU.
        facts: The parts of this machine's installation that decide the timings.
        lab: The functions that run on the worker.
    """

    def __init__(self, client: Any, worker: str, gpu: ClusterGpu, facts: Callable[[], Facts], lab: Lab) -> None:
        self._client, self._worker, self._gpu, self._facts, self._lab = client, worker, gpu, facts, lab

    @property
    def name(self) -> str:
        """The worker and Warp's name of its GPU."""
        return f"{self._worker} {self._gpu.alias}"

    def measure(
        self,
        variant: GemmProblem,
        configs: Sequence[Config],
        *,
        deadline: float = math.inf,
        on_timings: Callable[[Sequence[Timing]], None],
    ) -> None:
        """Measure candidates batch by batch. The fastest also run against the next batch.

        Raises:
            RefusedWorkerError: The worker has another installation.
            ToolchainError: The worker or its GPU was lost.
        """
        fastest: dict[str, Timing] = {}
        for first in range(0, len(configs), BATCH):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            leaders = sorted(fastest.values(), key=lambda timing: timing.median_us)[:_LEADERS]
            batch = (*(timing.config for timing in leaders), *configs[first : first + BATCH])
            found = self._run(Batch(self._gpu.alias, variant, batch, left_s, self._facts()), deadline)
            on_timings(found.timings)
            for timing in found.timings:
                fastest.pop(timing.identity, None)
                if timing.status == "ok":
                    fastest[timing.identity] = timing
            if found.lost:
                raise ToolchainError(f"{self._worker}: {found.lost}", "start that worker again, and repeat the command")

    def _run(self, batch: Batch, deadline: float) -> Measured:
        try:
            task = self._client.submit(
                self._lab.measure, batch, workers=[self._worker], allow_other_workers=False, pure=False
            )
            found = self._wait(task)
        except WarpTilesError:
            raise
        except Exception as error:
            raise self._lost(f"{type(error).__name__}: {error}") from error
        if text := differences(batch.expected, found.found):
            raise RefusedWorkerError(f"the worker {self._worker} is refused: {text}", SAME_PACKAGES)
        if found.failure is not None:
            raise found.failure
        return found

    def _wait(self, task: Any) -> Measured:
        """The result of a task. A task that is tied to a lost worker would never end."""
        from distributed import TimeoutError as DaskTimeoutError  # another class than Python's before 3.11

        try:
            while True:
                try:
                    found: Measured = task.result(timeout=_POLL_S)
                    return found
                except DaskTimeoutError:
                    if task.status == "pending" and self._worker not in self._client.nthreads():
                        raise self._lost("it left the cluster") from None
        finally:
            if task.status == "pending":
                task.cancel()

    def _lost(self, reason: str) -> ToolchainError:
        return ToolchainError(
            f"the worker {self._worker} was lost while it measured: {reason}",
            remedy="look at its log; the same command continues with what is stored",
        )


def cluster_tuners(
    client: Any, installation: Installation, source: str, now: Settings, lab: Lab | None = None
) -> list[Tuner]:
    """One tuner for each kind of GPU in a cluster. Their results go to the user's own records.

    Args:
        client: Dask's client.
        installation: What of this machine decides the timings.
        source: See :func:`warp_tiles.tuning.gemm_key.source_of`.
        now: The settings.
        lab: The functions that run on the workers.

    Raises:
        ToolchainError: No worker has a GPU.
        WorkerError: A worker could not be asked.
    """
    lab = lab or Lab()
    try:
        answers: dict[str, list[ClusterGpu]] = client.run(lab.gpus)
    except Exception as error:
        raise executor_error(error) from error
    kinds: dict[tuple[Environment, int], list[ClusterMeasurer]] = {}
    for worker, gpu in assigned(answers):
        measurer = ClusterMeasurer(client, worker, gpu, lambda: installation.facts(FACTS), lab)
        kinds.setdefault((gpu.environment, gpu.arch), []).append(measurer)
    if not kinds:
        raise ToolchainError(
            f"tuning GEMM variants needs an NVIDIA GPU, and none of the {len(answers)} workers has one",
            remedy="start workers on machines with GPUs, one for each GPU: CUDA_VISIBLE_DEVICES=0 dask worker ADDRESS",
        )
    reuse = now.record_driver_mismatch == "reuse"
    return [
        Tuner(open_store(now), environment, first, source, arch, reuse_stale=reuse, helpers=tuple(others))
        for (environment, arch), (first, *others) in kinds.items()
    ]


def assigned(answers: dict[str, list[ClusterGpu]]) -> list[tuple[str, ClusterGpu]]:
    """Each GPU with the worker that measures on it. Of several workers that see it, the one with the fewest GPUs."""
    load = dict.fromkeys(answers, 0)
    found: dict[str, tuple[str, ClusterGpu]] = {}
    for uuid in dict.fromkeys(gpu.uuid for gpus in answers.values() for gpu in gpus):
        seen = [(worker, gpu) for worker, gpus in answers.items() for gpu in gpus if gpu.uuid == uuid]
        worker, gpu = min(seen, key=lambda item: load[item[0]])
        load[worker] += 1
        found[uuid] = (worker, gpu)
    return list(found.values())
