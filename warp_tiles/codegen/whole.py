"""Kernels that are a product of whole arrays: C = A B, a tile of C in each block, and nothing else.

The gradients of such a kernel are two products of whole arrays as well, and need no atomic additions, if a launch
covers the arrays. The pattern is

    i, j = wp.tid()
    c = wp.tile_zeros(...)
    for k in range(...):
        a, b = wp.tile_load(A, ...), wp.tile_load(B, ...)
        wp.tile_matmul(a, b, c)
    wp.tile_store(C, c, ...)

in any order of arithmetic around it. A or B may be loaded as transposed tiles, and C may be rounded to another type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from warp_tiles.codegen.operations import (
    ASTYPE,
    JUMPS,
    LOAD,
    SHAPE,
    STORE,
    TRANSPOSE,
    ZEROS,
    Affine,
    Array,
    Effect,
    Operation,
    Scalar,
    Tile,
    Value,
)
from warp_tiles.codegen.trace import Branch, FunctionTrace, Loop, loops
from warp_tiles.gemm.rejected import Refused, Rejected, given, refuse, rejectable

LEAST_WORK = 1 << 30  # multiplications of a product whose gradients are worth two more kernels

# ---- integers of a kernel that the arguments of a launch decide

Argument = int | tuple[int, ...]  # a number, or the shape of an array

# integers as C++ computes them: a division of integers rounds towards zero
_OPERATIONS: Mapping[str, Callable[..., int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
    "floordiv": lambda x, y: x // y,
    "mod": lambda x, y: abs(x) % abs(y) * (1 if x >= 0 else -1),
    "min": min,
    "max": max,
    "neg": lambda x: -x,
    "copy": lambda x: x,
    "int": lambda x: x,
    "int32": lambda x: x,
}


@dataclass(frozen=True)
class Expression:
    """An integer.

    Attributes:
        operation: ``constant``, ``argument``, ``extent`` of an array's dimension, or the key of a builtin.
        numbers: The constant; the position of the argument; or the positions of the array and of the dimension.
    """

    operation: str
    numbers: tuple[int, ...] = ()
    operands: tuple[Expression, ...] = ()

    def value(self, arguments: Sequence[Argument | None]) -> int:
        """Its value.

        Args:
            arguments: The arguments of the launch; None for one that is neither an integer nor an array.

        Raises:
            ArithmeticError: It divides by zero, or a result is no 32-bit integer.
            TypeError: An argument is neither an integer nor an array.
            IndexError: An array has no such dimension.
        """
        if self.operation == "constant":
            return self.numbers[0]
        if self.operation in ("argument", "extent"):
            argument = arguments[self.numbers[0]]
            if self.operation == "extent" and isinstance(argument, tuple):
                return argument[self.numbers[1]]
            if self.operation == "argument" and isinstance(argument, int):
                return argument
            raise TypeError(f"argument {self.numbers[0]} is {argument!r}")
        result = _OPERATIONS[self.operation](*(operand.value(arguments) for operand in self.operands))
        if not -(2**31) <= result < 2**31:
            raise OverflowError(f"{self.operation} is {result}, which is no 32-bit integer")
        return result


def constant(number: int) -> Expression:
    return Expression("constant", (number,))


def argument(position: int) -> Expression:
    return Expression("argument", (position,))


def extent(position: int, dimension: int) -> Expression:
    return Expression("extent", (position, dimension))


def combined(operation: str, operands: Sequence[Expression | None]) -> Expression | None:
    """The result of a builtin; None if it is unknown."""
    known = tuple(operand for operand in operands if operand is not None)
    if operation not in _OPERATIONS or len(known) != len(operands) or not known:
        return None
    return Expression(operation, (), known)


# ---- products


@dataclass(frozen=True)
class WholeOperand:
    """An operand of the product: the position of its array among the arguments, which may be its transpose."""

    position: int
    transposed: bool = False

    def shape(self, arguments: Sequence[Argument | None]) -> tuple[int, ...]:
        """Rows and columns of the operand; empty if the argument is not a matrix."""
        argument = arguments[self.position]
        if not isinstance(argument, tuple) or len(argument) != 2:
            return ()
        return argument[::-1] if self.transposed else argument


@dataclass(frozen=True)
class WholeProduct:
    """A kernel that computes C = A B, if a launch covers the arrays.

    Attributes:
        tile: Rows and columns of a tile of C, and the step along K.
        row_axis, column_axis: The launch dimensions that count tiles of C down and across.
        steps: Start, end and step of the loop's ``range``.
        k_factor, k_constant: A tile begins at ``k_factor * variable + k_constant`` along K.
        site: Number of the site of the product.
        tf32: True if it rounds float32 to tf32. The trace does not tell.
    """

    a: WholeOperand
    b: WholeOperand
    c: WholeOperand
    tile: tuple[int, int, int]
    row_axis: int
    column_axis: int
    steps: tuple[Expression, Expression, Expression]
    k_factor: int
    k_constant: int
    site: int
    tf32: bool = False

    @rejectable
    def reason_unsupported(self, blocks: Sequence[int], arguments: Sequence[Argument | None]) -> None:
        """The reason why a launch does not compute the whole product; None if it does.

        Args:
            blocks: The launch dimensions of a tiled launch, without the threads of a block.
            arguments: The arguments: integers, shapes of arrays, or None for others.
        """
        a, b, c = (operand.shape(arguments) for operand in (self.a, self.b, self.c))
        refuse(not (a and b and c) or (a[0], b[1]) != c or a[1] != b[0], "shapes", a, b, c)
        (m, n), k = c, a[1]
        tile_m, tile_n, tile_k = self.tile
        wanted = {self.row_axis: -(-m // tile_m), self.column_axis: -(-n // tile_n)}
        are_covered = list(blocks) == [wanted[axis] for axis in sorted(wanted)]
        refuse(not are_covered, "blocks_do_not_cover", tuple(blocks), c)
        try:
            start, end, step = (number.value(arguments) for number in self.steps)
            turns = range(start, end, step)
        except (ArithmeticError, TypeError, IndexError, ValueError) as error:
            raise Refused(Rejected("unknown_range", (str(error),))) from error
        first, stride = self.k_factor * start + self.k_constant, self.k_factor * step
        is_whole = (first, stride, len(turns)) == (0, tile_k, -(-k // tile_k))
        refuse(not is_whole, "steps_do_not_cover", len(turns), stride, first, k)


# ---- the product of a trace


@rejectable
def whole_product(function: FunctionTrace) -> WholeProduct:
    """The product that a kernel computes, or the reason why it is more or less than one."""
    return _Reader(function).product()


class _Reader:
    def __init__(self, function: FunctionTrace) -> None:
        self._function = function
        self._operations = list(function.operations())
        # the first one, because a tuple has its operands as results
        self._maker = {value.name: operation for operation in reversed(self._operations) for value in operation.results}
        self._assigned = frozenset().union(*(operation.assigned for operation in self._operations))

    def product(self) -> WholeProduct:
        loop = self._only_loop()
        loads, transposes, matmul, accumulators = self._in_loop(loop)
        a, b, _ = matmul.matrices
        store = self._after_loop(loop, accumulators)
        (c, row, column), variable = self._location(store), loop.variable
        tile_m, tile_k, tile_n = a.shape[0], a.shape[1], b.shape[1]
        axes = self._axis(row, tile_m), self._axis(column, tile_n)
        refuse(set(axes) != {0, 1}, "launch_dimensions")
        operands = []
        for operand, outer, is_a in ((a, row, True), (b, column, False)):
            load = given(loads.get(transposes.get(operand.name, operand.name)), "operand_not_loaded")
            array, *offsets = self._location(load)
            transposed = operand.name in transposes
            along_m_or_n, along_k = offsets if is_a != transposed else offsets[::-1]
            refuse(along_m_or_n != outer, "other_rows_loaded", load.line)
            operands.append((WholeOperand(self._position(array), transposed), along_k))
        (left, k_of_a), (right, k_of_b) = operands
        same = k_of_a == k_of_b and k_of_a.variables == {variable}
        refuse(not same, "several_offsets")
        return WholeProduct(
            left,
            right,
            WholeOperand(self._position(c)),
            (tile_m, tile_n, tile_k),
            *axes,
            self._range(loop),
            dict(k_of_a.terms)[variable],
            k_of_a.constant,
            matmul.site,
        )

    # ---- statements

    def _only_loop(self) -> Loop:
        all_loops = [loop for loop, _ in loops(self._function.nodes)]
        is_one = len(all_loops) == 1 and all_loops[0].kind == "range" and all_loops[0] in self._function.nodes
        refuse(not is_one, "other_loops")
        for node in (*self._function.nodes, *all_loops[0].nodes):
            refuse(isinstance(node, Branch), "has_branches")
        for operation in self._operations:
            leaves = operation.name in JUMPS or operation.effect in (Effect.LEAVES, Effect.UNKNOWN)
            refuse(leaves, "not_part_of_product", operation.line, operation.name)
        return all_loops[0]

    def _in_loop(self, loop: Loop) -> tuple[dict[str, Operation], dict[str, str], Operation, Tile]:
        """Loads and transposes by their results, the product, and the tile of the sum."""
        loads: dict[str, Operation] = {}
        transposes: dict[str, str] = {}
        products: list[Operation] = []
        total: Tile | None = None
        for operation in loop.nodes:
            if not isinstance(operation, Operation) or operation.effect is Effect.NONE:
                continue
            if operation.name == LOAD:
                loads[operation.results[0].name] = operation
            elif operation.name == TRANSPOSE:
                transposes[operation.results[0].name] = operation.operands[0].name
            elif operation.product is not None:
                products.append(operation)
            else:  # C += the new tile of the product
                adds = operation.elementwise is not None and operation.elementwise.sum_sign == 1
                new = products[-1].results if products and adds and total is None else ()
                is_sum = bool(new) and operation.tiles[1:] == new and operation.tiles[0] not in new
                refuse(not is_sum, "not_part_of_product", operation.line, operation.name)
                total = operation.tiles[0]
        numbers = len(products), len(loads)
        refuse(numbers != (1, 2), "loads_and_products", *numbers)
        (matmul,) = products
        assert matmul.product is not None
        is_plain = matmul.alpha == 1 and (total is not None or matmul.product.beta == 1)
        refuse(not is_plain, "has_factors")
        return loads, transposes, matmul, total or matmul.matrices[2]

    def _after_loop(self, loop: Loop, accumulators: Tile) -> Operation:
        """The store of C. Before the loop, C is filled with zeros."""
        nodes, at = self._function.nodes, self._function.nodes.index(loop)
        before, after = (
            [node for node in side if isinstance(node, Operation) and node.effect is not Effect.NONE]
            for side in (nodes[:at], nodes[at:])
        )
        is_zero = [node.name for node in before] == [ZEROS] and before[0].results[0].name == accumulators.name
        refuse(not is_zero, "no_zeros_before")
        if after and after[0].name == ASTYPE and after[0].tiles[0] == accumulators:
            accumulators, after = after[0].tiles[-1], after[1:]
        is_store = [node.name for node in after] == [STORE] and after[0].tiles == (accumulators,)
        refuse(not is_store, "more_than_store")
        return after[0]

    # ---- values

    def _location(self, access: Operation) -> tuple[Array, Affine, Affine]:
        """Array and offsets of a load or store of a matrix."""
        arrays = [value for value in access.operands if isinstance(value, Array)]
        offsets = [v.offset for v in access.operands if isinstance(v, Scalar) and v.offset is not None]
        is_matrix = len(arrays) == 1 and arrays[0].parameter and len(offsets) == 2
        refuse(not is_matrix, "unknown_access", access.line)
        return arrays[0], offsets[0], offsets[1]

    def _axis(self, offset: Affine, extent_of_tile: int) -> int:
        """The launch dimension that counts tiles at this offset."""
        makers = [(self._maker.get(name), name) for name in offset.variables]
        if len(makers) == 1 and offset.constant == 0 and offset.terms[0][1] == extent_of_tile:
            ((maker, name),) = makers
            if maker is not None and maker.name == "tid" and len(maker.results) == 2:
                return [value.name for value in maker.results].index(name)
        raise Refused(Rejected("tile_place"))

    def _position(self, array: Array) -> int:
        return self._function.parameters.index(array.name)

    def _range(self, loop: Loop) -> tuple[Expression, Expression, Expression]:
        if loop.steps is not None:
            start, end, step = map(constant, loop.steps)
            return start, end, step
        iterator = self._maker.get(loop.variable)
        call = self._maker.get(iterator.operands[0].name) if iterator is not None and iterator.operands else None
        numbers = [self._expression(value) for value in call.operands] if call is not None else []
        known = [number for number in numbers if number is not None]
        is_known = call is not None and call.name == "range" and 0 < len(known) == len(numbers)
        refuse(not is_known, "unknown_bounds")
        start, end = (constant(0), known[0]) if len(known) == 1 else (known[0], known[1])
        return start, end, known[2] if len(known) == 3 else constant(1)

    def _expression(self, value: Value) -> Expression | None:
        if not isinstance(value, Scalar) or value.name in self._assigned:
            return None
        if isinstance(value.constant, int) and not isinstance(value.constant, bool):
            return constant(value.constant)
        if value.name in self._function.parameters:
            return argument(self._function.parameters.index(value.name))
        maker = self._maker.get(value.name)
        if maker is None:
            return None
        if maker.name == "extract":
            return self._extent(maker.operands)
        return combined(maker.name, [self._expression(operand) for operand in maker.operands])

    def _extent(self, operands: Sequence[Value]) -> Expression | None:
        shape, dimension = self._maker.get(operands[0].name), operands[1]
        if shape is None or shape.name != SHAPE or not isinstance(dimension, Scalar):
            return None
        (array,) = shape.operands
        if not isinstance(array, Array) or not array.parameter or not isinstance(dimension.constant, int):
            return None
        return extent(self._position(array), dimension.constant)
