"""The question of :func:`warp_tiles.matmul` to its chooser, the answer, and what follows from both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from warp_tiles.gemm.dtypes import DTYPE_BYTES, DType
from warp_tiles.gemm.hardware import RESERVED_SHARED_BYTES, multiprocessor
from warp_tiles.heuristics.operand_copies import ALIGNED

Operand = Literal["a", "b"]
Tier = tuple[str, str, str, str, int, int, int, int]


@dataclass(frozen=True)
class MatmulProblem:
    """A product of a batch of matrices, as the device computes it.

    Attributes:
        m, n, k: Rows and columns of C, and the elements that are summed.
        batch: The number of matrices.
        a, b, out: Element types.
        a_transposed, b_transposed: True if the operand's columns are contiguous in memory, and not its rows.
        tf32: True for tensor cores that round float32 to tf32.
        summed: True if C is one matrix, the sum over the batch.
        in_parts: The operand that is a sum of two arrays, so that each step of the loop has two products, or None.
        has_beta: True if C is read.
        a_alignment, b_alignment: The largest power of two, up to 16, that divides the addresses of the operand's
            contiguous lines; 0 if none is contiguous.
        a_shared, b_shared: True if all matrices of the batch have the same operand.
        always_loops: True if Warp writes a loop over tiles into each kernel, which takes registers.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a: DType = "float32"
    b: DType = "float32"
    out: DType = "float32"
    a_transposed: bool = False
    b_transposed: bool = False
    tf32: bool = False
    summed: bool = False
    in_parts: Operand | None = None
    has_beta: bool = False
    a_alignment: int = ALIGNED
    b_alignment: int = ALIGNED
    a_shared: bool = False
    b_shared: bool = False
    always_loops: bool = False

    @property
    def sums(self) -> DType:
        """Element type of the sums."""
        return "float64" if self.a == "float64" else "float32"

    @property
    def layout(self) -> str:
        """The layouts of A and B in the letters of BLAS: ``n``, or ``t`` for a transposed operand."""
        return "nt"[self.a_transposed] + "nt"[self.b_transposed]

    @property
    def text(self) -> str:
        """The product in words, e.g. ``float16 nn 1024 x 64x64x64`` for a batch of 1024."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{'tf32' if self.tf32 else self.a} {self.layout} {batch}{self.m}x{self.n}x{self.k}"

    @property
    def tier(self) -> Tier:
        """The entry of a table of measured configurations: types, layout, and sizes rounded to powers of two.

        bfloat16 has the entries of float16, because it has the same instructions and sizes.
        """
        kind, b, out = (
            "float16" if name == "bfloat16" else name for name in ("tf32" if self.tf32 else self.a, self.b, self.out)
        )
        sizes = (round(math.log2(max(1, size))) for size in (self.m, self.n, self.k, self.batch))
        return (kind, b, out, self.layout, *sizes)  # type: ignore[return-value]  # four sizes


@dataclass(frozen=True)
class MatmulConfig:
    """How a product is computed.

    Attributes:
        tile_m, tile_n: Rows and columns of C that one block computes.
        tile_k: Elements of K in one step of its loop.
        threads: Threads of a block.
        split_k: The number of slices of K. Several blocks compute one tile of C, each from one slice.
        group: Blocks with consecutive numbers compute ``group`` rows of tiles column by column, so that the L2 cache
            serves their loads.
        copies_a, copies_b: True if the operand is first copied to lines that are aligned.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    threads: int
    split_k: int = 1
    group: int = 8
    copies_a: bool = False
    copies_b: bool = False

    def to_json(self) -> dict[str, int]:
        """The configuration as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> MatmulConfig:
        """Inverse of :meth:`to_json`."""
        m, n, k, threads, split_k, group = (
            int(values[name]) for name in ("tile_m", "tile_n", "tile_k", "threads", "split_k", "group")
        )
        a, b = (bool(values.get(name, False)) for name in ("copies_a", "copies_b"))  # older records lack them
        return MatmulConfig(m, n, k, threads, split_k, group, a, b)


WGMMA_ROWS = 64  # of a tile, or of its transpose, that one instruction multiplies
_MARGIN_BYTES = 2048  # shared memory for a bias and for alignment


def kind_of(problem: MatmulProblem) -> str:
    """The arithmetic of a product: ``float16`` (bfloat16 included), ``tf32``, ``float32`` or ``float64``."""
    if problem.tf32:
        return "tf32"
    wider = max((problem.a, problem.b), key=DTYPE_BYTES.__getitem__)
    return "float16" if wider == "bfloat16" else wider


def shared_bytes(problem: MatmulProblem, config: MatmulConfig) -> int:
    """Shared memory of a block in bytes: the tiles of A, B and C."""
    a = config.tile_m * config.tile_k * DTYPE_BYTES[problem.a] * (1 + (problem.in_parts == "a"))
    b = config.tile_n * config.tile_k * DTYPE_BYTES[problem.b] * (1 + (problem.in_parts == "b"))
    return a + b + config.tile_m * config.tile_n * DTYPE_BYTES[problem.sums] + _MARGIN_BYTES


def has_wgmma(problem: MatmulProblem, arch: int) -> bool:
    kind = kind_of(problem)
    return arch == 90 and (kind == "float16" or (kind == "tf32" and problem.layout != "tn"))


def resident_blocks(problem: MatmulProblem, config: MatmulConfig, arch: int) -> int:
    """Blocks that one multiprocessor runs at a time, as far as shared memory and threads decide."""
    by_memory = _fitting(shared_bytes(problem, config), arch)
    return max(1, min(by_memory, multiprocessor(arch).threads // config.threads, multiprocessor(arch).blocks))


def _fitting(shared: int, arch: int) -> int:
    """Blocks with so many bytes of shared memory that one multiprocessor has room for."""
    return multiprocessor(arch).shared_bytes // (shared + RESERVED_SHARED_BYTES)


def blocks_of(problem: MatmulProblem, config: MatmulConfig) -> int:
    """The number of blocks."""
    tiles = ceil_div(problem.m, config.tile_m) * ceil_div(problem.n, config.tile_n)
    return tiles * config.split_k * problem.batch


def blocks_of_multiprocessor(problem: MatmulProblem, config: MatmulConfig, multiprocessors: int) -> int:
    """Blocks of one multiprocessor."""
    return ceil_div(blocks_of(problem, config), multiprocessors)


def steps_of(problem: MatmulProblem, config: MatmulConfig) -> int:
    """Steps of a block's loop."""
    return ceil_div(ceil_div(problem.k, config.tile_k), config.split_k)


def ceil_div(size: int, part: int) -> int:
    return -(-size // part)
