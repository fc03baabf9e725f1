"""Finds statements at which the lanes of a block wait for each other forever.

Warp waits for all threads of a block after it has written an element of a shared tile. If only some lanes write,
because their own number decides about a branch around the statement, the others never arrive.

All functions are pure, on a :class:`warp_tiles.codegen.trace.FunctionTrace`.
"""

from __future__ import annotations

from collections.abc import Iterator

from warp_tiles.codegen.operations import ASSIGN, Effect, Operation, Scalar, Tile
from warp_tiles.codegen.trace import Branch, FunctionTrace, Loop, Node

_TID, _BLOCK_DIM = "tid", "block_dim"
_ELEMENT_UPDATES = frozenset(f"tile_{name}_inplace" for name in ("add", "sub", "bit_and", "bit_or", "bit_xor"))
_SAME_IN_A_BLOCK = ("floordiv", "div")  # of a thread's number by the threads of a block


def stuck_lines(function: FunctionTrace) -> tuple[int, ...]:
    """The lines that write an element of a tile in a branch about which the lane decides, sorted.

    Only numbers count as those of a lane that the program itself combines with ``wp.block_dim()``, as in
    ``lane + q * wp.block_dim()``: in a kernel with tiles, ``wp.tid()`` alone may be the number of a block.
    """
    lanes = _lanes(function)
    return tuple(sorted(set(_written(function.nodes, lanes, decides=False)))) if lanes else ()


def _written(nodes: tuple[Node, ...], lanes: frozenset[str], *, decides: bool) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, Branch):
            yield from _written(node.nodes, lanes, decides=decides or node.condition in lanes)
        elif isinstance(node, Loop):
            yield from _written(node.nodes, lanes, decides=decides)
        elif decides and _writes_element(node):
            yield node.line


def _writes_element(operation: Operation) -> bool:
    """True for ``tile[i, j] = x``, and for ``tile[i, j] += x`` and the like."""
    is_write = operation.name == ASSIGN or operation.name in _ELEMENT_UPDATES
    first, *others = operation.operands or (None,)
    return is_write and isinstance(first, Tile) and len(others) > 1 and not any(isinstance(o, Tile) for o in others)


def _lanes(function: FunctionTrace) -> frozenset[str]:
    """The names of the numbers that differ between the lanes of a block."""
    found = list(function.operations())
    threads = {value.name for one in found if one.name == _TID for value in one.results}
    sizes = _reached(found, {value.name for one in found if one.name == _BLOCK_DIM for value in one.results})
    lanes = set()
    for one in found:
        names = {value.name for value in one.operands if isinstance(value, Scalar)}
        if one.effect is Effect.NONE and names & sizes and one.name not in _SAME_IN_A_BLOCK:
            lanes |= names & threads
    return frozenset(_reached(found, lanes)) if lanes else frozenset()


def _reached(found: list[Operation], start: set[str]) -> set[str]:
    """The names of numbers that are computed from some numbers, and these."""
    reached, before = set(start), -1
    while len(reached) > before:  # a loop may use what a later statement computes
        before = len(reached)
        for one in found:
            names = {value.name for value in one.operands if isinstance(value, Scalar)}
            if one.name == ASSIGN and names & reached:
                reached |= one.assigned
            elif names & reached:
                reached |= {value.name for value in one.results if isinstance(value, Scalar)}
    return reached
