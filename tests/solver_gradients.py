"""Kernels with one solver builtin on dense, transposed and padded tiles, and the gradients of their operands."""

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.solver_kernels import REFERENCES, Values, cholesky, complex_steps, inputs, kernel_text, solve

View = Literal["dense", "transposed", "padded"]
VIEWS: tuple[View, ...] = ("dense", "transposed", "padded")
CALLS = tuple(
    f"tile_{function}{suffix}"
    for function in ("cholesky", "cholesky_solve", "lower_solve", "upper_solve")
    for suffix in ("", "_inplace")
)
PADS = (3, 1)  # rows and columns around a padded tile, before it

KERNEL = """
@wp.kernel
def kernel{index}(T: wp.array2d(dtype=wp.{dtype}), Y: wp.array{rank}d(dtype=wp.{dtype}),
                  X: wp.array{result_rank}d(dtype=wp.{dtype})):
    t_whole = wp.tile_load(T, shape={t_shape}, storage="shared")
    y_whole = wp.tile_load(Y, shape={y_shape}, storage="shared")
    {statement}
    wp.tile_store(X, {result})
"""


def exact(function: str, a: Values, b: Values, g: Values) -> dict[str, Values]:
    """The result and the adjoints of a function in float64.

    A gradient of a triangle is that of the elements that the function reads. That of A of the Cholesky factor is from
    Murray, "Differentiation of the Cholesky decomposition", 2016, section 3. That of A in A X = B is A' = -B' X^T with
    the gradient B' of B (Giles, "An extended collection of matrix derivative results", 2008, section 2.3.1). With
    A = L L^T that of L is the lower triangle of (A' + A'^T) L.

    Args:
        function: The solver function.
        a: A matrix, or a triangle.
        b: A vector, or a matrix.
        g: The gradient of the result.
    """
    if function == "cholesky":
        lower = cholesky(a)
        half = _half_diagonal(lower.T @ np.tril(g))
        half = solve(lower.T, solve(lower.T, half).T)  # the sum below has its transpose too
        return {"x": lower, "grad_a": _half_diagonal(half + half.T)}
    triangle = np.triu if function == "upper_solve" else np.tril
    a, columns, gradients = triangle(a), b.reshape(len(b), -1), g.reshape(len(g), -1)
    if function == "cholesky_solve":
        half, half_gradient = solve(a, columns), solve(a, gradients)
        x, gradient = solve(a.T, half), solve(a.T, half_gradient)
        grad_a = -(gradient @ half.T + x @ half_gradient.T)
    else:
        x, gradient = solve(a, columns), solve(a.T, gradients)
        grad_a = -gradient @ x.T
    return {"x": x.reshape(b.shape), "grad_a": triangle(grad_a), "grad_b": gradient.reshape(b.shape)}


def _half_diagonal(a: Values) -> Values:
    """The lower triangle, with half of its diagonal."""
    return np.tril(a) - np.diag(np.diagonal(a)) / 2


@dataclass(frozen=True)
class GradientCase:
    """One kernel.

    Attributes:
        call: The builtin.
        n: Rows of the triangle.
        columns: Columns of the right-hand side; 0 for a vector.
        upper: True for an upper Cholesky factor.
        triangle, right: How the tiles lie in those that are loaded.
    """

    call: str
    n: int
    columns: int
    upper: bool = False
    triangle: View = "dense"
    right: View = "dense"

    @property
    def function(self) -> str:
        """What it computes."""
        return self.call.removeprefix("tile_").removesuffix("_inplace")

    @property
    def in_place(self) -> bool:
        """True if the result replaces an operand."""
        return self.call.endswith("_inplace")

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Shapes of the arrays T, Y and X."""
        t = _whole((self.n, self.n), self.triangle)
        y = _whole((self.n, self.columns), self.right) if self.columns else (self.n,)
        if self.function == "cholesky":
            return t, y, t if self.in_place else (self.n, self.n)
        return t, y, y if self.in_place or not self.columns else (self.n, self.columns)

    def text(self, index: int, dtype: str) -> str:
        """Its text."""
        t, y, x = self.shapes
        operands = [_viewed("t_whole", (self.n, self.n), self.triangle)]
        if self.function != "cholesky":
            operands.append(_viewed("y_whole", (self.n, self.columns), self.right) if self.columns else "y_whole")
        fill = ', fill_mode="upper"' if self.upper and "cholesky" in self.function else ""
        result = ("t_whole" if self.function == "cholesky" else "y_whole") if self.in_place else "x"
        call = f"wp.{self.call}({', '.join(operands)}{fill})"
        return KERNEL.format(
            index=index,
            dtype=dtype,
            rank=len(y),
            result_rank=len(x),
            t_shape=t,
            y_shape=y if len(y) > 1 else y[0],
            statement=call if self.in_place else f"x = {call}",
            result=result,
        )

    def inputs(self, seed: int, dtype: str) -> tuple[Values, Values, Values]:
        """Arrays T and Y, and the gradient of X. The triangle that must not be read holds NaN."""
        numbers = np.random.default_rng(seed)
        n, shapes = self.n, self.shapes
        lower = np.tril(numbers.uniform(-1, 1, (n, n))) / n**0.5 + np.diag(numbers.uniform(1, 2, n))
        block = np.tril(lower @ lower.T if self.function == "cholesky" else lower)
        block += np.triu(np.full((n, n), np.nan), 1)
        t, y, gradient = (numbers.uniform(-1, 1, shape).astype(dtype) for shape in shapes)
        self._triangle(t)[...] = block.T if self.is_upper else block
        return t, y, gradient

    @property
    def is_upper(self) -> bool:
        """True if the upper triangle is read."""
        return self.upper if "cholesky" in self.function else self.function == "upper_solve"

    def gradients(self, t: Values, y: Values, gradient: Values) -> tuple[Values, Values]:
        """The gradients of T and Y in float64."""
        of_t, of_y = np.zeros(t.shape), np.zeros(y.shape)
        triangle, of_triangle = self._triangle(t), self._triangle(of_t)
        if self.upper and "cholesky" in self.function:
            triangle, of_triangle = triangle.T, of_triangle.T
        triangle = np.triu(triangle) if self.function == "upper_solve" else np.tril(triangle)
        if self.function == "cholesky":
            result = self._triangle(gradient) if self.in_place else gradient
            result = result.T if self.upper else result
            full = triangle + np.tril(triangle, -1).T
            if self.in_place:
                of_t[...] = gradient
            of_triangle[...] = exact("cholesky", full, y, result)["grad_a"]
            return of_t, of_y
        right, of_right = self._right(y), self._right(of_y)
        result = self._right(gradient) if self.in_place else gradient.reshape(right.shape)
        if self.in_place:
            of_y[...] = gradient
        found = exact(self.function, triangle, right, result)
        of_triangle[...], of_right[...] = found["grad_a"], found["grad_b"]
        return of_t, of_y

    def _triangle(self, array: Values) -> Values:
        return _part(array, (self.n, self.n), self.triangle)

    def _right(self, array: Values) -> Values:
        return _part(array, (self.n, self.columns), self.right) if self.columns else array[:, None]


def _whole(shape: tuple[int, int], view: View) -> tuple[int, int]:
    rows, columns = shape
    if view == "padded":
        return rows + PADS[0], columns + PADS[1] + 1
    return (columns, rows) if view == "transposed" else shape


def _viewed(name: str, shape: tuple[int, int], view: View) -> str:
    if view == "padded":
        return f"wp.tile_view({name}, offset={PADS}, shape={shape})"
    return f"wp.tile_transpose({name})" if view == "transposed" else name


def _part(array: Values, shape: tuple[int, int], view: View) -> Values:
    """The view of an array."""
    if view == "padded":
        return array[PADS[0] :, PADS[1] :][: shape[0], : shape[1]]
    return array.T if view == "transposed" else array


def draw(seed: int, sizes: list[int], columns: list[int]) -> GradientCase:
    """A case whose call goes round with the seed; the rest is drawn."""
    drawn = random.Random(seed)
    call = CALLS[seed % len(CALLS)]
    triangle, right = drawn.choice(VIEWS), drawn.choice(VIEWS)
    # Warp gives a new tile the strides of the operand, and too little memory if that is padded
    if call == "tile_cholesky" and triangle == "padded":
        triangle = "dense"
    if not call.endswith("_inplace") and right == "padded":
        right = "dense"
    return GradientCase(call, drawn.choice(sizes), drawn.choice(columns), drawn.random() < 0.4, triangle, right)


def text_of(cases: list[GradientCase], dtype: str) -> str:
    """A module of kernels."""
    return "".join(case.text(index, dtype) for index, case in enumerate(cases))


# ---- several solvers in one kernel, and operands that are used before

CHAINS = {
    "both solves in place": (
        "l = wp.tile_cholesky(a)\n    q = b * b\n    wp.tile_lower_solve_inplace(l, b)\n    "
        "wp.tile_upper_solve_inplace(wp.tile_transpose(l), b)\n    x = b + q",
        lambda a, b: (factor := cholesky(a), solve(factor.T, solve(factor, b)) + b * b),
    ),
    "a factor in place": (
        "q = a * a\n    wp.tile_cholesky_inplace(a)\n    r = a * a\n    wp.tile_cholesky_solve_inplace(a, b)\n    "
        "l = r + q\n    x = b",
        lambda a, b: ((factor := cholesky(a)) * factor + a * a, solve(factor.T, solve(factor, b))),
    ),
    "an upper factor in place": (
        'wp.tile_cholesky_inplace(a, fill_mode="upper")\n    l = a\n    '
        'wp.tile_cholesky_solve_inplace(a, b, fill_mode="upper")\n    '
        "wp.tile_lower_solve_inplace(wp.tile_transpose(a), b)\n    wp.tile_upper_solve_inplace(a, b)\n    x = b",
        REFERENCES["in place"],
    ),
    "one factor for two solves": (
        "l = wp.tile_cholesky(a)\n    y = wp.tile_cholesky_solve(l, b)\n    x = y * wp.tile_upper_solve(l, y)",
        lambda a, b: (factor := cholesky(a), (y := solve(factor.T, solve(factor, b))) * solve(np.triu(factor), y)),
    ),
}
"""Statements that make the tiles ``l`` and ``x`` of ``a`` and ``b``, and the same in NumPy."""


def chain_text(dtype: str, shapes: list[tuple[int, int]]) -> str:
    """A module with each chain for each shape."""
    bodies = [(shape, body) for shape in shapes for body, _ in CHAINS.values()]
    return "".join(kernel_text(index, dtype, shape, body) for index, (shape, body) in enumerate(bodies))


@dataclass(frozen=True)
class Launch:
    """A kernel of a module, with arrays that hold zeros for each output.

    Attributes:
        kernel: Its name.
        arrays: Its arguments: two inputs, then the outputs.
        seeds: The gradients of the outputs.
        expected: The gradients of the inputs.
        title: What it computes.
    """

    kernel: str
    arrays: list[Values]
    seeds: list[Values]
    expected: tuple[Values, Values]
    title: str


def launches_of(cases: list[GradientCase], seeds: Iterable[int], dtype: str) -> Iterator[Launch]:
    """The kernels of :func:`text_of`."""
    for index, (case, seed) in enumerate(zip(cases, seeds)):
        t, y, gradient = case.inputs(seed, dtype)
        expected = case.gradients(*(each.astype(float) for each in (t, y, gradient)))
        yield Launch(f"kernel{index}", [t, y, np.zeros_like(gradient)], [gradient], expected, str(case))


def chain_launches(dtype: str, shapes: list[tuple[int, int]]) -> Iterator[Launch]:
    """The kernels of :func:`chain_text`."""
    for index, (shape, (name, (_, reference))) in enumerate(itertools.product(shapes, CHAINS.items())):
        a, b = inputs(*shape, dtype)
        random_numbers = np.random.default_rng(index)
        of_l, of_x = (random_numbers.uniform(-1, 1, each.shape).astype(dtype) for each in (a, b))
        expected = complex_steps(reference, a.astype(float), b.astype(float), (of_l, of_x))
        arrays = [a, b, np.zeros_like(a), np.zeros_like(b)]
        yield Launch(f"kernel{index}", arrays, [of_l, of_x], expected, f"{name} {shape}")
