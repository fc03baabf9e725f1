"""The worker's side of an executor: it compiles with its own installation, and its answer proves which one that is.

The functions here run in processes of Dask, MPI or another executor. They are imported there by name, so the worker
needs this package. A worker compiles in compiler processes of its own, like any other process: a crash of the compiler
does not end the worker, several threads compile at the same time, and modules share precompiled headers.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from warp_tiles.build.context import BuildContext, Resources
from warp_tiles.build.installation import ALL, Facts, Installation, warp_headers_folder
from warp_tiles.compile.compiler import Compiled, CompileRequest, LinkRequest
from warp_tiles.compile.pool import result_of
from warp_tiles.errors import WarpTilesError
from warp_tiles.settings import Settings, current


@dataclass(frozen=True)
class Job:
    """A request for a worker.

    Attributes:
        request: The request, without paths of the machine that sends it.
        expected: The parts of the sender's installation that decide the result.
        prefix: Number of characters at the beginning of a module's source that other modules share; 0 if unknown.
        submission: Differs in each submission, because Dask gives equal calls one result, errors included.
    """

    request: CompileRequest | LinkRequest
    expected: Facts
    prefix: int = 0
    submission: str = ""

    def __dask_tokenize__(self) -> str:
        """The identity of a call for Dask, which otherwise digests the whole request in 30 ms."""
        return self.submission


@dataclass(frozen=True)
class Answer:
    """The answer of a worker. The sender decides whether it counts.

    Attributes:
        worker: Name of the worker, for messages; empty with a result, because finding it takes time.
        found: The same parts of the worker's installation. If they differ, nothing was compiled.
        compiled: The result; None if there is none.
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


def run_job(job: Job) -> Answer:
    """Compile or link with this worker's own installation, if it is like the sender's."""
    found: Facts = ()
    try:
        workshop = _workshop()
        found = workshop.facts([name for name, _ in job.expected])
        if found != job.expected:
            return Answer(worker_name(), found)
        return Answer("", found, workshop.run(job))
    except WarpTilesError as error:
        return Answer(worker_name(), found, failure=error)


def describe_worker(names: Sequence[str] = ALL) -> Answer:
    """The parts of this worker's installation, without a result."""
    try:
        return Answer(worker_name(), _workshop().facts(names))
    except WarpTilesError as error:
        return Answer(worker_name(), (), failure=error)


class _Workshop:
    """The compilers of this worker under its own settings."""

    def __init__(self, now: Settings) -> None:
        self._context = BuildContext(Resources(), now)
        self._installation = Installation(self._context.store)
        self._libraries: list[tuple[int, ...]] = []
        self._lock = threading.Lock()

    def facts(self, names: Sequence[str]) -> Facts:
        return self._installation.facts(names)

    def run(self, job: Job) -> Compiled:
        """Compile or link.

        Raises:
            WarpTilesError: The request failed.
        """
        request, context, native = self._installation.localized(job.request), self._current(), warp_headers_folder()
        if isinstance(request, CompileRequest) and job.prefix and native is not None:
            return result_of(context.compile_module(request, os.fspath(native), job.prefix))
        return result_of(context.pool.submit(request))

    def _current(self) -> BuildContext:
        """The context. New compiler processes replace those that loaded a library which was replaced since."""
        libraries = self._installation.libraries()
        with self._lock:
            if self._libraries not in ([], libraries):
                self._context.resources.close()
                self._context = BuildContext(Resources(), self._context.settings)
            self._libraries = libraries
            return self._context


_workshops: dict[tuple[int, Settings], _Workshop] = {}
_lock = threading.Lock()


def _workshop() -> _Workshop:
    """The workshop of this process under its present settings.

    Raises:
        SettingError: A setting of this worker is invalid.
    """
    now = current()
    with _lock:
        identity = (os.getpid(), now)  # a forked child has no compiler processes of its parent
        if identity not in _workshops:
            _workshops[identity] = _Workshop(now)
        return _workshops[identity]
