"""Tunes the kernels of a script on the GPUs of a Dask cluster.

Workers run the script as ``warp-tiles plan`` does, build the answers with their own compilers, and launch them on their
GPUs. The search itself runs here: each build and each batch of launches is a task of one worker. So an interrupted
search loses no more than one of this machine.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from warp_tiles._warp import require_hooks
from warp_tiles.api import enable
from warp_tiles.build.executor import executor_error
from warp_tiles.errors import ToolchainError, TuningError, WarpTilesError
from warp_tiles.launch.script import Script, discover
from warp_tiles.settings import Settings
from warp_tiles.tuning.in_place import PlacedLaunch, Tuner, compile_arch, local_devices, places_of
from warp_tiles.tuning.key import Environment, environment_of
from warp_tiles.tuning.measure import Candidate
from warp_tiles.tuning.record import Config, identity
from warp_tiles.tuning.search import SearchDevice

_POLL_S = 1.0
_BUILDS = 4  # that a worker is given at once; it does as many of them as it has threads


# ---- what is sent


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
class SentScript:
    """A script's file and its command line. The modules that it imports must be installed on the workers."""

    name: str
    text: bytes
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """What a worker does with one answer of a place: time some launches, or build the answer if ``runs`` is 0.

    ``place`` is the digest of the place.
    """

    gpu: str
    script: SentScript
    place: str
    config: Config = field(hash=False)
    runs: int


@dataclass(frozen=True)
class Done:
    """The answer of a worker, or the error in its place. A GPU that is lost cannot be used any more."""

    samples_us: tuple[float, ...] = ()
    shared_bytes: int = 0
    is_lost: bool = False
    failure: Exception | None = None


# ---- on a worker


def gpus_here() -> list[ClusterGpu]:
    """The GPUs that this worker sees."""
    import warp as wp

    wp.init()
    return [
        ClusterGpu(device.alias, str(device.uuid), environment_of(device), compile_arch(device))
        for device in wp.get_cuda_devices()
    ]


def perform_here(task: Task) -> Done:
    """Build an answer, or check and time it, on one of this worker's GPUs."""
    enable()
    try:
        session = _session(task)
    except WarpTilesError as error:
        return Done(failure=error)
    try:
        return session.perform(task)
    except Exception as error:  # of any class; it is the candidate's failure unless the GPU is lost
        failure = error if isinstance(error, WarpTilesError) else TuningError(f"{type(error).__name__}: {error}")
        return Done(is_lost=not session.device.is_usable(), failure=failure)


class _Session:
    """A place of a script on a GPU of this worker, with its candidates."""

    def __init__(self, placed: PlacedLaunch, gpu: str) -> None:
        import warp as wp

        self._held = ExitStack()
        devices = local_devices([wp.get_device(gpu)], placed, placed.place.configs)
        (self.device,) = self._held.enter_context(devices)
        self._built: dict[str, Any] = {}
        self._prepared: set[str] = set()

    def perform(self, task: Task) -> Done:
        name = identity(task.config)
        if not task.runs:
            self._built[name] = self.device.build(task.config)
            return Done(shared_bytes=self._built[name].shared_bytes)
        candidate = self._built[name]
        if name not in self._prepared:
            candidate.prepare()
            self._prepared.add(name)
        return Done(tuple(self.device.clock.sample_us(candidate, task.runs)))

    def close(self) -> None:
        self._held.close()


_lock = threading.Lock()
_launches: dict[SentScript, list[PlacedLaunch]] = {}
_sessions: dict[str, tuple[tuple[SentScript, str], _Session]] = {}  # the last one of each GPU


def _session(task: Task) -> _Session:
    with _lock:
        wanted = task.script, task.place
        known = _sessions.get(task.gpu)
        if known is not None and known[0] == wanted:
            return known[1]
        if known is not None:
            known[1].close()
        placed = next((one for one in _placed(task) if one.place.digest == task.place), None)
        if placed is None:
            raise TuningError(
                f"{task.script.name} has another plan on this worker",
                remedy="install the packages that it imports there",
            )
        _sessions[task.gpu] = wanted, _Session(placed, task.gpu)
        return _sessions[task.gpu][1]


def _placed(task: Task) -> list[PlacedLaunch]:
    import warp as wp

    if task.script not in _launches:
        name = f"{hashlib.sha256(task.script.text).hexdigest()[:16]}_{Path(task.script.name).name}"
        folder = Path(tempfile.mkdtemp(prefix="warp_tiles_"))  # Warp reads the source again while it builds
        (folder / name).write_bytes(task.script.text)
        found = discover(Script(str(folder / name), task.script.arguments))
        arch = compile_arch(wp.get_device(task.gpu))
        engine = require_hooks("a cluster").engine
        _launches[task.script] = places_of(engine, found.launches, arch)
    return _launches[task.script]


# ---- here


Perform = Callable[[Task], Done]


@dataclass(frozen=True)
class _Candidate(Candidate):
    """An answer that a worker has built. The worker prepares and launches it."""

    config: Config
    shared_bytes: int


class ClusterDevice:
    """A GPU of a worker as a device of a search. Dask's client performs its tasks on the worker of that address."""

    def __init__(self, client: Any, worker: str, gpu: ClusterGpu, perform: Perform) -> None:
        self._client, self._worker, self._gpu, self._perform = client, worker, gpu, perform
        self.is_lost = False  # the worker or its GPU

    def for_place(self, script: SentScript, place: str) -> SearchDevice:
        """The device of a search for one place of a script."""
        task = Task(self._gpu.alias, script, place, {}, 0)

        def build(config: Config) -> _Candidate:
            return _Candidate(config, self._run(replace(task, config=config)).shared_bytes)

        class Clock:
            @staticmethod
            def sample_us(candidate: Any, runs: int) -> list[float]:
                return list(self._run(replace(task, config=candidate.config, runs=runs)).samples_us)

        return SearchDevice(build, Clock(), f"{self._worker} {self._gpu.alias}", lambda: not self.is_lost)

    def _run(self, task: Task) -> Done:
        """The result of a task. Raises its failure, or ToolchainError if the worker was lost."""
        try:
            sent = self._client.submit(
                self._perform, task, workers=[self._worker], allow_other_workers=False, pure=False
            )
            done = self._wait(sent)
        except WarpTilesError:
            raise
        except Exception as error:
            raise self._left(f"{type(error).__name__}: {error}") from error
        if done.is_lost:  # several builds end at once, and none of them takes this back
            self.is_lost = True
        if done.failure is not None:
            raise done.failure
        return done

    def _wait(self, sent: Any) -> Done:
        """The result of a task. A task that is tied to a lost worker would never end."""
        from distributed import TimeoutError as DaskTimeoutError  # another class than Python's before 3.11

        try:
            while True:
                try:
                    return cast("Done", sent.result(timeout=_POLL_S))
                except DaskTimeoutError:
                    if self._worker not in self._client.nthreads():  # the result may have been lost with it
                        raise self._left("it left the cluster") from None
        finally:
            if not sent.done():
                sent.cancel()

    def _left(self, reason: str) -> ToolchainError:
        self.is_lost = True
        return ToolchainError(
            f"the worker {self._worker} was lost while it measured: {reason}",
            remedy="look at its log; the same command continues with what is stored",
        )


def cluster_tuners(
    client: Any,
    script: SentScript,
    now: Settings,
    gpus: Callable[..., list[ClusterGpu]] = gpus_here,
    perform: Perform = perform_here,
) -> list[Tuner]:
    """One tuner for each kind of GPU in a cluster. Their results go to the user's own records.

    Args:
        client: Dask's client.
        gpus: Returns the GPUs of a worker.
        perform: Performs a task on one of them.

    Raises:
        ToolchainError: No worker has a GPU.
        WorkerError: A worker could not be asked.
    """
    try:
        answers: dict[str, list[ClusterGpu]] = client.run(gpus)
    except Exception as error:
        raise executor_error(error) from error
    kinds: dict[tuple[Environment, int], list[ClusterDevice]] = {}
    for worker, gpu in assigned(answers):
        device = ClusterDevice(client, worker, gpu, perform)
        kinds.setdefault((gpu.environment, gpu.arch), []).append(device)
    if not kinds:
        raise ToolchainError(
            f"tuning needs an NVIDIA GPU, and none of the {len(answers)} workers has one",
            remedy="start workers on machines with GPUs, one for each GPU: CUDA_VISIBLE_DEVICES=0 dask worker ADDRESS",
        )
    engine = require_hooks("a cluster").engine
    return [
        Tuner.of(engine, now, environment, arch, partial(_live, devices, script), _BUILDS)
        for (environment, arch), devices in kinds.items()
    ]


@contextmanager
def _live(
    devices: Sequence[ClusterDevice], script: SentScript, placed: PlacedLaunch, configs: Sequence[Config]
) -> Iterator[Sequence[SearchDevice]]:
    """Enter a block with the devices that are not lost. Raises ToolchainError if all are."""
    found = [device.for_place(script, placed.place.digest) for device in devices if not device.is_lost]
    if not found:
        raise ToolchainError("no worker with such a GPU is left", "start them again, and repeat the command")
    yield found


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
