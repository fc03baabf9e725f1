"""The kernels whose decisions and sources are kept in ``golden.json``."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import warp as wp

from benchmarks.loops import ROWS
from benchmarks.speed.builds import import_kernels
from tests import chain_forms, computed_kernels, loop_forms, products, solver_kernels, staged_cases, whole_kernels
from tests.integration.helpers import load
from tests.products import load_kernels
from tests.random_kernels.generate import draw
from tests.random_kernels.kernel import RandomKernel
from warp_tiles.array_products.kernels import Epilogue, TileKernel, tile_kernel
from warp_tiles.array_products.matmul_choice import choose_matmul
from warp_tiles.array_products.matmul_problem import Gpu, MatmulPlan, MatmulProblem
from warp_tiles.array_products.prepared import records_for

ARCHS = (80, 90, 100, 120)
RANDOM_SEEDS = range(30)
MULTIPROCESSORS = 132
# cases that are compiled, and for what; from one source, two links for sm_100 or sm_120 can have different machine code
CUBINS = {
    "staged float16 default common": (90,),
    "form bounds from a shape": (80,),
    "staged float16 default epilogue": (90, 80),
    "staged float32 default b transposed": (90,),
    "staged float64 default common": (90,),
    "store adjoint rounded": (80,),
    "product 32x32x32 float32 64 threads": (90,),
    "form, {'main_loop': 'double_buffered'}": (90,),
}
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True)
class Case:
    """One module.

    Attributes:
        name: Its name in ``golden.json``.
        make: Returns the module or the kernel for a compute capability, and the threads of a block.
        settings: Settings other than the defaults.
        lines: Returns further lines of the decisions.
    """

    name: str
    make: Callable[[int], tuple[Any, int]]
    settings: tuple[tuple[str, Any], ...] = ()
    lines: Callable[[int], tuple[str, ...]] = lambda arch: ()


@wp.func  # used here alone: once a kernel with a gradient has used a function, Warp writes its adjoint everywhere
def square(x: float):
    return x * x


def corpus() -> tuple[Case, ...]:
    """All cases, in order."""
    forms = (*_loop_forms(), *_chains(), *_staged(), *_computed(), *_whole(), *_rows())
    cases = (*forms, *_random(), *_solvers(), *_matmul(), *_examples())
    assert len({case.name for case in cases}) == len(cases)
    return cases


def _of_text(name: str, text: str, threads: int, **settings: Any) -> Case:
    return Case(name, lambda _: (load(text, block_dim=threads), threads), tuple(settings.items()))


def _loop_forms() -> Iterator[Case]:
    for name, form in loop_forms.FORMS.items():
        yield _of_text(f"form {name}", form.text, 64)
    for name in ("bounds from a shape", "B transposed", "while", "two sums", "a start value", "break after the product",
                 "two products, three tiles", "unrolled", "nested", "in a generic function"):  # fmt: skip
        half = loop_forms.in_half(loop_forms.FORMS[name].text)
        yield _of_text(f"half form {name}", half, 128)
    common = loop_forms.FORMS["bounds from a shape"].text
    for settings in (
        {"register_accumulators": False},
        {"async_copies": False},
        {"main_loop": "double_buffered"},
        {"linker": "warp"},
    ):
        yield _of_text(f"form, {settings}", common, 64, **settings)


def _chains() -> Iterator[Case]:
    for name in ("attention", "attention, 128 threads", "two products", "in an outer loop", "with an adjoint"):
        form = chain_forms.FORMS[name]
        yield _of_text(f"chain {name}", form.text, form.threads)


def _staged() -> Iterator[Case]:
    types = (("float16", "default"), ("bfloat16", "default"), ("float32", "default"), ("float32", "tf32"),
             ("float64", "default"))  # fmt: skip
    for dtype, precision in types:
        forms = staged_cases.with_type(staged_cases.FORMS, dtype, precision)
        kept = forms if dtype in ("float16", "float32") else {"common": forms["common"], "epilogue": forms["epilogue"]}
        for name, case in kept.items():
            # Warp has no adjoint of a product of bfloat16
            text = staged_cases.HEADER + case.text("staged", backward=dtype != "bfloat16")
            yield _of_text(f"staged {dtype} {precision} {name}", text, 128)
    others = {f"wide {name}": (case, 256) for name, case in staged_cases.WIDE.items()}
    others |= {f"flat {name}": (case, 128) for name, case in list(staged_cases.FLAT.items())[::3]}
    others |= {f"drawn {seed}": (staged_cases.drawn(seed), 128) for seed in range(4)}
    for name, (case, threads) in others.items():
        yield _of_text(f"staged {name}", staged_cases.HEADER + case.text("staged", backward=True), threads)
    common = replace(staged_cases.FORMS["common"], dtype="float16")
    for main_loop in ("mma", "stages=2", "double_buffered"):
        text = staged_cases.HEADER + common.text("staged", backward=True)
        yield _of_text(f"staged common, main_loop={main_loop}", text, 128, main_loop=main_loop)


def _computed() -> Iterator[Case]:
    for form in computed_kernels.BODIES:
        drawn = computed_kernels.Case(form, "float16", "whole")
        yield _of_text(f"store {form}", drawn.functions() + drawn.text("stored"), 64)
    for name, (_, text) in computed_kernels.REVERSED.items():
        yield _of_text(f"store adjoint {name}", text, 64)


def _whole() -> Iterator[Case]:
    for name in ("bounds from a shape", "added to C", "both transposed", "rounded to half"):
        yield _of_text(f"whole {name}", whole_kernels.WHOLE[name].text, 64)
    for name in list(whole_kernels.OTHERS)[:4]:
        yield _of_text(f"not whole {name}", whole_kernels.OTHERS[name][0], 64)


def _rows() -> Iterator[Case]:
    """The loops whose speed ``benchmarks/loops.py`` compares with cuBLAS."""
    for name, row in {row.name.replace(str(row.size), "n", 1): row for row in ROWS}.items():
        yield _of_text(f"row {name}", row.source, row.threads, main_loop=row.main_loop)


def _random() -> Iterator[Case]:
    for seed in RANDOM_SEEDS:
        drawn = draw(seed)

        def make(_: int, drawn: RandomKernel = drawn) -> tuple[Any, int]:
            return load_kernels(drawn.source), drawn.block_dim

        yield Case(f"random {seed}", make)


def _solvers() -> Iterator[Case]:
    for dtype, shape, threads in (("float32", (16, 0), 64), ("float32", (32, 8), 128), ("float64", (16, 4), 64)):
        text = solver_kernels.kernels_text(dtype, [shape])
        yield _of_text(f"solvers {dtype} {shape}", text, threads)
    for case in (
        products.Case(32, 32, 32),
        products.Case(64, 64, 64, "float16", "float16", "float32", threads=128),
        products.Case(24, 20, 12, a_transposed=True, pad=3, accumulate=True, alpha=2.0, beta=0.5),
        products.Case(16, 16, 16, "float64", "float64", "float64", b_transposed=True, backward=False),
        products.Case(32, 32, 32, tf32=True, threads=32),
    ):
        text = products.source(case)
        yield Case(f"product {case.m}x{case.n}x{case.k} {case.a} {case.threads} threads",
                   lambda _, text=text, case=case: (load_kernels(text).product, case.threads))  # type: ignore[misc]  # fmt: skip


def _matmul() -> Iterator[Case]:
    """Kernels of ``warp_tiles.matmul`` with the configurations that it chooses."""
    half, double = ("float16",) * 3, ("float64",) * 3
    problems = {
        f"{size} {name}": MatmulProblem(size, size, size, batch, *types, **options)
        for size, batch in ((4096, 1), (512, 1), (96, 16))
        for name, types, options in (
            ("fp16", half, {}),
            ("fp16 gradient of B", half, {"a_transposed": True}),
            ("fp16 gradient of A", half, {"b_transposed": True, "has_beta": True}),
            ("fp32", ("float32",) * 3, {}),
            ("tf32", ("float32",) * 3, {"tf32": True, "b_transposed": True}),
            ("fp64", double, {}),
        )
    }
    problems["few rows, deep"] = MatmulProblem(128, 128, 16384, 1, *half)
    problems["A in parts"] = MatmulProblem(1024, 1024, 1024, 1, *half, split_operand="a")
    problems["odd"] = MatmulProblem(1000, 777, 333, 1, *half, a_alignment=2, b_alignment=2)
    for name, problem in problems.items():

        def lines(arch: int, problem: MatmulProblem = problem) -> tuple[str, ...]:
            choice, key = _matmul_choice(problem, arch)
            loop = f"main_loop {key.main_loop.text}"
            own = choice.chosen.kernel.name if choice.chosen.kernel else "-"
            return f"matmul config: {choice.config.to_json()}", f"matmul kernel: {loop}", f"tensor copies: {own}"

        def make(arch: int, problem: MatmulProblem = problem) -> tuple[Any, int]:
            choice, key = _matmul_choice(problem, arch)
            return tile_kernel(key), choice.config.threads

        yield Case(f"matmul {name}", make, lines=lines)
    bias = Epilogue("float16", bias="float32", has_beta=True, function=square, sums="float32")
    key = TileKernel("float16", "float16", (128, 128, 64), False, False, False, bias)
    yield Case("matmul epilogue", lambda _: (tile_kernel(key), 128))


def _matmul_choice(problem: MatmulProblem, arch: int) -> tuple[MatmulPlan, TileKernel]:
    gpu = Gpu(arch, MULTIPROCESSORS)
    choice = choose_matmul(problem, gpu, records_for(gpu))
    key = TileKernel(
        problem.a,
        problem.b,
        choice.config.tile,
        problem.a_transposed,
        problem.b_transposed,
        tf32=problem.tf32,
        epilogue=Epilogue(problem.out, has_beta=problem.has_beta, sums=problem.accumulator),
        slices=choice.config.split_k,
        split_operand=problem.split_operand,
        main_loop=choice.main_loop,
    )
    return choice, key


def _examples() -> Iterator[Case]:
    for name in ("gemm", "mlp_train", "recorded_training", "skip_adjoints"):
        yield Case(f"example {name}", lambda _, name=name: _example(name))  # type: ignore[misc]


@functools.cache  # Warp would number the functions of a module that is imported again in another way
def _example(name: str) -> tuple[Any, int]:
    module = import_kernels(EXAMPLES / f"{name}.py", f"golden_{name}")
    return module, int(getattr(module, "THREADS", 64))
