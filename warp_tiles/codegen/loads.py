"""Decides which loads of tiles are asynchronous, and where the block waits for them.

Warp's ``wp.tile_load`` waits for each 16 bytes before it loads the next, and for each tile before the next tile. Here
the loads of shared tiles are async copies. The first statement that may access a tile waits for all loads in flight.

All functions are pure, on a :class:`warp_tiles.codegen.trace.FunctionTrace`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence

from warp_tiles.codegen.answers import Loads
from warp_tiles.codegen.operations import JUMPS, LOAD, Effect, Operation, Tile
from warp_tiles.codegen.trace import FunctionTrace, Loop, Node


def is_asynchronous(load: Operation) -> bool:
    """True for a load into a two-dimensional tile with shared memory of its own."""
    return load.name == LOAD and any(
        tile.owner and len(tile.shape) == 2 for tile in load.results if isinstance(tile, Tile)
    )


def plan_loads(functions: Iterable[FunctionTrace], pipelined: Collection[int] = ()) -> Loads:
    """Decides about the loads of a module's functions.

    Args:
        pipelined: Numbers of the hooks of loops that load ahead. Their loads are not decided here.
    """
    asynchronous: dict[int, bool] = {}
    waits: set[int] = set()
    for function in functions:
        walk = _Walk(frozenset(pipelined))
        with contextlib.suppress(_MissingHookError):  # without a hook to wait at, no load is asynchronous
            walk.block(function.nodes, function.end_wait)
            asynchronous |= walk.asynchronous
            waits |= walk.waits
    return Loads(asynchronous, frozenset(waits))


class _MissingHookError(Exception):
    """The block has to wait at a place without a hook."""


class _Walk:
    """Follows a function in the order of the program."""

    def __init__(self, pipelined: frozenset[int]) -> None:
        self.asynchronous: dict[int, bool] = {}
        self.waits: set[int] = set()
        self._pipelined = pipelined
        self._in_flight = False

    def block(self, nodes: Sequence[Node], end: int | None) -> None:
        self._statements(nodes)
        self._wait(end)

    def _statements(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            pipelined = isinstance(node, Loop) and node.hook in self._pipelined
            if isinstance(node, Operation):
                if is_asynchronous(node) and node.hook is not None:
                    self.asynchronous[node.hook] = not self._in_flight
                    self._in_flight = True
                elif node.effect not in (Effect.NONE, Effect.ALIAS) or node.name in JUMPS:
                    self._wait(node.wait)
            elif isinstance(node, Loop) and node.kind == "unrolled" and not pipelined:  # a sequence of statements
                self._statements(node.nodes)
            else:
                self._wait(node.wait)
                if not pipelined:
                    self.block(node.nodes, node.end_wait)

    def _wait(self, hook: int | None) -> None:
        if not self._in_flight:
            return
        if hook is None:
            raise _MissingHookError
        self.waits.add(hook)
        self._in_flight = False
