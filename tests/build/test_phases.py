"""The times of a module's build, and of its functions."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.bench import ALIGNED, Bench
from tests.build.test_module_build import Case
from warp_tiles import settings
from warp_tiles.build.records import COMPILE, LINK, WAIT, WARP_LINK, Phase, Phases, now_s
from warp_tiles.compile.compiler import Compiled
from warp_tiles.errors import BuildError


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, at the time of its only entry."""
    now = [10.0]
    monkeypatch.setattr("warp_tiles.build.records.now_s", lambda: now[0])
    return now


def test_a_block_is_a_phase_also_if_it_raises(stopped: list[float]) -> None:
    phases = Phases()

    def fails() -> None:
        with phases.measured(WAIT):
            stopped[0] = 12.5
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert phases.found == (Phase(WAIT, 10.0, 2.5),)
    assert phases.found[0].to_json() == {"name": "wait_for_functions", "started_at_s": 10.0, "seconds": 2.5}


def test_the_work_of_a_process_counts_without_the_wait_for_it(stopped: list[float]) -> None:
    phases, work = Phases(), Future[Compiled]()
    followed = phases.of_process(LINK, work)
    assert not followed.done()
    stopped[0] = 15.0
    work.set_result(Compiled(b"cubin", 2.0, "", ""))
    assert followed.result(0).payload == b"cubin"
    assert phases.found == (Phase(LINK, 13.0, 2.0),)


def test_a_phase_is_there_before_its_result() -> None:
    for _ in range(200):
        phases, work = Phases(), Future[Compiled]()
        followed = phases.of_process(LINK, work)
        threading.Thread(target=work.set_result, args=(Compiled(b"", 0.0, "", ""),)).start()
        followed.result(10)
        assert len(phases.found) == 1


def test_a_failure_is_passed_on_and_is_no_phase() -> None:
    phases, work = Phases(), Future[Compiled]()
    followed = phases.of_process(COMPILE, work)
    work.set_exception(BuildError("refused"))
    with pytest.raises(BuildError, match="refused"):
        followed.result(0)
    cancelled = Future[Compiled]()
    followed = phases.of_process(COMPILE, cancelled)
    cancelled.cancel()
    cancelled.set_running_or_notify_cancel()
    assert followed.exception(0) is not None
    assert phases.found == ()


def test_phases_are_sorted_by_start(stopped: list[float]) -> None:
    phases, work = Phases(), Future[Compiled]()
    with phases.measured(WAIT):
        stopped[0] = 11.0
    phases.of_process(COMPILE, work)
    work.set_result(Compiled(b"", 3.0, "", ""))
    assert [phase.name for phase in phases.found] == [COMPILE, WAIT]


def test_a_build_of_the_engine_has_its_start_and_the_compilers_part(bench: Bench) -> None:
    before = now_s()
    built = bench.engine.start([ALIGNED])[ALIGNED].result(20)
    assert before <= built.started_at_s
    assert built.started_at_s + built.seconds <= now_s()
    assert built.compiled is not None
    assert built.compiled.name == COMPILE
    assert built.to_json()["compiled"] == built.compiled.to_json()
    found = bench.engine.start([ALIGNED])[ALIGNED].result(20)
    assert (found.hit, found.shared, found.compiled) == (True, False, None)
    assert found.started_at_s > built.started_at_s


def test_a_record_has_the_phases_of_its_build(tmp_path: Path) -> None:
    before = now_s()
    record = Case(tmp_path).build()
    assert {phase.name for phase in record.phases} == {WAIT, COMPILE, LINK}
    assert before <= record.started_at_s
    assert record.started_at_s + record.seconds <= now_s()
    data = record.to_json()
    assert data["started_at_s"] == round(record.started_at_s, 4)
    assert data["phases"] == [phase.to_json() for phase in record.phases]


def test_warps_own_link_is_a_phase(tmp_path: Path) -> None:
    with settings.override(linker="warp"):
        record = Case(tmp_path).build()
    assert [phase.name for phase in record.phases] == [WAIT, WARP_LINK]
