"""What a process builds: its log of plans, builds and links, which prints as JSON, and its progress bar."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from warp_tiles.errors import unless_signalled
from warp_tiles.gemm.rejected import Rejected, code_of
from warp_tiles.plan.planning import ModulePlan, config_json
from warp_tiles.settings import current
from warp_tiles.solver.problem import Config, Problem

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from warp_tiles.compile.compiler import Compiled

LOOK_UP = "look_up_module"  # the linked module, in the own cache
FETCH = "fetch_module"  # the linked module, from the remote store or the bundle
WRITE = "write_module"  # the file of a linked module that was found
COMPILE = "compile"  # the module's own source, in a compiler process
WAIT = "wait_for_functions"  # until the last function is built
LINK = "link"  # in a compiler process
WARP_LINK = "link_by_warp"

_ZERO = time.perf_counter()  # of the clock of all steps


def now_s() -> float:
    """Seconds since this module was imported, which :func:`warp_tiles.enable` does."""
    return time.perf_counter() - _ZERO


def _times(of: Phase | Artifact | ModuleLog) -> dict[str, float]:
    return {"started_at_s": round(of.started_at_s, 4), "seconds": round(of.seconds, 4)}


@dataclass(frozen=True)
class Phase:
    """One step of a module's build: :data:`LOOK_UP` to :data:`WARP_LINK`, with its start in seconds of :func:`now_s`.

    Steps of compiler processes count without the wait for a free process.
    """

    name: str
    started_at_s: float
    seconds: float

    @classmethod
    def of_process(cls, name: str, compiled: Compiled) -> Phase:
        return cls(name, compiled.ended_at_s - _ZERO - compiled.seconds, compiled.seconds)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **_times(self)}


class Phases:
    """Collects the steps of one module's build. Threads may add steps at the same time."""

    def __init__(self, before: Iterable[Phase] = ()) -> None:
        self._phases = list(before)

    def started_at_s(self) -> float:
        """When the first step began; now, if there is none."""
        return min((phase.started_at_s for phase in self._phases), default=now_s())

    @property
    def found(self) -> tuple[Phase, ...]:
        return tuple(sorted(self._phases, key=lambda phase: (phase.started_at_s, phase.name)))

    @contextlib.contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Add the block as a step, also if it raises."""
        started = now_s()
        try:
            yield
        finally:
            self.add(name, started)

    def add(self, name: str, started_at_s: float) -> None:
        self._phases.append(Phase(name, started_at_s, now_s() - started_at_s))

    def of_process(self, name: str, compiled: Compiled) -> Compiled:
        """Add the work of a compiler process as a step, and return its result."""
        self._phases.append(Phase.of_process(name, compiled))
        return compiled


@dataclass(frozen=True)
class Artifact:
    """What computes one problem: a device function, from a build or from the cache, or the scalar path.

    Attributes:
        symbol: Name of the device function; empty on the scalar path.
        payload: LTO-IR; empty on the scalar path, and for a function in the module's source.
        key: Digest of its cache key; empty if it is not cached.
        lto_bytes: Size of the LTO-IR if the payload itself was released.
        started_at_s: Start of the build or lookup, in seconds of :func:`warp_tiles.build.log.now_s`.
        compiled: The part in which a compiler process worked; None if none did. In the rest the build waited for a
            compiler process or for another process that built the same function, or used files.
        shared: True if another module's build had started it.
        in_source: True if the function stands in the module's source, so that nothing was built for it.
    """

    problem: Problem
    symbol: str
    payload: bytes
    provider: str
    key: str
    hit: bool
    seconds: float
    warnings: tuple[str, ...] = ()
    lto_bytes: int = 0
    tile_config: Config | None = None
    started_at_s: float = 0.0
    compiled: Phase | None = None
    shared: bool = False
    in_source: bool = False

    @property
    def is_linked(self) -> bool:
        """True if the module is linked with its LTO-IR."""
        return bool(self.symbol) and not self.in_source

    def without_payload(self) -> Artifact:
        """A copy without the payload, for the log, which outlives the build."""
        return replace(self, payload=b"", lto_bytes=len(self.payload))

    def to_json(self) -> dict[str, Any]:
        """The artifact without the LTO-IR itself, as JSON values."""
        return {
            **{name: getattr(self, name) for name in ("symbol", "provider", "key", "hit", "shared", "in_source")},
            "problem": self.problem.to_json(),
            **config_json(self.tile_config),
            "lto_bytes": self.lto_bytes or len(self.payload),
            **_times(self),
            "compiled": self.compiled.to_json() if self.compiled else None,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class ModuleLog:
    """What was built for one module.

    Attributes:
        plan: The plan that was built: a new one if a function or the link failed.
        seconds: Time from the end of code generation to the finished file.
        module_key: Digest of the linked module's key; empty if the module is not kept.
        found: True if the linked module was in the cache, in a kernel package or in the remote store.
        started_at_s: The end of code generation, or the lookup that has found the start key, in seconds of
            :func:`warp_tiles.build.log.now_s`.
        start_key: ``found`` if no code was generated, else ``missing``, or why the module has no such key.
    """

    plan: ModulePlan
    artifacts: Sequence[Artifact]
    linker: str
    linker_reason: str
    output: str
    output_bytes: int
    seconds: float
    module_key: str = ""
    found: bool = False
    started_at_s: float = 0.0
    phases: tuple[Phase, ...] = ()
    package: str = ""
    start_key: str | Rejected = ""

    def lacks(self, plan: ModulePlan) -> bool:
        """True if a plan is that of this module, which was found without one."""
        mine = self.plan
        is_its = (mine.name, mine.arch, mine.block_dim) == (plan.name, plan.arch, plan.block_dim)
        return is_its and self.found and self.linker == "warp_tiles" and not mine.functions

    def to_json(self) -> dict[str, Any]:
        """The module as ``warp-tiles run --report`` writes it."""
        from_lto = [artifact for artifact in self.artifacts if artifact.is_linked]
        return {
            **self.plan.to_json(),
            "builds": [artifact.to_json() for artifact in self.artifacts],
            "lto_builds": sum(not artifact.hit for artifact in from_lto),
            "lto_hits": sum(artifact.hit for artifact in from_lto),
            "lto_bytes": sum(artifact.lto_bytes or len(artifact.payload) for artifact in from_lto),
            **{name: getattr(self, name) for name in ("linker", "linker_reason", "module_key", "found", "output")},
            "cubin_bytes": self.output_bytes,
            "kernel_package": self.package,
            "start_key": f"not asked: {key}" if isinstance(key := self.start_key, Rejected) else key,
            "start_key_code": code_of(key),
            **_times(self),
            "phases": [phase.to_json() for phase in self.phases],
        }

    def summary(self) -> str:
        data = self.to_json()
        skipped = sum(not planned.needed for planned in self.plan.functions)
        built = data["lto_builds"]
        return (
            f"{self.plan.name} sm_{self.plan.arch}: {built} function{'s' * (built != 1)} built, "
            f"{data['lto_hits']} from cache, {skipped} skipped, {data['lto_bytes'] / 1e6:.1f} MB of LTO-IR, "
            f"{data['cubin_bytes'] / 1e3:.0f} kB {'found' if self.found else f'linked by {self.linker}'} "
            f"in {self.seconds:.1f} s"
        )


class BuildLog:
    """Collects the plans and the built modules of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: list[ModulePlan] = []
        self._modules: list[ModuleLog] = []
        self._missed: dict[tuple[str, int | None, int], str] = {}

    def add_missed(self, plan: ModulePlan, reason: str) -> None:
        """Add why a module that an installed kernel package names did not come from it."""
        with self._lock:
            self._missed[plan.name, plan.arch, plan.block_dim] = reason

    def add_plan(self, plan: ModulePlan) -> None:
        """Add the plan of a module that is generated, or that Warp loaded from its own cache."""
        with self._lock:
            self._plans.append(plan)
            self._modules = [replace(module, plan=plan) if module.lacks(plan) else module for module in self._modules]

    def add_module(self, module: ModuleLog, planned: ModulePlan | None = None) -> None:
        """Add a finished module. Its plan takes the place of the one that was made before the build."""
        with self._lock:
            self._modules.append(module)
            self._plans = [module.plan if plan is planned else plan for plan in self._plans]

    def has_plan(self, module: str, arch: int | None, block_dim: int) -> bool:
        with self._lock:
            return any((plan.name, plan.arch, plan.block_dim) == (module, arch, block_dim) for plan in self._plans)

    @property
    def modules(self) -> tuple[ModuleLog, ...]:
        with self._lock:
            return tuple(self._modules)

    def summary(self) -> str:
        """One line: what was built and what was found, of modules and of their functions."""
        if not (modules := self.modules):
            return "nothing to build"
        functions = [artifact.hit for module in modules for artifact in module.artifacts if artifact.is_linked]
        cached = sum(module.found for module in modules)
        packages = Counter(module.package for module in modules if module.package)
        served = "".join(f", {count} of them from {package}" for package, count in packages.items())
        return (
            f"modules: {len(modules) - cached} built, {cached} cached{served}; "
            f"functions: {functions.count(False)} built, {functions.count(True)} cached; "
            f"{sum(module.seconds for module in modules):.1f} s"
        )

    def to_json(self) -> dict[str, Any]:
        """``modules``: the built modules, and the newest plan of each other one (CPU, or in Warp's cache).

        ``not_in_kernel_packages`` has the modules that an installed kernel package names and lacks, with the reasons.
        """
        with self._lock:
            built = {id(module.plan) for module in self._modules}
            others = {(p.name, p.arch, p.block_dim): p for p in self._plans if id(p) not in built}
            modules = [module.to_json() for module in self._modules]
            modules += [{**plan.to_json(), "builds": []} for plan in others.values()]
            missed = [
                {"name": name, "arch": arch, "block_dim": threads, "reason": reason}
                for (name, arch, threads), reason in self._missed.items()
            ]
        return {"modules": modules, **({"not_in_kernel_packages": missed} if missed else {})}


# ---- the progress bar, by default only on a terminal

_SHOW_AFTER_SECONDS = 0.3  # a cache hit ends long before, so that no bar flashes


def is_enabled(choice: str | None = None) -> bool:
    """True if a value of the setting ``progress`` enables the bar: by default the current one, on a terminal."""
    choice = choice or current().progress
    return choice == "on" or (choice == "auto" and sys.stderr is not None and sys.stderr.isatty())


def new_bar(title: str, *, transient: bool = False) -> Progress:
    """Returns a bar on standard error: title, done, total, elapsed, and the description of its task."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(title, markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(
        *columns, TextColumn("{task.description}", markup=False), console=Console(stderr=True), transient=transient
    )


class BuildProgress:
    """Counts the functions and modules that are built, and draws them: done, total, elapsed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._done = 0
        self._total = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._timer: threading.Timer | None = None
        self._modules: dict[str, bool] = {}  # of this batch, True for those that are done
        self._awaited: list[str] = []

    @contextlib.contextmanager
    def counted(self, what: str, choice: str = "auto") -> Iterator[None]:
        """Count one build as long as the block runs. The setting ``progress`` of the first running one decides."""
        with self._lock:
            if not self._running:
                self._done = self._total = 0
                if is_enabled(choice):
                    self._timer = threading.Timer(_SHOW_AFTER_SECONDS, self._show)
                    self._timer.daemon = True
                    try:
                        self._timer.start()
                    except unless_signalled(RuntimeError):  # the interpreter ends, or the process has too many threads
                        pass
            self._running += 1
            self._total += 1
            self._draw(what)
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._done += 1
                self._draw(what)
                if not self._running:
                    self._modules.clear()
                    if self._timer is not None:
                        self._timer.cancel()
                        self._timer = None
                    if self._bar is not None:
                        self._bar.stop()
                        self._bar = self._task = None

    @contextlib.contextmanager
    def module(
        self, name: str, arch: int | None, block_dim: int, choice: str, *, awaited: bool = True
    ) -> Iterator[None]:
        """Count a module once in a batch, from its code generation or build to its file; name it if it is awaited."""
        title = f"module {name}, sm_{arch}, {block_dim} threads"
        with self._lock:
            counts = title not in self._modules
            self._modules.setdefault(title, False)
            if awaited:
                self._awaited.append(title)
            self._draw(title)
        with self.counted(title, choice) if counts else contextlib.nullcontext():
            try:
                yield
            finally:
                with self._lock:
                    if awaited:
                        self._awaited.remove(title)
                    if counts:
                        self._modules[title] = True

    def _show(self) -> None:
        with self._lock:
            if not self._running or self._bar is not None:
                return
            self._bar = new_bar("functions and modules", transient=True)
            self._task = self._bar.add_task("", total=self._total, completed=self._done)
            self._draw(self._awaited[-1] if self._awaited else "")
            self._bar.start()

    def _draw(self, what: str) -> None:
        if self._bar is not None and self._task is not None:
            awaited = self._awaited[-1] if self._awaited else ""
            if len(self._modules) > 1:
                what = f"{sum(self._modules.values())} of {len(self._modules)} modules"
                what += f", waiting for {awaited}" if awaited else ""
            self._bar.update(self._task, total=self._total, completed=self._done, description=what)
