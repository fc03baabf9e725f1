"""The measured kernels, the cells of every part, and the peers of each cell."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.speed.builds import Build
from warp_tiles.gemm.problem import DTYPE_BYTES

Form = Literal["resident", "loop", "update"]
Side = Literal["tiles", "warp", "scalar"]
Types = Literal["fp16", "bf16", "tf32", "fp32", "fp64"]

DTYPES: dict[Types, tuple[str, str]] = {  # dtype of A and B, and dtype of C
    "fp16": ("float16", "float32"),
    "bf16": ("bfloat16", "float32"),
    "tf32": ("float32", "float32"),
    "fp32": ("float32", "float32"),
    "fp64": ("float64", "float64"),
}

BYTES = {str(name): size for name, size in DTYPE_BYTES.items()}

_HEADER = """import warp as wp

wp.set_module_options({options})


@wp.kernel
def gemm({parameters}):
"""
_RESIDENT = """    i = wp.tid()
    a = wp.tile_load(A[i % A.shape[0]], shape=({m}, {k}), storage="shared")
    b = wp.tile_load(B[i % B.shape[0]], shape=({k}, {n}), storage="shared")
    c = wp.tile_zeros(shape=({m}, {n}), dtype=wp.{c}, storage="shared")
    for _ in range(calls):
        wp.tile_matmul(a, b, c{precision})
    wp.tile_store(C[i], c)
"""
_LOOP = """    i, j = wp.tid()
    c = {start}
    for step in range(A.shape[1] // {k}):
        a = wp.tile_load(A, shape=({m}, {k}), offset=(i * {m}, step * {k}), storage="shared")
        b = wp.tile_load(B, shape=({k}, {n}), offset=(step * {k}, j * {n}), storage="shared")
{product}    wp.tile_store(C, c, offset=(i * {m}, j * {n}))
"""
_ZEROS = 'wp.tile_zeros(shape=({m}, {n}), dtype=wp.{c}, storage="shared")'
_LOADED = 'wp.tile_load(C, shape=({m}, {n}), offset=(i * {m}, j * {n}), storage="shared")'


@dataclass(frozen=True)
class Cell:
    """One kernel, for every builder of its products.

    Attributes:
        form: ``resident``: A and B stay in shared memory and are multiplied ``calls`` times; ``loop``: tiles of two
            large matrices are loaded and multiplied; ``update``: the loop of a blocked factorization, which loads a
            tile of C and subtracts the products.
        a, b, c: Dtypes.
        m, n, k: Sizes of the tiles.
        threads: Threads of a block.
        tf32: True if the product has ``precision="tf32"``.
        backward: True if the adjoint is built.
        main_loop: The setting ``main_loop`` of warp_tiles; empty for its default.
    """

    form: Form
    a: str
    b: str
    c: str
    m: int
    n: int
    k: int
    threads: int
    tf32: bool = False
    backward: bool = False
    main_loop: str = ""

    @property
    def name(self) -> str:
        """The name of the cell, which is valid as a file name."""
        dtypes = f"{self.a}_{self.b}_{self.c}" + ("_tf32" if self.tf32 else "")
        backward = "_backward" if self.backward else ""
        main_loop = "_" + re.sub(r"\W", "_", self.main_loop) if self.main_loop else ""
        return f"{self.form}{backward}_{dtypes}_{self.m}x{self.n}x{self.k}_t{self.threads}{main_loop}"

    def text(self, side: str) -> str:
        """The Python module with the cell's kernel ``gemm``. For ``scalar`` an option requests Warp's scalar path."""
        options: dict[str, object] = {"block_dim": self.threads, "enable_backward": self.backward}
        if side == "scalar":
            options["enable_mathdx_gemm"] = False
        if self.main_loop:
            options["warp_tiles_main_loop"] = self.main_loop
        dimensions = "3d" if self.form == "resident" else "2d"
        types = {"A": self.a, "B": self.b, "C": self.c}
        parameters = [f"{name}: wp.array{dimensions}(dtype=wp.{dtype})" for name, dtype in types.items()]
        if self.form == "resident":
            parameters.append("calls: int")
        precision = ', precision="tf32"' if self.tf32 else ""
        products = {"loop": f"wp.tile_matmul(a, b, c{precision})", "update": "c -= wp.tile_matmul(a, b)"}
        product = f"        {products.get(self.form, '')}\n"
        body = _RESIDENT if self.form == "resident" else _LOOP
        body = body.replace("{start}", _LOADED if self.form == "update" else _ZEROS)
        return _HEADER.format(options=options, parameters=", ".join(parameters)) + body.format(
            m=self.m, n=self.n, k=self.k, c=self.c, precision=precision, product=product
        )


@dataclass(frozen=True)
class Entry:
    """One row of a part: our cell and its peers.

    Attributes:
        part: Name of the part.
        types: Name of the dtypes, as the tables group them.
        ours: The cell as warp_tiles builds it.
        peers: Names and builds of the peers; the fastest of them counts.
    """

    part: str
    types: Types
    ours: Cell
    peers: tuple[tuple[str, Build[Cell]], ...]

    @property
    def name(self) -> str:
        cell = self.ours
        return f"{self.part} {self.types} {cell.m}x{cell.n}x{cell.k} {cell.threads}"

    @property
    def builds(self) -> dict[str, Build[Cell]]:
        """Everything that is built for the row, by the name that the record gives it."""
        return {"tiles": Build(self.ours, "tiles"), **dict(self.peers)}


@dataclass(frozen=True)
class Part:
    """A table.

    Attributes:
        name: Its name.
        title: Description of the measurements.
        entries: Its rows.
        calls: Products per block (resident).
        blocks: Blocks (resident).
        size: Edge of the square matrices (loop).
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    calls: int = 64
    blocks: int = 2112
    size: int = 4096

    @property
    def whole(self) -> bool:
        """True if its rows multiply whole arrays, as cuBLAS does."""
        return any(entry.ours.form == "loop" for entry in self.entries)


def _cell(form: Form, types: Types, m: int, n: int, k: int, threads: int, backward: bool = False) -> Cell:
    ab, c = DTYPES[types]
    return Cell(form, ab, ab, c, m, n, k, threads, types == "tf32", backward)


def _peer(cell: Cell) -> Cell:
    """Returns the cell that Warp builds. It refuses the adjoint of bfloat16, and float16 takes the same time."""
    if cell.backward and "bfloat16" in (cell.a, cell.b):
        return replace(cell, a="float16", b="float16")
    return cell


def _entry(part: str, types: Types, cell: Cell, *sides: Side) -> Entry:
    peers = tuple((side, Build(_peer(cell), side)) for side in sides)
    return Entry(part, types, cell, peers)


_RESIDENT_SHAPES = (
    (32, 32, 32, 128),
    (64, 64, 64, 64),
    (64, 64, 64, 128),
    (64, 64, 64, 256),
    (128, 128, 32, 128),
    (128, 128, 32, 256),
)
_SMALL_SHAPES = (
    *((size, size, size) for size in (4, 6, 8, 12, 16, 24, 32)),
    (4, 4, 32),
    (32, 4, 4),
    (6, 6, 24),
    (1, 32, 32),
    (24, 1, 24),
    (8, 32, 16),
)
_SMALL_TYPES: tuple[Types, ...] = ("fp32", "fp64")
# few rows and columns, and a long sum
_DEEP_SHAPES = ((16, 16, 128), (16, 16, 256), (16, 16, 512), (32, 16, 256), (32, 32, 128), (32, 32, 256))
_LOOP_SHAPES: dict[Types, tuple[tuple[int, int, int, int], ...]] = {
    "fp16": (
        (64, 64, 64, 128),
        (64, 64, 32, 128),
        (128, 64, 32, 128),
        (128, 128, 32, 128),
        (128, 128, 32, 256),
        (128, 128, 64, 128),
        (128, 128, 64, 256),
        (128, 256, 64, 256),
    ),
    "tf32": (
        (64, 64, 32, 128),
        (64, 64, 64, 128),
        (64, 128, 32, 128),
        (128, 64, 32, 128),
        (128, 128, 16, 128),
        (128, 128, 32, 128),
        (128, 128, 32, 256),
        (128, 256, 32, 256),
        (256, 128, 32, 256),
    ),
    "fp32": (
        (64, 64, 32, 64),
        (64, 64, 32, 128),
        (64, 64, 64, 128),
        (64, 64, 64, 256),
        (64, 128, 32, 128),
        (128, 64, 32, 64),
        (128, 64, 32, 128),
        (128, 128, 16, 256),
        (128, 128, 32, 128),
        (128, 128, 32, 256),
        (128, 256, 16, 256),
    ),
    "fp64": (
        (64, 64, 16, 128),
        (64, 64, 32, 128),
        (64, 64, 32, 64),
        (64, 64, 64, 128),
        (128, 64, 16, 128),
        (128, 64, 16, 256),
        (128, 128, 16, 256),
    ),
}
_LOOP_SHAPES["bf16"] = _LOOP_SHAPES["fp16"]
# blocks of solvers
_UPDATE_SHAPES = ((16, 16, 16), (32, 32, 32), (64, 64, 32))
_LOOP_BACKWARD_SHAPES: dict[Types, tuple[tuple[int, int, int, int], ...]] = {
    "fp16": ((64, 64, 64, 128), (64, 64, 32, 128), (128, 64, 32, 128), (128, 128, 64, 256)),
    "bf16": ((64, 64, 64, 128), (64, 64, 32, 128), (128, 64, 32, 128), (128, 128, 64, 256)),
    "tf32": ((64, 64, 32, 128), (64, 64, 64, 128)),
    "fp32": ((64, 64, 32, 128), (64, 64, 64, 256)),
    "fp64": ((64, 64, 16, 128), (64, 64, 32, 128)),
}


def _resident(part: str, backward: bool) -> Iterator[Entry]:
    for types in DTYPES:
        for m, n, k, threads in _RESIDENT_SHAPES:
            if types != "fp64" or (m, n) != (128, 128):  # fp64 tiles of 128x128 do not fit shared memory
                yield _entry(part, types, _cell("resident", types, m, n, k, threads, backward), "warp")


def _deep() -> Iterator[Entry]:
    for types, (m, n, k), threads in itertools.product(DTYPES, _DEEP_SHAPES, (64, 128, 256)):
        yield _entry("deep", types, _cell("resident", types, m, n, k, threads), "warp")


def _small(part: str, backward: bool = False) -> Iterator[Entry]:
    for types, (m, n, k), threads in itertools.product(_SMALL_TYPES, _SMALL_SHAPES, (32, 64, 128)):
        yield _entry(part, types, _cell("resident", types, m, n, k, threads, backward), "warp", "scalar")


def _loop(part: str, shapes: dict[Types, tuple[tuple[int, int, int, int], ...]], backward: bool) -> Iterator[Entry]:
    for types in DTYPES:
        for m, n, k, threads in shapes[types]:
            yield _entry(part, types, _cell("loop", types, m, n, k, threads, backward), "warp")


def _update() -> Iterator[Entry]:
    for types, (m, n, k), threads in itertools.product(_SMALL_TYPES, _UPDATE_SHAPES, (64, 128, 256)):
        yield _entry("update", types, _cell("update", types, m, n, k, threads), "warp", "scalar")


PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        Part("resident", "64 products of tiles that stay in shared memory", tuple(_resident("resident", False))),
        Part("small", "small products of tiles that stay in shared memory", tuple(_small("small")), calls=1024),
        Part(
            "deep",
            "few rows and columns, long sums: 64 products of tiles that stay in shared memory",
            tuple(_deep()),
        ),
        Part("loop", "4096 x 4096 x 4096: load, load, multiply", tuple(_loop("loop", _LOOP_SHAPES, False))),
        Part("update", "2048 x 2048 x 2048: load, load, subtract the product", tuple(_update()), size=2048),
        Part(
            "backward_resident",
            "64 products and their adjoints, replayed by Warp",
            tuple(_resident("backward_resident", True)),
        ),
        Part(
            "backward_small",
            "small products and their adjoints, replayed by Warp",
            tuple(_small("backward_small", True)),
            calls=256,
        ),
        Part(
            "backward_loop",
            "adjoint of 4096 x 4096 x 4096: load, load, multiply",
            tuple(_loop("backward_loop", _LOOP_BACKWARD_SHAPES, True)),
        ),
    )
}
ENTRIES = tuple(entry for part in PARTS.values() for entry in part.entries)
