"""Hooks of Warp's code generation for solver functions: Cholesky factors and triangular solves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from warp_tiles._warp.internals import SOLVER_OPTION, SOLVERS, mathdx_enabled
from warp_tiles._warp.sites import CallSites
from warp_tiles._warp.translate import tile_of
from warp_tiles.build.engine import Engine
from warp_tiles.errors import LockedError, ToolchainError, UnsupportedVariant
from warp_tiles.gemm.dispatch import Target
from warp_tiles.gemm.problem import Role
from warp_tiles.settings import Settings
from warp_tiles.solver.variant import SolverVariant, solvers


def dispatch_solver(
    sites: CallSites,
    engine: Engine,
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
        UnsupportedVariant: The settings name the provider ``mma``, and no leading dimension expresses a tile.
    """
    arguments = (arg_types, return_type, return_values, arg_values)
    if builder is None or options["output_arch"] is None:
        return original(*arguments, options, builder)
    resolved = sites.settings_of(options, builder)
    if resolved.policy == "off":
        return original(*arguments, options, builder)
    values, template, payloads, shared = original(*arguments, {**options, SOLVER_OPTION: False}, builder)
    functions = sum(isinstance(value, int) for value in values)
    roles = (Role.FORWARD, Role.ADJOINT)[:functions]  # a third function, which Warp has for cholesky, stays 0
    function, tiles = SOLVERS[name], [tile_of(tile) for tile in values[functions:]]
    found = solvers(
        function,
        [*(tiles[:1] if function == "cholesky" else tiles[:2]), tiles[-1]],
        Target(int(options["output_arch"]), int(options["block_dim"])),
        upper=bool(template and template[0]),
        in_place=not return_values,
    )
    allowed = bool(options.get(SOLVER_OPTION, True))
    provider, reason = _without_functions(options, resolved) or _provider(sites, engine, found, resolved, allowed)
    if provider == "mma" and isinstance(found, str):
        raise UnsupportedVariant(
            f"In '{sites.function(builder)}': mma cannot serve {name}, {found}",
            remedy=f"copy it to a tile of its own, or {resolved.remedy('provider', 'auto')}",
        )
    if provider == "libmathdx":
        if not resolved.rules.builds:
            raise LockedError(
                f"{resolved.named('policy')} is 'locked', and {name} in '{sites.function(builder)}' needs "
                f"libmathdx, whose builds are not cached: {reason}",
                remedy=f"set the module option {SOLVER_OPTION}=False for Warp's scalar path",
            )
        sites.add(builder, name, {}, roles=roles, scalar_reason=reason, provider="libmathdx")
        return original(*arguments, options, builder)
    variants = {} if provider != "mma" or isinstance(found, str) else found
    names = sites.add(builder, name, variants, roles=roles, scalar_reason=reason)
    return ((*names, *values[len(names) :]), template, payloads, shared)


def _provider(
    sites: CallSites, engine: Engine, found: Mapping[Role, SolverVariant] | str, resolved: Settings, libmathdx: bool
) -> tuple[str, str]:
    """The provider of a call, and the reason why it is not ``mma``.

    ``libmathdx`` is False if the module opts out of libmathdx.
    """
    if resolved.provider == "mma":  # the engine raises the reason why it cannot build the variant, here and below
        return "mma", ""
    other = "scalar"
    # cuBLASDx has no solvers, so Warp builds them as it does without warp_tiles
    if libmathdx and not {"libmathdx", "cublasdx"}.isdisjoint(resolved.providers):
        other = "libmathdx"
    if "mma" not in resolved.providers:
        layer = "provider" if resolved.provider != "auto" else "policy"
        return other, resolved.against(layer, "auto")
    if isinstance(found, str):
        return other, found
    chain, forward = engine.chain(resolved), found[Role.FORWARD]
    match = chain.match(chain.order(forward)[0], forward, engine.build_context(resolved))
    if match.reason_unsupported is None:
        return "mma", ""
    if isinstance(match.reason_unsupported, ToolchainError):
        if not chain.replaces_missing_toolchains:
            return "mma", ""
        if not sites.reloads.is_planning:
            engine.warn_of_toolchain(match.reason_unsupported, other)
    return other, match.reason_unsupported.message


def _without_functions(options: Mapping[str, Any], resolved: Settings) -> tuple[str, str] | None:
    """The scalar path and the reason for it, if a module cannot call solver functions."""
    if not options.get(SOLVER_OPTION, True) and resolved.mathdx_opt_out == "warp":
        return "scalar", f"the option {SOLVER_OPTION} is off: remove it, or set mathdx_opt_out to 'own'"
    if not mathdx_enabled():
        return (
            "scalar",
            "kernels of a Warp without MathDx cannot call solver functions: install a warp-lang with it",
        )
    return None
