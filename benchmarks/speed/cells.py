"""The measured kernels, the cells of every part, and the peers of each cell."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.speed.builds import ARCH, Build
from warp_tiles.gemm.problem import DTYPE_BYTES

Form = Literal["resident", "loop", "update", "gram"]
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
_RESIDENT_BODY = """    i = wp.tid()
    a = {a}
    b = {b}
    c = wp.tile_zeros(shape=({m}, {n}), dtype=wp.{c}, storage="shared")
    for _ in range(calls):
        wp.tile_matmul(a, b, c{precision})
    wp.tile_store(C[i], c)
"""
_LOOP_BODY = """    i, j = wp.tid()
    c = {start}
    for step in range(A.shape[{along}] // {k}):
        a = {a}
        b = {b}
{product}    wp.tile_store(C, c, offset=(i * {m}, j * {n}))
"""
_GRAM_BODY = """    i = wp.tid()
    c = {start}
    for step in range(0, B.shape[1], {k}):
        j = wp.tile_load(B[i], shape=({k}, {n}), offset=(step, 0), storage="shared")
        e = wp.tile_load(A[i], shape={k}, offset=step)
        w = wp.tile_broadcast(wp.tile_reshape(e, shape=({k}, 1)), shape=({k}, {n}))
        c += wp.tile_matmul(wp.tile_transpose(j), wp.tile_map(wp.mul, w, j))
    wp.tile_store(C[i], c)
"""
_RESIDENT_LOAD = 'wp.tile_load({array}[i % {array}.shape[0]], shape=({rows}, {columns}), storage="shared")'
_LOOP_LOAD = (
    'wp.tile_load({array}, shape=({rows}, {columns}), offset=({row} * {rows}, {column} * {columns}), storage="shared")'
)
_ZEROS = 'wp.tile_zeros(shape=({m}, {n}), dtype=wp.{c}, storage="shared")'
_LOADED = 'wp.tile_load(C, shape=({m}, {n}), offset=(i * {m}, j * {n}), storage="shared")'


@dataclass(frozen=True)
class Cell:
    """One kernel, for every builder of its products.

    Attributes:
        form: ``resident``: A and B stay in shared memory and are multiplied ``calls`` times; ``loop``: tiles of two
            large matrices are loaded and multiplied; ``update``: the loop of a blocked factorization, which loads a
            tile of C and subtracts the products; ``gram``: J^T D J, where the rows of J in B have weights in A.
        a, b, c: Dtypes.
        m, n, k: Sizes of the tiles.
        threads: Threads of a block.
        tf32: True if the product has ``precision="tf32"``.
        backward: True if the adjoint is built.
        main_loop: The setting ``main_loop`` of warp_tiles; empty for its default.
        transposed: The operand that is the transposed view of a tile: ``a`` or ``b``; empty for none.
        alone: True if each product of warp_tiles reads and writes C, as one that is in no loop.
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
    transposed: str = ""
    alone: bool = False

    @property
    def is_batched(self) -> bool:
        """True if each block has matrices of its own."""
        return self.form in ("resident", "gram")

    @property
    def name(self) -> str:
        """The name of the cell, which is valid as a file name."""
        dtypes = f"{self.a}_{self.b}_{self.c}" + ("_tf32" if self.tf32 else "")
        backward = "_backward" if self.backward else ""
        main_loop = "_" + re.sub(r"\W", "_", self.main_loop) if self.main_loop else ""
        transposed = f"_{self.transposed}_transposed" if self.transposed else ""
        transposed += "_alone" if self.alone else ""
        return f"{self.form}{backward}_{dtypes}_{self.m}x{self.n}x{self.k}_t{self.threads}{main_loop}{transposed}"

    def _load(self, name: str) -> str:
        """The expression of an operand."""
        axes = [("i", self.m), ("step", self.k)] if name == "a" else [("step", self.k), ("j", self.n)]
        if name == self.transposed:
            axes.reverse()
        (row, rows), (column, columns) = axes
        text = (_RESIDENT_LOAD if self.form == "resident" else _LOOP_LOAD).format(
            array=name.upper(), row=row, rows=rows, column=column, columns=columns
        )
        return f"wp.tile_transpose({text})" if name == self.transposed else text

    def text(self, side: str) -> str:
        """The Python module with the cell's kernel ``gemm``. For ``scalar`` an option requests Warp's scalar path."""
        options: dict[str, object] = {"block_dim": self.threads, "enable_backward": self.backward}
        if side == "scalar":
            options["enable_mathdx_gemm"] = False
        if self.main_loop:
            options["warp_tiles_main_loop"] = self.main_loop
        if self.alone and side == "tiles":
            options["warp_tiles_register_accumulators"] = False
        dimensions = {"resident": (3, 3, 3), "gram": (2, 3, 3)}.get(self.form, (2, 2, 2))
        types = {"A": self.a, "B": self.b, "C": self.c}
        parameters = [
            f"{name}: wp.array{count}d(dtype=wp.{dtype})" for (name, dtype), count in zip(types.items(), dimensions)
        ]
        if self.form == "resident":
            parameters.append("calls: int")
        precision = ', precision="tf32"' if self.tf32 else ""
        products = {"loop": f"wp.tile_matmul(a, b, c{precision})", "update": "c -= wp.tile_matmul(a, b)"}
        product = f"        {products.get(self.form, '')}\n"
        body = {"resident": _RESIDENT_BODY, "gram": _GRAM_BODY}.get(self.form, _LOOP_BODY)
        body = body.replace("{start}", _LOADED if self.form == "update" else _ZEROS)
        return _HEADER.format(options=options, parameters=", ".join(parameters)) + body.format(
            m=self.m, n=self.n, k=self.k, c=self.c, precision=precision, product=product,
            a=self._load("a"), b=self._load("b"), along=0 if self.transposed == "a" else 1,
        )  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One row of a part: our cell and its peers.

    Attributes:
        part: Name of the part.
        types: Name of the dtypes, as the tables group them.
        ours: The cell as warp_tiles builds it.
        peers: Names and builds of the peers; the fastest of them counts.
        arch: The architecture with whose limits ours is built.
    """

    part: str
    types: Types
    ours: Cell
    peers: tuple[tuple[str, Build[Cell]], ...]
    arch: int = ARCH

    @property
    def name(self) -> str:
        cell = self.ours
        return f"{self.part} {self.types} {cell.m}x{cell.n}x{cell.k} {cell.threads}"

    @property
    def builds(self) -> dict[str, Build[Cell]]:
        """Everything that is built for the row, by the name that the record gives it."""
        return {"tiles": Build(self.ours, "tiles", self.arch), **dict(self.peers)}


@dataclass(frozen=True)
class Part:
    """A table.

    Attributes:
        name: Its name.
        title: Description of the measurements.
        entries: Its rows.
        calls: Products per block (resident).
        blocks: Blocks (resident, gram).
        size: Edge of the square matrices (loop).
        depth: Their K, if it is another (loop); the rows of J (gram).
    """

    name: str
    title: str
    entries: tuple[Entry, ...]
    calls: int = 64
    blocks: int = 2112
    size: int = 4096
    depth: int = 0

    def flops(self, cell: Cell) -> int:
        """Floating-point operations of one launch. An adjoint counts as three products, as Warp replays the first."""
        products = 3 if cell.backward else 1
        if not cell.is_batched:
            return products * 2 * self.size**2 * (self.depth or self.size)
        return products * 2 * cell.m * cell.n * (self.depth or cell.k * self.calls) * self.blocks

    @property
    def whole(self) -> bool:
        """True if its rows multiply whole arrays, as cuBLAS does."""
        return any(entry.ours.form == "loop" for entry in self.entries)


Shape = tuple[int, int, int, int]  # m, n, k and threads


def _shapes(*texts: str) -> tuple[Shape, ...]:
    """Shapes from texts such as ``64x64x32 128``."""
    return tuple(tuple(int(number) for number in re.split("[x ]", text)) for text in texts)  # type: ignore[misc]


def with_threads(shapes: str, *threads: int) -> tuple[Shape, ...]:
    """Shapes such as ``64x64x32``, with a space between, each with several numbers of threads."""
    return _shapes(*(f"{shape} {count}" for shape in shapes.split() for count in threads))


_RESIDENT = _shapes("32x32x32 128", "64x64x64 64", "64x64x64 128", "64x64x64 256", "128x128x32 128", "128x128x32 256")
_SMALL = with_threads(
    "4x4x4 6x6x6 8x8x8 12x12x12 16x16x16 24x24x24 32x32x32 4x4x32 32x4x4 6x6x24 1x32x32 24x1x24 8x32x16", 32, 64, 128
)
# few rows and columns, and a long sum
_DEEP = with_threads("16x16x128 16x16x256 16x16x512 32x16x256 32x32x128 32x32x256", 64, 128, 256)
_UPDATE = with_threads("16x16x16 32x32x32 64x64x32", 64, 128, 256)  # blocks of solvers
_LOOPS: dict[Types, tuple[Shape, ...]] = {
    "fp16": _shapes("64x64x64 128", "64x64x32 128", "128x64x32 128", "128x128x32 128", "128x128x32 256",
                    "128x128x64 128", "128x128x64 256", "128x256x64 256"),
    "tf32": _shapes("64x64x32 128", "64x64x64 128", "64x128x32 128", "128x64x32 128", "128x128x16 128",
                    "128x128x32 128", "128x128x32 256", "128x256x32 256", "256x128x32 256"),
    "fp32": _shapes("64x64x32 64", "64x64x32 128", "64x64x64 128", "64x64x64 256", "64x128x32 128", "128x64x32 64",
                    "128x64x32 128", "128x128x16 256", "128x128x32 128", "128x128x32 256", "128x256x16 256"),
    "fp64": _shapes("64x64x16 128", "64x64x32 128", "64x64x32 64", "64x64x64 128", "128x64x16 128", "128x64x16 256",
                    "128x128x16 256"),
}  # fmt: skip
_LOOPS["bf16"] = _LOOPS["fp16"]
_BACKWARD_LOOPS: dict[Types, tuple[Shape, ...]] = {
    "fp16": _shapes("64x64x64 128", "64x64x32 128", "128x64x32 128", "128x128x64 256"),
    "tf32": _shapes("64x64x32 128", "64x64x64 128"),
    "fp32": _shapes("64x64x32 128", "64x64x64 256"),
    "fp64": _shapes("64x64x16 128", "64x64x32 128"),
}
_BACKWARD_LOOPS["bf16"] = _BACKWARD_LOOPS["fp16"]
_SCALAR: tuple[Types, ...] = ("fp32", "fp64")  # which Warp's scalar path multiplies


def _part(
    name: str, title: str, form: Form, shapes: Mapping[Types, tuple[Shape, ...]], *sides: Side,
    transposed: str = "", arch: int = ARCH, alone: bool = False, **sizes: int,
) -> Part:  # fmt: skip
    """A part whose rows have the peers ``sides``, and adjoints if its name says so."""
    entries, backward = [], name.startswith("backward")
    for types in (types for types in DTYPES if types in shapes):
        ab, c = DTYPES[types]
        for m, n, k, threads in shapes[types]:
            main_loop = "mma" if arch != ARCH else ""
            cell = Cell(form, ab, ab, c, m, n, k, threads, types == "tf32", backward, main_loop, transposed, alone)
            peers = tuple((side, Build(_peer(cell), side, arch)) for side in sides or ("warp",))
            entries.append(Entry(name, types, cell, peers, arch))
    return Part(name, title, tuple(entries), **sizes)


def _peer(cell: Cell) -> Cell:
    """Returns the cell that Warp builds. It refuses the adjoint of bfloat16, and float16 takes the same time."""
    cell = replace(cell, main_loop="")
    if cell.backward and "bfloat16" in (cell.a, cell.b):
        return replace(cell, a="float16", b="float16")
    return cell


_OF_TILES = dict.fromkeys(DTYPES, _RESIDENT)
_OF_TILES["fp64"] = tuple(shape for shape in _RESIDENT if shape[:2] != (128, 128))  # these do not fit shared memory
_OF_SMALL = dict.fromkeys(_SCALAR, _SMALL)
_BOTH: tuple[Side, ...] = ("warp", "scalar")

# products of clients that opt out of MathDx
_FEW, _MANY = (32, 128), (32, 64, 128, 256)
_OPTED_OUT: dict[Types, tuple[Shape, ...]] = {
    "fp32": with_threads("4x4x4 6x6x6 8x8x8 12x12x12 16x16x16 16x16x1 16x1x16 6x6x24 12x32x12 8x32x16", *_MANY),
    "fp64": with_threads("6x6x6 12x12x12 16x16x16 16x1x16", *_MANY[:3]),
    "fp16": with_threads("8x8x8 16x16x16", *_FEW),
}
_OPTED_OUT_LARGE: dict[Types, tuple[Shape, ...]] = {
    "fp32": with_threads("24x24x24 27x27x16 32x32x32 32x32x16 48x48x16 48x48x48 64x64x16 64x64x64 32x1x32", *_MANY),
    "fp64": with_threads("24x24x24 32x32x32 48x48x16 64x64x64", *_MANY[:3]),
    "fp16": with_threads("32x32x32 48x48x16 64x64x64", *_FEW),
}
_OPTED_OUT_BACKWARD: dict[Types, tuple[Shape, ...]] = {"fp32": with_threads("6x6x6 16x16x16 16x1x16 32x32x32", *_FEW)}
_OPTED_OUT_LOOPS: dict[Types, tuple[Shape, ...]] = {
    "fp32": with_threads("16x16x16 32x32x16 64x64x16", *_MANY[:3]),
    "fp64": with_threads("16x16x16 32x32x16", *_FEW),
}
_OPTED_OUT_HERE = (_OPTED_OUT, _OPTED_OUT_LARGE, _OPTED_OUT_LOOPS, _OPTED_OUT_BACKWARD)
_OPTED_OUT_ELSEWHERE: tuple[dict[Types, tuple[Shape, ...]], ...] = (  # with the limits of other architectures
    {"fp32": with_threads("6x6x6 8x8x8 16x16x16 16x1x16", *_FEW), "fp16": _shapes("16x16x16 32")},
    {"fp32": with_threads("24x24x24 32x32x32 48x48x48 64x64x16 64x64x64 32x1x32", *_FEW)},
    {"fp32": with_threads("16x16x16 32x32x16 64x64x16", *_FEW)},
    {},
)


def _opted_out() -> Iterator[Part]:
    """Products beside Warp's scalar path, with each operand transposed, and with the limits of another architecture."""
    for transposed, arch in itertools.product(("", "a", "b"), (ARCH, 89)):
        end = (f"_{transposed}_transposed" if transposed else "") + (f"_as_sm_{arch}" if arch != ARCH else "")
        small, large, loops, backward = _OPTED_OUT_HERE if arch == ARCH else _OPTED_OUT_ELSEWHERE
        about = end.replace("_", " ")
        kinds: tuple[tuple[str, Form, Mapping[Types, tuple[Shape, ...]], dict[str, int]], ...] = (
            ("opted_out", "resident", small, {"calls": 128}),
            ("opted_out_large", "resident", large, {"calls": 16}),
            ("opted_out_loop", "update", loops, {"size": 2048, "depth": 64}),
            ("backward_opted_out", "resident", backward, {"calls": 32}),
        )
        for name, form, shapes, sizes in kinds:
            yield _part(
                name + end, name.replace("_", " ") + about, form, shapes, "scalar",
                transposed=transposed, arch=arch, alone=form == "resident", **sizes,
            )  # fmt: skip


PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        _part("resident", "64 products of tiles that stay in shared memory", "resident", _OF_TILES),
        _part("small", "small products of tiles that stay in shared memory", "resident", _OF_SMALL, *_BOTH,
              calls=1024),
        _part("deep", "few rows and columns, long sums: 64 products of tiles that stay in shared memory", "resident",
              dict.fromkeys(DTYPES, _DEEP)),
        _part("loop", "4096 x 4096 x 4096: load, load, multiply", "loop", _LOOPS),
        _part("update", "2048 x 2048 x 2048: load, load, subtract the product", "update",
              dict.fromkeys(_SCALAR, _UPDATE), *_BOTH, size=2048),
        _part("gram", "J^T D J of 2112 matrices J of 128 rows", "gram",
              {"fp32": with_threads("32x32x16 32x32x32 64x64x16 64x64x32", 64, 128)}, depth=128),
        _part("backward_resident", "64 products and their adjoints, replayed by Warp", "resident", _OF_TILES),
        _part("backward_small", "small products and their adjoints, replayed by Warp", "resident", _OF_SMALL, *_BOTH,
              calls=256),
        _part("backward_loop", "adjoint of 4096 x 4096 x 4096: load, load, multiply", "loop", _BACKWARD_LOOPS),
        *_opted_out(),
    )
}  # fmt: skip
ENTRIES = tuple(entry for part in PARTS.values() for entry in part.entries)
