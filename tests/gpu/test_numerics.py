"""Every form of the product on a GPU: against float64, and against unmodified Warp."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import warp as wp
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import warp_tiles
from tests.bench import deep_problem
from tests.products import (
    ROUNDOFF,
    TF32_TRUNCATION,
    Case,
    Inputs,
    assert_close,
    draw_inputs,
    make_kernel,
    reference,
    run,
    tolerance,
)
from warp_tiles.gemm.choose import choose

pytestmark = pytest.mark.gpu

H, B, F, D = "float16", "bfloat16", "float32", "float64"
DTYPES = [
    pytest.param(a, b, c, id=f"{a}-{b}-{c}")
    for a, b, c in [
        (F, F, F),
        (D, D, D),
        (H, H, H),
        (H, H, F),
        (H, F, F),
        (F, H, H),
        (F, F, H),
        (H, H, D),
        (F, D, D),
        (D, F, F),
        (B, B, F),
        (B, F, F),
        (B, B, H),
        (B, B, B),
        (F, F, B),
        (H, B, B),
    ]
]
SHAPES = [(16, 16, 16), (64, 64, 64), (8, 24, 40), (17, 9, 5), (1, 32, 7)]


def check(case: Case, gpu: str, seed: int = 1) -> None:
    with warp_tiles.enabled():
        inputs = draw_inputs(case, seed, gpu)
        got = run(case, make_kernel(case), inputs, gpu)
    assert_close(case, got, reference(case, inputs), tolerance(case, inputs))


@pytest.mark.parametrize(("a", "b", "c"), DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES, ids=lambda size: str(size))
def test_dtypes_and_shapes(gpu: str, a: str, b: str, c: str, m: int, n: int, k: int) -> None:
    check(Case(m, n, k, a, b, c), gpu)


@pytest.mark.parametrize("dtype", [H, B, F, D])
@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("pad", [0, 3, 8])
def test_arrangements_and_views(gpu: str, dtype: str, a_transposed: bool, b_transposed: bool, pad: int) -> None:
    check(Case(16, 32, 48, dtype, dtype, dtype, a_transposed, b_transposed, pad), gpu)


@pytest.mark.parametrize("dtype", [H, F, D])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (2.0, 0.0), (-0.5, 0.25), (0.0, 1.0)])
def test_alpha_and_beta(gpu: str, dtype: str, alpha: float, beta: float) -> None:
    check(Case(24, 16, 32, dtype, dtype, dtype, accumulate=True, alpha=alpha, beta=beta), gpu)


@pytest.mark.parametrize("dtype", [H, F, D])
def test_beta_zero_never_reads_c(gpu: str, dtype: str) -> None:
    case = Case(16, 16, 16, dtype, dtype, dtype, accumulate=True, beta=0.0, backward=False)
    with warp_tiles.enabled():
        inputs = draw_inputs(case, 3, gpu)
        poisoned = dataclasses.replace(inputs, c=np.full_like(inputs.c, np.nan))
        got = run(case, make_kernel(case), poisoned, gpu)
    assert_close(case, got, reference(case, inputs), tolerance(case, inputs))


@pytest.mark.parametrize("threads", [32, 64, 96, 128, 256, 512, 1024])
@pytest.mark.parametrize(("m", "n", "k"), [(4, 4, 4), (64, 64, 64)], ids=str)
@pytest.mark.parametrize("dtype", [H, F, D])
def test_threads(gpu: str, threads: int, m: int, n: int, k: int, dtype: str) -> None:
    check(Case(m, n, k, dtype, dtype, dtype, threads=threads), gpu)


@pytest.mark.parametrize(("a_transposed", "b_transposed"), [(False, False), (True, True)])
@pytest.mark.parametrize("size", [16, 64])
def test_tf32(gpu: str, a_transposed: bool, b_transposed: bool, size: int) -> None:
    if tuple(map(int, wp.__version__.split(".")[:2])) < (1, 19):
        pytest.skip("this Warp has no precision argument")
    check(Case(size, size, size, F, F, F, a_transposed, b_transposed, threads=128, tf32=True), gpu)


@pytest.mark.parametrize(("dtype", "result"), [(H, F), (B, F), (D, D)])
@pytest.mark.parametrize("threads", [64, 128, 256])
@pytest.mark.parametrize("beta", [0.0, 0.25])
def test_warps_share_a_long_sum(gpu: str, dtype: str, result: str, threads: int, beta: float) -> None:
    assert choose(deep_problem(16, 256, dtype, threads, result)).warps_k > 1  # type: ignore[arg-type]
    check(Case(16, 16, 256, dtype, dtype, result, threads=threads, accumulate=True, alpha=-0.5, beta=beta), gpu)


sizes = st.integers(1, 70)
cases = st.builds(
    Case,
    m=sizes,
    n=sizes,
    k=sizes,
    a=st.sampled_from([H, F, D]),
    b=st.sampled_from([H, F, D]),
    c=st.sampled_from([H, F, D]),
    a_transposed=st.booleans(),
    b_transposed=st.booleans(),
    pad=st.sampled_from([0, 0, 1, 4, 8]),
    threads=st.sampled_from([32, 64, 128, 256]),
    accumulate=st.booleans(),
    alpha=st.sampled_from([1.0, -2.0, 0.5]),
    beta=st.sampled_from([0.0, 1.0, 0.5]),
)


@pytest.mark.parametrize("part", range(6))
def test_random(gpu: str, part: int) -> None:
    @seed(part)
    @settings(
        max_examples=10,
        database=None,
        phases=[Phase.generate],  # shrinking would compile for minutes of GPU time
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, number=st.integers(0, 2**16))
    def draw_and_check(case: Case, number: int) -> None:
        check(case, gpu, number)

    draw_and_check()


def ulps_apart(case: Case, inputs: Inputs, name: str, dtype: str, first: np.ndarray, second: np.ndarray) -> float:
    """Largest difference, in units of the last place of the sums that were rounded."""
    sizes = Inputs(abs(inputs.a), abs(inputs.b), abs(inputs.c), abs(inputs.grad_d))
    magnitude = np.asarray(getattr(reference(dataclasses.replace(case, alpha=1.0, beta=1.0), sizes), name))
    unit = 2 * (TF32_TRUNCATION if case.tf32 else ROUNDOFF[dtype])
    return float(np.max(np.abs(first - second) / (unit * np.maximum(magnitude, 1e-30))))


@pytest.mark.parametrize(
    "case",
    [
        Case(64, 64, 64, H, H, F, threads=128),
        Case(16, 16, 16, F, F, F),
        Case(64, 64, 64, F, F, F, threads=128),
        Case(32, 32, 32, D, D, D),
        Case(32, 32, 32, H, H, H),
        Case(17, 9, 5, F, F, F),
        Case(16, 32, 48, H, H, F, a_transposed=True, b_transposed=True),
        Case(16, 32, 48, F, F, F, pad=4),
        Case(64, 64, 64, F, F, F, threads=128, tf32=True, backward=False),
    ],
    ids=str,
)
def test_agrees_with_unmodified_warp(gpu: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path))  # another test may have the same product
    inputs = draw_inputs(case, 11, gpu)
    kernel = make_kernel(case)
    assert not warp_tiles.is_enabled()
    theirs = run(case, kernel, inputs, gpu)
    with warp_tiles.enabled():
        ours = run(case, kernel, inputs, gpu)
        assert any(module["lto_builds"] + module["lto_hits"] for module in warp_tiles.report()["modules"])
    for name, dtype in (("d", case.c), ("grad_a", case.a), ("grad_b", case.b)):
        first, second = getattr(theirs, name), getattr(ours, name)
        if first is not None:
            assert ulps_apart(case, inputs, name, dtype, first, second) <= 4.0, f"{case}: {name}"
