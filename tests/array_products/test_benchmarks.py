"""The parts of the benchmarks of products that need no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from benchmarks import tune_matmul
from tests.tuning.task_fakes import Machine
from warp_tiles.array_products.matmul_choice import choose_matmul
from warp_tiles.array_products.matmul_problem import Gpu, MatmulConfig, MatmulProblem, MeasuredConfigs
from warp_tiles.array_products.prepared import winners
from warp_tiles.tuning.record import Environment, Record, decode_records, encode_records, identity
from warp_tiles.tuning.store import RecordStore

CONFIG = MatmulConfig(64, 64, 64, 128)


def test_each_bucket_is_tuned_once() -> None:
    found = list(tune_matmul.problems())
    assert len({problem.bucket for problem in found}) == len(found)
    assert len({problem.text for problem in found}) == len(found)


@pytest.mark.parametrize("size", [256, 4096])
def test_the_choice_is_measured_first(size: int) -> None:
    problem = MatmulProblem(size, size, size, a="float16", b="float16", out="float16")
    configs = tune_matmul.considered(problem, Gpu(90, 132))
    assert configs[0] == choose_matmul(problem, Gpu(90, 132)).chosen.config
    assert {config.tensor_copies for config in configs} == {True, False}
    assert len(set(configs)) == len(configs) <= tune_matmul.MEASURED


@dataclass
class Bench:
    """A stand-in for the arrays of a problem, with times by configuration."""

    machine: Machine
    compiled: list[Any] = field(default_factory=list)

    def prefetch(self, configs: Sequence[Any]) -> None:
        self.compiled += configs

    def build(self, config: Any) -> Any:
        return self.machine.build(config)


PROBLEM = MatmulProblem(256, 256, 256, a="float16", b="float16", out="float16")
KEY = tune_matmul.key_of(PROBLEM, "source", Environment("GPU", 90, 132, wp.__version__, "13.0", warp_tiles.__version__))


def test_a_bucket_is_measured_once_and_ships_if_its_default_lost(tmp_path: Path) -> None:
    other, slow = replace(CONFIG, tile_n=128), replace(CONFIG, tile_n=32)
    machine = Machine({identity(other.to_json()): 80.0, identity(slow.to_json()): 200.0})
    bench, store = Bench(machine), RecordStore(tmp_path)
    record = tune_matmul.tuned(bench, store, KEY, [CONFIG, other, slow], machine)
    winner = record.winner()
    assert winner is not None
    assert winner.config == other.to_json()
    sizes = {timing.config["group"] for timing in record.timings if timing.config != tune_matmul.DEFAULT}
    assert sizes == {CONFIG.group, *tune_matmul.GROUPS}, "the fastest is measured in groups of other sizes"
    compiled = len(bench.compiled)
    assert tune_matmul.tuned(bench, store, KEY, [CONFIG, other, slow], machine) == record
    assert len(bench.compiled) == compiled, "nothing is measured again"
    shipped = decode_records(encode_records(tune_matmul.shipped([record, Record(KEY)])))
    assert winners(shipped) == {PROBLEM.bucket: MeasuredConfigs(loop=other)}
    assert [len(one.timings) for one in shipped] == [2]
    assert choose_matmul(PROBLEM, Gpu(90, 132), winners(shipped)).config == other


@pytest.mark.parametrize(("other_us", "ships"), [(97.5, True), (98.5, False)])
def test_a_gain_that_may_be_noise_does_not_ship(tmp_path: Path, other_us: float, ships: bool) -> None:
    other = replace(CONFIG, tile_n=128)
    machine = Machine({identity(other.to_json()): other_us})
    record = tune_matmul.tuned(Bench(machine), RecordStore(tmp_path), KEY, [CONFIG, other], machine)
    assert len(tune_matmul.shipped([record])) == ships


@pytest.mark.parametrize("kernel_us", [70.0, 90.0])
def test_what_ships_shows_that_the_kernel_was_compared(tmp_path: Path, kernel_us: float) -> None:
    loop, kernel = replace(CONFIG, tile_n=128), replace(CONFIG, threads=384, tensor_copies=True)
    machine = Machine({identity(loop.to_json()): 80.0, identity(kernel.to_json()): kernel_us})
    record = tune_matmul.tuned(Bench(machine), RecordStore(tmp_path), KEY, [CONFIG, loop, kernel], machine)
    (shipped,) = tune_matmul.shipped([record])
    best = kernel if kernel_us < 80.0 else loop
    assert winners([shipped]) == {PROBLEM.bucket: MeasuredConfigs(best)}
    assert identity(kernel.to_json()) in {timing.identity for timing in shipped.timings}
    has_groups = any(timing.config.get("group") == tune_matmul.GROUPS[0] for timing in record.timings)
    assert has_groups == (best == loop), "the kernel decides about its groups"
