"""Slots that the compiler processes of one user on one host share, who gets one first, and limits of start lists."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.compile.test_pool import GOOD
from tests.interpreter import REPOSITORY
from tests.waiting import until
from warp_tiles.compile import pool as pool_module
from warp_tiles.compile.pool import CompilerPool, WorkerSlots
from warp_tiles.errors import BuildError, WorkerError
from warp_tiles.util.threads import PREFETCH, START_LIST
from warp_tiles.util.trusted_folder import TrustedFolder

Slots = Callable[[], WorkerSlots]
Gated = tuple[list[str], threading.Event]


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slots:
    """Makes the slots of a pool, of two that there are."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return lambda: WorkerSlots(TrustedFolder(tmp_path / "cache"))


def test_a_slot_belongs_to_one_pool_until_it_is_given_back(slots: Slots) -> None:
    first, second = slots(), slots()
    taken = [first.take(), second.take()]
    assert None not in taken
    assert first.take() is second.take() is None
    copy = os.dup(taken[0] or 0)  # as a child has it, of a fork before the slot was noted
    first.release(taken[0])
    assert second.take() is not None
    assert first.take() is None
    os.close(copy)


def test_without_a_folder_every_slot_is_free(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = WorkerSlots(TrustedFolder(tmp_path / "file" / "cache"))
    assert {found.take() for _ in range(9)} == {-1}
    found.release(-1)


def test_a_pool_without_a_slot_runs_one_request_at_a_time(slots: Slots) -> None:
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


def test_requests_that_wait_look_for_slots_together_and_hold_no_lock(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, own, looks = slots(), slots(), list[float]()
    taken = [others.take(), others.take()]
    pool = CompilerPool(8, own)
    free = own.take

    def take() -> int | None:
        looks.append(time.monotonic())
        assert not pool._lock._is_owned()
        return free()

    monkeypatch.setattr(own, "take", take)
    running = threading.Event()
    monkeypatch.setattr(pool, "_run_in_slot", lambda *_: running.wait(30))
    with pool:
        work = [pool.submit(GOOD) for _ in range(8)]
        until(lambda: len(looks) > 12)
        assert looks[12] - looks[2] > 0.3, "one each 50 ms, not one for each request"
        running.set()
        for slot in taken:
            others.release(slot)
        assert all(one.result(30) for one in work)


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Gated:
    """The requests that have started, and what ends those that are not of a "short" launch."""
    started, ends = list[str](), threading.Event()

    def run(pool: CompilerPool, request: Any, *_: object) -> Any:
        started.append(request)
        return request == "short" or ends.wait(30)

    monkeypatch.setattr(CompilerPool, "_run_in_slot", run)
    return started, ends


def test_what_a_launch_waits_for_runs_beside_what_is_ahead(slots: Slots, gated: Gated) -> None:
    slots().take()
    started, ends = gated
    with CompilerPool(4, slots()) as pool:
        ahead = [pool.submit(f"ahead {number}", ahead=True) for number in range(4)]
        until(lambda: bool(started))
        assert pool.submit("short").result(10), "all threads but one wait for a slot"
        assert len(started) == 2, "one has the slot"
        ends.set()
        assert all(one.result(30) for one in ahead)


def test_a_launch_gets_a_process_at_once_while_as_many_as_allowed_compile_ahead(gated: Gated) -> None:
    started, ends = gated
    with CompilerPool(2) as pool:
        ahead = [pool.submit(f"ahead {number}", ahead=True) for number in range(4)]
        until(lambda: len(started) == 2)
        launches = [pool.submit(f"launch {number}") for number in range(2)]
        until(lambda: len(started) == 3)
        assert started[2] == "launch 0", "one more than allowed"
        time.sleep(0.2)
        assert len(started) == 3, "the second launch waits, and so do the others ahead"
        ends.set()
        assert all(one.result(30) for one in (*ahead, *launches))
    assert started[3] == "launch 1"


class Endless:
    """A compiler process whose requests of a start list end only with it."""

    made: ClassVar[list[Endless]] = []

    def __init__(self, _: object) -> None:
        self.ended = threading.Event()
        self.made.append(self)

    def takes(self, request: object) -> bool:
        return True

    def run(self, request: Any, most_bytes: int = 0) -> Any:
        if most_bytes:
            assert self.ended.wait(30)
            raise WorkerError("it was ended")
        return request

    def kill(self) -> None:
        self.ended.set()

    close = kill


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> list[Endless]:
    monkeypatch.setattr(pool_module, "_Process", Endless)
    monkeypatch.setattr(Endless, "made", [])
    return Endless.made


def test_launches_that_wait_end_the_youngest_requests_of_a_start_list(
    endless: list[Endless], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_PATIENCE_S", 0.2)
    release = threading.Event()
    run = Endless.run

    def wait(process: Endless, request: Any, most_bytes: int = 0) -> Any:
        return run(process, request, most_bytes) if request != "long" or release.wait(30) else None

    monkeypatch.setattr(Endless, "run", wait)
    with CompilerPool(2) as pool:
        ahead = []
        for number in range(3):
            ahead.append(pool.submit(f"ahead {number}", ahead=START_LIST))
            until(lambda number=number: len(endless) == min(number + 1, 2))
        long = pool.submit("long")
        until(lambda: len(endless) == 3)
        assert pool.submit("short").result(10) == "short"
        ended = [process.ended.is_set() for process in endless]
        assert ended == [True, True, False], "the launch that runs goes on"
        release.set()
        assert long.result(10) == "long"
        assert [isinstance(one.exception(10), WorkerError) for one in ahead[:2]] == [True, True]


def test_a_request_of_a_start_list_has_limits_of_time_and_memory(
    endless: list[Endless], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "START_LIST_S", 0.2)
    with CompilerPool(1) as pool:
        with pytest.raises(WorkerError, match="it was ended"):
            pool.submit("ahead", ahead=START_LIST).result(10)
        assert pool.submit("prefetch", ahead=PREFETCH).result(10) == "prefetch"


def test_a_source_that_takes_too_much_memory_fails_and_the_process_has_no_limit_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "START_LIST_BYTES", 100 << 20)
    levels = "".join(f"#define B{n + 1} {', '.join([f'B{n}'] * 10)}\n" for n in range(6))
    bomb = replace(GOOD, source=f"#define B0 1\n{levels}__device__ int x[] = {{B6}};\n")
    with CompilerPool(1) as pool:
        with pytest.raises(BuildError) as error:
            pool.submit(bomb, ahead=START_LIST).result(120)
        assert "out of memory" in error.value.log
        assert pool.submit(GOOD).result(60).payload


def test_a_forked_child_holds_no_slot_of_its_parent(slots: Slots) -> None:
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
from warp_tiles.compile.pool import CompilerPool, WorkerSlots
from warp_tiles.util.trusted_folder import TrustedFolder
with CompilerPool(4, WorkerSlots(TrustedFolder(Path(sys.argv[1])))) as pool:
    work = [pool.submit(GOOD) for _ in range(4)]
    assert all(one.result(120).payload for one in work)
    if sys.argv[2:]:
        os.kill(os.getpid(), 9)
    print(len(pool._processes))
"""


@pytest.mark.slow
def test_ranks_on_one_host_share_its_cores(tmp_path: Path, slots: Slots) -> None:
    cache = tmp_path / "cache"
    command = [sys.executable, "-W", "ignore", "-c", RANK, str(cache)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ranks = [
        subprocess.Popen([*command, *more], cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE)
        for more in ([], [], ["killed"])
    ]
    counts = [int(rank.communicate(timeout=120)[0] or 0) for rank in ranks]
    assert all(1 <= count <= 3 for count in counts[:2]), "its first request, and those in the two slots"
    assert [rank.returncode for rank in ranks] == [0, 0, -9]
    free = slots()
    assert None not in [free.take(), free.take()], "a killed process holds no slot"
