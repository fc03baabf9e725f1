"""Modules that no launch has asked for yet, compiled on idle cores while the program waits for another module.

The waiting thread itself generates them (:mod:`warp_tiles._warp.idle`), so the program changes nothing meanwhile. A
worker is always left for the next launch. A quarter of the time of modules that no launch has asked for, plus the time
of failed builds, stays below half of the time that launches needed. Only a quarter counts because a launch is likely.
Nothing starts unless more than two cores are idle: two that share one core's units would make the launch wait longer.

These limits hold without a start record. With one, :class:`RecordedModules` generates what the record names.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warp_tiles.build.context import BuildContext
from warp_tiles.build.module_build import ModuleBuild
from warp_tiles.build.records import now_s
from warp_tiles.build.start_record import StartModule, build_ahead, compiled_text, keys_of
from warp_tiles.build.warp_module import Start, WarpModuleBuild, content_key
from warp_tiles.errors import CacheError, WarpTilesError
from warp_tiles.store.key import CacheKey
from warp_tiles.util.threads import DaemonThreads, available_cores, raise_if_signalled, wait_all

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine
    from warp_tiles.build.start_record import ProgramStart
    from warp_tiles.compile.module import ModuleSource
    from warp_tiles.compile.pool import CompilerPool

log = logging.getLogger("warp_tiles")
_MOST_PART = 0.5  # of the needed time
_RISK = 0.25  # assumed probability that no launch asks for a module that is compiled ahead
_LEFT_CORES = 2
_STEP_S = 0.05
_MOST_READY = 3  # generated modules that wait for a worker, of which the first that the budget allows is compiled
_FIRST_S, _FIRST_BYTES = 1.0, 100_000  # the assumed speed of the compiler before the first build


Generate = Callable[[float, Callable[[], bool]], "IdleModule | None"]
"""``generate(left_s, is_waiting)`` generates a module on this thread, in about ``left_s`` seconds, while
``is_waiting()`` is true. It returns None if no module can be generated now.
"""


@dataclass(frozen=True)
class IdleModule:
    """A module that was generated ahead of its launch.

    Attributes:
        key: Its content key.
        start: The lookup of its start key; None if the module has no start key.
        generation_s: Seconds that its generation took.
    """

    module: StartModule
    key: CacheKey
    start: Start | None
    context: BuildContext
    generation_s: float = 0.0


def generated(
    engine: Engine, build: WarpModuleBuild | ModuleBuild, source: Path, module: ModuleSource
) -> IdleModule | None:
    """A module that Warp has generated ahead. None if only its launch may build it."""
    if isinstance(build, ModuleBuild):
        parts = build.ahead(source, module)
        if parts is None:
            return None
        context = engine.build_context(build.plan.settings)
        one = StartModule.of(build.plan.name, build.plan.block_dim, parts[0], {}, parts[1])
        key, _ = keys_of(engine, context, one)
        return None if key is None else IdleModule(one, key, None, context)
    if module.keywords.get("ltoirs") or module.keywords.get("fatbins"):
        return None
    if build.context.bundle is not None or not build.plan.settings.rules.builds:
        return None
    request, wanted, reason = build.request(source.read_bytes(), module, ())
    if reason:
        return None
    one = StartModule.of(build.plan.name, build.plan.block_dim, request, build.meta, None)
    return IdleModule(one, content_key(build.context, request, wanted.target), build.start, build.context)


def compiled(engine: Engine, one: IdleModule, *, waits: bool = False) -> tuple[CacheKey, bool] | None:
    """Compile or link a generated module into the cache, and bind its start key. See :func:`build_ahead`."""
    done, start = build_ahead(engine, one.context, one.module, waits=waits), one.start
    # with a remote store, only a launch binds the start key, so that only launched modules are pushed
    binds = done is not None and start is not None and start.found is None and one.context.remote is None
    if done is not None and start is not None and binds and (entry := one.context.modules.get(done[0])):
        start.keep(entry.payload, {"module": one.module.name, "content_key": one.key.digest})
    return done


def idle_cores() -> float:
    """The cores that this process may use and that were idle in the last minute; 0 if that is not known."""
    try:
        return available_cores() - os.getloadavg()[0]
    except (AttributeError, OSError) as error:
        raise_if_signalled(error)
        return 0.0


class IdleBuilds:
    """Compiles modules ahead of their launches while the program waits.

    Args:
        generate: Generates a module on this thread, see :data:`Generate`.
    """

    def __init__(self, engine: Engine, generate: Generate) -> None:
        self._engine = engine
        self._generate = generate
        self._lock = threading.RLock()  # without threads, submit() does the work itself
        self._threads: DaemonThreads | None = None
        self._waiting = 0  # launches
        self._pool: CompilerPool | None = None
        self._is_stopped = False
        self._needed_s = 0.0
        self._failed_s = 0.0
        self._built_s, self._built_bytes = _FIRST_S, _FIRST_BYTES
        self._ready: list[IdleModule] = []
        self._running: dict[str, tuple[Future[None], float]] = {}  # with the expected seconds, by digest
        self._unasked: dict[str, float] = {}  # seconds of what is compiled, by digest
        self._compiled = 0

    # ---- called by the build of a module that a launch waits for

    def wait(self, work: Future[Any], size_bytes: int, pool: CompilerPool, *, begun: bool = False) -> None:
        """Wait for the compiler, and compile other modules meanwhile.

        Args:
            work: The request of the launch.
            size_bytes: Size of its source.
            pool: The workers.
            begun: True if the request began earlier, so that its time tells nothing of the compiler's speed.
        """
        started, self._pool = now_s(), pool
        with self._lock:
            self._waiting += 1
        try:
            may_step = pool.jobs > 1 and idle_cores() > _LEFT_CORES
            while not work.done():
                elapsed = now_s() - started
                left = max(self._expected_s(size_bytes) - elapsed, elapsed / 4)
                if not (may_step and self._waiting == 1 and self._step(elapsed, left, lambda: not work.done())):
                    wait_all([work], _STEP_S)
        finally:
            seconds = now_s() - started
            with self._lock:
                self._waiting -= 1
                self._needed_s += seconds
                if not begun and work.done() and not work.cancelled() and work.exception() is None:
                    self._built_s, self._built_bytes = self._built_s + seconds, self._built_bytes + size_bytes

    def wait_for_lock(self, context: BuildContext, key: CacheKey) -> None:
        """Does nothing. :class:`RecordedModules` uses this time, in which another thread or process builds."""

    def needed(self, key: CacheKey, size_bytes: int) -> None:
        """A launch needs a module. If the module is being compiled, wait for it."""
        with self._lock:
            self._ready = [one for one in self._ready if one.key != key]
            running, _ = self._running.get(key.digest, (None, 0.0))
        started = now_s()
        if running is not None and self._pool is not None:
            self.wait(running, size_bytes, self._pool, begun=True)
        if (seconds := self._unasked.pop(key.digest, None)) is not None:
            self._needed_s += max(0.0, seconds - (now_s() - started))

    # ---- decisions

    def _step(self, elapsed_s: float, left_s: float, is_waiting: Callable[[], bool]) -> bool:
        """Start a build or generate a module. Returns False if there is nothing to do now."""
        if self._start(elapsed_s):
            return True
        if self._is_stopped or len(self._ready) >= _MOST_READY:
            return False
        found = self._generate(left_s, is_waiting)
        if found is not None:
            self._ready.append(found)
        return found is not None

    def _start(self, elapsed_s: float = 0.0) -> bool:
        with self._lock:
            pool = self._pool
            # one that a launch waits for counts as waiting, and a worker is left for the next launch
            if pool is None or self._is_stopped or not self._ready or len(self._running) >= pool.jobs - 1:
                return False
            if idle_cores() <= _LEFT_CORES:
                return False
            running_s = sum(expected for _, expected in self._running.values())
            unasked_s = sum(self._unasked.values()) + running_s
            budget = _MOST_PART * (self._needed_s + elapsed_s) - self._failed_s
            for one in self._ready:
                expected = self._expected_s(len(one.module.source)) + one.generation_s
                if _RISK * (unasked_s + expected) <= budget:
                    break
            else:
                return False
            if not pool.has_slot():
                return False
            self._ready.remove(one)
            self._threads = self._threads or DaemonThreads(pool.jobs, "warp_tiles_idle")
            future: Future[None] = self._threads.submit(self._build, one)
            if not future.done():
                self._running[one.key.digest] = future, expected
        return True

    def _expected_s(self, size_bytes: int) -> float:
        return size_bytes * self._built_s / self._built_bytes

    def _build(self, one: IdleModule) -> None:
        started = now_s()
        try:
            module, choice = one.module, one.context.settings.progress
            with self._engine.progress.module(module.name, module.arch, module.block_dim, choice, awaited=False):
                done = compiled(self._engine, one)
            if done is not None and done[1]:
                seconds = now_s() - started
                with self._lock:
                    self._built_s += seconds
                    self._built_bytes += len(one.module.source)
                    self._unasked[one.key.digest] = seconds + one.generation_s
                    self._compiled += 1
        except (WarpTilesError, OSError) as error:  # the launch meets it again, and reports it
            raise_if_signalled(error)
            log.debug("module %s was not compiled ahead: %s", one.module.name, error)
            with self._lock:
                self._failed_s += now_s() - started + one.generation_s
                if isinstance(error, CacheError):  # the next ones would be compiled for nothing, too
                    self._is_stopped = True
                    self._ready.clear()
        finally:
            with self._lock:
                self._running.pop(one.key.digest, None)
        self._start()

    # ---- the end

    def summary(self) -> str:
        """What was compiled on idle cores, and what of it no launch has asked for; empty if nothing was."""
        return compiled_text("on idle cores", self._compiled, tuple(self._unasked.values()))

    def close(self) -> None:
        """Start no more builds, and log what was compiled."""
        with self._lock:
            self._is_stopped = True
            self._ready.clear()
            if self._threads is not None:
                self._threads.close()
                self._threads = None
        if text := self.summary():
            log.info("%s", text)


class RecordedModules(IdleBuilds):
    """Generates the modules of a start record while a launch waits for another one, and compiles none on a budget.

    :class:`.start_record.ProgramStart` compiles the recorded sources. This class generates the modules and binds their
    start keys, so that their launches generate nothing. A module whose source has changed is compiled, too.
    """

    def __init__(self, engine: Engine, start: ProgramStart, generate: Generate) -> None:
        super().__init__(engine, generate)
        self._program_start = start

    def wait(self, work: Future[Any], size_bytes: int, pool: CompilerPool, *, begun: bool = False) -> None:
        """Generate modules until the compiler ends or no module can be generated. It does not wait for the compiler."""
        self._generate_while(lambda: not work.done())

    def wait_for_lock(self, context: BuildContext, key: CacheKey) -> None:
        """Generate modules while another thread or process compiles the one that a launch needs."""
        self._generate_while(lambda: context.modules.is_locked(key))

    def _generate_while(self, is_waiting: Callable[[], bool]) -> None:
        def goes_on() -> bool:
            return not self._program_start.is_stopped and is_waiting()

        # the time of a generation is saved at the module's launch
        while goes_on() and (one := self._generate(math.inf, goes_on)) is not None:
            self._program_start.after_build(one.module, functools.partial(self._bind, one))

    def _bind(self, one: IdleModule) -> None:
        try:
            compiled(self._engine, one)
        except (WarpTilesError, TypeError, OSError) as error:  # its launch meets the same error, and reports it
            raise_if_signalled(error)
            log.debug("module %s was not compiled ahead: %s", one.module.name, error)
