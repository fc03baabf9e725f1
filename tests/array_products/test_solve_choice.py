"""The choice of ``warp_tiles.cholesky`` and ``warp_tiles.solve``: forms, reasons, records, and what plans show."""

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import LAYOUTS
from warp_tiles._warp.intercept import collected_products, intercepted
from warp_tiles.array_products import prepared_solves
from warp_tiles.array_products.call import lower_view, view_of
from warp_tiles.array_products.matmul_problem import Gpu
from warp_tiles.array_products.prepared_solves import SolveCall, _is_dense, prepare_solve
from warp_tiles.array_products.solve_choice import Form, SolvePlan, SolveProblem, choose_solve, configs
from warp_tiles.gemm.hardware import shared_limit
from warp_tiles.gemm.problem import DTYPE_BYTES, DType

H200 = Gpu(90, 132, "NVIDIA H200")
SMALL = SolveProblem("solve", "float64", 16, 100, 1)
LARGE = SolveProblem("factor", "float32", 1000, 1, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_threads_fit_a_block(dtype: DType) -> None:
    for n, columns, is_dense in itertools.product(range(1, 40), (0, 1, 3, 4, 5), (False, True)):
        found = configs(SolveProblem("solve", dtype, n, 1 << 20, columns, is_dense), 90).get("thread")
        assert found is None or (n <= (16 if is_dense else 12) and columns <= 4)
        if found is not None:
            assert found.threads in (32, 64, 128)
            used = (n * (n + 1) // 2 + n * columns) * found.threads * DTYPE_BYTES[dtype]
            assert used <= 48 << 10  # of static shared memory


@pytest.mark.parametrize("gpu", [H200, None])
@pytest.mark.parametrize(("n", "batch"), [(1, 4096), (4, 4096), (5, 16384), (8, 16384), (12, 32768), (13, 65536)])
def test_the_smallest_batch_depends_on_the_rows(n: int, batch: int, gpu: Gpu | None) -> None:
    for function, least in (("factor", batch), ("solve", batch // 4), ("substitute", batch)):
        problem = SolveProblem(function, "float64", n, least, 0 if function == "factor" else 1)  # type: ignore[arg-type]
        many, few = choose_solve(problem, gpu), choose_solve(replace(problem, batch=least - 1), gpu)
        assert (many.config.form, few.config.form) == ("thread", "block")
        assert all(str(least) in plan.reason for plan in (many, few))
    if n <= 12:
        strided = SolveProblem("solve", "float64", n, batch - 1, 1, is_dense=False)
        assert choose_solve(strided, gpu).config.form == "block"


@pytest.mark.parametrize("arch", [75, 86, 90])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tiles_fit_a_block(arch: int, dtype: DType) -> None:
    size_bytes = DTYPE_BYTES[dtype]
    for n, columns in itertools.product((*range(1, 300), 512, 4096), (0, 1, 3, 40)):
        found = configs(SolveProblem("solve", dtype, n, 1, columns), arch)
        for config in (found[form] for form in ("block", "tiles") if form in found):
            assert config.threads % 32 == 0
            assert (config.columns > 0) == (columns > 0)
        if block := found.get("block"):
            assert n <= block.rows < n + 8
            assert block.rows * (block.rows + block.columns) * size_bytes <= shared_limit(arch, block.threads)
        if tiles := found.get("tiles"):
            assert tiles.rows % tiles.step == 0
            used = 2 * tiles.rows * (tiles.rows + tiles.step) * size_bytes  # of the kernel of a tile
            assert used <= shared_limit(arch, tiles.threads)
        assert "block" in found or "tiles" in found
        assert n > 64 or "block" not in found or "tiles" not in found, "a matrix of one tile gains nothing from tiles"
    assert choose_solve(SolveProblem("solve", "float64", 128, 1, 1), H200).config.form == "block"
    assert choose_solve(SolveProblem("factor", "float32", 256, 1, 0), H200).config.form == "tiles"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dense_arrays(layout: str) -> None:
    for shape in ((3, 4, 4), (3, 4, 1), (3, 1, 1), (3, 1, 4)):
        array = LAYOUTS[layout](np.zeros(shape))
        assert _is_dense(view_of(array)) == (layout in ("rows", "columns"))
        assert not _is_dense(view_of(array[::2]))


def test_a_measured_form_counts_where_it_is_possible() -> None:
    records: dict[Any, Form] = {SMALL.bucket: "thread", LARGE.bucket: "block"}
    found = choose_solve(SMALL, H200, records)
    assert (found.config.form, found.decided_by) == ("thread", "record")
    assert "NVIDIA H200" in found.reason
    near = choose_solve(replace(SMALL, n=14, batch=120), H200, records)
    assert near.decided_by == "record", "sizes are rounded to powers of two"
    for other in (LARGE, replace(SMALL, n=20), replace(SMALL, is_dense=False), replace(SMALL, dtype="float32")):
        assert choose_solve(other, H200, records) == choose_solve(other, H200)
    forced = choose_solve(SMALL, H200, records, forced="block")
    assert (forced.config.form, forced.decided_by) == ("block", "search")
    with pytest.raises(ValueError, match="has no form 'thread', but tiles"):
        choose_solve(LARGE, H200, forced="thread")


def test_reasons_and_json() -> None:
    cases = {SMALL: "block", replace(SMALL, batch=1 << 16): "thread", LARGE: "tiles", replace(SMALL, n=17): "block"}
    plans = [choose_solve(problem, H200) for problem in cases]
    assert [plan.config.form for plan in plans] == list(cases.values())
    assert len({plan.reason for plan in plans}) == 4
    values = json.loads(json.dumps(plans[0].to_json()))
    assert (values["problem"], values["gpu"]) == ("solve float64 100 x 16x16, 1 right-hand side", "NVIDIA H200")
    assert (values["decided_by"], values["config"]["form"]) == ("heuristic", "block")
    assert replace(SMALL, columns=2, is_dense=False).describe().endswith("2 right-hand sides, strided")


def solved() -> list[Any]:
    """The plans of a script with a factorization and a solve of equal matrices."""
    a, b = (wp.zeros((100, *shape), dtype=wp.float64, device="cpu") for shape in ((16, 16), (16,)))
    with warp_tiles.enabled(), intercepted(lambda launch: None), collected_products() as found:
        factor = warp_tiles.cholesky(a)
        for _ in range(2):
            warp_tiles.solve(factor, b, factored=True)
    return list(found)


def test_plans_of_scripts_have_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    factor, substitution = solved()
    assert isinstance(factor, SolvePlan)
    assert factor.problem == SolveProblem("factor", "float64", 16, 100, 0)
    assert (substitution.problem.function, substitution.config.columns) == ("substitute", 1)
    assert {plan.gpu for plan in (factor, substitution)} == {"NVIDIA H200"}
    monkeypatch.setattr(prepared_solves, "forms_for", lambda gpu: {factor.problem.bucket: "thread"})
    assert [plan.decided_by for plan in solved()] == ["record", "heuristic"]
    monkeypatch.setattr(wp.config, "deterministic", getattr(wp, "DeterministicMode", bool)(1), raising=False)
    assert [plan.decided_by for plan in solved()] == ["heuristic", "heuristic"], "another form rounds differently"


def test_a_prepared_call_knows_its_plan() -> None:
    a = wp.zeros((3, 5, 5), dtype=wp.float64, device="cpu")
    call = SolveCall(lower_view(a, upper=False), lower_view(a, upper=False))
    plans = [prepare_solve(call, a.device, form).plan for form in (None, "thread")]  # type: ignore[arg-type]
    assert [(plan.config.form, plan.decided_by) for plan in plans] == [("block", "heuristic"), ("thread", "search")]
    assert plans[0].gpu == ""
