"""Common loops of products on the emulator: results and gradients are exact, and every access is checked."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.emulator.generated import EmulatedKernels, generate
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.form_gradients import wrong_gradients
from tests.integration.helpers import WARP_VERSION, load
from tests.loop_forms import FORMS, HEADER, K, M, N

pytestmark = pytest.mark.skipif(WARP_VERSION < (1, 19), reason="headers and launches of Warp 1.19 are emulated")

THREADS = 64
NAMES = list(FORMS)
MODULES = 3  # the forms are divided among this many modules


def renamed(name: str) -> str:
    """The text of a form without the header. Its functions have names that no other form has."""
    text = FORMS[name].text.removeprefix(HEADER)
    return re.sub(r"\b(multiply|product|add_product)\(", rf"\1_{NAMES.index(name)}(", text)


@pytest.fixture(scope="module", params=range(MODULES))
def group(
    request: pytest.FixtureRequest, machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[str], EmulatedKernels, dict[str, object]]:
    """The names of the forms of one module, and their kernels."""
    names = NAMES[request.param :: MODULES]
    module = load(HEADER + "".join(map(renamed, names)), block_dim=THREADS)
    emulated = EmulatedKernels(machine, generate(module, tmp_path_factory.mktemp("generated"), 90, THREADS))
    return names, emulated, {name: getattr(module, f"multiply_{NAMES.index(name)}") for name in names}


def integers(seed: int, *shape: int) -> Values:
    random = np.random.default_rng(seed)
    return (random.integers(1, 4, shape) * random.choice([-1, 1], shape)).astype(np.float32)


def test_results(group: tuple[list[str], EmulatedKernels, dict[str, object]]) -> None:
    names, emulated, kernels = group
    for name in names:
        form = FORMS[name]
        a, b = integers(1, M, K), integers(2, K, N)
        c = np.full((M, N), np.nan, dtype=np.float32)
        stored_b = np.ascontiguousarray(b.T) if form.b_transposed else b
        outcome = emulated.forward(kernels[name], (M // 32, N // 32), [a, stored_b, c])
        assert outcome.error == "", name
        assert np.array_equal(outcome.arrays["C"], form.expected(a.astype(float), b.astype(float))), name


def test_gradients(group: tuple[list[str], EmulatedKernels, dict[str, object]]) -> None:
    names, emulated, kernels = group
    for name in (name for name in names if FORMS[name].differentiable):
        form = FORMS[name]
        a, b, g = integers(1, M, K), integers(2, K, N), integers(3, M, N)
        stored_b = np.ascontiguousarray(b.T) if form.b_transposed else b
        zeros = [np.zeros_like(a), np.zeros_like(stored_b)]
        c = np.zeros((M, N), dtype=np.float32)
        outcome = emulated.backward(kernels[name], (M // 32, N // 32), [a, stored_b, c], [*zeros, g])
        assert outcome.error == "", name
        adj_b = outcome.arrays["adj_B"]
        adj_b = adj_b.T if form.b_transposed else adj_b
        assert not wrong_gradients(form, a, b, g, outcome.arrays["adj_A"], adj_b), name
