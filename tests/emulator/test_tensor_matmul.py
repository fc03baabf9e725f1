"""The kernel of matmul with tensor copies, on the emulator: types, layouts, tiles, and mutations that it reports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.emulator.generated import emulated_kernels
from tests.emulator.memory import Memory, Values
from tests.emulator.module import EmulatedModule, Machine, Outcome
from tests.emulator.native import for_host
from tests.emulator.tensor_maps import tensor_map
from tests.emulator.tiles import from_bytes, rounded, to_bytes
from tests.mutation.made import changes
from warp_tiles.array_products.tensor_kernel import REGISTER_TILES, TILES, TensorKernel
from warp_tiles.array_products.tensor_matmul import _Arguments
from warp_tiles.compile.sources import flatten, kernels_folder
from warp_tiles.gemm.problem import DTYPE_BYTES, DType, accumulator_of

CLUSTERS = 2
Sizes = tuple[int, int, int]
Products = Mapping[TensorKernel, Sequence[tuple[Sizes, dict[str, Any]]]]
PRODUCTS: Products = {
    TensorKernel("float16", "float32", 128, 128): [
        ((200, 200, 8 * 64 + 24), {}),  # four tiles, each of more stages than the ring has
        ((40, 136, 16), {"batch": 3, "is_shared": True, "factor": 4.0, "alpha": 0.5}),
    ],
    TensorKernel("bfloat16", "bfloat16", 128, 192, True, True, False, "bfloat16"): [
        ((136, 200, 72), {}),  # each tile has three chunks of C
    ],
    TensorKernel("float16", "float16", 192, 128, True, False, True, "float32"): [
        ((264, 136, 40), {"alpha": 0.5, "beta": 2.0}),
    ],
    TensorKernel("float16", "float32", 64, 128, False, True, True): [((136, 264, 72), {"alpha": 2.0, "beta": -1.0})],
    TensorKernel("float32", "float32", 128, 64): [
        ((136, 40, 36), {"batch": 2}),
        ((264, 264, 8 * 32 + 8), {}),  # nine tiles of two blocks, each of more stages than the ring has
    ],
    TensorKernel("float16", "float32", 128, 128, bias="float16", has_function=True): [((136, 40, 72), {"alpha": 0.5})],
    TensorKernel("float16", "float16", 64, 192): [((136, 200, 72), {})],
    TensorKernel("float16", "float32", 128, 128, has_slices=True): [
        ((300, 120, 200), {"slices": 2}),  # two whole tiles, and one with slices
    ],
    TensorKernel("float16", "float16", 64, 128, False, True, True, has_slices=True): [
        ((40, 40, 600), {"slices": 3, "alpha": 0.5}),
        ((40, 40, 200), {"slices": 3, "beta": 2.0}),  # the last slice is empty
    ],
    TensorKernel("float16", "float16", 128, 256, True, False, True, "float16"): [
        ((136, 264, 6 * 64 + 24), {"alpha": 0.5, "beta": 2.0}),  # four tiles of both warpgroups
    ],
    TensorKernel("float32", "float32", 128, 256): [((136, 264, 72), {"batch": 2})],
    TensorKernel("float16", "float16", 64, 64, False, True, True, has_slices=True): [  # one chunk
        ((264, 136, 136), {"beta": 2.0}),
        ((136, 72, 72), {"batch": 3, "beta": 2.0}),
        ((320, 190, 264), {"slices": 3, "beta": -1.0}),  # whole tiles, and one with slices
    ],
    TensorKernel("float32", "float32", 128, 128, False, True): [  # B in registers
        ((200, 136, 8 * 32 + 8), {}),
        ((136, 40, 36), {"batch": 3, "is_shared": True, "factor": 4.0, "alpha": 0.5}),
    ],
    TensorKernel("float32", "float32", 256, 128, False, True, True, "float32"): [
        ((264, 136, 7 * 32 + 4), {"alpha": 0.5, "beta": 2.0}),
    ],
    TensorKernel("float32", "float32", 256, 128, True, False): [  # A in registers
        ((136, 200, 72), {"batch": 2, "alpha": 0.5}),
    ],
    TensorKernel("float32", "float32", 64, 64, False, True, True, has_slices=True): [
        ((72, 136, 72), {"batch": 3, "beta": 2.0}),
        ((192, 64, 264), {"slices": 3, "beta": -1.0}),
    ],
    TensorKernel("float32", "float32", 128, 256, True, False, True, "float32"): [((136, 264, 72), {"beta": 2.0})],
    TensorKernel("float32", "float32", 192, 64, False, True): [((200, 72, 40), {})],
    TensorKernel("float16", "float16", 64, 192, has_map=False): [  # three chunks
        ((136, 203, 72), {"batch": 2}),
        ((200, 571, 72), {}),
    ],
    TensorKernel("bfloat16", "bfloat16", 256, 160, True, True, True, "float32"): [  # chunks of 32 columns
        ((264, 328, 4 * 64 + 24), {"alpha": 0.5, "beta": 2.0}),
    ],
    TensorKernel("float16", "float16", 64, 96, has_map=False): [((136, 203, 72), {})],
    TensorKernel("float16", "float16", 128, 160, False, True): [((136, 168, 264), {})],
    TensorKernel("bfloat16", "bfloat16", 192, 96, True): [((200, 200, 72), {})],
    TensorKernel("float16", "float32", 192, 64, False, True, has_slices=True): [
        ((40, 40, 600), {"slices": 3, "alpha": 0.5}),
    ],
    TensorKernel("float16", "float16", 128, 96, True, True, True): [((136, 104, 200), {"beta": 2.0})],
    TensorKernel("bfloat16", "bfloat16", 64, 160, has_slices=True): [((200, 40, 264), {"slices": 2})],
    TensorKernel("float32", "float32", 160, 64, False, True): [((232, 136, 40), {})],
    TensorKernel("float32", "float32", 128, 128, False, True, bias="float32", has_map=False): [
        ((136, 135, 72), {"batch": 2, "alpha": 0.5}),
    ],
}  # fmt: skip
KERNELS = tuple(PRODUCTS)
FUNCTION = ("tripled", "__device__ double tripled(double x) { return 3 * x; }")  # its name and code
SMALL = TensorKernel("float16", "float32", 64, 64)
SLICED = replace(SMALL, has_beta=True, has_slices=True)
READING = replace(SMALL, out="float16", tile_m=192, a_along_m=True, b_along_n=True, has_beta=True)
ODD = replace(SMALL, out="float16", tile_n=192)  # three chunks
LARGE = replace(SMALL, out="float16", tile_m=128, tile_n=256)  # both warpgroups compute a tile
CLUSTERED = replace(SMALL, a_along_m=True, cluster_m=2, cluster_n=2)
REGISTERS = replace(SMALL, a="float32", b_along_n=True)  # B passes through them
ANYWHERE = replace(ODD, has_map=False)
TILES_HEADER = "matmul/tensor_tiles.cuh"
STAGES = 3  # of the mutated kernels, so that few products fill their ring


def text_of(header: str) -> str:
    """A header with the tiles' text, so that each kernel of a unit has its own."""
    tiles = (kernels_folder() / TILES_HEADER).read_text("utf-8")
    return (kernels_folder() / header).read_text("utf-8").replace(f'#include "{TILES_HEADER}"', tiles)


TEXT = text_of(TensorKernel.header)
# hints, what the compiler alone needs, and lanes that the emulator does not let diverge
UNNEEDED = re.compile(
    r"prefetch_tensor_map|wgmma_has_written|wgmma_has_read|take_registers|tiles.has_next|.*wait_group needs all lanes"
)
# parts of calls that other kernels than SMALL have
CALLS = {
    "all lanes have read": REGISTERS,
    "store_elements": ANYWHERE,
    "warpgroup_barrier(group); (2)": ANYWHERE,
    "add_slices<": SLICED,
    **dict.fromkeys(("_to_blocks", "_at_block", "cluster_", "mbarrier_wait(ring.empty()"), CLUSTERED),
    "// while the tile": READING,
    "chunks.read_first()": SLICED,
    "wait_for_tensor_stores<0>(); (2)": ODD,
    **dict.fromkeys(
        ("to + done", "ldmatrix", "stmatrix", "__syncwarp", "previous", "chunks.read", "read(number)"), READING
    ),
    "wait_for_tensor_stores<0>": READING,
}


def each_product(products: Products) -> pytest.MarkDecorator:
    """Parametrizes a test with kernels, and sizes and options of products."""
    cases = [(kernel, *case) for kernel, cases in products.items() for case in cases]
    names = [f"{kernel.name} {sizes} {options or ''}" for kernel, sizes, options in cases]
    return pytest.mark.parametrize(("kernel", "sizes", "options"), cases, ids=names)


def one_unit(folder: Path, kernels: Sequence[TensorKernel], texts: Sequence[str], stages: int = 0) -> str:
    """The text of a translation unit of kernels, each with its own text of the header.

    Args:
        folder: A new folder for the device code.
        stages: The number of stages, if it is not the kernels' own.
    """
    emulated_kernels(folder)
    parts = []
    for number, (kernel, text) in enumerate(zip(kernels, texts)):
        header, space = f"matmul/kernel_{number}.cuh", f"wt_matmul_{number}"
        (folder / header).write_text(re.sub(r"\bwt_matmul\b", space, text), "utf-8")
        source = kernel.source(*FUNCTION if kernel.has_function else ()).replace(kernel.header, header)
        source = re.sub(r"\bwt_matmul\b", space, source).replace(kernel.name, f"kernel_{number}")
        source = source.replace(f", {kernel.stages}, ", f", {stages or kernel.stages}, ")
        parts.append(re.sub(r"\b(P|Function|tripled)\b", rf"\1_{number}", source))
    return flatten("\n".join(parts), folder)


@pytest.fixture(scope="module")
def module(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> EmulatedModule:
    folder = tmp_path_factory.mktemp("tensor_matmul") / "kernels"
    return machine.module(one_unit(folder, KERNELS, [TEXT] * len(KERNELS)), (), 90)


SIZES: dict[TensorKernel, tuple[Sizes, dict[str, Any]]] = {
    SMALL: ((200, 136, 264), {}),
    SLICED: ((40, 40, 264), {"slices": 2, "beta": 2.0}),
    READING: ((200, 136, 136), {"beta": 2.0}),
    ODD: ((136, 200, 136), {}),
    LARGE: ((136, 264, 264), {}),
    CLUSTERED: ((200, 136, 264), {}),
    REGISTERS: ((200, 136, 136), {}),
    ANYWHERE: ((136, 201, 136), {}),
}


def mutants() -> Iterator[tuple[TensorKernel, str, str]]:
    """Yields each kernel as it is, and for each call of the header one that has it, without the call."""
    yield from ((kernel, "", TEXT) for kernel in SIZES)
    start = TEXT.index("add_slices(")
    of_slices = range(start, TEXT.index("\n}\n", start))
    start = TEXT.index("if constexpr (P::IN_REGISTERS)", TEXT.index("multiply_tiles("))
    of_registers = range(start, TEXT.index("            } else {\n                mbarrier_wait(ring.full()", start))
    for name, old, new in changes(TEXT):
        if re.match(r"[\w:.]+(<.*>)?\(.*\); -> ; in", name) and not UNNEEDED.match(name):
            kernel = next((kernel for part, kernel in CALLS.items() if part in name), SMALL)
            kernel = SLICED if TEXT.index(old) in of_slices else kernel
            kernel = REGISTERS if TEXT.index(old) in of_registers else kernel
            yield kernel, name, TEXT.replace(old, new)


MUTANTS = list(mutants())


@pytest.fixture(scope="module")
def mutated(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> EmulatedModule:
    """All mutants, with their numbers."""
    folder = tmp_path_factory.mktemp("mutated_matmul") / "kernels"
    kernels, _, texts = zip(*MUTANTS)
    return machine.module(one_unit(folder, kernels, texts, STAGES), (), 90)


class Product:
    """The arrays of a product in an emulated memory, whose rows are longer than they are read.

    Args:
        kernel: The kernel.
        sizes: M, N and K.
        batch: Matrices of A; B has one for all if ``is_shared``.
    """

    def __init__(
        self,
        kernel: TensorKernel,
        sizes: Sizes,
        batch: int = 1,
        *,
        is_shared: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
        factor: float | None = None,
        slices: int = 1,
        stages: int | None = None,
    ) -> None:
        self.kernel, self.memory = kernel, Memory()
        m, n, k = sizes
        rng = np.random.default_rng(sum(sizes))
        a, b = rng.integers(-2, 3, (batch, m, k)), rng.integers(-2, 3, (1 if is_shared else batch, k, n))
        c, bias = rng.integers(-50, 51, (batch, m, n)), rng.integers(-50, 51, n)
        rows, columns = -(-m // (kernel.cluster_m * kernel.tile_m)), -(-n // (kernel.cluster_n * kernel.tile_n))
        tiles = batch * rows * columns
        whole = tiles if slices == 1 else (tiles - 1) // CLUSTERS * CLUSTERS  # at least one has slices
        self.blocks = CLUSTERS * kernel.cluster if kernel.is_persistent else whole + (tiles - whole) * slices
        depth = (-(-k // (slices * kernel.tile_k)) if stages is None else stages) * kernel.tile_k
        self.given = _Arguments(m, n, k, batch, 1, not is_shared, rows, whole, slices, depth, alpha, beta)
        if slices > 1:
            split = (tiles - whole) * kernel.cluster
            sums = np.full(split * slices * kernel.tile_m * kernel.tile_n, np.nan)
            self.given.sums = self.memory.add("sums", stored(sums, accumulator_of(kernel.a)))
            self.given.arrived = self.memory.add("arrived", np.zeros(split, np.int32))
        lines_a, lines_b = (a.swapaxes(1, 2) if kernel.a_along_m else a), (b if kernel.b_along_n else b.swapaxes(1, 2))
        lines_c = c if kernel.has_beta else np.full(c.shape, np.nan)
        self.maps = [
            self._map(name, lines, dtype, box, swizzle)
            for name, lines, dtype, box, swizzle in zip(
                "abc"[: 2 + kernel.has_map],
                (lines_a, lines_b, lines_c),
                (kernel.a, kernel.a, kernel.out),
                kernel.boxes,
                kernel.swizzles,
            )
        ]
        if len(self.maps) < 3:
            self.maps.append(bytes(len(self.maps[0])))
            row = n + (16 // DTYPE_BYTES[kernel.out] if kernel.has_map else 1)
            longer = np.full((batch, m, row), np.nan)
            longer[:, :, :n] = lines_c
            self.given.c = self.memory.add("c", stored(longer, kernel.out)[:, :, :n])
            self.given.c_row, self.given.c_matrix = row, m * row
        self.expected = alpha * (1.0 if factor is None else factor) * (a.astype(float) @ b.astype(float))
        if kernel.has_beta:
            self.expected += beta * c
        if kernel.bias is not None:
            self.expected += bias
            self.given.bias, self.given.bias_step = self.memory.add("bias", stored(np.repeat(bias, 2), kernel.bias)), 2
        if factor is not None:
            self.given.factor = self.memory.add("factor", np.float32([factor]))
        if kernel.has_function:
            self.expected *= 3

    def _map(self, name: str, values: Values, dtype: DType, box: tuple[int, int], swizzle: int) -> bytes:
        """Adds an array to the memory. Returns its map."""
        size, (matrices, lines, length) = DTYPE_BYTES[dtype], values.shape
        padded = np.zeros((matrices, lines, -(-length * size // 16) * 16 // size + 16 // size))
        padded[:, :, :length] = values
        view = stored(padded, dtype)[:, :, :length]
        address = self.memory.add(name, view)
        return tensor_map(address, size, (length, lines, matrices), view.strides[1::-1], (*box, 1), swizzle)

    def run(self, module: EmulatedModule, number: int) -> Outcome:
        """Launches the kernel with this number."""
        kernel, arguments = self.kernel, [*self.maps, bytes(self.given)]
        memory = self.memory, kernel.shared_bytes
        return module.launch(f"kernel_{number}", self.blocks, kernel.threads, arguments, *memory, kernel.cluster)

    def check(self, module: EmulatedModule, number: int) -> None:
        """Launches the kernel. Its result is exact, but for one rounding to C's type."""
        outcome = self.run(module, number)
        assert outcome.error == ""
        assert np.array_equal(self.result(outcome), rounded(self.expected, self.kernel.out))
        assert not outcome.arrays.get("arrived", np.zeros(1)).any()

    def check_mutant(self, module: EmulatedModule, number: int, removed: str) -> None:
        """Launches a kernel without a call: something shows that. Without a removed call, it is a kernel as it is."""
        if not removed:
            self.check(module, number)
            return
        outcome = self.run(module, number)
        kept = outcome.arrays.get("arrived", np.zeros(1)).any()
        assert outcome.error or kept or not np.array_equal(self.result(outcome), self.expected)

    def result(self, outcome: Outcome) -> Values:
        """C after a launch."""
        c = outcome.arrays["c"]
        return from_bytes(c.tobytes(), self.kernel.out).reshape(c.shape)


def stored(values: Values, dtype: DType) -> Values:
    """Values in the type of an array; bfloat16 as bits."""
    types = {"bfloat16": np.uint16, "float16": np.float16, "float32": np.float32, "float64": np.float64}
    return np.frombuffer(bytearray(to_bytes(values.astype(float), dtype)), types[dtype]).reshape(values.shape)


def test_the_kernels_have_all_types_layouts_and_tiles() -> None:
    assert {kernel.lines for kernel in (*KERNELS, SMALL)} == {*TILES, *REGISTER_TILES}
    assert {kernel.a for kernel in KERNELS} == {"float16", "bfloat16", "float32"}
    assert len({(kernel.a_along_m, kernel.b_along_n) for kernel in KERNELS}) == 4


@each_product(PRODUCTS)
def test_products(module: EmulatedModule, kernel: TensorKernel, sizes: Sizes, options: dict[str, Any]) -> None:
    Product(kernel, sizes, **options).check(module, KERNELS.index(kernel))


@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=[name or "all calls" for _, name, _ in MUTANTS])
def test_each_call_is_needed(mutated: EmulatedModule, number: int) -> None:
    kernel, name, _ = MUTANTS[number]
    sizes, options = SIZES[kernel]
    Product(kernel, sizes, **options).check_mutant(mutated, number, name)


def test_all_instructions_are_emulated() -> None:
    for name in ("tensor_copy", "tensor_store"):
        text = for_host((kernels_folder() / "arch" / f"{name}.cuh").read_text("utf-8"))
        assert "asm" not in text
        assert "not emulated" not in text
