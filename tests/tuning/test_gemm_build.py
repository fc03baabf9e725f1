"""Candidates as finished cubins: built with the real compiler and linker, without a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import variant_of
from tests.integration.helpers import cubin_symbols
from warp_tiles import settings
from warp_tiles.build.engine import Engine
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.heuristics.limits import sums_per_thread
from warp_tiles.tuning.gemm_bench import KERNEL, LOOP_KERNEL
from warp_tiles.tuning.gemm_build import Benchmark, FailedBuild, build_in_parallel
from warp_tiles.tuning.gemm_space import candidates, config_of, tile_config_of

HALF = variant_of(64, "float16", threads=128)
VARIANTS = {
    "fp16": HALF,
    "fp16 into fp32": replace(HALF, c=replace(HALF.c, dtype="float32")),
    "fp32 of odd sizes": variant_of(7),
    "fp64": variant_of(16, "float64", threads=64),
    "bf16 with gaps, 256 threads": replace(
        variant_of(32, "bfloat16", threads=256),
        a=replace(variant_of(32, "bfloat16").a, leading_dimension=40),
        c=replace(variant_of(32, "bfloat16").c, arrangement="col_major", leading_dimension=33, alignment=2),
    ),
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with settings.override(cache_dir=tmp_path / "cache", progress="off"):
        created = Engine(warp_toolkit=(13, 4))
        yield created
        created.close()


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_benchmarks_are_complete_cubins(engine: Engine, variant: GemmProblem) -> None:
    wanted = candidates(variant, 3)
    found = list(build_in_parallel(engine.build_context(settings.current()), variant, wanted))
    assert [item.config for item in found] == list(wanted)
    for item in found:
        assert isinstance(item, Benchmark), item
        tile_config = tile_config_of(item.config)
        sums = sums_per_thread(variant, tile_config) if tile_config and variant.c.dtype.startswith("float32") else 0
        symbols = cubin_symbols(item.cubin)
        assert symbols.undefined == frozenset()
        assert KERNEL in symbols.functions
        assert item.has_loop == (LOOP_KERNEL in symbols.functions)
        assert item.has_loop or not sums


def test_a_candidate_that_cannot_be_built_says_why(engine: Engine) -> None:
    config = tile_config_of(candidates(HALF, 1)[0])
    assert config is not None
    narrow = config_of("mma", replace(config, tile_n=7))
    damaged = {"provider": "mma", "tile_config": {}}
    first, second = build_in_parallel(engine.build_context(settings.current()), HALF, [narrow, damaged])
    assert isinstance(first, FailedBuild)
    assert "tile_m and tile_n must be multiples of 16 and 8" in first.reason
    assert isinstance(second, FailedBuild)
    assert "not a tile configuration" in second.reason


def test_candidates_not_ready_in_time_are_left_out(engine: Engine) -> None:
    start = time.monotonic()
    context = engine.build_context(settings.current())
    assert list(build_in_parallel(context, HALF, candidates(HALF, 8), deadline=start)) == []
    assert time.monotonic() - start < 2


def test_the_winners_function_is_in_the_cache_afterwards(engine: Engine) -> None:
    (built,) = build_in_parallel(engine.build_context(settings.current()), HALF, candidates(HALF, 1)[:1])
    assert isinstance(built, Benchmark)
    artifact = engine.start([HALF])[HALF].result(60)
    assert artifact.hit
