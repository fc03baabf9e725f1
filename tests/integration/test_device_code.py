"""The device code of every dtype and architecture: it links, and it contains the expected instructions.

CuTe turns an instruction that its headers or the target lack into a trap, which compiles silently. So the linked PTX is
searched for traps.
"""

import functools
import re
from dataclasses import replace
from typing import Any

import pytest
import warp as wp
from hypothesis import given, settings

from tests.gemm_problems import problems
from tests.integration.helpers import WARP_VERSION, problem_of
from tests.nightly import some
from tests.products import Case, make_kernel
from warp_tiles import enabled, plan
from warp_tiles.build.engine import Engine
from warp_tiles.compile.compiler import LinkRequest
from warp_tiles.compile.worker import run
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.providers.base import NvrtcProvider
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.providers.own import OwnProvider
from warp_tiles.settings import current

H, B, F, D = "float16", "bfloat16", "float32", "float64"
TRAPS = re.compile(r"\b(trap|brkpt|__assertfail|vprintf)\b")

# dtypes, tf32, arch, and PTX of the multiplying instruction by own, which sums halves in fp32, and by cuBLASDx: empty
# for any, None if it is not tried
COMBINATIONS: list[tuple[Any, ...]] = [
    (H, H, H, False, 75, r"mma\.sync.*m16n8k8.*\.f32\.f16\.f16\.f32", r"mma\.sync.*\.f16\.f16\.f16\.f16"),
    (H, H, F, False, 75, r"mma\.sync.*m16n8k8.*\.f32\.f16\.f16\.f32", r"mma\.sync.*\.f32\.f16\.f16\.f32"),
    (F, F, F, False, 75, r"fma\.rn\.f32", r"fma\.rn\.f32"),
    (D, D, D, False, 75, r"fma\.rn\.f64", r"fma\.rn\.f64"),
    (B, B, B, False, 75, r"fma\.rn\.f32", None),
    (H, H, H, False, 80, r"mma\.sync.*m16n8k16.*\.f32\.f16\.f16\.f32", r"mma\.sync.*\.f16\.f16\.f16\.f16"),
    (B, B, F, False, 80, None, r"mma\.sync.*\.f32\.bf16\.bf16\.f32"),
    (F, F, F, True, 80, r"mma\.sync.*\.f32\.tf32\.tf32\.f32", r"mma\.sync.*\.f32\.tf32\.tf32\.f32"),
    (H, F, F, False, 80, "", ""),
    (B, B, B, False, 80, r"mma\.sync.*m16n8k16.*\.f32\.bf16\.bf16\.f32", None),
    (H, F, H, False, 80, r"mma\.sync.*\.f32\.tf32\.tf32\.f32", None),
    (D, D, D, False, 80, r"mma\.sync.*m8n8k4.*\.f64\.f64\.f64\.f64", None),
    (H, H, F, False, 90, r"mma\.sync.*m16n8k16.*\.f32\.f16\.f16\.f32", r"mma\.sync.*\.f32\.f16\.f16\.f32"),
    (D, D, D, False, 90, r"mma\.sync.*m16n8k8.*\.f64\.f64\.f64\.f64", r"mma\.sync.*\.f64\.f64\.f64\.f64"),
    (F, F, F, True, 90, None, r"mma\.sync.*\.f32\.tf32\.tf32\.f32"),
    (F, H, H, False, 90, None, ""),
    (F, B, B, False, 90, r"mma\.sync.*\.f32\.tf32\.tf32\.f32", None),
    (H, H, F, False, 100, None, r"mma\.sync.*\.f32\.f16\.f16\.f32"),
    (F, F, F, False, 100, r"fma\.rn\.f32", r"fma\.rn\.f32x2"),
    (H, H, D, False, 100, "", None),
    (B, B, F, False, 120, r"mma\.sync.*\.f32\.bf16\.bf16\.f32", r"mma\.sync.*\.f32\.bf16\.bf16\.f32"),
    (D, D, D, False, 120, r"mma\.sync.*\.f64\.f64\.f64\.f64", ""),
    (H, H, D, False, 120, None, ""),
]
PROVIDERS: dict[str, type[NvrtcProvider]] = {"own": OwnProvider, "cublasdx": CublasdxProvider}


@functools.cache
def provider(name: str) -> NvrtcProvider:
    return PROVIDERS[name](Engine(warp_toolkit=wp.get_cuda_toolkit_version()).build_context(current()).facts)


def forward_problem(case: Case, arch: int) -> GemmProblem:
    """The forward problem of a case."""
    wp.init()
    with enabled():
        (forward,) = plan(make_kernel(case).module, arch=arch, block_dim=case.threads).needed
    return problem_of(forward)


def linked_ptx(name: str, problem: GemmProblem, source_arch: int | None = None) -> str:
    """PTX of a kernel that calls a provider's function. The function's source is that for ``source_arch``."""
    recipe = provider(name).recipes(replace(problem, arch=source_arch or problem.arch))[0]
    request = provider(name).request(recipe)
    request = replace(request, flags=(f"-arch=sm_{problem.arch}", *request.flags[1:]))
    product = run(request).payload
    caller = f"""
extern "C" __device__ void {recipe.symbol}(void*, void*, void*, void*, void*);
extern "C" __global__ void caller(double* alpha, double* beta, double* c)
{{ extern __shared__ char shared[]; {recipe.symbol}(alpha, shared, shared + 8192, beta, shared + 16384);
  *c = *(double*)(shared + 16384); }}
"""
    main = run(replace(request, name="caller.cu", source=caller)).payload
    linked = run(LinkRequest("module", (main, product), f"compute_{problem.arch}", "ptx"))
    return linked.payload.decode("ascii", "replace")


ODD_SHAPES = [
    Case(24, 20, 18, H, H, F, b_transposed=True, pad=8, threads=256, backward=False),
    Case(7, 5, 3, F, F, F, backward=False),
    Case(1, 16, 1, D, D, D, threads=32, backward=False),
    Case(64, 64, 16, H, H, H, a_transposed=True, threads=1024, backward=False),
]


def ids(value: object) -> str:
    if isinstance(value, Case):
        return f"{value.m}x{value.n}x{value.k} {value.a} {value.b} {value.c}{' tf32' * value.tf32}"
    return "ptx" if "\\" in str(value) else str(value)


def case_of(name: str, a: str, b: str, c: str, tf32: bool, arch: int) -> Case:
    # on sm_75, cuBLASDx's database uses no tensor cores for smaller tiles of halves
    size, threads = (128, 128) if name == "cublasdx" and arch == 75 and a == H else (32, 64)
    return Case(size, size, 32, a, b, c, threads=threads, tf32=tf32, backward=False)


def checks(name: str) -> list[tuple[str, Case, int, str]]:
    """A provider's cases with architecture and instruction. An odd one and those of sm_90 come first."""
    found, odd = [], [(name, case, 90, "") for case in ODD_SHAPES]
    for *types, arch, own, cublasdx in sorted(COMBINATIONS, key=lambda row: row[4] != 90):
        instruction = own if name == "own" else cublasdx
        if instruction is not None:
            found.append((name, case_of(name, *types, arch), arch, instruction))
    return [*odd[:1], *found, *odd[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case", "arch", "instruction"), [*some(checks("cublasdx"), 6), *checks("own")], ids=ids
)
def test_every_dtype_on_every_architecture_and_shapes_off_the_grid_of_the_instructions(
    name: str, case: Case, arch: int, instruction: str
) -> None:
    if case.tf32 and WARP_VERSION < (1, 19):
        pytest.skip("tile_matmul's precision argument came with Warp 1.19")
    problem = forward_problem(case, arch)
    ptx = linked_ptx(name, problem)
    assert f".target sm_{arch}" in ptx
    assert re.search(r"\.entry caller\b", ptx)
    assert not re.search(r"\.extern \.func", ptx), "the product is not linked in"
    assert not TRAPS.search(ptx), f"{problem.describe()} contains {TRAPS.search(ptx)}"
    assert re.search(instruction or r"\b(fma|mma)\b", ptx), f"no {instruction} in {problem.describe()}"


@pytest.mark.slow
def test_a_missing_instruction_would_be_seen() -> None:
    problem = forward_problem(Case(32, 32, 32, B, B, F, backward=False), 75)
    ptx = linked_ptx("cublasdx", problem, source_arch=80)
    assert TRAPS.search(ptx), "an sm_80 instruction compiled for sm_75 has to trap"


@pytest.mark.slow
@pytest.mark.parametrize("count", some([20, 60], 1))
def test_functions_of_all_dtypes_have_less_than_40_kb(count: int) -> None:
    @settings(max_examples=count, derandomize=True, database=None)
    @given(problems())
    def check(problem: GemmProblem) -> None:
        request = provider("own").request(provider("own").recipes(problem)[0])
        assert len(run(request).payload) <= 40 * 1024

    check()
