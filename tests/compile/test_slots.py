"""Processes of one user on one host share the slots of compilers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compile.test_pool import GOOD, ROOT
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.compile.slots import WorkerSlots
from warp_tiles.util.trusted_folder import TrustedFolder


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], WorkerSlots]:
    """Makes the slots of a pool, of two that there are."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return lambda: WorkerSlots(TrustedFolder(tmp_path / "cache"))


def test_a_slot_belongs_to_one_pool_until_it_is_given_back(slots: Callable[[], WorkerSlots]) -> None:
    first, second = slots(), slots()
    taken = [first.take(), second.take()]
    assert None not in taken
    assert first.take() is second.take() is None
    first.release(taken[0])
    assert second.take() is not None
    assert first.take() is None


def test_without_a_folder_every_slot_is_free(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = WorkerSlots(TrustedFolder(tmp_path / "file" / "cache"))
    assert {found.take() for _ in range(9)} == {-1}
    found.release(-1)


def test_a_pool_without_a_slot_runs_one_request_at_a_time(slots: Callable[[], WorkerSlots]) -> None:
    others = slots()
    taken = [others.take(), others.take()]
    with CompilerPool(4, slots()) as pool:
        for future in [pool.submit(GOOD) for _ in range(4)]:
            assert future.result(60).payload
        assert len(pool._processes) == 1
        for slot in taken:
            others.release(slot)
        for future in [pool.submit(GOOD) for _ in range(4)]:
            assert future.result(60).payload
        assert len(pool._processes) == 2, "two slots are free now"


def test_a_forked_child_holds_no_slot_of_its_parent(slots: Callable[[], WorkerSlots]) -> None:
    parent, other = slots(), slots()
    taken = [parent.take(), parent.take()]
    read, write = os.pipe()
    ready, is_ready = os.pipe()
    child = os.fork()
    if not child:
        parent.after_fork()
        os.write(is_ready, b"x")
        os.read(read, 1)
        os._exit(0)
    try:
        os.read(ready, 1)
        assert other.take() is None, "the child gives back nothing of the parent's"
        parent.release(taken[0])
        assert other.take() is not None
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)


RANK = """
import os, sys
from pathlib import Path
os.cpu_count = lambda: 2
from tests.compile.test_pool import GOOD
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.compile.slots import WorkerSlots
from warp_tiles.util.trusted_folder import TrustedFolder
with CompilerPool(4, WorkerSlots(TrustedFolder(Path(sys.argv[1])))) as pool:
    work = [pool.submit(GOOD) for _ in range(8)]
    assert all(one.result(120).payload for one in work)
    if sys.argv[2:]:
        os.kill(os.getpid(), 9)
    print(len(pool._processes))
"""


def test_ranks_on_one_host_share_its_cores(tmp_path: Path, slots: Callable[[], WorkerSlots]) -> None:
    cache = tmp_path / "cache"
    command = [sys.executable, "-W", "ignore", "-c", RANK, str(cache)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen([*command, *more], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
        for more in ([], [], [], ["killed"])
    ]
    counts = [int(rank.communicate(timeout=120)[0] or 0) for rank in ranks]
    assert all(1 <= count <= 3 for count in counts[:3]), "its first request, and those in the two slots"
    assert [rank.returncode for rank in ranks] == [0, 0, 0, -9]
    free = slots()
    assert None not in [free.take(), free.take()], "a killed process holds no slot"
