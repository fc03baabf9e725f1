"""Tuning of tasks by a fake machine: what is measured, kept, and measured again."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tuning.task_fakes import H200, Machine, loop, problem, task, timing
from warp_tiles.errors import ToolchainError, TuningError
from warp_tiles.tuning.in_kernels import Tuner
from warp_tiles.tuning.record import DEFAULTS, Record, identity
from warp_tiles.tuning.store import RecordStore
from warp_tiles.tuning.tasks import loop_task

TASK = loop_task(loop())
OTHER = loop_task(loop(problem(64, 64, 32, 128, "float32")))
AUTO = identity(DEFAULTS["loop"])


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def tuner(tmp_path: Path, machine: Machine) -> Tuner:
    return Tuner(RecordStore(tmp_path), H200, "5" * 64, machine.devices)


def test_every_configuration_is_measured_and_the_fastest_wins(tuner: Tuner, machine: Machine) -> None:
    machine.times_us = {identity(TASK.configs[3]): 80.0}
    found = tuner.tune(task(TASK))
    assert {item.identity for item in found.record.timings} == {identity(config) for config in TASK.configs}
    assert (found.measured, found.error) == (len(TASK.configs), "")
    assert found.winner is not None
    assert found.winner.config == TASK.configs[3]
    assert tuner.store.load(TASK.key("5" * 64, H200)) == found.record


def test_that_the_default_won_is_recorded(tuner: Tuner, machine: Machine) -> None:
    """Otherwise the policy ``max`` would search at each start."""
    machine.times_us = {identity(TASK.configs[3]): 99.5}
    found = tuner.tune(task(TASK))
    assert found.winner is not None
    assert found.winner is found.record.default
    assert tuner.tune(task(TASK)).measured == 0


def test_a_gain_within_the_noise_does_not_win_and_nothing_wins_without_the_default() -> None:
    default = timing(DEFAULTS["loop"], 100.0)
    noisy = replace(timing({"pipeline": "stages=3"}, 90.0), low_us=80.0, high_us=100.5)
    record = Record(TASK.key("", H200), (default, noisy))
    assert record.winner() is default
    assert replace(record, timings=(default, replace(noisy, high_us=99.0))).winner() is not default
    small = timing({"pipeline": "stages=3"}, 99.2)
    assert replace(record, timings=(default, small)).winner() is default, "less than 1 % is not worth a record"
    assert replace(record, timings=(noisy,)).winner() is None
    failed = replace(timing(DEFAULTS["loop"], 1.0), status="failed")
    assert replace(record, timings=(noisy, failed)).winner() is noisy


def test_a_later_search_measures_what_is_missing_beside_default_and_best(tuner: Tuner, machine: Machine) -> None:
    best, known = TASK.configs[2], TASK.configs[:4]
    key = TASK.key("5" * 64, H200)
    tuner.store.merge(key, [timing(config, 80.0 if config == best else 100.0) for config in known])
    machine.times_us = {identity(best): 80.0}
    found = tuner.tune(task(TASK))
    again = {identity(config) for config in known} & set(machine.built)
    assert again == {AUTO, identity(best)}
    assert found.measured == len(TASK.configs) - len(known)


def test_timings_of_another_driver_are_measured_again_if_they_do_not_count(tuner: Tuner, machine: Machine) -> None:
    key = TASK.key("5" * 64, H200)
    old = {"driver": "12.0", "warp": H200.warp}
    tuner.store.merge(key, [timing(config, 100.0, soft=old) for config in TASK.configs])
    assert tuner.tune(task(TASK)).measured == 0
    again = replace(tuner, reuse_stale=False).tune(task(TASK)).record
    assert {item.soft["driver"] for item in again.timings} == {"13.0"}


def test_a_budget_is_shared_and_ends_in_time(tuner: Tuner, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles.tuning.search.available_cores", lambda: 1)

    def devices(item: Any, configs: Any) -> Any:
        def build(config: Any) -> Any:
            time.sleep(0.5 if item == TASK else 0.0)  # the first task alone would take longer than the budget
            return Machine.build(machine, config)

        machine.build = build  # type: ignore[method-assign]
        return machine.devices(item, configs)

    found = replace(tuner, devices=devices).tune_all([task(TASK), task(OTHER)], budget_s=4.0)
    assert [item.task for item in found] == [TASK, OTHER]
    assert found[0].measured < len(TASK.configs)
    assert found[1].measured > 0, "the first task leaves the second one its share"


def test_a_launch_that_cannot_be_repeated_does_not_end_the_others(tuner: Tuner, machine: Machine) -> None:
    calls: list[int] = []
    tuner = replace(tuner, changed=lambda: calls.append(1))
    tuner.tune_all([task(TASK), task(OTHER)])
    assert len(calls) == 2, "the next task is built with the configuration of the one before"

    def devices(item: Any, configs: Any) -> Any:
        if item == TASK:
            raise TuningError("the argument a cannot be copied")
        return machine.devices(item, configs)

    tuner.store.remove()
    first, second = replace(tuner, devices=devices).tune_all([task(TASK), task(OTHER)])
    assert (first.error, first.winner) == ("the argument a cannot be copied", None)
    assert second.winner is not None


def test_a_configuration_that_breaks_the_gpu_has_failed_and_the_rest_is_kept(tuner: Tuner, machine: Machine) -> None:
    machine.broken_by = identity(TASK.configs[5])
    with pytest.raises(ToolchainError, match="cuda:7 cannot be used any more since it ran"):
        tuner.tune(task(TASK))
    record = tuner.search(task(TASK)).record()
    failed = [item.identity for item in record.timings if item.status == "failed"]
    assert failed == [machine.broken_by]
    healed = Machine()
    assert replace(tuner, devices=healed.devices).tune(task(TASK)).winner is not None
    assert machine.broken_by not in healed.built
