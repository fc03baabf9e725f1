"""Helpers of the integration tests: kernels from text, ahead-of-time builds, and the products that Warp would build."""

import inspect
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import warp as wp

import warp_tiles
from benchmarks.speed.cubin import sections, string_at
from tests.products import load_kernels
from warp_tiles._warp.internals import find
from warp_tiles.build.module_build import ModuleBuild
from warp_tiles.compile.module import BuildCall
from warp_tiles.gemm.problem import GemmProblem, Operand
from warp_tiles.providers.cublasdx import promised
from warp_tiles.solver.problem import SolverProblem

REPOSITORY = Path(__file__).resolve().parents[2]
WARP_VERSION = tuple(int(part) for part in wp.__version__.split(".")[:2])

FORWARD_ONLY = "@wp.kernel(enable_backward=False)"
# parts of a kernel that multiplies one tile of each operand
ARRAYS = "A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)"
LOADS = """
    a = wp.tile_load(A, shape=({m}, {k}), storage="shared")
    b = wp.tile_load(B, shape=({k}, {n}), storage="shared")"""
STORE = """
    wp.tile_store(C, c)
"""


def gemm(
    name: str = "gemm", m: int = 16, n: int = 16, k: int = 16, *, decorator: str = "@wp.kernel",
    call: str = "wp.tile_matmul(a, b)",
) -> str:  # fmt: skip
    """Text of a float32 kernel that stores one product of an M x K and a K x N tile."""
    return f"{decorator}\ndef {name}({ARRAYS}):{LOADS.format(m=m, n=n, k=k)}\n    c = {call}{STORE}\n"


def gemm_loop(
    name: str = "gemm", m: int = 64, n: int = 64, k: int = 32, *, decorator: str = "@wp.kernel", dtype: str = "float32",
    total: str = "float32",
) -> str:  # fmt: skip
    """Text of a kernel that adds products of M x K and K x N tiles in a loop, and stores their sum."""
    return f"""
{decorator}
def {name}(A: wp.array2d(dtype=wp.{dtype}), B: wp.array2d(dtype=wp.{dtype}), C: wp.array2d(dtype=wp.{total})):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=({m}, {n}), dtype=wp.{total}, storage="shared")
    for step in range(0, A.shape[1], {k}):
        a = wp.tile_load(A, shape=({m}, {k}), offset=(i * {m}, step), storage="shared")
        b = wp.tile_load(B, shape=({k}, {n}), offset=(step, j * {n}), storage="shared")
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c, offset=(i * {m}, j * {n}))
"""


def load(text: str, **options: Any) -> ModuleType:
    """A Python module of kernels from its text, after ``import warp as wp``, with Warp module options."""
    module: ModuleType = load_kernels(f"import warp as wp\n\n{text}")
    # without module=, wp.set_module_options() would look for its caller among the imported modules
    wp.set_module_options({"block_dim": 64, **options}, module=module)
    return module


def roles(plan: warp_tiles.ModulePlan, *, needed: bool | None = None) -> list[str]:
    """The roles of the plan's functions in order: of all, of the needed ones, or of the others."""
    return [v.role.value for v in plan.functions if needed is None or v.needed == needed]


def problem_of(planned: warp_tiles.PlannedFunction) -> GemmProblem:
    """The function of a planned product, which must have one."""
    assert isinstance(planned.problem, GemmProblem), planned.reason
    return planned.problem


def solver_of(planned: warp_tiles.PlannedFunction) -> SolverProblem:
    """The function of a planned solver function, which must have one."""
    assert isinstance(planned.problem, SolverProblem), planned.reason
    return planned.problem


def compile_module(
    module: ModuleType, folder: Path, arch: int = 90, *, use_ptx: bool = False
) -> tuple[Path, dict[str, Any]]:
    """Compile ahead of time into a folder.

    Returns:
        The cubin or PTX, and its build from ``warp_tiles.report()``.
    """
    (output,) = wp.compile_aot_module(module, arch=arch, module_dir=folder, use_ptx=use_ptx)
    # several folders can have files with this name; the newest record belongs to this build
    records = [r for r in warp_tiles.report()["modules"] if r.get("output") == Path(output).name]
    assert records, f"no build of {output}: {warp_tiles.report()}"
    return Path(output), records[-1]


@contextmanager
def without_compilation() -> Iterator[list[warp_tiles.ModulePlan]]:
    """Modules are planned and generated, and neither compiled nor linked. Yields their plans."""
    plans: list[warp_tiles.ModulePlan] = []

    def finish(build: ModuleBuild, call: BuildCall) -> None:
        call.output.touch()

    start = patch.object(ModuleBuild, "start", lambda build, *_: plans.append(build.plan))
    with start, patch.object(ModuleBuild, "finish", finish):
        yield plans


def generated_source(module: ModuleType, folder: Path, arch: int = 90) -> str:
    """The source of a module for a cubin, which is not compiled."""
    with without_compilation():
        wp.compile_aot_module(module, arch=arch, module_dir=folder, use_ptx=False)
    (source,) = folder.glob("*.cu")
    return source.read_text()


# ---- the products that unmodified Warp would build


def planned_products(plan: warp_tiles.ModulePlan) -> set[GemmProblem]:
    """All products of a plan, needed or not, with the alignments that are promised to cuBLASDx.

    Without an alignment for Warp 1.17, which has none.
    """
    found = {promised(problem_of(planned)) for planned in plan.functions}
    return found if _alignment_rule() else {problem.without_alignment() for problem in found}


def warp_products(module: Any, arch: int, block_dim: int) -> set[GemmProblem]:
    """The products that unmodified Warp would build for a module. Its calls are recorded, and nothing is built."""
    assert not warp_tiles.is_enabled()
    build, context = find("build"), find("context")
    original = build.build_lto_dot
    found: set[GemmProblem] = set()

    def record(*args: Any, **kwargs: Any) -> tuple[str, bytes]:
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        found.add(_product(bound.arguments))
        return f"recorded_{len(found)}", b""

    build.build_lto_dot = record
    try:
        options = module.resolve_options(wp.config) | {"output_arch": arch, "block_dim": block_dim}
        context.ModuleBuilder(module, options).codegen("cuda")
    finally:
        build.build_lto_dot = original
        module.mark_modified()
    return found


def _alignment_rule() -> Any:
    return getattr(find("build"), "_gemm_operand_alignments", None)


def _product(call: Mapping[str, Any]) -> GemmProblem:
    m, n, k = call["M"], call["N"], call["K"]
    layouts = tuple(call[f"{name}layout"] for name in "abc")
    shapes = ((m, k), (k, n), (m, n))
    dense = tuple(cols if layout == "rowmajor" else rows for layout, (rows, cols) in zip(layouts, shapes))
    lds = tuple(call[f"ld{name}"] or default for name, default in zip("abc", dense))
    dtypes = tuple(call[f"{name}dtype"] for name in "abc")
    alignments = sizes_bytes = tuple(wp.types.type_size_in_bytes(dtype) for dtype in dtypes)
    if rule := _alignment_rule():
        chosen = rule(dense, (0, 0, 0) if lds == dense else lds, sizes_bytes, call["aligned_bases"])
        alignments = sizes_bytes if chosen == (0, 0, 0) else chosen  # zeros mean the alignment of an element
    a, b, c = (
        Operand(dtype.__name__, "row_major" if layout == "rowmajor" else "col_major", ld, alignment)
        for dtype, layout, ld, alignment in zip(dtypes, layouts, lds, alignments)
    )
    return GemmProblem(m, n, k, a, b, c, call.get("precision") or "default", call["num_threads"], call["arch"])


# ---- cubins

_FUNCTION, _UNDEFINED = 2, 0  # STT_FUNC and SHN_UNDEF of the ELF specification


@dataclass(frozen=True)
class Symbols:
    """Names in a cubin's symbol table."""

    functions: frozenset[str]
    undefined: frozenset[str]


def cubin_symbols(cubin: bytes) -> Symbols:
    """The functions that a cubin defines, and its undefined names.

    Source: the 64-bit layout of the ELF specification, ``Elf64_Sym``.
    """
    content = dict(sections(cubin))
    functions, undefined = set(), set()
    for name_at, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", content[".symtab"]):
        name = string_at(content[".strtab"], name_at)
        if section == _UNDEFINED and name and name[0] not in ".$":  # those belong to the loader and the debugger
            undefined.add(name)
        elif info & 0xF == _FUNCTION:
            functions.add(name)
    return Symbols(frozenset(functions), frozenset(undefined))
