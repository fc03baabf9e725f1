"""Measures the rates of ``mma.sync`` and ``fma`` from registers alone: bounds of what kernels with them can reach.

A warp multiplies a grid of fragments again and again, as a warp tile of a product does, with operands that it never
reloads. The best of some grids and of some numbers of warps counts.

Source: "Matrix multiply-accumulate operation using mma instruction" of the PTX ISA,
https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import warp as wp

from benchmarks.runner import DEVICE
from benchmarks.speed import timing
from benchmarks.speed.builds import import_kernels
from benchmarks.speed.timing import Launch
from warp_tiles.gemm.hardware import LANES

THREADS = 256
BLOCKS = (1, 2, 4)  # of a multiprocessor
GRIDS, FMA_GRIDS = ((2, 2), (2, 4)), ((8, 8),)  # rows and columns of fragments; others were slower on an H200
_CLOCKS = 2_500_000  # of a launch, about
_MODULE = "mma_rates"

_SNIPPET = """
    unsigned state = 2654435761u * (threadIdx.x + 1u);
    auto bits = [&state]() {{ return state = 1664525u * state + 1013904223u; }};
    {scalar} a[{rows}][{a}], b[{columns}][{b}];
    {total} c[{rows}][{columns}][{c}] = {{}};
#pragma unroll
    for (int i = 0; i < {rows} * {a}; ++i)
        a[i / {a}][i % {a}] = {drawn};
#pragma unroll
    for (int j = 0; j < {columns} * {b}; ++j)
        b[j / {b}][j % {b}] = {drawn};
#pragma unroll 1
    for (int step = 0; step < iterations; ++step) {{
#pragma unroll
        for (int again = 0; again < {again}; ++again)
#pragma unroll
            for (int i = 0; i < {rows}; ++i)
#pragma unroll
                for (int j = 0; j < {columns}; ++j)
                    {multiply}
    }}
    {total} sum = 0;
#pragma unroll
    for (int i = 0; i < {rows} * {columns} * {c}; ++i)
        sum += c[i / ({columns} * {c})][i / {c} % {columns}][i % {c}];
    if (sum == static_cast<{total}>(0.123))  // never, but the compiler has to compute it
        out[0] = static_cast<float>(sum);
"""
_KERNEL = '''
@wp.func_native("""{snippet}""")
def multiply_{name}(out: wp.array(dtype=wp.float32), iterations: int): ...


@wp.kernel
def {name}(out: wp.array(dtype=wp.float32), iterations: int):
    multiply_{name}(out, iterations)
'''


@dataclass(frozen=True)
class Instruction:
    """One instruction, and its operands in a thread.

    Attributes:
        types: Name of the types, as the tables group them.
        name: The name of the choosers.
        flops: Floating-point operations of a thread.
        flops_per_clock: Of a multiprocessor of sm_90, about.
        ptx: Its PTX, with the operands C (read and written), A and B.
        a, b, c: Registers of a thread with each operand: 32 bits, or 64 for fp64.
        scalar, total: C++ types of A and B, and of C.
        drawn: C++ expression of a random operand, of random sign in [0.5, 1).
    """

    types: str
    name: str
    flops: int
    flops_per_clock: int
    ptx: str
    a: int
    b: int
    c: int
    scalar: str
    total: str
    drawn: str

    @property
    def multiply(self) -> str:
        """The C++ statement ``c[i][j] += a[i] * b[j]``."""
        kinds = {"unsigned": "r", "float": "f", "double": "d"}

        def bound(kind: str, name: str, count: int) -> str:
            return ", ".join(f'"{kind}"({name}[{place}])' for place in range(count))

        inputs = ", ".join(bound(kinds[self.scalar], *operand) for operand in (("a[i]", self.a), ("b[j]", self.b)))
        return f'asm("{self.ptx};" : {bound("+" + kinds[self.total], "c[i][j]", self.c)} : {inputs});'


_FLOAT_BITS = "(bits() & 0x807fffffu) | 0x3f000000u"
_FLOAT = f"__uint_as_float({_FLOAT_BITS})"
_MMA = "mma.sync.aligned.{}.row.col.{} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}}"
_FLOATS = (4, 2, 4, "unsigned", "float")
_DOUBLES = (4, 2, 4, "double", "double", f"static_cast<double>({_FLOAT})")
INSTRUCTIONS = (
    Instruction("fp16", "mma_m16n8k16", 128, 4096, _MMA.format("m16n8k16", "f32.f16.f16.f32"), *_FLOATS,
                "(bits() & 0x83ff83ffu) | 0x38003800u"),
    Instruction("tf32", "mma_m16n8k8", 64, 2048, _MMA.format("m16n8k8", "f32.tf32.tf32.f32"), *_FLOATS, _FLOAT_BITS),
    Instruction("fp64", "mma_m16n8k8", 64, 256, _MMA.format("m16n8k8", "f64.f64.f64.f64"), *_DOUBLES),
    Instruction("fp32", "fma", 2, 256, "fma.rn.f32 %0, %1, %2, %0", 1, 1, 1, "float", "float", _FLOAT),
)  # fmt: skip


@dataclass(frozen=True)
class Loop:
    """A kernel that repeats an instruction over a grid of fragments."""

    instruction: Instruction
    rows: int
    columns: int

    @property
    def name(self) -> str:
        return f"{self.instruction.types}_{self.instruction.name}_{self.rows}x{self.columns}"

    @property
    def again(self) -> int:
        """Repetitions of the grid in one iteration, so that its branch costs little."""
        return max(1, 64 // (self.rows * self.columns))

    @property
    def source(self) -> str:
        fields = asdict(self.instruction) | {"multiply": self.instruction.multiply}
        snippet = _SNIPPET.format(rows=self.rows, columns=self.columns, again=self.again, **fields)
        return _KERNEL.format(name=self.name, snippet=snippet.replace("\\", "\\\\"))

    def flops(self, blocks: int, iterations: int) -> int:
        return self.instruction.flops * self.rows * self.columns * self.again * iterations * blocks * THREADS


LOOPS = [Loop(one, *grid) for one in INSTRUCTIONS for grid in (FMA_GRIDS if one.name == "fma" else GRIDS)]


def module_text() -> str:
    options = {"enable_backward": False, "block_dim": THREADS}
    return f"import warp as wp\n\nwp.set_module_options({options})\n" + "".join(loop.source for loop in LOOPS)


def measured() -> dict[str, dict[str, dict[str, Any]]]:
    """The best rate of each instruction: ``tflops`` and where it was reached, by types and instruction."""
    multiprocessors = wp.get_device(DEVICE).sm_count
    cases, launches = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{_MODULE}.py"
        path.write_text(module_text())
        module = import_kernels(path, _MODULE)
        out = wp.zeros(1, dtype=wp.float32, device=DEVICE)
        for loop, blocks in product(LOOPS, (count * multiprocessors for count in BLOCKS)):
            target = _CLOCKS * multiprocessors * loop.instruction.flops_per_clock
            iterations = max(1, round(target / loop.flops(blocks, 1)))
            command = wp.launch(
                getattr(module, loop.name), dim=blocks * THREADS, inputs=[out, iterations], block_dim=THREADS,
                device=DEVICE, record_cmd=True,
            )  # fmt: skip
            key = f"{loop.name} {blocks}"
            launches[key], cases[key] = Launch(command.launch), (loop, blocks, iterations)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for key, times in timing.time_alternately(launches, repeats=5).items():
        loop, blocks, iterations = cases[key]
        rate = {
            "tflops": round(loop.flops(blocks, iterations) / times.median_us / 1e6, 3),
            "clock_ghz": times.clock_ghz,
            "fragments": f"{loop.rows}x{loop.columns}",
            "warps": blocks // multiprocessors * THREADS // LANES,
        }
        of_types = found.setdefault(loop.instruction.types, {})
        best = of_types.setdefault(loop.instruction.name, rate)
        of_types[loop.instruction.name] = max(rate, best, key=lambda one: float(one["tflops"]))
    return found
