"""The parts of the benchmarks of products that need no GPU, and the shipped records."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import warp as wp

from benchmarks import matmul, tune_matmul
from tests.tuning.place_fakes import Machine
from warp_tiles.array_products import prepared
from warp_tiles.array_products.arguments import checked_call
from warp_tiles.heuristics.matmul import MatmulConfig, MatmulProblem, choose_matmul
from warp_tiles.tuning.record import Timing, identity

CONFIG = MatmulConfig(64, 64, 64, 128)


def test_rows_have_different_names() -> None:
    assert len({row.name for row in matmul.ROWS}) == len(matmul.ROWS)
    assert sum(row.kind == "skinny" for row in matmul.ROWS) == 20
    assert {row.dtype for row in matmul.ROWS} == set(matmul.ALLOWED)
    assert {row.kind for row in matmul.ROWS} == set(matmul.KINDS)


def test_the_summary_has_a_geometric_mean_of_each_kind() -> None:
    rows = [
        {"kind": kind, "to_torch": {"torch": ratio}} for kind, ratio in (("skinny", 2.0), ("skinny", 0.5), ("layer", 3))
    ]
    assert matmul.summary(rows) == {"skinny": 1.0, "layer": 3.0}


def test_each_tier_is_tuned_once() -> None:
    found = list(tune_matmul.problems())
    assert len({problem.bucket for problem in found}) == len(found)
    assert len({problem.text for problem in found}) == len(found)


@pytest.mark.parametrize("size", [256, 4096])
def test_the_choice_is_measured_first(size: int) -> None:
    problem = MatmulProblem(size, size, size, a="float16", b="float16", out="float16")
    configs = tune_matmul.considered(problem, 90, 132)
    assert configs[0] == choose_matmul(problem, 90, 132).config
    assert len(set(configs)) == len(configs) <= tune_matmul.MEASURED


def test_only_a_clear_gain_is_recorded() -> None:
    other = replace(CONFIG, tile_n=128)

    def timing(config: MatmulConfig, median_us: float, half_us: float = 0.01) -> Timing:
        return Timing(config.to_json(), "ok", median_us, median_us - half_us, median_us + half_us, 50)

    assert tune_matmul.fastest([timing(CONFIG, 10.0), timing(other, 9.9)], CONFIG) is None
    assert tune_matmul.fastest([timing(CONFIG, 10.0), timing(other, 9.0, 1.0)], CONFIG) is None
    found = tune_matmul.fastest([timing(CONFIG, 10.0), timing(other, 9.0)], CONFIG)
    assert found is not None
    assert found.config == other.to_json()


def test_configurations_of_a_tier_are_searched_beside_torch() -> None:
    machine, other = Machine(), replace(CONFIG, tile_n=128)
    machine.times_us = {identity(other.to_json()): 80.0}
    bench = SimpleNamespace(build=machine.build, device=None)
    found = tune_matmul.measured(bench, [CONFIG, other], CONFIG, machine)  # type: ignore[arg-type]
    best = tune_matmul.fastest(found, CONFIG)
    assert best is not None
    assert best.config == other.to_json()


def test_measured_tiers_replace_earlier_ones_and_keep_the_others() -> None:
    earlier = [{"tier": [tier], "config": {"tile_m": 1}} for tier in ("one", "two", "three")]
    found = [{"tier": ["one"], "config": None}, {"tier": ["two"], "config": {"tile_m": 2}}]
    assert tune_matmul.merged(earlier, found) == [
        {"tier": ["two"], "config": {"tile_m": 2}},
        {"tier": ["three"], "config": {"tile_m": 1}},
    ]


def test_shipped_records() -> None:
    for path in sorted(prepared.RECORDS.glob("*.json")):
        data = json.loads(path.read_text("utf-8"))
        found = prepared.records_for(data["arch"], data["multiprocessors"], data["gpu"])
        assert dict(found) == prepared.parsed(data), path.name
    assert prepared.records_for(None, 1, prepared.PLANNED_NAME) == {}
    assert prepared.records_for(80, 108, "NVIDIA A100") == {}


def test_gpus_with_equal_multiprocessors_have_records_of_their_own() -> None:
    h100, h200, other = (prepared.records_for(90, 132, f"NVIDIA {name}") for name in ("H100 80GB HBM3", "H200", "new"))
    assert h100 == other != h200
    assert h200 is prepared.records_for(*prepared.PLANNED_GPU, prepared.PLANNED_NAME)


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
def test_a_configuration_is_that_of_the_gpus_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def recorded(arch: int, multiprocessors: int, gpu: str) -> dict[Any, Any]:
        asked.append(gpu)
        return {}

    monkeypatch.setattr(prepared, "records_for", recorded)
    a, b, c = (wp.zeros((64, 64), dtype=wp.float16, device="cpu") for _ in range(3))
    call = checked_call(a, b, c, alpha=1.0, beta=0.0, bias=None, epilogue=None, precision="default")
    prepared.planned_product(call, SimpleNamespace(is_cuda=True, arch=90, sm_count=132, name=name))
    assert asked == [name]


def test_records_are_read_by_tier() -> None:
    problem = MatmulProblem(100, 200, 300)
    data = {"records": [{"tier": list(problem.bucket), "config": CONFIG.to_json()}]}
    parsed = prepared.parsed(json.loads(json.dumps(data)))
    assert choose_matmul(problem, 90, 132, parsed).config == CONFIG
