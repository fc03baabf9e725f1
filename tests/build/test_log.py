"""Records of plans, builds and links, as JSON, and the times of their steps."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import ALIGNED, Bench
from tests.build.test_module_build import Case
from tests.codegen.modules import BIG, session
from tests.integration.commands import PLAN_FIELDS
from warp_tiles import settings
from warp_tiles.build import log as build_log
from warp_tiles.build.log import COMPILE, LINK, WAIT, WARP_LINK, Artifact, BuildLog, ModuleLog, Phase, Phases, now_s
from warp_tiles.compile.compiler import Compiled
from warp_tiles.gemm.problem import Role
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.plan.planner import resolve
from warp_tiles.plan.planning import ModulePlan

BUILT = Artifact(BIG[Role.FORWARD], "f", b"x" * 100, "cublasdx", "ab" * 32, False, 1.23456)
HIT = Artifact(BIG[Role.ADJOINT_A], "a", b"y" * 50, "cublasdx", "cd" * 32, True, 0.001)
SCALAR = Artifact(BIG[Role.ADJOINT_B], "", b"", "scalar", "", False, 0.0, ("warned",))


def plan() -> ModulePlan:
    return resolve(session(("k", BIG)), (), ["k"], [])


def record(*artifacts: Artifact) -> ModuleLog:
    return ModuleLog(plan(), artifacts, "warp_tiles", "", "module.sm90.cubin", 26_000, 2.34567)


def test_a_record_has_the_plan_the_builds_and_their_totals() -> None:
    for function in (lambda one: one, Artifact.without_payload):
        made = record(*map(function, (BUILT, HIT, SCALAR)))
        data = json.loads(json.dumps(made.to_json()))
        assert (data["lto_builds"], data["lto_hits"], data["lto_bytes"]) == (1, 1, 150)
        assert (data["cubin_bytes"], data["output"], data["seconds"]) == (26_000, "module.sm90.cubin", 2.3457)
        assert (data["linker"], data["linker_reason"]) == ("warp_tiles", "")
        assert (data["name"], data["kernels"], data["arch"], data["block_dim"]) == ("module", ["k"], 90, 128)
        assert all(set(planned) >= PLAN_FIELDS for planned in data["functions"])
        assert [build["symbol"] for build in data["builds"]] == ["f", "a", ""]
    text = record(BUILT, HIT).summary()
    for part in ("module sm_90", "1 function built", "1 from cache", "2 skipped", "26 kB", "by warp_tiles", "2.3 s"):
        assert part in text
    assert BUILT.without_payload().payload == b""


def test_a_build_is_printed_without_its_bytes() -> None:
    assert BUILT.to_json() == {
        "symbol": "f", "problem": BIG[Role.FORWARD].to_json(), "provider": "cublasdx", "tile_config": None, "tile": "",
        "key": "ab" * 32, "hit": False, "lto_bytes": 100, "started_at_s": 0.0, "seconds": 1.2346, "compiled": None,
        "shared": False, "in_source": False, "warnings": [],
    }  # fmt: skip
    config = TileConfig("fma", 8, 4, lanes_m=8, lanes_n=4)
    own = replace(BUILT, provider="own", tile_config=config)
    assert own.to_json()["tile_config"] == config.to_json()
    assert own.without_payload().tile_config == config
    assert SCALAR.to_json()["warnings"] == ["warned"]
    assert SCALAR.to_json()["lto_bytes"] == 0


def test_a_module_is_reported_once_and_one_that_was_not_built_by_its_newest_plan() -> None:
    log, built = BuildLog(), record(BUILT)
    log.add_plan(built.plan)
    for kernels in (("k",), ("k", "other")):
        log.add_plan(planned := replace(plan(), name="other", arch=None, kernels=kernels))
    log.add_module(built)
    first, second = log.to_json()["modules"]
    assert (first, log.modules) == (built.to_json(), (built,))
    assert (second["name"], second["builds"], second["arch"]) == ("other", [], None)
    assert (second["kernels"], second["functions"]) == (["k", "other"], planned.to_json()["functions"])


# ---- the times of a module's build, and of its functions


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock, at the time of its only entry."""
    now = [10.0]
    monkeypatch.setattr("warp_tiles.build.log.now_s", lambda: now[0])
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


def test_the_work_of_a_process_counts_without_the_wait_for_it_and_phases_are_sorted_by_start(
    stopped: list[float],
) -> None:
    phases, linked = Phases(), Compiled(b"cubin", 6.0, "", ended_at_s=build_log._ZERO + 15.0)
    with phases.measured(WAIT):
        stopped[0] = 15.0
    assert phases.of_process(LINK, linked) is linked
    assert phases.found == (Phase(LINK, 9.0, 6.0), Phase(WAIT, 10.0, 5.0))


def test_a_build_of_the_engine_has_its_start_and_the_compilers_part(bench: Bench) -> None:
    before = now_s()
    built = bench.engine.start([ALIGNED])[ALIGNED].result(20)
    assert before <= built.started_at_s
    assert built.started_at_s + built.seconds <= now_s()
    assert built.compiled.name == COMPILE
    assert built.to_json()["compiled"] == built.compiled.to_json()
    found = bench.engine.start([ALIGNED])[ALIGNED].result(20)
    assert (found.hit, found.shared, found.compiled) == (True, False, None)
    assert found.started_at_s > built.started_at_s


@pytest.mark.parametrize(("linker", "steps"), [("auto", {WAIT, COMPILE, LINK}), ("warp", {WAIT, WARP_LINK})])
def test_a_record_has_the_phases_of_its_build(tmp_path: Path, linker: str, steps: set[str]) -> None:
    before = now_s()
    with settings.override(linker=linker):
        record = Case(tmp_path).build()
    assert {phase.name for phase in record.phases} == steps
    assert before <= record.started_at_s
    assert record.started_at_s + record.seconds <= now_s()
    data = record.to_json()
    assert data["started_at_s"] == round(record.started_at_s, 4)
    assert data["phases"] == [phase.to_json() for phase in record.phases]
