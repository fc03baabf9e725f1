"""An interrupt ends each wait, also one that does not wake the main thread."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from warp_tiles.util import threads
from warp_tiles.util.threads import acquire, held, side_by_side, wait_all, wait_result

WORK_S = 60.0


@pytest.fixture
def late() -> Iterator[Future[int]]:
    """A future that is done after a minute. Before, its thread receives an interrupt, which wakes no other."""
    future: Future[int] = Future()
    over = threading.Event()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)

    def work() -> None:
        if not over.wait(0.3):  # a wait that has ended needs no interrupt
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        over.wait(WORK_S)
        future.set_result(1)

    thread = threading.Thread(target=work)
    thread.start()
    yield future
    over.set()
    thread.join()
    signal.signal(signal.SIGINT, handler)


def locked_until(late: Future[int]) -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    late.add_done_callback(lambda _: lock.release())
    return lock


@pytest.mark.parametrize(
    "wait",
    [
        wait_result,
        lambda late: wait_all([late]),
        lambda late: wait_all([late], 60.0),
        lambda late: side_by_side(lambda future: future.result(), [late], 1),
        lambda late: acquire(locked_until(late)),
        lambda late: held(locked_until(late)).__enter__(),
    ],
    ids=["result", "all", "all with a limit", "side by side", "lock", "lock of a block"],
)
def test_an_interrupt_of_another_thread_ends_a_wait(wait: Callable[[Future[int]], object], late: Future[int]) -> None:
    with pytest.raises(KeyboardInterrupt):
        wait(late)
    assert not late.done()


def test_a_wait_ends_with_its_work() -> None:
    done: Future[int] = Future()
    done.set_result(3)
    failed: Future[int] = Future()
    failed.set_exception(TimeoutError("of the work"))
    never: Future[int] = Future()
    assert wait_result(done) == 3
    with pytest.raises(TimeoutError, match="of the work"):
        wait_result(failed)
    start = time.monotonic()
    assert wait_all([done, failed, never], 0.3) == {done, failed}
    assert time.monotonic() - start >= 0.3
    assert wait_all([never], 0.0) == set()
    assert wait_all([]) == set()


@pytest.mark.parametrize(("text", "most"), [("150000 100000", 2), ("1000 100000", 1), ("max 100000", 64), (None, 64)])
def test_the_quota_of_a_container_counts(
    text: str | None, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    monkeypatch.setattr(threads, "CPU_QUOTA", tmp_path / "cpu.max")
    if text is not None:
        (tmp_path / "cpu.max").write_text(f"{text}\n")
    assert threads.available_cores() == most
