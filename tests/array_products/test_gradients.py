"""Gradients of products on a tape, compared with NumPy's."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import warp as wp

import warp_tiles
from tests.array_products.cases import BATCHES, CPU, LAYOUTS, TYPES, Values, integers, on, square, transposed, values_of
from tests.nightly import some
from warp_tiles.array_products import backward as backward_module
from warp_tiles.array_products import prepared as prepared_module
from warp_tiles.array_products.prepared import PreparedMatmul
from warp_tiles.errors import MatmulError

A, B, G = integers(1, 9, 8), integers(2, 8, 7), integers(3, 9, 7)


def gradients(g: Values, a: Values, b: Values, alpha: float = 1.0) -> tuple[Values, Values, Values]:
    """Gradients of a, b and the bias in NumPy. ``g`` is the gradient before the epilogue."""
    of_a, of_b = alpha * g @ np.swapaxes(b, -1, -2), alpha * np.swapaxes(a, -1, -2) @ g
    return summed(of_a, a), summed(of_b, b), g.reshape(-1, g.shape[-1]).sum(0)


def slope(epilogue: Any, before: Values) -> Values:
    """The derivative of an epilogue."""
    if epilogue is None:
        return np.ones_like(before)
    return 2 * before if epilogue is square else 1 - np.tanh(before) ** 2


def summed(found: Values, like: Values) -> Values:
    """The sum over the batch that an operand is shared by."""
    if found.ndim > like.ndim:
        return found.sum(0)
    return found if found.shape == like.shape else found.sum(0, keepdims=True)


def backward(tape: Any, out: Any, g: Values) -> None:
    out.grad.assign(on(g, out.dtype))
    tape.backward()


def leaves(*values: Values, dtype: Any = wp.float32) -> list[Any]:
    """Arrays that require gradients."""
    return [on(one, dtype, requires_grad=True) for one in values]


def taped(g: Values, *arrays: Any, **options: Any) -> Any:
    """The result of a product, after its backward pass on a tape with this gradient."""
    with wp.Tape() as tape:
        out = warp_tiles.matmul(*arrays, **options)
    backward(tape, out, g)
    return out


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_types(dtype: Any) -> None:
    a, b, g = integers(1, 40, 20, most=1), integers(2, 20, 36, most=1), integers(3, 40, 36, most=1)
    arrays = leaves(a, b, dtype=dtype)
    out = taped(g, *arrays)
    assert out.requires_grad
    for array, expected in zip(arrays, gradients(g, a, b)):
        assert np.array_equal(values_of(array.grad), expected)
    assert not np.any(values_of(out.grad)), "as with Warp, an overwritten array has no gradient left"


def differentiated(a: Values, b: Values, g: Values, dtype: Any = wp.float16, alpha: float = 1.0) -> list[Any]:
    """The operands of a product with a float32 result, after its backward pass on a tape."""
    arrays = leaves(a, b, dtype=dtype)
    taped(g, *arrays, wp.zeros(g.shape, dtype=wp.float32, device=CPU, requires_grad=True), alpha=alpha)
    return arrays


@pytest.mark.parametrize("dtype", some([wp.float16, wp.bfloat16], 1, "slow"), ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    some([((33, 20), (20, 18)), ((3, 33, 20), (20, 18)), ((33, 20), (3, 20, 18))], 1, "slow"),
    ids=str,
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_a_float32_result(
    dtype: Any, a_shape: tuple[int, ...], b_shape: tuple[int, ...], layout: str
) -> None:
    a, b = integers(1, *a_shape, most=1), integers(2, *b_shape, most=1)
    x, y = (LAYOUTS[layout](values, dtype, requires_grad=True) for values in (a, b))
    out = LAYOUTS[layout](np.zeros((a @ b).shape), requires_grad=True)
    g = integers(3, *out.shape) + 0.5
    taped(g, x, y, out)
    for array, expected in zip((x, y), gradients(g, a, b)):
        np.testing.assert_allclose(values_of(array.grad), expected, rtol=2.0**-8 if dtype is wp.bfloat16 else 2.0**-11)


@pytest.mark.parametrize("largest", [1e-33, 1e-20, 3e-8, 1.0, 65519.0, 1e20, 3e38])
@pytest.mark.parametrize("dtype", [wp.float16, wp.bfloat16], ids=lambda dtype: dtype.__name__)
def test_the_range_of_float32_gradients(largest: float, dtype: Any) -> None:
    a, b, g = integers(1, 20, 30), np.eye(30), np.random.default_rng(3).normal(size=(20, 30))
    g *= largest / np.max(np.abs(g))
    alpha = min(1.0 / largest, 3e38)
    found, exact = values_of(differentiated(a, b, g, dtype, alpha)[0].grad), alpha * g
    np.testing.assert_allclose(found, exact, rtol=2.0**-8, atol=2.0**-24)
    if dtype is wp.float16:  # all but the last rounding keeps 22 bits
        kept = np.abs(exact) > 2.0**-10
        np.testing.assert_allclose(found[kept], exact[kept].astype(np.float16), rtol=2.0**-10)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_gradients_that_are_not_finite_reach_only_their_rows(bad: float) -> None:
    a, b, g = integers(1, 20, 30), integers(2, 30, 25), integers(3, 20, 25)
    expected = g @ b.T
    g[4, 7] = bad
    found, others = differentiated(a, b, g)[0].grad.numpy(), np.arange(20) != 4
    assert np.array_equal(found[others], expected[others])
    assert not np.isfinite(found[4, b[:, 7] != 0]).any()


def test_an_infinite_operand_reaches_only_its_column() -> None:
    a, b, g = integers(1, 20, 30), integers(2, 30, 25), integers(3, 20, 25) + 0.5
    b[7, 4] = np.inf
    found, others = differentiated(a, b, g)[0].grad.numpy(), np.arange(30) != 7
    assert not np.isfinite(found[:, 7]).any()
    assert np.array_equal(found[:, others], (g @ b[others].T).astype(np.float16))


def test_a_gradient_beyond_bfloat16_is_infinite() -> None:
    ones = np.ones((16, 16))
    _, y = differentiated(ones, ones, 3.4e38 * ones, wp.bfloat16)
    assert np.all(np.isinf(values_of(y.grad)))


@pytest.mark.parametrize("strides", [(4, 4), (0, 4)], ids=["sliding", "broadcast"])
def test_gradients_whose_elements_share_memory_are_refused(strides: tuple[int, int]) -> None:
    memory = [wp.zeros(100, dtype=float, device=CPU) for _ in range(2)]
    layout: dict[str, Any] = {"dtype": float, "shape": (9, 8), "strides": strides, "device": CPU}
    x = wp.array(ptr=memory[0].ptr, grad=wp.array(ptr=memory[1].ptr, **layout), **layout)
    y = on(integers(2, 8, 7))
    with wp.Tape(), pytest.raises(MatmulError, match="elements share memory"):
        warp_tiles.matmul(x, y, wp.zeros((9, 7), dtype=float, device=CPU, requires_grad=True))
    assert warp_tiles.matmul(x, y).shape == (9, 7)


@pytest.mark.parametrize(("a_shape", "b_shape"), [((33, 20), (20, 18)), *BATCHES], ids=str)
@pytest.mark.parametrize("a_layout", ["rows", "columns"])
@pytest.mark.parametrize("b_layout", ["rows", "inside"])
def test_batches_and_layouts(a_shape: tuple[int, ...], b_shape: tuple[int, ...], a_layout: str, b_layout: str) -> None:
    a, b = integers(1, *a_shape), integers(2, *b_shape)
    g = integers(3, *(a @ b).shape)
    x, y = LAYOUTS[a_layout](a, requires_grad=True), LAYOUTS[b_layout](b, requires_grad=True)
    taped(g, x, y)
    of_a, of_b, _ = gradients(g, a, b)
    assert np.array_equal(x.grad.numpy(), of_a)
    assert np.array_equal(y.grad.numpy(), of_b)


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
@pytest.mark.parametrize("epilogue", [None, square, wp.tanh], ids=["", "square", "tanh"])
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_options(batch: tuple[int, ...], epilogue: Any, beta: float) -> None:
    alpha = 0.125
    a, b, c = integers(1, *batch, 33, 20), integers(2, 20, 18), integers(3, *batch, 33, 18)
    bias, g = integers(4, 18), integers(5, *batch, 33, 18)
    x, y, v, out = leaves(a, b, bias, c)
    taped(g, x, y, out, alpha=alpha, beta=beta, bias=v, epilogue=epilogue)
    before = alpha * (a @ b) + beta * c + bias
    for array, expected in zip((x, y, v), gradients(slope(epilogue, before) * g, a, b, alpha)):
        np.testing.assert_allclose(array.grad.numpy(), expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(out.grad.numpy(), beta * slope(epilogue, before) * g, rtol=1e-4, atol=1e-4)


def test_gradients_are_added() -> None:
    x, y, v = leaves(A, B, integers(4, 7))
    for array in (x, y, v):
        array.grad.fill_(100.0)
    with wp.Tape() as tape:
        out = warp_tiles.matmul(x, y, bias=v)
    backward(tape, out, G)
    for array, expected in zip((x, y, v), gradients(G, A, B)):
        assert np.array_equal(array.grad.numpy(), 100 + expected)
    tape.zero()
    assert not any(np.any(array.grad.numpy()) for array in (x, y, v, out))


def test_a_repeated_backward_pass_looks_its_products_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = leaves(A, B)
    prepare = Mock(wraps=backward_module.prepared)
    monkeypatch.setattr(backward_module, "prepared", prepare)
    with wp.Tape() as tape:
        out = warp_tiles.matmul(x, y)
    for _ in range(3):
        backward(tape, out, G)
        x.grad = wp.zeros_like(x)  # the next pass adds to the new array
    assert prepare.call_count == 2
    backward(tape, out, 5 * G)
    assert np.array_equal(x.grad.numpy(), 5 * G @ B.T)
    assert np.array_equal(y.grad.numpy(), 8 * A.T @ G)


def test_a_modified_module_between_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = leaves(A, B)
    with wp.Tape() as tape:
        out = warp_tiles.matmul(x, y)
    backward(tape, out, G)
    monkeypatch.setattr(PreparedMatmul, "is_current", lambda _: False)  # as after an edit of the module
    prepare = Mock(wraps=prepared_module.prepare)
    monkeypatch.setattr(prepared_module, "prepare", prepare)
    backward(tape, out, G)
    assert prepare.call_count == 2
    assert np.array_equal(x.grad.numpy(), 2 * G @ B.T)


def test_only_required_gradients_are_computed() -> None:
    x, y = on(A), on(B, requires_grad=True)
    taped(G, x, y)
    assert x.grad is None
    assert np.array_equal(y.grad.numpy(), A.T @ G)


def test_nothing_is_recorded_without_gradients() -> None:
    with wp.Tape() as tape:
        out = warp_tiles.matmul(on(A), on(B))
    assert not out.requires_grad
    assert tape.launches == []
    assert not warp_tiles.matmul(on(A, requires_grad=True), on(B)).requires_grad


def test_one_array_as_both_operands() -> None:
    a, g = integers(1, 9, 9), integers(2, 9, 9)
    x = on(a, requires_grad=True)
    taped(g, x, x)
    assert np.array_equal(x.grad.numpy(), g @ a.T + a.T @ g)


def test_a_chain_with_launches_of_warp() -> None:
    @wp.kernel
    def total(values: wp.array(dtype=float, ndim=2), loss: wp.array(dtype=float)):
        i, j = wp.tid()
        wp.atomic_add(loss, 0, values[i, j])

    c = integers(3, 7, 6)
    x, y, z = leaves(A, B, c)
    loss = wp.zeros(1, dtype=float, device=CPU, requires_grad=True)
    with wp.Tape() as tape:
        out = warp_tiles.matmul(warp_tiles.matmul(x, y), z)
        wp.launch(total, dim=out.shape, inputs=[out], outputs=[loss], device=CPU)
    tape.backward(loss)
    g = np.ones((9, 6))
    assert np.array_equal(x.grad.numpy(), g @ c.T @ B.T)
    assert np.array_equal(y.grad.numpy(), A.T @ g @ c.T)
    assert np.array_equal(z.grad.numpy(), (A @ B).T @ g)


@pytest.mark.parametrize("beta", [0.0, 3.0], ids=["overwritten", "summed"])
def test_one_result_of_two_products(beta: float) -> None:
    first, second, y = leaves(A, 2 * A, B)
    out = wp.zeros((9, 7), dtype=float, device=CPU, requires_grad=True)
    with wp.Tape() as tape:
        warp_tiles.matmul(first, y, out)
        warp_tiles.matmul(second, y, out, beta=beta)
    backward(tape, out, G)
    assert np.array_equal(first.grad.numpy(), beta * G @ B.T)
    assert np.array_equal(second.grad.numpy(), G @ B.T)
    assert np.array_equal(y.grad.numpy(), beta * A.T @ G + 2 * A.T @ G)


def test_a_retained_gradient() -> None:
    with wp.Tape() as tape:
        out = warp_tiles.matmul(*leaves(A, B))
    out.retain_grad = True
    backward(tape, out, G)
    assert np.array_equal(out.grad.numpy(), G)


def test_a_result_whose_columns_are_contiguous() -> None:
    x, y, bias = leaves(A, B, integers(4, 7))
    out = transposed(np.zeros((9, 7)), requires_grad=True)
    taped(G, x, y, out, bias=bias, epilogue=square)
    before = A @ B + bias.numpy()
    assert np.array_equal(out.numpy(), before**2)
    for array, expected in zip((x, y, bias), gradients(slope(square, before) * G, A, B)):
        assert np.array_equal(array.grad.numpy(), expected)


def test_gradients_of_many_rows_of_a_bias() -> None:
    g = integers(1, 3, 700, 5)
    bias = on(np.zeros(5), requires_grad=True)
    taped(g, on(np.zeros((3, 700, 2))), on(np.zeros((2, 5))), bias=bias)
    assert np.array_equal(bias.grad.numpy(), g.sum((0, 1)))


def test_gradients_without_k() -> None:
    x, y, bias = leaves(np.zeros((3, 0)), np.zeros((0, 4)), np.zeros(4))
    taped(np.ones((3, 4)), x, y, bias=bias)
    assert np.array_equal(bias.grad.numpy(), np.full(4, 3.0))
