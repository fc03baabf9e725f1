"""The modules that Warp is generating, and the call sites in them that need functions of products or solvers."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from warp_tiles._warp.internals import find
from warp_tiles._warp.reload import Reloads
from warp_tiles._warp.tracing import Tracer
from warp_tiles.gemm.problem import PRODUCT_ROLES, Role
from warp_tiles.plan.planning import Session
from warp_tiles.settings import Settings, current
from warp_tiles.solver.variant import Variant

if TYPE_CHECKING:
    from warp_tiles._warp.generation import BuilderState


class CallSites:
    """Registers call sites, and keeps the state of each module while Warp generates it."""

    def __init__(self, reloads: Reloads, tracer: Tracer) -> None:
        self.reloads = reloads
        self.tracer = tracer
        self._states: weakref.WeakKeyDictionary[Any, BuilderState] = weakref.WeakKeyDictionary()

    def existing_state(self, builder: Any) -> BuilderState | None:
        """The state of a module, or None if nothing has asked for it yet."""
        return self._states.get(builder)

    def state(self, builder: Any) -> BuilderState:
        """The state of a module; the first call creates it."""
        state = self._states.get(builder)
        if state is None:
            from warp_tiles._warp.generation import BuilderState

            options, module = builder.options, builder.module
            block_dim = int(options["block_dim"])
            hashed = getattr(module.hashers.get(block_dim), "warp_tiles_settings", None)
            resolved = hashed or self.reloads.settings_of(options, module)
            session = Session(module.name, options.get("output_arch"), block_dim, settings=resolved)
            state = self._states[builder] = BuilderState(session)
        return state

    def settings_of(self, options: Mapping[str, Any], builder: Any = None) -> Settings:
        """The settings of the module that is being generated. Without a builder its options alone decide."""
        return current(options) if builder is None else self.state(builder).session.settings

    def function(self, builder: Any) -> str:
        """The label of the function that is being generated."""
        return self.state(builder).label(self.tracer.adjoint)

    def add(
        self,
        builder: Any,
        call: str,
        variants: Mapping[Role, Variant],
        operands: tuple[Any, ...] = (),
        *,
        roles: tuple[Role, ...] = PRODUCT_ROLES,
        **facts: str,
    ) -> tuple[Any, ...]:
        """Registers a call site (:class:`warp_tiles.plan.planning.Site`). The operands are A and B as Warp has them.

        Returns:
            The function arguments of the generated call: for each role a placeholder that the prelude defines, or 0.
        """
        # the scalar path has no bfloat16 adjoints; only the finished source shows whether it calls them
        bfloat16 = any(operand.type.dtype.__name__ == "bfloat16" for operand in operands)
        state = self.state(builder)
        label = self.function(builder)
        site = state.session.add(call, label, variants, bfloat16_operands=bfloat16, roles=roles, **facts)
        state.adjoint_of_site[site.index] = id(self.tracer.adjoint)
        if not variants and self.tracer.recorder() is None:
            return (0,) * len(roles)
        from warp_tiles._warp.generation import declare_prelude

        declare_prelude(builder)
        var = find("codegen.Var")
        return tuple(var(site.placeholder(role), str, False, True, False) for role in roles)
