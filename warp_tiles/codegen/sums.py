"""Products whose sums stay in registers over a loop.

``wp.tile_matmul(a, b, c)`` reads and writes C in shared memory at each call. In a loop in which nothing else touches C,
its sums can stay in registers. C is then read and written once, after the loop.

All functions are pure, on a :class:`warp_tiles.codegen.trace.ModuleTrace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warp_tiles.codegen.trace import Effect, FunctionTrace, Loop, ModuleTrace, Operation, Tile, operations


@dataclass(frozen=True)
class LoopSums:
    """Device functions that keep the sums of one product in registers.

    Attributes:
        symbol: Name of the product's function. With the suffixes ``_add`` and ``_finish`` it names these functions.
        ctype: C++ type of a sum, e.g. ``wp::float32``.
        count: Number of sums in each thread.
    """

    symbol: str
    ctype: str
    count: int


@dataclass(frozen=True)
class Accumulation:
    """A product whose sums stay in registers.

    Attributes:
        operation: The product.
        sums: Its device functions.
        home: The outermost loop in which nothing else touches C. The sums are added to C after it.
        array: Number of the array that holds the sums. Products of one C and one function share it.
    """

    operation: Operation
    sums: LoopSums
    home: Loop
    array: int

    @property
    def a(self) -> Tile:
        """The left operand."""
        return self.operation.matrices[0]

    @property
    def b(self) -> Tile:
        """The right operand."""
        return self.operation.matrices[1]

    @property
    def c(self) -> Tile:
        """The tile that the product adds to."""
        return self.operation.matrices[2]


def obstacle_to_sums(
    module: ModuleTrace,
    function: FunctionTrace,
    loop: Loop,
    operation: Operation,
    sums: Mapping[int, LoopSums | str],
) -> str:
    """Returns the reason why a product cannot keep its sums in registers over a loop; empty if it can.

    Args:
        module: The whole module.
        function: The function that contains the loop.
        loop: The loop.
        operation: The product.
        sums: By site: the device functions, or the reason why there are none.
    """
    c = operation.matrices[2]
    same_c = [
        other for other in operations(loop.nodes)
        if other.product is not None and not other.results and other.matrices[2].memory == c.memory
    ]  # fmt: skip
    for other in (operation, *same_c):
        problem = _problem_of_product(module, function, other, sums)
        if problem:
            return problem if other is operation else f"line {other.line}: {problem}"
    for other in operations(loop.nodes):
        if other.effect is Effect.LEAVES:
            return f"line {other.line} returns from within the loop"
        if other in same_c:
            continue
        if any(module.may_overlap(function, c, tile) for tile in other.tiles):
            return f"line {other.line}: {other.name} uses C in the loop"
    return ""


def _problem_of_product(
    module: ModuleTrace, function: FunctionTrace, operation: Operation, sums: Mapping[int, LoopSums | str]
) -> str:
    product = operation.product
    assert product is not None
    if operation.results:
        return "the product is a new tile in each iteration; wp.tile_matmul(a, b, c) adds to one tile"
    if product.alpha != 1.0 or product.beta != 1.0:
        return "alpha and beta are not both the constant 1"
    a, b, c = operation.matrices
    if module.may_overlap(function, a, c) or module.may_overlap(function, b, c):
        return "C may share memory with A or B"
    functions = sums.get(product.site, "no function was planned for it")
    return "" if isinstance(functions, LoopSums) else functions
