"""Finds statements at which the lanes of a block wait for each other forever.

Warp waits for all threads of a block after it has written an element of a shared tile, and in products, solvers and
loads. If only some lanes arrive, because their own number decides about a branch or the iterations of a loop around the
statement, they wait for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from warp_tiles.codegen.operations import ASSIGN, JUMPS, LOAD, Affine, Effect, Operation, Scalar, Tile
from warp_tiles.codegen.trace import Branch, FunctionTrace, Loop, Node

_TID, _BLOCK_DIM, _NEXT = "tid", "block_dim", "iter_next"
_ELEMENT_UPDATES = frozenset(f"tile_{name}_inplace" for name in ("add", "sub", "bit_and", "bit_or", "bit_xor"))
_SAME_IN_A_BLOCK = ("floordiv", "div")  # of a thread's number by the threads of a block


def stuck_lines(function: FunctionTrace, block_dim: int) -> tuple[int, ...]:
    """The lines at which the block waits, in a branch or a loop about whose iterations the lane decides, sorted.

    Only numbers count as those of a lane that the program itself combines with ``wp.block_dim()``, as in
    ``lane + q * wp.block_dim()``: in a kernel with tiles, ``wp.tid()`` alone may be the number of a block.
    """
    known = _Lanes.of(function, block_dim)
    return tuple(sorted(set(_waiting(function.nodes, known, decides=False)))) if known.lanes else ()


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
