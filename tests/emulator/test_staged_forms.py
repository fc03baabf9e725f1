"""The common forms of loops with float16 operands, which load into stages where they can, on the emulator."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.emulator.generated import EmulatedKernels, generate
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.integration.helpers import WARP_VERSION, load
from tests.loop_forms import FORMS, HEADER, K, M, N, in_half

pytestmark = pytest.mark.skipif(WARP_VERSION < (1, 19), reason="headers and launches of Warp 1.19 are emulated")
# Warp has += and -= for equal dtypes alone
NAMES = [name for name, form in FORMS.items() if "= wp.tile_matmul" not in form.text and form.has_half]


def integers(seed: int, *shape: int) -> Values:
    random = np.random.default_rng(seed)
    return (random.integers(1, 4, shape) * random.choice([-1, 1], shape)).astype(np.float16)


@pytest.mark.parametrize("group", range(2))
def test_results_and_accesses(machine: Machine, tmp_path: Path, group: int) -> None:
    names = NAMES[group::2]
    texts = [
        re.sub(r"\b(multiply|product|add_product)\(", rf"\1_{number}(", in_half(FORMS[name].text.removeprefix(HEADER)))
        for number, name in enumerate(names)
    ]
    module = load(HEADER + "".join(texts), block_dim=64)
    generated = generate(module, tmp_path / "m", 90, 64)
    assert generated.source.count("wt_module::Ring<") > len(names) // 3
    emulated = EmulatedKernels(machine, generated)
    for number, name in enumerate(names):
        form, kernel = FORMS[name], getattr(module, f"multiply_{number}")
        a, b, g = integers(1, M, K), integers(2, K, N), integers(3, M, N).astype(np.float32)
        stored_b = np.ascontiguousarray(b.T) if form.b_transposed else b
        c = np.full((M, N), np.nan, dtype=np.float32)
        outcome = emulated.forward(kernel, (M // 32, N // 32), [a, stored_b, c])
        assert outcome.error == "", name
        assert np.array_equal(outcome.arrays["C"], form.expected(a.astype(float), b.astype(float))), name
        if form.differentiable:  # sums of gradients may exceed the integers of float16, so only accesses are checked
            zeros = [np.zeros_like(a), np.zeros_like(stored_b)]
            outcome = emulated.backward(kernel, (M // 32, N // 32), [a, stored_b, c], [*zeros, g])
            assert outcome.error == "", name
