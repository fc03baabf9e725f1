"""The providers of this project's own device code, compiled with NVRTC: products and solvers.

The chooser of products is imported when a problem is planned. A process that finds all modules in Warp's cache does not
need it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import ToolchainError, UnsupportedProblem, WorkerError
from warp_tiles.gemm.problem import DTYPE_BYTES, DTYPES, GemmProblem, Operand
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.gemm.tile_config import TileConfig, accumulators_per_thread, computes_in_double
from warp_tiles.providers.base import Built, NvrtcProvider, Provider, ProviderContext, Recipe, Tuned, V
from warp_tiles.solver.problem import (
    OPERANDS,
    Config,
    Function,
    Problem,
    SolverConfig,
    SolverProblem,
    choose,
    reason_unsupported,
)

if TYPE_CHECKING:
    from warp_tiles.codegen.module_code import LoopAccumulators

_SOURCE = "gemm/block_gemm.cuh"  # below kernels/


def constants(kind: str, values: Mapping[str, object]) -> str:
    """C++ of constants as enumerators. Static members would take 65 bytes of LTO-IR each, used or not."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
    return f"    enum : {kind} {{ {', '.join(f'{name} = {text}' for name, text in texts.items())} }};"


def struct(name: str, *members: str) -> str:
    return "\n".join([f"struct {name} {{", *members, "};"])


def unique_name(symbol: str, members: str) -> str:
    """A name for the structure that a problem's templates are instantiated with.

    With equal names, the linker would use one problem's templates for all problems. The name is short, because it is
    part of every other name. An unnamed namespace would also work, but its long names would fill a seventh of the
    LTO-IR.
    """
    digest = hashlib.sha256((symbol + members).encode()).digest()
    return f"w{base64.b32encode(digest[:5]).decode().lower()}"


def problem_struct(problem: GemmProblem) -> str:
    operands = dict(zip("abc", problem.operands))
    types = (f"using {name.upper()} = {DTYPES[operand.dtype].kernel_type};" for name, operand in operands.items())
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k}
    sizes |= {f"ld{name}": operand.leading_dimension for name, operand in operands.items()}
    flags = {f"{name}_row_major": operand.arrangement == "row_major" for name, operand in operands.items()}
    return struct(
        "Problem",
        f"    {' '.join(types)}",
        constants("int", sizes),
        constants("int", {f"align_{name}": operand.alignment for name, operand in operands.items()}),
        constants("bool", {**flags, "tf32": problem.precision == "tf32"}),
        constants("int", {"threads": problem.threads, "sm": problem.arch}),
    )


def config_struct(config: TileConfig) -> str:
    values = config.to_json()
    instruction = f"    static constexpr wt::Instruction instruction = wt::Instruction::{values.pop('instruction')};"
    flags = {name: value for name, value in values.items() if isinstance(value, bool)}
    numbers = {name: value for name, value in values.items() if name not in flags}
    return struct("Config", instruction, constants("int", numbers), constants("bool", flags))


def translation_unit(problem: GemmProblem, config: TileConfig) -> str:
    """The translation unit of the problem's device function. Both structures lie in one with a unique name."""
    structs = f"{problem_struct(problem)}\n{config_struct(config)}"
    unique = unique_name(problem.symbol, structs)
    return f"""#include "{_SOURCE}"

{struct(unique, structs)}

extern "C" __device__ void {problem.symbol}(void* alpha, void* a, void* b, void* beta, void* c)
{{
    wt::block_gemm<{unique}>(alpha, a, b, beta, c);
}}
{_loop_functions(problem, config, unique)}"""


def _loop_functions(problem: GemmProblem, config: TileConfig, unique: str) -> str:
    if isinstance(register_accumulators(problem, problem.symbol, config), Rejected):
        return ""
    # must be inlined, or the compiler keeps the accumulators, an array of the caller, in local memory
    return f"""
extern "C" __device__ __attribute__((always_inline)) void {problem.symbol}_add(
    void* accumulators, void* a, void* b, bool recompute)
{{
    wt::block_gemm_add<{unique}>(accumulators, a, b, recompute);
}}

extern "C" __device__ __attribute__((always_inline)) void {problem.symbol}_finish(
    void* accumulators, void* c, bool recompute)
{{
    wt::block_gemm_finish<{unique}>(accumulators, c, recompute);
}}
"""


def register_accumulators(problem: GemmProblem, symbol: str, config: TileConfig) -> LoopAccumulators | Rejected:
    from warp_tiles.codegen.module_code import LoopAccumulators

    if DTYPE_BYTES[problem.c.dtype] < 4:
        return Rejected("rounded_products", (problem.c.dtype,))
    if not (count := accumulators_per_thread(problem, config)):
        return Rejected("many_function_accumulators")
    accumulators = DTYPES["float64" if computes_in_double(problem) else "float32"]
    return LoopAccumulators(symbol, accumulators.warp_type, count)


class OwnProvider(NvrtcProvider[GemmProblem]):
    """Builds products from the templates in ``kernels/gemm``, as measured or else as the heuristics choose."""

    header = _SOURCE

    def __init__(self, facts: ToolchainFacts, tuned: Tuned | None = None) -> None:
        super().__init__(facts)
        self._tuned = tuned

    def text(self, recipe: Recipe) -> str:
        return unit_of(recipe.problem, recipe.tile_config)

    def recipes(self, problem: GemmProblem) -> tuple[Recipe, ...]:
        """The first recipe is the fastest measured one, the second the chooser's."""
        from warp_tiles.gemm.choose import choose as choose_tiles

        try:
            config = choose_tiles(problem)
        except UnsupportedProblem as error:
            raise UnsupportedProblem(f"{self.name} cannot serve {error.message}") from error
        chosen = Recipe("the provider own", problem, problem.symbol, config)
        tuned = self._tuned.best(problem, (self.name,)) if self._tuned else None
        if tuned is None or tuned.tile_config == config:
            return (chosen,)
        return (replace(chosen, title="the provider own as tuned", tile_config=tuned.tile_config), chosen)


# ---- solvers

_TEMPLATES: dict[Function, tuple[str, str]] = {  # header below kernels/solver, and template
    "cholesky": ("cholesky", "Cholesky"),
    "cholesky_solve": ("solve", "CholeskySolve"),
    "lower_solve": ("solve", "TriangularSolve"),
    "upper_solve": ("solve", "TriangularSolve"),
    "cholesky_adjoint": ("adjoints", "CholeskyAdjoint"),
    "cholesky_solve_adjoint": ("adjoints", "CholeskySolveAdjoint"),
    "lower_solve_adjoint": ("adjoints", "SolveAdjoint"),
    "upper_solve_adjoint": ("adjoints", "SolveAdjoint"),
}


def header_of(problem: SolverProblem) -> str:
    return f"solver/{_TEMPLATES[problem.function][0]}.cuh"


def _matrix(operand: Operand) -> str:
    strides = (operand.leading_dimension, 1) if operand.arrangement == "row_major" else (1, operand.leading_dimension)
    kind = DTYPES[operand.dtype].kernel_type
    return f"wt::solver::Matrix<{kind}, {strides[0]}, {strides[1]}, {operand.alignment}>"


def solver_translation_unit(problem: SolverProblem, config: SolverConfig) -> str:
    """Source of the problem's device function, which takes pointers to its operands and to scratch memory."""
    names = OPERANDS[problem.function]
    numbers = {"n": problem.n, "columns": problem.columns, "threads": problem.threads, "lanes": config.lanes}
    lines = [f"    using {name.upper()} = {_matrix(operand)};" for name, operand in zip(names, problem.operands)]
    lines += [constants("int", numbers), constants("bool", {"in_place": problem.in_place})]
    solve = problem.function.partition("_")[0]
    if solve in ("lower", "upper"):
        order = "forward" if solve == "lower" else "backward"
        lines.append(f"    static constexpr wt::solver::Order order = wt::solver::Order::{order};")
    body = "\n".join(lines)
    unique = unique_name(problem.symbol, body)
    template = f"wt::solver::{_TEMPLATES[problem.function][1]}<{unique}>"
    matrices = [f"{unique}::{name.upper()}::at({name})" for name in names]
    if problem.scratch_elements:
        matrices.append(f"{template}::W::at(w)")
    return f"""#include "{header_of(problem)}"

{struct(unique, body)}

extern "C" __device__ void {problem.symbol}({", ".join(f"void* {name}" for name in problem.parameters)})
{{
    {template}::run({", ".join(matrices)});
}}
"""


class SolverProvider(NvrtcProvider[SolverProblem]):
    """Builds solver functions from the templates in ``kernels/solver``.

    It belongs to the setting's value ``own``: the project's own device code.
    """

    header = "solver/solver.cuh"
    serves = (SolverProblem,)

    def text(self, recipe: Recipe) -> str:
        return unit_of(recipe.problem, recipe.tile_config)

    def recipes(self, problem: SolverProblem) -> tuple[Recipe, ...]:
        if reason := reason_unsupported(problem):
            raise UnsupportedProblem(f"{self.name} cannot serve {reason}")
        return (Recipe("the provider own", problem, problem.symbol, choose(problem)),)


# ---- functions in the source of a module

IN_SOURCE = "functions in the module's source, which Warp compiles with the module, without a limit of registers"


def unit_of(problem: Problem, config: Config | None) -> str:
    """The translation unit of a problem's device function."""
    if isinstance(problem, SolverProblem):
        assert isinstance(config, SolverConfig)
        return solver_translation_unit(problem, config)
    assert isinstance(config, TileConfig)
    return translation_unit(problem, config)


class InSourceProvider(Provider[V]):
    """Leaves the functions of another provider to the source of the module that calls them.

    The compiler of the module compiles them then, which may be Warp's own. It takes the place of a provider whose
    compiler is missing, or whose LTO-IR the linker of the module cannot read.
    """

    name = "own"
    in_source = True

    def __init__(self, provider: NvrtcProvider[V], facts: ToolchainFacts) -> None:
        self._provider, self._facts = provider, facts
        self.serves = provider.serves

    def recipes(self, problem: V) -> tuple[Recipe, ...]:
        return (replace(self._provider.recipes(problem)[0], title=IN_SOURCE),)

    def require(self, problem: V, context: ProviderContext) -> None:
        try:
            self._provider.require(problem, context)
        except WorkerError:  # a crash must not choose the provider
            raise
        except (ToolchainError, UnsupportedProblem):
            return
        raise UnsupportedProblem("NVRTC can build it for the linker of the module")

    def fingerprint(self) -> dict[str, str]:
        return {"source": self._facts.source_digest(self._provider.source())}

    def build(self, recipe: Recipe, context: ProviderContext) -> Built:
        return Built(recipe.symbol, b"")
