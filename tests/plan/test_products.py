"""Products in a plan: how they are computed, and where their configuration comes from."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import warp as wp

import warp_tiles
from warp_tiles import settings
from warp_tiles._warp.intercept import intercepted
from warp_tiles.heuristics.matmul import MatmulChoice, MatmulConfig, MatmulProblem, candidates, choose_matmul, completed
from warp_tiles.plan.products import PlannedProduct, collected_products, note

matmul_module = import_module("warp_tiles.array_products.matmul")  # the name warp_tiles.matmul is the function
PROBLEM = MatmulProblem(4096, 128, 1024, 1, "float16", "float16", "float16")
CONFIG = MatmulConfig(64, 64, 128, 128, 2, 4)
RECORDED = PlannedProduct(PROBLEM, MatmulChoice(CONFIG, is_recorded=True), "NVIDIA H200")
ESTIMATED = replace(RECORDED, choice=MatmulChoice(CONFIG, is_recorded=False))


def test_a_choice_says_whether_it_was_measured() -> None:
    records = {PROBLEM.bucket: CONFIG}
    assert choose_matmul(PROBLEM, 90, 132, records) == completed(PROBLEM, CONFIG, 90, 132, is_recorded=True)
    for problem, arch, known in (
        (PROBLEM, 90, {}),
        (replace(PROBLEM, k=4096), 90, records),
        (replace(PROBLEM, summed=True), 90, records),
        (PROBLEM, 86, {PROBLEM.bucket: MatmulConfig(128, 256, 64, 256)}),  # too much shared memory
    ):
        choice = choose_matmul(problem, arch, 132, known)
        assert not choice.is_recorded
        assert choice.config in list(candidates(problem, arch, 132))
    assert not choose_matmul(PROBLEM, None, 1, records).is_recorded


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
    assert replace(RECORDED, problem=replace(PROBLEM, **options)).text == text


def test_its_reason_names_the_gpu() -> None:
    texts = [RECORDED.reason, ESTIMATED.reason, replace(ESTIMATED, gpu="").reason]
    assert len(set(texts)) == 3
    assert ["NVIDIA H200" in text for text in texts] == [True, True, False]
    assert "measured" in RECORDED.reason
    assert "estimated" in ESTIMATED.reason


def test_json() -> None:
    values = json.loads(json.dumps(RECORDED.to_json()))
    assert values["product"] == RECORDED.text
    assert values["is_recorded"] is True
    assert (values["gpu"], values["reason"]) == ("NVIDIA H200", RECORDED.reason)
    assert MatmulConfig.from_json(values["config"]) == CONFIG


def test_products_are_collected_once_and_in_order() -> None:
    note(RECORDED)  # no collection is open
    with collected_products() as outer:
        note(ESTIMATED)
        with collected_products() as inner:
            note(RECORDED)
            note(RECORDED)
        note(ESTIMATED)
    assert inner == [RECORDED]
    assert outer == [ESTIMATED, RECORDED]


def test_the_end_of_a_collection_does_not_end_an_equal_one() -> None:
    with collected_products() as outer:
        with collected_products() as inner:
            pass
        note(RECORDED)
    assert (inner, outer) == ([], [RECORDED])


@pytest.mark.parametrize(("name", "gpu"), [("", "NVIDIA H200"), ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3")])
def test_a_plan_without_a_gpu_is_made_for_the_one_of_the_setting(
    name: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (wp.empty(shape, dtype=wp.float16, device="cpu") for shape in ((4096, 1024), (1024, 128)))
    monkeypatch.setattr(matmul_module, "_known", {})  # prepared launches of a plan launch nothing later
    with (
        warp_tiles.enabled(),
        settings.override(target_gpu=name),
        intercepted(lambda launch: None),
        collected_products() as products,
    ):
        warp_tiles.matmul(a, b)
        warp_tiles.matmul(a, b)
    (product,) = products
    assert product.gpu == gpu
    assert product.text == RECORDED.text


def test_nothing_is_noted_without_a_plan() -> None:
    a = wp.zeros((4, 4), dtype=float, device="cpu")
    with collected_products() as products:
        warp_tiles.matmul(a, a)
    assert products == []
