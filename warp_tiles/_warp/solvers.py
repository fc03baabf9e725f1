"""Hooks of Warp's code generation for solver functions: Cholesky factors and triangular solves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from warp_tiles._warp.seams import mathdx_enabled
from warp_tiles._warp.sites import Sites
from warp_tiles._warp.translate import matrix_of
from warp_tiles.build.engine import Engine
from warp_tiles.errors import LockedError
from warp_tiles.gemm.dispatch import Target
from warp_tiles.gemm.variant import Role
from warp_tiles.heuristics.solver import obstacle
from warp_tiles.settings import Settings
from warp_tiles.solver.dispatch import SolverCall, Solvers, solvers
from warp_tiles.solver.variant import Function

OPTION = "enable_mathdx_solver"  # Warp's module option
BUILTINS: dict[str, Function] = {
    "tile_cholesky": "cholesky",
    "tile_cholesky_inplace": "cholesky",
    "tile_cholesky_solve": "cholesky_solve",
    "tile_cholesky_solve_inplace": "cholesky_solve",
    "tile_lower_solve": "lower_solve",
    "tile_lower_solve_inplace": "lower_solve",
    "tile_upper_solve": "upper_solve",
    "tile_upper_solve_inplace": "upper_solve",
}
"""Warp's solver builtins, and what each computes."""


class SolverHooks:
    """Replaces the solver functions that Warp would build during code generation.

    Args:
        sites: Registers the call sites.
        engine: Knows whether there is a toolchain.
    """

    def __init__(self, sites: Sites, engine: Engine) -> None:
        self._sites = sites
        self._engine = engine

    def dispatch(
        self,
        name: str,
        original: Callable[..., tuple[Any, ...]],
        arg_types: Mapping[str, Any],
        return_type: Any,
        return_values: list[Any],
        arg_values: Mapping[str, Any],
        options: Mapping[str, Any],
        builder: Any,
    ) -> tuple[Any, ...]:
        """Replaces the ``lto_dispatch_func`` of a solver builtin.

        Warp's function for its native path checks the arguments, puts tiles into shared memory, and returns a zero for
        each function that a call may name. Placeholders take the place of the zeros.

        Raises:
            LockedError: The policy is ``locked``, and only libmathdx can serve the call.
        """
        arguments = (arg_types, return_type, return_values, arg_values)
        if builder is None or options["output_arch"] is None:
            return original(*arguments, options, builder)
        resolved = self._sites.settings_of(options, builder)
        if resolved.policy == "off":
            return original(*arguments, options, builder)
        values, template, payloads, shared = original(*arguments, {**options, OPTION: False}, builder)
        functions = sum(isinstance(value, int) for value in values)
        roles = (Role.FORWARD, Role.ADJOINT)[:functions]  # a third function, which Warp has for cholesky, stays 0
        tiles = values[functions:]
        call = _call(name, tiles, upper=bool(template and template[0]), in_place=not return_values)
        found = solvers(call, Target(int(options["output_arch"]), int(options["block_dim"])))
        provider, reason = self._provider(found, options, resolved)
        if provider == "libmathdx":
            if not resolved.rules.builds:
                raise LockedError(
                    f"{resolved.named('policy')} is 'locked', and {name} in '{self._sites.function(builder)}' needs "
                    f"libmathdx, of which nothing is cached: {reason}"
                )
            self._sites.add(builder, name, {}, reason, roles=roles, provider="libmathdx")
            return original(*arguments, options, builder)
        names = self._sites.add(builder, name, found.variants if provider == "mma" else {}, reason, roles=roles)
        return ((*names, *values[len(names) :]), template, payloads, shared)

    def _provider(self, found: Solvers, options: Mapping[str, Any], resolved: Settings) -> tuple[str, str]:
        """Who serves a call, and why it is not this project's code."""
        if not options.get(OPTION, True):
            return "scalar", f"the option {OPTION} is off"
        if not mathdx_enabled():
            return "scalar", "this Warp was built without MathDx, so its kernels cannot call solver functions"
        forward = found.variants.get(Role.FORWARD)
        reason = found.obstacle or (obstacle(forward) if forward else "")
        if "mma" not in resolved.providers:
            layer = "provider" if resolved.provider != "auto" else "policy"
            reason = f"{resolved.named(layer)} is {getattr(resolved, layer)!r}"
        elif not reason and self._engine.build_context(resolved).try_toolchain() is None:
            reason = "there is no toolchain"
        if not reason:
            return "mma", ""
        return ("libmathdx" if "libmathdx" in resolved.providers else "scalar"), reason


def _call(name: str, tiles: tuple[Any, ...], *, upper: bool, in_place: bool) -> SolverCall:
    function = BUILTINS[name]
    matrices = [matrix_of(tile) for tile in tiles]
    rhs = matrices[1] if function != "cholesky" else None
    return SolverCall(function, matrices[0], matrices[-1], rhs, upper, in_place)
