"""Gradients of kernels that are a product of whole arrays, on a tape on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import Values, integers, on
from tests.integration.helpers import load
from tests.whole_kernels import WHOLE, Whole
from warp_tiles._warp.tapes import TapeProduct

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu", "enabled")]
M, N, K, THREADS = 260, 200, 144, 64


class Recorded:
    """A launch on a tape, with its arrays on a GPU.

    Attributes:
        a, b, g: Values of A and B, and of the gradient of C.
        tape: The tape.
    """

    def __init__(self, form: Whole, gpu: str, mode: str, *, deterministic: bool = False) -> None:
        self.a, self.b = integers(1, M, K, most=1), integers(2, K, N, most=1)
        self.g = integers(3, M, N, most=1) + (0.25 if form.result == "float32" else 0.0)
        dtype, result = getattr(wp, form.dtype), getattr(wp, form.result)
        self._arrays = [
            on(self.a.T if form.a_transposed else self.a, dtype, gpu, requires_grad=True),
            on(self.b.T if form.b_transposed else self.b, dtype, gpu, requires_grad=True),
            on(np.zeros((M, N)), result, gpu, requires_grad=True),
        ]
        self._form = form
        self._gradient = on(self.g, result, gpu)
        tiles = -(-M // 32), -(-N // 16)
        a, b, self._c = self._arrays
        multiply = load(form.text, block_dim=THREADS).multiply
        if deterministic:
            multiply.module.options["deterministic"] = wp.DeterministicMode.RUN_TO_RUN
        with warp_tiles.override(gemm_gradients=mode), wp.Tape() as self.tape:
            wp.launch_tiled(
                multiply,
                dim=tiles[::-1] if form.swapped else tiles,
                inputs=[a, b, K],
                outputs=[self._c],
                block_dim=THREADS,
                device=gpu,
            )

    def use(self, gradient: Values, gpu: str) -> None:
        """Sets the gradient of C."""
        self.g = gradient
        self._gradient = on(gradient, self._c.dtype, gpu)

    def backward(self) -> None:
        """Adds the gradients. The arrays stay where they are."""
        wp.copy(self._c.grad, self._gradient)
        self.tape.backward()

    def gradients(self) -> tuple[Values, Values]:
        """The gradients of A and B, in the operands' orientation."""
        a, b = (array.grad.numpy().astype(np.float64) for array in self._arrays[:2])
        return (a.T if self._form.a_transposed else a), (b.T if self._form.b_transposed else b)


def rounded(values: Values, form: Whole) -> Values:
    return values.astype(form.dtype).astype(np.float64)


@pytest.mark.parametrize("name", WHOLE)
def test_gradients_are_exact(name: str, gpu: str) -> None:
    form = WHOLE[name]
    recorded = Recorded(form, gpu, "always")
    (launch,) = recorded.tape.launches
    assert isinstance(launch, TapeProduct)
    recorded.backward()
    of_a, of_b = recorded.gradients()
    assert np.array_equal(of_a, rounded(recorded.g @ recorded.b.T, form))
    assert np.array_equal(of_b, rounded(recorded.a.T @ recorded.g, form))


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_small_products_keep_their_adjoint_kernels(mode: str, gpu: str) -> None:
    recorded = Recorded(WHOLE["bounds from a shape"], gpu, mode)
    (launch,) = recorded.tape.launches
    assert not isinstance(launch, TapeProduct)
    recorded.backward()
    assert np.array_equal(recorded.gradients()[0], recorded.g @ recorded.b.T)


@pytest.mark.parametrize("name", ["bounds from a shape", "half"])
def test_a_graph_repeats_the_first_backward_pass(name: str, gpu: str) -> None:
    form = WHOLE[name]
    recorded = Recorded(form, gpu, "always")
    with wp.ScopedCapture(gpu) as capture:
        recorded.backward()
    for _ in range(2):
        wp.capture_launch(capture.graph)
    expected = recorded.g @ recorded.b.T, recorded.a.T @ recorded.g
    for gradient, once in zip(recorded.gradients(), expected):
        assert np.array_equal(gradient, rounded(2 * once, form))


@pytest.mark.skipif(not hasattr(wp, "DeterministicMode"), reason="Warp has no deterministic mode before 1.19")
def test_gradients_of_a_deterministic_module_have_the_same_bits_in_each_run(gpu: str) -> None:
    gradient, found = np.random.default_rng(0).normal(size=(M, N)), []
    for _ in range(20):
        launched = Recorded(WHOLE["bounds from a shape"], gpu, "auto", deterministic=True)
        (record,) = launched.tape.launches
        assert isinstance(record, TapeProduct)
        launched.use(gradient, gpu)
        launched.backward()
        found.append(b"".join(values.tobytes() for values in launched.gradients()))
    assert len(set(found)) == 1
