"""The providers of cuBLASDx: its device code, compiled with NVRTC, and Warp's own build of it, libmathdx."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from warp_tiles.compile import sources
from warp_tiles.compile.sources import DeviceSource
from warp_tiles.errors import UnsupportedProblem
from warp_tiles.gemm.hardware import LANES, MIN_ARCH
from warp_tiles.gemm.problem import DTYPE_BYTES, DTYPES, GemmProblem, Operand
from warp_tiles.providers.base import Built, NvrtcProvider, Provider, ProviderContext, Recipe, refusal

if TYPE_CHECKING:
    from warp_tiles.compile.compiler import Compiled

Libmathdx = Callable[[GemmProblem], tuple[str, bytes]]
# docs/measured.md has the times; the own templates take 30 ms and 30 KB
LIBMATHDX = "Warp's libmathdx, which takes 5 to 18 s and 1 to 7 MB of LTO-IR for each function"


def promised(problem: GemmProblem) -> GemmProblem:
    """The problem with the alignments that may be promised to cuBLASDx.

    The rule is Warp's own (``_gemm_operand_alignments`` of Warp 1.18). With explicit leading dimensions, nothing is
    promised. Nothing is promised for an operand whose rows or columns are not multiples of 16 bytes. A 16-bit C gets
    at most 8 bytes, because cuBLASDx cannot store it 16 bytes wide.
    """
    if not problem.is_dense:
        return problem.without_alignment()
    widest_c = 16 if DTYPE_BYTES[problem.c.dtype] > 2 else 8
    return replace(problem, a=_promised(problem.a, 16), b=_promised(problem.b, 16), c=_promised(problem.c, widest_c))


def _promised(operand: Operand, widest: int) -> Operand:
    size = DTYPE_BYTES[operand.dtype]
    is_multiple = operand.leading_dimension * size % 16 == 0
    return replace(operand, alignment=min(operand.alignment, widest) if is_multiple else size)


def require_served(provider: str, problem: GemmProblem) -> None:
    """Refuse a problem that cuBLASDx and Warp's libmathdx cannot compute. The error names the field and its value."""
    if problem.arch < MIN_ARCH:
        raise refusal(provider, "arch", problem.arch, f"cuBLASDx needs sm_{MIN_ARCH} or newer")
    if problem.threads < LANES:
        raise refusal(provider, "threads", problem.threads, f"a block needs at least {LANES} threads: change block_dim")
    if problem.c.dtype == "bfloat16":
        raise refusal(provider, "c_dtype", problem.c.dtype, "cuBLASDx cannot accumulate in bfloat16")


def source_text(problem: GemmProblem) -> str:
    """The translation unit of a problem: macros that configure ``kernels/cublasdx/gemm.cuh``.

    A zero leading dimension or alignment omits the cuBLASDx operator. cuBLASDx checks a missing operator less strictly
    than one that repeats the default.
    """
    operands = dict(zip("ABC", problem.operands))
    lds = (0, 0, 0) if problem.is_dense else problem.leading_dimensions
    minimal = problem.alignments == problem.element_alignments
    alignments = (0, 0, 0) if minimal or not problem.is_dense else problem.alignments
    macros: dict[str, object] = {"SYMBOL": problem.symbol, "M": problem.m, "N": problem.n, "K": problem.k}
    for name, operand in operands.items():
        macros[f"{name}_DTYPE"] = DTYPES[operand.dtype].cuda_type
        macros[f"{name}_ROW_MAJOR"] = int(operand.arrangement == "row_major")
    for name, ld, alignment in zip(operands, lds, alignments):
        macros[f"LD{name}"] = ld
        macros[f"ALIGN_{name}"] = alignment
    macros["TF32"] = int(problem.precision == "tf32")
    macros["THREADS"] = problem.threads
    macros["SM"] = problem.arch * 10  # cuBLASDx writes sm_90 as 900
    lines = [f"#define WT_{name} {value}" for name, value in macros.items()]
    return "\n".join(["#include <cuda_fp16.h>", "#include <cuda_bf16.h>", *lines, '#include "gemm.cuh"', ""])


class CublasdxProvider(NvrtcProvider[GemmProblem]):
    """Builds products from the cuBLASDx headers."""

    name = "cublasdx"

    def source(self) -> DeviceSource:
        folder = sources.kernels_folder() / "cublasdx"
        return DeviceSource(folder / "gemm.cuh", folder, (folder, *self._facts.toolchain().require_headers()))

    def text(self, recipe: Recipe) -> str:
        assert isinstance(recipe.problem, GemmProblem)
        return source_text(recipe.problem)

    def flags(self, arch: int) -> tuple[str, ...]:
        """``--gen-opt-lto`` runs the optimizer at the build, not at every link. It reduces the LTO-IR to a third."""
        return (*super().flags(arch), "--device-as-default-execution-space", "--gen-opt-lto")

    def manifest(self, recipe: Recipe, compiled: Compiled) -> dict[str, object]:
        return {**super().manifest(recipe, compiled), "mathdx": self._facts.toolchain().mathdx_version}

    def recipes(self, problem: GemmProblem) -> tuple[Recipe, ...]:
        """The first recipe has the promised alignments, the second promises none."""
        require_served(self.name, problem)
        first = promised(problem)
        recipes = [Recipe("cuBLASDx", first, first.symbol)]
        if (weaker := first.without_alignment()) != first:
            recipes.append(Recipe("cuBLASDx without alignment", weaker, weaker.symbol))
        return tuple(recipes)


class LibmathdxProvider(Provider[GemmProblem]):
    """Lets Warp build a product with libmathdx, if this Warp has that. The result is not cached here."""

    name = "libmathdx"

    def __init__(self, function: Libmathdx | None) -> None:
        self._function = function

    def recipes(self, problem: GemmProblem) -> tuple[Recipe, ...]:
        if self._function is None:
            raise UnsupportedProblem("libmathdx is not part of this Warp")
        require_served(self.name, problem)
        # Warp names the function when it builds it
        return (Recipe(LIBMATHDX, problem, problem.symbol),)

    def build(self, recipe: Recipe, context: ProviderContext) -> Built:
        assert self._function is not None
        return Built(*self._function(cast(GemmProblem, recipe.problem)))
