"""A generated module: the functions that its sites call, the decisions about its loops, and its finished source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from warp_tiles.codegen.adjoints import sites_without_replay, waiting_sites
from warp_tiles.codegen.emit import emit_loads, emit_loops, skip_replays
from warp_tiles.codegen.emit_reverse import emit_reverse, reversed_types
from warp_tiles.codegen.emit_stages import staged_types
from warp_tiles.codegen.emit_store_adjoints import emit_store_adjoints
from warp_tiles.codegen.emit_stores import emit_computed_stores, emit_sum_store
from warp_tiles.codegen.loads import plan_loads
from warp_tiles.codegen.loops import LoopDecision, LoopSums, LoopTarget, decide
from warp_tiles.codegen.macros import Macros
from warp_tiles.codegen.prelude import prefix_of, waiting_function, with_prelude
from warp_tiles.codegen.reverse import ReverseRing
from warp_tiles.codegen.stores import computed_stores
from warp_tiles.codegen.sum_stores import SumStore
from warp_tiles.codegen.trace import ModuleTrace
from warp_tiles.codegen.whole import whole_product
from warp_tiles.gemm.dtypes import DTYPES
from warp_tiles.gemm.hardware import THREAD_REGISTERS
from warp_tiles.gemm.main_loop import AUTO, InstructionFamily, LoopChoice
from warp_tiles.gemm.variant import GemmVariant, Role
from warp_tiles.heuristics.resources import max_registers, wanted_blocks
from warp_tiles.plan.planning import PlannedLoop, Session, Site
from warp_tiles.plan.whole import WholeProduct
from warp_tiles.settings import Settings
from warp_tiles.solver.variant import SolverVariant, Variant

WHOLE_GRADIENTS = "two products of whole arrays, if a launch on a GPU covers large arrays; else the adjoint kernel"
SCALAR_FUNCTION = "0"  # Warp's templates take the scalar path if they get an int in place of a function


@dataclass(frozen=True)
class DeviceFunction:
    """A function that was built for a variant.

    Attributes:
        symbol: Its name.
        sums: The functions that keep its sums over a loop, or the reason why there are none.
        own: True if the provider ``mma`` built it, so that loops may multiply in its place.
    """

    symbol: str
    sums: LoopSums | str
    own: bool = False


@dataclass
class _Calls:
    """The device functions that a module calls.

    Attributes:
        names: What each placeholder stands for.
        declarations: C++ declarations of the functions, by name.
        solvers: C++ types that stand for solver functions, by the functions' names.
        callers: Keys of the functions of the module that call any.
    """

    names: dict[str, str]
    declarations: dict[str, str] = field(default_factory=dict)
    solvers: dict[str, str] = field(default_factory=dict)
    callers: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class GeneratedModule:
    """A module as Warp generated it.

    Attributes:
        session: Its sites.
        source: Its source, with a placeholder for the prelude.
        trace: The traces of its functions; empty if Warp's code generator could not be followed.
        called: Numbers of the sites whose adjoints are called.
    """

    session: Session
    source: str
    trace: ModuleTrace
    called: frozenset[int]
    # plan, source and build record of a module ask for the same decisions
    _decisions: dict[object, tuple[LoopDecision, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def prefix(self) -> str:
        """The source up to the declarations: Warp's headers and macros, which many modules have in common."""
        return prefix_of(self.source)

    def loops(
        self, functions: Mapping[Variant, DeviceFunction], settings: Settings, *, suffix: bool = True
    ) -> tuple[PlannedLoop, ...]:
        """Returns the decision about each loop that contains products, once for each kernel that runs the loop.

        Args:
            functions: The functions that are built, by variant.
            settings: The settings of the module.
            suffix: True if the module may be compiled for an architecture-specific target such as ``sm_90a``.
        """
        return tuple(
            PlannedLoop(
                kernel,
                self.trace.functions[decision.function].file,
                decision.loop.line,
                decision.products,
                decision.state,
                decision.stages,
                decision.reason,
                decision.instruction,
                decision.sums,
                self._gradients(decision.function, settings),
                decision.reverse_reason,
                decision.reverse_instructions,
                decision.store_reason,
                decision.operands,
                decision.load_reason,
            )
            for decision in self._decide(functions, settings, suffix)
            for kernel in self.trace.kernels_of.get(decision.function, ())
        )

    def whole_products(self) -> dict[str, WholeProduct]:
        """Returns the kernels that are a product of whole arrays and have an adjoint, by their keys."""
        reversed_kernels = {label: key for label, key in self.trace.kernels.items() if label in self.trace.reversed}
        found = {key: self._whole_product(label) for label, key in reversed_kernels.items()}
        return {key: whole for key, whole in found.items() if isinstance(whole, WholeProduct)}

    def _whole_product(self, label: str) -> WholeProduct | str:
        """The product that a function computes, or the reason why its adjoint computes the gradients."""
        if label not in self.trace.kernels:
            return "the loop is in a function"
        if list(self.trace.kernels.values()).count(self.trace.kernels[label]) > 1:
            return "several kernels of the module have its name"
        found = whole_product(self.trace.functions[label])
        return found if isinstance(found, str) else replace(found, tf32=self.session.sites[found.site].is_tf32)

    def _gradients(self, label: str, settings: Settings) -> str:
        """How a tape computes the gradients of a loop; empty if the function has no adjoint."""
        if label not in self.trace.reversed:
            return ""
        if settings.gemm_gradients == "off":
            return f"the adjoint kernel: {settings.named('gemm_gradients')} is 'off'"
        found = self._whole_product(label)
        return f"the adjoint kernel: {found}" if isinstance(found, str) else WHOLE_GRADIENTS

    def reserved_bytes(
        self, functions: Mapping[Variant, DeviceFunction], settings: Settings, *, suffix: bool
    ) -> dict[str, tuple[int, int]]:
        """Returns the bytes of shared memory that functions need beyond their tiles, by the functions' labels.

        The second number is that of the reverse pass, beyond the tiles and their gradients.
        """
        reserved: dict[str, tuple[int, int]] = {}
        for decision in self._decide(functions, settings, suffix):
            needed = decision.extra_bytes, decision.reverse_extra_bytes
            if any(needed):
                forward, backward = reserved.get(decision.function, (0, 0))
                reserved[decision.function] = max(forward, needed[0]), max(backward, needed[1])
        return reserved

    def text(self, functions: Mapping[Variant, DeviceFunction], settings: Settings, *, suffix: bool = True) -> str:
        """Returns the finished source.

        Args:
            functions: The functions that were built, by variant. If a needed function of a site is missing, all its
                products take the scalar path, because Warp's templates look only at the forward function.
            settings: The settings of the module.
            suffix: See :meth:`loops`.
        """
        complete = [site for site in self._product_sites() if self._is_complete(site, functions)]
        calls = _Calls({s.placeholder(role): SCALAR_FUNCTION for s in self.session.sites for role in s.roles})
        self._call_solvers(calls, functions)
        self._call_products(calls, complete, functions)
        macros = Macros()
        decisions = self._decide(functions, settings, suffix)
        for decision in decisions:
            if decision.instruction:
                continue
            for accumulation in decision.accumulations:
                operation, sums = accumulation.operation, accumulation.sums
                assert operation.product is not None
                summed = self._product(self.session.sites[operation.product.site], Role.FORWARD)
                assert summed is not None
                calls.declarations[f"{sums.symbol}_add"] = loop_declarations(summed, sums)
        emit_loops(macros, self.trace, decisions)
        if settings.async_copies and calls.callers:
            self._emit_moves(macros, decisions)
        if settings.register_accumulators:
            sites = sites_without_replay(self.trace) & {site.index for site in complete}
            for function in self.trace.functions.values():
                skip_replays(macros, function, sites)
        for decision in decisions:
            emit_reverse(macros, decision)
        return with_prelude(
            self.source,
            [calls.declarations[name] for name in sorted(calls.declarations)],
            calls.names,
            macros.definitions(self.trace.functions.values()),
            header=bool(calls.callers) and settings.async_copies,
            staged=[text for decision in decisions for text in staged_types(decision)],
            reversed_loops=[text for decision in decisions for text in reversed_types(decision)],
            solvers=[calls.solvers[symbol] for symbol in sorted(calls.solvers)],
        )

    def _call_solvers(self, calls: _Calls, functions: Mapping[Variant, DeviceFunction]) -> None:
        """Add the calls of the solver functions that were built. Each one can take the scalar path alone."""
        for site in self.session.sites:
            for role in self._needed(site):
                variant = site.variants[role]
                if isinstance(variant, SolverVariant) and variant in functions:
                    symbol = functions[variant].symbol
                    calls.declarations[symbol] = solver_declaration(variant, symbol)
                    calls.solvers[symbol] = solver_struct(variant, symbol)
                    calls.callers.add(site.function)
                    calls.names[site.placeholder(role)] = f"wt::Solver<{symbol}_call>{{}}"

    def _call_products(
        self, calls: _Calls, complete: Iterable[Site], functions: Mapping[Variant, DeviceFunction]
    ) -> None:
        """Add the calls of the products whose needed functions were all built."""
        waiting = waiting_sites(self.trace)
        for site in complete:
            calls.callers.add(site.function)
            forward = (
                functions[site.variants[Role.FORWARD]].symbol if Role.FORWARD in site.variants else SCALAR_FUNCTION
            )
            for role in site.roles:
                # an adjoint that nothing calls is still an argument; as in Warp, it is the forward function
                product = self._product(site, role) if role in self._needed(site) else None
                symbol = functions[product].symbol if product is not None else forward
                if product is not None:
                    calls.declarations[symbol] = declaration(product, symbol)
                if product is not None and role is Role.ADJOINT_B and site.index in waiting:
                    calls.declarations[f"{symbol}_waiting"] = waiting_function(symbol, pointers(product))
                    symbol = f"{symbol}_waiting"
                calls.names[site.placeholder(role)] = symbol

    def _product_sites(self) -> list[Site]:
        return [site for site in self.session.sites if not site.is_solver]

    def _product(self, site: Site, role: Role) -> GemmVariant | None:
        variant = site.variants.get(role)
        return variant if isinstance(variant, GemmVariant) else None

    def _needed(self, site: Site) -> list[Role]:
        return [role for role in site.variants if role is Role.FORWARD or site.index in self.called]

    def _is_complete(self, site: Site, functions: Mapping[Variant, DeviceFunction]) -> bool:
        return bool(site.variants) and all(site.variants[role] in functions for role in self._needed(site))

    def _decide(
        self, functions: Mapping[Variant, DeviceFunction], settings: Settings, suffix: bool
    ) -> tuple[LoopDecision, ...]:
        key = frozenset(functions.items()), settings, suffix
        if key not in self._decisions:
            self._decisions[key] = self._decide_loops(functions, settings, suffix)
        return self._decisions[key]

    def _decide_loops(
        self, functions: Mapping[Variant, DeviceFunction], settings: Settings, suffix: bool
    ) -> tuple[LoopDecision, ...]:
        sums: dict[int, LoopSums | str] = {}
        for site in self._product_sites():
            if not settings.register_accumulators:
                sums[site.index] = "the setting register_accumulators is off"
            elif self._is_complete(site, functions) and Role.FORWARD in site.variants:
                sums[site.index] = functions[site.variants[Role.FORWARD]].sums
            else:
                sums[site.index] = f"the product takes Warp's scalar path: {site.scalar_reason or 'nothing was built'}"

        def decisions(target: LoopTarget) -> tuple[LoopDecision, ...]:
            return tuple(
                decision
                for function in self.trace.functions.values()
                for decision in decide(self.trace, function, sums, ahead=settings.async_copies, target=target)
            )

        target = self._loop_target(functions, settings, suffix)
        found = decisions(target)
        limit = THREAD_REGISTERS if settings.linker == "warp" else self._register_limit(found)
        return found if limit == target.registers else decisions(replace(target, registers=limit))

    def _register_limit(self, decisions: Iterable[LoopDecision]) -> int:
        """Registers of a thread in the module if warp_tiles links it, as far as its loops decide."""
        threads = self.session.block_dim
        blocks = wanted_blocks(threads, own_templates=True, loops=decisions)
        return max_registers(threads, blocks) or THREAD_REGISTERS

    def _loop_target(self, functions: Mapping[Variant, DeviceFunction], settings: Settings, suffix: bool) -> LoopTarget:
        """What the loops of the module may use."""
        if not settings.register_accumulators:
            return LoopTarget(obstacle="the setting register_accumulators is off")
        choice = LoopChoice.parse(settings.main_loop)
        if choice.family == "double_buffered":
            return LoopTarget(obstacle=f"{settings.named('main_loop')} is 'double_buffered'")
        variants = {
            site.index: product
            for site in self._product_sites()
            if self._is_complete(site, functions) and (product := self._product(site, Role.FORWARD)) is not None
            if functions[product].own
        }
        mma: tuple[InstructionFamily, ...] = ("mma",)
        asked = "" if choice == AUTO else f"{settings.named('main_loop')} is '{settings.main_loop}'"
        if choice.family == "mma":
            return LoopTarget(variants, mma, asked, choice)
        if choice.family == "wgmma" and not (suffix and self.session.arch == 90):
            return LoopTarget(obstacle=f"{asked}, and wgmma needs a cubin for sm_90a that is linked here")
        if not suffix and self.session.arch == 90:
            return LoopTarget(variants, mma, "wgmma needs a cubin for sm_90a that is linked here", choice)
        return LoopTarget(variants, ("wgmma",) if choice.family else ("wgmma", *mma), asked, choice)

    def _emit_moves(self, macros: Macros, decisions: tuple[LoopDecision, ...]) -> None:
        """Writes the loads and stores of all functions of the module."""
        ahead = {decision.loop.hook for decision in decisions if decision.pipeline is not None}
        reversed_loops = {decision.loop.hook for decision in decisions if isinstance(decision.reverse, ReverseRing)}
        from_sums = [decision.sum_store for decision in decisions if isinstance(decision.sum_store, SumStore)]
        stored = {found.computed.store for found in from_sums}
        for found in from_sums:
            emit_sum_store(macros, found)
        for function in self.trace.functions.values():
            emit_loads(macros, plan_loads(function, ahead), plan_loads(function, reversed_loops))
            emit_computed_stores(macros, [found for found in computed_stores(function) if found.store not in stored])
            emit_store_adjoints(macros, self.trace, function)


def pointers(variant: GemmVariant) -> tuple[str, ...]:
    """Returns the C++ types of the parameters of a variant's device function: alpha, A, B, beta and C."""
    a, b, c = (f"{DTYPES[operand.dtype].warp_type}*" for operand in (variant.a, variant.b, variant.c))
    return c, a, b, c, c


def solver_declaration(variant: SolverVariant, symbol: str) -> str:
    """C++ declaration of a solver variant's device function."""
    return f"void {symbol}({', '.join('void*' for _ in variant.parameters)});"


def solver_struct(variant: SolverVariant, symbol: str) -> str:
    """C++ of a type that stands for a solver function, as ``kernels/module/solvers.cuh`` uses it."""
    parameters = ", ".join(f"void* {name}" for name in variant.parameters)
    return (
        f"struct {symbol}_call {{\n"
        f"    static constexpr int scratch = {variant.scratch_elements};\n"
        f"    static CUDA_CALLABLE void run({parameters}) {{ {symbol}({', '.join(variant.parameters)}); }}\n"
        "};"
    )


def declaration(variant: GemmVariant, symbol: str) -> str:
    """Returns the C++ declaration of a variant's device function."""
    return f"void {symbol}({', '.join(pointers(variant))});"


def loop_declarations(variant: GemmVariant, sums: LoopSums) -> str:
    """Returns the C++ declarations of the two functions that keep a variant's sums over a loop."""
    a, b, c = (DTYPES[operand.dtype].warp_type for operand in (variant.a, variant.b, variant.c))
    add = f"void {sums.symbol}_add({sums.ctype}*, {a}*, {b}*);"
    return f"{add}\nvoid {sums.symbol}_finish({sums.ctype}*, {c}*);"
