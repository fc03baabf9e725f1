"""The kernel of matmul in clusters of blocks that share their loads, on the emulator."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulator.module import EmulatedModule, Machine
from tests.emulator.test_tensor_matmul import TEXT, Product, Products, Sizes, each_product, one_unit
from warp_tiles.array_products.tensor_kernel import TensorKernel

PRODUCTS: Products = {
    TensorKernel("float16", "float16", 128, 256, False, True, cluster_m=2): [
        ((520, 264, 6 * 64 + 24), {}),  # six tiles of clusters, some of whose blocks are outside of C
        ((136, 520, 72), {"batch": 2}),
    ],
    TensorKernel("bfloat16", "float32", 64, 128, True, False, True, cluster_n=2): [
        ((136, 520, 9 * 64 + 24), {"beta": 2.0}),
    ],
    TensorKernel("float16", "float16", 64, 64, True, True, has_slices=True, cluster_m=2, cluster_n=2): [
        ((200, 200, 600), {"slices": 2}),
        ((300, 120, 600), {"slices": 3}),  # three tiles of clusters, of which the last one has slices
    ],
    TensorKernel("float32", "float32", 128, 64, cluster_m=4): [((520, 136, 8 * 32 + 8), {})],
    TensorKernel("float32", "float32", 256, 128, False, True, True, cluster_m=2): [  # B in registers
        ((520, 264, 4 * 32 + 8), {"beta": 2.0}),
    ],
    TensorKernel("float16", "float16", 64, 192, False, False, True, "float16", cluster_n=4): [
        ((136, 1000, 6 * 64 + 24), {"beta": 2.0}),
    ],
}  # fmt: skip
KERNELS = tuple(PRODUCTS)


@pytest.fixture(scope="module")
def module(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> EmulatedModule:
    folder = tmp_path_factory.mktemp("matmul_clusters") / "kernels"
    return machine.module(one_unit(folder, KERNELS, [TEXT] * len(KERNELS)), (), 90)


@pytest.mark.slow
@each_product(PRODUCTS)
def test_products(module: EmulatedModule, kernel: TensorKernel, sizes: Sizes, options: dict[str, Any]) -> None:
    Product(kernel, sizes, **options).check(module, KERNELS.index(kernel))
