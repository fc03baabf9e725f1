"""The kernel of matmul for float32 and float64, on the emulator, and mutations that it reports."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.emulator.module import EmulatedModule, Machine
from tests.emulator.test_tensor_matmul import Product, Products, Sizes, each_product, one_unit, text_of
from tests.mutation.made import changes
from warp_tiles.array_products.lane_kernel import TILES, LaneKernel
from warp_tiles.array_products.tensor_kernel import TensorKernel
from warp_tiles.gemm.problem import DType

pytestmark = pytest.mark.slow  # the emulator compiles for seconds

TEXT = text_of(LaneKernel.header)


def kernel(
    tile_m: int, tile_n: int, along_m: bool, along_n: bool, dtype: DType = "float32", **options: Any
) -> LaneKernel:
    return LaneKernel(dtype, dtype, tile_m, tile_n, along_m, along_n, **options)


PRODUCTS: Products = {
    kernel(128, 256, False, True): [
        ((136, 264, 5 * 32 + 4), {}),  # four tiles, each of more stages than the ring has
        ((40, 136, 16), {"batch": 3, "is_shared": True, "factor": 4.0, "alpha": 0.5}),
    ],
    kernel(256, 128, True, True, has_beta=True, bias="float32"): [((264, 136, 72), {"alpha": 0.5, "beta": 2.0})],
    kernel(128, 128, False, False, has_slices=True): [
        ((136, 200, 200), {"slices": 3}),  # two whole tiles, and two with slices
        ((40, 40, 64), {"slices": 3}),  # the last slice is empty
    ],
    kernel(64, 128, True, False, has_map=False, has_beta=True): [((72, 131, 72), {"batch": 2, "beta": -1.0})],
    kernel(128, 64, False, True, has_function=True, bias="float32"): [((136, 72, 40), {"alpha": 0.5})],
    kernel(64, 64, True, True, has_slices=True, has_map=False): [((200, 67, 168), {"slices": 2, "batch": 3})],
    kernel(128, 128, True, True, has_slices=True): [
        ((136, 200, 200), {"slices": 3}),
        ((136, 200, 200), {"slices": 2, "stages": 5}),  # a long slice and a short one
    ],
    kernel(64, 64, False, False): [((72, 136, 5 * 32 + 4), {"batch": 2})],
    kernel(128, 128, False, True, "float64", has_slices=True): [  # a warpgroup loads
        ((136, 200, 104), {"slices": 3}),  # two whole tiles, and two with slices
        ((40, 40, 32), {"slices": 3, "alpha": 0.5}),  # the last slice is empty
        ((40, 40, 64), {"slices": 2}),  # the later block's sums stay in registers
    ],
    kernel(64, 128, True, False, "float64", has_map=False, has_beta=True, bias="float64"): [
        ((72, 131, 72), {"batch": 2, "alpha": 0.5, "beta": -1.0}),
    ],
    kernel(128, 64, True, True, "float64", has_function=True, bias="float32"): [
        ((136, 72, 40), {"alpha": 0.1, "batch": 3, "is_shared": True}),
    ],
    kernel(64, 64, False, False, "float64", has_slices=True, has_map=False): [
        ((200, 67, 86), {"slices": 2, "batch": 3}),
    ],
    kernel(64, 64, False, True, "float64", has_beta=True): [
        ((136, 72, 8 * 16 + 2), {"beta": 0.1}),  # six tiles, each of more stages than the ring has
    ],
    kernel(64, 64, True, True, "float64", has_map=False, has_slices=True): [((72, 135, 168), {"slices": 3})],
    kernel(64, 64, True, False, "float64"): [((72, 136, 40), {"batch": 2})],
    kernel(96, 64, True, True, "float64"): [((104, 72, 104), {})],
    kernel(64, 32, False, True, "float64", has_map=False): [((72, 67, 8 * 16 + 2), {})],
    kernel(32, 64, False, False, "float64"): [((72, 136, 40), {"batch": 2})],
}  # fmt: skip
KERNELS = tuple(PRODUCTS)
SMALL = kernel(64, 64, False, True)
SLICED = replace(SMALL, has_slices=True)
DOUBLE = replace(SMALL, a="float64", out="float64")
LOADED = replace(DOUBLE, tile_m=128, tile_n=128)
STAGES = 3  # of the mutated kernels
# the emulator orders writes of threads and of copies by mbarriers alone, and two calls are for the compiler
UNNEEDED = re.compile(r"fence_for_wgmma|take_registers|__syncwarp\(\);.*no product reads")


def mutants() -> Iterator[tuple[LaneKernel, str, str]]:
    """Yields kernels as they are, and for each call of the header one that has it, without the call."""
    yield from ((kernel, "", TEXT) for kernel in (SMALL, SLICED, DOUBLE, LOADED))
    parts = (
        (SLICED, "add_slices(", "// An element of an array"),
        (DOUBLE, "struct Lanes<P, double>", "// ---- a tile"),
        (DOUBLE, "const int step = first + i;", "if (i == L::STEPS"),
        (LOADED, "if constexpr (P::HAS_LOADERS)", "Lanes<P> lanes;"),
        (replace(LOADED, has_slices=True), "const auto barrier = []", "else"),
        (SLICED, "                    __syncthreads();", "store_tile(lanes, given, tile);"),
    )
    ranges = [(kernel, range(start := TEXT.index(first), TEXT.index(end, start))) for kernel, first, end in parts]
    for name, old, new in changes(TEXT):
        if re.match(r"[\w:.]+(<.*>)?\(.*\); -> ; in", name) and not UNNEEDED.match(name):
            at = TEXT.index(old)
            yield next((kernel for kernel, part in ranges if at in part), SMALL), name, TEXT.replace(old, new)


MUTANTS = list(mutants())


@pytest.fixture(scope="module")
def module(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> EmulatedModule:
    folder = tmp_path_factory.mktemp("lane_matmul") / "kernels"
    return machine.module(one_unit(folder, KERNELS, [TEXT] * len(KERNELS)), (), 90)


@pytest.fixture(scope="module")
def mutated(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> EmulatedModule:
    folder = tmp_path_factory.mktemp("mutated_lane_matmul") / "kernels"
    kernels, _, texts = zip(*MUTANTS)
    return machine.module(one_unit(folder, kernels, texts, STAGES), (), 90)


def test_the_kernels_have_all_tiles_and_layouts() -> None:
    for dtype, tiles in TILES.items():
        kernels = [kernel for kernel in KERNELS if kernel.a == dtype]
        assert {(kernel.tile_m, kernel.tile_n) for kernel in kernels} == {*tiles}
        assert len({(kernel.a_along_m, kernel.b_along_n) for kernel in kernels}) == 4


@each_product(PRODUCTS)
def test_products(module: EmulatedModule, kernel: TensorKernel, sizes: Sizes, options: dict[str, Any]) -> None:
    Product(kernel, sizes, **options).check(module, KERNELS.index(kernel))


@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=[name or "all calls" for _, name, _ in MUTANTS])
def test_each_call_is_needed(mutated: EmulatedModule, number: int) -> None:
    kernel, name, _ = MUTANTS[number]
    sizes = (40, 2 * kernel.tile_n + 8, 6 * 32 + 4)
    product = Product(kernel, sizes, slices=2 if kernel.has_slices else 1)  # the third tile has slices
    product.check_mutant(mutated, number, name)
