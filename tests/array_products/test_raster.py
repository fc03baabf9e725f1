"""The matrix, the slice and the tile of each block, computed without divisions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import warp as wp
from hypothesis import example, given
from hypothesis import strategies as st

from warp_tiles.array_products.kernels import inverse, quotient, raster_arguments, tile_position

NUMBERS = st.integers(0, 2**31 - 1)


@given(NUMBERS, st.integers(1, 2**31 - 1))
@example(2**31 - 1, 1)
@example(2**31 - 1, 2)
@example(2**31 - 1, 2**31 - 1)
def test_a_quotient_by_the_inverse_is_at_most_one_too_small(number: int, divisor: int) -> None:
    assert inverse(divisor) < 2**32
    assert number // divisor - (number * inverse(divisor) >> 32) in (0, 1)


@wp.kernel
def quotients(Numbers: wp.array(dtype=int), Divisors: wp.array(dtype=int), Inverses: wp.array(dtype=wp.uint32),
              Found: wp.array(dtype=int), Rest: wp.array(dtype=int)):  # fmt: skip
    i = wp.tid()
    found, rest = quotient(Numbers[i], Divisors[i], Inverses[i])
    Found[i] = found
    Rest[i] = rest


def test_quotients_and_remainders() -> None:
    values = [0, 1, 2, 3, 7, 255, 256, 12345, 2**30 - 1, 2**30, 2**31 - 2, 2**31 - 1]
    numbers, divisors = (np.array(one) for one in zip(*itertools.product(values, values[1:])))
    found, rest = (wp.zeros(len(numbers), dtype=int, device="cpu") for _ in range(2))
    inverses = [inverse(int(divisor)) for divisor in divisors]
    arrays = [wp.array(numbers, dtype=int, device="cpu"), wp.array(divisors, dtype=int, device="cpu")]
    arrays.append(wp.array(inverses, dtype=wp.uint32, device="cpu"))
    wp.launch(quotients, len(numbers), inputs=[*arrays, found, rest], device="cpu")
    assert np.array_equal(found.numpy(), numbers // divisors)
    assert np.array_equal(rest.numpy(), numbers % divisors)


@wp.kernel
def positions(rows: int, columns: int, group: int, of_matrix: wp.uint32, of_slice: wp.uint32, of_group: wp.uint32,
              of_height: wp.uint32, of_last_height: wp.uint32, Tiles: wp.array(dtype=int, ndim=2)):  # fmt: skip
    number = wp.tid()
    i, j = tile_position(number, rows, columns, group, of_group, of_height, of_last_height)
    Tiles[number, 0] = i
    Tiles[number, 1] = j


@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(1, 1, 1), (1, 9, 8), (7, 3, 8), (8, 5, 8), (19, 4, 8), (9, 2, 16), (5, 6, 1)]
)
def test_blocks_go_down_the_columns_of_a_group(rows: int, columns: int, group: int) -> None:
    tiles = wp.zeros((rows * columns, 2), dtype=int, device="cpu")
    arguments = raster_arguments(rows, columns, group, 1)
    wp.launch(positions, rows * columns, inputs=[*arguments, tiles], device="cpu")
    assert tiles.numpy().tolist() == [
        [i, j]
        for first in range(0, rows, group)
        for j in range(columns)
        for i in range(first, min(first + group, rows))
    ]
