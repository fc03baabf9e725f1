"""Proves that views of one tile do not overlap, although their places move with loops.

A blocked solve multiplies blocks of a right-hand side and adds to another block of the same tile. Offsets of
``wp.tile_view`` are affine expressions, and the bounds of the loops around say which values they have.
"""

from __future__ import annotations

from dataclasses import dataclass

from warp_tiles.codegen.operations import TUPLE, VIEW, Affine, Operation, Scalar, Tile, Value, affine_result
from warp_tiles.codegen.trace import FunctionTrace, loops, operations, path_to


@dataclass(frozen=True)
class _Range:
    """The values of a loop's variable: start, start + step, ... before stop."""

    start: Affine
    stop: Affine
    step: int


def are_disjoint(function: FunctionTrace, at: Operation, one: Tile, other: Tile) -> bool:
    """True if two tiles certainly share no element when the program runs an operation."""
    scope = _Scope(function, at)
    first, second = scope.place(one), scope.place(other)
    if first is None or second is None or first[0] != second[0]:
        return False
    for a, b, size_a, size_b in zip(first[1], second[1], one.shape, other.shape):
        if scope.is_at_least(b - a, size_a) or scope.is_at_least(a - b, size_b):
            return True
    return False


class _Scope:
    """The statements that certainly ran before an operation, in this iteration of all loops around it."""

    def __init__(self, function: FunctionTrace, at: Operation) -> None:
        path = path_to(function.nodes, at)
        before = [node for block, index in path for node in block[:index] if isinstance(node, Operation)]
        # a tuple may have its operands as results
        self._makers = {
            value.name: operation
            for operation in before
            for value in operation.results
            if value not in operation.operands
        }
        self._assignments = [operation for operation in function.operations() if operation.assigned]
        around = {block[index] for block, index in path}
        self._ranges: dict[str, _Range] = {}  # by variable, the innermost loop last
        for loop, _ in loops(function.nodes):
            inside = set(operations(loop.nodes))
            changed = any(loop.variable in one.assigned and one in inside for one in self._assignments)
            if loop in around and loop.kind == "range" and not changed and (found := self._range(loop.nodes[0])):
                self._ranges[loop.variable] = found

    def place(self, tile: Tile) -> tuple[str, tuple[Affine, ...]] | None:
        """The tile whose memory a view lies in, and the view's offsets; None if they are unknown."""
        is_fixed = not any(tile.name in one.assigned for one in self._assignments)
        if tile.owner or (tile.parameter and tile.dense and is_fixed):
            return tile.name, (Affine(),) * len(tile.shape)
        view = self._makers.get(tile.name)
        if view is None or view.name != VIEW or not is_fixed:
            return None
        source, *numbers = view.operands
        outer = self.place(source) if isinstance(source, Tile) else None
        found = [self._affine(value) for number in numbers for value in self._elements(number)]
        rank = len(tile.shape)
        known = [offset for offset in found if offset is not None]
        if outer is None or not len(outer[1]) == rank == len(known) / 2 == len(found) / 2:
            return None
        if known[rank:] != [Affine(extent) for extent in tile.shape]:
            return None
        return outer[0], tuple(a + b for a, b in zip(outer[1], known))

    def is_at_least(self, value: Affine, least: int) -> bool:
        """True if an expression certainly has this value or a larger one."""
        for variable, values in reversed(self._ranges.items()):
            factor = dict(value.terms).get(variable, 0)
            towards_start = (factor > 0) == (values.step > 0)
            bound = values.start if towards_start else self._last(values)
            value += (bound - Affine.variable(variable)).times(factor)
        return not value.terms and value.constant >= least

    def _last(self, values: _Range) -> Affine:
        """The last value of a range, or a bound of it."""
        whole = self._is_multiple(values.stop - values.start, values.step)
        return values.stop - Affine(values.step if whole else values.step // abs(values.step))

    def _is_multiple(self, value: Affine, of: int) -> bool:
        return value.constant % of == 0 and all(
            factor % of == 0
            or (
                (values := self._ranges.get(variable)) is not None
                and values.step % of == 0
                and self._is_multiple(values.start, of)
            )
            for variable, factor in value.terms
        )

    def _range(self, following: object) -> _Range | None:
        """The range whose next value a statement takes."""
        if not isinstance(following, Operation) or following.name != "iter_next":
            return None
        made = self._makers.get(following.operands[0].name)
        bounds = [self._affine(value) for value in made.operands] if made is not None else []
        known = [bound for bound in bounds if bound is not None]
        if len(known) != len(bounds) or not 0 < len(known) < 4:
            return None
        start, stop = (Affine(), known[0]) if len(known) == 1 else known[:2]
        step = known[2] if len(known) == 3 else Affine(1)
        return None if step.terms or not step.constant else _Range(start, stop, step.constant)

    def _elements(self, value: Value) -> tuple[Value, ...]:
        """The elements of a tuple, or the value itself."""
        made = self._makers.get(value.name)
        is_tuple = made is not None and made.name == TUPLE and len(made.results) == 1
        return made.operands if made is not None and is_tuple else (value,)

    def _affine(self, value: Value) -> Affine | None:
        """The value of a number, computed by statements that ran in this iteration."""
        if value.name in self._ranges:  # it may be assigned behind its loop
            return Affine.variable(value.name)
        if not isinstance(value, Scalar) or value.offset is None:
            return None
        made = self._makers.get(value.name)
        result = affine_result(made.name, tuple(map(self._affine, made.operands))) if made is not None else None
        is_leaf = not value.offset.terms or value.offset == Affine.variable(value.name)
        return result or (value.offset if is_leaf else None)
