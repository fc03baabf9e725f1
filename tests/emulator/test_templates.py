"""The templates in ``kernels/`` on random problems: the emulator checks every access, float64 checks every element."""

from __future__ import annotations

import functools
import itertools
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.emulator.emulator import Emulator
from tests.emulator.gemm import INCLUDES, Case, error_of, launch, operand
from tests.gemm_problems import operands, problems, sizes
from warp_tiles.gemm.choose import choose, fma_candidates, mma_candidates
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import TileConfig, fits, instructions
from warp_tiles.providers.own import register_accumulators

PRODUCTS_PER_BATCH = 100
PRODUCTS = int(os.environ.get("EMULATED_PRODUCTS", "300"))  # some have equal configurations
MAX_SHOWN = 12  # failures in a message

powers = st.sampled_from([1, 2, 4])


@st.composite
def changes(draw: st.DrawFn, problem: GemmProblem) -> TileConfig:
    """A random configuration, which the check may refuse."""
    instruction = draw(st.sampled_from(instructions(problem)))
    if instruction == "fma":
        lanes_k = draw(st.sampled_from([1, 1, 2, 4, 8]))
        lanes_n = draw(st.sampled_from([x for x in (1, 2, 4, 8, 16, 32) if lanes_k * x <= 32]))
        lanes_m = 32 // (lanes_k * lanes_n)
        tile_m, tile_n = lanes_m * draw(st.sampled_from([1, 2, 3, 4])), lanes_n * draw(st.sampled_from([1, 2, 4, 5]))
    else:
        lanes_m = lanes_n = lanes_k = 1
        tile_m, tile_n = draw(st.sampled_from([16, 24, 32, 48])), 8 * draw(st.integers(1, 6))
    return TileConfig(
        instruction,
        tile_m,
        tile_n,
        lanes_m,
        lanes_n,
        lanes_k,
        k_vector=draw(st.sampled_from([1, 2, 4, 8])),
        k_unroll=draw(st.sampled_from([1, 2])),
        swizzle_a=draw(powers),
        swizzle_b=draw(powers),
        swizzle_c=draw(powers),
        transposed=draw(st.booleans()),
        c_first=draw(st.booleans()),
    )


@st.composite
def deep_problems(draw: st.DrawFn) -> GemmProblem:
    """Products that have fewer warp tiles of C than the block has warps."""
    problem = draw(problems())
    m, n = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    k = draw(st.one_of(sizes, st.sampled_from([64, 96, 128, 192, 256])))
    a, b, c = problem.a.dtype, problem.b.dtype, draw(st.sampled_from(["float32", "float64"]))
    operands_abc = draw(operands(m, k, a)), draw(operands(k, n, b)), draw(operands(m, n, c))
    threads = 32 * draw(st.sampled_from([2, 4, 6, 8, 16, 32]))
    return GemmProblem(m, n, k, *operands_abc, problem.precision, threads, problem.arch)


@st.composite
def split_k_configs(draw: st.DrawFn, problem: GemmProblem) -> TileConfig | None:
    """A split-K configuration, or None if none fits."""
    flip, warps_k = draw(st.booleans()), draw(st.sampled_from([2, 2, 4, 8]))
    view = problem.transposed() if flip else problem
    instruction = draw(st.sampled_from([*instructions(view)[:1], *instructions(view)]))
    candidates = fma_candidates(view) if instruction == "fma" else mma_candidates(view, instruction)
    found = [
        split
        for config in candidates
        for vector in (config.k_vector, 4, 2)
        if fits(
            problem,
            split := replace(config, warps_k=warps_k, k_vector=vector, c_first=False, transposed=flip),
        )
    ]
    return draw(st.sampled_from(found)) if found else None


# the estimates of all candidates take 7 ms
chosen = functools.cache(choose)


def final_config(problem: GemmProblem, change: TileConfig | None) -> TileConfig:
    """The chooser's configuration, or ``change`` with refused fields reset one by one until the check accepts it."""
    usual = chosen(problem)
    assert fits(problem, usual)
    if change is None:
        return usual
    simple: dict[str, Any] = {"c_first": False, "swizzle_c": 1, "swizzle_b": 1, "swizzle_a": 1, "k_vector": 4}
    simple |= {"tile_n": max(8, change.lanes_n), "tile_m": max(16, change.lanes_m)}
    for name, value in simple.items():
        if fits(problem, change):
            return change
        change = replace(change, **{name: value})
    return change if fits(problem, change) else usual


@dataclass(frozen=True)
class Drawn:
    """A product without its final configuration."""

    problem: GemmProblem
    change: TileConfig | None
    alpha: float
    beta: float
    seed: int
    loop: int

    def case(self) -> Case:
        """The case with its configuration. It is a loop only if registers hold the accumulators."""
        config = final_config(self.problem, self.change)
        accumulators = register_accumulators(self.problem, self.problem.symbol, config)
        if self.loop and not isinstance(accumulators, str):
            return Case(self.problem, config, self.loop, 1.0, self.seed, self.loop)
        return Case(self.problem, config, self.alpha, self.beta, self.seed)


@st.composite
def products(draw: st.DrawFn) -> Drawn:
    """A product with scalars that every dtype represents. Three of four have a changed configuration."""
    if draw(st.integers(0, 3)) == 0:
        problem = draw(deep_problems())
        change = draw(split_k_configs(problem))
    else:
        problem = draw(problems())
        change = draw(changes(problem)) if draw(st.integers(0, 3)) else None
    alpha, beta = draw(st.sampled_from([1.0, -2.0, 0.5])), draw(st.sampled_from([0.0, 1.0, 0.5]))
    return Drawn(problem, change, alpha, beta, draw(st.integers(0, 2**16)), draw(st.sampled_from([0, 0, 0, 1, 2, 3])))


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    """Distinct products, the same in every run."""
    found: dict[Drawn, None] = {}

    def collect(batch: list[Drawn]) -> None:
        found.update(dict.fromkeys(batch))

    batches = st.lists(products(), min_size=PRODUCTS_PER_BATCH, max_size=PRODUCTS_PER_BATCH, unique=True)
    # Each seed gives the simplest example and a random one. More examples would mostly be variations of the random one.
    # The simplest batch is the same for all seeds, so only the first draws it.
    empty_or_batch = st.one_of(st.just([]), batches)
    each = settings(
        max_examples=2,
        database=None,
        phases=[Phase.generate],  # nothing fails here, so shrinking is not needed
        suppress_health_check=list(HealthCheck),
    )
    for number in itertools.count():
        seed(number)(each(given(batch=empty_or_batch if number else batches)(collect)))()
        if len(found) >= PRODUCTS:
            break
    return list(found)


@pytest.fixture(scope="module")
def cases(drawn: list[Drawn]) -> tuple[list[Case], list[str]]:
    """The products with their configurations, and the failures of the chooser."""
    found: dict[Case, None] = {}
    failures: list[str] = []
    for one in drawn:
        try:
            found[one.case()] = None
        except Exception as error:
            failures.append(f"{one.problem.symbol}: {error!r}")
    return list(found), failures


def report(failures: list[str], total: int) -> str:
    """A message with the first failures. Each can be reproduced alone."""
    return f"{len(failures)} of {total} fail:\n" + "\n".join(failures[:MAX_SHOWN])


@pytest.mark.slow
def test_every_product_has_a_configuration(drawn: list[Drawn], cases: tuple[list[Case], list[str]]) -> None:
    failures = cases[1]
    assert not failures, report(failures, len(drawn))


@pytest.mark.slow
def test_the_products_cover_all_configuration_fields(cases: tuple[list[Case], list[str]]) -> None:
    found = cases[0]
    assert len(found) >= PRODUCTS * 10 // 11  # 2,000 of the 2,200 of a nightly run
    assert {case.config.instruction for case in found} == {"mma_m16n8k16", "mma_m16n8k8", "mma_m8n8k4", "fma"}
    assert {case.problem.arch for case in found} == {75, 80, 86, 90, 120}
    for name in ("swizzle_a", "swizzle_b", "swizzle_c"):
        assert {getattr(case.config, name) for case in found} == {1, 2, 4}
    changed = sum(case.config != chosen(case.problem) for case in found)
    assert {case.loop for case in found} == {0, 1, 2, 3}
    assert {case.config.c_first for case in found} == {True, False}
    assert {case.config.warps_k for case in found} == {1, 2, 4, 8}
    assert len(found) / 4 < changed < len(found)


@pytest.mark.slow
def test_every_product_is_correct(emulator: Emulator, cases: tuple[list[Case], list[str]]) -> None:
    found = cases[0]
    launches = [launch(case) for case in found]
    outcomes = emulator.run(launches, INCLUDES)
    failures = [text for text in map(error_of, found, launches, outcomes) if text]
    assert not failures, report(failures, len(found))


@pytest.mark.slow
def test_two_runs_are_bitwise_equal(emulator: Emulator) -> None:
    dense = operand("float16", True, 40, 16)
    problem = GemmProblem(40, 40, 40, dense, dense, dense, "default", 128, 90)
    fp32 = replace(problem, a=operand("float32", True, 40, 16), b=operand("float32", False, 40, 4))
    batch = [Case(each, choose(each), 0.5, 0.5) for each in (problem, fp32)]
    launches = [launch(case) for case in batch]
    first, second = emulator.run(launches, INCLUDES), emulator.run(launches, INCLUDES)
    assert [x.error for x in first] == ["", ""]
    assert [x.c_bytes for x in first] == [x.c_bytes for x in second]
    assert [x.counts for x in first] == [x.counts for x in second]
    assert not np.array_equal(first[0].c, first[1].c)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        TileConfig("mma_m16n8k16", 16, 16, warps_k=4, k_vector=8, swizzle_b=4),
        TileConfig("fma", 16, 16, lanes_m=4, lanes_n=8, warps_k=4, k_vector=4),
    ],
    ids=lambda config: config.instruction,
)
def test_slices_of_k_scale_c_once(emulator: Emulator, config: TileConfig) -> None:
    a, b, c = operand("float16", True, 256, 16), operand("float16", True, 16, 16), operand("float32", True, 16, 16)
    case = Case(GemmProblem(16, 16, 256, a, b, c, "default", 128, 90), config, -2.0, 0.5)
    assert fits(case.problem, config)
    launched = launch(case)
    (outcome,) = emulator.run([launched], INCLUDES)
    assert error_of(case, launched, outcome) == ""
