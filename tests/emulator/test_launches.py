"""The coordinates that wp.tid() returns in a module with a product, on the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.generated import Kernels, build
from tests.emulator.module import Machine

SIZES = ((5,), (3, 7), (2, 3, 5), (2, 3, 4, 5))
KERNEL = """
@wp.kernel
def coordinates_{n}(C: wp.array(dtype=wp.int32, ndim={n}), tiled: bool):
    {names} = wp.tid()
    if tiled:
        wp.tile_store(C, wp.tile_ones(shape={ones}, dtype=wp.int32), offset=({names},))
    else:
        C[{names}] += 1

"""
PRODUCT = """
@wp.kernel
def product(A: wp.array(dtype=float, ndim=2)):
    a = wp.tile_load(A, shape=(16, 16))
    wp.tile_store(A, wp.tile_matmul(a, a))
"""


@pytest.fixture(scope="module")
def compiled(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    kernels = [KERNEL.format(n=n, names=", ".join("ijkl"[:n]), ones=(1,) * n) for n in (len(sizes) for sizes in SIZES)]
    found = build(machine, tmp_path_factory.mktemp("launches") / "m", PRODUCT + "".join(kernels), 32)
    assert "wt_module::tid(_idx, dim, x, y, z, w)" in found.source
    return found


@pytest.mark.parametrize("tiled", [True, False], ids=["blocks", "threads"])
@pytest.mark.parametrize("sizes", SIZES, ids=len)
def test_each_coordinate_occurs_once(compiled: Kernels, sizes: tuple[int, ...], tiled: bool) -> None:
    kernel = getattr(compiled.module, f"coordinates_{len(sizes)}")
    arrays = compiled.emulated.run(kernel, sizes, [np.zeros(sizes, dtype=np.int32), tiled], tiled=tiled)
    assert (arrays["C"] == 1).all()
