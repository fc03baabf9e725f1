"""The question and the answer of a product of :func:`warp_tiles.matmul`. They are pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from warp_tiles.gemm.hardware import has_wgmma
from warp_tiles.gemm.main_loop import LoopAnswer
from warp_tiles.gemm.pipeline import AUTO, PipelineOverrides
from warp_tiles.gemm.problem import DTYPE_BYTES, DType, accumulator_of
from warp_tiles.gemm.rejected import Rejected, accepted, refuse, rejectable
from warp_tiles.gemm.tensor_kernel import (
    MOST_SUMS,
    NO_WORK,
    STEP_US,
    THREADS,
    Slices,
    TensorKernel,
    launch_us,
    launches_of,
)

ALIGNED = 16  # bytes of the widest async copy
_KERNEL_SIDE = 64  # rows and columns of C, at least, for the kernel with tensor copies
STRIDED = 0  # the alignment of an operand whose lines have gaps between their elements

Operand = Literal["a", "b"]
ShapeBucket = tuple[str, str, str, str, int, int, int, int]


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
        """Element type of the accumulators."""
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
        """Bytes of all matrices."""
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
        copies_a, copies_b: True if the operand is first copied to lines that are aligned.
        tensor_copies: True for the kernel with tensor copies, and not the loop of a Warp kernel. The kernel decides
            about ``tile_k``, ``threads`` and ``group``; only its last tiles have slices.
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

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows and columns of a tile of C, and elements of K in one step."""
        return self.tile_m, self.tile_n, self.tile_k

    def to_json(self) -> dict[str, int]:
        """The fields by name."""
        return asdict(self)

    @classmethod
    def of_kernel(cls, kernel: TensorKernel, slices: Slices, m: int) -> MatmulConfig:
        """That of a launch of the kernel with tensor copies, for C of m rows."""
        tile = kernel.tile_m, kernel.tile_n, kernel.tile_k
        return cls(*tile, THREADS, slices.count, kernel.group(m), tensor_copies=True)


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
class MatmulAnswer:
    """How a product is computed: all that a launch needs, and all that a plan shows.

    Attributes:
        decided_by: ``record`` if the configuration was measured, ``search`` if a search forces it, ``setting`` if a
            setting fixes the pipeline, else ``heuristic``.
        config: That of the loop, also if the kernel computes the product: some devices refuse its tensor maps.
        kernel: The kernel with tensor copies that computes it, or the reason why the loop of a Warp kernel does.
        slices: The work of the kernel's launch; none for a loop.
        main_loop: What the launch fixes of its loop's pipeline.
        loop: The pipeline of its loop, or the reason why it has no stages.
        shared_bytes: Dynamic shared memory of a block, in bytes. Without stages, it is an estimate.
        registers: Registers of a thread; 0 if the compiler decides about them.
        gpu: Name of the GPU; empty for the CPU.
    """

    problem: MatmulProblem
    config: MatmulConfig
    decided_by: DecidedBy = "heuristic"
    main_loop: PipelineOverrides = AUTO
    loop: LoopAnswer | Rejected | None = None
    shared_bytes: int = 0
    registers: int = 0
    resident_blocks: int = 1
    gpu: str = ""
    kernel: TensorKernel | Rejected | None = None
    slices: Slices = NO_WORK

    @property
    def reason(self) -> str:
        """Why the product is computed so."""
        if not self.gpu:
            return "the CPU has one tile"
        found = {
            "record": f"the records that {self.gpu} uses have a measured configuration for about this size",
            "search": "a search forces the configuration",
            "setting": "the setting main_loop fixes its pipeline",
        }
        undecided = f"the records that {self.gpu} uses do not decide about this size"
        if isinstance(self.kernel, TensorKernel):
            if self.decided_by == "heuristic":
                return f"{undecided}; estimates prefer the kernel with tensor copies"
            return f"{found[self.decided_by]}; the kernel with tensor copies computes it"
        text = found.get(self.decided_by, f"it has the least estimated time; {undecided}")
        text += f"; no kernel with tensor copies: {self.kernel}" if self.kernel else ""
        return f"{text}; no stages: {self.loop}" if isinstance(self.loop, Rejected) else text

    @property
    def launched(self) -> MatmulConfig:
        """The configuration of the loop or kernel that computes the product."""
        if isinstance(self.kernel, TensorKernel):
            return MatmulConfig.of_kernel(self.kernel, self.slices, self.problem.m)
        return self.config

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON values."""
        loop = self.loop if isinstance(self.loop, LoopAnswer) else None
        kernel = self.kernel if isinstance(self.kernel, TensorKernel) else None
        warps = [loop.products[0].warps_m, loop.products[0].warps_n] if loop else []
        return {
            "product": self.problem.describe(),
            "config": self.launched.to_json(),
            "kernel": kernel.name if kernel else "",
            "instruction": "wgmma" if kernel else loop.loop.instruction if loop else "",
            "warps": list(kernel.warps) if kernel else warps,
            "stages": kernel.stages if kernel else loop.loop.stages if loop else 1,
            **{name: getattr(self, name) for name in ("shared_bytes", "registers", "resident_blocks")},
            "main_loop": self.main_loop.text,
            "decided_by": self.decided_by,
            "gpu": self.gpu,
            "reason": self.reason,
            "codes": [one.code for one in (self.kernel, self.loop) if isinstance(one, Rejected)],
        }


# ---- the kernel with tensor copies


@rejectable
def problem_of_kernel(problem: MatmulProblem, arch: int, pipeline: PipelineOverrides | Rejected | None) -> None:
    """The reason why the kernel with tensor copies cannot compute a product; None if it can."""
    p = problem
    refuse(accepted(pipeline) is not None, "loop_asked")
    refuse(not has_wgmma(arch), "gpu_without_wgmma")
    refuse(p.kind not in ("float16", "tf32") or p.b != p.a, "kernel_dtypes", p.kind)
    refuse(p.tf32 and p.layout != "nt", "kernel_tf32_layout")
    refuse(p.k == 0, "no_products")
    refuse(p.summed or p.split_operand is not None, "kernel_sums")
    refuse(min(p.a_alignment, p.b_alignment, p.c_alignment) < ALIGNED, "kernel_alignment")
    refuse(min(p.m, p.n) < _KERNEL_SIDE, "kernel_side", _KERNEL_SIDE)


def kernel_launches(problem: MatmulProblem, multiprocessors: int) -> list[tuple[float, TensorKernel, Slices]]:
    """The launches of the kernel with tensor copies for a product that it can compute, and their estimated times in
    microseconds. The shortest comes first.
    """
    p = problem
    launches = [
        (launch_us(kernel, slices, p.m, p.n, p.k, p.array_bytes, multiprocessors), kernel, slices)
        for tile in STEP_US
        if not p.has_function or math.prod(tile) <= MOST_SUMS
        for kernel, slices in launches_of(kernel_with(p, tile), p.m, p.n, p.k, p.batch, multiprocessors)
    ]
    return sorted(launches, key=lambda launch: launch[0])


def kernel_with(problem: MatmulProblem, tile: tuple[int, int]) -> TensorKernel:
    """The kernel of a product with a tile."""
    p = problem
    return TensorKernel(p.a, p.out, *tile, p.a_transposed, not p.b_transposed, p.has_beta, p.bias, p.has_function)
