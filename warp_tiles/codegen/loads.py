"""Decides which loads of tiles are asynchronous, and where the block waits for them.

Warp's ``wp.tile_load`` waits for each 16 bytes before it loads the next, and for each tile before the next tile. Here
the loads of shared tiles are async copies. The first statement that may access a tile waits for all loads in flight.
Other threads may still read the old elements of a tile, so a barrier comes before the first load of a group. A group
that follows a product needs none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from warp_tiles.codegen.module_code import Loads
from warp_tiles.codegen.operations import JUMPS, LOAD, Effect, Operation
from warp_tiles.codegen.trace import FunctionTrace, Loop, Node, operations


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
    asynchronous: dict[int, bool] = {}
    waits: set[int] = set()
    ends: set[int] = set()
    for function in functions:
        planner = _Planner(pipelined, homes, replayed)
        try:
            planner.visit(function.nodes)
            planner.wait(function.end_wait)
        except _NoHookError:
            continue  # no load of the function is asynchronous
        asynchronous |= planner.asynchronous
        waits |= planner.waits
        ends |= planner.ends
    return Loads(asynchronous, frozenset(waits), frozenset(ends))


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
