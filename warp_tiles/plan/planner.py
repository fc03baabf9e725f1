"""The plan of a generated module: what computes each of its products and solvers, in its place.

:func:`plan_module` decides once. What is written, built and reported is read from its plan. If a function or the link
fails, it makes a new plan from what was built; nothing else decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from warp_tiles.codegen.adjoints import sites_without_replay, waiting_sites
from warp_tiles.codegen.loops import decide
from warp_tiles.codegen.module_code import (
    AccumulatorStore,
    DeviceFunction,
    FunctionCall,
    LoopAccumulators,
    LoopDecision,
    ModuleCode,
    aligned,
)
from warp_tiles.codegen.operations import UNREAD_ASSIGN
from warp_tiles.codegen.pipelines import LoopTarget
from warp_tiles.codegen.stores import computed_stores, reversed_stores, row_reductions
from warp_tiles.codegen.trace import Context, FunctionUse, ModuleTrace, Session, Site
from warp_tiles.codegen.waits import plan_loads, stuck_statements
from warp_tiles.codegen.whole import WholeProduct, whole_product
from warp_tiles.errors import PlanError
from warp_tiles.gemm.hardware import (
    MIN_ARCH,
    WGMMA_ARCH,
    allows_pair,
    has_wgmma,
    least_registers,
    max_registers,
    multiprocessor,
    pair_limit,
    resident_blocks,
    resident_registers,
    static_shared_bytes,
)
from warp_tiles.gemm.main_loop import PipelineMeasurements
from warp_tiles.gemm.pipeline import AUTO, InstructionFamily, PipelineOverrides
from warp_tiles.gemm.problem import BFLOAT16_ADJOINT_ERROR, GemmProblem, Role, faster_scalar_path
from warp_tiles.gemm.rejected import Rejected, accepted, code_of, refuse, rejectable
from warp_tiles.gemm.tile_config import (
    AHEAD_REGISTERS,
    TileConfig,
    computes_in_double,
    registers,
    registers_with_accumulators,
)
from warp_tiles.plan.planning import STAGES, KernelMemory, ModulePlan, PlannedFunction, PlannedLoop
from warp_tiles.settings import Settings
from warp_tiles.solver.problem import Problem, SolverProblem, register_limit, registers_of_indexed, registers_of_rows

_RACE = (
    "Warp's two adjoints may add to one gradient at the same time, and lose parts of it: load the operands as two tiles"
)
_NO_CUBIN = Rejected("no_cubin_for_wgmma")
DETERMINISTIC_GRADIENTS = "two products of whole arrays, which add in a fixed order, if a launch on a GPU covers them"
WHOLE_GRADIENTS = "two products of whole arrays, if a launch on a GPU covers large arrays; else the adjoint kernel"

Choose = Callable[[PlannedFunction], PlannedFunction]
"""Gives a needed function its provider and its device function, which is None on the scalar path."""

Reserve = Callable[[Mapping[str, tuple[int, int]]], Iterable[KernelMemory]]
"""Reserves the shared memory of :attr:`.ModulePlan.reserved`, and returns that of each kernel."""


@dataclass(frozen=True)
class GeneratedModule:
    """A module as Warp generated it, and what is known before its build.

    Attributes:
        source: Its source, with a placeholder for the prelude.
        trace: The traces of its functions; empty if Warp's code generator could not be followed.
        called: Numbers of the sites whose adjoints are called.
        uses: The functions with sites that each kernel uses.
        records: Measured pipelines of loops; None leaves all choices to the heuristics.

    The others are those of :class:`.ModulePlan`.
    """

    session: Session
    source: str
    trace: ModuleTrace
    called: frozenset[int]
    kernels: tuple[str, ...] = ()
    uses: tuple[FunctionUse, ...] = ()
    indexed_elements: int = 0
    linker_reason: str = ""
    loops_reason: str = ""
    records: PipelineMeasurements | None = field(default=None, repr=False, compare=False)


def plan_module(
    generated: GeneratedModule,
    choose: Choose,
    reserve: Reserve = lambda reserved: (),
    *,
    before: ModulePlan | None = None,
    linker_reason: str = "",
    without_wgmma: bool = False,
) -> ModulePlan:
    """Decide about every product, solver and loop of a module.

    Args:
        choose: It is asked only for functions that may be called.
        before: The plan that could not be built. Its shared memory has to suffice, because Warp has noted it.
        linker_reason: The reason why Warp has to link the module after all; empty if it need not.
        without_wgmma: True if the module turns out not to be compiled for ``sm_90a``.

    Raises:
        TypeError: An adjoint of a product of bfloat16 operands is needed on the scalar path.
        PlanError: The shared memory of the plan before does not suffice.
        Exception: Any error of ``choose``.
    """
    arch = generated.session.arch
    has_suffix = arch is not None and has_wgmma(arch) and not (generated.linker_reason or without_wgmma)
    while True:
        bare = resolve(generated.session, generated.called, generated.kernels, generated.uses)
        planner = _Planner(generated, bare, choose, has_suffix, before)
        loops, calls = planner.decide()
        if slower := planner.faster_scalar_paths(loops):
            # whether a product that opts out of MathDx gains depends on its loop, and other loops on that product
            generated = replace(generated, session=generated.session.on_scalar_path(slower))
            continue
        reserved = planner.reserved_bytes(loops)
        if before is None or before.has_memory(reserved):
            break
        if not planner.settings.async_copies:
            text = f"module {before.name} needs more shared memory than was reserved for {before.target}"
            raise PlanError(text, "set async_copies to 'off' for the module")
        generated = replace(generated, session=generated.session.without_async_copies())
    plan = replace(
        bare,
        functions=planner.functions(calls),
        loops=planner.loops(loops),
        loops_reason=generated.loops_reason,
        linker_reason=linker_reason or generated.linker_reason,
        indexed_elements=generated.indexed_elements,
        whole_products=planner.whole_products(),
        stuck=() if arch is None else stuck_statements(planner.trace.functions.values(), planner.session.block_dim),
        code=planner.code(loops, calls),
        reserved=reserved,
    )
    return with_register_limit(replace(plan, memory=before.memory if before else tuple(reserve(reserved))))


_Calls = Mapping[int, tuple[Role, ...]]
"""For each product site, the roles that are computed by a function. Loops with stages compute the others."""


@dataclass(frozen=True)
class _Planner:
    """The decisions about one module, which share the functions that were chosen."""

    generated: GeneratedModule
    bare: ModulePlan
    choose: Choose
    suffix: bool  # True if the module may be compiled for an architecture-specific target such as sm_90a
    before: ModulePlan | None
    chosen: dict[PlannedFunction, PlannedFunction] = field(default_factory=dict)

    @property
    def session(self) -> Session:
        return self.generated.session

    @property
    def settings(self) -> Settings:
        return self.session.settings

    @property
    def trace(self) -> ModuleTrace:
        return self.generated.trace

    # ---- functions

    def chosen_function(self, planned: PlannedFunction) -> PlannedFunction:
        if planned not in self.chosen:
            self.chosen[planned] = self.choose(planned)
        return self.chosen[planned]

    def function_of(self, problem: Problem) -> DeviceFunction | None:
        """The device function of a problem; None if it takes the scalar path, or if the plan does not need it."""
        planned = next((needed for needed in self.bare.needed if needed.problem == problem), None)
        return None if planned is None else self.chosen_function(planned).device_function

    def functions(self, calls: _Calls) -> tuple[PlannedFunction, ...]:
        """The functions of the plan. Those that loops compute from stages are not built."""
        sites = [site for site in self.session.sites if site.index in calls]
        called = {(site.problems[role], role) for site in sites for role in calls[site.index]}
        staged = {(problem, role) for site in sites for role, problem in site.problems.items()} - called

        def treated(planned: PlannedFunction) -> PlannedFunction:
            if not planned.needed:
                return planned
            if (planned.problem, planned.role) in staged:
                reason = f"{planned.reason}; computed by its loop from stages, so no function is built"
                return replace(planned, provider=STAGES, reason=reason)
            return self._with_race(planned if planned.problem is None else self.chosen_function(planned))

        return tuple(map(treated, self.bare.functions))

    def _with_race(self, planned: PlannedFunction) -> PlannedFunction:
        """A needed function, whose reason names the race of Warp's scalar adjoints if they add to one gradient."""
        is_named = self.before is not None and planned in self.before.functions
        if is_named or planned.provider != "scalar" or planned.role is not Role.ADJOINT_B:
            return planned
        waiting = waiting_sites(self.trace) & self.generated.called
        races = any(
            site.index in waiting
            and (site.function, site.problems.get(planned.role)) == (planned.function, planned.problem)
            for site in self.session.sites
        )
        return replace(planned, reason=f"{planned.reason}; {_RACE}") if races else planned

    def faster_scalar_paths(self, loops: Iterable[LoopDecision]) -> dict[int, Rejected]:
        """Why products that opt out of MathDx are left to Warp, by sites. Warp's scalar adjoints do not wait."""
        if not self.settings.decides_opted_out:
            return {}
        called, waiting = self.generated.called, waiting_sites(self.trace) & self.generated.called
        held = {
            kept.operation.site for loop in loops for kept in loop.accumulations if loop.loads_ahead or kept.addition
        }
        return {
            index: reason
            for index, product in self._products().items()
            if index not in waiting
            and (reason := faster_scalar_path(product, held=index in held, differentiated=index in called))
        }

    # ---- loops

    def decide(self) -> tuple[tuple[LoopDecision, ...], _Calls]:
        """The decision about each loop, and the roles that functions compute."""
        without: frozenset[int] = frozenset()  # sites that take the scalar path, because a function is missing
        while True:
            loops = self._decide_loops(without)
            calls = self._calls(loops)
            missing = {site.index for site in self._product_sites()} - self._with_functions(calls)
            if missing <= without:
                return loops, calls
            without |= missing

    def _calls(self, loops: tuple[LoopDecision, ...]) -> _Calls:
        """The roles of each product site that functions compute: those that no loop with stages computes."""
        staged = {product.operation.site for loop in loops if loop.ring for product in loop.accumulations}
        staged |= {product.site for loop in loops if loop.chain for product in loop.chain.products}
        reverse = {loop.reverse_ring.product.site for loop in loops if loop.reverse_ring}
        repeated = self.generated.called - sites_without_replay(self.trace) - reverse  # forward, by the reverse pass

        def is_called(site: Site, role: Role) -> bool:
            if role is Role.FORWARD:
                return site.index not in staged or site.index in repeated
            return site.index in self.generated.called and site.index not in reverse

        return {
            site.index: tuple(role for role in site.problems if is_called(site, role)) for site in self._product_sites()
        }

    def _with_functions(self, calls: _Calls) -> set[int]:
        return {
            site.index
            for site in self._product_sites()
            if site.problems and all(self.function_of(site.problems[role]) is not None for role in calls[site.index])
        }

    def loops(self, decisions: Iterable[LoopDecision]) -> tuple[PlannedLoop, ...]:
        """The decision about each loop that contains products, once for each kernel that runs the loop."""
        return tuple(
            PlannedLoop(**vars(loop), kernel=kernel, gradients=gradients, gradients_code=code)
            for loop in decisions
            for gradients, code in [self._gradients(loop.function)]
            for kernel in self.trace.kernels_of.get(loop.function, ())
        )

    def whole_products(self) -> dict[str, WholeProduct]:
        """Returns the kernels that are a product of whole arrays and have an adjoint, by their keys."""
        kernels = ((label, key) for label, key in self.trace.kernels.items() if label in self.trace.reversed)
        wholes = {key: self._whole_product(label) for label, key in kernels}
        return {key: whole for key, whole in wholes.items() if isinstance(whole, WholeProduct)}

    @rejectable
    def _whole_product(self, label: str) -> WholeProduct:
        """The product that a function computes, or the reason why its adjoint computes the gradients."""
        keys = self.trace.kernels
        refuse(label not in keys, "in_function")
        refuse(list(keys.values()).count(keys[label]) > 1, "several_kernels")
        whole = accepted(whole_product(self.trace.functions[label]))
        return replace(whole, tf32=self.session.sites[whole.site].is_tf32)

    def _gradients(self, label: str) -> tuple[str, str]:
        """How a tape computes the gradients of a loop, and the code of a rejection; empty without an adjoint."""
        if label not in self.trace.reversed:
            return "", ""
        kernel = "the adjoint kernel"
        if self.settings.deterministic:
            kernel += ", whose additions to the gradients of loaded arrays have no fixed order"
        is_off = self.settings.gemm_gradients == "off"
        whole = self.settings.against("gemm_gradients", "auto") if is_off else self._whole_product(label)
        if isinstance(whole, Rejected):
            return f"{kernel}: {whole}", whole.code
        return f"{DETERMINISTIC_GRADIENTS}; else {kernel}" if self.settings.deterministic else WHOLE_GRADIENTS, ""

    # ---- the source

    def code(self, loops: tuple[LoopDecision, ...], calls: _Calls) -> ModuleCode:
        traces, sites = tuple(self.trace.functions.values()), self.session.sites
        waiting = waiting_sites(self.trace)
        named = tuple(call for site in sites for call in self._calls_of(site, calls, waiting))
        products = self._products()
        summed = {
            product.accumulators.symbol: (products[product.operation.site], product.accumulators)
            for loop in loops
            if not loop.ring
            for product in loop.accumulations
        }
        called = any(call.problem is not None for call in named)
        problems = (*(call.problem for call in named), *(product for product, _ in summed.values()))
        used = (self.function_of(problem) for problem in problems if problem is not None)
        has_stages = any(loop.ring or loop.reverse_ring or loop.chain for loop in loops)
        moves = self.settings.async_copies and bool(called or summed or has_stages)
        moving = traces if moves else ()
        kept = (loop.accumulator_store for loop in loops)
        stored = {store.computed.store for store in kept if isinstance(store, AccumulatorStore)}
        stores = (store for function in moving for store in computed_stores(function))
        reverse = (store for function in moving for store in reversed_stores(Context(self.trace, function)))
        chained = {operation for loop in loops if loop.chain for operation in loop.chain.operations}
        reductions = (row for function in moving for row in row_reductions(function, self.session.block_dim))
        not_repeated = self._with_functions(calls) & sites_without_replay(self.trace)
        nodes = (node for _, node in self.trace.operations() if node.product is not None)
        skipped = tuple(node.own_hook for node in nodes if node.site in not_repeated)
        return ModuleCode(
            hooks=tuple(hook for function in traces for hook in function.hooks()),
            calls=named,
            summed=tuple(summed.values()),
            units={function.symbol: function.unit for function in used if function is not None and function.unit},
            loops=loops,
            moves=moves,
            loads=plan_loads(
                moving,
                {loop.hook for loop in loops if loop.loads_ahead},
                {product.home for loop in loops if not loop.ring for product in loop.accumulations},
            ),
            replayed=plan_loads(moving, {loop.hook for loop in loops if loop.reverse_ring}, replayed=True),
            stores=tuple(store for store in stores if store.store not in stored),
            reversed_stores=tuple(reverse),
            reductions=tuple(reduction for reduction in reductions if reduction not in chained),
            skipped=skipped if self.settings.register_accumulators else (),
            unread=tuple(node.own_hook for _, node in self.trace.operations() if node.name == UNREAD_ASSIGN),
        )

    def _calls_of(self, site: Site, calls: _Calls, waiting: Collection[int]) -> Iterator[FunctionCall]:
        if site.is_solver:  # each function can take the scalar path alone
            for role in site.roles:
                is_called = role is not Role.ADJOINT or site.index in self.generated.called
                problem = site.problems.get(role) if is_called else None
                function = None if problem is None else self.function_of(problem)
                placeholder = site.placeholder(role)
                yield FunctionCall(placeholder, function.symbol, problem) if function else FunctionCall(placeholder)
            return
        roles = calls[site.index]
        functions = {role: self.function_of(site.problems[role]) for role in roles}
        symbols = {role: function.symbol for role, function in functions.items() if function is not None}
        if len(symbols) < len(roles):
            symbols = {}
        # A role that nothing calls is still an argument, and Warp's templates look at the forward one
        argument = symbols.get(Role.FORWARD, next(iter(symbols.values()), ""))
        for role in site.roles:
            waits = role is Role.ADJOINT_B and role in symbols and site.index in waiting
            problem = site.problems[role] if role in symbols else None
            yield FunctionCall(site.placeholder(role), symbols.get(role, argument), problem, waits)

    def _product_sites(self) -> list[Site]:
        return [site for site in self.session.sites if not site.is_solver]

    def _products(self) -> dict[int, GemmProblem]:
        """The forward products by the numbers of their sites."""
        forward = {site.index: site.problems.get(Role.FORWARD) for site in self._product_sites()}
        return {index: product for index, product in forward.items() if isinstance(product, GemmProblem)}

    def _decide_loops(self, without: frozenset[int]) -> tuple[LoopDecision, ...]:
        def accumulators_of(index: int) -> LoopAccumulators | Rejected:
            site = self.session.sites[index]
            if not self.settings.register_accumulators:
                return self.settings.against("register_accumulators", "on")
            function = self.function_of(site.problems[Role.FORWARD]) if Role.FORWARD in site.problems else None
            if function is None or index in without:
                reason = site.scalar_reason or Rejected("not_built")
                return reason.after("the product takes Warp's scalar path: ")
            return function.accumulators

        def decisions(target: LoopTarget) -> tuple[LoopDecision, ...]:
            return tuple(
                decision for context in self.trace.contexts() for decision in decide(context, accumulators_of, target)
            )

        target, arch = self._loop_target(), self.session.arch
        if arch is None or arch < MIN_ARCH or self.generated.linker_reason:
            return decisions(target)
        if (limit := pair_limit(arch, self.session.block_dim)) is not None:
            paired = decisions(replace(target, registers=limit))
            if _allows_pair(arch, limit, paired):
                return paired
        return decisions(target)

    def _loop_target(self) -> LoopTarget:
        reserved = self.before.reserved if self.before else {}
        without_stages = LoopTarget(self._products(), ahead=self.settings.async_copies, reserved=reserved)
        if not self.settings.register_accumulators:
            return replace(without_stages, rejection=self.settings.against("register_accumulators", "on"))
        choice = PipelineOverrides.parse(self.settings.main_loop)
        if choice.family == "wgmma" and self.before is not None and not self.suffix:
            choice = replace(choice, family=None)  # mma.sync has the memory that wgmma had
        if choice.family == "double_buffered":
            return replace(without_stages, rejection=self.settings.against("main_loop", "auto"))
        asked = None if choice == AUTO else self.settings.against("main_loop")
        could_have_wgmma = has_wgmma(self.session.arch or 0)
        if choice.family == "wgmma" and not (self.suffix and could_have_wgmma):
            problem = _NO_CUBIN if could_have_wgmma else Rejected("arch_without_wgmma", (self.session.arch,))
            return replace(without_stages, rejection=problem.after(f"{asked}, and "))
        families: tuple[InstructionFamily, ...] = (choice.family,) if choice.family else ("wgmma", "mma")
        if choice.family is None and could_have_wgmma and not self.suffix:
            families, asked = ("mma",), _NO_CUBIN
        target = replace(
            without_stages, families=families, rejection=asked, choice=choice, records=self.generated.records
        )
        if "own" in self.settings.providers:
            return target
        return replace(
            target, forbidden=self.settings.against("policy" if self.settings.provider == "auto" else "provider")
        )

    # ---- launches

    def reserved_bytes(self, loops: Iterable[LoopDecision]) -> dict[str, tuple[int, int]]:
        """The bytes that :data:`Reserve` gets."""
        reserved: dict[str, tuple[int, int]] = {}

        def reserve(label: str, forward: int, backward: int) -> None:
            before = reserved.get(label, (forward, backward))
            reserved[label] = max(before[0], forward), max(before[1], backward)

        for loop in loops:
            forward = -loop.chain.spared_bytes if loop.chain else loop.extra_bytes
            reserve(loop.function, forward, loop.reverse_ring.plan.extra_bytes if loop.reverse_ring else 0)
        for site in self.session.sites:
            adjoint = site.problems.get(Role.ADJOINT) if site.index in self.generated.called else None
            if isinstance(adjoint, SolverProblem) and self.function_of(adjoint) is not None:
                reserve(site.function, 0, aligned(adjoint.scratch_bytes))
        return reserved


# ---- the functions of a module


def _decide(site: Site, role: Role, called: Collection[int], uses: Sequence[FunctionUse]) -> PlannedFunction:
    adjoint = role is not Role.FORWARD
    needed = not adjoint or site.index in called
    uses = [use for use in uses if use.function == site.function]
    differentiating = [use for use in uses if use.backward and adjoint and needed]
    kernels = tuple(dict.fromkeys(use.kernel for use in differentiating or uses))
    reasons = dict.fromkeys(use.reason for use in uses if use.backward == needed)
    reason = "needed" if needed else "not needed"
    if adjoint:
        reason += f": {'; '.join(reasons) or ('its adjoint is called' if needed else 'no kernel calls its adjoint')}"
    scalar = site.scalar_reason if needed else None
    if scalar:
        where = f"built by {site.provider}" if site.provider else "on Warp's scalar path"
        reason += f"; {where}, because {scalar}"
    lost = site.no_gradient if site.index in called else None
    reason += f"; no gradient: {lost}" if lost else ""
    problem = site.problems.get(role)
    provider = site.provider or ("scalar" if problem is None else "") if needed else ""
    of_site = site.call, site.function, kernels, needed, reason, provider
    return PlannedFunction(problem, role, *of_site, no_gradient=lost, code=code_of(scalar))


def _merge(planned: Sequence[PlannedFunction]) -> tuple[PlannedFunction, ...]:
    """Merge equal functions. A needed function absorbs its skipped equals of the same role."""
    merged: dict[object, PlannedFunction] = {}
    for item in sorted(planned, key=lambda v: not v.needed):
        identity: tuple[object, ...] = (item.role, item.function, item.call, item.reason)
        if item.problem:
            identity = item.problem, item.role, item.no_gradient
        known = merged.get(identity)
        if known is None:
            merged[identity] = item
        else:
            kernels = known.kernels if known.needed and not item.needed else (*known.kernels, *item.kernels)
            merged[identity] = replace(known, kernels=tuple(dict.fromkeys(kernels)))
    return tuple(merged.values())


def resolve(
    session: Session, called: Collection[int], kernels: Sequence[str], uses: Sequence[FunctionUse]
) -> ModulePlan:
    """Decide about every product of a module whose sites of these numbers have adjoints.

    Raises:
        TypeError: An adjoint of a product of bfloat16 operands is needed on the scalar path.
    """
    planned: list[PlannedFunction] = []
    for site in session.sites:
        if site.bfloat16_operands and not site.problems and site.index in called:
            raise TypeError(f"In '{site.function}': {BFLOAT16_ADJOINT_ERROR} Here {site.scalar_reason}.")
        roles = site.roles[:1] if site.no_gradient else site.roles
        planned.extend(_decide(site, role, called, uses) for role in roles)
    return ModulePlan(
        session.module, session.arch, session.block_dim, tuple(kernels), _merge(planned), session.settings
    )


# ---- registers


def with_register_limit(plan: ModulePlan) -> ModulePlan:
    """The plan, whose needed functions have providers, with its register limit and the reason."""
    if plan.arch is None or not plan.has_own_code or plan.linker_reason:
        return replace(plan, register_limit=None, register_limit_reason="")
    limits: dict[int, str] = {}
    own = [v for v in plan.needed if v.provider == "own"]
    if (paired := _pair(plan)) is not None:
        limits[paired[0]] = paired[1]
    elif blocks := plan.code.chain_blocks:  # without a limit, the assembler leaves room for blocks that do not fit
        limits[resident_registers(plan.arch, plan.block_dim, blocks)] = (
            f"{blocks} resident blocks hide latency" if blocks > 1 else "one block is resident"
        )
    elif (alone := max_registers(plan.arch, plan.block_dim)) is not None:
        limits[alone] = f"a block of {plan.block_dim} threads cannot launch with more"
    solvers = [(v.problem, v.kernels) for v in own if isinstance(v.problem, SolverProblem)]
    if solvers and set(plan.kernels) == {kernel for _, kernels in solvers for kernel in kernels}:
        reason = "every kernel calls a solver function, which gains more from resident blocks than from registers"
        wanted = max(register_limit(problem) for problem, _ in solvers)
        if (indexed := registers_of_indexed(plan.indexed_elements)) > wanted:
            wanted, reason = indexed, f"an indexed load or store has {plan.indexed_elements} elements for each thread"
        least, needs = max(_needs(plan), default=(0, ""))
        if least > wanted:
            wanted, reason = least, needs
        limits.setdefault(min(wanted, multiprocessor(plan.arch).thread_registers), reason)
    least_limit = min(limits, default=None)
    return replace(
        plan, register_limit=least_limit, register_limit_reason="" if least_limit is None else limits[least_limit]
    )


def _allows_pair(arch: int, limit: int, loops: Iterable[LoopDecision]) -> bool:
    return all(allows_pair(arch, limit, loop.registers, alone=loop.blocks == 1) for loop in loops)


def _pair(plan: ModulePlan) -> tuple[int, str] | None:
    """The register limit for two resident blocks, and the reason; None if they do not fit or would spill too much."""
    assert plan.arch is not None
    limit = pair_limit(plan.arch, plan.block_dim)
    functions = [(v.problem, v.tile_config) for v in plan.needed if v.provider == "own"]
    staged = [loop for loop in plan.loops if loop.instruction or loop.reverse_instructions]
    if limit is None or not (functions or staged):
        return None
    static = static_shared_bytes(plan.block_dim)
    dynamic = [memory.needed_bytes - static for memory in plan.memory]
    if all(resident_blocks(plan.arch, plan.block_dim, shared_bytes=size) < 2 for size in dynamic):
        return None
    states = {loop.state for loop in plan.loops if not loop.instruction}
    in_loop, ahead = bool(states - {"as_warp"}), AHEAD_REGISTERS * ("pipelined" in states)
    taken = [
        ahead + (registers_with_accumulators if in_loop else registers)(problem, config)
        for problem, config in functions
        if isinstance(problem, GemmProblem) and isinstance(config, TileConfig)
    ]
    # on sm_90, addresses that load ahead may spill: the limit made such loops 1.1 to 1.35 times as fast on an H200
    needed = max(taken, default=0) - ahead * (plan.arch == WGMMA_ARCH)
    if not (_allows_pair(plan.arch, limit, staged) and allows_pair(plan.arch, limit, needed, alone=False)):
        return None
    reason = "2 resident blocks hide latency"
    if max([loop.registers for loop in staged] + taken, default=0) > limit:
        reason += "; a few registers may spill, which costs less than losing the second block"
    return limit, reason


def _needs(plan: ModulePlan) -> Iterator[tuple[int, str]]:
    """Registers of a thread that a kernel needs, and the reasons: with fewer it spills, or cannot be assembled."""
    assert plan.arch is not None
    for planned in plan.needed:
        if isinstance(planned.problem, GemmProblem) and isinstance(planned.tile_config, TileConfig):
            instruction, in_double = planned.tile_config.instruction, computes_in_double(planned.problem)
            yield least_registers(instruction, plan.arch, in_double=in_double), f"{instruction} needs as many"
        elif isinstance(planned.problem, SolverProblem) and planned.provider == "own" and plan.loops:
            row = f"{planned.problem.size} is slower with fewer beside a loop of products"
            yield registers_of_rows(planned.problem), row
    for loop in plan.loops:
        if loop.accumulators:
            yield loop.registers, f"the loop of {loop.file}:{loop.line} needs as many"
