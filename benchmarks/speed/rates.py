"""Measures the rates of ``mma.sync`` and ``fma`` from registers alone: bounds of what kernels with them can reach.

A warp multiplies a grid of fragments again and again, as a warp tile of a product does, with operands that it never
reloads. The best of some grids and of some numbers of warps counts.

Source: "Matrix multiply-accumulate operation using mma instruction" of the PTX ISA,
https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import warp as wp

from benchmarks.speed import timing
from benchmarks.speed.builds import import_kernels
from benchmarks.speed.timing import Launch
from warp_tiles.gemm.hardware import LANES

THREADS = 256
BLOCKS = (1, 2, 4)  # of a multiprocessor
_CLOCKS = 2_500_000  # of a launch, about
_FLOPS_PER_CLOCK = {"tf32": 2048, "fp32": 256, "fp64": 256}  # of a multiprocessor of sm_90; 4096 of 16-bit types
_MODULE = "mma_rates"

_SNIPPET = """
    unsigned state = 2654435761u * (threadIdx.x + 1u);
    auto bits = [&state]() {{ return state = 1664525u * state + 1013904223u; }};
    {scalar} a[{rows}][{a}], b[{columns}][{b}];
    {total} c[{rows}][{columns}][{c}] = {{}};
#pragma unroll
    for (int i = 0; i < {rows}; ++i)
#pragma unroll
        for (int e = 0; e < {a}; ++e)
            a[i][e] = {drawn};
#pragma unroll
    for (int j = 0; j < {columns}; ++j)
#pragma unroll
        for (int e = 0; e < {b}; ++e)
            b[j][e] = {drawn};
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
    for (int i = 0; i < {rows}; ++i)
#pragma unroll
        for (int j = 0; j < {columns}; ++j)
#pragma unroll
            for (int e = 0; e < {c}; ++e)
                sum += c[i][j][e];
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
# values of random sign in [0.5, 1)
_HALF = "(bits() & 0x83ff83ffu) | 0x38003800u"
_BFLOAT = "(bits() & 0x807f807fu) | 0x3f003f00u"
_FLOAT_BITS = "(bits() & 0x807fffffu) | 0x3f000000u"
_FLOAT = f"__uint_as_float({_FLOAT_BITS})"
_DOUBLE = f"static_cast<double>({_FLOAT})"


@dataclass(frozen=True)
class Instruction:
    """One instruction: its shape, and its operands in a thread.

    Attributes:
        types: Name of the types, as the tables group them.
        name: The name of the choosers.
        m, n, k: Its shape for a warp; 0 for ``fma``, which multiplies in one thread.
        ptx: Its PTX, without operands.
        a, b, c: Registers of a thread with each operand: 32 bits, or 64 for fp64.
        scalar, total: C++ types of A and B, and of C.
        drawn: C++ expression of a random operand.
    """

    types: str
    name: str
    m: int
    n: int
    k: int
    ptx: str
    a: int
    b: int
    c: int
    scalar: str
    total: str
    drawn: str

    @property
    def flops_of_thread(self) -> float:
        """Floating-point operations of one instruction, in one thread."""
        return 2 * self.m * self.n * self.k / LANES if self.m else 2

    @property
    def multiply(self) -> str:
        """The C++ statement ``c[i][j] += a[i] * b[j]``."""
        places = iter(range(self.a + self.b + self.c))
        c, a, b = ([f"%{next(places)}" for _ in range(count)] for count in (self.c, self.a, self.b))
        groups = [", ".join(group) if not self.m else f"{{{', '.join(group)}}}" for group in (c, a, b, c)]
        kinds = {"unsigned": "r", "float": "f", "double": "d"}
        bound = [[f'"{kind}"({name}[{place}])' for place in range(count)] for kind, name, count in (
            (f"+{kinds[self.total]}", "c[i][j]", self.c), (kinds[self.scalar], "a[i]", self.a),
            (kinds[self.scalar], "b[j]", self.b),
        )]  # fmt: skip
        outputs, *inputs = (", ".join(part) for part in bound)
        return f'asm("{self.ptx} {", ".join(groups)};" : {outputs} : {", ".join(inputs)});'


def _mma(shape: str, types: str) -> str:
    return f"mma.sync.aligned.{shape}.row.col.{types}"


INSTRUCTIONS = (
    Instruction("fp16", "mma_m16n8k16", 16, 8, 16, _mma("m16n8k16", "f32.f16.f16.f32"), 4, 2, 4, "unsigned", "float",
                _HALF),
    Instruction("bf16", "mma_m16n8k16", 16, 8, 16, _mma("m16n8k16", "f32.bf16.bf16.f32"), 4, 2, 4, "unsigned", "float",
                _BFLOAT),
    Instruction("tf32", "mma_m16n8k8", 16, 8, 8, _mma("m16n8k8", "f32.tf32.tf32.f32"), 4, 2, 4, "unsigned", "float",
                _FLOAT_BITS),
    Instruction("fp64", "mma_m16n8k8", 16, 8, 8, _mma("m16n8k8", "f64.f64.f64.f64"), 4, 2, 4, "double", "double",
                _DOUBLE),
    Instruction("fp64", "mma_m8n8k4", 8, 8, 4, _mma("m8n8k4", "f64.f64.f64.f64"), 1, 1, 2, "double", "double", _DOUBLE),
    Instruction("fp64", "fma", 0, 0, 0, "fma.rn.f64", 1, 1, 1, "double", "double", _DOUBLE),
    Instruction("fp32", "fma", 0, 0, 0, "fma.rn.f32", 1, 1, 1, "float", "float", _FLOAT),
)  # fmt: skip
_GRIDS = ((2, 2), (2, 4), (4, 4))  # rows and columns of fragments
_FMA_GRIDS = ((4, 4), (4, 8), (8, 8))


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
        one = self.instruction
        fields = {field: getattr(one, field) for field in ("a", "b", "c", "scalar", "total", "drawn", "multiply")}
        snippet = _SNIPPET.format(rows=self.rows, columns=self.columns, again=self.again, **fields)
        return _KERNEL.format(name=self.name, snippet=snippet.replace("\\", "\\\\"))

    def flops(self, blocks: int, iterations: int) -> float:
        each = self.instruction.flops_of_thread * self.rows * self.columns * self.again
        return each * iterations * blocks * THREADS


def loops() -> Iterator[Loop]:
    """All kernels."""
    for instruction in INSTRUCTIONS:
        for grid in _GRIDS if instruction.m else _FMA_GRIDS:
            yield Loop(instruction, *grid)


def module_text() -> str:
    options = {"enable_backward": False, "block_dim": THREADS}
    return f"import warp as wp\n\nwp.set_module_options({options})\n" + "".join(loop.source for loop in loops())


def measured(device: str) -> dict[str, dict[str, dict[str, Any]]]:
    """The best rate of each instruction: ``tflops`` and where it was reached, by types and instruction."""
    multiprocessors = wp.get_device(device).sm_count
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{_MODULE}.py"
        path.write_text(module_text())
        module = import_kernels(path, _MODULE)
        out = wp.zeros(1, dtype=wp.float32, device=device)
        launches, flops, cases = {}, {}, {}
        for loop in loops():
            for per_multiprocessor in BLOCKS:
                blocks = per_multiprocessor * multiprocessors
                target = _CLOCKS * multiprocessors * _FLOPS_PER_CLOCK.get(loop.instruction.types, 4096)
                iterations = max(1, round(target / loop.flops(blocks, 1)))
                key = f"{loop.name} {per_multiprocessor}"
                command = wp.launch(
                    getattr(module, loop.name), dim=blocks * THREADS, inputs=[out, iterations], block_dim=THREADS,
                    device=device, record_cmd=True,
                )  # fmt: skip
                launches[key], flops[key] = Launch(command.launch), loop.flops(blocks, iterations)
                cases[key] = (loop, per_multiprocessor)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for key, times in timing.time_alternately(launches, device, repeats=5).items():
        loop, per_multiprocessor = cases[key]
        rate: dict[str, Any] = {
            "tflops": round(flops[key] / times.median_us / 1e6, 3),
            "clock_ghz": times.clock_ghz,
            "fragments": f"{loop.rows}x{loop.columns}",
            "warps": per_multiprocessor * THREADS // LANES,
        }
        rate["flops_per_clock"] = round(1e3 * rate["tflops"] / (rate["clock_ghz"] * multiprocessors), 1)
        of_types = found.setdefault(loop.instruction.types, {})
        if rate["tflops"] > of_types.get(loop.instruction.name, rate | {"tflops": 0})["tflops"]:
            of_types[loop.instruction.name] = rate
    return found
