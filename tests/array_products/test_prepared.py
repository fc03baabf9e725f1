"""Copies of operands with aligned lines, and configurations with slices of K: the CPU chooses none by itself."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import warp as wp

from tests.array_products.cases import CPU, LAYOUTS, TYPES, integers, on, square, transposed, values_of
from tests.nightly import some
from warp_tiles.array_products.call import MatmulCall, View, aligned_view, checked, contiguous, view_of
from warp_tiles.array_products.elementwise import padding_kernel
from warp_tiles.array_products.matmul_problem import MatmulConfig
from warp_tiles.array_products.prepared import padded_copy, prepare, transposed_copy

COPIES = MatmulConfig(16, 32, 16, 1, 1, 2, True, True)


def view(rows: int, columns: int, strides: tuple[int, int], alignment: int = 16) -> View:
    return View("float16", (1, rows, columns), (0, *strides), alignment)


@pytest.mark.parametrize(
    ("operand", "alignment"),
    [
        (view(4, 8, (16, 2)), 16),
        (view(4, 8, (32, 2)), 16),
        (view(4, 8, (40, 2)), 8),
        (view(4, 7, (14, 2)), 2),
        (view(1, 7, (14, 2)), 16),  # one line
        (view(4, 8, (16, 2), alignment=4), 4),
        (view(8, 4, (2, 36)), 4),  # columns are contiguous
        (view(4, 8, (64, 4)), 0),
        (view(4, 1, (4, 64)), 4),  # lines of one element
        (View("float16", (3, 4, 8), (72, 16, 2)), 8),
        (View("float16", (3, 4, 8), (0, 16, 2)), 16),
        (View("float16", (1, 4, 8), (72, 16, 2)), 16),  # one matrix
        (view(4, 8, (-16, 2)), 16),
    ],
)
def test_the_alignment_of_lines(operand: View, alignment: int) -> None:
    assert operand.line_alignment == alignment


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (6, 10), (20, 12), (16, 24), (33, 3), (3, 9, 13)], ids=str)
@pytest.mark.parametrize("alignment", [16, 128])
def test_a_copy_has_aligned_lines_and_the_same_elements(
    dtype: str, layout: str, shape: tuple[int, ...], alignment: int
) -> None:
    values = integers(1, *shape)
    array = LAYOUTS[layout](values, TYPES[dtype])
    copy = padded_copy(view_of(array), 1, wp.get_device(CPU), alignment)
    assert copy.view.line_alignment == 16
    assert copy.view.stored.strides[1] % alignment == 0
    assert copy.view.is_transposed == view_of(array).is_transposed
    memory = wp.full(copy.size_bytes, 255, dtype=wp.uint8, device=CPU)
    copy.launch.run_at((array.ptr, memory.ptr))
    strides = copy.view.strides if len(shape) == 3 else copy.view.strides[1:]
    found = wp.array(ptr=memory.ptr, dtype=TYPES[dtype], shape=shape, strides=strides, device=CPU)
    assert np.array_equal(values_of(wp.clone(found)), values)


def test_both_parts_of_a_split_operand_are_aligned_to_the_words_that_a_copy_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = []

    def kernel(dtype: Any, word_bytes: int) -> Any:
        words.append(word_bytes)
        return padding_kernel(dtype, word_bytes)

    monkeypatch.setattr("warp_tiles.array_products.prepared.padding_kernel", kernel)
    padded_copy(View("bfloat16", (1, 1, 4099), (8198, 8198, 2)), 2, wp.get_device(CPU))
    assert words == [2], "the second part begins 8,198 bytes after the first"


@pytest.mark.parametrize("layout", ["rows", "columns", "spread"])
@pytest.mark.parametrize("shape", [(3, 50, 33), (1, 64, 31), (2, 4, 7), (1, 130, 1)], ids=str)
@pytest.mark.parametrize("multiple", [1, 4])
def test_a_copy_whose_lines_are_the_columns(shape: tuple[int, int, int], layout: str, multiple: int) -> None:
    values = integers(1, *shape)
    padded = np.pad(values, [(0, 0), *((0, -size % multiple) for size in shape[1:])], constant_values=9)
    array = LAYOUTS[layout](padded, wp.float32, CPU)[:, : shape[1], : shape[2]]
    copy = transposed_copy(view_of(array), wp.get_device(CPU))
    if view_of(array).is_transposed:
        values = values.swapaxes(1, 2)
    assert copy.view.shape == values.swapaxes(1, 2).shape
    assert copy.view.line_alignment == 16
    memory = wp.full(copy.size_bytes, 255, dtype=wp.uint8, device=CPU)
    copy.launch.run_at((array.ptr, memory.ptr))
    found = wp.array(ptr=memory.ptr, dtype=wp.float32, shape=copy.view.shape, strides=copy.view.strides, device=CPU)
    assert np.array_equal(values_of(wp.clone(found)).swapaxes(1, 2), values)


@pytest.mark.parametrize("gap", [0, 1, 2, 4, 8, 16])
def test_the_alignment_of_the_first_element(gap: int) -> None:
    whole = wp.zeros(64 + gap, dtype=wp.float16, device=CPU)
    assert whole.ptr % 16 == 0
    part = wp.array(ptr=whole.ptr + 2 * gap, dtype=wp.float16, shape=(8, 8), device=CPU)
    assert aligned_view(part).line_alignment == (min(16, 2 * gap) if gap else 16)
    assert view_of(part).line_alignment == 16


@pytest.mark.parametrize(("copies_a", "copies_b"), some([(True, True), (True, False), (False, True)], 1, "slow"))
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize(
    ("a_shape", "b_shape"), [((50, 33), (33, 70)), ((3, 50, 33), (3, 33, 70)), ((50, 33), (3, 33, 70))], ids=str
)
def test_products_of_copies(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], slices: int, copies_a: bool, copies_b: bool
) -> None:
    a, b = integers(1, *a_shape), integers(2, *b_shape)
    config = MatmulConfig(16, 32, 16, 1, slices, 2, copies_a, copies_b)
    for a_layout, b_layout in itertools.product(LAYOUTS, LAYOUTS):
        out: Any = on(np.full((a @ b).shape, np.nan))
        assert np.array_equal(run(config, LAYOUTS[a_layout](a), LAYOUTS[b_layout](b), out), a @ b), (a_layout, b_layout)


def test_nothing_is_copied_without_k() -> None:
    a, b = on(integers(1, 8, 7))[:, 0:0], on(integers(2, 8, 9))[0:0]
    assert np.array_equal(run(COPIES, a, b, on(np.full((8, 9), np.nan))), np.zeros((8, 9)))


@pytest.mark.parametrize("is_summed", [True, False], ids=["summed", "batch"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_operands_in_parts_are_copied_whole(name: str, is_summed: bool) -> None:
    """A + A' times B, or A times B + B', for a batch or the sum over it."""
    shapes = {"a": (3, 50, 33), "b": (3, 33, 70)}
    values = {key: integers(seed, *shape) for seed, (key, shape) in enumerate(shapes.items())}
    rest = integers(5, *shapes[name])
    arrays = {key: on(np.concatenate([found, rest]) if key == name else found) for key, found in values.items()}
    expected = np.matmul(*(found + rest if key == name else found for key, found in values.items()))
    out = on(np.full(expected[0].shape if is_summed else expected.shape, np.nan))
    views = (contiguous("float32", shapes["a"]), contiguous("float32", shapes["b"]), view_of(out))
    call = MatmulCall(*views, summed=is_summed, split_operand=name)
    product = prepare(call, wp.get_device(CPU), COPIES)
    product.run(arrays["a"].ptr, arrays["b"].ptr, out.ptr, None, 1.0, 0.0)
    assert np.array_equal(out.numpy(), expected.sum(0) if is_summed else expected)


# ---- Slices of K, groups of rows, tiles that matrices do not fill


SPLIT = MatmulConfig(16, 32, 16, 1, split_k=3, group=2)


def run(config: MatmulConfig, a: Any, b: Any, out: Any, **options: Any) -> Any:
    """A product with a given configuration."""
    product = prepare(checked(a, b, out, **options).call, wp.get_device(CPU), config)
    bias = options.get("bias")
    factors = options.get("alpha", 1.0), options.get("beta", 0.0)
    product.run(a.ptr, b.ptr, out.ptr, None if bias is None else bias.ptr, *factors)
    return out.numpy()


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
@pytest.mark.parametrize("k", [16, 33, 100, 0])
def test_slices_of_k(batch: tuple[int, ...], k: int) -> None:
    a, b = integers(1, *batch, 50, k), integers(2, *batch, k, 70)
    assert np.array_equal(run(SPLIT, on(a), on(b), on(np.full((*batch, 50, 70), np.nan))), a @ b)


def test_slices_with_every_option() -> None:
    a, b, c, bias = integers(1, 2, 50, 100), integers(2, 100, 70), integers(3, 2, 50, 70), integers(4, 70)
    found = run(SPLIT, on(a), on(b), on(c), alpha=0.25, beta=2.0, bias=on(bias), epilogue=square)
    assert np.array_equal(found, (0.25 * (a @ b) + 2 * c + bias) ** 2)


@pytest.mark.parametrize("config", [SPLIT, COPIES], ids=["slices", "copies"])
def test_a_result_whose_columns_are_contiguous(config: MatmulConfig) -> None:
    """A and B are exchanged, and so are their copies."""
    a, b = integers(1, 50, 99), integers(2, 99, 70)
    assert np.array_equal(run(config, on(a), on(b), transposed(np.full((50, 70), np.nan))), a @ b)


def test_slices_are_added_in_order() -> None:
    a, b = np.random.default_rng(1).normal(size=(2, 50, 50))
    first, second = (run(SPLIT, on(a), on(b), on(np.zeros((50, 50)))) for _ in range(2))
    assert np.array_equal(first, second)
    np.testing.assert_allclose(first, a @ b, rtol=1e-4, atol=1e-5)
