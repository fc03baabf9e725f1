"""The kernel of :func:`warp_tiles.matmul` that Warp does not generate: its constants, its memory and its source. Pure.

It is ``kernels/matmul/tensor_matmul.cuh``, for sm_90a. ``lane_kernel.py`` has the one of float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from warp_tiles.gemm.hardware import WGMMA_ARCH, multiprocessor
from warp_tiles.gemm.problem import DTYPE_BYTES, DTYPES, DType, accumulator_of

ARCH_SUFFIX = "a"
TARGET = f"sm_{WGMMA_ARCH}{ARCH_SUFFIX}"
THREADS = 384  # one warpgroup that loads and two that multiply
ROW_BYTES = 128  # of a stage; a line of the caches has as many
# rows and columns; of the transpose if instructions compute that, with fewer if an operand passes through registers
TILES = (
    *((128, 256), (256, 160), (128, 192), (192, 128), (128, 160), (128, 128), (192, 96), (64, 192), (192, 64)),
    *((128, 96), (64, 160), (64, 128), (128, 64), (64, 96), (64, 64)),
)
REGISTER_TILES = (
    *((128, 256), (256, 128), (128, 128), (64, 192), (128, 96), (64, 160), (64, 128), (128, 64), (64, 96)),
    (64, 64),
)
TILE_PARTS = 64, 32  # rows and columns by which tiles differ: one that exceeds C by more is never needed
# estimates, fitted to about 7,000 launches on H200s (not on record). Of a step, which is 128 bytes of K: an element of
# a tile; a row that a multiprocessor receives; the least time; a row that is loaded, by the bytes to which its array's
# rows are aligned; factors of the second and the third for an operand that passes through registers; and the exponent
# of these limits, which overlap
_PRODUCT_US, _RECEIVED_US, _STEP_US = 2.0e-5, 7.9e-4, 0.155
_ROW_US = {128: 9.5e-4, 64: 1.6e-3, 32: 1.6e-3, 16: 2.5e-3}
_REGISTERS_SLOW, _STEP_OVERLAP = (1.6, 1.5), 8
_START_US = 5.3  # of a launch, its first loads and its last stores
_CLUSTER_US = 0.94  # ... of clusters, more
_STORED = 5.0e4  # bytes of C that a multiprocessor stores in 1 us while it multiplies nothing
_STORED_ANYWHERE = 1.7e4  # ... at most, if elements are stored one by one
_STORED_ELEMENTS = 4.0e3  # elements that one warpgroup stores so in 1 us, at most
_ADD_US, _ADDED = 2.0, 2.5e4  # of slices: the time until they are added, and the bytes that are added in 1 us
MEMORY = 4.3e6  # bytes that the whole GPU reads or writes in 1 us
_OVERLAP = 3  # exponent of limits that overlap
_MOST_SUMS = 128 * 128  # of a tile with a function, and in this kernel of one with slices: both need registers
_MOST_OWN_SUMS = 128 * 192  # of a tile that one warpgroup computes
_SUM_BYTES = _TF32_BYTES = 4
_CLUSTERS = (1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)  # blocks along M and N
L2_BYTES = 50 << 20  # of an H100 and of an H200
_PAIR = 2  # blocks: each multiprocessor has a neighbour
STEPS_OF_SLICE = 4  # of 128 bytes of K, at least
ALIGNMENT, BARRIER_BYTES = 1024, 8
ROWS = 64  # of C, that a warpgroup stores at a time
_GROUP_WARPS = 4  # of a warpgroup
_CHUNKS = 2 * 2  # of two warpgroups
_GROUP_BYTES = 3 * BARRIER_BYTES + 4  # of a warpgroup: mbarriers of its turn and of two chunks, and a flag


@dataclass(frozen=True)
class Slices:
    """The work of a launch: whole tiles, and the last ones in slices of K. A cluster's tiles count as one.

    Attributes:
        whole: Tiles without slices.
        split: Tiles with slices.
        count: The slices of each of them.
        stages: The stages of each slice; the last slices of a tile may have fewer.
        is_uneven: True if each of them has a long slice and a short one.
    """

    whole: int
    split: int = 0
    count: int = 1
    stages: int = 0
    is_uneven: bool = False

    @property
    def items(self) -> int:
        """Tiles and slices."""
        return self.whole + self.split * self.count


NO_WORK = Slices(0)


def in_slices(tiles: int, count: int, steps: int, resident: int, multiprocessors: int) -> Slices:
    """The work of tiles with so many steps of K, of which those of the last wave have so many slices.

    Slices are even, with one exception: two slices of a tile, if the tiles leave fewer blocks free than there are
    multiprocessors, so that even second slices would need a second wave. Then first slices are long, and each free
    block computes several short second slices one after another, each with about one stage more for its start.
    """
    split = tiles % resident
    free = resident - split
    if count == 2 and 2 * split > resident and free < multiprocessors:
        several = -(-split // free)
        second = (steps - several) // (several + 1)
        if second >= STEPS_OF_SLICE:
            return Slices(tiles - split, split, count, steps - second, is_uneven=True)
    return Slices(tiles - split, split, count, -(-steps // count))


def resident_clusters(multiprocessors: int, kernel: TensorKernel) -> int:
    """About the clusters of a kernel that a GPU runs at a time.

    Those of four blocks fill 120 of an H200's 132 multiprocessors.
    """
    usable = multiprocessors if kernel.cluster <= _PAIR else multiprocessors * 10 // 11
    return max(1, usable * kernel.resident_blocks // kernel.cluster)


def overlapped(*limits_us: float, exponent: int = _OVERLAP) -> float:
    """Estimated time of work that several units limit: limits that take x and y alone take (x^3 + y^3)^(1/3)."""
    return math.pow(sum(math.pow(limit, exponent) for limit in limits_us), 1 / exponent)


def _aligned(length_bytes: int) -> int:
    """The bytes to which rows without gaps are aligned, of those that count."""
    return max(min(_ROW_US), math.gcd(ROW_BYTES, length_bytes))


def needs_clusters(lengths_bytes: tuple[int, int]) -> bool:
    """True if most rows of a stage lie in two lines of the caches, by the lengths of the rows of A and of B."""
    return any(_aligned(length) == min(_ROW_US) for length in lengths_bytes)


def clusters(
    lengths_bytes: tuple[int, int], tiles: tuple[int, int], operand_bytes: tuple[int, int]
) -> Sequence[tuple[int, int]]:
    """The clusters that a launch may have, by the lengths of the rows of A and of B, the tiles along M and N, and the
    sizes of A and of B.

    If rows need no clusters, a pair pays where its two tiles alone read an operand that the L2 cache does not hold,
    so that it is read once: always for A, and for B by estimate.
    """
    if needs_clusters(lengths_bytes):
        return _CLUSTERS
    shares_a, shares_b = (two == 2 and size > L2_BYTES for two, size in zip(tiles[::-1], operand_bytes))
    return (1, 2) if shares_a else (1, 1), *([(2, 1)] if shares_b else [])


@dataclass(frozen=True)
class TensorKernel:
    """The constants of a kernel. Equal kernels have the same machine code.

    Attributes:
        a: Element type of A and B. This kernel multiplies float32 as tf32.
        out: Element type of C.
        tile_m, tile_n: Rows and columns of C that a block computes at a time.
        a_along_m, b_along_n: True if the operand's elements are adjacent along M or N, else they are along K.
        has_beta: True if C is read.
        bias: Element type of the bias; None without one.
        has_slices: True if several blocks may compute slices of K of a tile.
        cluster_m, cluster_n: Blocks along M and N that share their loads.
        has_function: True if each element of C is the result of a function of the user, of one element of its sums.
        has_map: False if C's elements are stored one by one, because its rows begin anywhere.
    """

    a: DType
    out: DType
    tile_m: int
    tile_n: int
    a_along_m: bool = False
    b_along_n: bool = False
    has_beta: bool = False
    bias: DType | None = None
    has_function: bool = False
    has_slices: bool = False
    cluster_m: int = 1
    cluster_n: int = 1
    has_map: bool = True

    header: ClassVar[str] = "matmul/tensor_matmul.cuh"
    entry: ClassVar[str] = "matmul"  # the function of the header
    registers: ClassVar[int] = 168  # that a thread starts with
    is_persistent: ClassVar[bool] = True  # a block computes several tiles
    most_slices: ClassVar[int] = 8

    @property
    def instruction(self) -> str:
        """The instruction that multiplies."""
        return "wgmma"

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return THREADS

    @property
    def resident_blocks(self) -> int:
        """The blocks that a multiprocessor runs at a time."""
        return 1

    @property
    def may_have_function(self) -> bool:
        """True if its sums leave registers for a function."""
        return self.tile_m * self.tile_n <= _MOST_SUMS

    @property
    def may_have_slices(self) -> bool:
        """True if its sums leave registers for slices, which need as many as a function."""
        return self.may_have_function

    def most_waves(self, *, are_alone: bool) -> int:
        """The most waves of slices: behind whole tiles, and without them."""
        return 1

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def boxes(self) -> tuple[tuple[int, int], ...]:
        """The elements along a row, and the rows, of a copy of A, of B and of C."""
        depth = self.tile_k  # a panel is as deep as wide
        a = (depth if self.a_along_m else self.tile_m) // self.cluster_n
        b = (depth if self.b_along_n else self.tile_n) // self.cluster_m
        columns = self.columns
        return (depth, a), (depth, b), (columns, columns if self.computes_transpose else ROWS)

    @property
    def swizzles(self) -> tuple[int, ...]:
        """The bytes of a row whose vectors are permuted, of a copy of A, of B and of C."""
        return ROW_BYTES, ROW_BYTES, self.columns * DTYPE_BYTES[self.out]

    @property
    def tile_k(self) -> int:
        """Elements of K in a stage."""
        return ROW_BYTES // DTYPE_BYTES[self.a]

    @property
    def columns(self) -> int:
        """The columns of C that a warpgroup stores at a time: 128 bytes, or 64."""
        most = ROW_BYTES // DTYPE_BYTES[self.out]
        return most // 2 if self.lines[1] % most else most

    @property
    def loaded_n(self) -> int:
        """Columns of B in a stage, which has whole panels of one that is contiguous along N."""
        return -(-self.tile_n // self.tile_k) * self.tile_k if self.b_along_n else self.tile_n

    @property
    def in_registers(self) -> bool:
        """True if an operand passes through registers: wgmma reads only tf32 along K from shared memory."""
        return DTYPE_BYTES[self.a] == _TF32_BYTES and (self.a_along_m or self.b_along_n)

    @property
    def computes_transpose(self) -> bool:
        """True if the operand in registers is B, so that instructions compute the transpose of C."""
        return self.in_registers and self.b_along_n

    @property
    def tiles(self) -> Sequence[tuple[int, int]]:
        """The tiles that such a kernel may have, by their ``lines``."""
        return REGISTER_TILES if self.in_registers else TILES

    @property
    def lines(self) -> tuple[int, int]:
        """Rows and columns of a tile, or of its transpose, as instructions compute it."""
        return (self.tile_n, self.tile_m) if self.computes_transpose else (self.tile_m, self.tile_n)

    @property
    def warps(self) -> tuple[int, int]:
        """The warps that multiply a tile, along M and N."""
        count = _GROUP_WARPS * (1 if self.tile_m * self.tile_n <= _MOST_OWN_SUMS else 2)
        return (1, count) if self.computes_transpose else (count, 1)

    @property
    def stages(self) -> int:
        """The stages that fit beside the memory from which C is stored."""
        return (multiprocessor(WGMMA_ARCH).block_shared_bytes - self._fixed_bytes) // self._stage_bytes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return self.stages * self._stage_bytes + self._fixed_bytes

    @property
    def _stage_bytes(self) -> int:
        return (self.tile_m + self.loaded_n) * ROW_BYTES + 2 * BARRIER_BYTES

    @property
    def _fixed_bytes(self) -> int:
        return _CHUNKS * ROWS * self.columns * DTYPE_BYTES[self.out] + ALIGNMENT + 2 * _GROUP_BYTES

    def launch_us(
        self, slices: Slices, k: int, row_bytes: tuple[int, int], array_bytes: int, multiprocessors: int
    ) -> float:
        """Estimated time of a launch in microseconds.

        Args:
            row_bytes: The lengths of the rows of A and of B in memory.
        """
        of_row, of_step = _REGISTERS_SLOW if self.in_registers else (1.0, 1.0)
        elements, size = self.tile_m * self.tile_n, DTYPE_BYTES[self.a]
        loaded = self.tile_m / self.cluster_n, self.loaded_n / self.cluster_m
        step_us = overlapped(
            elements * _PRODUCT_US,
            sum(side * _ROW_US[_aligned(length)] for side, length in zip(loaded, row_bytes)),
            of_row * (self.tile_m + self.loaded_n) * _RECEIVED_US,
            of_step * _STEP_US,
            exponent=_STEP_OVERLAP,
        )
        steps = -(-k * size // ROW_BYTES)
        stored_bytes = elements * DTYPE_BYTES[self.out]
        if self.has_map:
            stored_us = stored_bytes / _STORED
        else:
            groups = max(self.warps) // _GROUP_WARPS  # that store a tile
            stored_us = max(stored_bytes / _STORED_ANYWHERE, elements / (groups * _STORED_ELEMENTS))
        tile_us = steps * step_us + stored_us
        time_us = -(-slices.whole // resident_clusters(multiprocessors, self)) * tile_us
        if slices.split:
            added_us = _ADD_US + slices.count * elements * _SUM_BYTES / _ADDED
            time_us += slices.stages * step_us + added_us
        return _START_US + _CLUSTER_US * (self.cluster > 1) + overlapped(time_us, array_bytes / MEMORY)

    def workspace_bytes(self, slices: Slices) -> int:
        """Memory for the sums of slices."""
        sums = self.cluster * slices.split * slices.count * self.tile_m * self.tile_n
        return sums * DTYPE_BYTES[accumulator_of(self.a)]

    @property
    def name(self) -> str:
        """The name of the kernel's function."""
        layouts = f"{'m' if self.a_along_m else 'k'}{'n' if self.b_along_n else 'k'}"
        more = (
            "_c" * self.has_beta
            + (f"_{self.bias}" if self.bias else "")
            + "_function" * self.has_function
            + "_slices" * self.has_slices
            + "_anywhere" * (not self.has_map)
            + (f"_cluster_{self.cluster_m}x{self.cluster_n}" if self.cluster > 1 else "")
        )
        return f"{self.entry}_{self.a}_{self.out}_{layouts}_{self.tile_m}x{self.tile_n}{more}"

    def source(self, function: str = "", code: str = "") -> str:
        """The translation unit.

        Args:
            function: The name in C++ of the user's function.
            code: The code that defines the function. Its macros, e.g. ``int(x)``, must not affect the kernel's header.
        """
        assert self.has_function == bool(function)
        declared, applied = "", "void"
        if function:
            sums = code_of(accumulator_of(self.a))
            of = f"static WT_DEVICE {sums} of({sums} x) {{ return {function}(x); }}"
            declared = f"{code}\nstruct Function {{ {of} }};\n"
            applied = "Function"
        maps = ", ".join(f"const __grid_constant__ wt_matmul::TensorMap {name}" for name in "abc")
        bounds = f"__launch_bounds__({self.threads}, {self.resident_blocks})"
        if self.cluster > 1:
            bounds += f" __cluster_dims__({self.cluster}, 1, 1)"
        return (
            f'#include "{self.header}"\n'
            f"{declared}using P = wt_matmul::{self._config(applied)};\n"
            f'extern "C" __global__ void {bounds}\n'
            f"{self.name}({maps}, const __grid_constant__ wt_matmul::Arguments given)\n"
            f"{{\n    wt_matmul::{self.entry}<P>(a, b, c, given);\n}}\n"
        )

    def _config(self, function: str) -> str:
        """The class of the constants, with that of the user's function."""
        clusters = (self.cluster_m, self.cluster_n) if self.cluster > 1 else ()
        return template(
            "Config",
            *(code_of(dtype) for dtype in (self.a, self.out, self.bias)),
            *(function, self.tile_m, self.tile_n, self.stages),
            *(self.a_along_m, self.b_along_n, self.has_beta, self.has_slices, not self.has_map, *clusters),
        )


def code_of(dtype: DType | None) -> str:
    """An element type in C++; void for None."""
    return "void" if dtype is None else DTYPES[dtype].kernel_type


def template(name: str, *values: str | int) -> str:
    """A class template in C++ with its arguments."""
    texts = (str(value).lower() if isinstance(value, bool) else str(value) for value in values)
    return f"{name}<{', '.join(texts)}>"
