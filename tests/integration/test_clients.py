"""A real program through the benchmark of clients: one of Warp's tile examples, as it is in Warp's package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import clients
from benchmarks.client_scripts import steps
from benchmarks.client_scripts.child import linked_functions


@pytest.mark.slow
def test_a_tile_example_needs_no_libmathdx() -> None:
    found = clients.run_side(Path(sys.executable), "tile_cholesky", "tiles", limit_s=120)
    (module,) = found["rows"]
    assert (module["kernels"], module["threads"], module["functions"]) == (["cholesky"], 128, 2)
    assert (found["own_builds"], found["mathdx_builds"]) == (2, 0)
    assert 0 < module["cubin_bytes"] == found["cubin_bytes"] < 300_000
    assert 0 < module["cpu_s"] <= found["cpu_s"]


def test_a_client_that_fails_or_takes_too_long_has_a_reason() -> None:
    with pytest.raises(clients.LeftOut, match=r"^warp: KeyError: 'no_such_client'$"):
        clients.run_side(Path(sys.executable), "no_such_client", "warp", limit_s=120)
    with pytest.raises(clients.LeftOut, match=r"^tiles: it took longer than 0\.05 s$"):
        clients.run_side(Path(sys.executable), "tile_cholesky", "tiles", limit_s=0.05)


def test_the_packages_of_each_client_are_installed() -> None:
    packages = {name for client in steps.CLIENTS.values() for name in client.packages}
    assert packages <= {*steps.PINNED, *steps.MORE_PACKAGES}


def test_packages_are_pinned() -> None:
    client = steps.CLIENTS["newton_ik"]
    assert steps.missing(client, steps.PINNED) == ""
    assert steps.missing(client, {"warp-lang": "1.19.0"}) == "newton is not installed"
    older = {**steps.PINNED, "newton": "1.7.0"}
    assert steps.missing(client, older) == "newton is 1.7.0, and the benchmark is for 1.8.0"


def side(scale: float, builds: int, kernels: tuple[str, ...] = ("one", "two")) -> dict[str, Any]:
    """A result of the child: one module with a function, and one without."""
    numbers = {"wall_s": 1.0, "cubin_bytes": 1000, "mathdx_builds": builds, "threads": 64}
    rows = [
        {"kernels": [name], "cpu_s": scale * cpu_s, "functions": functions, **numbers}
        for name, cpu_s, functions in zip(kernels, (8.0, 2.0), (1, 0))
    ]
    totals = {"cpu_s": scale * 10.0, "setup_cpu_s": 0.1, "own_builds": 1, "modules": 2}
    return {**numbers, **totals, "rows": rows, "versions": {}, "python": ""}


def test_modules_with_functions_are_compared_apart() -> None:
    entry = clients.compared({"warp": side(1.0, 1), "tiles": side(0.5, 0)})
    assert (entry["ratio"], entry["modules"]) == (2.0, 2)
    assert entry["tile_modules"]["cpu_s"] == {"warp": 8.0, "tiles": 4.0}
    assert clients.line_of(entry).startswith("2 modules")
    assert clients.line_of({"title": "Other", "left_out": "newton is not installed"}).endswith("is not installed")


def test_sides_with_different_modules_are_not_compared() -> None:
    with pytest.raises(clients.LeftOut, match="different modules"):
        clients.compared({"warp": side(1.0, 1), "tiles": side(0.5, 0, ("one", "three"))})


def test_declared_functions_of_a_module() -> None:
    source = 'extern "C" {\nvoid dot(float*);\nvoid potrf(float*, int*);\n}\nextern "C" __global__ void kernel(\n'
    assert linked_functions(source) == 2
    assert linked_functions("") == 0
