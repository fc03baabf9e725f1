"""The decisions about a module, from which its code is written: its loops, loads, stores and calls of functions.

A decision is complete. It refers to operations and tiles by the names and hooks that they have in the generated source,
so that neither trace nor settings are needed beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from warp_tiles.codegen.macros import Hook
from warp_tiles.codegen.operations import Array, Operation, Tile
from warp_tiles.gemm.main_loop import GradientProduct, LoopPlan, ReverseLoop
from warp_tiles.gemm.pipeline import LoopInstruction, MmaPlan
from warp_tiles.gemm.problem import DTYPES, GemmProblem
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.solver.problem import Problem

# ---- products


@dataclass(frozen=True)
class LoopAccumulators:
    """Device functions that keep the accumulators of one product in registers.

    Attributes:
        symbol: Name of the product's function. With the suffixes ``_add`` and ``_finish`` it names these functions.
        ctype: C++ type of an accumulator, e.g. ``wp::float32``.
        count: Accumulators of each thread.
    """

    symbol: str
    ctype: str
    count: int

    @property
    def is_double(self) -> bool:
        return self.ctype == DTYPES["float64"].warp_type


@dataclass(frozen=True)
class DeviceFunction:
    """A function that call sites call, with its translation unit if that stands in the module's source.

    ``accumulators`` keep those of a product over a loop, or are the reason why there are none.
    """

    symbol: str
    accumulators: LoopAccumulators | Rejected
    unit: str = ""


@dataclass(frozen=True)
class Addition:
    """``s += C`` or ``s -= C``, also as ``s = s + C`` or ``s = s - C``. A reshape of C may take the place of C.

    Attributes:
        statements: The reshape if there is one, the operator, and in the second form the assignment of its result to s.
        added: C, or its reshape.
        sign: 1 if it adds C to s, or -1 if it subtracts it.
        is_direct: True if s is a dense shared tile of the dtype and shape of what is added, and begins where a tile's
            memory does. The accumulators are added to s then, and C is not written.
    """

    statements: tuple[Operation, ...]
    target: Tile
    added: Tile
    sign: int
    is_direct: bool = False


@dataclass(frozen=True)
class Accumulation:
    """A product whose accumulators stay in registers.

    Attributes:
        home: Hook of the outermost loop in which nothing else touches C. The accumulators are written after it.
        array: Number of the array that holds the accumulators. Products of one C, function and factor share it.
        alpha: The factor of the product: a number, or the C++ variable that holds it. The accumulators are multiplied
            by it after the loop.
        addition: What adds C to another tile after the product; None if the product adds to C itself.
        recomputes: True if lanes compute their addresses in each iteration of a loop without stages and after it,
            because a solver needs the registers in which they would stay.
    """

    operation: Operation
    accumulators: LoopAccumulators
    home: int
    array: int
    alpha: float | str
    addition: Addition | None = None
    recomputes: bool = False

    @property
    def a(self) -> Tile:
        return self.operation.matrices[0]

    @property
    def b(self) -> Tile:
        return self.operation.matrices[1]

    @property
    def c(self) -> Tile:
        """The tile that the product adds to, or its new tile."""
        return self.operation.matrices[2]

    @property
    def destination(self) -> Tile:
        """The tile that gets the accumulators after the loop: the target of a direct addition, or else C."""
        return self.addition.target if self.addition is not None and self.addition.is_direct else self.c

    @property
    def factor(self) -> float | str:
        """The factor of the accumulators at their destination. See ``alpha``."""
        if self.destination is self.c or self.addition is None or self.addition.sign == 1:
            return self.alpha
        return f"-{self.alpha}" if isinstance(self.alpha, str) else -self.alpha


# ---- loops


def aligned(size_bytes: int) -> int:
    """Bytes of shared memory for so many bytes of elements: a multiple of 16, as Warp allocates tiles."""
    return -(-size_bytes // 16) * 16


@dataclass(frozen=True)
class StageBuffer:
    """The place of a loaded tile in a stage.

    Attributes:
        offset_bytes: Its offset in the stage.
        transposed: True if the stage buffer has the tile's columns as rows.
        array: The array that every iteration loads it from; None if the array changes in the loop.
    """

    load: Operation
    offset_bytes: int
    transposed: bool = False
    array: Array | None = None


@dataclass(frozen=True)
class StagedProduct:
    """A product of tiles in stage buffers, as its operands lie there, and how a block computes it.

    ``has_start`` is true if C has a start value.
    """

    accumulation: Accumulation
    problem: GemmProblem
    plan: MmaPlan
    has_start: bool


@dataclass(frozen=True)
class Ring:
    """The stages of a loop.

    Attributes:
        first: The tile in whose memory the first stage begins; None if it begins in extra memory.
        buffers: The stage buffers by tile, in the order of the loads.
        adds_starts: True if the accumulators are added to start values after the loop, because Cs share memory; else
            they begin with them.
        fills: The statements that fill a C with zeros right before the loop, which overwrites it.
        measured: The measured time if a tuning record chose the pipeline; else empty.
    """

    plan: LoopPlan
    first: Tile | None
    buffers: Mapping[str, StageBuffer]
    products: tuple[StagedProduct, ...]
    adds_starts: bool
    fills: tuple[Operation, ...] = ()
    measured: str = ""

    @property
    def firsts(self) -> list[StagedProduct]:
        """The first product of each array of accumulators."""
        sums = ((product, product.accumulation) for product in self.products)
        return [product for product, kept in sums if kept.array == kept.operation.own_hook]

    def buffer_of(self, tile: Tile) -> StageBuffer:
        return next(buffer for root, buffer in self.buffers.items() if root in tile.memory)


@dataclass(frozen=True)
class Buffer:
    """The second buffer of a tile that a loop loads.

    Attributes:
        c: The tile C whose memory contains the buffer; None if it lies in extra memory.
        offset_bytes: Offset of the buffer in that memory.
    """

    tile: Tile
    load: Operation
    c: Tile | None
    offset_bytes: int

    @property
    def size_bytes(self) -> int:
        return aligned(self.tile.size_bytes)


def extra_bytes(buffers: Iterable[Buffer]) -> int:
    return sum(buffer.size_bytes for buffer in buffers if buffer.c is None)


@dataclass(frozen=True)
class TileGradient:
    """The gradient of a loaded tile, from its array and the loaded tile with which G is multiplied."""

    tile: Tile
    array: Array
    other: Tile
    product: GradientProduct


@dataclass(frozen=True)
class ReverseRing:
    """The reverse pass of a loop.

    Attributes:
        alpha: Its factor: a number, or the C++ variable that holds it.
        first: The tile in whose memory the copies of G begin; None if they begin in extra memory.
        buffers: The stage buffers by tile, in the order of the loads.
        views: The statements that transpose A or B.
    """

    plan: ReverseLoop
    forward: GemmProblem
    product: Operation
    alpha: float | str
    first: Tile | None
    buffers: Mapping[str, StageBuffer]
    stage_bytes: int
    gradients: tuple[TileGradient, TileGradient]
    views: tuple[Operation, ...] = ()


@dataclass(frozen=True)
class ChainLoad:
    """A tile that an iteration of a chain loads.

    Attributes:
        array: The array, which is the same in each iteration.
        offsets: The numbers in its place that change with the loop's variable, and by how much for each increment.
        offset_bytes: The offset of its buffer in a stage.
    """

    load: Operation
    array: Array
    offsets: tuple[tuple[str, int], ...]
    offset_bytes: int = 0

    @property
    def tile(self) -> Tile:
        (tile,) = self.load.tiles
        return tile


@dataclass(frozen=True)
class StageLayout:
    """The stages of a chain.

    Attributes:
        stages: Two, or one, whose tiles are loaded again as soon as they are multiplied.
        copies: One that all threads load, or one for each warpgroup, which then waits for its own threads alone.
        size_bytes: Memory for all of them, with the fixed operands that lie behind them.
        blocks: Blocks that a multiprocessor runs at a time, as far as shared memory and registers decide.
    """

    stages: int
    copies: int
    size_bytes: int
    blocks: int


@dataclass(frozen=True)
class Chain:
    """A loop that keeps the tiles between its products in registers (:mod:`warp_tiles.codegen.chains`).

    Attributes:
        instruction: That of its products.
        rows: Rows of each matrix that a warp has.
        layout: The stages.
        first: The first of the tiles in whose memory the stages lie, which hold nothing in the loop.
        spared_bytes: Those of the function's last tiles, whose memory nothing uses.
        operations: The operations on tiles that registers hold, in the order of the program.
        behind: The operations behind the loop that change carried tiles, and run in registers, too.
        carried: The tiles that live over the iterations, in shared memory before and after the loop, but those of
            ``fills`` start as zeros in registers.
        fills: The statements that fill carried tiles with zeros right before the loop, by the tile's name.
        made: The tiles that an iteration makes.
        fixed: The left operands that do not change in the loop. wgmma reads copies of them behind the stages.
        roots: The tile of a view, by the view's name.
        transposed: The loaded tile of a transposed view, by the view's name.
        accumulators: Registers of a thread that hold the Cs.
        registers: Registers of a thread, by estimate.
        more: C++ that is true in an iteration if another one follows.
        increment: C++ of what the next iteration adds to the loop's variable.
    """

    more: str
    increment: str
    instruction: LoopInstruction
    rows: int
    loads: tuple[ChainLoad, ...]
    stage_bytes: int
    layout: StageLayout
    first: Tile
    spared_bytes: int
    operations: tuple[Operation, ...]
    behind: tuple[Operation, ...]
    carried: tuple[Tile, ...]
    fills: Mapping[str, Operation]
    made: tuple[Tile, ...]
    fixed: tuple[Tile, ...]
    roots: Mapping[str, Tile]
    transposed: Mapping[str, Tile]
    products: Mapping[Operation, GemmProblem]
    accumulators: int
    registers: int

    @property
    def copies_fixed(self) -> bool:
        """True if copies of fixed operands lie behind the stages."""
        return bool(self.fixed) and self.instruction == "wgmma"


@dataclass(frozen=True)
class LoopDecision:
    """The decision about one loop.

    Attributes:
        file, line: Its place in the user's source.
        hook: Number of its hooks.
        products: The number of its products, without those of inner loops.
        reasons: Why products keep no accumulators in registers, why no tile is loaded ahead, or why it has no stages;
            with stages, the reason against other instructions.
        loads_ahead: Its loads, in the order of the program; empty if it does not load ahead. A loop that does computes
            all products at the place of the last one, or on arrival. An unrolled loop computes each at the place of
            the next one, and the last one at its end.
        buffers: The second buffer of each loaded operand; empty with stages, and in an unrolled loop, where each
            iteration has its own tiles.
        reverse_pass: The reverse pass with stages, or the reason why it has none; None without an adjoint.
        arrival: Number of the hook at which the block multiplies the tiles of the iteration before and waits for the
            loads, because the next statements work on tiles; None without such statements.
        accumulator_store: The store that takes the accumulators from registers, or the reason why C is written; None
            without stages.
        forbidden: What a setting that forbids stages costs the loop; None if none does.
        chain: How the tiles between its products stay in registers; None if they do not.
    """

    function: str
    file: str
    line: int
    hook: int
    products: int
    reasons: tuple[Rejected, ...] = ()
    accumulations: tuple[Accumulation, ...] = ()
    loads_ahead: tuple[Operation, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    ring: Ring | None = None
    reverse_pass: ReverseRing | Rejected | None = None
    arrival: int | None = None
    accumulator_store: AccumulatorStore | Rejected | None = None
    forbidden: Rejected | None = None
    chain: Chain | None = None

    @property
    def state(self) -> str:
        """``pipelined``, ``register_accumulators`` or ``as_warp``, as a plan names it."""
        return "pipelined" if self.loads_ahead else "register_accumulators" if self.accumulations else "as_warp"

    @property
    def reverse_ring(self) -> ReverseRing | None:
        """The reverse pass with stages."""
        return self.reverse_pass if isinstance(self.reverse_pass, ReverseRing) else None

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor runs at a time, if the loop has stages; else 0."""
        return self.ring.plan.loop.blocks if self.ring else self.chain.layout.blocks if self.chain else 0

    @property
    def registers(self) -> int:
        """Registers of a thread that products from stages take, by estimate, in both directions; 0 without any."""
        if self.chain is not None:
            return self.chain.registers
        reverse = self.reverse_ring
        return max(self.ring.plan.loop.registers if self.ring else 0, reverse.plan.registers if reverse else 0)

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold accumulators of products from stages, at most."""
        if self.chain is not None:
            return self.chain.accumulators
        reverse = self.reverse_ring
        return max(self.ring.plan.accumulators if self.ring else 0, reverse.plan.accumulators if reverse else 0)

    @property
    def extra_bytes(self) -> int:
        """Bytes of shared memory that the loop needs beyond the tiles of its function."""
        if self.ring is not None:
            return self.ring.plan.loop.extra_bytes
        return extra_bytes(self.buffers)


# ---- loads and stores


@dataclass(frozen=True)
class Loads:
    """The decision about the loads of a module.

    Attributes:
        asynchronous: The asynchronous loads by number of their hook. The value is True for the first load of a group:
            other threads may still read the old elements of its tile.
        waits: Numbers of the hooks at which the block waits.
        ends: Numbers of the loops after which the block waits before accumulators are added to C.
    """

    asynchronous: Mapping[int, bool] = field(default_factory=dict)
    waits: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ComputedStore:
    """A store of a computed tile.

    Attributes:
        operations: The elementwise operations that compute the tile, in the order of the program.
        loads: The loads of their operands in registers, which the store repeats for each vector.
    """

    operations: tuple[Operation, ...]
    store: Operation
    loads: tuple[Operation, ...] = ()

    @property
    def result(self) -> Tile:
        (tile,) = self.store.tiles
        return tile

    @property
    def sources(self) -> tuple[Tile, ...]:
        """The tiles that the operations read and do not compute."""
        return tuple(tile for tile in self._tiles if not tile.is_intermediate)

    @property
    def loaded(self) -> tuple[Tile, ...]:
        return tuple(tile for load in self.loads for tile in load.tiles)

    @property
    def intermediates(self) -> tuple[Tile, ...]:
        known = (*self.loaded, self.result)
        return tuple(tile for tile in self._tiles if tile.is_intermediate and tile not in known)

    @property
    def statements(self) -> tuple[Operation, ...]:
        return tuple(sorted((*self.loads, *self.operations), key=lambda operation: operation.hook or 0))

    @property
    def _tiles(self) -> list[Tile]:
        return list(dict.fromkeys(tile for operation in self.operations for tile in operation.tiles))


@dataclass(frozen=True)
class AccumulatorStore:
    """A store that takes the accumulators of a loop from registers.

    Attributes:
        computed: The store. Without operations, it stores C itself.
        product: The product whose accumulators they are, the first of those that share them.
    """

    computed: ComputedStore
    product: Accumulation

    @property
    def others(self) -> tuple[Tile, ...]:
        """The tiles that the operations read besides C."""
        return tuple(tile for tile in self.computed.sources if tile != self.product.c)


@dataclass(frozen=True)
class ReversedStore:
    """A store of a computed tile whose adjoint is computed in bands. Operands may share memory if ``overlap``."""

    computed: ComputedStore
    overlap: bool


# ---- the module


@dataclass(frozen=True)
class FunctionCall:
    """What a placeholder of a site stands for.

    Attributes:
        symbol: The device function; empty for Warp's scalar path.
        problem: The problem that it computes; None if nothing calls it by this placeholder.
        waits: True if all threads of the block wait before it.
    """

    placeholder: str
    symbol: str = ""
    problem: Problem | None = None
    waits: bool = False


@dataclass(frozen=True)
class ModuleCode:
    """Everything that the finished source of a module is written from, beside the source that Warp generated.

    Attributes:
        summed: The forward products that add to accumulators of a loop by functions, with these functions.
        units: The translation units of the called functions that stand in the module's source, by symbol.
        moves: True if loads and stores are written again, by the functions of ``kernels/module``.
        loads, replayed: The loads of the program, and those of its repetition in the reverse pass.
        skipped: Hooks of the products that the reverse pass does not repeat.
        reductions: Reductions of a tile's rows, whose rows threads reduce alone.
        unread: Hooks of the assignments that nobody reads.
    """

    hooks: tuple[tuple[Hook, int], ...] = ()
    calls: tuple[FunctionCall, ...] = ()
    summed: tuple[tuple[GemmProblem, LoopAccumulators], ...] = ()
    loops: tuple[LoopDecision, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    moves: bool = False
    loads: Loads = field(default_factory=Loads)
    replayed: Loads = field(default_factory=Loads)
    stores: tuple[ComputedStore, ...] = ()
    reversed_stores: tuple[ReversedStore, ...] = ()
    reductions: tuple[Operation, ...] = ()
    skipped: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()

    @property
    def chain_blocks(self) -> int:
        """Resident blocks of the module's chains, at least; 0 if other loops have stages, or none."""
        chains = [loop.chain for loop in self.loops if loop.chain or loop.ring]
        return min((chain.layout.blocks if chain else 0 for chain in chains), default=0)
