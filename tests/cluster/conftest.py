"""A scheduler in this process, and two worker processes that a test may kill."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.integration.helpers import REPOSITORY

distributed = pytest.importorskip("distributed", reason="distributed is not installed")

_numbers = count()


def start_worker(address: str, folder: Path = REPOSITORY) -> subprocess.Popen[bytes]:
    """Start a worker of one thread, without a nanny that would start it again.

    Args:
        address: The scheduler.
        folder: The folder that holds warp_tiles.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard",
         "--nthreads", "1", "--name", f"worker-{next(_numbers)}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


class Workers:
    """Two worker processes."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.processes: list[subprocess.Popen[bytes]] = []

    def complete(self) -> None:
        """Replace those that were killed."""
        self.processes = [process for process in self.processes if process.poll() is None]
        while len(self.processes) < 2:
            self.processes.append(start_worker(self.client.scheduler.address))
        self.client.wait_for_workers(2, timeout=60)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Workers]:
    """One cluster for all tests of a process."""
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with (
        distributed.LocalCluster(
            n_workers=0,
            protocol="tcp://",
            dashboard_address=":0",
            silence_logs=False,  # otherwise it silences pytest's handlers, for later tests too
        ) as scheduler,
        distributed.Client(scheduler.scheduler.address, set_as_default=False) as client,
    ):
        found = Workers(client)
        yield found
        found.close()


@pytest.fixture
def workers(cluster: Workers) -> Any:
    """The client of a cluster with two workers."""
    cluster.complete()
    return cluster.client
