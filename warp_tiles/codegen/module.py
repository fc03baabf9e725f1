"""A generated module: the functions that its sites call, the decisions about its loops, and its finished source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from warp_tiles.codegen.adjoints import sites_without_replay, waiting_sites
from warp_tiles.codegen.emit_loops import (
    emit_loads,
    emit_loops,
    emit_reverse,
    reversed_types,
    skip_replays,
    staged_types,
)
from warp_tiles.codegen.emit_stores import emit_computed_stores, emit_store_adjoints, emit_sum_store
from warp_tiles.codegen.hooks import Macros
from warp_tiles.codegen.loads import plan_loads
from warp_tiles.codegen.loops import LoopDecision, LoopSums, LoopTarget, decide
from warp_tiles.codegen.prelude import prefix_of, waiting_function, with_prelude
from warp_tiles.codegen.reverse import ReverseRing
from warp_tiles.codegen.stores import computed_stores
from warp_tiles.codegen.sum_stores import SumStore
from warp_tiles.codegen.trace import ModuleTrace, Operation
from warp_tiles.codegen.whole import whole_product
from warp_tiles.gemm.dtypes import DTYPES
from warp_tiles.gemm.hardware import THREAD_REGISTERS, has_wgmma
from warp_tiles.gemm.pipeline import AUTO, InstructionFamily, PipelineOverrides
from warp_tiles.gemm.problem import GemmProblem, Role
from warp_tiles.heuristics.loop_question import PipelineRecords
from warp_tiles.heuristics.resources import limit_of_blocks
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
    """

    symbol: str
    sums: LoopSums | str


class Functions(Protocol):
    """The device functions that may be called. A mapping of variants is one."""

    def get(self, variant: Variant, /) -> DeviceFunction | None:
        """The function of a variant; None if none computes it, so that it takes Warp's scalar path."""


@dataclass(frozen=True)
class ModuleDecision:
    """What computes each product of a module, in its place.

    Attributes:
        loops: The decision about each loop that contains products.
        calls: For each product site, the roles that are computed by a function. Loops with stages compute the others.
        asked: The functions that decided, by variant.
    """

    loops: tuple[LoopDecision, ...]
    calls: Mapping[int, tuple[Role, ...]]
    asked: Mapping[Variant, DeviceFunction | None]

    @property
    def has_stages(self) -> bool:
        """True if a loop multiplies tiles in stages, in either direction."""
        return any(loop.instruction or loop.reverse_instructions for loop in self.loops)


class _Asked:
    """Functions that remember which variants were asked for."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self.found: dict[Variant, DeviceFunction | None] = {}

    def get(self, variant: Variant) -> DeviceFunction | None:
        if variant not in self.found:
            self.found[variant] = self._functions.get(variant)
        return self.found[variant]


@dataclass
class _Calls:
    """The device functions that a module calls.

    Attributes:
        names: What each placeholder stands for.
        declarations: C++ declarations of the functions, by name.
        solvers: C++ types that stand for solver functions, by the functions' names.
    """

    names: dict[str, str]
    declarations: dict[str, str] = field(default_factory=dict)
    solvers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GeneratedModule:
    """A module as Warp generated it.

    Attributes:
        session: Its sites.
        source: Its source, with a placeholder for the prelude.
        trace: The traces of its functions; empty if Warp's code generator could not be followed.
        called: Numbers of the sites whose adjoints are called.
        records: Measured pipelines of loops; None leaves all choices to the heuristics.
    """

    session: Session
    source: str
    trace: ModuleTrace
    called: frozenset[int]
    records: PipelineRecords | None = field(default=None, repr=False, compare=False)
    # plan, source and build record of a module ask for the same decisions
    _decisions: list[tuple[Settings, bool, ModuleDecision]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @property
    def prefix(self) -> str:
        """The source up to the declarations: Warp's headers and macros, which many modules have in common."""
        return prefix_of(self.source)

    def decide(self, functions: Functions, settings: Settings, *, suffix: bool = True) -> ModuleDecision:
        """Returns what computes each product. Only functions that may be called are asked for.

        Args:
            functions: The functions that may be called.
            settings: The settings of the module.
            suffix: True if the module may be compiled for an architecture-specific target such as ``sm_90a``.
        """
        for asked_settings, asked_suffix, known in self._decisions:
            same = (asked_settings, asked_suffix) == (settings, suffix)
            if same and all(functions.get(variant) == function for variant, function in known.asked.items()):
                return known
        asked = _Asked(functions)
        without: frozenset[int] = frozenset()  # sites that take the scalar path, because a function is missing
        while True:
            loops = self._decide_loops(asked, settings, suffix, without)
            calls = self._calls(loops)
            missing = {s.index for s in self._product_sites() if not self._has_functions(s, calls[s.index], asked)}
            if missing <= without:
                break
            without |= missing
        found = ModuleDecision(loops, calls, asked.found)
        self._decisions.append((settings, suffix, found))
        return found

    def _calls(self, loops: Iterable[LoopDecision]) -> dict[int, tuple[Role, ...]]:
        """The roles of each product site that functions compute: those that no loop with stages computes."""
        loops = tuple(loops)
        staged = {_site(product.operation) for loop in loops if loop.instruction for product in loop.accumulations}
        reverse = {_site(loop.reverse.product) for loop in loops if isinstance(loop.reverse, ReverseRing)}
        repeated = self.called - sites_without_replay(self.trace) - reverse  # forward, by the reverse pass

        def is_called(site: Site, role: Role) -> bool:
            if role is Role.FORWARD:
                return site.index not in staged or site.index in repeated
            return site.index in self.called and site.index not in reverse

        return {
            site.index: tuple(role for role in site.variants if is_called(site, role)) for site in self._product_sites()
        }

    def _has_functions(self, site: Site, roles: Iterable[Role], functions: Functions) -> bool:
        return bool(site.variants) and all(functions.get(site.variants[role]) is not None for role in roles)

    def loops(self, decision: ModuleDecision, settings: Settings) -> tuple[PlannedLoop, ...]:
        """Returns the decision about each loop that contains products, once for each kernel that runs the loop.

        Args:
            decision: The decision about the module.
            settings: The settings of the module.
        """
        return tuple(
            PlannedLoop(
                kernel,
                self.trace.functions[loop.function].file,
                loop.loop.line,
                loop.products,
                loop.state,
                loop.stages,
                loop.reason,
                loop.instruction,
                loop.sums,
                self._gradients(loop.function, settings),
                loop.reverse_reason,
                loop.reverse_instructions,
                loop.store_reason,
                loop.operands,
                loop.load_reason,
                loop.cost,
                *loop.resources,
            )
            for loop in decision.loops
            for kernel in self.trace.kernels_of.get(loop.function, ())
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

    def reserved_bytes(self, decision: ModuleDecision) -> dict[str, tuple[int, int]]:
        """Returns the bytes of shared memory that functions need beyond their tiles, by the functions' labels.

        The second number is that of the reverse pass, beyond the tiles and their gradients.
        """
        reserved: dict[str, tuple[int, int]] = {}
        for loop in decision.loops:
            needed = loop.extra_bytes, loop.reverse_extra_bytes
            if any(needed):
                forward, backward = reserved.get(loop.function, (0, 0))
                reserved[loop.function] = max(forward, needed[0]), max(backward, needed[1])
        return reserved

    def text(self, functions: Functions, settings: Settings, *, suffix: bool = True) -> str:
        """Returns the finished source.

        Args:
            functions: The functions that were built. If one that a site calls is missing, all that the site calls take
                the scalar path, because Warp's templates look only at the forward function.
            settings: The settings of the module.
            suffix: See :meth:`decide`.
        """
        decision = self.decide(functions, settings, suffix=suffix)
        loops = decision.loops
        calls = _Calls({s.placeholder(role): SCALAR_FUNCTION for s in self.session.sites for role in s.roles})
        self._call_solvers(calls, functions)
        self._call_products(calls, decision, functions)
        macros = Macros()
        for loop in loops:
            if loop.instruction:
                continue
            for accumulation in loop.accumulations:
                operation, sums = accumulation.operation, accumulation.sums
                summed = self._product(self.session.sites[_site(operation)], Role.FORWARD)
                assert summed is not None
                calls.declarations[f"{sums.symbol}_add"] = loop_declarations(summed, sums)
        emit_loops(macros, self.trace, loops)
        is_changed = bool(calls.declarations) or decision.has_stages
        if settings.async_copies and is_changed:
            self._emit_moves(macros, loops)
        if settings.register_accumulators:
            here = {
                s.index for s in self._product_sites() if self._has_functions(s, decision.calls[s.index], functions)
            }
            for function in self.trace.functions.values():
                skip_replays(macros, function, sites_without_replay(self.trace) & here)
        for loop in loops:
            emit_reverse(macros, loop)
        return with_prelude(
            self.source,
            [calls.declarations[name] for name in sorted(calls.declarations)],
            calls.names,
            macros.definitions(self.trace.functions.values()),
            header=is_changed and settings.async_copies,
            staged=[text for loop in loops for text in staged_types(loop)],
            reversed_loops=[text for loop in loops for text in reversed_types(loop)],
            solvers=[calls.solvers[symbol] for symbol in sorted(calls.solvers)],
        )

    def _call_solvers(self, calls: _Calls, functions: Functions) -> None:
        """Add the calls of the solver functions that were built. Each one can take the scalar path alone."""
        for site in self.session.sites:
            for role, variant in site.variants.items():
                if not isinstance(variant, SolverVariant) or (role is Role.ADJOINT and site.index not in self.called):
                    continue
                if (function := functions.get(variant)) is not None:
                    calls.declarations[function.symbol] = solver_declaration(variant, function.symbol)
                    calls.solvers[function.symbol] = solver_struct(variant, function.symbol)
                    calls.names[site.placeholder(role)] = f"wt::Solver<{function.symbol}_call>{{}}"

    def _call_products(self, calls: _Calls, decision: ModuleDecision, functions: Functions) -> None:
        """Add the calls of the products whose functions were all built."""
        waiting = waiting_sites(self.trace)
        for site in self._product_sites():
            found = {role: functions.get(site.variants[role]) for role in decision.calls[site.index]}
            symbols = {role: function.symbol for role, function in found.items() if function is not None}
            if not symbols or len(symbols) < len(found):
                continue
            # A role that nothing calls is still an argument, and Warp's templates look at the forward one
            other = symbols.get(Role.FORWARD, next(iter(symbols.values())))
            for role in site.roles:
                product, symbol = self._product(site, role), symbols.get(role, other)
                if role in symbols:
                    assert product is not None
                    calls.declarations[symbol] = declaration(product, symbol)
                    if role is Role.ADJOINT_B and site.index in waiting:
                        calls.declarations[f"{symbol}_waiting"] = waiting_function(symbol, pointers(product))
                        symbol = f"{symbol}_waiting"
                calls.names[site.placeholder(role)] = symbol

    def _product_sites(self) -> list[Site]:
        return [site for site in self.session.sites if not site.is_solver]

    def _product(self, site: Site, role: Role) -> GemmProblem | None:
        variant = site.variants.get(role)
        return variant if isinstance(variant, GemmProblem) else None

    def _decide_loops(
        self, functions: Functions, settings: Settings, suffix: bool, without: frozenset[int]
    ) -> tuple[LoopDecision, ...]:
        def sums_of(index: int) -> LoopSums | str:
            site = self.session.sites[index]
            if not settings.register_accumulators:
                return "the setting register_accumulators is off"
            function = functions.get(site.variants[Role.FORWARD]) if Role.FORWARD in site.variants else None
            if function is None or index in without:
                return f"the product takes Warp's scalar path: {site.scalar_reason or 'nothing was built'}"
            return function.sums

        def decisions(target: LoopTarget) -> tuple[LoopDecision, ...]:
            return tuple(
                decision
                for function in self.trace.functions.values()
                for decision in decide(self.trace, function, sums_of, ahead=settings.async_copies, target=target)
            )

        target = self._loop_target(settings, suffix)
        found = decisions(target)
        limit = None if settings.linker == "warp" else limit_of_blocks(self.session.block_dim, found)[0]
        limit = limit or THREAD_REGISTERS
        return found if limit == target.registers else decisions(replace(target, registers=limit))

    def _loop_target(self, settings: Settings, suffix: bool) -> LoopTarget:
        """What the loops of the module may use."""
        if not settings.register_accumulators:
            return LoopTarget(obstacle="the setting register_accumulators is off")
        choice = PipelineOverrides.parse(settings.main_loop)
        if choice.family == "double_buffered":
            return LoopTarget(obstacle=f"{settings.named('main_loop')} is 'double_buffered'")
        variants = {
            site.index: product
            for site in self._product_sites()
            if (product := self._product(site, Role.FORWARD)) is not None
        }
        target = LoopTarget(variants, choice=choice, records=self.records)
        if "mma" not in settings.providers:
            name = "provider" if settings.provider != "auto" else "policy"
            target = replace(target, forbidden=f"{settings.named(name)} is {getattr(settings, name)!r}")
        mma: tuple[InstructionFamily, ...] = ("mma",)
        asked = "" if choice == AUTO else f"{settings.named('main_loop')} is '{settings.main_loop}'"
        if choice.family == "mma":
            return replace(target, families=mma, obstacle=asked)
        could_have_wgmma = has_wgmma(self.session.arch or 0)
        if choice.family == "wgmma" and not (suffix and could_have_wgmma):
            return LoopTarget(obstacle=f"{asked}, and wgmma needs a cubin for sm_90a that is linked here")
        if could_have_wgmma and not suffix:
            return replace(target, families=mma, obstacle="wgmma needs a cubin for sm_90a that is linked here")
        return replace(target, families=("wgmma",) if choice.family else ("wgmma", *mma), obstacle=asked)

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


def _site(operation: Operation) -> int:
    """The site of a product."""
    assert operation.product is not None
    return operation.product.site


def pointers(variant: GemmProblem) -> tuple[str, ...]:
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


def declaration(variant: GemmProblem, symbol: str) -> str:
    """Returns the C++ declaration of a variant's device function."""
    return f"void {symbol}({', '.join(pointers(variant))});"


def loop_declarations(variant: GemmProblem, sums: LoopSums) -> str:
    """Returns the C++ declarations of the two functions that keep a variant's sums over a loop."""
    a, b, c = (DTYPES[operand.dtype].warp_type for operand in (variant.a, variant.b, variant.c))
    add = f"void {sums.symbol}_add({sums.ctype}*, {a}*, {b}*);"
    return f"{add}\nvoid {sums.symbol}_finish({sums.ctype}*, {c}*);"
