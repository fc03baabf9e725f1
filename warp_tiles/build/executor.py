"""The sender's side of an executor: requests leave without paths of this machine, and answers are checked.

An answer is used only if it names the digests of the same compiler, headers and sources that the cache keys and module
hashes here contain. Otherwise a result of another compiler would be stored under the right key.
"""

from __future__ import annotations

import logging
import uuid
from concurrent.futures import Executor, Future

from warp_tiles.build.installation import Facts, Installation
from warp_tiles.build.remote import Answer, Job, run_job
from warp_tiles.compile.compiler import Compiled, CompileRequest, LinkRequest
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.errors import RefusedWorkerError, WarpTilesError, WorkerError
from warp_tiles.util.signals import raise_if_signalled

log = logging.getLogger("warp_tiles")

_LOOK = "look at the executor's own log"
SAME_PACKAGES = "install the same versions of warp-tiles, warp-lang and NVIDIA's packages where the executor runs"


class ExecutorPool(CompilerPool):
    """Runs requests on an executor of the user, and those with include folders of the user on processes here.

    Args:
        executor: Runs :func:`warp_tiles.build.remote.run_job`. :meth:`close` does not shut it down.
        installation: What of this machine decides the results.
        jobs: See :class:`CompilerPool`.
    """

    def __init__(self, executor: Executor, installation: Installation, jobs: int = 0) -> None:
        super().__init__(jobs)
        self._executor = executor
        self._installation = installation
        self._pending: set[Future[Answer]] = set()

    def submit(self, request: CompileRequest | LinkRequest, prefix: int = 0) -> Future[Compiled]:
        """See :meth:`CompilerPool.submit`."""
        try:
            portable = self._installation.portable(request)
            if portable is None:
                log.info("%s includes folders of this machine, so it is compiled here", request.name)
                return super().submit(request)
            job = Job(portable[0], self._installation.facts(portable[1]), prefix, uuid.uuid4().hex)
            sent = self._executor.submit(run_job, job)
        except Exception as error:
            raise_if_signalled(error)
            failed: Future[Compiled] = Future()
            failed.set_exception(error if isinstance(error, WarpTilesError) else executor_error(error))
            return failed
        with self._lock:
            self._pending.add(sent)
        checked: Future[Compiled] = Future()
        checked.set_running_or_notify_cancel()
        sent.add_done_callback(lambda done: self._pass_on(job, done, checked))
        return checked

    def _pass_on(self, job: Job, done: Future[Answer], checked: Future[Compiled]) -> None:
        with self._lock:
            self._pending.discard(done)
        try:
            if done.cancelled():
                raise WorkerError("the executor cancelled a request: it ended, or its scheduler was lost", _LOOK)
            if (error := done.exception()) is not None:
                raise executor_error(error)
            checked.set_result(result_of_answer(job.expected, done.result()))
        except WarpTilesError as failure:
            checked.set_exception(failure)
        except Exception as error:  # an answer of a foreign type
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


def result_of_answer(expected: Facts, answer: Answer) -> Compiled:
    """The result of a worker.

    Raises:
        RefusedWorkerError: The worker has another installation.
        WarpTilesError: The error of the request.
    """
    if answer.found and (text := differences(expected, answer.found)):
        raise RefusedWorkerError(f"the worker {answer.worker} is refused: {text}", SAME_PACKAGES)
    if answer.failure is not None:
        raise answer.failure
    if answer.compiled is None or not answer.found:
        raise WorkerError(f"a worker {answer.worker} sent no proof of its compiler", SAME_PACKAGES)
    return answer.compiled


def differences(expected: Facts, found: Facts) -> str:
    """How a worker's toolchain differs from the expected one, as text; empty if all parts are equal."""
    theirs = dict(found)
    texts = [
        f"its {name} is {theirs.get(name, 'unknown')}, and this process has {fact}"
        for name, fact in expected
        if not fact.digest or theirs.get(name) != fact
    ]
    return "; ".join(texts)


def executor_error(error: BaseException) -> WorkerError:
    """The error for an executor that failed, and not the compiler."""
    remedy = _LOOK
    kind = type(error).__name__
    if isinstance(error, (ImportError, AttributeError)):
        remedy = f"{SAME_PACKAGES}, and start its workers in that environment"
    elif kind == "KilledWorker":
        remedy = "several workers died with this request: look at their logs and at their memory, then build again"
    found = WorkerError(f"the executor failed: {kind}: {error}", remedy)
    found.__cause__ = error
    return found
