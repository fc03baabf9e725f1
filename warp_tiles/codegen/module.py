"""One generated module: which functions its sites call, what its loops do, and its finished source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warp_tiles.codegen.adjoints import unrepeated_sites, waiting_sites
from warp_tiles.codegen.emit import Macros, emit_loads, emit_loops, emit_unrepeated
from warp_tiles.codegen.loads import plan_loads
from warp_tiles.codegen.loops import STAGES, LoopDecision, LoopSums, decide
from warp_tiles.codegen.prelude import waiting_function, with_prelude
from warp_tiles.codegen.trace import ModuleTrace
from warp_tiles.gemm.dtypes import DTYPES
from warp_tiles.gemm.variant import GemmVariant, Role
from warp_tiles.plan.planning import PlannedLoop, Session, Site
from warp_tiles.settings import Settings

SCALAR_FUNCTION = "0"  # Warp's entry templates take the scalar path when given an int for a function


@dataclass(frozen=True)
class DeviceFunction:
    """A function that was built for a variant.

    Attributes:
        symbol: Its name.
        sums: The functions that keep its sums over a loop, or why there are none.
    """

    symbol: str
    sums: LoopSums | str


@dataclass(frozen=True)
class GeneratedModule:
    """A module as Warp generated it.

    Attributes:
        session: Its sites.
        source: Its source, with a placeholder for the prelude.
        trace: What its functions do; empty where Warp's generator could not be followed.
        called: Numbers of the sites whose adjoints are called.
    """

    session: Session
    source: str
    trace: ModuleTrace
    called: frozenset[int]

    def loops(self, functions: Mapping[GemmVariant, DeviceFunction], settings: Settings) -> tuple[PlannedLoop, ...]:
        """What is done with each loop that contains products, for each kernel that runs it.

        Args:
            functions: What is built, by variant.
            settings: Those of the module.
        """
        return tuple(
            PlannedLoop(
                kernel,
                self.trace.functions[decision.function].file,
                decision.loop.line,
                decision.products,
                decision.state,
                STAGES if decision.pipeline is not None else 1,
                decision.reason,
            )
            for decision in self._decisions(functions, settings)
            for kernel in self.trace.kernels_of.get(decision.function, ())
        )

    def text(self, functions: Mapping[GemmVariant, DeviceFunction], settings: Settings) -> str:
        """The finished source.

        Args:
            functions: What was built, by variant. A site one of whose needed products is missing here takes the scalar
                path as a whole, because Warp's templates decide by the forward function alone.
            settings: Those of the module.
        """
        complete = [site for site in self.session.sites if self._is_complete(site, functions)]
        names = dict.fromkeys((s.placeholder(role) for s in self.session.sites for role in Role), SCALAR_FUNCTION)
        declarations: dict[str, str] = {}
        waiting = waiting_sites(self.trace)
        for site in complete:
            forward = (
                functions[site.variants[Role.FORWARD]].symbol if Role.FORWARD in site.variants else SCALAR_FUNCTION
            )
            for role in Role:
                # an adjoint that nothing calls still is an argument; Warp passes the forward function there
                variant = site.variants.get(role) if role in self._needed(site) else None
                symbol = functions[variant].symbol if variant is not None else forward
                if variant is not None:
                    declarations[symbol] = declaration(variant, symbol)
                if variant is not None and role is Role.ADJOINT_B and site.index in waiting:
                    declarations[f"{symbol}_waiting"] = waiting_function(symbol, pointers(variant))
                    symbol = f"{symbol}_waiting"
                names[site.placeholder(role)] = symbol
        macros = Macros()
        decisions = self._decisions(functions, settings)
        for decision in decisions:
            for one in decision.accumulations:
                product = one.operation.product
                assert product is not None
                variant = self.session.sites[product.site].variants[Role.FORWARD]
                declarations[f"{one.sums.symbol}_add"] = loop_declarations(variant, one.sums)
        emit_loops(macros, decisions)
        self._emit_loads(macros, decisions, {site.index for site in complete}, settings)
        if settings.loop_sums:
            unrepeated = unrepeated_sites(self.trace) & {site.index for site in complete}
            for function in self.trace.functions.values():
                emit_unrepeated(macros, function, unrepeated)
        return with_prelude(
            self.source,
            [declarations[name] for name in sorted(declarations)],
            names,
            macros.definitions(self.trace.functions.values()),
            header=bool(complete) and settings.wide_moves,
        )

    def _needed(self, site: Site) -> list[Role]:
        return [role for role in site.variants if role is Role.FORWARD or site.index in self.called]

    def _is_complete(self, site: Site, functions: Mapping[GemmVariant, DeviceFunction]) -> bool:
        return bool(site.variants) and all(site.variants[role] in functions for role in self._needed(site))

    def _decisions(
        self, functions: Mapping[GemmVariant, DeviceFunction], settings: Settings
    ) -> tuple[LoopDecision, ...]:
        sums: dict[int, LoopSums | str] = {}
        for site in self.session.sites:
            if not settings.loop_sums:
                sums[site.index] = "the setting loop_sums is off"
            elif self._is_complete(site, functions) and Role.FORWARD in site.variants:
                sums[site.index] = functions[site.variants[Role.FORWARD]].sums
            else:
                sums[site.index] = f"the product takes Warp's scalar path: {site.scalar_reason or 'nothing was built'}"
        return tuple(
            decision
            for function in self.trace.functions.values()
            for decision in decide(self.trace, function, sums, ahead=settings.wide_moves)
        )

    def _emit_loads(
        self, macros: Macros, decisions: tuple[LoopDecision, ...], complete: set[int], settings: Settings
    ) -> None:
        if not settings.wide_moves:
            return
        ahead = {decision.loop.hook for decision in decisions if decision.pipeline is not None}
        for function in self.trace.functions.values():
            served = (operation.product for operation in function.operations() if operation.product is not None)
            if any(product.site in complete for product in served):
                emit_loads(macros, plan_loads(function, ahead), plan_loads(function))


def pointers(variant: GemmVariant) -> tuple[str, ...]:
    """Types that Warp passes to a variant's device function: pointers to alpha, A, B, beta and C."""
    a, b, c = (f"{DTYPES[operand.dtype].warp_type}*" for operand in (variant.a, variant.b, variant.c))
    return c, a, b, c, c


def declaration(variant: GemmVariant, symbol: str) -> str:
    """C++ declaration of a variant's device function."""
    return f"void {symbol}({', '.join(pointers(variant))});"


def loop_declarations(variant: GemmVariant, sums: LoopSums) -> str:
    """C++ declarations of the two functions that keep a variant's sums over a loop."""
    a, b, c = (DTYPES[operand.dtype].warp_type for operand in (variant.a, variant.b, variant.c))
    add = f"void {sums.symbol}_add({sums.ctype}*, {a}*, {b}*);"
    return f"{add}\nvoid {sums.symbol}_finish({sums.ctype}*, {c}*);"
