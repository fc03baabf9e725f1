"""Common loops of products on the emulator: results and gradients are exact, and every access is checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.generated import EmulatedKernels, build
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.form_gradients import wrong_gradients
from tests.loop_forms import FORMS, HEADER, K, M, N, in_half

pytestmark = pytest.mark.slow  # the emulator compiles for seconds

MODULES = 3  # the forms are divided among this many modules
GRID = (M // 32, N // 32)
# Warp has += and -= for equal dtypes alone
HALF = [name for name, form in FORMS.items() if "= wp.tile_matmul" not in form.text and form.has_half]


def compile_forms(
    machine: Machine, folder: Path, texts: Mapping[str, str]
) -> tuple[EmulatedKernels, dict[str, object], str]:
    """The kernels of some texts in one module, by name, and its source. Their functions get names of their own."""
    parts = (
        re.sub(r"\b(multiply|product|add_product)\(", rf"\1_{number}(", text.removeprefix(HEADER))
        for number, text in enumerate(texts.values())
    )
    found = build(machine, folder, HEADER + "".join(parts))
    kernels = {name: getattr(found.module, f"multiply_{number}") for number, name in enumerate(texts)}
    return found.emulated, kernels, found.source


def integers(seed: int, *shape: int, dtype: str = "float32") -> Values:
    random = np.random.default_rng(seed)
    return (random.integers(1, 4, shape) * random.choice([-1, 1], shape)).astype(dtype)


def check(name: str, emulated: EmulatedKernels, kernel: object, dtype: str) -> None:
    """Launch a form and its adjoint. Sums of gradients may exceed the integers of float16; only accesses count then."""
    form = FORMS[name]
    a, b, g = integers(1, M, K, dtype=dtype), integers(2, K, N, dtype=dtype), integers(3, M, N)
    stored_b = np.ascontiguousarray(b.T) if form.b_transposed else b
    arrays = emulated.run(kernel, GRID, [a, stored_b, np.full((M, N), np.nan, dtype=np.float32)])
    assert np.array_equal(arrays["C"], form.expected(a.astype(float), b.astype(float))), name
    if not form.differentiable:
        return
    given = [a, stored_b, np.zeros((M, N), dtype=np.float32)]
    results = emulated.run(kernel, GRID, given, [np.zeros_like(a), np.zeros_like(stored_b), g])
    adj_b = results["adj_B"]
    adj_b = adj_b.T if form.b_transposed else adj_b
    assert dtype == "float16" or not wrong_gradients(form, a, b, g, results["adj_A"], adj_b), name


@pytest.mark.parametrize("group", range(MODULES))
def test_results_and_gradients(machine: Machine, tmp_path: Path, group: int) -> None:
    texts = {name: FORMS[name].text for name in list(FORMS)[group::MODULES]}
    emulated, kernels, _ = compile_forms(machine, tmp_path / "m", texts)
    for name, kernel in kernels.items():
        check(name, emulated, kernel, "float32")


@pytest.mark.parametrize("group", range(2))
def test_float16_operands_which_load_into_stages(machine: Machine, tmp_path: Path, group: int) -> None:
    texts = {name: in_half(FORMS[name].text) for name in HALF[group::2]}
    emulated, kernels, source = compile_forms(machine, tmp_path / "m", texts)
    assert source.count("wt_module::Ring<") > len(texts) // 3
    for name, kernel in kernels.items():
        check(name, emulated, kernel, "float16")


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
    found = build(machine, tmp_path / "m", text)
    a, b, total = integers(1, 16, 32), integers(2, 32, 16), np.zeros(1, dtype=np.float32)
    gradients = [np.zeros_like(a), np.zeros_like(b), np.ones_like(total)]
    arrays = found.emulated.run(found.module.energies, (1,), [a, b, total], gradients)
    for k in (slice(0, 16), slice(16, 32)):
        c = a[:, k] @ b[k]
        assert np.array_equal(arrays["adj_A"][:, k], 2 * c @ b[k].T)
        assert np.array_equal(arrays["adj_B"][k], 2 * a[:, k].T @ c)
