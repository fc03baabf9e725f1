"""Kernels with one solver builtin on dense, transposed and padded tiles, and the gradients of their operands."""

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

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


def _factor(a: Any) -> Any:
    """Lower factors of matrices, in the precision of their type."""
    lower = np.zeros_like(a)
    for j in range(a.shape[-1]):
        column = a[:, j:, j] - np.sum(lower[:, j:, :j] * lower[:, j : j + 1, :j], axis=2)
        lower[:, j:, j] = column / np.sqrt(column[:, :1])
    return lower


def _solve_lower(lower: Any, b: Any) -> Any:
    """Solutions of L X = B, of matrices B."""
    x = np.zeros_like(b)
    for i in range(b.shape[1]):
        x[:, i] = (b[:, i] - np.sum(lower[:, i, :i, None] * x[:, :i], axis=1)) / lower[:, i, i, None]
    return x


def _solve_upper(upper: Any, b: Any) -> Any:
    """Solutions of U X = B, of matrices B."""
    return _solve_lower(upper[:, ::-1, ::-1], b[:, ::-1])[:, ::-1]


def exact(function: str, a: Any, b: Any, g: Any) -> dict[str, Any]:
    """The result and the adjoints of a function, in the precision of the operands' type.

    A gradient of a triangle is that of the elements that the function reads. That of A of the Cholesky factor is from
    Murray, "Differentiation of the Cholesky decomposition", 2016, section 3. That of A in A X = B is A' = -B' X^T with
    the gradient B' of B (Giles, "An extended collection of matrix derivative results", 2008, section 2.3.1). With
    A = L L^T that of L is the lower triangle of (A' + A'^T) L.

    Args:
        function: The solver function.
        a: Matrices, or triangles.
        b: Vectors, or matrices.
        g: Gradients of the result.
    """
    if function == "cholesky":
        lower = _factor(a)
        upper = lower.swapaxes(1, 2)
        half = _half_diagonal(np.tril(upper @ np.tril(g)))
        half = _solve_upper(upper, _solve_upper(upper, half).swapaxes(1, 2))  # the sum below has its transpose too
        return {"x": lower, "grad_a": _half_diagonal(np.tril(half + half.swapaxes(1, 2)))}
    shape, transposed = b.shape, a.swapaxes(1, 2)
    b, g = (each if each.ndim == 3 else each[..., None] for each in (b, g))
    if function == "cholesky_solve":
        half, half_gradient = _solve_lower(a, b), _solve_lower(a, g)
        x, gradient = _solve_upper(transposed, half), _solve_upper(transposed, half_gradient)
        grad_a = -np.tril(gradient @ half.swapaxes(1, 2) + x @ half_gradient.swapaxes(1, 2))
    elif function == "upper_solve":
        x, gradient = _solve_upper(a, b), _solve_lower(transposed, g)
        grad_a = -np.triu(gradient @ x.swapaxes(1, 2))
    else:
        x, gradient = _solve_lower(a, b), _solve_upper(transposed, g)
        grad_a = -np.tril(gradient @ x.swapaxes(1, 2))
    return {"x": x.reshape(shape), "grad_a": grad_a, "grad_b": gradient.reshape(shape)}


def _half_diagonal(a: Any) -> Any:
    diagonal = np.arange(a.shape[-1])
    a[:, diagonal, diagonal] /= 2
    return a


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
            found = exact("cholesky", *(each[None].astype(np.longdouble) for each in (full, y, result)))
            if self.in_place:
                of_t[...] = gradient
            of_triangle[...] = found["grad_a"][0]
            return of_t, of_y
        right, of_right = self._right(y), self._right(of_y)
        result = self._right(gradient) if self.in_place else gradient.reshape(right.shape)
        found = exact(self.function, *(each[None].astype(np.longdouble) for each in (triangle, right, result)))
        if self.in_place:
            of_y[...] = gradient
        of_triangle[...] = found["grad_a"][0]
        of_right[...] = found["grad_b"][0]
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
