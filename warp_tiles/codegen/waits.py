"""Where the threads of a block wait: for loads in flight, and for lanes that never come.

Warp's ``wp.tile_load`` waits for each 16 bytes before it loads the next, and for each tile before the next tile. Here
the loads of shared tiles are async copies. The first statement that may access a tile waits for all loads in flight.
Other threads may still read the old elements of a tile, so a barrier comes before the first load of a group. A group
that follows a product needs none.

Warp waits for all threads of a block after it has written an element of a shared tile, and in products, solvers and
loads. If only some lanes arrive, because their own number decides about a branch or the iterations of a loop around the
statement, they wait for the others forever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from warp_tiles.codegen.module_code import Loads
from warp_tiles.codegen.operations import ASSIGN, JUMPS, LOAD, Affine, Effect, Operation, Scalar, Tile
from warp_tiles.codegen.trace import Branch, FunctionTrace, Loop, Node, operations


def is_asynchronous(load: Operation) -> bool:
    """True for a load into a two-dimensional tile with shared memory of its own."""
    return load.name == LOAD and any(tile.owner and len(tile.shape) == 2 for tile in load.tiles)


def plan_loads(
    functions: Iterable[FunctionTrace],
    pipelined: Collection[int] = (),
    homes: Collection[int] = (),
    *,
    replayed: bool = False,
) -> Loads:
    """Decides about the loads of a module's functions.

    Args:
        pipelined: Numbers of the hooks of loops that load ahead. Their loads are not decided here.
        homes: Those of loops after which accumulators are added to C.
        replayed: True for the repetition in the reverse pass, where the adjoints of an iteration follow its statements.
    """
    loads = Loads()
    for function in functions:
        planner = _Planner(pipelined, homes, replayed)
        try:
            planner.visit(function.nodes)
            planner.wait(function.end_wait)
        except _NoHookError:
            continue  # no load of the function is asynchronous
        asynchronous = {**loads.asynchronous, **planner.asynchronous}
        loads = Loads(asynchronous, loads.waits | planner.waits, loads.ends | planner.ends)
    return loads


class _NoHookError(Exception):
    """Loads are in flight where the program has no hook to wait at."""


@dataclass
class _Planner:
    """Follows a function in the order of the program.

    Attributes:
        in_flight: True if loads may be in flight.
        ordered: True if no thread can still access a tile or store to an array, because all have passed a barrier.
    """

    pipelined: Collection[int]
    homes: Collection[int]
    replayed: bool
    asynchronous: dict[int, bool] = field(default_factory=dict)
    waits: set[int] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    in_flight: bool = False
    ordered: bool = False

    def visit(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if isinstance(node, Operation):
                self._operation(node)
            elif isinstance(node, Loop) and node.hook in self.pipelined:
                self.wait(node.wait)
                self.ordered = False
            elif isinstance(node, Loop) and node.kind == "unrolled":  # a sequence of statements
                self.visit(node.nodes)
                self._end(node)
            elif isinstance(node, Loop):
                self._loop(node)
            else:
                self.wait(node.wait)
                before = self.ordered
                self.visit(node.nodes)
                self.wait(node.end_wait)
                self.ordered = self.ordered and before

    def wait(self, hook: int | None) -> None:
        if not self.in_flight:
            return
        if hook is None:
            raise _NoHookError
        self.waits.add(hook)
        self.in_flight, self.ordered = False, True

    def _operation(self, operation: Operation) -> None:
        if is_asynchronous(operation) and operation.hook is not None:
            self.asynchronous[operation.hook] = not self.ordered
            self.in_flight = self.ordered = True
        elif _may_access_tiles(operation):
            self.wait(operation.wait)
            self.ordered = operation.product is not None  # a product ends with a barrier

    def _loop(self, loop: Loop) -> None:
        """Visits a loop. If it begins with a load, the wait for that load is enough for those before the loop."""
        first = next((n for n in loop.nodes if not isinstance(n, Operation) or _may_access_tiles(n)), None)
        if not (isinstance(first, Operation) and is_asynchronous(first) and first.hook is not None):
            self.wait(loop.wait)
        # more statements may lie between two iterations: those before a jump, a condition, or adjoints
        if self.replayed or loop.kind == "while" or any(node.name in JUMPS for node in operations(loop.nodes)):
            self.ordered = False
        in_flight, ordered = self.in_flight, self.ordered  # also after the loop, if it has no iterations
        self.visit(loop.nodes)
        self.wait(loop.end_wait)
        if ordered and not self.ordered:  # in later iterations, threads may still access tiles of the one before
            self.in_flight, self.ordered = in_flight, False
            self.visit(loop.nodes)
            self.wait(loop.end_wait)
        self.in_flight, self.ordered = in_flight, self.ordered and ordered
        self._end(loop)

    def _end(self, loop: Loop) -> None:
        """Waits if accumulators are added after a loop to a C whose load may be in flight."""
        if loop.hook in self.homes:
            if self.in_flight:
                self.ends.add(loop.hook)
            self.in_flight = self.ordered = False


def _may_access_tiles(operation: Operation) -> bool:
    return operation.effect not in (Effect.NONE, Effect.ALIAS) or operation.name in JUMPS


# ---- lanes that wait for each other forever

_TID, _BLOCK_DIM, _NEXT = "tid", "block_dim", "iter_next"
_ELEMENT_UPDATES = frozenset(f"tile_{name}_inplace" for name in ("add", "sub", "bit_and", "bit_or", "bit_xor"))
_SAME_IN_A_BLOCK = ("floordiv", "div")  # of a thread's number by the threads of a block


def stuck_statements(functions: Iterable[FunctionTrace], block_dim: int) -> tuple[str, ...]:
    """Where the block waits, in a branch or a loop about whose iterations the lane decides, as ``file:line``.

    Only numbers count as those of a lane that the program itself combines with ``wp.block_dim()``, as in
    ``lane + q * wp.block_dim()``: in a kernel with tiles, ``wp.tid()`` alone may be the number of a block.
    """
    known = [(function, _Lanes.of(function, block_dim)) for function in functions]
    return tuple(
        f"{function.file}:{line}"
        for function, lanes in known
        for line in sorted(set(_waiting(function.nodes, lanes, decides=False)))
    )


def _waiting(nodes: tuple[Node, ...], known: _Lanes, *, decides: bool) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, Branch):
            yield from _waiting(node.nodes, known, decides=decides or node.condition in known.lanes)
        elif isinstance(node, Loop):
            yield from _waiting(node.nodes, known, decides=decides or known.decide_iterations(node))
        elif decides and _waits(node):
            yield node.line


def _waits(operation: Operation) -> bool:
    """True for ``tile[i, j] = x``, ``tile[i, j] += x`` and the like, products, solvers, and loads to shared memory."""
    if operation.product is not None or operation.solver is not None:
        return True
    if operation.name == LOAD:
        return any(tile.storage == "shared" for tile in operation.tiles)
    is_write = operation.name == ASSIGN or operation.name in _ELEMENT_UPDATES
    first, *others = operation.operands or (None,)
    return is_write and isinstance(first, Tile) and len(others) > 1 and not any(isinstance(o, Tile) for o in others)


@dataclass(frozen=True)
class _Lanes:
    """The numbers of a function that differ between the lanes of a block, and those that are the size of a block."""

    lanes: frozenset[str]
    sizes: frozenset[str]
    makers: Mapping[str, Operation]
    block_dim: int

    @classmethod
    def of(cls, function: FunctionTrace, block_dim: int) -> _Lanes:
        operations = list(function.operations())
        makers = {value.name: operation for operation in operations for value in operation.results}
        sizes = {value.name for operation in operations if operation.name == _BLOCK_DIM for value in operation.results}
        return cls(_lanes(operations, sizes), frozenset(sizes), makers, block_dim)

    def decide_iterations(self, loop: Loop) -> bool:
        """True if lanes may repeat a loop a different number of times."""
        if any(operation.name in JUMPS for operation in self._operations_of_some(loop.nodes, decides=False)):
            return True
        if loop.condition:
            return loop.condition in self.lanes and not self._ends_at_once(self.makers.get(loop.condition))
        first = loop.nodes[0] if loop.nodes else None
        name = first.operands[0].name if isinstance(first, Operation) and first.name == _NEXT else ""
        made = self.makers.get(name)
        values = [value for value in made.operands if isinstance(value, Scalar)] if made is not None else []
        return any(value.name in self.lanes for value in values) and not self._is_uniform(values)

    def _operations_of_some(self, nodes: tuple[Node, ...], *, decides: bool) -> Iterator[Operation]:
        """The operations of a loop, without those of inner loops, that a lane decides about."""
        for node in nodes:
            if isinstance(node, Branch):
                yield from self._operations_of_some(node.nodes, decides=decides or node.condition in self.lanes)
            elif isinstance(node, Operation) and decides:
                yield node

    def _is_uniform(self, values: list[Scalar]) -> bool:
        """True for ``range(lane, n, wp.block_dim())`` if ``n`` is a multiple of the block's size."""
        if len(values) != 3 or self._size(values[2].offset) != self.block_dim or values[1].name in self.lanes:
            return False
        start = values[0].offset
        if start is None or len(start.terms) != 1 or start.terms[0][1] != 1:
            return False
        end = self._size(values[1].offset)
        return end is not None and (end - start.constant) % self.block_dim == 0

    def _size(self, value: Affine | None) -> int | None:
        """The value of an expression of the block's size; None if it has other variables."""
        if value is None or not value.variables <= self.sizes:
            return None
        return value.constant + sum(factor * self.block_dim for _, factor in value.terms)

    def _ends_at_once(self, condition: Operation | None) -> bool:
        """True if a loop that steps by the block's size compares with a multiple of it, or with one less."""
        values = condition.operands if condition is not None else ()
        ends = [self._size(value.offset) for value in values if isinstance(value, Scalar)]
        return any(end is not None and end % self.block_dim in (0, self.block_dim - 1) for end in ends)


def _lanes(operations: list[Operation], sizes: set[str]) -> frozenset[str]:
    """The names of the numbers that differ between the lanes of a block."""
    threads = {value.name for operation in operations if operation.name == _TID for value in operation.results}
    sizes = _reached(operations, sizes)
    lanes = set()
    for operation in operations:
        names = {value.name for value in operation.operands if isinstance(value, Scalar)}
        if operation.effect is Effect.NONE and names & sizes and operation.name not in _SAME_IN_A_BLOCK:
            lanes |= names & threads
    return frozenset(_reached(operations, lanes)) if lanes else frozenset()


def _reached(operations: list[Operation], start: set[str]) -> set[str]:
    """The names of numbers that are computed from some numbers, and these."""
    reached, before = set(start), -1
    while len(reached) > before:  # a loop may use what a later statement computes
        before = len(reached)
        for operation in operations:
            names = {value.name for value in operation.operands if isinstance(value, Scalar)}
            if operation.name == ASSIGN and names & reached:
                reached |= operation.assigned
            elif names & reached:
                reached |= {value.name for value in operation.results if isinstance(value, Scalar)}
    return reached
