"""The generator of random kernels and its test harness, on the CPU."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.nightly import some
from tests.random_kernels.execute import Result, difference, execute, import_kernel, of_model, prepare
from tests.random_kernels.generate import draw
from tests.random_kernels.kernel import RandomKernel
from tests.random_kernels.model import LIMITS, NotExactError

SEEDS = 200  # enough for each feature to appear
FEATURES = 99


@pytest.fixture(scope="module")
def drawn() -> list[RandomKernel]:
    return [draw(seed) for seed in range(SEEDS)]


def test_every_feature_appears(drawn: list[RandomKernel]) -> None:
    assert len(frozenset().union(*(kernel.features for kernel in drawn))) == FEATURES


def test_most_kernels_have_a_loop_and_gradients(drawn: list[RandomKernel]) -> None:
    assert sum("loop" in kernel.features for kernel in drawn) > 0.8 * SEEDS
    assert sum(kernel.gradients for kernel in drawn) > 0.4 * SEEDS


def test_every_number_is_exact(drawn: list[RandomKernel]) -> None:
    for kernel in drawn[:60]:
        upper = kernel.expected(bounds=True)
        plain = kernel.expected()
        for argument in kernel.arrays:
            assert np.all(np.abs(plain.values[argument.name]) <= LIMITS[argument.dtype])
            assert np.all(np.abs(plain.values[argument.name]) <= upper.values[argument.name])
            assert np.array_equal(plain.values[argument.name], np.rint(plain.values[argument.name]))


def test_numbers_that_need_rounding_are_refused(drawn: list[RandomKernel]) -> None:
    half = next(k for k in drawn if "dtype float16" in k.features and "loop" in k.features)
    with pytest.raises(NotExactError, match=r"float16|operand"):
        replace(half, magnitude=4000).expected(bounds=True)


@pytest.mark.parametrize("seed", some([4, 0, 1], 1, "slow"))
def test_the_cpu_and_the_model_agree(seed: int, tmp_path: Path) -> None:
    kernel = draw(seed)
    module = import_kernel(kernel, tmp_path)
    prepare(kernel, module, "cpu")
    got, want = execute(kernel, module, "cpu"), of_model(kernel)
    assert difference(got, want) == ""
    assert set(got.values) == {argument.name for argument in kernel.arrays}


def test_one_wrong_number_is_found() -> None:
    kernel = next(k for k in map(draw, range(50)) if k.gradients)
    want = of_model(kernel)
    for part in ("values", "grads"):
        for name, array in getattr(want, part).items():
            wrong = array.copy()
            wrong.flat[-1] += 1
            changed = replace(want, **{part: {**getattr(want, part), name: wrong}})
            found = difference(changed, want)
            assert found.startswith(
                f"{'value' if part == 'values' else 'gradient'} of {name}: 1 of {array.size} differ"
            )
    nothing = Result({name: np.full_like(v, np.nan) for name, v in want.values.items()}, want.grads)
    assert difference(nothing, want)
