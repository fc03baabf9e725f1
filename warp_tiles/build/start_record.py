"""Start records: the modules that a program loaded, with their sources, which its next start compiles ahead.

A record binds nothing. What it compiles is an entry under the content key of a source (:mod:`.warp_module`), and a
launch finds that entry only if Warp generates the same source. A stale record costs the builds that nobody asks for.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

from warp_tiles.build.functions import Linked
from warp_tiles.build.module_build import key_ahead, link_ahead
from warp_tiles.build.records import now_s
from warp_tiles.build.warp_module import WarpOutput, content_key
from warp_tiles.compile.module import (
    SWITCHES,
    ModuleSource,
    WarpCompileRequest,
    reason_without_key,
    warp_headers_folder,
)
from warp_tiles.compile.pool import result_of
from warp_tiles.errors import CacheError, RecordError, WarpTilesError
from warp_tiles.plan.planning import ModulePlan
from warp_tiles.settings import current
from warp_tiles.store import AHEAD, MODULE
from warp_tiles.store.paths import LOCKS, STARTS, absolute
from warp_tiles.store.sealed import DamagedError, parse_object
from warp_tiles.util.files import read_whole, write_output
from warp_tiles.util.threads import DaemonThreads, raise_if_signalled, suppressed
from warp_tiles.util.trusted_folder import TrustedFolder
from warp_tiles.util.warn import WarnedTexts, shown, warn

if TYPE_CHECKING:
    from warp_tiles.build.context import BuildContext
    from warp_tiles.build.engine import Engine
    from warp_tiles.store.key import CacheKey

log = logging.getLogger("warp_tiles")
_MOST_BYTES, _MOST_MODULES = 256 << 20, 4096
_MOST_RECORDS = 64  # of scripts, below the cache's root
_LOCK_S = 5.0
_FETCHES = 16  # side by side
_MOST_NAME = 250
_said = WarnedTexts()
_SUFFIXES = {"a": 90, "f": 100}  # the first architecture with each suffix
_CLUSTERS = 90  # the first architecture with them
_IN_CLUSTERS = tuple(f"WP_CLUSTER_DIMS({digit}" for digit in "123456789")  # in kernels, other than the macro itself
_TILE_CALLS = ("tile_matmul", "tile_fft", "tile_ifft", "tile_cholesky", "tile_lower_solve", "tile_upper_solve")


@dataclass(frozen=True)
class StartModule:
    """One module, as Warp passed it to its compiler.

    Attributes:
        program: The name of its source in unmodified Warp, with the first digits of Warp's hash.
        arch: Compute capability, e.g. ``90``.
        suffix: Warp's suffix of the architecture, e.g. ``a``.
        output: ``cubin`` or ``ptx``.
        switches: ``verify_fp``, ``fast_math``, ``fuse_fp`` and ``use_precompiled_headers``.
        meta: Warp's metadata of the kernels: bytes of shared memory, by name. Empty for a module of warp_tiles.
        linked: What a module of warp_tiles is linked from; None for a module that Warp's compiler builds.
    """

    name: str
    block_dim: int
    program: str
    arch: int
    suffix: str
    output: str
    optimization_level: int
    switches: tuple[bool, ...]
    meta: Mapping[str, int]
    source: str
    linked: Linked | None = None

    @classmethod
    def of(
        cls, name: str, block_dim: int, request: WarpCompileRequest, meta: Mapping[str, Any], linked: Linked | None
    ) -> StartModule:
        """The module of a request of Warp's compiler."""
        return cls(
            name, block_dim, request.name, request.arch, request.suffix, request.output, request.optimization_level,
            request.switches, dict(meta), request.source.decode("utf-8"), linked,
        )  # fmt: skip

    @classmethod
    def from_json(cls, data: object) -> StartModule:
        """Read what ``asdict()`` has written, from untrusted JSON values.

        Raises:
            DamagedError: A field is missing, unknown or of another kind.
        """
        kinds = {field.name: {"int": int, "str": str}.get(str(field.type), object) for field in fields(cls)}
        if not isinstance(data, dict) or data.keys() != kinds.keys():
            raise DamagedError("a module has other fields")
        for name, kind in kinds.items():
            if kind is not object and type(data[name]) is not kind:
                raise DamagedError(f"{name} is {shown(data[name])}")
        meta, switches = data["meta"], data["switches"]
        if not isinstance(meta, dict) or not all(type(size) is int for size in meta.values()):
            raise DamagedError("meta is no table of sizes")
        if not isinstance(switches, list) or [type(value) for value in switches] != [bool] * 4:
            raise DamagedError(f"switches is {shown(switches)}")
        if not data["name"].isprintable():  # terminals and logs show it
            raise DamagedError(f"name is {shown(data['name'])}")
        if not _is_name(data["program"]) or data["suffix"] not in ("", *ascii_lowercase):
            raise DamagedError(f"program is {shown(data['program'])}, suffix is {shown(data['suffix'])}")
        if data["output"] not in ("cubin", "ptx") or not 0 < data["arch"] < 1000:
            raise DamagedError(f"output is {shown(data['output'])}, arch is {shown(data['arch'])}")
        try:
            linked = None if data["linked"] is None else Linked.from_json(data["linked"])
        except ValueError as error:
            raise DamagedError(f"linked: {error}") from error
        return cls(**{**data, "switches": tuple(switches), "linked": linked})

    @property
    def place(self) -> tuple[str, int, int, str]:
        """What a newer version of the module replaces."""
        return self.name, self.block_dim, self.arch, self.output

    @property
    def file(self) -> str:
        """The path of its binary below Warp's kernel cache."""
        stem = self.program.removesuffix(".cu")
        return f"{stem}/{stem}.sm{self.arch}{self.suffix}.{self.output}"

    def reason_bound(self, arch: int) -> str:
        """Why this source is not that of the module for another architecture; empty if it is."""
        if arch == self.arch:
            return ""
        if arch < _SUFFIXES.get(self.suffix, 0):
            return f"sm_{arch} has no suffix {self.suffix}"
        if arch < _CLUSTERS and any(mark in self.source for mark in _IN_CLUSTERS):
            return f"sm_{arch} has no clusters of thread blocks"
        depends = self.linked is not None or any(call in self.source for call in _TILE_CALLS)
        return "its products, solvers or FFTs depend on it" if depends else ""

    def module_source(self) -> ModuleSource:
        """The module as Warp passes it to its compiler."""
        suffix = self.linked.suffix if self.linked is not None else ""
        keywords: dict[str, object] = {"optimization_level": self.optimization_level, "arch_suffix": self.suffix}
        keywords |= zip(SWITCHES, self.switches)
        return ModuleSource(self.program, self.arch, self.output, str(warp_headers_folder()), keywords, suffix)

    def request(self) -> WarpCompileRequest:
        """The request of the installed Warp's compiler."""
        return WarpCompileRequest.of(self.module_source(), self.source.encode("utf-8"))


@dataclass(frozen=True)
class StartRecord:
    """What a program loads.

    Attributes:
        warp: Version of Warp that generated the sources.
        modules: What the last run loaded, in the order in which runs have met them, then what only earlier runs loaded.
            Each run keeps at most as many of these as it has loaded itself, or half of the record, so that one short
            run loses little and stale modules go.
    """

    warp: str
    modules: tuple[StartModule, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> StartRecord:
        """Parse the text of a record.

        Raises:
            DamagedError: It is none.
        """
        found = parse_object(data)
        if found.keys() != {"warp", "modules"} or not isinstance(found["warp"], str):
            raise DamagedError("it is no start record")
        if not found["warp"].isprintable():
            raise DamagedError(f"warp is {shown(found['warp'])}")
        given = found["modules"]
        if not isinstance(given, list) or len(given) > _MOST_MODULES:
            raise DamagedError("it has no list of modules, or too long a one")
        return cls(found["warp"], tuple(map(StartModule.from_json, given)))

    def to_bytes(self) -> bytes:
        """The text: JSON that is the same for the same modules."""
        return (json.dumps(asdict(self), indent=1, ensure_ascii=True) + "\n").encode("ascii")

    def after(self, warp: str, built: Iterable[StartModule], loaded: Callable[[StartModule], bool]) -> StartRecord:
        """The record after a run; this one if the run has loaded nothing.

        Args:
            warp: Version of Warp in the run.
            built: What was built or taken from the cache, in order.
            loaded: True for a module of this record that the run has loaded from Warp's own folder.
        """
        before = self.modules if self.warp == warp else ()
        known = {module.place: module for module in before}
        new = {module.place: module for module in built}
        modules = [new.pop(place, module) for place, module in known.items() if place in new or loaded(module)]
        modules += new.values()
        if not modules:
            return self
        here = {module.place for module in modules}
        others = [module for module in before if module.place not in here]
        kept = (*modules, *others[: max(len(modules), len(before) // 2)])
        return StartRecord(warp, kept[:_MOST_MODULES])


def _is_name(program: str) -> bool:
    """True for a name that Warp gives to a source, which is no path."""
    return (
        program.startswith("wp_")
        and program.endswith(".cu")
        and len(program) <= _MOST_NAME
        and program.isprintable()
        and not set(program) & set("/\\")
    )


def read_record(file: Path, folder: TrustedFolder | None = None) -> StartRecord | None:
    """Read a start record; None if there is none.

    Args:
        folder: The cache's folder that holds it; None for a file that the user names, whose links are followed.

    Raises:
        RecordError: The file cannot be read, or is damaged.
    """
    try:
        data, _ = read_whole(file, _MOST_BYTES) if folder is None else folder.read(file.name, _MOST_BYTES)
        return StartRecord.from_bytes(data)
    except FileNotFoundError:
        return None
    except (OSError, DamagedError) as error:
        raise_if_signalled(error)
        raise RecordError(
            f"the start record {file} cannot be used: {error}", "remove it; a run writes it again"
        ) from error


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
        CacheError: The cache cannot keep it.
        WarpTilesError: It or one of its functions cannot be built.
        TypeError: The settings leave a product to Warp that it cannot compute.
        OSError: Warp's files cannot be read.
    """
    source, linked = module.module_source(), module.linked
    if "\r" in module.source or reason_without_key(source, module.source):  # Warp writes no such character
        return None
    key, functions = keys_of(engine, context, module)
    if key is None or (not waits and context.modules.is_locked(key)):
        return None
    with context.modules.lease(key, context.upstream(MODULE, key) if asks else None) as lease:
        started = now_s()
        if linked is None:
            request = module.request()
            wanted = WarpOutput(b"", request.source, f".{source.target}.{module.output}", module.meta)
            if wanted.equal(WarpOutput.of(lease.found)) is not None:
                return key, False
            compiled = result_of(replace(context, ahead=True).submit(request))
            payload, seconds = replace(wanted, binary=compiled.payload).pack(), compiled.seconds
        else:
            if lease.found is not None:
                return key, False
            bare = _bare_plan(context, module)
            binary = link_ahead(engine, bare, source, module.source, linked, functions)
            if binary is None:
                return None
            payload, seconds = binary, now_s() - started
        info = {"module": module.name, "build_seconds": round(seconds, 3), AHEAD: True}
        if not context.modules.put(key, payload, info).is_stored:
            raise CacheError("it cannot be kept", context.modules.problems[-1].remedy)
        return key, True


def _bare_plan(context: BuildContext, module: StartModule) -> ModulePlan:
    return ModulePlan(module.name, module.arch, module.block_dim, (), (), context.settings)


def build_order(modules: Sequence[StartModule], jobs: int) -> list[StartModule]:
    """Long modules first, the longest one foremost, because a start ends with the last module; the others in order.

    A long module has more than half of one compiler process's share of all sources. The time to compile a module is
    about proportional to the length of its source. One or two processes compile all modules in order, because a long
    module would delay the first launches.
    """
    if jobs <= 2:
        return list(modules)
    most = sum(len(one.source) for one in modules) / jobs / 2
    return sorted(modules, key=lambda one: -len(one.source) if len(one.source) > most else 0)


def keys_of(engine: Engine, context: BuildContext, module: StartModule) -> tuple[CacheKey | None, dict[str, str]]:
    """The key under which a launch looks a module up, or None if nothing covers it, and those of its functions."""
    source = module.module_source()
    if module.linked is None:
        return content_key(context, module.request(), f".{source.target}.{module.output}"), {}
    return key_ahead(engine, _bare_plan(context, module), source, module.source, module.linked)


class ProgramStart:
    """A program that starts with a record: compiles ahead, notes what is loaded, and writes the record at the end.

    Args:
        warp: Version of the installed Warp.
        in_warps_folder: True for a file below Warp's kernel cache that exists.
        archs: The architectures of this machine's GPUs; empty without a GPU.

    Attributes:
        recorded: The first block size of each module that this process compiles ahead, by name, in their order.
            Empty if the record is not used, or if a remote store serves it; None if there is none.
        is_stopped: True if no further fetch or build begins.
    """

    def __init__(
        self,
        engine: Engine,
        file: Path,
        warp: str,
        in_warps_folder: Callable[[str], bool],
        archs: Collection[int] = (),
    ) -> None:
        self.file = absolute(file)  # the program may change the working folder
        self._engine = engine
        self._warp = warp
        self._in_warps_folder = in_warps_folder
        self._archs = archs
        self._context = engine.build_context(current())
        root, shared = self._context.root, self._context.settings.cache_shared
        self._root = TrustedFolder(root, shared=shared)
        self._own = TrustedFolder(root, STARTS, shared=shared) if self.file.parent == root / STARTS else None
        self.recorded: dict[str, int] | None = None
        self._builds: dict[tuple[object, ...], Future[None]] = {}  # by place
        self._before: StartRecord | None = None
        self._is_unusable = False
        self._noted: dict[tuple[object, ...], StartModule] = {}
        self._asked: set[str] = set()  # digests of content keys
        self._compiled: dict[str, float] = {}  # seconds, by digest
        self._threads: DaemonThreads | None = None
        self._fetches = DaemonThreads(_FETCHES, "warp_tiles_fetch")  # these wait for no build
        self._followers = DaemonThreads(_FETCHES, "warp_tiles_follow")  # what follows a build waits for no other
        self.is_stopped = False

    def begin(self, instead_of: ProgramStart | None = None) -> None:
        """Start compiling what the record names, on threads. A record that cannot be used is warned of, and stays.

        Args:
            instead_of: The start whose record is not written, because this one replaces it.
        """
        context, now = self._context, self._context.settings
        if instead_of is not None:
            instead_of.stop()
            self._noted, self._asked, self._compiled = instead_of._noted, instead_of._asked, instead_of._compiled
        try:
            record = self._before = read_record(self.file, self._own)
        except RecordError as error:
            self._is_unusable, self.recorded = True, {}
            warn(f"{error.message}. Remedy: {error.remedy}")
            return
        if record is not None and self._own is not None:
            with suppressed(OSError):
                self._own.touch(self.file.name)  # the least recently used one is removed first
        if record is None:
            return
        self.recorded = {}
        if context.bundle is not None or now.policy == "off" or not now.rules.builds:
            return
        if record.warp != self._warp:
            log.info("the start record %s is of Warp %s; this run writes it again", self.file, record.warp)
            return
        self._threads = DaemonThreads(context.pool.jobs, "warp_tiles_start")
        is_foreign = bool(self._engine.foreign_trust(now))
        needed = [one for one in record.modules if self._may_be_needed(one, is_foreign)]
        modules = build_order(needed, context.pool.jobs)
        if context.remote is None:
            for module in needed:
                self.recorded.setdefault(module.name, module.block_dim)
            for module in modules:
                self._queue(self._threads, self._compile, module)
        else:
            self._fetches.submit(self._fetch_or_compile, self._threads, modules)

    def _may_be_needed(self, module: StartModule, is_foreign: bool) -> bool:
        """False for a module that no GPU of this machine loads, or that Warp loads from its own folder.

        Args:
            is_foreign: True if others may choose the code. Warp's folder then has a module without functions under a
                name that covers them, which the record does not know.
        """
        is_for_here = not self._archs or module.output == "ptx" or module.arch in self._archs
        is_named = module.linked is not None or not is_foreign
        return is_for_here and not (is_named and self._in_warps_folder(module.file))

    def stop(self) -> None:
        """Begin no further fetch or build."""
        self.is_stopped = True
        for threads in filter(None, (self._fetches, self._threads, self._followers)):
            threads.close()

    def _fetch_or_compile(self, threads: DaemonThreads, modules: Sequence[StartModule]) -> None:
        """Ask the remote store, once, what it has. Fetch that side by side, and compile the rest, in order."""
        remote = self._context.remote
        held = remote.listed(MODULE) if remote is not None else None
        for module in modules:
            if self.is_stopped:
                return
            key = None
            with suppressed(WarpTilesError, TypeError, OSError):  # its build meets it again
                key = keys_of(self._engine, self._context, module)[0] if held is not None else None
            if held is not None and key is not None and key.digest in held:
                self._queue(self._fetches, self._fetch, module, key, threads)
            else:
                self._queue(threads, self._compile, module, held is None)

    def _fetch(self, module: StartModule, key: CacheKey, threads: DaemonThreads) -> None:
        """Fetch a module that the remote store lists. One that does not come is compiled."""
        modules, upstream = self._context.modules, self._context.upstream(MODULE, key)
        with suppressed(WarpTilesError, OSError), modules.lease(key, upstream, builds=False) as lease:
            if lease.found is not None:
                return
        self._queue(threads, self._compile, module, False)

    def _queue(self, threads: DaemonThreads, work: Callable[..., None], module: StartModule, *more: Any) -> None:
        """Fetch or build a module on a thread, unless this start was stopped. The bar counts it until then."""
        progress, choice = self._engine.progress, self._context.settings.progress
        with ExitStack() as counted:
            counted.enter_context(progress.module(module.name, module.arch, module.block_dim, choice, awaited=False))
            try:
                future = threads.submit(work, module, *more)
            except RuntimeError as stopped:
                raise_if_signalled(stopped)
                return
            self._builds[module.place] = future
            waiting = counted.pop_all()

            def end(future: Future[None]) -> None:
                waiting.close()
                if self._builds.get(module.place) is future:
                    del self._builds[module.place]

            future.add_done_callback(end)

    def after_build(self, module: StartModule, call: Callable[[], None]) -> None:
        """Run ``call`` on a thread, once the record's build of a module has ended. A stopped start runs none."""

        def run(build: Future[None] | None = None) -> None:
            if self.is_stopped or (build is not None and build.cancelled()):
                return
            with suppressed(RuntimeError):  # it is stopped now
                self._followers.submit(call)

        if (build := self._builds.get(module.place)) is None:
            run()
        else:
            build.add_done_callback(run)

    def _compile(self, module: StartModule, asks: bool = True) -> None:
        if self.is_stopped:
            return
        started = now_s()
        try:
            if (done := build_ahead(self._engine, self._context, module, asks=asks)) is not None and done[1]:
                self._compiled[done[0].digest] = now_s() - started
        except CacheError as error:  # the next ones would be built for nothing, too
            self.stop()
            warn(
                f"the start record {self.file} is not used any further: what it names cannot be kept. {error.remedy}",
                _said,
            )
        except (WarpTilesError, TypeError, OSError) as error:  # the launch meets it again, and reports it
            raise_if_signalled(error)
            log.debug("module %s was not compiled ahead: %s", module.name, error)

    def note(
        self,
        name: str,
        block_dim: int,
        request: WarpCompileRequest,
        meta: Mapping[str, Any],
        digest: str,
        linked: Linked | None = None,
    ) -> None:
        """Note a module that is loaded, from the request of Warp's compiler and its key in the cache."""
        self.add(StartModule.of(name, block_dim, request, meta, linked), digest)

    def add(self, module: StartModule, digest: str) -> None:
        """Note a module that a launch needs, with its key in the cache."""
        self._asked.add(digest)
        try:
            StartModule.from_json(json.loads(json.dumps(asdict(module))))
        except DamagedError as error:  # the next start would refuse the whole record
            log.info("module %s is not in the start record: %s", module.name, error)
            return
        if len(self._noted) < _MOST_MODULES:
            self._noted[module.place] = module

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
        """End the builds, and write the record if it has changed.

        Args:
            loaded: True for a module of the record that this process has loaded from Warp's own folder.
        """
        self.stop()
        if text := self.summary():
            log.info("start record %s: %s", self.file, text)
        if self._is_unusable or self._next(self._before, loaded) is None:
            return
        try:
            with self._root.lock(f"{LOCKS}/{STARTS}.lock", _LOCK_S):
                before = read_record(self.file, self._own)  # another process may have written it meanwhile
                if (record := self._next(before, loaded)) is not None:
                    self._write(record)
        except TimeoutError as error:
            raise_if_signalled(error)
            log.info("the start record %s was not written, because others write theirs: %s", self.file, error)
        except (WarpTilesError, OSError) as error:
            raise_if_signalled(error)
            warn(f"the start record {self.file} was not written: {error}")

    def _next(self, before: StartRecord | None, loaded: Callable[[StartModule], bool]) -> StartRecord | None:
        """The record to write; None if nothing was loaded, or if the file has it already."""
        after = (before or StartRecord(self._warp)).after(self._warp, self._noted.values(), loaded)
        return after if after.modules and after != before else None

    def _write(self, record: StartRecord) -> None:
        data = record.to_bytes()
        if len(data) > _MOST_BYTES:
            raise RecordError(f"it would have more than {_MOST_BYTES} bytes, which is the most that is read")
        if self._own is None:
            write_output(self.file, data)
            return
        self._own.write(self.file.name, data)
        kept = sorted((status.st_mtime_ns, name) for name, status in self._own.files())
        for _, name in kept[:-_MOST_RECORDS]:
            self._own.remove(name)
