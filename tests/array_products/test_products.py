"""Products on the CPU: results for every type, layout, batch and option."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import warp as wp
from hypothesis import given, settings
from hypothesis import strategies as st

import warp_tiles
from tests.array_products.cases import BATCHES, CPU, LAYOUTS, TYPES, cube, integers, on, square, transposed, values_of
from warp_tiles.array_products import public
from warp_tiles.errors import MatmulError


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_types(dtype: Any) -> None:
    a, b = integers(1, 40, 50), integers(2, 50, 36, most=1)
    out = warp_tiles.matmul(on(a, dtype), on(b, dtype))
    assert (out.dtype, out.shape, str(out.device)) == (dtype, (40, 36), CPU)
    assert np.array_equal(values_of(out), a @ b)


@pytest.mark.parametrize("dtype", [wp.float16, wp.bfloat16], ids=lambda dtype: dtype.__name__)
def test_products_of_16_bits_are_summed_in_float32(dtype: Any) -> None:
    a, b = np.full((1, 4096), 1.0), np.full((4096, 1), 1.0)
    b[0] = 2.0
    out = wp.zeros((1, 1), dtype=wp.float32, device=CPU)
    assert warp_tiles.matmul(on(a, dtype), on(b, dtype), out) is out
    assert out.numpy()[0, 0] == 4097.0  # a float16 sum would stop at 2048


@pytest.mark.parametrize("b_layout", LAYOUTS)
@pytest.mark.parametrize("a_layout", LAYOUTS)
def test_layouts(a_layout: str, b_layout: str) -> None:
    a, b = integers(3, 33, 70), integers(4, 70, 45)
    out = warp_tiles.matmul(LAYOUTS[a_layout](a), LAYOUTS[b_layout](b))
    assert np.array_equal(out.numpy(), a @ b)


def test_nothing_is_written_outside_of_a_part() -> None:
    larger = wp.full((40, 50), 9.0, dtype=wp.float32, device=CPU)
    warp_tiles.matmul(on(integers(1, 10, 20)), on(integers(2, 20, 15)), larger[3:13, 4:19])
    kept = larger.numpy()
    kept[3:13, 4:19] = 9.0
    assert np.all(kept == 9.0)


@given(st.integers(1, 70), st.integers(1, 70), st.integers(0, 100), st.booleans(), st.booleans())
@settings(max_examples=30)
def test_drawn_sizes(m: int, n: int, k: int, a_columns: bool, b_columns: bool) -> None:
    a, b = integers(m, m, k), integers(n, k, n)
    out = warp_tiles.matmul((transposed if a_columns else on)(a), (transposed if b_columns else on)(b))
    assert np.array_equal(out.numpy(), a @ b)


# ---- batches


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [*BATCHES, ((1, 33, 20), (20, 18)), ((1, 33, 20), (1, 20, 18)), ((3, 1, 20), (20, 1))],
    ids=str,
)
@pytest.mark.parametrize("a_columns", [False, True], ids=["", "a transposed"])
@pytest.mark.parametrize("b_columns", [False, True], ids=["", "b transposed"])
def test_batches(a_shape: tuple[int, ...], b_shape: tuple[int, ...], a_columns: bool, b_columns: bool) -> None:
    a, b = integers(1, *a_shape), integers(2, *b_shape)
    out = warp_tiles.matmul((transposed if a_columns else on)(a), (transposed if b_columns else on)(b))
    assert out.shape == (a @ b).shape
    assert np.array_equal(out.numpy(), a @ b)


def test_a_part_of_a_batch() -> None:
    a, b = integers(1, 6, 33, 20), integers(2, 20, 18)
    out = warp_tiles.matmul(on(a)[::2], on(b))
    assert np.array_equal(out.numpy(), a[::2] @ b)


# ---- options


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
@pytest.mark.parametrize("alpha", [1, -0.5])
@pytest.mark.parametrize("beta", [0, np.float32(0.25)])
@pytest.mark.parametrize("has_bias", [False, True], ids=["", "bias"])
def test_factors_and_bias(batch: tuple[int, ...], alpha: float, beta: float, has_bias: bool) -> None:
    a, b, c = integers(1, *batch, 33, 20), integers(2, *batch, 20, 40), 4 * integers(3, *batch, 33, 40)
    bias = integers(4, 40)
    if not beta:
        c[...] = np.nan  # C is not read
    out = on(c)
    warp_tiles.matmul(on(a), on(b), out, alpha=alpha, beta=beta, bias=on(bias) if has_bias else None)
    expected = alpha * (a @ b) + (float(beta) * c if beta else 0) + (bias if has_bias else 0)
    assert np.array_equal(out.numpy(), expected)


@pytest.mark.parametrize("epilogue", [square, cube, wp.tanh], ids=lambda function: function.key)
def test_epilogues(epilogue: Any) -> None:
    a, b, bias = integers(1, 33, 20), integers(2, 20, 40), integers(3, 40)
    out = warp_tiles.matmul(on(a), on(b), alpha=0.125, bias=on(bias), epilogue=epilogue)
    before = 0.125 * (a @ b) + bias
    expected = {"square": before**2, "cube": before**3, "tanh": np.tanh(before)}[epilogue.key]
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)


def test_an_epilogue_is_applied_before_rounding() -> None:
    a, b = on(np.full((1, 1), 300.0), wp.float16), on(np.full((1, 1), 300.0), wp.float16)

    @wp.func
    def root(x: float):
        return wp.sqrt(x)

    out = warp_tiles.matmul(a, b, epilogue=root, bias=on(np.zeros(1)))  # 90000 is no float16
    assert values_of(out)[0, 0] == 300.0


def test_a_bias_of_16_bits_and_a_column_of_an_array() -> None:
    a, b, bias = integers(1, 3, 4), integers(2, 4, 5), integers(3, 5, 2)
    expected = a @ b + bias[:, 1]
    out = warp_tiles.matmul(on(a, wp.float16), on(b, wp.float16), bias=on(bias, wp.float16)[:, 1])
    assert np.array_equal(values_of(out), expected)


def test_tf32_on_the_cpu() -> None:
    a, b = integers(1, 20, 30), integers(2, 30, 25)
    assert np.array_equal(warp_tiles.matmul(on(a), on(b), precision="tf32").numpy(), a @ b)


# ---- sizes of zero


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
def test_without_k_the_rest_is_computed(batch: tuple[int, ...]) -> None:
    a, b = (wp.zeros((*batch, *shape), dtype=wp.float32, device=CPU) for shape in ((3, 0), (0, 4)))
    out, bias = on(np.full((*batch, 3, 4), 2.0)), on(np.arange(4.0))
    warp_tiles.matmul(a, b, out, beta=3.0, bias=bias, epilogue=square)
    assert np.array_equal(out.numpy(), np.broadcast_to((6.0 + np.arange(4)) ** 2, out.shape))
    assert not np.any(warp_tiles.matmul(a, b).numpy())


@pytest.mark.parametrize(
    ("a_shape", "b_shape"), [((0, 4), (4, 3)), ((3, 4), (4, 0)), ((0, 3, 4), (4, 5)), ((0, 3, 4), (0, 4, 5))], ids=str
)
def test_empty_results(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    a, b = (wp.zeros(shape, dtype=wp.float32, device=CPU, requires_grad=True) for shape in (a_shape, b_shape))
    with wp.Tape() as tape:
        out = warp_tiles.matmul(a, b)
    assert out.shape == np.matmul(np.zeros(a_shape), np.zeros(b_shape)).shape
    assert tape.launches == []
    tape.backward()


# ---- repeated calls


def test_repeated_calls_use_the_arrays_that_are_given() -> None:
    for seed in range(3):
        a, b, c, bias = integers(seed, 9, 8), integers(seed + 5, 8, 7), integers(seed + 9, 9, 7), integers(seed, 7)
        out = on(c)
        warp_tiles.matmul(on(a), on(b), out, alpha=2.0 + seed, beta=1.0 + seed, bias=on(bias))
        assert np.array_equal(out.numpy(), (2 + seed) * (a @ b) + (1 + seed) * c + bias)


def test_a_call_keeps_no_array_alive() -> None:
    import weakref

    arrays = [on(integers(1, 9, 8)), on(integers(2, 8, 7))]
    arrays.append(warp_tiles.matmul(*arrays))
    references = [weakref.ref(array) for array in arrays]
    arrays.clear()
    assert [reference() for reference in references] == [None] * 3


def test_a_call_with_the_same_arrays_sees_what_changed() -> None:
    a, b, out = on(integers(1, 9, 8)), on(integers(2, 8, 7)), on(np.zeros((9, 7)))
    for _ in range(2):
        warp_tiles.matmul(a, b, out)
        assert np.array_equal(out.numpy(), a.numpy() @ b.numpy())
    a.fill_(3.0)
    warp_tiles.matmul(a, b, out, alpha=2.0)
    assert np.array_equal(out.numpy(), 2.0 * a.numpy() @ b.numpy())
    warp_tiles.matmul(a, b, out, alpha=3.0)
    assert np.array_equal(out.numpy(), 3.0 * a.numpy() @ b.numpy())
    warp_tiles.matmul(a, b, out, epilogue=wp.abs)
    warp_tiles.matmul(a, b, out, epilogue=wp.neg)
    assert np.array_equal(out.numpy(), -(a.numpy() @ b.numpy()))


def test_a_call_with_the_same_arrays_in_other_memory_reads_it() -> None:
    a, other, b, out = on(integers(1, 9, 8)), on(integers(3, 9, 8)), on(integers(2, 8, 7)), on(np.zeros((9, 7)))
    warp_tiles.matmul(a, b, out)
    expected = other.numpy() @ b.numpy()
    a.ptr, other.ptr = other.ptr, a.ptr
    warp_tiles.matmul(a, b, out)
    a.ptr, other.ptr = other.ptr, a.ptr
    assert np.array_equal(out.numpy(), expected)
    a.ptr, before = out.ptr, a.ptr
    with pytest.raises(warp_tiles.MatmulError, match="overlaps"):
        warp_tiles.matmul(a, b, out)
    a.ptr = before


def test_a_call_with_the_same_arrays_sees_other_strides_and_shapes() -> None:
    a, b, out = on(integers(1, 8, 8)), on(integers(2, 8, 7)), on(np.zeros((8, 7)))
    values = a.numpy()
    for _ in range(2):
        warp_tiles.matmul(a, b, out)
    a.strides = a.strides[::-1]
    warp_tiles.matmul(a, b, out)
    assert np.array_equal(out.numpy(), values.T @ b.numpy())
    a.shape = (8, 6)
    with pytest.raises(MatmulError, match="8, 6"):
        warp_tiles.matmul(a, b, out)


def test_a_call_with_the_same_arrays_is_recorded_on_a_tape() -> None:
    a, b, out = (wp.full((4, 4), 2.0, dtype=wp.float32, device=CPU, requires_grad=True) for _ in range(3))
    warp_tiles.matmul(a, b, out)
    with wp.Tape() as tape:
        warp_tiles.matmul(a, b, out)
    tape.backward(grads={out: wp.full_like(out, 1.0)})
    assert (a.grad.numpy() == 8.0).all()


def test_a_new_array_with_the_identity_of_an_old_one_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python gives a new object the identity of a deleted one."""
    monkeypatch.setattr(public, "id", lambda array: 7, raising=False)
    a, b, out = on(integers(1, 9, 8)), on(integers(2, 8, 7)), on(np.zeros((9, 7)))
    warp_tiles.matmul(a, b, out)
    half = wp.array(ptr=a.ptr, dtype=wp.float32, shape=(9, 4), strides=a.strides, device=CPU)
    with pytest.raises(warp_tiles.MatmulError, match="4 columns"):
        warp_tiles.matmul(half, b, out)


def test_a_product_whose_kernel_is_no_longer_current_is_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "_products", {})
    a, b, out = on(integers(1, 8, 8)), on(integers(2, 8, 8)), on(np.zeros((8, 8)))
    warp_tiles.matmul(a, b, out)
    (known,) = public._products.values()
    known.product = SimpleNamespace(is_current=lambda: False)  # it cannot run
    out.zero_()
    warp_tiles.matmul(a, b, out)
    assert np.array_equal(out.numpy(), a.numpy() @ b.numpy())
    assert known.product.is_current()


def test_the_memory_of_checked_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "_MOST_CALLS", 4)
    arrays = [(on(integers(1, m, 8)), on(integers(2, 8, 7)), on(np.zeros((m, 7)))) for m in range(1, 12)]
    for a, b, out in arrays:
        warp_tiles.matmul(a, b, out)
    assert len(public._products) <= 4
    assert len(public._repeats) <= 4


def test_a_cpu_graph_replays_the_product() -> None:
    a, b, out = on(integers(1, 9, 8)), on(integers(2, 8, 7)), on(np.zeros((9, 7)))
    warp_tiles.matmul(a, b, out)
    out.zero_()
    with wp.ScopedCapture(device=CPU, apic=True) as capture:
        warp_tiles.matmul(a, b, out)
    a.fill_(2.0)
    wp.capture_launch(capture.graph)
    assert np.array_equal(out.numpy(), a.numpy() @ b.numpy())


def test_a_product_without_enable_reads_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_TILES_PROVIDR", "own")
    a = wp.array(np.eye(8, dtype=np.float32), device="cpu")
    assert warp_tiles.matmul(a, a).numpy().trace() == 8.0
