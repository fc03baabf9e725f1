"""A real program through the benchmark of clients: one of Warp's tile examples, as it is in Warp's package."""

import sys

import pytest

from benchmarks import clients
from benchmarks.client_scripts import steps


@pytest.mark.slow
def test_a_tile_example_needs_no_libmathdx() -> None:
    found = clients.run_side(sys.executable, "tile_cholesky", "tiles", limit_s=120)
    (module,) = found["rows"]
    assert (module["kernels"], module["threads"], module["functions"]) == (["cholesky"], 128, 2)
    assert (found["own_builds"], found["mathdx_builds"]) == (2, 0)
    assert 0 < found["cubin_bytes"] < 300_000
    assert 0 < module["cpu_s"] <= found["cpu_s"]


def test_the_packages_of_each_client_are_installed() -> None:
    packages = {name for client in steps.CLIENTS.values() for name in client.packages}
    assert packages <= {*steps.PINNED, *steps.MORE_PACKAGES}
