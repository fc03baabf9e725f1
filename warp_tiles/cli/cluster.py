"""``--scheduler``: the cluster of Dask whose workers compile."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from warp_tiles.errors import RefusedWorkerError, ToolchainError, WorkerError

if TYPE_CHECKING:
    from warp_tiles.compile.toolchain import ToolchainStore

_CONNECT_S = 5.0
_WORKERS_S = 5.0


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of a Dask scheduler that has workers.

    Raises:
        ToolchainError: Dask is not installed.
        WorkerError: The scheduler cannot be reached, or has no worker.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ToolchainError(f"--scheduler needs Dask: {error}", "pip install 'warp-tiles[dask]'") from error
    for name in ("distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.ERROR)  # the errors here say the same
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False, name="warp-tiles")
    except Exception as error:  # of many classes: no answer, no such host, an unknown protocol, no certificate
        raise WorkerError(
            f"the scheduler {address} cannot be reached: {_first_line(error)}",
            remedy="give the address that `dask scheduler` prints, e.g. tcp://host:8786, and check that this machine "
            "reaches it; for tls:// set Dask's certificates (docs/cluster.md)",
        ) from error
    try:
        _require_workers(client, address)
        yield client
    finally:
        with contextlib.suppress(Exception):  # the results are complete
            client.close(timeout=2)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _require_workers(client: Any, address: str) -> None:
    from distributed import TimeoutError as DaskTimeoutError  # another class than Python's before 3.11

    try:
        client.wait_for_workers(1, timeout=_WORKERS_S)
    except DaskTimeoutError as error:
        raise WorkerError(
            f"the scheduler {address} has no worker", remedy=f"start some: dask worker {address} --nworkers 4"
        ) from error


def require_same_installation(client: Any, store: ToolchainStore) -> None:
    """Check all workers before the first request, so that each unlike one is named.

    Raises:
        RefusedWorkerError: Workers have another compiler, other headers or other sources.
    """
    from warp_tiles.build.executor import (
        ALL,
        SAME_PACKAGES,
        Answer,
        Installation,
        describe_worker,
        differences,
        executor_error,
    )

    expected = tuple((name, fact) for name, fact in Installation(store).facts(ALL) if fact.digest)
    names = [name for name, _ in expected]
    refused = []
    try:
        answers = client.run(describe_worker, names, store.warp_toolkit, on_error="return", wait=True)
    except Exception as error:
        raise executor_error(error) from error
    for worker, answer in answers.items():
        if isinstance(answer, Answer) and answer.failure is None:
            text = differences(expected, answer.found)
        else:
            failure = answer.failure if isinstance(answer, Answer) else answer
            text = (
                f"{type(failure).__name__}: {_first_line(failure)}" if isinstance(failure, Exception) else repr(answer)
            )
        if text:
            refused.append(f"{worker}: {text}")
    if refused:
        raise RefusedWorkerError(
            f"{len(refused)} of {len(answers)} workers are refused:\n  " + "\n  ".join(refused), SAME_PACKAGES
        )
