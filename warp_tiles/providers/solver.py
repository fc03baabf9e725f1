"""The provider of this project's own solver functions."""

from __future__ import annotations

from typing import ClassVar

from warp_tiles.errors import UnsupportedVariant
from warp_tiles.gemm.problem import DTYPES, Operand
from warp_tiles.providers.base import Recipe
from warp_tiles.providers.nvrtc import OwnProvider, constants, unique_name
from warp_tiles.solver.variant import OPERANDS, Function, SolverConfig, SolverVariant, choose, reason_unsupported

SOURCE = "solver/solver.cuh"  # below kernels/; it includes every header that a variant may need

_TEMPLATES: dict[Function, tuple[str, str]] = {  # header below kernels/solver, and template
    "cholesky": ("cholesky", "Cholesky"),
    "cholesky_solve": ("solve", "CholeskySolve"),
    "lower_solve": ("solve", "TriangularSolve"),
    "upper_solve": ("solve", "TriangularSolve"),
    "cholesky_adjoint": ("adjoints", "CholeskyAdjoint"),
    "lower_solve_adjoint": ("adjoints", "LowerSolveAdjoint"),
}


def header_of(variant: SolverVariant) -> str:
    """The header that has the template of a variant, below ``kernels/``."""
    return f"solver/{_TEMPLATES[variant.function][0]}.cuh"


def _matrix(operand: Operand) -> str:
    strides = (operand.leading_dimension, 1) if operand.arrangement == "row_major" else (1, operand.leading_dimension)
    kind = DTYPES[operand.dtype].kernel_type
    return f"wt::solver::Matrix<{kind}, {strides[0]}, {strides[1]}, {operand.alignment}>"


def solver_translation_unit(variant: SolverVariant, config: SolverConfig) -> str:
    """Source of the variant's device function, which takes pointers to its operands and to scratch memory."""
    names = OPERANDS[variant.function]
    numbers = {"n": variant.n, "columns": variant.columns, "threads": variant.threads, "lanes": config.lanes}
    lines = [f"    using {name.upper()} = {_matrix(operand)};" for name, operand in zip(names, variant.operands)]
    lines += [constants("int", numbers), constants("bool", {"in_place": variant.in_place})]
    if variant.function in ("lower_solve", "upper_solve"):
        order = "forward" if variant.function == "lower_solve" else "backward"
        lines.append(f"    static constexpr wt::solver::Order order = wt::solver::Order::{order};")
    body = "\n".join(lines)
    unique = unique_name(variant.symbol, body)
    template = f"wt::solver::{_TEMPLATES[variant.function][1]}<{unique}>"
    matrices = [f"{unique}::{name.upper()}::at({name})" for name in names]
    if variant.scratch_elements:
        matrices.append(f"{template}::W::at(w)")
    return f"""#include "{header_of(variant)}"

struct {unique} {{
{body}
}};

extern "C" __device__ void {variant.symbol}({", ".join(f"void* {name}" for name in variant.parameters)})
{{
    {template}::run({", ".join(matrices)});
}}
"""


class SolverProvider(OwnProvider[SolverVariant]):
    """Builds solver variants from the templates in ``kernels/solver``.

    It belongs to the setting's value ``mma``: the project's own device code.
    """

    schema = 1
    header = SOURCE
    serves: ClassVar[tuple[type, ...]] = (SolverVariant,)

    def text(self, recipe: Recipe) -> str:
        """See :class:`NvrtcProvider`."""
        assert isinstance(recipe.variant, SolverVariant)
        assert isinstance(recipe.tile_config, SolverConfig)
        return solver_translation_unit(recipe.variant, recipe.tile_config)

    def recipes(self, variant: SolverVariant) -> tuple[Recipe, ...]:
        """See :meth:`Provider.recipes`."""
        if reason := reason_unsupported(variant):
            raise UnsupportedVariant(f"{self.name} cannot serve {reason}")
        return (Recipe("the provider mma", variant, variant.symbol, choose(variant)),)
