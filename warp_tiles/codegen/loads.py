"""Which loads of tiles are asynchronous, and where the block waits for them.

Warp's ``wp.tile_load`` waits for each 16 bytes before it asks for the next, and for each tile before the next. Loads of
shared tiles go side by side instead: the first statement that may look at a tile waits for all that are under way.

All functions are pure, on a :class:`warp_tiles.codegen.trace.FunctionTrace`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from warp_tiles.codegen.effects import LOAD
from warp_tiles.codegen.trace import Branch, Effect, FunctionTrace, Loop, Node, Operation, Tile

_JUMPS = ("break", "continue")


@dataclass(frozen=True)
class Loads:
    """What is done with the loads of a function.

    Attributes:
        asynchronous: Numbers of the hooks of loads that are not waited for at once, each with whether it is the first
            of its group: other threads may still read what its tile held.
        waits: Numbers of the hooks at which the block waits.
    """

    asynchronous: dict[int, bool] = field(default_factory=dict)
    waits: frozenset[int] = frozenset()


def is_asynchronous(load: Operation) -> bool:
    """Whether a load goes to a shared tile of two dimensions; in registers each thread reads its own part."""
    return load.name == LOAD and any(
        tile.owner and len(tile.shape) == 2 for tile in load.results if isinstance(tile, Tile)
    )


def plan_loads(function: FunctionTrace, pipelined: Collection[int] = ()) -> Loads:
    """Decide about the loads of a function.

    Args:
        function: The function.
        pipelined: Numbers of the hooks of loops that load ahead; their loads are not decided here.
    """
    walk = _Walk(frozenset(pipelined))
    try:
        walk.block(function.nodes, function.end_wait)
    except _NoPlaceError:
        return Loads()  # there is no hook where it would have to wait
    return Loads(walk.asynchronous, frozenset(walk.waits))


class _NoPlaceError(Exception):
    """A wait is needed where the source has no hook."""


class _Walk:
    def __init__(self, pipelined: frozenset[int]) -> None:
        self.asynchronous: dict[int, bool] = {}
        self.waits: set[int] = set()
        self._pipelined = pipelined
        self._under_way = False

    def block(self, nodes: Sequence[Node], end: int | None) -> None:
        self._statements(nodes)
        self._wait(end)

    def _statements(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Operation):
                self._operation(node)
            else:
                self._enter(node)

    def _enter(self, node: Loop | Branch) -> None:
        pipelined = isinstance(node, Loop) and node.hook in self._pipelined
        if isinstance(node, Loop) and node.kind == "unrolled" and not pipelined:  # one statement behind the other
            self._statements(node.nodes)
            return
        self._wait(node.wait)
        if not pipelined:
            self.block(node.nodes, node.end_wait)

    def _operation(self, operation: Operation) -> None:
        if is_asynchronous(operation) and operation.hook is not None:
            self.asynchronous[operation.hook] = not self._under_way
            self._under_way = True
        elif operation.effect not in (Effect.NONE, Effect.ALIAS) or operation.name in _JUMPS:
            self._wait(operation.wait)

    def _wait(self, hook: int | None) -> None:
        if not self._under_way:
            return
        if hook is None:
            raise _NoPlaceError
        self.waits.add(hook)
        self._under_way = False
