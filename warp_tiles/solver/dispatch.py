"""From the tiles of one solver call to the variants it needs.

Everything here is a pure function of plain values: no Warp, no toolchain, no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warp_tiles.gemm.dispatch import Target, Tile, leading_dimension, operand_of
from warp_tiles.gemm.problem import Operand, Role
from warp_tiles.solver.variant import Function, SolverVariant


@dataclass(frozen=True)
class SolverCall:
    """One call of a solver builtin of Warp.

    Attributes:
        triangle: The square tile that is read: A of ``cholesky``, else the factor or triangle.
        result: The tile that is written; the last input of an in-place call.
        rhs: The right-hand side Y; None for ``cholesky``. A vector is a tile of one column.
        upper: True if factors are upper triangles.
        in_place: True if the result replaces an input.
    """

    function: Function
    triangle: Tile
    result: Tile
    rhs: Tile | None = None
    upper: bool = False
    in_place: bool = False


@dataclass(frozen=True)
class Solvers:
    """The variants of one call, or the reason why there are none.

    Attributes:
        variants: By role; an adjoint only where Warp has one.
        reason_unsupported: The reason why no function of this project can serve the call; empty if one may.
    """

    variants: Mapping[Role, SolverVariant]
    reason_unsupported: str = ""


def solvers(call: SolverCall, target: Target) -> Solvers:
    """The forward function of a call, and its adjoint if Warp differentiates the call."""
    tiles = {"the triangle": call.triangle, "the right-hand side": call.rhs, "the result": call.result}
    found: list[Operand] = []
    for name, tile in tiles.items():
        if tile is None:
            continue
        derived = leading_dimension(tile)
        if derived is None:
            return Solvers(
                {}, f"{name} with shape={tile.shape} strides={tile.strides} cannot be expressed as a leading dimension"
            )
        found.append(operand_of(tile, *derived))
    assert target.arch is not None
    n, columns = call.triangle.shape[0], call.result.shape[1]

    def variant(function: Function, operands: tuple[Operand, ...], in_place: bool) -> SolverVariant:
        return SolverVariant(function, n, columns, operands, in_place, target.threads, target.arch or 0)

    if call.function == "cholesky":
        a, factor = (operand.transposed() if call.upper else operand for operand in found)
        variants = {Role.FORWARD: variant("cholesky", (a, factor), call.in_place)}
        if not call.in_place:  # a gradient lies as its tile does
            variants[Role.ADJOINT] = variant("cholesky_adjoint", (factor, factor, a), False)
        return Solvers(variants)
    t, y, x = found
    if call.function == "cholesky_solve" and call.upper:
        t = t.transposed()
    variants = {Role.FORWARD: variant(call.function, (t, y, x), call.in_place)}
    if call.function == "lower_solve" and not call.in_place:
        variants[Role.ADJOINT] = variant("lower_solve_adjoint", (t, x, x, y, t), False)
    return Solvers(variants)
