"""Builds by an executor of the user: what is sent to a worker, what it does, and when its reply counts.

A request names its include folders by their path. :meth:`Installation.portable` replaces them by names, which
:meth:`Installation.localized` turns into the folders of another machine. The facts that such a request needs are
digests, so two installations with equal facts give equal code.

A reply is used only if it names the digests of the same compiler, headers and sources that the cache keys and module
hashes here contain. Otherwise a result of another compiler would be stored under the right key.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
import threading
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from warp_tiles.build.context import BuildContext, Resources
from warp_tiles.compile.compiler import Compiled, CompileRequest, LinkRequest
from warp_tiles.compile.find import Version, dotted, package_version
from warp_tiles.compile.module import WarpCompileRequest, warp_headers_folder
from warp_tiles.compile.pool import CompilerPool, result_of
from warp_tiles.compile.sources import code_modules, kernels_folder
from warp_tiles.compile.toolchain import ToolchainFacts, files_state
from warp_tiles.errors import RefusedWorkerError, ToolchainError, WarpTilesError, WorkerError, unless_signalled
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.settings import Settings, current
from warp_tiles.util.threads import LAUNCH
from warp_tiles.util.version import __version__
from warp_tiles.util.warn import log

if TYPE_CHECKING:
    from warp_tiles.compile.pool import Request

CODE, COMPILER, LINKER = "warp_tiles", "NVRTC", "nvJitLink"
DEVICE_SOURCES, CUDA_HEADERS, WARP_HEADERS = "device sources", "CUDA headers", "Warp headers"
ALL = (CODE, COMPILER, LINKER, DEVICE_SOURCES, CUDA_HEADERS, WARP_HEADERS)

_KERNELS, _CUDA, _WARP = "kernels:", "cuda:", "warp:"  # a path begins with a slash or a drive
_SHOWN_DIGITS = 12
_LOOK = "look at the executor's own log"
SAME_PACKAGES = "install the same versions of warp-tiles, warp-lang and NVIDIA's packages where the executor runs"


@dataclass(frozen=True)
class Fact:
    """One part of an installation that affects machine code. Two are equal if their digests (SHA-256) are.

    Without a part the digest is empty, and the version is the reason.
    """

    digest: str
    version: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.version} (SHA-256 {self.digest[:_SHOWN_DIGITS]})" if self.digest else self.version


Facts = tuple[tuple[str, Fact], ...]


class Installation:
    """The parts of this machine's installation that affect machine code."""

    def __init__(self, facts: ToolchainFacts) -> None:
        self.toolchain_facts = facts

    def facts(self, names: Iterable[str]) -> Facts:
        """The facts with these names, in this order. They are taken anew, because files can be replaced."""
        return tuple((name, self._fact(name)) for name in names)

    @functools.cached_property
    def _code(self) -> Fact:
        """The package's own modules. Those that are loaded do not change."""
        return Fact(self.toolchain_facts.digests.digest_many(code_modules()), __version__)

    def _fact(self, name: str) -> Fact:
        try:
            if name == CODE:
                return self._code
            toolchain = self.toolchain_facts.toolchain()
            if name == COMPILER:
                return Fact(self.toolchain_facts.compiler_digest(), dotted(toolchain.nvrtc_version))
            if name == LINKER:
                version = dotted(toolchain.nvjitlink_version) if toolchain.nvjitlink else "missing"
                return Fact(self.toolchain_facts.linker_digest(), version)
            if name == DEVICE_SOURCES:
                return Fact(self.toolchain_facts.digests.digest_folder(kernels_folder(), "*.cuh"), __version__)
            if name == CUDA_HEADERS:
                source = CublasdxProvider(self.toolchain_facts).source()
                return Fact(self.toolchain_facts.source_digest(source), f"mathdx {toolchain.mathdx_version}")
            folder = warp_headers_folder()
            if name == WARP_HEADERS and folder is not None:
                return Fact(self.toolchain_facts.digests.digest_folder(folder, "*.h"), package_version("warp-lang"))
        except unless_signalled(OSError, ToolchainError) as error:
            return Fact("", f"missing ({getattr(error, 'message', error)})")
        return Fact("", "missing" if name in ALL else "unknown")

    # ---- include folders

    def _folders(self) -> list[tuple[str, str, str]]:
        """The include folders that other machines have, too: path, name in a request, and the fact about its files."""
        kernels, native = kernels_folder(), warp_headers_folder()
        inner = [kernels, *(folder for folder in kernels.rglob("*") if folder.is_dir())]
        folders = [(path, f"{_KERNELS}{path.relative_to(kernels).as_posix()}", DEVICE_SOURCES) for path in inner]
        folders += [(path, _CUDA, CUDA_HEADERS) for path in self.toolchain_facts.toolchain().include_dirs]
        folders += [(native, _WARP, WARP_HEADERS)] if native is not None else []
        return [(os.fspath(path), name, fact) for path, name, fact in folders]

    def portable(
        self, request: CompileRequest | LinkRequest
    ) -> tuple[CompileRequest | LinkRequest, tuple[str, ...]] | None:
        """A request without paths of this machine, and the names of the facts that decide its result.

        None if it has an include folder that other machines cannot be expected to have.
        """
        if isinstance(request, LinkRequest):
            return request, (CODE, LINKER)
        known = {path: (name, fact) for path, name, fact in self._folders()}
        if not known.keys() >= set(request.include_dirs):
            return None
        named = dict.fromkeys(known[path] for path in request.include_dirs)  # the CUDA headers have one name together
        needed = {CODE, COMPILER, *(fact for _, fact in named)}
        sent = replace(request, include_dirs=tuple(name for name, _ in named))
        return sent, tuple(fact for fact in ALL if fact in needed)

    def localized(self, request: CompileRequest | LinkRequest) -> CompileRequest | LinkRequest:
        """The request of :meth:`portable` with folders of this machine. Raises ToolchainError if it lacks one."""
        if isinstance(request, LinkRequest):
            return request
        known, include_dirs = self._folders(), list[str]()
        for name in request.include_dirs:
            if not (paths := [path for path, portable, _ in known if portable == name]):
                raise ToolchainError(f"a request names the include folder {name!r}, which is not known here")
            include_dirs += paths
        return replace(request, include_dirs=tuple(include_dirs))


# ---- the worker's side
#
# The functions of this part run in processes of Dask, MPI or another executor. They are imported there by name, so the
# worker needs this package. A worker compiles in compiler processes of its own, like any other process: a crash of the
# compiler does not end the worker, and several threads compile at the same time.


@dataclass(frozen=True)
class Job:
    """A request for a worker; None asks for its installation alone.

    Attributes:
        submission: Differs in each submission, because Dask gives equal calls one result, errors included.
        warp_toolkit: The CUDA version of the sender's Warp, which decides among the compilers of the worker.
    """

    request: CompileRequest | LinkRequest | None
    expected: Facts
    submission: str = ""
    warp_toolkit: Version | None = None

    def __dask_tokenize__(self) -> str:
        """The identity of a call for Dask, which otherwise digests the whole request in 30 ms."""
        return self.submission


@dataclass(frozen=True)
class Reply:
    """The reply of a worker. The sender decides whether it counts.

    ``worker`` is empty with a result, because finding its name takes time. ``found`` are the expected parts of the
    worker's installation; if they differ, nothing was compiled.
    """

    worker: str
    found: Facts
    compiled: Compiled | None = None
    failure: WarpTilesError | None = None


def worker_name() -> str:
    """Host and process of this worker, and the address by which Dask knows it."""
    name = f"{platform.node() or 'unknown host'}, process {os.getpid()}"
    if "distributed" in sys.modules:
        with contextlib.suppress(Exception):  # no worker of Dask, or another release of it
            from distributed import get_worker

            return f"{get_worker().address} ({name})"
    return name


def run_job(job: Job) -> Reply:
    """Compile or link with this worker's installation if it is like the sender's, or without a request look at it."""
    facts: Facts = ()
    try:
        workshop = _workshop(job.warp_toolkit)
        facts = workshop.installation.facts([name for name, _ in job.expected])
        if job.request is None or facts != job.expected:
            return Reply(worker_name(), facts)
        return Reply("", facts, workshop.run(job.request))
    except WarpTilesError as error:
        return Reply(worker_name(), facts, failure=error)


class _Workshop:
    """The compilers of this worker under its own settings."""

    def __init__(self, now: Settings, warp_toolkit: Version | None) -> None:
        self._context = BuildContext(Resources(warp_toolkit), now)
        self._facts = self._context.facts
        self.installation = Installation(self._facts)
        self._libraries: list[Any] = []
        self._lock = threading.Lock()

    def run(self, request: CompileRequest | LinkRequest) -> Compiled:
        return result_of(self._current().submit(self.installation.localized(request)))

    def _current(self) -> BuildContext:
        """The context. New compiler processes replace those that loaded a library which was replaced since."""
        libraries = files_state(self._facts.toolchain())
        with self._lock:
            if self._libraries not in ([], libraries):
                self._context.resources.close()
                resources = Resources(self._context.resources.warp_toolkit)
                self._context = BuildContext(resources, self._context.settings)
            self._libraries = libraries
            return self._context


_workshops: dict[tuple[int, Settings, Version | None], _Workshop] = {}
_lock = threading.Lock()


def _workshop(warp_toolkit: Version | None) -> _Workshop:
    """The workshop of this process under its present settings. Raises a SettingError if one is invalid."""
    now = current()
    with _lock:
        identity = (os.getpid(), now, warp_toolkit)  # a forked child has no compiler processes of its parent
        if identity not in _workshops:
            _workshops[identity] = _Workshop(now, warp_toolkit)
        return _workshops[identity]


# ---- the sender's side


class ExecutorPool(CompilerPool):
    """Runs requests on an executor of the user, and those with include folders of the user on processes here.

    The executor runs :func:`run_job`, and stays open when this closes.
    """

    def __init__(self, executor: Executor, installation: Installation, jobs: int = 0) -> None:
        toolchain = installation.toolchain_facts.try_toolchain()  # for requests that are compiled here
        super().__init__(jobs, libraries=() if toolchain is None else toolchain.paths)
        self._executor = executor
        self._installation = installation
        self._pending: set[Future[Reply]] = set()

    def submit(self, request: Request, *, ahead: int = LAUNCH) -> Future[Compiled]:
        """See :meth:`CompilerPool.submit`. Processes of this machine compile what Warp's own compiler has to."""
        if isinstance(request, WarpCompileRequest):
            return super().submit(request, ahead=ahead)
        try:
            portable = self._installation.portable(request)
            if portable is None:
                log.info("%s includes folders of this machine, so it is compiled here", request.name)
                return super().submit(request, ahead=ahead)
            facts = self._installation.facts(portable[1])
            job = Job(portable[0], facts, uuid.uuid4().hex, self._installation.toolchain_facts.warp_toolkit)
            sent = self._executor.submit(run_job, job)
        except unless_signalled(Exception) as error:
            failed: Future[Compiled] = Future()
            failed.set_exception(error if isinstance(error, WarpTilesError) else executor_error(error))
            return failed
        with self._lock:
            self._pending.add(sent)
        checked: Future[Compiled] = Future()
        checked.set_running_or_notify_cancel()
        sent.add_done_callback(lambda done: self._pass_on(job, done, checked))
        return checked

    def _pass_on(self, job: Job, done: Future[Reply], checked: Future[Compiled]) -> None:
        with self._lock:
            self._pending.discard(done)
        try:
            if done.cancelled():
                raise WorkerError("the executor cancelled a request: it ended, or its scheduler was lost", _LOOK)
            if (error := done.exception()) is not None:
                raise executor_error(error)
            reply = done.result()
            if reply.found and (text := differences(job.expected, reply.found)):
                raise RefusedWorkerError(f"the worker {reply.worker} is refused: {text}", SAME_PACKAGES)
            if reply.failure is not None:
                raise reply.failure
            if reply.compiled is None or not reply.found:
                raise WorkerError(f"a worker {reply.worker} sent no proof of its compiler", SAME_PACKAGES)
            checked.set_result(replace(reply.compiled, ended_at_s=time.perf_counter()))  # by the clock of this machine
        except WarpTilesError as failure:
            checked.set_exception(failure)
        except Exception as error:  # a reply of a foreign type
            checked.set_exception(executor_error(error))

    def start_processes(self, count: int) -> None:
        """Does nothing: the executor starts its workers."""

    def close(self) -> None:
        """Cancel the requests that are under way. The executor continues."""
        with self._lock:
            pending, self._pending = self._pending, set()
        for future in pending:
            future.cancel()
        super().close()


def differences(expected: Facts, facts: Facts) -> str:
    """How a worker's toolchain differs from the expected one, as text; empty if all parts are equal."""
    theirs = dict(facts)
    texts = [
        f"its {name} is {theirs.get(name, 'unknown')}, and this process has {fact}"
        for name, fact in expected
        if not fact.digest or theirs.get(name) != fact
    ]
    return "; ".join(texts)


def executor_error(error: BaseException) -> WorkerError:
    remedy = _LOOK
    kind = type(error).__name__
    if isinstance(error, (ImportError, AttributeError)):
        remedy = f"{SAME_PACKAGES}, and start its workers in that environment"
    elif kind == "KilledWorker":
        remedy = "several workers died with this request: look at their logs and at their memory, then build again"
    failure = WorkerError(f"the executor failed: {kind}: {error}", remedy)
    failure.__cause__ = error
    return failure
