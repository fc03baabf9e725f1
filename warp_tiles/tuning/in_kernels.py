"""Tunes the loops and functions of kernels, on the launches that a program makes.

A kernel has tasks (:mod:`warp_tiles.tuning.tasks`), such as to choose the pipeline of a loop. For each configuration of
a task, the kernel is copied to a module of its own, which has that configuration, and is launched with copies of the
launch's arguments. So the time is that of the whole kernel as the program runs it.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from warp_tiles._warp import require_hooks
from warp_tiles._warp.intercept import NotedLaunch, launching
from warp_tiles._warp.launch import argument_names
from warp_tiles._warp.modules import copied_kernel, forget_modules, hashed_names, name_of
from warp_tiles.errors import ToolchainError, WarpTilesError
from warp_tiles.gemm.main_loop import LoopProblem
from warp_tiles.gemm.problem import GemmProblem, Role
from warp_tiles.settings import FORCED, Settings
from warp_tiles.tuning.factory import TunedLaunch
from warp_tiles.tuning.launches import KernelLaunches, LaunchOptions
from warp_tiles.tuning.measure import SearchDevice
from warp_tiles.tuning.record import Config, Environment, Record, Timing, environment_of, identity
from warp_tiles.tuning.search import Search, by_identity
from warp_tiles.tuning.store import RecordStore, open_store
from warp_tiles.tuning.tasks import Measurements, TuningTask, function_task, loop_task, source_of
from warp_tiles.util.warn import warn

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine


_TOLERANCE = 0.03  # of the largest element: configurations differ by the order of additions


#: Called after each batch of configurations with the task and its record so far.
Progress = Callable[[TuningTask, Record], object]


@dataclass(frozen=True)
class TunedTask:
    """The result of tuning a task.

    Attributes:
        record: All timings, those of earlier searches included.
        measured: Number of configurations that were measured now.
        error: The failure that left the task unfinished; empty if there was none.
        pending: Number of configurations that a later search would measure.
    """

    task: TuningTask
    kernel: str
    record: Record
    measured: int
    error: str = ""
    pending: int = 0

    @property
    def winner(self) -> Timing | None:
        """What builds take: the default, unless another configuration is faster. None if the default has no timing."""
        return self.record.winner()


@dataclass(frozen=True)
class Tuner:
    """Measures the configurations of tasks that have no usable timing, and stores the timings.

    Attributes:
        environment: The GPU of the measurements.
        source: See :func:`warp_tiles.tuning.tasks.source_of`.
        devices: Enters a block with that GPU, and others like it, as devices of a search; see :func:`search_devices`.
        changed: Called after each task whose record has changed, so that the next task is built with its configuration.
    """

    store: RecordStore
    environment: Environment
    source: str
    devices: Callable[[TuningTask, Sequence[Config]], AbstractContextManager[Sequence[SearchDevice]]]
    reuse_stale: bool = True
    changed: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, engine: Engine, now: Settings, gpus: Sequence[Any]) -> Tuner:
        """A tuner for the first of Warp's GPUs, which are alike. Raises ToolchainError if there is no compiler."""
        source, reuse_stale = source_of(engine.build_context(now).facts), now.record_driver_mismatch == "reuse"
        devices = partial(search_devices, gpus)
        return cls(open_store(now), environment_of(gpus[0]), source, devices, reuse_stale, engine.records_changed)

    def search(self, task: TuningTask) -> Search:
        configs, key = task.configs, task.key(self.source, self.environment)
        devices, wanted = task.devices or partial(self.devices, task), by_identity(configs)
        return Search(key, self.store, wanted, devices, self.reuse_stale, kernel_of(task), configs[0])

    def tune(
        self, task: TuningTask, budget_s: float = 0.0, progress: Progress = lambda task, record: None
    ) -> TunedTask:
        """Measure what has no usable timing beside the default and the best so far, all under one clock.

        Raises ToolchainError if nothing can be built or measured here.
        """
        search = self.search(task)
        before, error, measured = search.record(), "", set[str]()

        def finished(timings: Sequence[Timing], record: Record) -> None:
            measured.update(timing.identity for timing in timings)
            progress(task, record)

        try:
            search.settle(budget_s, wait_s=budget_s or None, finished=finished)
        except ToolchainError:
            raise
        except WarpTilesError as failure:  # this launch cannot be repeated; others may
            error = failure.message
        if measured:
            self.changed()
        new = measured - {timing.identity for timing in before.timings if not timing.unfinished}
        return replace(self._known(task), measured=len(new), error=error)

    def _known(self, task: TuningTask) -> TunedTask:
        search = self.search(task)
        record = search.record()
        return TunedTask(task, kernel_of(task), record, 0, pending=len(search.pending(record)))

    def tune_all(
        self, tasks: Iterable[TuningTask], budget_s: float = 0.0, progress: Progress = lambda task, record: None
    ) -> list[TunedTask]:
        """Tune tasks one after another, in ``budget_s`` seconds. Time that one leaves goes to the next ones."""
        wanted, end = list(tasks), time.monotonic() + (budget_s or math.inf)
        tuned = []
        for number, task in enumerate(wanted):
            left_s = end - time.monotonic()
            share_s = 0.0 if left_s == math.inf else left_s / (len(wanted) - number)
            tuned.append(self._known(task) if left_s <= 0 else self.tune(task, share_s, progress))
        return tuned


# ---- the launches of a task


def kernel_of(task: TuningTask) -> str:
    if task.launch is None:
        return task.title
    kernel = task.launch.kernel
    return hashed_names(kernel.module, task.launch.block_dim).get(kernel.hash, name_of(kernel))


@contextmanager
def search_devices(
    gpus: Sequence[Any], task: TuningTask, configs: Sequence[Config]
) -> Iterator[Sequence[SearchDevice]]:
    """Enter a block with GPUs, which are alike and launch the configurations of a task, as devices of a search."""
    launch, (gpu, *others) = task.launch, gpus
    names = argument_names(launch.kernel)
    copies: dict[str, TunedLaunch] = {}
    lock = threading.Lock()

    def launch_of(config: Config) -> TunedLaunch:
        with lock:
            if (name := identity(config)) not in copies:
                copies[name] = copy_of(task, config)
            return copies[name]

    written = frozenset(names[len(names) - launch.outputs :])
    options = LaunchOptions(
        lambda *_: launch.dim, reference="first", rtol=0.0, atol=_TOLERANCE, devices=tuple(others),
        adjoint=task.adjoint, is_planned=True,
    )  # fmt: skip
    default = task.configs[:1]
    launches = KernelLaunches(launch.kernel.func, names, launch_of, launch.values, written, gpu, options, default)
    try:
        with launches.devices(configs) as devices:
            yield devices
    finally:
        forget_modules(copy.kernel.module.name for copy in copies.values())


def copy_of(task: TuningTask, config: Config) -> TunedLaunch:
    configs = json.dumps({task.digest: config}, sort_keys=True)
    return TunedLaunch(config, _copy(task.launch, configs), task.launch.block_dim)


def _copy(launch: NotedLaunch, configs: str) -> Any:
    module = launch.kernel.module.name
    digest = hashlib.sha256(f"{launch.kernel.key} {launch.block_dim} {configs}".encode()).hexdigest()[:16]
    copy = copied_kernel(launch.kernel, f"{module}_tuned_{digest}", {FORCED: configs})
    if copy.is_generic:
        copy.add_overload(copy.infer_argument_types(list(launch.values)))
    return copy


# ---- the tasks of launches


def tasks_of(engine: Engine, launches: Iterable[NotedLaunch], gpu: Any) -> list[TuningTask]:
    """The tasks that kernels have on a GPU, each once, with its largest launch. Launches on the CPU have none."""
    arch = int(gpu.get_cuda_compile_arch())  # its own, or the newest that Warp's compiler knows
    largest: dict[TuningTask, TuningTask] = {}
    for launch in launches:
        if launch.device.is_cpu:
            continue
        if launch.kernel.module.options.get("deterministic"):
            warn(f"kernel {launch.kernel.key} is not tuned: records do not count in its module, which is deterministic")
            continue
        try:
            tasks = _tasks_of(engine, launch, arch)
        except WarpTilesError as error:
            warn(f"kernel {launch.kernel.key} is not tuned: {error.message}")
            continue
        for task in tasks:
            known = largest.get(task)
            if known is None or _work(launch) > _work(known.launch):
                largest[task] = replace(task, launch=launch)
    return list(largest.values())


def _tasks_of(engine: Engine, launch: NotedLaunch, arch: int) -> list[TuningTask]:
    """The tasks of a kernel: the problems that the plan of a copy asks about."""
    copy = _copy(launch, "{}")
    try:
        plan = require_hooks("tuning").plan_module(copy.module, arch, launch.block_dim)
    finally:
        forget_modules([copy.module.name])
    if plan is None:
        return []
    loops = _taken(engine.measurements(plan.settings))
    tasks = [loop_task(loop) for loop in loops]
    # a loop with stages calls no function
    staged = {problem for loop in loops for form in loop.forms for problem in form}
    staged = staged if all(loop.instruction for loop in plan.loops) else set()
    functions: dict[GemmProblem, bool] = {}
    for needed in plan.needed:
        if isinstance(needed.problem, GemmProblem) and needed.provider in ("own", "cublasdx"):
            is_adjoint = needed.role is not Role.FORWARD
            if launch.taped if is_adjoint else needed.problem not in staged:
                functions[needed.problem] = functions.get(needed.problem, True) and is_adjoint
    function_tasks = [function_task(problem, adjoint) for problem, adjoint in functions.items()]
    return [task for task in (*tasks, *filter(None, function_tasks)) if len(task.configs) > 1]


def _taken(measurements: Any) -> list[LoopProblem]:
    """The loops that a plan has asked about since the last call."""
    if not isinstance(measurements, Measurements):
        return []
    loops = list(measurements.asked.values())
    measurements.asked.clear()
    return loops


def _work(launch: NotedLaunch) -> float:
    """A measure of the work of a launch: threads times elements."""
    elements = sum(value.size for value in launch.values if hasattr(value, "strides"))
    return float(math.prod(launch.dim) * max(1, int(elements)))


# ---- the policy max


def tune_launch(engine: Engine, now: Settings) -> None:
    """Tune the kernel that this thread is launching, on that launch, as the policy ``max`` does before a build.

    Nothing happens without a launch on a GPU. A missing toolchain causes a warning, and the build continues with the
    known records.
    """
    launch = launching()
    if launch is None or launch.device.is_cpu:
        return
    try:
        tuner = Tuner.of(engine, now, [launch.device])
        tuner.tune_all(tasks_of(engine, [launch], launch.device), now.tune_budget_s)
    except ToolchainError as error:
        warn(f"{error.message}; building with the known records")
