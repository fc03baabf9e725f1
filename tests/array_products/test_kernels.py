"""The names and modules of a product's kernels, and the order in which their blocks compute tiles."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import warp as wp

from tests.array_products.cases import PLAIN, cube, square
from tests.interpreter import python
from warp_tiles.array_products.kernels import (
    Epilogue,
    TileKernel,
    inverse,
    quotient,
    raster_arguments,
    tile_kernel,
    tile_position,
)


def key(epilogue: Epilogue | None = None, **options: Any) -> TileKernel:
    return TileKernel(**{**PLAIN, **options}, epilogue=epilogue or Epilogue("float32"))


KEYS = {
    "common": key(),
    "tile": key(tile=(32, 16, 32)),
    "a": key(a_transposed=True),
    "b": key(b_transposed=True),
    "tf32": key(tf32=True),
    "plain": key(scaled=False),
    "half": key(Epilogue("float16"), a="float16", b="float16"),
    "bias": key(Epilogue("float32", bias="float32")),
    "beta": key(Epilogue("float32", has_beta=True)),
    "tanh": key(Epilogue("float32", function=wp.tanh)),
    "abs": key(Epilogue("float32", function=wp.abs)),
    "square": key(Epilogue("float32", function=square)),
    "cube": key(Epilogue("float32", function=cube)),
}


def test_each_kernel_has_a_module_of_its_own() -> None:
    modules = {name: tile_kernel(one).module.name for name, one in KEYS.items()}
    assert len(set(modules.values())) == len(modules)
    for one in KEYS.values():
        assert list(tile_kernel(one).module.kernels.values()) == [tile_kernel(one)]


def test_an_epilogue_is_known_by_what_it_computes() -> None:
    def made(factor: float) -> Any:
        @wp.func
        def scaled(x: float):
            return x * factor

        return scaled

    names = [tile_kernel(key(Epilogue("float32", function=made(factor)))).module.name for factor in (2.0, 3.0, 2.0)]
    assert names[0] == names[2] != names[1]


@pytest.mark.slow
def test_names_are_the_same_in_each_process() -> None:
    code = (
        "import sys, warp as wp; wp.config.log_level = wp.LOG_WARNING\n"
        "from tests.array_products.test_kernels import KEYS, tile_kernel\n"
        "names = list(KEYS) if sys.argv[1] == '1' else list(reversed(KEYS))\n"
        "print(*sorted(tile_kernel(KEYS[name]).module.name for name in names))"
    )
    found = []
    for seed in ("1", "2"):
        done = python("-c", code, seed, PYTHONHASHSEED=seed)
        found.append(done.stdout.splitlines()[-1])
    assert found[0] == found[1]
    assert len(set(found[0].split())) == len(KEYS)


@pytest.mark.parametrize("enable_backward", [False, True])
def test_global_options_do_not_matter(monkeypatch: pytest.MonkeyPatch, enable_backward: bool) -> None:
    monkeypatch.setattr(wp.config, "enable_backward", enable_backward)
    kernel = tile_kernel.__wrapped__(key(Epilogue("bfloat16"), a="bfloat16", b="bfloat16", tile=(16, 16, 16)))
    options = kernel.module.options
    assert (options["enable_backward"], kernel.options["enable_backward"]) == (False, False)


@pytest.mark.parametrize("default", [False, True])
def test_no_block_goes_on_with_another_tile(monkeypatch: pytest.MonkeyPatch, default: bool) -> None:
    if not hasattr(wp.config, "default_grid_stride"):
        pytest.skip("blocks of this Warp's kernels always go on")
    monkeypatch.setattr(wp.config, "default_grid_stride", default)
    assert tile_kernel.__wrapped__(key(tile=(32, 32, 16))).grid_stride is False


# ---- the order of tiles


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
