"""Compiler processes that run in parallel.

The workers of ``concurrent.futures.ProcessPoolExecutor`` would import the user's script again, and
scripts that use Warp often have no ``__main__`` guard. The workers of this pool import only this
package. An executor of the user can run requests instead, see :mod:`warp_tiles.build.executor`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warp_tiles.compile.compiler import Compiled, CompileRequest, LinkRequest, receive, send
from warp_tiles.compile.find import import_path
from warp_tiles.errors import WarpTilesError, WorkerError, raise_if_signalled, suppressed, unless_signalled
from warp_tiles.store import LOCKS, SLOT_PREFIX
from warp_tiles.util.files import host
from warp_tiles.util.threads import LAUNCH, START_LIST, DaemonThreads, available_cores, held, wait_all
from warp_tiles.util.trusted_folder import TrustedFolder

try:
    import fcntl
except ImportError:  # not on Linux
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from warp_tiles.compile.module import WarpCompileRequest

    Request = CompileRequest | LinkRequest | WarpCompileRequest

#: Memory of a compiler process, at most. docs/cache.md names it.
PROCESS_BYTES = 450 * 10**6
#: A compiler process keeps some memory of every request, so it is replaced after this many.
_REQUESTS_OF_A_PROCESS = 200
_SLOT_S = 0.05  # between two looks for a free slot
#: Limits of a request of a start list, whose sources may never end: seconds and bytes.
START_LIST_S, START_LIST_BYTES = 600.0, 4 << 30
_PATIENCE_S = 2.0  # of a launch, before it ends a request of a start list
_CLOSED = "the compiler processes were closed during a build"
# without the __init__ of this package, whose imports take 0.05 s that a worker does not need
_BOOTSTRAP = """
import sys  # built in; any other import before the next line could come from the working folder
sys.path[:] = [entry for entry in sys.path if entry]
package = sys.modules["warp_tiles"] = type(sys)("warp_tiles")
package.__path__ = [sys.argv[1]]
from warp_tiles.compile.worker import main
sys.exit(main(sys.argv[2:]))
"""


class _Process:
    """One compiler process, started at its first request at the latest."""

    def __init__(self, libraries: Sequence[Path]) -> None:
        self._libraries = [os.fspath(path) for path in libraries]
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: str | None = None  # of its temporary files, which may be 80 MB of precompiled headers each
        self._folder_identity = (0, 0, 0)
        self._lock = threading.Lock()  # start() and close() exclude each other
        self._closed = False
        self._requests = 0
        self._level: int | None = None  # the optimization level of its compilations

    def takes(self, request: Request) -> bool:
        """True if the process can run a request without being replaced for another optimization level.

        The compiler of CUDA 13.1 to 13.4 makes wrong code for sm_120 after a module of level 0 (NVIDIA/warp#1944).
        """
        level = getattr(request, "optimization_level", None)  # a link has none
        return self._process is None or level is None or self._level in (None, level)

    def start(self) -> None:
        """Start the process unless it runs. Raises a WorkerError if it cannot be started, or if the pool was closed."""
        if self._process is not None and (self._process.poll() is not None or self._lost_folder()):
            self._end_process()
        if self._process is not None:
            return
        package = Path(__file__).resolve().parents[1]
        try:
            with self._lock:
                if self._closed:
                    raise WorkerError(_CLOSED)
                with suppressed(OSError):  # our own compiler needs no temporary files
                    self._folder = tempfile.mkdtemp(prefix="warp_tiles_")
                    self._folder_identity = _identity(self._folder)
                words = [str(package), str(os.getpid()), self._folder or "", *self._libraries]
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _BOOTSTRAP, *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    # NVRTC's own cache uses the driver
                    env={**os.environ, "PYTHONPATH": import_path(), "CUDA_CACHE_DISABLE": "1"},
                    start_new_session=True,  # the terminal interrupts only the script; its end closes the pipe
                )
        except OSError as error:
            self._end_process()
            raise_if_signalled(error)
            raise WorkerError(
                f"a compiler process could not be started: {error}", remedy=f"check that {sys.executable} can be run"
            ) from error

    def _lost_folder(self) -> bool:
        """True if a cleaner of the system has removed the folder, which NVRTC keeps in mind."""
        try:
            return self._folder is not None and _identity(self._folder) != self._folder_identity
        except FileNotFoundError:
            return True

    def run(self, request: Request, most_bytes: int = 0) -> Compiled:
        """Run a request in at most so much memory; 0 for no limit."""
        if not self.takes(request):
            self._end_process()
        self.start()
        self._level = getattr(request, "optimization_level", self._level)
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            send(process.stdin, (request, most_bytes))  # type: ignore[arg-type]
            succeeded, reply = receive(process.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError, MemoryError, pickle.UnpicklingError) as error:
            self._end_process()
            raise WorkerError(
                f"a compiler process ended with exit status {process.wait()} during a build",
                remedy="run `warp-tiles doctor`; if memory is short, set WARP_TILES_JOBS=1",
            ) from error
        self._requests += 1
        if self._requests >= _REQUESTS_OF_A_PROCESS:
            self._requests = 0
            self._end_process()
        if succeeded:
            result: Compiled = reply
            return result
        failure: WarpTilesError = reply
        raise failure

    def _end_process(self, *, kill: bool = False) -> None:
        """Close the pipes, wait 5 s for the process to end, then kill it (``kill``: at once), and remove its files."""
        with self._lock:
            process, self._process, self._level = self._process, None, None
            folder, self._folder = self._folder, None
        if process is not None:
            if kill:
                process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # closing flushes to a dead process
                        pipe.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def kill(self) -> None:
        """End the process, and with it the request that it runs."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._end_process(kill=True)  # no caller waits for its build any more


def _identity(folder: str) -> tuple[int, int, int]:
    status = os.lstat(folder)  # a link in its place may have its number
    return status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode)


def free_memory_bytes() -> int | None:
    """Memory that new processes may use, on this machine and in this container; None if that is not known."""
    free = None
    with suppressed(OSError, LookupError, ValueError):  # not on Linux, no container, or one without a limit
        free = _bytes_of("/proc/meminfo", "MemAvailable:") * 1024
        most, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        return min(free, most - used + _bytes_of("/sys/fs/cgroup/memory.stat", "inactive_file"))
    return free


def _bytes_of(path: str, name: str) -> int:
    rows = (line.split() for line in Path(path).read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows}[name]


class WorkerSlots:
    """Slots of running compilers that a pool has taken. All processes of a user on a host share one for each core.

    Each is a locked file below the folder of all caches, so those of a killed process are free.
    """

    def __init__(self, files: TrustedFolder) -> None:
        self._files = files
        self._taken: set[int] = set()

    def take(self) -> int | None:
        """Take a slot, to be given to :meth:`release`; None if all are taken."""
        count = os.cpu_count() or 1  # those of the host, because processes may have different ones
        try:
            if fcntl is None:
                return -1
            self._files.make(LOCKS)
            for number in range(count):
                path = self._files.path(f"{LOCKS}/{SLOT_PREFIX}{host()}-{os.getuid()}-{number}.lock")
                slot = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, self._files.modes()[1])
                try:
                    fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(slot)
                    continue
                except OSError:
                    os.close(slot)
                    raise
                self._taken.add(slot)
                return slot
        except unless_signalled(OSError):  # no locks, or a folder that is refused
            return -1
        return None

    def release(self, slot: int | None) -> None:
        if slot in self._taken:
            self._taken.discard(slot)
            with suppressed(OSError):
                fcntl.flock(slot, fcntl.LOCK_UN)  # a child that was forked meanwhile may have a copy
            os.close(slot)

    def after_fork(self) -> None:
        """Close what a forked child has of its parent's slots."""
        for slot in self._taken:
            with suppressed(OSError):
                os.close(slot)
        self._taken.clear()


class CompilerPool:
    """Runs requests on ``jobs`` processes.

    Args:
        jobs: Largest number of processes; 0 means one per core that this process may use, and fewer where memory is
            short.
        slots: What running requests share with other processes; None runs up to ``jobs`` in any case. The only request
            of a pool always runs. So does the only one that something waits for, beside ``jobs`` that are ahead.
        libraries: The compiler and the linker that the processes use; without them, each process searches.
    """

    def __init__(self, jobs: int = 0, slots: WorkerSlots | None = None, libraries: Sequence[Path] = ()) -> None:
        free, cores = free_memory_bytes(), available_cores()
        self.jobs = jobs or (cores if free is None else max(1, min(cores, free // PROCESS_BYTES)))
        self._libraries = tuple(libraries)
        self._slots = slots
        self._running = Counter[bool]()  # by whether they were submitted ahead
        self._limited: list[_Process] = []  # those that run requests of a start list, in the order of these
        self._needed = 0  # requests that wait, and were not submitted ahead
        self._looking = threading.Lock()
        self._looked_at_s = 0.0  # when no slot was found
        self._threads: tuple[DaemonThreads, DaemonThreads] | None = None  # the second for requests ahead
        self._unfinished = 0
        self._retired = False
        self._idle: list[_Process] = []
        self._processes: list[_Process] = []
        self._lock = threading.RLock()  # submit() makes the call itself if no thread can be started

    def submit(self, request: Request, *, ahead: int = LAUNCH) -> Future[Compiled]:
        """Start a request, for a launch or ``ahead`` of one. If it fails, its future raises the WarpTilesError."""
        with self._lock:
            if self._threads is None:
                self._threads = DaemonThreads(self.jobs, "warp_tiles"), DaemonThreads(self.jobs, "warp_tiles_ahead")
            future = self._threads[ahead > LAUNCH].submit(self._run, request, self._threads, ahead)
            self._unfinished += 1
        future.add_done_callback(self._finished)
        return future

    def _finished(self, _: Future[Compiled]) -> None:
        with self._lock:
            self._unfinished -= 1
            if self._retired and not self._unfinished:
                CompilerPool.close(self)

    def retire(self) -> None:
        """End the processes as soon as no request is unfinished."""
        with self._lock:
            self._retired = True
            if not self._unfinished:
                CompilerPool.close(self)

    def start_processes(self, count: int) -> None:
        """Start up to ``count`` processes before the first request, so that they load their libraries meanwhile."""
        with self._lock:
            for _ in range(min(count, self.jobs) - len(self._processes)):
                process = _Process(self._libraries)
                with contextlib.suppress(WorkerError):  # a request reports it
                    process.start()
                self._processes.append(process)
                self._idle.insert(0, process)  # the first that starts is used first

    def _run(self, request: Request, threads: tuple[DaemonThreads, ...], order: int) -> Compiled:
        ahead, waiting_since = order > LAUNCH, time.monotonic()
        with self._lock:
            self._needed += not ahead
        try:
            while (slot := self._slot(threads, ahead)) is None:
                time.sleep(_SLOT_S)
                if not ahead and time.monotonic() - waiting_since > _PATIENCE_S:
                    waiting_since = time.monotonic()
                    self._end_limited()
        finally:
            with self._lock:
                self._needed -= not ahead
        try:
            return self._run_in_slot(request, threads, order)
        finally:
            with self._lock:
                self._running[ahead] -= 1
            self._release(slot)
            self._looked_at_s = 0.0

    def _slot(self, threads: tuple[DaemonThreads, ...], ahead: bool) -> int | None:
        with held(self._looking):  # whoever finds no slot sees that another request has it
            slot = self._free_slot()
            with self._lock:
                is_open, count = self._threads is threads, self._running.total()
                is_only = not (count if ahead else self._running[False])
                if slot is None and is_only:
                    slot = -1
                may_run = (count < self.jobs or (is_only and not ahead)) and not (ahead and self._needed)
                if is_open and may_run and slot is not None:
                    self._running[ahead] += 1
                    return slot
        self._release(slot)
        if not is_open:  # the pool was closed since this request was taken, and may be open again
            raise WorkerError(_CLOSED)
        return None

    def _free_slot(self) -> int | None:  # called while ``_looking`` is held
        if self._slots is None:
            return -1
        if time.monotonic() - self._looked_at_s < _SLOT_S:  # one look serves all requests that wait
            return None
        slot = self._slots.take()
        if slot is None:
            self._looked_at_s = time.monotonic()
        return slot

    def _release(self, slot: int | None) -> None:
        if self._slots is not None:
            self._slots.release(slot)

    def _run_in_slot(self, request: Request, threads: tuple[DaemonThreads, ...], order: int) -> Compiled:
        with self._lock:
            if self._threads is not threads:
                raise WorkerError(_CLOSED)
            fitting = [process for process in self._idle if process.takes(request)]
            if not fitting and len(self._processes) >= self.jobs:
                fitting = self._idle
            process = fitting[-1] if fitting else _Process(self._libraries)
            if fitting:
                self._idle.remove(process)
            if process not in self._processes:
                self._processes.append(process)
        try:
            if order < START_LIST:
                return process.run(request)
            with self._limit(process):
                return process.run(request, START_LIST_BYTES)
        finally:
            with self._lock:
                if self._threads is threads:  # otherwise the process was closed
                    self._idle.append(process)

    @contextlib.contextmanager
    def _limit(self, process: _Process) -> Iterator[None]:
        """Let the time limit, or a launch, end the process in the block."""
        timer = threading.Timer(START_LIST_S, self._end_limited, (process,))
        timer.daemon = True
        with self._lock:
            self._limited.append(process)
        try:
            with suppressed(RuntimeError):  # no thread can be started
                timer.start()
            yield
        finally:
            timer.cancel()
            with self._lock:  # from here on the process belongs to another request
                if process in self._limited:
                    self._limited.remove(process)

    def _end_limited(self, process: _Process | None = None) -> None:
        """End a request of a start list, by default the one that began last. Its module is left to its launch."""
        with self._lock:
            process = process or next(reversed(self._limited), None)
            if process is not None and process in self._limited:
                self._limited.remove(process)
                process.kill()

    def after_fork(self) -> None:
        """Leave the slots of a forked child's parent to the parent."""
        if self._slots is not None:
            self._slots.after_fork()

    def close(self) -> None:
        """End the processes, and cancel the requests that have not started."""
        with self._lock:
            threads, self._threads = self._threads, None
            processes, self._processes, self._idle = self._processes, [], []
        for kind in threads or ():
            kind.close()
        for process in processes:
            process.close()

    def __enter__(self) -> CompilerPool:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def result_of(future: Future[Compiled]) -> Compiled:
    """The result of a request. Raises its WarpTilesError, or a WorkerError if the pool failed and not the compiler."""
    wait_all([future])  # what a signal's handler raises here is not the error of the request
    error = CancelledError() if future.cancelled() else future.exception()
    if error is None:
        return future.result()
    if isinstance(error, WarpTilesError):
        raise error
    raise WorkerError(f"a compiler process failed: {type(error).__name__}: {error}") from error
