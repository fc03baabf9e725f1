"""A generated module: the functions that its sites call, the decisions about its loops, and its finished source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from warp_tiles.codegen.adjoints import sites_without_replay, waiting_sites
from warp_tiles.codegen.answers import FunctionCall, LoopAccumulators, LoopDecision, ModuleAnswer
from warp_tiles.codegen.loads import plan_loads
from warp_tiles.codegen.loops import decide
from warp_tiles.codegen.operations import UNREAD_ASSIGN
from warp_tiles.codegen.prelude import finished_source
from warp_tiles.codegen.stages import LoopTarget
from warp_tiles.codegen.stores import computed_stores, reversed_stores
from warp_tiles.codegen.trace import Context, ModuleTrace
from warp_tiles.codegen.whole import whole_product
from warp_tiles.gemm.hardware import MIN_ARCH, allows_pair, has_wgmma, pair_limit
from warp_tiles.gemm.main_loop import PipelineRecords
from warp_tiles.gemm.pipeline import AUTO, InstructionFamily, PipelineOverrides, PlannedLoop
from warp_tiles.gemm.problem import GemmProblem, Role
from warp_tiles.plan.planning import Session, Site
from warp_tiles.plan.whole import WholeProduct
from warp_tiles.settings import Settings
from warp_tiles.solver.variant import Variant

_NO_WGMMA = "wgmma needs a cubin for sm_90a that warp_tiles links: set linker to 'auto', and build no debug module"
DETERMINISTIC_GRADIENTS = "two products of whole arrays, which add in a fixed order, if a launch on a GPU covers them"
WHOLE_GRADIENTS = "two products of whole arrays, if a launch on a GPU covers large arrays; else the adjoint kernel"


@dataclass(frozen=True)
class DeviceFunction:
    """A function that was built for a variant.

    Attributes:
        accumulators: The functions that keep its accumulators over a loop, or the reason why there are none.
        unit: Its translation unit if it stands in the module's source; empty if the module is linked with it.
    """

    symbol: str
    accumulators: LoopAccumulators | str
    unit: str = ""


class Functions(Protocol):
    """The device functions that may be called. A mapping of variants is one."""

    def get(self, variant: Variant, /) -> DeviceFunction | None:
        """The function of a variant; None if none computes it, so that it takes Warp's scalar path."""


@dataclass(frozen=True)
class ModuleDecision:
    """What computes each product of a module, in its place.

    Attributes:
        calls: For each product site, the roles that are computed by a function. Loops with stages compute the others.
        asked: The functions that decided, by variant.
    """

    loops: tuple[LoopDecision, ...]
    calls: Mapping[int, tuple[Role, ...]]
    asked: Mapping[Variant, DeviceFunction | None]

    @property
    def has_stages(self) -> bool:
        """True if a loop multiplies tiles in stages, in either direction."""
        return any(loop.ring or loop.reverse for loop in self.loops)


_FunctionOf = Callable[[Variant], DeviceFunction | None]


@dataclass(frozen=True)
class GeneratedModule:
    """A module as Warp generated it.

    Attributes:
        source: Its source, with a placeholder for the prelude.
        trace: The traces of its functions; empty if Warp's code generator could not be followed.
        called: Numbers of the sites whose adjoints are called.
        records: Measured pipelines of loops; None leaves all choices to the heuristics.
        limits_registers: True if the link can limit the registers of a thread, which Warp's cannot.
    """

    session: Session
    source: str
    trace: ModuleTrace
    called: frozenset[int]
    records: PipelineRecords | None = field(default=None, repr=False, compare=False)
    limits_registers: bool = True
    # plan, source and build record of a module ask for the same decisions
    _decisions: list[tuple[bool, ModuleDecision]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def settings(self) -> Settings:
        """The settings of the module."""
        return self.session.settings

    def decide(self, functions: Functions, *, suffix: bool = True) -> ModuleDecision:
        """Returns what computes each product. Only functions that may be called are asked for.

        Args:
            suffix: True if the module may be compiled for an architecture-specific target such as ``sm_90a``.
        """
        for asked_suffix, known in self._decisions:
            if asked_suffix == suffix and all(
                functions.get(variant) == function for variant, function in known.asked.items()
            ):
                return known
        asked: dict[Variant, DeviceFunction | None] = {}

        def function_of(variant: Variant) -> DeviceFunction | None:
            if variant not in asked:
                asked[variant] = functions.get(variant)
            return asked[variant]

        without: frozenset[int] = frozenset()  # sites that take the scalar path, because a function is missing
        while True:
            loops = self._decide_loops(function_of, suffix, without)
            calls = self._calls(loops)
            missing = {site.index for site in self._product_sites()} - self._with_functions(calls, function_of)
            if missing <= without:
                break
            without |= missing
        found = ModuleDecision(loops, calls, asked)
        self._decisions.append((suffix, found))
        return found

    def _calls(self, loops: tuple[LoopDecision, ...]) -> dict[int, tuple[Role, ...]]:
        """The roles of each product site that functions compute: those that no loop with stages computes."""
        staged = {product.operation.site for loop in loops if loop.ring for product in loop.accumulations}
        reverse = {loop.reverse.product.site for loop in loops if loop.reverse}
        repeated = self.called - sites_without_replay(self.trace) - reverse  # forward, by the reverse pass

        def is_called(site: Site, role: Role) -> bool:
            if role is Role.FORWARD:
                return site.index not in staged or site.index in repeated
            return site.index in self.called and site.index not in reverse

        return {
            site.index: tuple(role for role in site.variants if is_called(site, role)) for site in self._product_sites()
        }

    def _with_functions(self, calls: Mapping[int, tuple[Role, ...]], function_of: _FunctionOf) -> set[int]:
        """The product sites whose functions are all there."""
        return {
            site.index
            for site in self._product_sites()
            if site.variants and all(function_of(site.variants[role]) is not None for role in calls[site.index])
        }

    def loops(self, decision: ModuleDecision) -> tuple[PlannedLoop, ...]:
        """Returns the decision about each loop that contains products, once for each kernel that runs the loop."""
        return tuple(
            replace(loop.planned, kernel=kernel, gradients=self._gradients(loop.function))
            for loop in decision.loops
            for kernel in self.trace.kernels_of.get(loop.function, ())
        )

    def whole_products(self) -> dict[str, WholeProduct]:
        """Returns the kernels that are a product of whole arrays and have an adjoint, by their keys."""
        found = {
            key: self._whole_product(label) for label, key in self.trace.kernels.items() if label in self.trace.reversed
        }
        return {key: whole for key, whole in found.items() if isinstance(whole, WholeProduct)}

    def _whole_product(self, label: str) -> WholeProduct | str:
        """The product that a function computes, or the reason why its adjoint computes the gradients."""
        if label not in self.trace.kernels:
            return "the loop is in a function: move it to the kernel"
        if list(self.trace.kernels.values()).count(self.trace.kernels[label]) > 1:
            return "several kernels of the module have its name: rename them"
        found = whole_product(self.trace.functions[label])
        return found if isinstance(found, str) else replace(found, tf32=self.session.sites[found.site].is_tf32)

    def _gradients(self, label: str) -> str:
        """How a tape computes the gradients of a loop; empty if the function has no adjoint."""
        if label not in self.trace.reversed:
            return ""
        kernel = "the adjoint kernel"
        if self.settings.deterministic:
            kernel += ", whose additions to the gradients of loaded arrays have no fixed order"
        if self.settings.gemm_gradients == "off":
            return f"{kernel}: {self.settings.against('gemm_gradients', 'auto')}"
        found = self._whole_product(label)
        if isinstance(found, str):
            return f"{kernel}: {found}"
        return f"{DETERMINISTIC_GRADIENTS}; else {kernel}" if self.settings.deterministic else WHOLE_GRADIENTS

    def text(self, functions: Functions, *, suffix: bool = True) -> str:
        """Returns the finished source.

        Args:
            functions: The functions that were built. If one that a site calls is missing, all that the site calls take
                the scalar path, because Warp's templates look only at the forward function.
            suffix: See :meth:`decide`.
        """
        decision = self.decide(functions, suffix=suffix)
        return finished_source(self.source, self._answer(decision, functions))

    def _answer(self, decision: ModuleDecision, functions: Functions) -> ModuleAnswer:
        """Everything that the source is written from."""
        loops, traces, sites = decision.loops, tuple(self.trace.functions.values()), self.session.sites
        waiting = waiting_sites(self.trace)
        calls = tuple(call for site in sites for call in self._calls_of(site, decision, functions, waiting))
        products = self._products()
        summed = {
            one.accumulators.symbol: (products[one.operation.site], one.accumulators)
            for loop in loops
            if not loop.ring
            for one in loop.accumulations
        }
        called = any(call.variant is not None for call in calls)
        variants = (*(call.variant for call in calls), *(product for product, _ in summed.values()))
        used = (functions.get(variant) for variant in variants if variant is not None)
        moves = self.settings.async_copies and bool(called or summed or decision.has_stages)
        moving = traces if moves else ()
        stored = {loop.accumulator_store.computed.store for loop in loops if loop.accumulator_store is not None}
        stores = (found for function in moving for found in computed_stores(function))
        reverse = (found for function in moving for found in reversed_stores(Context(self.trace, function)))
        return ModuleAnswer(
            hooks=tuple(hook for function in traces for hook in function.hooks()),
            calls=calls,
            summed=tuple(summed.values()),
            units={function.symbol: function.unit for function in used if function is not None and function.unit},
            loops=loops,
            moves=moves,
            loads=plan_loads(
                moving,
                {loop.hook for loop in loops if loop.loads},
                {one.home for loop in loops if not loop.ring for one in loop.accumulations},
            ),
            replayed=plan_loads(moving, {loop.hook for loop in loops if loop.reverse is not None}, replayed=True),
            stores=tuple(found for found in stores if found.store not in stored),
            reversed_stores=tuple(reverse),
            skipped=self._skipped(decision) if self.settings.register_accumulators else (),
            unread=tuple(node.own_hook for _, node in self.trace.operations() if node.name == UNREAD_ASSIGN),
        )

    def _skipped(self, decision: ModuleDecision) -> tuple[int, ...]:
        """The hooks of the products that the reverse pass need not repeat."""
        here = self._with_functions(decision.calls, decision.asked.get) & sites_without_replay(self.trace)
        nodes = (node for _, node in self.trace.operations() if node.product is not None)
        return tuple(node.own_hook for node in nodes if node.site in here)

    def _calls_of(
        self, site: Site, decision: ModuleDecision, functions: Functions, waiting: Collection[int]
    ) -> Iterator[FunctionCall]:
        """What the placeholders of a site stand for: functions, if all that the site calls were built."""
        if site.is_solver:  # each function can take the scalar path alone
            for role in site.roles:
                variant = None if role is Role.ADJOINT and site.index not in self.called else site.variants.get(role)
                function = None if variant is None else functions.get(variant)
                placeholder = site.placeholder(role)
                yield FunctionCall(placeholder, function.symbol, variant) if function else FunctionCall(placeholder)
            return
        roles = decision.calls[site.index]
        found = {role: functions.get(site.variants[role]) for role in roles}
        symbols = {role: function.symbol for role, function in found.items() if function is not None}
        if len(symbols) < len(roles):
            symbols = {}
        # A role that nothing calls is still an argument, and Warp's templates look at the forward one
        other = symbols.get(Role.FORWARD, next(iter(symbols.values()), ""))
        for role in site.roles:
            waits = role is Role.ADJOINT_B and role in symbols and site.index in waiting
            variant = site.variants[role] if role in symbols else None
            yield FunctionCall(site.placeholder(role), symbols.get(role, other), variant, waits)

    def _product_sites(self) -> list[Site]:
        return [site for site in self.session.sites if not site.is_solver]

    def _products(self) -> dict[int, GemmProblem]:
        """The forward products by the numbers of their sites."""
        forward = {site.index: site.variants.get(Role.FORWARD) for site in self._product_sites()}
        return {index: product for index, product in forward.items() if isinstance(product, GemmProblem)}

    def _decide_loops(
        self, function_of: _FunctionOf, suffix: bool, without: frozenset[int]
    ) -> tuple[LoopDecision, ...]:
        def accumulators_of(index: int) -> LoopAccumulators | str:
            site = self.session.sites[index]
            if not self.settings.register_accumulators:
                return self.settings.against("register_accumulators", "on")
            function = function_of(site.variants[Role.FORWARD]) if Role.FORWARD in site.variants else None
            if function is None or index in without:
                return f"the product takes Warp's scalar path: {site.scalar_reason or 'nothing was built'}"
            return function.accumulators

        def decisions(target: LoopTarget) -> tuple[LoopDecision, ...]:
            return tuple(
                decision for context in self.trace.contexts() for decision in decide(context, accumulators_of, target)
            )

        target, arch = self._loop_target(suffix), self.session.arch
        limit = None
        if arch is not None and arch >= MIN_ARCH and self.limits_registers:
            limit = pair_limit(arch, self.session.block_dim)
        if arch is not None and limit is not None:
            paired = decisions(replace(target, registers=limit))
            loops = [one.planned for one in paired]
            if all(allows_pair(arch, limit, loop.registers, alone=loop.resident_blocks == 1) for loop in loops):
                return paired
        return decisions(target)

    def _loop_target(self, suffix: bool) -> LoopTarget:
        """What the loops of the module may use."""
        without_stages = LoopTarget(self._products(), ahead=self.settings.async_copies)
        if not self.settings.register_accumulators:
            return replace(without_stages, rejection=self.settings.against("register_accumulators", "on"))
        choice = PipelineOverrides.parse(self.settings.main_loop)
        if choice.family == "double_buffered":
            return replace(without_stages, rejection=self.settings.against("main_loop", "auto"))
        asked = "" if choice == AUTO else self.settings.named_value("main_loop")
        could_have_wgmma = has_wgmma(self.session.arch or 0)
        if choice.family == "wgmma" and not (suffix and could_have_wgmma):
            problem = _NO_WGMMA if could_have_wgmma else f"sm_{self.session.arch} has no wgmma: set main_loop to 'auto'"
            return replace(without_stages, rejection=f"{asked}, and {problem}")
        families: tuple[InstructionFamily, ...] = (choice.family,) if choice.family else ("wgmma", "mma")
        if choice.family is None and could_have_wgmma and not suffix:
            families, asked = ("mma",), _NO_WGMMA
        target = LoopTarget(self._products(), families, asked, choice, self.settings.async_copies, records=self.records)
        if "mma" in self.settings.providers:
            return target
        return replace(
            target, forbidden=self.settings.named_value("policy" if self.settings.provider == "auto" else "provider")
        )
