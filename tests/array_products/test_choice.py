"""Plans of ``warp_tiles.matmul``: what they say, where they come from, and that kernels are built as they say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import integers, on
from warp_tiles import settings
from warp_tiles._warp.intercept import collected_products, intercepted, note_product
from warp_tiles.array_products import prepared
from warp_tiles.array_products.call import Bias, MatmulCall, View, checked, contiguous
from warp_tiles.array_products.kernels import tile_kernel
from warp_tiles.array_products.matmul_choice import choose_matmul
from warp_tiles.array_products.matmul_problem import (
    Candidate,
    Gpu,
    MatmulConfig,
    MatmulPlan,
    MatmulProblem,
    MeasuredConfigs,
)
from warp_tiles.array_products.prepared import kept, kernel_of, planned
from warp_tiles.array_products.tensor_kernel import L2_BYTES
from warp_tiles.gemm.main_loop import LoopPlan
from warp_tiles.gemm.pipeline import PipelineOverrides
from warp_tiles.gemm.problem import DTYPE_BYTES, DType
from warp_tiles.gemm.rejected import Rejected

PROBLEM = MatmulProblem(4096, 128, 1024, 1, "float16", "float16", "float16")
CONFIG = MatmulConfig(64, 64, 128, 128, 2, 4)
H200 = Gpu(90, 132, "NVIDIA H200")
RECORDED = choose_matmul(PROBLEM, H200, {PROBLEM.bucket: MeasuredConfigs(CONFIG)})
ESTIMATED = replace(RECORDED, decided_by="heuristic")


@pytest.mark.parametrize("problem", [PROBLEM, MatmulProblem(1, 1, 1), replace(PROBLEM, a_alignment=2, batch=3)])
def test_the_cpu_has_one_tile(problem: MatmulProblem) -> None:
    found = prepared.plan_of(problem, wp.get_device("cpu"))
    assert (found.config, found.decided_by) == (MatmulConfig(32, 32, 32, 1), "heuristic")
    forced = prepared.plan_of(problem, wp.get_device("cpu"), CONFIG)
    assert forced == MatmulPlan(problem, Candidate(CONFIG), CONFIG, "search")
    assert forced.main_loop.text == "auto"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "float16 nn 4096x128x1024"),
        ({"out": "float32"}, "float16 nn 4096x128x1024, C of float32"),
        ({"batch": 3, "summed": True, "b_transposed": True}, "float16 nt 3 x 4096x128x1024, summed over the batch"),
        ({"split_operand": "a"}, "float16 nn 4096x128x1024, A in two parts"),
        ({"a": "float32", "b": "float32", "out": "float32", "tf32": True}, "tf32 nn 4096x128x1024"),
        ({"a": "float32", "out": "float32"}, "float32 nn 4096x128x1024"),
    ],
)
def test_a_product_in_words(options: dict[str, Any], text: str) -> None:
    assert replace(PROBLEM, **options).describe() == text


def test_its_reason_names_the_gpu_and_who_decided() -> None:
    setting = choose_matmul(PROBLEM, H200, pipeline=PipelineOverrides.parse("mma"), forced=CONFIG)
    found = [RECORDED, ESTIMATED, replace(ESTIMATED, gpu=""), setting, choose_matmul(PROBLEM, H200, forced=CONFIG)]
    texts = [one.reason for one in found]
    assert len(set(texts)) == 5
    assert ["NVIDIA H200" in text for text in texts[:3]] == [True, True, False]
    assert "measured" in RECORDED.reason
    assert "estimated" in ESTIMATED.reason
    assert [one.decided_by for one in found[3:]] == ["setting", "search"]
    without = choose_matmul(PROBLEM, H200, pipeline=Rejected("not_enabled"), forced=CONFIG)
    assert without.reason.endswith(f"no stages: {without.loop}")
    assert without.loop == Rejected("not_enabled")


@pytest.mark.parametrize("has_function", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_with_a_bundle_a_loop_computes_a_product_with_a_function(
    dtype: DType, has_function: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prepared, "gpu_of", lambda device: H200)
    monkeypatch.setattr(prepared, "is_enabled", lambda: True)
    problem = MatmulProblem(2048, 2048, 2048, 1, dtype, dtype, dtype, has_function=has_function)
    before = prepared.plan_of(problem, "cuda:0")
    with settings.override(bundle=tmp_path / "app.bundle"):
        found = prepared.plan_of(problem, "cuda:0")
    assert before.chosen.kernel is not None
    if not has_function:
        assert found == before
        return
    assert found.rejection == Rejected("function_in_bundle")
    assert found.chosen.kernel is None
    loops = [(plan.config, plan.main_loop, plan.loop) for plan in (before, found)]
    assert loops[0] == loops[1], "the bundle has the loop that was planned beside the kernel"


def test_json() -> None:
    values = json.loads(json.dumps(RECORDED.to_json()))
    assert values["product"] == PROBLEM.describe()
    assert (values["decided_by"], values["gpu"], values["reason"]) == ("record", "NVIDIA H200", RECORDED.reason)
    assert values["codes"] == ["loop_configured"]
    assert MatmulConfig(**values["config"]) == CONFIG
    assert (values["instruction"], values["warps"]) == ("wgmma", [1, 1])
    assert values["stages"] >= 2
    assert min(values[name] for name in ("shared_bytes", "registers", "resident_blocks")) > 0


TYPES = ("float16", "float32", "float64")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"has_bias": True}, {"transposed": True}, {"k": 64, "n": 40})


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize(
    ("arch", "dtype", "options"),
    [
        *((90, dtype, options) for dtype in TYPES for options in OPTIONS),
        *((80, dtype, {}) for dtype in TYPES),
        *((arch, "float32", {"tf32": True}) for arch in (80, 90)),
        (90, "float16", {"split": True}),
    ],
    ids=str,
)
def test_a_kernel_is_built_as_the_plan_says(arch: int, dtype: Any, options: dict[str, Any]) -> None:
    m, n, k = 1024, options.get("n", 1024), options.get("k", 1024)
    a: View = contiguous(dtype, (1, k, m)).transposed() if options.get("transposed") else contiguous(dtype, (1, m, k))
    call = MatmulCall(
        a,
        contiguous(dtype, (1, k, n)),
        contiguous(dtype, (1, m, n)),
        Bias("float32", 4) if options.get("has_bias") else None,
        tf32=options.get("tf32", False),
        split_operand="a" if options.get("split") else None,
    )
    device: Any = SimpleNamespace(is_cuda=True, arch=arch, sm_count=132, name="GPU")
    call, _, plan = planned(call, device)
    plan = choose_matmul(plan.problem, Gpu(arch, 132), forced=plan.config)
    kernel = tile_kernel(kernel_of(call, plan))
    (loop,) = warp_tiles.plan(kernel.module, arch=arch, block_dim=plan.config.threads).loops
    if isinstance(plan.loop, Rejected):
        assert loop.instruction == ""
        assert plan.loop.code in loop.codes
        return
    assert isinstance(plan.loop, LoopPlan)
    found = plan.loop.loop
    assert (found.instruction, found.stages) == (loop.instruction, loop.stages)
    assert (plan.chosen.shared_bytes, plan.chosen.registers, plan.chosen.resident_blocks) == (
        loop.shared_bytes,
        loop.registers,
        loop.resident_blocks,
    )


# ---- plans of scripts


def test_products_are_collected_once_and_in_order() -> None:
    note_product(RECORDED)  # no collection is open
    with collected_products() as outer:
        note_product(ESTIMATED)
        with collected_products() as inner:
            note_product(RECORDED)
            note_product(RECORDED)
        note_product(ESTIMATED)
    assert inner == [RECORDED]
    assert outer == [ESTIMATED, RECORDED]


def test_the_end_of_a_collection_does_not_end_an_equal_one() -> None:
    with collected_products() as outer:
        with collected_products() as inner:
            pass
        note_product(RECORDED)
    assert (inner, outer) == ([], [RECORDED])


def products_of(a: Any, b: Any, out: Any = None, **options: Any) -> list[MatmulPlan]:
    """The products of two equal calls in a plan."""
    with (
        warp_tiles.enabled(),
        settings.override(**options),
        intercepted(lambda launch: None),
        collected_products() as products,
    ):
        warp_tiles.matmul(a, b, out)
        warp_tiles.matmul(a, b, out)
    return list(products)


@pytest.mark.parametrize(("name", "gpu"), [("", "NVIDIA H200"), ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3")])
def test_a_plan_without_a_gpu_is_made_for_the_one_of_the_setting(name: str, gpu: str) -> None:
    a, b = (wp.empty(shape, dtype=wp.float16, device="cpu") for shape in ((4096, 1024), (1024, 128)))
    (product,) = products_of(a, b, target_gpu=name)
    assert product.gpu == gpu
    assert product.problem == PROBLEM


def test_a_product_is_computed_after_its_plan_and_planned_after_its_computation() -> None:
    a, b, out = integers(1, 9, 8), integers(2, 8, 7), on(np.zeros((9, 7)))
    arrays = on(a), on(b), out
    for _ in range(2):
        (product,) = products_of(*arrays)
        assert product.gpu == prepared.PLANNED_GPU.name
        assert not out.numpy().any()
        warp_tiles.matmul(*arrays)
        assert np.array_equal(out.numpy(), a @ b)
        out.zero_()


def test_nothing_is_noted_without_a_plan() -> None:
    a = wp.zeros((4, 4), dtype=float, device="cpu")
    with collected_products() as products:
        warp_tiles.matmul(a, a)
    assert products == []


def test_what_is_kept_depends_on_the_deterministic_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [kept("a key", lambda: SimpleNamespace(is_current=lambda: True)) for _ in range(2)]
    monkeypatch.setattr(wp.config, "deterministic", getattr(wp, "DeterministicMode", bool)(1), raising=False)
    other = kept("a key", lambda: SimpleNamespace(is_current=lambda: True))
    assert made[0] is made[1] is not other


# ---- shipped records


def test_gpus_with_equal_multiprocessors_have_records_of_their_own() -> None:
    names = ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "new")
    h100, h200, other = (prepared.records_for(Gpu(90, 132, name)) for name in names)
    assert h100 == other != h200
    assert prepared.records_for(Gpu(80, 108, "NVIDIA A100")) == {}


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
def test_a_product_with_a_shipped_record_is_computed_as_it_says(name: str) -> None:
    records = prepared.records_for(Gpu(90, 132, name))
    for (a, b, out, layout, *sizes), known in records.items():
        dtype: Any = a if a != "tf32" else "float32"
        m, n, k, batch = (2**size for size in sizes)
        transposed = (letter == "t" for letter in layout)
        problem = MatmulProblem(m, n, k, batch, dtype, b, out, *transposed, tf32=a == "tf32")  # type: ignore[arg-type]
        found = choose_matmul(problem, Gpu(90, 132, name), records)
        if known.best is not None:
            # both tiles that read an A that the L2 cache does not hold form a cluster, also those measured without one
            is_large = m * k * DTYPE_BYTES[dtype] > L2_BYTES
            is_pair = known.best.tensor_copies and is_large and -(-n // known.best.tile_n) == 2
            best = replace(known.best, cluster_n=2) if is_pair else known.best
            assert (found.decided_by, found.chosen.config) == ("record", best)
        else:
            assert found.config == known.loop


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
def test_a_configuration_is_that_of_the_gpus_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def recorded(gpu: Gpu) -> dict[Any, Any]:
        asked.append(gpu.name)
        return {}

    monkeypatch.setattr(prepared, "records_for", recorded)
    a, b, c = (wp.zeros((64, 64), dtype=wp.float16, device="cpu") for _ in range(3))
    device: Any = SimpleNamespace(is_cuda=True, arch=90, sm_count=132, name=name)
    planned(checked(a, b, c).call, device)
    assert asked == [name]
    monkeypatch.setattr(wp.config, "deterministic", getattr(wp, "DeterministicMode", bool)(1), raising=False)
    planned(checked(a, b, c).call, device)
    assert asked == [name], "another configuration is another order of additions"
