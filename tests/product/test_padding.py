"""Copies of operands with aligned lines, on the CPU, which makes none of its own accord."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import warp as wp

from tests.product.cases import CPU, LAYOUTS, integers, on, values_of
from tests.product.test_split import run
from warp_tiles.heuristics.matmul import MatmulConfig
from warp_tiles.product.padding import PaddedCopy
from warp_tiles.product.views import View, view_of

TYPES = {"float16": wp.float16, "bfloat16": wp.bfloat16, "float32": wp.float32, "float64": wp.float64}


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
        (view(4, 8, (-16, 2)), 16),
    ],
)
def test_the_alignment_of_lines(operand: View, alignment: int) -> None:
    assert operand.line_alignment == alignment


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (16, 24), (33, 3), (3, 9, 13)], ids=str)
def test_a_copy_has_aligned_lines_and_the_same_elements(dtype: str, layout: str, shape: tuple[int, ...]) -> None:
    values = integers(1, *shape)
    array = LAYOUTS[layout](values, TYPES[dtype])
    copy = PaddedCopy(view_of(array, dtype), 1, wp.get_device(CPU))
    assert copy.view.line_alignment == 16
    assert copy.view.is_transposed == view_of(array, dtype).is_transposed
    memory = wp.full(copy.size_bytes // np.dtype(np.uint8).itemsize, 255, dtype=wp.uint8, device=CPU)
    assert copy.run(array.ptr, memory.ptr) == memory.ptr
    strides = copy.view.strides if len(shape) == 3 else copy.view.strides[1:]
    found = wp.array(ptr=memory.ptr, dtype=TYPES[dtype], shape=shape, strides=strides, device=CPU)
    assert np.array_equal(values_of(wp.clone(found)), values)


@pytest.mark.parametrize("copies", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize(
    ("a_shape", "b_shape"), [((50, 33), (33, 70)), ((3, 50, 33), (3, 33, 70)), ((50, 33), (3, 33, 70))], ids=str
)
def test_products_of_copies(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], slices: int, copies: tuple[bool, bool]
) -> None:
    a, b = integers(1, *a_shape), integers(2, *b_shape)
    config = MatmulConfig(16, 32, 16, 1, slices, 2, *copies)
    for a_layout, b_layout in itertools.product(LAYOUTS, LAYOUTS):
        out: Any = on(np.full((a @ b).shape, np.nan))
        assert np.array_equal(run(config, LAYOUTS[a_layout](a), LAYOUTS[b_layout](b), out), a @ b), (a_layout, b_layout)


def test_a_result_whose_columns_are_contiguous() -> None:
    """A and B are exchanged, and so are their copies."""
    a, b = integers(1, 50, 33), integers(2, 33, 70)
    out = LAYOUTS["columns"](np.full((50, 70), np.nan))
    assert np.array_equal(run(MatmulConfig(16, 32, 16, 1, 1, 2, True, True), on(a), on(b), out), a @ b)
