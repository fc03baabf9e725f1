"""Builds ahead of launches: of the modules of a start list, and of others that were generated ahead.

All builds ahead wait in one queue (:attr:`.context.BuildContext.queue`): prefetches first, then start lists. They
leave the next free compiler process to a launch, and a launch that waits alone gets one at once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warp_tiles.build.context import BuildContext, ahead_of_launches
from warp_tiles.build.log import now_s
from warp_tiles.build.module_build import (
    KnownModuleBuild,
    ModuleBuild,
    keys_of_functions,
    linked_key,
    payloads_of,
    request_of,
)
from warp_tiles.build.start_list import StartList, StartLists, StartModule
from warp_tiles.build.warp_module import Start, WarpModuleBuild, WarpOutput, content_key
from warp_tiles.compile.compiler import LinkRequest
from warp_tiles.compile.module import ModuleSource, reason_without_key
from warp_tiles.compile.pool import result_of
from warp_tiles.errors import CacheError, RecordError, WarpTilesError, suppressed, unless_signalled
from warp_tiles.gemm.problem import Role
from warp_tiles.plan.planning import PlannedFunction
from warp_tiles.settings import current
from warp_tiles.store import AHEAD, MODULE, absolute
from warp_tiles.store.documents import DamagedError
from warp_tiles.store.key import CacheKey
from warp_tiles.util.threads import PREFETCH, START_LIST, DaemonThreads, wait_result
from warp_tiles.util.warn import log, warn, warn_once

if TYPE_CHECKING:
    from warp_tiles.build.engine import Engine

_LOCK_S = 5.0  # at the end of a program
_FETCHES = 16  # side by side
#: What a build ahead may raise. The launch meets the same error, and reports it.
FAILURES = (WarpTilesError, TypeError, ValueError, OSError)


@dataclass(frozen=True)
class AheadModule:
    """A module that was generated ahead of its launch, with its content key.

    Attributes:
        start: The lookup of its start key; None if no such key is to be bound.
    """

    module: StartModule
    key: CacheKey
    start: Start | None
    context: BuildContext


def generated(
    engine: Engine, build: WarpModuleBuild | ModuleBuild | KnownModuleBuild, source: Path, module: ModuleSource
) -> AheadModule | None:
    """A module that Warp has generated ahead. None if only its launch may build it."""
    if (start_module := build.ahead(source, module)) is None:
        return None
    context = engine.build_context(build.plan.settings)
    key, _ = keys_of(engine, context, start_module)
    return None if key is None else AheadModule(start_module, key, build.unbound, context)


def compiled(engine: Engine, ahead: AheadModule, *, waits: bool = False) -> tuple[CacheKey, bool] | None:
    """Compile or link a generated module into the cache, and bind its start key. See :func:`build_ahead`."""
    done = build_ahead(engine, ahead.context, ahead.module, waits=waits)
    # with a remote store, only a launch binds the start key, so that only launched modules are pushed
    if done is not None and ahead.start is not None and ahead.context.remote is None:
        output = WarpOutput.of(ahead.context.modules.get(done[0]))
        if output := _output(ahead.module).equal(output):  # no key covers its metadata, and others replace entries
            ahead.start.bind(output, ahead.module.name, ahead.key.digest)
    return done


# ---- builds


def build_ahead(
    engine: Engine, context: BuildContext, module: StartModule, *, waits: bool = False, asks: bool = True
) -> tuple[CacheKey, bool] | None:
    """Compile or link a module into the cache, unless it is there, in a remote store or in the bundle.

    Only what this process has generated is pushed, under its signature.

    Args:
        waits: Wait for another thread or process that compiles it now, in place of leaving it to that.
        asks: False if the remote store is known not to have it.

    Returns:
        Its key, and True if it was compiled. None if no key covers it, if another function took the place of one of
        its functions, or if another thread or process compiles it now.

    Raises:
        CacheError: The cache cannot keep it. Others of :data:`FAILURES` are those of its launch.
    """
    source, linked = module.module_source(), module.linked
    if "\r" in module.source or reason_without_key(source, module.source):  # Warp writes no such character
        return None
    context = replace(context, ahead=context.ahead or PREFETCH)
    key, functions = keys_of(engine, context, module)
    if key is None or (not waits and context.modules.is_locked(key)):
        return None
    with context.modules.lease(key, context.upstream(MODULE, key) if asks else None) as lease:
        wanted = _output(module)
        if wanted.equal(WarpOutput.of(lease.found)) is not None:
            return key, False
        started = now_s()
        if linked is None:
            reply = result_of(context.submit(module.request()))
            binary, seconds = reply.payload, reply.seconds
        else:
            with ahead_of_launches(context.ahead):
                built = _linked(engine, context, module, functions)
            if built is None:
                return None
            binary, seconds = built, now_s() - started
        info = {"module": module.name, "build_seconds": round(seconds, 3), AHEAD: True}
        if not context.modules.put(key, replace(wanted, binary=binary).pack(), info).is_stored:
            raise CacheError("it cannot be kept", context.modules.faults[-1].remedy)
        return key, True


def _output(module: StartModule) -> WarpOutput:
    """What is stored of a module, without the binary."""
    target, linked = module.module_source().target, None if module.linked is None else asdict(module.linked)
    return WarpOutput(b"", module.source.encode("utf-8"), f".{target}.{module.output}", module.meta, linked=linked)


def _linked(engine: Engine, context: BuildContext, module: StartModule, functions: Mapping[str, str]) -> bytes | None:
    """Build the functions of a module, and link it. None if another function took the place of one."""
    source, linked = module.module_source(), module.linked
    assert linked is not None
    futures = engine.start(linked.functions, context.settings).values()
    compiled = context.submit(request_of(context, source, module.source, module.name))
    built = [wait_result(future) for future in futures]
    if {artifact.symbol: artifact.key for artifact in built} != functions:
        return None
    inputs = (result_of(compiled).payload, *payloads_of(built))
    link = LinkRequest(source.name, inputs, source.target, module.output, linked.register_limit)
    return result_of(context.submit(link)).payload


def build_order(modules: Sequence[StartModule], jobs: int) -> list[StartModule]:
    """Long modules first, the longest one foremost, because a start ends with the last module; the others in order.

    A long module has more than half of one compiler process's share of all sources. The time to compile a module is
    about proportional to the length of its source. One or two processes compile all modules in order, because a long
    module would delay the first launches.
    """
    if jobs <= 2:
        return list(modules)
    most = sum(len(module.source) for module in modules) / jobs / 2
    return sorted(modules, key=lambda module: -len(module.source) if len(module.source) > most else 0)


def keys_of(engine: Engine, context: BuildContext, module: StartModule) -> tuple[CacheKey | None, dict[str, str]]:
    """The key under which a launch looks a module up, or None if nothing covers it, and those of its functions."""
    source, linked = module.module_source(), module.linked
    if linked is None:
        return content_key(context, module.request(), f".{source.target}.{module.output}"), {}
    choose = engine.chooser(context.settings)
    called = (PlannedFunction(v, Role.FORWARD, "", "", (), True, "in a start list") for v in linked.functions)
    functions = keys_of_functions(map(choose, called))
    if not all(functions.values()):
        return None, functions
    return linked_key(context, source, module.source, functions, linked.register_limit), functions


# ---- the start of a program

Generate = Callable[[Mapping[str, int], Callable[[], bool]], AheadModule | None]


class ProgramStart:
    """A program that starts with a list: compiles ahead, notes what is loaded, and writes the list at the end.

    Listed sources are compiled from the start on. A launch that waits meanwhile generates listed modules and binds
    their start keys, so that their own launches generate nothing. A module whose source has changed is compiled, too.

    Args:
        in_warps_folder: True for a file below Warp's kernel cache that exists.
        generate: Generates one of some modules, given by name with a block size, on this thread. None if the given
            function returns false, or if no module can be generated now.
        archs: The architectures of this machine's GPUs; empty without a GPU.

    Attributes:
        listed: The first block size of each module that this process compiles ahead, by name, in their order. Empty
            if the list is not used, or if a remote store serves it.
    """

    def __init__(
        self,
        engine: Engine,
        file: Path,
        warp: str,
        in_warps_folder: Callable[[str], bool],
        generate: Generate,
        archs: Collection[int] = (),
    ) -> None:
        self.file = absolute(file)  # the program may change the working folder
        self._engine = engine
        self._warp = warp
        self._in_warps_folder = in_warps_folder
        self._generate = generate
        self._archs = archs
        self._context = replace(engine.build_context(current()), ahead=START_LIST)
        self._lists = StartLists(self._context.root, shared=self._context.settings.cache_shared)
        self.listed: dict[str, int] = {}
        self._builds: dict[tuple[object, ...], Future[None]] = {}  # by identity
        self._before: StartList | None = None
        self._is_unusable = False
        self._noted: dict[tuple[object, ...], StartModule] = {}
        self._asked: set[str] = set()  # digests of content keys
        self._compiled: dict[str, float] = {}  # seconds, by digest
        self._threads = DaemonThreads(_FETCHES, "warp_tiles_start")  # fetches and start keys wait for no build
        self.is_stopped = False

    def begin(self, instead_of: ProgramStart | None = None) -> None:
        """Start compiling what the list names, on threads. A user's file that cannot be used is warned of, and stays.

        This start replaces ``instead_of``, whose list is not written.
        """
        context, now = self._context, self._context.settings
        if instead_of is not None:
            instead_of.stop()
            self._noted, self._asked, self._compiled = instead_of._noted, instead_of._asked, instead_of._compiled
        try:
            before = self._before = self._lists.read_file(self.file)
        except RecordError as error:
            self._is_unusable = True
            warn(f"{error.message}. Remedy: {error.remedy}")
            return
        if before is None or context.bundle is not None or now.policy == "off" or not now.rules.builds:
            return
        if before.warp != self._warp:
            log.info("the start list %s is of Warp %s; this run writes it again", self.file, before.warp)
            return
        is_foreign = bool(self._engine.foreign_trust(now))
        needed = [module for module in before.modules if self._may_be_needed(module, is_foreign)]
        modules = build_order(needed, context.pool.jobs)
        if context.remote is None:
            listed: dict[str, int] = {}
            for module in needed:
                listed.setdefault(module.name, module.block_dim)
            self.listed = listed  # other threads read it
            for module in modules:
                self._queue(module)
        else:
            self._threads.submit(self._fetch_or_compile, modules)

    def _may_be_needed(self, module: StartModule, is_foreign: bool) -> bool:
        """False for a module that no GPU of this machine loads, or that Warp loads from its own folder.

        If others may choose the code (``is_foreign``), Warp's folder has a module without functions under another name.
        """
        is_kept = module.linked is not None or self._context.settings.all_modules
        is_for_here = not self._archs or module.output == "ptx" or module.arch in self._archs
        is_named = module.linked is not None or not is_foreign
        return is_kept and is_for_here and not (is_named and self._in_warps_folder(module.file))

    def stop(self) -> None:
        self.is_stopped = True
        self._threads.close()
        for build in tuple(self._builds.values()):
            build.cancel()

    def _fetch_or_compile(self, modules: Sequence[StartModule]) -> None:
        """Ask the remote store, once, what it has. Fetch that side by side, and compile the rest, in order."""
        remote = self._context.remote
        held = remote.listed(MODULE) if remote is not None else None
        for module in modules:
            if self.is_stopped:
                return
            key = None if held is None else self._key(module)
            if held is not None and key is not None and key.digest in held:
                self._threads.submit(self._fetch, module, key)
            else:
                self._queue(module, asks=held is None)

    def _key(self, module: StartModule) -> CacheKey | None:
        try:
            return keys_of(self._engine, self._context, module)[0]
        except unless_signalled(*FAILURES):  # its build meets it again
            return None

    def _fetch(self, module: StartModule, key: CacheKey) -> None:
        """Fetch a module that the remote store lists. One that does not come is compiled."""
        modules, upstream = self._context.modules, self._context.upstream(MODULE, key)
        fetched = modules.lease(key, upstream, builds=False)
        with suppressed(WarpTilesError, OSError), self._counted(module), fetched as lease:
            if lease.found is not None:
                return
        self._queue(module, asks=False)

    def _queue(self, module: StartModule, *, asks: bool = True) -> None:
        """Queue a build behind all prefetches, unless this start was stopped. The bar counts it from now on."""
        with ExitStack() as counted:
            counted.enter_context(self._counted(module))
            if self.is_stopped:
                return
            future = self._context.queue.submit(self._compile, module, asks, order=START_LIST)
            self._builds[module.identity] = future
            waiting = counted.pop_all()
            future.add_done_callback(lambda _: waiting.close())

    def _counted(self, module: StartModule) -> AbstractContextManager[None]:
        progress, choice = self._engine.progress, self._context.settings.progress
        return progress.module(module.name, module.arch, module.block_dim, choice, awaited=False)

    def after_build(self, module: StartModule, call: Callable[[], None]) -> None:
        """Run ``call`` on a thread, once the list's build of a module has ended. A stopped start runs none."""

        def run(build: Future[None] | None = None) -> None:
            if self.is_stopped or (build is not None and build.cancelled()):
                return
            with suppressed(RuntimeError):  # it is stopped now
                self._threads.submit(call)

        if (build := self._builds.get(module.identity)) is None:
            run()
        else:
            build.add_done_callback(run)

    def generate_while(self, is_waiting: Callable[[], bool]) -> None:
        """Generate modules until a launch need not wait any longer, or no module can be generated."""

        def goes_on() -> bool:
            return not self.is_stopped and is_waiting()

        # the time of a generation is saved at the module's launch
        while goes_on() and (ahead := self._generate(self.listed, goes_on)) is not None:
            self.after_build(ahead.module, functools.partial(self._bind, ahead))

    def _bind(self, ahead: AheadModule) -> None:
        try:
            compiled(self._engine, ahead)
        except unless_signalled(*FAILURES) as error:  # its launch meets the same error, and reports it
            log.debug("module %s was not compiled ahead: %s", ahead.module.name, error)

    def _compile(self, module: StartModule, asks: bool) -> None:
        if self.is_stopped:
            return
        started = now_s()
        try:
            if (done := build_ahead(self._engine, self._context, module, asks=asks)) is not None and done[1]:
                self._compiled[done[0].digest] = now_s() - started
        except CacheError as error:  # the next ones would be built for nothing, too
            self.stop()
            warn_once(
                f"the start list {self.file} is not used any further: what it names cannot be kept. {error.remedy}"
            )
        except unless_signalled(*FAILURES) as error:  # the launch meets it again, and reports it
            log.debug("module %s was not compiled ahead: %s", module.name, error)

    def note(self, module: StartModule, digest: str) -> None:
        """Note a module that a launch needs, with its key in the cache."""
        self._asked.add(digest)
        try:
            StartModule.from_json(json.loads(json.dumps(asdict(module))))
        except DamagedError as error:  # the next start would refuse the whole list
            log.info("module %s is not in the start list: %s", module.name, error)
            return
        self._noted[module.identity] = module

    def to_json(self) -> dict[str, Any]:
        """What was compiled ahead, and what of it no launch has asked for, as :func:`warp_tiles.report` has it."""
        count, unused = self._counts()
        facts = {"file": str(self.file), "compiled": count, "used": count - len(unused), "unused": len(unused)}
        return {**facts, "unused_seconds": round(sum(unused), 3)}

    def _counts(self) -> tuple[int, list[float]]:
        compiled = dict(self._compiled)
        return len(compiled), [seconds for digest, seconds in compiled.items() if digest not in self._asked]

    def summary(self) -> str:
        """The same in words; empty if nothing was compiled."""
        count, unused = self._counts()
        waste = f", {len(unused)} of them for no launch ({sum(unused):.1f} s)" if unused else ""
        return f"compiled ahead: {count}{waste}" if count else ""

    def close(self, loaded: Callable[[StartModule], bool]) -> None:
        """End the builds, and write the list if it has changed. ``loaded`` tells what came from Warp's own folder."""
        self.stop()
        if text := self.summary():
            log.info("start list %s: %s", self.file, text)
        if self._is_unusable or self._next(self._before, loaded) is None:
            return
        try:
            self._lists.update(self.file, functools.partial(self._next, loaded=loaded), _LOCK_S)
        except unless_signalled(TimeoutError) as error:
            log.info("the start list %s was not written, because others write theirs: %s", self.file, error)
        except unless_signalled(WarpTilesError, OSError) as error:
            warn(f"the start list {self.file} was not written: {error}")

    def _next(self, before: StartList | None, loaded: Callable[[StartModule], bool]) -> StartList | None:
        """The list to write; None if nothing was loaded, or if the file has it already."""
        after = (before or StartList(self._warp)).after(self._warp, self._noted.values(), loaded)
        return after if after.modules and after != before else None
