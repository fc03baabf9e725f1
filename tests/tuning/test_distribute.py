"""Distribution of work over devices that may fail: assignment, shares of the time, and reports."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.errors import ToolchainError, WorkerError
from warp_tiles.tuning.distribute import Report, distribute


class Works:
    """Records the device of each item. Devices in ``broken`` fail at once, items in ``poison`` break every device."""

    def __init__(self, *broken: str, poison: tuple[int, ...] = (), wait_s: float = 0.0) -> None:
        self.broken, self.poison, self.wait_s = broken, poison, wait_s
        self.done: list[tuple[str, int]] = []
        self.shares_s: list[float] = []
        self.lost: list[str] = []
        self.started = time.monotonic()

    def __call__(self, device: str, item: int, deadline: float, report: Report) -> int:
        self.done.append((device, item))
        self.shares_s.append(deadline - self.started)
        time.sleep(self.wait_s)
        if item in self.poison:
            report(lambda: None)
        if device in self.broken or item in self.poison:
            raise ToolchainError(f"{device} is lost to {item}")
        return item * 10

    def note(self, device: str, error: ToolchainError) -> None:
        self.lost.append(device)
        assert threading.current_thread() is threading.main_thread()


def meeting(count: int) -> Callable[[str, int, float, Report], tuple[str, int]]:
    """Work that waits until ``count`` items are under way at the same time."""
    barrier = threading.Barrier(count, timeout=10)

    def work(device: str, item: int, deadline: float, report: Report) -> tuple[str, int]:
        barrier.wait()
        return device, item

    return work


def test_devices_work_at_the_same_time() -> None:
    found = distribute(range(4), ["a", "b"], meeting(2))
    assert [item for _, item in found if not isinstance(found, ToolchainError)] == [0, 1, 2, 3]  # type: ignore[misc]
    assert Counter(device for device, _ in found) == {"a": 2, "b": 2}  # type: ignore[misc]


def test_a_single_device_works_in_the_calling_thread_and_its_error_is_raised() -> None:
    threads = []

    def work(device: str, item: int, deadline: float, report: Report) -> None:
        report(lambda: threads.append(threading.current_thread()))
        threads.append(threading.current_thread())
        if item == 1:
            raise ToolchainError("lost")

    with pytest.raises(ToolchainError, match="lost"):
        distribute(range(3), ["a"], work)
    assert threads == [threading.main_thread()] * 4


@given(items=st.integers(0, 6), devices=st.integers(2, 4), broken=st.integers(0, 4))
def test_every_item_has_a_result_or_an_error(items: int, devices: int, broken: int) -> None:
    names = [f"gpu {number}" for number in range(devices)]
    works = Works(*names[:broken])
    found = distribute(range(items), names, works, lost=works.note)
    assert len(found) == items
    assert set(works.lost) <= set(names[:broken])
    if broken >= devices:
        assert all(isinstance(result, ToolchainError) for result in found)
    else:
        assert found == [10 * item for item in range(items)]
    failed = [device for device, _ in works.done if device in names[:broken]]
    assert sorted(failed) == sorted(works.lost), "a device that failed gets no more items"


def test_a_device_that_fails_gets_no_more_and_its_item_goes_to_another() -> None:
    works = Works("a", wait_s=0.02)
    assert distribute(range(5), ["a", "b"], works, lost=works.note) == [0, 10, 20, 30, 40]
    assert [device for device, _ in works.done].count("a") == 1
    assert works.lost == ["a"]


def test_an_item_is_not_blamed_for_devices_that_never_began() -> None:
    works = Works("b", "c", "d", wait_s=0.01)
    assert distribute(range(4), ["a", "b", "c", "d"], works, lost=works.note) == [0, 10, 20, 30]


def test_an_item_that_broke_two_devices_is_not_tried_on_a_third() -> None:
    works = Works(poison=(1,), wait_s=0.01)
    found = distribute(range(4), ["a", "b", "c"], works, lost=works.note)
    assert isinstance(found[1], ToolchainError)
    assert [found[0], *found[2:]] == [0, 20, 30]
    assert len(works.lost) == 2


def test_items_without_a_device_are_errors_and_finished_ones_stay() -> None:
    done = threading.Event()

    def work(device: str, item: int, deadline: float, report: Report) -> int:
        if item == 0:
            done.set()
            return 0
        assert done.wait(10)
        raise ToolchainError(f"{device} is lost")

    found = distribute(range(5), ["a", "b"], work)
    assert found[0] == 0
    assert all(isinstance(result, ToolchainError) for result in found[1:])


@pytest.mark.parametrize(
    ("items", "devices", "first_s"),
    [(4, ["a"], 15), (4, ["a", "b"], 30), (3, ["a", "b"], 30), (2, ["a", "b"], 60), (1, ["a", "b"], 60)],
)
def test_the_first_items_have_an_equal_share_of_the_time(items: int, devices: list[str], first_s: float) -> None:
    works = Works()
    distribute(range(items), devices, works, end=works.started + 60)
    assert works.shares_s[0] == pytest.approx(first_s, abs=0.5)
    assert all(share <= 60.5 for share in works.shares_s)


def test_unused_time_goes_to_the_next_items() -> None:
    works = Works()
    distribute(range(4), ["a"], works, end=works.started + 60)
    assert works.shares_s == pytest.approx([15, 20, 30, 60], abs=0.5)


def test_the_calling_thread_makes_calls_in_their_order() -> None:
    reported: dict[str, list[int]] = {"a": [], "b": []}

    def work(device: str, item: int, deadline: float, report: Report) -> None:
        for number in range(20):
            report(lambda number=number: note(device, 100 * item + number))  # type: ignore[misc]

    def note(device: str, number: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        reported[device].append(number)

    distribute(range(6), ["a", "b"], work)
    assert sorted(reported["a"] + reported["b"]) == [100 * item + number for item in range(6) for number in range(20)]
    assert all(numbers == sorted(numbers) for numbers in reported.values())


@pytest.mark.parametrize("error", [WorkerError("a compiler died"), KeyboardInterrupt(), ValueError("a bug")])
def test_an_error_not_of_the_device_ends_everything(error: BaseException) -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(device: str, item: int, deadline: float, report: Report) -> None:
        if item == 0:
            assert begun.wait(10)
            raise error
        begun.set()
        try:
            while True:
                report(lambda: None)
                time.sleep(0.001)
        finally:
            ended.set()

    with pytest.raises(type(error)):
        distribute(range(4), ["a", "b"], work)
    assert ended.wait(10), "the other device stops as well"


def test_an_interrupted_caller_stops_the_devices() -> None:
    ended = threading.Event()

    def interrupt() -> None:
        raise KeyboardInterrupt

    def work(device: str, item: int, deadline: float, report: Report) -> None:
        try:
            while True:
                report(interrupt)
                time.sleep(0.001)
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        distribute(range(2), ["a", "b"], work)
    assert ended.wait(10)
