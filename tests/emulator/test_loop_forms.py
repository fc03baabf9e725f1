"""Common loops of products on the emulator: results and gradients are exact, and every access is checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.computed_forms import COMPUTED_FORMS
from tests.emulator.generated import Kernels, Runs, build
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.loop_forms import FORMS, in_half
from tests.loop_texts import HEADER, Form, K, M, Matrix, N
from tests.nested_forms import NESTED_FORMS

MODULES = 3  # the forms are divided among this many modules
GRID = (M // 32, N // 32)
# Warp has += and -= for equal dtypes alone
HALF = [name for name, form in FORMS.items() if "= wp.tile_matmul" not in form.text and form.has_half]


def compile_forms(machine: Machine, folder: Path, texts: Mapping[str, str]) -> Kernels:
    """The kernels of some texts in one module. Their functions get names of their own."""
    parts = (
        re.sub(r"\b(multiply|product|add_product)\(", rf"\1_{number}(", text.removeprefix(HEADER))
        for number, text in enumerate(texts.values())
    )
    names = {name: f"multiply_{number}" for number, name in enumerate(texts)}
    return build(machine, folder, HEADER + "".join(parts), names=names)


def integers(seed: int, *shape: int, dtype: str = "float32") -> Values:
    random = np.random.default_rng(seed)
    return (random.integers(1, 4, shape) * random.choice([-1, 1], shape)).astype(dtype)


def wrong_gradients(form: Form, a: Matrix, b: Matrix, g: Matrix, of_a: Matrix, of_b: Matrix) -> list[str]:
    """Check gradients of ``sum(G * C)``. Returns "A" or "B" for each wrong one.

    C is a polynomial of degree 2 at most in A and in B, so half of its change between both sides along a direction is
    the sum of the gradient times that direction. Directions are random integers, and all sums are exact.

    Args:
        form: The form that computes C.
        a, b, g: A, B and G, as for the form's ``expected``.
        of_a, of_b: The gradients.
    """
    a, b, g = (values.astype(np.float64) for values in (a, b, g))
    random = np.random.default_rng(7)
    wrong = []
    for _ in range(4):
        for name, gradient in (("A", of_a), ("B", of_b)):
            direction = random.integers(-3, 4, gradient.shape).astype(np.float64)
            of_side = [
                form.expected(a + d, b) if name == "A" else form.expected(a, b + d) for d in (direction, -direction)
            ]
            if 2 * np.sum(gradient.astype(np.float64) * direction) != np.sum(g * (of_side[0] - of_side[1])):
                wrong.append(name)
    return wrong


def check(kernels: Runs, name: str, form: Form, dtype: str = "float32") -> None:
    """Launch a form and its adjoint. Sums of gradients may exceed the integers of float16; only accesses count then."""
    a, b, g = integers(1, M, K, dtype=dtype), integers(2, K, N, dtype=dtype), integers(3, M, N)
    stored_b = np.ascontiguousarray(b.T) if form.b_transposed else b
    arrays = kernels.run(name, GRID, [a, stored_b, np.full((M, N), np.nan, dtype=np.float32)])
    assert np.array_equal(arrays["C"], form.expected(a.astype(float), b.astype(float))), name
    if not form.differentiable:
        return
    given = [a, stored_b, np.zeros((M, N), dtype=np.float32)]
    results = kernels.run(name, GRID, given, [np.zeros_like(a), np.zeros_like(stored_b), g])
    adj_b = results["adj_B"]
    adj_b = adj_b.T if form.b_transposed else adj_b
    assert dtype == "float16" or not wrong_gradients(form, a, b, g, results["adj_A"], adj_b), name


@pytest.mark.slow
@pytest.mark.parametrize("group", range(MODULES))
def test_results_and_gradients(machine: Machine, tmp_path: Path, group: int) -> None:
    forms = {name: FORMS[name] for name in list(FORMS)[group::MODULES]}
    kernels = compile_forms(machine, tmp_path / "m", {name: form.text for name, form in forms.items()})
    for name, form in forms.items():
        check(kernels, name, form)


@pytest.mark.slow
def test_loops_beside_and_in_other_loops(machine: Machine, tmp_path: Path) -> None:
    kernels = compile_forms(machine, tmp_path / "m", {name: form.text for name, form in NESTED_FORMS.items()})
    for name, form in NESTED_FORMS.items():
        check(kernels, name, form)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(2))
def test_float16_operands_which_load_into_stages(machine: Machine, tmp_path: Path, group: int) -> None:
    forms = {name: FORMS[name] for name in HALF[group::2]}
    kernels = compile_forms(machine, tmp_path / "m", {name: in_half(form.text) for name, form in forms.items()})
    assert kernels.source.count("wt_module::Ring<") > len(forms.keys() - COMPUTED_FORMS.keys()) // 3
    for name, form in forms.items():
        check(kernels, name, form, "float16")


@pytest.mark.slow
def test_the_reverse_pass_repeats_a_product_that_a_function_reads_through_a_view(
    machine: Machine, tmp_path: Path
) -> None:
    text = """import warp as wp
@wp.func
def energy(c: wp.tile(dtype=wp.float32, shape=(16, 16))):
    v = wp.tile_transpose(c)
    return wp.tile_sum(wp.tile_map(wp.mul, v, v))
@wp.kernel
def energies(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), S: wp.array(dtype=wp.float32)):
    for k in range(0, A.shape[1], 16):
        a = wp.tile_load(A, shape=(16, 16), offset=(0, k), storage="shared")
        b = wp.tile_load(B, shape=(16, 16), offset=(k, 0), storage="shared")
        c = wp.tile_zeros(shape=(16, 16), dtype=wp.float32, storage="shared")
        wp.tile_matmul(a, b, c)
        wp.tile_atomic_add(S, energy(c))
"""
    kernels = build(machine, tmp_path / "m", text)
    a, b, total = integers(1, 16, 32), integers(2, 32, 16), np.zeros(1, dtype=np.float32)
    gradients = [np.zeros_like(a), np.zeros_like(b), np.ones_like(total)]
    arrays = kernels.run("energies", (1,), [a, b, total], gradients)
    for k in (slice(0, 16), slice(16, 32)):
        c = a[:, k] @ b[k]
        assert np.array_equal(arrays["adj_A"][:, k], 2 * c @ b[k].T)
        assert np.array_equal(arrays["adj_B"][k], 2 * a[:, k].T @ c)
