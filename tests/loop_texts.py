"""Sources of kernels with one loop of products, for :mod:`tests.loop_forms`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

M, N, K = 64, 64, 320
Matrix = npt.NDArray[np.float64]

HEADER = """
from typing import Any


@wp.func
def row_of(k: int):
    return k * 16


@wp.func
def plus_one(x: wp.float32):
    return x + wp.float32(1.0)


@wp.struct
class Sizes:
    k: int
"""
KERNEL = """
@wp.kernel{options}
def multiply(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    i, j = wp.tid()
{body}
"""
START = """c = wp.tile_zeros(shape=(32, 32), dtype=wp.float32, storage="shared")"""
ONES = START.replace("zeros", "ones")
OTHER = START.replace("c =", "d =")
STORE = "wp.tile_store(C, c, offset=(i * 32, j * 32))"
STORE_SUM = ("e = c + d", STORE.replace("C, c", "C, e"))
LOAD_A = "a = wp.tile_load(A, shape=(32, 16), offset=(i * 32, {k}), storage='shared')"
LOAD_B = "b = wp.tile_load(B, shape=(16, 32), offset=({k}, j * 32), storage='shared')"


@dataclass(frozen=True)
class Form:
    """One form of the loop.

    Attributes:
        text: Python source after ``import warp as wp``.
        state: State of the loop in the plan.
        reason: A part of the plan's reason, if no code is given.
        code: The code of a rejection in it.
        expected: Returns the expected C.
        b_transposed: True if the array B holds the transpose.
        loops: The number of loops in the plan.
        stages: The number of buffers of a loop whose state is "pipelined".
        differentiable: True if Warp's backward pass is correct, so that gradients can be compared.
        has_half: True if A and B may be float16. Warp adds and subtracts tiles of equal dtypes alone.
    """

    text: str
    state: str = "pipelined"
    reason: str = "double buffers of 4096 bytes lie in C's memory"
    code: str = ""
    expected: Callable[[Matrix, Matrix], Matrix] = np.matmul
    b_transposed: bool = False
    loops: int = 1
    stages: int = 2
    differentiable: bool = True
    has_half: bool = True


def indented(*lines: str) -> str:
    return "\n".join(f"    {line}" for text in lines for line in text.splitlines())


def kernel(*lines: str, above: str = "", options: str = "") -> str:
    """The source of a kernel with these statements."""
    return HEADER + above + KERNEL.format(options=options, body=indented(*lines))


def form(*lines: str, above: str = "", **fields: Any) -> Form:
    """A form whose kernel has these statements."""
    return Form(kernel(*lines, above=above), **fields)


def loop(head: str, k: str, *, more: tuple[str, ...] = (), product: str = "wp.tile_matmul(a, b, c)") -> str:
    """The source of a loop that loads and multiplies."""
    return "\n".join([head, *(f"    {line}" for line in (LOAD_A.format(k=k), LOAD_B.format(k=k), *more, product))])


def ranged(*, more: tuple[str, ...] = (), product: str = "wp.tile_matmul(a, b, c)") -> str:
    """The source of a loop over the columns of A."""
    return loop("for k in range(0, A.shape[1], 16):", "k", more=more, product=product)


def product(statements: str, *, more: tuple[str, ...] = (), start: str = START, **fields: Any) -> Form:
    """A form with one loop over the columns of A, whose products are ``statements``."""
    return form(start, ranged(more=more, product=indented(statements).strip()), STORE, **fields)


def with_code(state: str, code: str) -> dict[str, str]:
    """The fields of a form whose loop is not pipelined."""
    return {"state": state, "code": code}


def with_transposed_b(text: str) -> str:
    return text.replace(
        LOAD_B.format(k="k"), "b = wp.tile_load(B, shape=(32, 16), offset=(j * 32, k), storage='shared')"
    )


def steps(weight: Callable[[int], float], a: Matrix, b: Matrix) -> Matrix:
    """The sum of the products of all steps, with the weight of each step's number."""
    columns = [slice(16 * k, 16 * k + 16) for k in range(a.shape[1] // 16)]
    return np.asarray(sum(weight(k) * (a[:, part] @ b[part]) for k, part in enumerate(columns)))


RANGE = ranged()
TWO_BUFFERS = "double buffers of 4096 bytes"
EXTRA = f"{TWO_BUFFERS} lie in extra shared memory"


def even_steps(a: Matrix) -> Matrix:
    """The columns of every other step."""
    return np.concatenate([a[:, k : k + 16] for k in range(0, K, 32)], axis=1)
