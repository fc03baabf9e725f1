"""One cluster of two worker processes for all tests of a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

distributed = pytest.importorskip("distributed", reason="distributed is not installed")


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """A client of two workers of one thread each, with any free port for its pages. Killed workers are replaced."""
    for name in ("distributed", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(2)
        yield client


@pytest.fixture
def workers(client: Any) -> Any:
    """The client, once both workers are there."""
    client.wait_for_workers(2, timeout=30)
    return client
