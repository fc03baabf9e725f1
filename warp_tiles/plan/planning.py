"""The plan of a module: the variants that its generated code needs, their kernels, and the reasons.

Warp decides late whether it generates a function's adjoint (module option, kernel option, ``wp.grad()``, a helper
shared between kernels, a custom gradient). A site's adjoints are needed if the adjoint of its function was generated.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from warp_tiles.codegen.module_code import DeviceFunction, ModuleCode
from warp_tiles.codegen.session import FunctionUse, Session, Site
from warp_tiles.gemm.dispatch import BFLOAT16_ADJOINT_ERROR
from warp_tiles.gemm.hardware import (
    WGMMA_ARCH,
    allows_pair,
    least_registers,
    max_registers,
    multiprocessor,
    pair_limit,
    resident_blocks,
    static_shared_bytes,
)
from warp_tiles.gemm.problem import GemmProblem, Role
from warp_tiles.gemm.rejected import Rejected, code_of
from warp_tiles.gemm.tile_config import (
    AHEAD_REGISTERS,
    TileConfig,
    computes_in_double,
    registers,
    registers_with_accumulators,
)
from warp_tiles.gemm.whole_product import WholeProduct
from warp_tiles.plan.planned_loop import PlannedLoop
from warp_tiles.settings import Settings
from warp_tiles.solver.variant import (
    Config,
    SolverVariant,
    Variant,
    register_limit,
    registers_of_indexed,
    registers_of_rows,
)

STAGES = "stages"  # in place of a provider, for products that loops compute


@dataclass(frozen=True)
class PlannedVariant:
    """One function of one site, and the decision about it.

    Attributes:
        variant: The variant; None on the scalar path.
        role: The forward product, or one of the adjoints.
        call, function: The Warp function and the key of the function that calls it.
        kernels: Keys of the kernels that need it; if it is skipped, of those that contain it.
        needed: True if a launch computes it.
        reason: The reasons for this decision and for the provider.
        code: The code of the rejection that ``reason`` ends with; empty without one.
        provider: The provider of its function: ``own``, ``cublasdx``, ``libmathdx`` or ``scalar``; ``stages`` if loops
            compute it from stages, without a function; ``warp`` if only Warp knows its builtin; empty if it is skipped.
        symbol: The function that will be called; empty until a provider is found, and on the scalar path.
        tile_config: Tile configuration of the provider ``own``; None with others.
        choice: What decided about provider and tile configuration: ``tuned`` (a tuning record) or ``default`` (the
            order of the providers and the heuristics); empty until a provider is found.
        key: Digest of its cache key; empty if it is not cached by warp_tiles.
        cached: True if the cache holds it.
        no_gradient: The reason why a solver in an adjoint has no gradient; None if it has one.
        in_source: True if the function stands in the module's source, False if the module is linked with it.
        device_function: The function that its site calls; None until a provider is found, and on the scalar path.
    """

    variant: Variant | None
    role: Role
    call: str
    function: str
    kernels: tuple[str, ...]
    needed: bool
    reason: str
    provider: str = ""
    key: str = ""
    cached: bool = False
    symbol: str = ""
    tile_config: Config | None = None
    choice: str = ""
    no_gradient: Rejected | None = None
    in_source: bool = False
    code: str = ""
    device_function: DeviceFunction | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The fields that ``warp-tiles plan --json`` prints; sizes are null on the scalar path.

        A solver has fields of its own (:meth:`SolverVariant.to_json`), and null for those that only products have.
        """
        names = ["m", "n", "k", "a_dtype", "b_dtype", "c_dtype", "precision", "arrangement"]
        names += ["leading_dimensions", "alignments", "threads", "arch"]
        variant = self.variant
        return {
            **{name: value for name, value in vars(self).items() if name not in ("variant", "device_function")},
            **dict.fromkeys(names),
            **({} if variant is None else variant.to_json()),
            "role": self.role.value,
            "no_gradient": str(self.no_gradient or ""),
            "no_gradient_code": code_of(self.no_gradient),
            "size": self.call if variant is None else variant.size,
            "dtypes": variant.dtypes if variant else "",
            "symbol": self.symbol or (variant.symbol if variant else ""),
            "kernels": list(self.kernels),
            **config_json(self.tile_config),
        }


def config_json(config: Config | None) -> dict[str, Any]:
    """The tile configuration of a function and its short text, as JSON values."""
    return {"tile_config": config.to_json() if config else None, "tile": config.describe() if config else ""}


@dataclass(frozen=True)
class KernelMemory:
    """The shared memory that a block of a kernel needs.

    Attributes:
        direction: ``forward`` or ``backward``.
        needed_bytes: Tiles, gradients and stages, and the static memory of Warp's headers and of solver functions.
        limit_bytes: What a block of the target may have.
    """

    kernel: str
    direction: str
    needed_bytes: int
    limit_bytes: int

    @staticmethod
    def of(kernel: str, direction: str, dynamic_bytes: int, arch: int, threads: int) -> KernelMemory:
        """The memory of a kernel of Warp with so much dynamic shared memory, in a block of so many threads."""
        needed = dynamic_bytes + static_shared_bytes(threads)
        return KernelMemory(kernel, direction, needed, multiprocessor(arch).block_shared_bytes)

    @property
    def problem(self) -> str:
        """Why a launch fails, and the remedy; empty if the memory suffices."""
        if self.needed_bytes <= self.limit_bytes:
            return ""
        what, remedy = f"a launch of kernel {self.kernel}", "use smaller tiles"
        if self.direction == "backward":
            what, remedy = f"the backward pass of kernel {self.kernel}", f"{remedy}, or set enable_backward=False"
        return (
            f"{what} fails: a block needs {self.needed_bytes:,} bytes of shared memory, and has {self.limit_bytes:,}; "
            f"{remedy}"
        )

    def to_json(self) -> dict[str, Any]:
        """The fields that ``warp-tiles plan --json`` prints."""
        return {**vars(self), "problem": self.problem}


@dataclass(frozen=True)
class ModulePlan:
    """The variants and loops of one module for one target.

    Attributes:
        name: Warp's name of the module.
        arch: Compute capability, or None for the CPU.
        block_dim: Threads per block.
        kernels: Keys of all kernels of the module.
        variants: Every product of every site, needed or not; equal ones of one role appear once, and
            equal ones of several roles are built once.
        settings: The settings in force for the module.
        loops: Every loop that contains products, once for each kernel that runs it.
        loops_reason: The reason why no loop was examined; empty if loops were examined.
        whole_products: Kernels that are a product of whole arrays and have an adjoint, by their keys.
        linker_reason: The reason why Warp links the module; empty if warp_tiles links it.
        indexed_elements: Elements for each thread, at most, that an indexed load or store of the module has.
        register_limit: Registers per thread, at most, in a cubin that warp_tiles links; None for no limit. Warp's own
            link has none.
        register_limit_reason: The reason for this limit; empty without one.
        memory: The shared memory of each kernel, forward and backward.
        stuck: Statements at which the lanes of a block wait for each other forever, as ``file:line``.
        uninstantiated: Keys of the generic kernels that multiply or solve tiles, and that have no instance yet.
        code: What the finished source is written from.
    """

    name: str
    arch: int | None
    block_dim: int
    kernels: tuple[str, ...]
    variants: tuple[PlannedVariant, ...]
    settings: Settings = field(default_factory=Settings)
    loops: tuple[PlannedLoop, ...] = ()
    loops_reason: str = ""
    whole_products: Mapping[str, WholeProduct] = field(default_factory=dict)
    linker_reason: str = ""
    indexed_elements: int = 0
    register_limit: int | None = None
    register_limit_reason: str = ""
    memory: tuple[KernelMemory, ...] = ()
    stuck: tuple[str, ...] = ()
    uninstantiated: tuple[str, ...] = ()
    code: ModuleCode = field(default_factory=ModuleCode, repr=False, compare=False)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """What is needed or done, and why: each function and loop, and launches that fail."""
        for each in self.variants:
            size = each.call if each.variant is None else each.variant.size
            yield f"{each.role.value} {size}, {', '.join(each.kernels)}", each.reason
        for loop in self.loops:
            yield f"loop in {loop.file}:{loop.line}, {loop.kernel}", f"{loop.describe()}: {loop.explanation}"
        for problem in (*self.launch_problems, *filter(None, [self.uninstantiated_reason])):
            yield "problem", problem

    @property
    def _title(self) -> str:
        return f"module {self.name}, {self.target or 'the CPU'}, {self.block_dim} threads"

    def __str__(self) -> str:
        return "\n".join([self._title, *(f"  {what}: {why}" for what, why in self._lines())])

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        rows = (f"<tr><td>{html.escape(what)}</td><td>{html.escape(why)}</td></tr>" for what, why in self._lines())
        return f"<table><caption>{html.escape(self._title)}</caption>{''.join(rows)}</table>"

    @property
    def launch_problems(self) -> tuple[str, ...]:
        """Why launches fail for lack of shared memory or never end, with the remedies; of forward passes first."""
        found = sorted(self.memory, key=lambda memory: memory.direction == "backward")
        return *self.stuck_problems, *(memory.problem for memory in found if memory.problem)

    @property
    def stuck_problems(self) -> tuple[str, ...]:
        """Why launches never end, with the remedy, for each such statement."""
        return tuple(
            f"{place}: only some lanes of a block come here, or less often, and the statement waits for all of them, "
            "so a launch may never end; let all lanes come as often, e.g. t[i, j] = wp.where(condition, x, t[i, j])"
            for place in self.stuck
        )

    @property
    def uninstantiated_reason(self) -> str:
        """Why generic kernels are not part of the plan, and the remedy; empty if each has an instance."""
        if not self.uninstantiated:
            return ""
        return (
            f"generic kernels without an instance: {', '.join(self.uninstantiated)}; their functions depend on the "
            "types of the arguments, so launch them, or name the types with wp.overload()"
        )

    @property
    def needed(self) -> tuple[PlannedVariant, ...]:
        """The variants whose functions are called."""
        return tuple(v for v in self.variants if v.needed and v.variant is not None and v.provider != STAGES)

    @property
    def has_own_code(self) -> bool:
        """True if code of warp_tiles computes anything: a function, or a loop with stages."""
        return any(v.provider != "scalar" for v in self.needed) or any(
            loop.instruction or loop.reverse_instructions for loop in self.loops
        )

    @property
    def arch_suffix(self) -> str:
        """``a`` if a loop multiplies by wgmma, which only ``sm_90a`` has; else empty."""
        used = {name for loop in self.loops for name in (loop.instruction, *loop.reverse_instructions)}
        return "a" if "wgmma" in used else ""

    @property
    def target(self) -> str:
        """The target of its cubin, e.g. ``sm_90`` or ``sm_90a``; empty for the CPU."""
        return "" if self.arch is None else f"sm_{self.arch}{self.arch_suffix}"

    def to_json(self) -> dict[str, Any]:
        """The module as ``warp-tiles plan --json`` prints it."""
        names = ("name", "arch", "target", "block_dim", "linker_reason")
        reasons = ("loops_reason", "register_limit", "register_limit_reason", "uninstantiated_reason")
        return {
            **{name: getattr(self, name) for name in (*names, *reasons)},
            "kernels": list(self.kernels),
            "provider": self.settings.provider,
            "policy": self.settings.policy,
            "variants": [v.to_json() for v in self.variants],
            "loops": [loop.to_json() for loop in self.loops],
            "stuck": list(self.stuck_problems),
            "memory": [memory.to_json() for memory in self.memory],
            "uninstantiated": list(self.uninstantiated),
        }


def _decide(site: Site, role: Role, called: Collection[int], uses: Sequence[FunctionUse]) -> PlannedVariant:
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
    variant = site.variants.get(role)
    provider = site.provider or ("scalar" if variant is None else "") if needed else ""
    return PlannedVariant(
        variant,
        role,
        site.call,
        site.function,
        kernels,
        needed,
        reason,
        provider,
        no_gradient=lost,
        code=code_of(scalar),
    )


def _merge(planned: Sequence[PlannedVariant]) -> tuple[PlannedVariant, ...]:
    """Merge equal variants. A needed variant absorbs its skipped equals of the same role."""
    merged: dict[object, PlannedVariant] = {}
    for item in sorted(planned, key=lambda v: not v.needed):
        identity: tuple[object, ...] = (item.role, item.function, item.call, item.reason)
        if item.variant:
            identity = item.variant, item.role, item.no_gradient
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
    """Decide about every product of a module.

    Args:
        called: Numbers of the sites in functions whose adjoint was generated.
        uses: The functions that each kernel uses, forward and backward.

    Raises:
        TypeError: An adjoint of a product of bfloat16 operands is needed on the scalar path.
    """
    planned: list[PlannedVariant] = []
    for site in session.sites:
        if site.bfloat16_operands and not site.variants and site.index in called:
            raise TypeError(f"In '{site.function}': {BFLOAT16_ADJOINT_ERROR} Here {site.scalar_reason}.")
        roles = site.roles[:1] if site.no_gradient else site.roles
        planned.extend(_decide(site, role, called, uses) for role in roles)
    return ModulePlan(
        session.module, session.arch, session.block_dim, tuple(kernels), _merge(planned), session.settings
    )


# ---- registers


def with_register_limit(plan: ModulePlan) -> ModulePlan:
    """The plan, whose needed variants have providers, with its register limit and the reason."""
    if plan.arch is None or not plan.has_own_code or plan.linker_reason:
        return replace(plan, register_limit=None, register_limit_reason="")
    limits: dict[int, str] = {}
    own = [v for v in plan.needed if v.provider == "own"]
    if (paired := _pair(plan)) is not None:
        limits[paired[0]] = paired[1]
    elif (alone := max_registers(plan.arch, plan.block_dim)) is not None:
        limits[alone] = f"a block of {plan.block_dim} threads cannot launch with more"
    solvers = [(v.variant, v.kernels) for v in own if isinstance(v.variant, SolverVariant)]
    if solvers and set(plan.kernels) == {kernel for _, kernels in solvers for kernel in kernels}:
        reason = "every kernel calls a solver function, which gains more from resident blocks than from registers"
        wanted = max(register_limit(variant) for variant, _ in solvers)
        if (indexed := registers_of_indexed(plan.indexed_elements)) > wanted:
            wanted, reason = indexed, f"an indexed load or store has {plan.indexed_elements} elements for each thread"
        least, needs = max(_needs(plan), default=(0, ""))
        if least > wanted:
            wanted, reason = least, needs
        limits.setdefault(min(wanted, multiprocessor(plan.arch).thread_registers), reason)
    least_limit = min(limits, default=None)
    return replace(
        plan,
        register_limit=least_limit,
        register_limit_reason="" if least_limit is None else limits[least_limit],
    )


def _pair(plan: ModulePlan) -> tuple[int, str] | None:
    """The register limit for two resident blocks, and the reason; None if they do not fit or would spill too much."""
    assert plan.arch is not None
    limit = pair_limit(plan.arch, plan.block_dim)
    functions = [(v.variant, v.tile_config) for v in plan.needed if v.provider == "own"]
    staged = [loop for loop in plan.loops if loop.instruction or loop.reverse_instructions]
    if limit is None or not (functions or staged):
        return None
    static = static_shared_bytes(plan.block_dim)
    dynamic = [memory.needed_bytes - static for memory in plan.memory]
    if all(resident_blocks(plan.arch, plan.block_dim, shared_bytes=size) < 2 for size in dynamic):
        return None
    if not all(allows_pair(plan.arch, limit, one.registers, alone=one.resident_blocks == 1) for one in staged):
        return None
    states = {loop.state for loop in plan.loops if not loop.instruction}
    in_loop, ahead = bool(states - {"as_warp"}), AHEAD_REGISTERS * ("pipelined" in states)
    taken = [
        ahead + (registers_with_accumulators if in_loop else registers)(variant, config)
        for variant, config in functions
        if isinstance(variant, GemmProblem) and isinstance(config, TileConfig)
    ]
    if plan.arch != WGMMA_ARCH and any(each > limit for each in taken):
        return None
    reason = "2 resident blocks hide latency"
    if max([loop.registers for loop in staged] + taken, default=0) > limit:
        reason += "; a few registers may spill, which costs less than losing the second block"
    return limit, reason


def _needs(plan: ModulePlan) -> Iterator[tuple[int, str]]:
    """Registers of a thread that a kernel needs, and the reasons: with fewer it spills, or cannot be assembled."""
    assert plan.arch is not None
    for planned in plan.needed:
        if isinstance(planned.variant, GemmProblem) and isinstance(planned.tile_config, TileConfig):
            instruction, in_double = planned.tile_config.instruction, computes_in_double(planned.variant)
            yield least_registers(instruction, plan.arch, in_double=in_double), f"{instruction} needs as many"
        elif isinstance(planned.variant, SolverVariant) and planned.provider == "own" and plan.loops:
            row = f"{planned.variant.size} is slower with fewer beside a loop of products"
            yield registers_of_rows(planned.variant), row
    for loop in plan.loops:
        if loop.accumulators:
            yield loop.registers, f"the loop of {loop.file}:{loop.line} needs as many"
