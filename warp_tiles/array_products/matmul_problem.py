"""A product of :func:`warp_tiles.matmul`: problem, configurations, plan, and estimates of copies of operands. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from warp_tiles.array_products.tensor_kernel import NO_WORK, Slices, TensorKernel
from warp_tiles.gemm.hardware import has_wgmma
from warp_tiles.gemm.main_loop import LoopPlan
from warp_tiles.gemm.pipeline import AUTO, PipelineOverrides
from warp_tiles.gemm.problem import DTYPE_BYTES, DType, accumulator_of
from warp_tiles.gemm.rejected import Rejected

ALIGNED = 16  # bytes of the widest async copy
KEPT_BYTES = 256 << 20  # of workspaces of a device; larger ones are freed after each use
STRIDED = 0  # the alignment of an operand whose lines have gaps between their elements

Operand = Literal["a", "b"]
ShapeBucket = tuple[str, str, str, str, int, int, int, int]


@dataclass(frozen=True)
class Gpu:
    """A GPU that computes whole products: its compute capability, its multiprocessors and its name."""

    arch: int
    multiprocessors: int
    name: str = ""


@dataclass(frozen=True)
class MatmulProblem:
    """A product of a batch of matrices, as the device computes it.

    Attributes:
        m, n, k: Rows and columns of C, and the elements that are summed.
        a_transposed, b_transposed: True if the operand's columns are contiguous in memory, and not its rows.
        tf32: True for tensor cores that round float32 to tf32.
        summed: True if C is one matrix, the sum over the batch.
        split_operand: The operand that is a sum of two 16-bit arrays, so that each step of the loop has two products.
        a_alignment, b_alignment: The largest power of two, up to 16, that divides the addresses of the operand's
            contiguous lines; 0 if none is contiguous.
        a_shared, b_shared: True if all matrices of the batch have the same operand.
        always_loops: True if Warp writes a loop over tiles into each kernel, which takes registers.
        bias: Element type of the bias; None without one.
        c_alignment: As ``a_alignment``, of the rows of C.
        has_function: True if a function of the user follows the sums.
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
    split_operand: Operand | None = None
    has_beta: bool = False
    a_alignment: int = ALIGNED
    b_alignment: int = ALIGNED
    a_shared: bool = False
    b_shared: bool = False
    always_loops: bool = False
    bias: DType | None = None
    c_alignment: int = ALIGNED
    has_function: bool = False

    @property
    def accumulator(self) -> DType:
        return accumulator_of(self.a)

    @property
    def kind(self) -> str:
        """The arithmetic: ``float16`` (bfloat16 included), ``tf32``, ``float32`` or ``float64``."""
        if self.tf32:
            return "tf32"
        wider = max((self.a, self.b), key=DTYPE_BYTES.__getitem__)
        return "float16" if wider == "bfloat16" else wider

    @property
    def layout(self) -> str:
        """The layouts of A and B in the letters of BLAS: ``n``, or ``t`` for a transposed operand."""
        return "nt"[self.a_transposed] + "nt"[self.b_transposed]

    @property
    def array_bytes(self) -> int:
        a, b = self.m * self.k * DTYPE_BYTES[self.a], self.k * self.n * DTYPE_BYTES[self.b]
        c = self.batch * self.m * self.n * DTYPE_BYTES[self.out]
        return c + (1 if self.a_shared else self.batch) * a + (1 if self.b_shared else self.batch) * b

    @property
    def text(self) -> str:
        """The product in words, e.g. ``float16 nn 1024 x 64x64x64`` for a batch of 1024."""
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{'tf32' if self.tf32 else self.a} {self.layout} {batch}{self.m}x{self.n}x{self.k}"

    def describe(self) -> str:
        """The product in words, with all that is unusual, e.g. ``float16 nn 64x64x64, C of float32``."""
        parts = [self.text]
        if self.out != self.a:
            parts.append(f"C of {self.out}")
        if self.summed:
            parts.append("summed over the batch")
        if self.split_operand:
            parts.append(f"{self.split_operand.upper()} in two parts")
        return ", ".join(parts)

    @property
    def bucket(self) -> ShapeBucket:
        """The key of a measured configuration: types, layout, and sizes rounded to powers of two.

        bfloat16 has the keys of float16, because it has the same instructions and sizes.
        """
        kind, b, out = (
            "float16" if name == "bfloat16" else name for name in ("tf32" if self.tf32 else self.a, self.b, self.out)
        )
        sizes = (round(math.log2(max(1, size))) for size in (self.m, self.n, self.k, self.batch))
        return (kind, b, out, self.layout, *sizes)  # type: ignore[return-value]  # four sizes

    @property
    def of_bucket(self) -> MatmulProblem:
        """This product with the sizes and alignments at which its bucket's record was measured."""
        m, n, k, batch = (2**power for power in self.bucket[4:])
        same = replace(self, a_alignment=ALIGNED, b_alignment=ALIGNED, c_alignment=ALIGNED)
        return replace(same, m=m, n=n, k=k, batch=batch)

    def has_wgmma(self, arch: int) -> bool:
        """True if the GPU multiplies such operands by wgmma."""
        return has_wgmma(arch) and (self.kind == "float16" or (self.kind == "tf32" and self.layout != "tn"))


@dataclass(frozen=True)
class MatmulConfig:
    """How a product is computed.

    Attributes:
        tile_m, tile_n: Rows and columns of C that one block computes.
        tile_k: Elements of K in one step of its loop.
        split_k: The number of slices of K. Several blocks compute one tile of C, each from one slice.
        group: Blocks with consecutive numbers compute ``group`` rows of tiles column by column, so that the L2 cache
            serves their loads.
        copies_a, copies_b: True if the operand is first copied to lines that are aligned; for the kernel, also along K.
        tensor_copies: True for the kernel with tensor copies, and not the loop of a Warp kernel. The kernel decides
            about ``tile_k``, ``threads`` and ``group``; only its last tiles have slices.
        cluster_m, cluster_n: Blocks of this kernel along M and N that share their loads.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    threads: int
    split_k: int = 1
    group: int = 8
    copies_a: bool = False
    copies_b: bool = False
    tensor_copies: bool = False
    cluster_m: int = 1
    cluster_n: int = 1

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows and columns of a tile of C, and elements of K in one step."""
        return self.tile_m, self.tile_n, self.tile_k

    def to_json(self) -> dict[str, int]:
        return asdict(self)


CPU_TILE = MatmulConfig(32, 32, 32, 1)


@dataclass(frozen=True)
class MeasuredConfigs:
    """What records know about the products of a shape bucket.

    Attributes:
        best: The fastest of the loops and of the launches of the kernel with tensor copies; None if they were not
            compared.
        loop: The fastest loop of a record that compares only loops; None if there is none.
    """

    best: MatmulConfig | None = None
    loop: MatmulConfig | None = None


DecidedBy = Literal["heuristic", "record", "search", "setting"]


@dataclass(frozen=True)
class Candidate:
    """A way to compute a product on a GPU, with its estimate.

    Attributes:
        config: Of a loop, or of a launch of the kernel with tensor copies.
        shared_bytes: Dynamic shared memory of a block, in bytes. Without stages, it is an estimate.
        registers: Registers of a thread; 0 if the compiler decides about them.
        resident_blocks: Blocks that a multiprocessor runs at a time.
        blocks, steps: Blocks of each multiprocessor, and steps of a block, in a loop.
        kernel, slices: The kernel of a launch, and its work; None and none for a loop.
    """

    config: MatmulConfig
    time_us: float = 0.0
    shared_bytes: int = 0
    registers: int = 0
    resident_blocks: int = 1
    blocks: int = 1
    steps: int = 0
    kernel: TensorKernel | None = None
    slices: Slices = NO_WORK

    @property
    def waves(self) -> int:
        """How many times a multiprocessor starts all the blocks that it runs at a time."""
        return -(-self.blocks // self.resident_blocks)


@dataclass(frozen=True)
class MatmulPlan:
    """How a product is computed: all that a launch needs, and all that ``warp-tiles plan`` shows.

    Attributes:
        chosen: The loop or the launch that computes it.
        config: That of the loop, also if the kernel computes the product: some devices refuse its tensor maps.
        decided_by: ``record`` if the configuration was measured, ``search`` if a search forces it, ``setting`` if a
            setting fixes the pipeline, else ``heuristic``.
        main_loop: What the launch fixes of its loop's pipeline.
        loop: The pipeline of its loop, or the reason why it has no stages.
        rejection: Why the kernel with tensor copies does not compute it; None if it does, and on the CPU.
    """

    table: ClassVar[str] = "matmul"
    problem: MatmulProblem
    chosen: Candidate
    config: MatmulConfig
    decided_by: DecidedBy = "heuristic"
    main_loop: PipelineOverrides = AUTO
    loop: LoopPlan | Rejected | None = None
    gpu: str = ""
    rejection: Rejected | None = None

    @property
    def reason(self) -> str:
        if not self.gpu:
            return "the CPU has one tile"
        is_estimated = self.decided_by == "heuristic"
        text = {
            "heuristic": f"the records that {self.gpu} uses do not decide about this size",
            "record": f"the records that {self.gpu} uses have a measured configuration for about this size",
            "search": "a search forces the configuration",
            "setting": "the setting main_loop fixes its pipeline",
        }[self.decided_by]
        if self.chosen.kernel:
            kernel = "the kernel with tensor copies"
            return f"{text}; estimates prefer {kernel}" if is_estimated else f"{text}; {kernel} computes it"
        text = "it has the least estimated time; " * is_estimated + text
        text += f"; no kernel with tensor copies: {self.rejection}" if self.rejection else ""
        return f"{text}; no stages: {self.loop}" if isinstance(self.loop, Rejected) else text

    def to_json(self) -> dict[str, Any]:
        loop = self.loop if isinstance(self.loop, LoopPlan) else None
        kernel = self.chosen.kernel
        warps = [loop.products[0].warps_m, loop.products[0].warps_n] if loop else []
        return {
            "product": self.problem.describe(),
            "config": self.chosen.config.to_json(),
            "kernel": kernel.name if kernel else "",
            "instruction": kernel.instruction if kernel else loop.loop.instruction if loop else "",
            "warps": list(kernel.warps) if kernel else warps,
            "stages": kernel.stages if kernel else loop.loop.stages if loop else 1,
            **{name: getattr(self.chosen, name) for name in ("shared_bytes", "registers", "resident_blocks")},
            "main_loop": self.main_loop.text,
            "decided_by": self.decided_by,
            "gpu": self.gpu,
            "reason": self.reason,
            "codes": [reason.code for reason in (self.rejection, self.loop) if isinstance(reason, Rejected)],
        }


# ---- operands whose lines are not aligned: estimates of their loads and of copies

_COPY_US = 5.0  # of a copy's launch, on the GPU and on the host
_COPIED = 3.7e6  # bytes that a copy reads or writes in 1 us, also one that transposes
_ALLOCATED = 0.9e6  # bytes of a workspace that is not kept, in 1 us
# of threads that load 4 or 8 bytes at a time, or 2, which are not asynchronous, fitted to 86 loops on an H200 (not on
# record): the time of each, and the threads of a multiprocessor that do not wait for each other
_PIECE_US, _HALF_PIECE_US, LOADING_THREADS = 0.04, 0.055, 384
_MOST_COPY_BYTES = 2**31  # of a matrix, because strides have 32 bits


def unaligned_us(problem: MatmulProblem, operand: Operand, steps_us: float, vectors: float) -> float:
    """Estimated time that a loop takes longer for an operand whose lines are not aligned, and which is not copied.

    Args:
        steps_us: Estimated time of the product's loops with aligned operands, in microseconds.
        vectors: Times 16 bytes of the operand that a thread loads, in all blocks that follow one another.
    """
    p, is_a = problem, operand == "a"
    dtype, alignment = (p.a, p.a_alignment) if is_a else (p.b, p.b_alignment)
    size, is_along_k = DTYPE_BYTES[dtype], not p.a_transposed if is_a else p.b_transposed
    if size == 4 and not p.tf32 and is_along_k:  # always copied by single elements, to transpose tiles
        return steps_us if alignment == STRIDED else 0.0
    if alignment == STRIDED or size == 2 or p.tf32:
        piece = max(alignment, size)
        return vectors * ALIGNED / piece * (_HALF_PIECE_US if piece == 2 else _PIECE_US)
    return 0.15 * steps_us


def copies_us(
    problem: MatmulProblem,
    operands: Collection[Operand],
    line_bytes: int = ALIGNED,
    transposed: Operand | None = None,
) -> float:
    """Estimated time of copies of operands; infinity if a matrix is too large for one.

    Args:
        line_bytes: Lines of a copy begin at multiples of it. The gaps are neither read nor written.
        transposed: The operand whose copy has its columns as lines, along K.
    """
    moved_bytes = memory_bytes = 0
    for operand in operands:
        copy_bytes = _copy_bytes(problem, operand, line_bytes, operand == transposed)
        if copy_bytes >= _MOST_COPY_BYTES:
            return math.inf
        is_shared = problem.a_shared if operand == "a" else problem.b_shared
        matrices = 1 if is_shared else problem.batch * (1 + (problem.split_operand == operand))
        moved_bytes += matrices * _copy_bytes(problem, operand, ALIGNED, operand == transposed)
        memory_bytes += matrices * copy_bytes
    allocated_us = memory_bytes / _ALLOCATED if memory_bytes > KEPT_BYTES else 0.0
    return len(operands) * _COPY_US + 2 * moved_bytes / _COPIED + allocated_us


def _copy_bytes(problem: MatmulProblem, operand: Operand, line_bytes: int, is_transposed: bool) -> int:
    p, is_a = problem, operand == "a"
    lines, length = (p.m if is_a else p.n), p.k
    if not is_transposed and (p.a_transposed if is_a else not p.b_transposed):
        lines, length = length, lines
    return lines * -(-length * DTYPE_BYTES[p.a if is_a else p.b] // line_bytes) * line_bytes
