"""The plan of a module, as values: the functions and loops that its generated code needs, their kernels, the reasons.

:mod:`warp_tiles.plan.planner` makes it. Reports print it.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from warp_tiles.codegen.module_code import (
    AccumulatorStore,
    DeviceFunction,
    LoopDecision,
    ModuleCode,
    extra_bytes,
)
from warp_tiles.codegen.whole import WholeProduct
from warp_tiles.gemm.hardware import multiprocessor, static_shared_bytes
from warp_tiles.gemm.problem import DTYPE_BYTES, Role
from warp_tiles.gemm.rejected import Rejected, code_of, counted
from warp_tiles.settings import Settings
from warp_tiles.solver.problem import Config, Problem

_SHORTEST_COPY = 4  # bytes of an async copy, as shortest_copy() in kernels/module/stage_buffers.cuh
_LOOP_FIELDS = (
    "kernel", "file", "line", "products", "state", "stages", "reason", "instruction", "accumulators", "codes",
    "gradients", "gradients_code", "reverse", "reverse_code", "reverse_instructions", "store", "store_code", "operands",
    "loads", "cost", "shared_bytes", "registers", "resident_blocks",
)  # fmt: skip
STAGES = "stages"  # in place of a provider, for products that loops compute


@dataclass(frozen=True)
class PlannedFunction:
    """One function that a site may call, and the decision about it.

    Attributes:
        problem: The problem that it computes; None if no function of this project serves the site.
        role: The forward product, or one of the adjoints.
        call, function: Warp's builtin, and the key of the kernel or ``@wp.func`` that calls it.
        kernels: Keys of the kernels that need it; if it is skipped, of those that contain it.
        needed: True if a launch computes it.
        reason: The reasons for this decision and for the provider.
        code: The code of the rejection that ``reason`` ends with; empty without one.
        provider: The provider of its function: ``own``, ``cublasdx``, ``libmathdx`` or ``scalar``; ``stages`` if loops
            compute it from stages, without a function; ``warp`` if only Warp knows its builtin; empty if it is skipped.
        symbol: Name of the device function that is called; empty until a provider is found, and on the scalar path.
        tile_config: Tile configuration of the provider ``own``; None with others.
        choice: What decided about provider and tile configuration: ``tuned`` (a tuning record) or ``default`` (the
            order of the providers and the heuristics); empty until a provider is found.
        key: Digest of its cache key; empty if it is not cached by warp_tiles.
        cached: True if the cache holds it.
        no_gradient: The reason why a solver in an adjoint has no gradient; None if it has one.
        in_source: True if the function stands in the module's source, False if the module is linked with it.
        device_function: What the source declares and calls; None until a provider is found, and on the scalar path.
    """

    problem: Problem | None
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

        A solver has fields of its own (:meth:`SolverProblem.to_json`), and null for those that only products have.
        """
        names = ["m", "n", "k", "a_dtype", "b_dtype", "c_dtype", "precision", "arrangement"]
        names += ["leading_dimensions", "alignments", "threads", "arch"]
        problem = self.problem
        return {
            **{name: value for name, value in vars(self).items() if name not in ("problem", "device_function")},
            **dict.fromkeys(names),
            **({} if problem is None else problem.to_json()),
            "role": self.role.value,
            "no_gradient": str(self.no_gradient or ""),
            "no_gradient_code": code_of(self.no_gradient),
            "size": self.call if problem is None else problem.size,
            "dtypes": problem.dtypes if problem else "",
            "symbol": self.symbol or (problem.symbol if problem else ""),
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
        needed_bytes: Tiles, gradients and stages, and the static memory of Warp's headers and of solver functions.
        limit_bytes: What a block of the target may have.
    """

    kernel: str
    direction: str
    needed_bytes: int
    limit_bytes: int

    @staticmethod
    def of(kernel: str, direction: str, dynamic_bytes: int, arch: int, threads: int) -> KernelMemory:
        needed = dynamic_bytes + static_shared_bytes(threads)
        return KernelMemory(kernel, direction, needed, multiprocessor(arch).block_shared_bytes)

    @property
    def failure(self) -> str:
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
        return {**vars(self), "failure": self.failure}


@dataclass(frozen=True, repr=False)
class PlannedLoop(LoopDecision):
    """The decision about one loop that contains products, and its words, for a kernel that runs the loop.

    Attributes:
        kernel: Key of the kernel.
        gradients: How a ``wp.Tape`` computes its gradients, and why; empty if the kernel has no adjoint.
        gradients_code: The code of the rejection in ``gradients``; empty without one. Other texts have theirs, too.
    """

    kernel: str = ""
    gradients: str = ""
    gradients_code: str = ""

    @property
    def stages(self) -> int:
        """Number of buffers of each operand that the loop loads."""
        if self.chain:
            return self.chain.layout.stages
        return self.ring.plan.loop.stages if self.ring else 2 if self.loads_ahead else 1

    @property
    def instruction(self) -> str:
        """``wgmma``, an ``mma.sync`` such as ``mma_m16n8k16``, or ``fma`` if it multiplies tiles in stages."""
        return self.ring.plan.loop.instruction if self.ring else self.chain.instruction if self.chain else ""

    @property
    def reason(self) -> str:
        """How the loop is computed, and why not otherwise."""
        return "; ".join(dict.fromkeys(map(str, self._reasons())))

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the rejections in ``reason``."""
        return tuple(dict.fromkeys(reason.code for reason in self._reasons() if isinstance(reason, Rejected)))

    @property
    def reverse(self) -> str:
        """How the adjoint kernel multiplies from stages, or ``no stages`` and why; empty without an adjoint."""
        if (ring := self.reverse_ring) is None:
            return f"no stages: {self.reverse_pass}" if self.reverse_pass else ""
        instructions = " and ".join(ring.plan.instructions)
        return f"{instructions} from stages of {ring.stage_bytes} bytes, {_where(ring.plan.extra_bytes)}"

    @property
    def reverse_code(self) -> str:
        return code_of(self.reverse_pass)

    @property
    def reverse_instructions(self) -> tuple[str, ...]:
        return self.reverse_ring.plan.instructions if self.reverse_ring else ()

    @property
    def store(self) -> str:
        """How the accumulators of a loop with stages reach an array, and why; empty without stages."""
        if isinstance(store := self.accumulator_store, AccumulatorStore):
            return "the accumulators are stored from registers"
        return f"the accumulators pass through shared memory, because {store}" if store else ""

    @property
    def store_code(self) -> str:
        return code_of(self.accumulator_store)

    @property
    def operands(self) -> int:
        """Registers of a thread that hold operands of ``fma``."""
        return max((plan.operands for plan in self.ring.plan.products), default=0) if self.ring else 0

    @property
    def loads(self) -> str:
        """How tiles reach the stages of a loop, also from arrays with unaligned rows; empty without stages."""
        if self.ring is None:
            return ""
        size_bytes = DTYPE_BYTES[self.ring.products[0].problem.a.dtype]
        word = max(size_bytes, _SHORTEST_COPY)
        words, those = ("8", "8") if word == 8 else (f"8 or {word}", "these")
        odd = " or begins at an odd element" if size_bytes < word else ""
        transposed = {buffer.transposed for buffer in self.ring.buffers.values()}
        texts = []
        if False in transposed:
            texts.append(
                f"async copies of 16 bytes load tiles, or of {words} bytes where rows begin at other multiples of "
                f"{those}, or threads load elements where a row has gaps{odd}"
            )
        if True in transposed:
            texts.append("async copies of single elements transpose tiles on their way")
        return "; ".join(texts)

    @property
    def cost(self) -> str:
        """What a setting that forbids stages costs the loop, and the remedy; empty if none does."""
        return str(self.forbidden or "")

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block with stages, with the tiles around the loop; 0 without stages."""
        return self.ring.plan.loop.shared_bytes if self.ring else 0

    @property
    def resident_blocks(self) -> int:
        """Blocks that a multiprocessor runs with these bytes and the registers that the module allows; 0 without."""
        return self.ring.plan.loop.blocks if self.ring else 0

    def _reasons(self) -> Iterator[Rejected | str]:
        ring, chain = self.ring, self.chain
        if chain is not None:
            layout = chain.layout
            fixed_bytes = sum(tile.size_bytes for tile in chain.fixed) if chain.copies_fixed else 0
            copied = f"; {fixed_bytes} bytes of them have the left operands from outside" if fixed_bytes else ""
            yield (
                f"{chain.instruction} multiplies {counted(layout.stages, 'stage')} of {chain.stage_bytes} bytes"
                f"{' for each warpgroup' if layout.copies > 1 else ''}, in idle tiles{copied}; the tiles between its "
                "products stay in registers"
            )
            return
        if ring is None:
            extra = extra_bytes(self.buffers)
            if in_c := sum(buffer.size_bytes for buffer in self.buffers) - extra:
                yield f"double buffers of {in_c} bytes lie in C's memory, which is idle in the loop"
            if extra:
                yield f"double buffers of {extra} bytes lie in extra shared memory"
            if self.arrival is not None:
                yield (
                    "loads run during the products of the iteration before, and arrive before other statements on tiles"
                )
            elif self.loads_ahead and not self.buffers:
                yield Rejected("unrolled_tiles")
            yield from self.reasons
            return
        loop = ring.plan.loop
        yield (
            f"{loop.instruction} multiplies {loop.stages} stages of {loop.stage_bytes} bytes, "
            f"{_where(loop.extra_bytes)}"
        )
        yield f"a block has {loop.shared_bytes} of {loop.shared_limit} bytes of shared memory"
        yield from filter(None, (loop.rejection, *self.reasons, ring.plan.rejection, ring.measured))
        if any(plan.swapped for plan in ring.plan.products):
            yield "it computes the transpose of C"

    def to_json(self) -> dict[str, Any]:
        """The fields that ``warp-tiles plan --json`` prints."""
        lists = {name: list(getattr(self, name)) for name in ("codes", "reverse_instructions")}
        return {**{name: getattr(self, name) for name in _LOOP_FIELDS}, **lists, "treatment": self.describe()}

    def describe(self) -> str:
        """The decision in words."""
        words = {"pipelined": f"pipelined, {self.stages} stages", "register_accumulators": "accumulators in registers"}
        return words.get(self.state, "as Warp does it")

    @property
    def explanation(self) -> str:
        return "; ".join(filter(None, (self.reason, self.store, self.cost)))

    def summary(self) -> str:
        """One line for the log."""
        products = f"{self.products} product{'s' * (self.products > 1)}"
        return f"kernel {self.kernel}, {self.file}:{self.line}: {products}, {self.describe()}: {self.explanation}"

    __repr__ = summary


@dataclass(frozen=True)
class ModulePlan:
    """The functions and loops of one module for one target.

    Attributes:
        name: Warp's name of the module.
        arch: Compute capability, or None for the CPU.
        block_dim: Threads per block.
        kernels: Keys of all kernels of the module.
        functions: Every function that a site may call, needed or not; equal ones of one role appear once, and equal
            ones of several roles are built once.
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
        reserved: The bytes that functions need beyond their tiles, by label: in the forward pass, and in the reverse
            pass beyond tiles and gradients.
        stuck: Statements at which the lanes of a block wait for each other forever, as ``file:line``.
        uninstantiated: Keys of the generic kernels that multiply or solve tiles, and that have no instance yet.
        code: What the finished source is written from.
    """

    name: str
    arch: int | None
    block_dim: int
    kernels: tuple[str, ...]
    functions: tuple[PlannedFunction, ...]
    settings: Settings = field(default_factory=Settings)
    loops: tuple[PlannedLoop, ...] = ()
    loops_reason: str = ""
    whole_products: Mapping[str, WholeProduct] = field(default_factory=dict)
    linker_reason: str = ""
    indexed_elements: int = 0
    register_limit: int | None = None
    register_limit_reason: str = ""
    memory: tuple[KernelMemory, ...] = ()
    reserved: Mapping[str, tuple[int, int]] = field(default_factory=dict, repr=False)
    stuck: tuple[str, ...] = ()
    uninstantiated: tuple[str, ...] = ()
    code: ModuleCode = field(default_factory=ModuleCode, repr=False, compare=False)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """What is needed or done, and why: each function and loop, and launches that fail."""
        for planned in self.functions:
            size = planned.call if planned.problem is None else planned.problem.size
            yield f"{planned.role.value} {size}, {', '.join(planned.kernels)}", planned.reason
        for loop in self.loops:
            yield f"loop in {loop.file}:{loop.line}, {loop.kernel}", f"{loop.describe()}: {loop.explanation}"
        for failure in (*self.launch_failures, *filter(None, [self.uninstantiated_reason])):
            yield "problem", failure

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
    def launch_failures(self) -> tuple[str, ...]:
        """Why launches fail for lack of shared memory or never end, with the remedies; of forward passes first."""
        memories = sorted(self.memory, key=lambda memory: memory.direction == "backward")
        return *self.stuck_failures, *(memory.failure for memory in memories if memory.failure)

    @property
    def stuck_failures(self) -> tuple[str, ...]:
        """Why launches never end, with the remedy, for each such statement."""
        return tuple(
            f"{line}: only some lanes of a block come here, or less often, and the statement waits for all of them, "
            "so a launch may never end; let all lanes come as often, e.g. t[i, j] = wp.where(condition, x, t[i, j])"
            for line in self.stuck
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

    def has_memory(self, needed: Mapping[str, tuple[int, int]]) -> bool:
        """True if so many bytes, as in ``reserved``, are reserved."""
        pairs = (pair for label, sizes in needed.items() for pair in zip(sizes, self.reserved.get(label, (0, 0))))
        return all(size <= reserved for size, reserved in pairs)

    @property
    def needed(self) -> tuple[PlannedFunction, ...]:
        """The needed functions of problems, except for those that loops compute from stages."""
        return tuple(v for v in self.functions if v.needed and v.problem is not None and v.provider != STAGES)

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
        return "" if self.arch is None else f"sm_{self.arch}{self.arch_suffix}"

    def to_json(self) -> dict[str, Any]:
        names = ("name", "arch", "target", "block_dim", "linker_reason")
        reasons = ("loops_reason", "register_limit", "register_limit_reason", "uninstantiated_reason")
        return {
            **{name: getattr(self, name) for name in (*names, *reasons)},
            "kernels": list(self.kernels),
            "provider": self.settings.provider,
            "policy": self.settings.policy,
            "functions": [v.to_json() for v in self.functions],
            "loops": [loop.to_json() for loop in self.loops],
            "stuck": list(self.stuck_failures),
            "memory": [memory.to_json() for memory in self.memory],
            "uninstantiated": list(self.uninstantiated),
        }


# ---- a loop in words


def _where(extra_bytes: int) -> str:
    return f"with {extra_bytes} bytes of extra shared memory" if extra_bytes else "in idle tiles"
