"""No state of the cache's folder fails a launch or a build. test_links.py has the folders in it."""

import json
import os
from typing import Any

import pytest

from tests.hardening.launches import STATES
from tests.interpreter import python

# an absolute path needs none
QUIET = {"no working folder"}
# three caches below one root have one problem
ONE_MESSAGE = {"a file in its place", "open to all", "no home folder"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The outcome of each state, from one process."""
    folder = tmp_path_factory.mktemp("states")
    names = [name for name in STATES if name != "of another user" or os.geteuid() == 0]
    done = python("-m", "tests.hardening.launches", folder, *names, WARP_CACHE_PATH=str(folder / "kernels"))
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["state"]: row for row in found}


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_a_launch_and_a_build_succeed(outcomes: dict[str, dict[str, Any]], state: str) -> None:
    if state not in outcomes:
        pytest.skip("only root can make a folder of another user")
    row = outcomes[state]
    assert row["launched"]
    assert row["cubin"] > 0
    assert row["linker"] == "warp_tiles"
    assert len(row["messages"]) == len(set(row["messages"])), "each problem is said once"
    if state in ONE_MESSAGE:
        assert len(row["messages"]) == 1, row["messages"]
    assert bool(row["messages"]) == (state not in QUIET), row["messages"]
