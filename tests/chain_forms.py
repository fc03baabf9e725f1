"""Forms of a loop whose tiles stay in registers between its products. Tests on the emulator and on a GPU use them.

Each form is a kernel ``attend(Q, K, V, O, L)`` of blocks of 32 rows of Q, which takes 64 rows of K and V at a time. It
computes softmax(Q K^T) V and the sums of the softmax, or another function of Q, K and V.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[Any]
M, N, D, KEYS, ROWS, THREADS = 32, 64, 32, 192, 64, 64

HEAD = """import warp as wp
@wp.func
def weight(score: float, highest: float):
    return wp.exp(0.25 * (score - highest))
@wp.kernel(enable_backward={backward})
def attend(
    Q: wp.array2d(dtype=wp.float16), K: wp.array2d(dtype=wp.float16), V: wp.array2d(dtype=wp.float16),
    O: wp.array2d(dtype=float), L: wp.array2d(dtype=float),
):
    i = wp.tid()
"""
LOAD_Q = 'q = wp.tile_load(Q, shape=(32, 32), offset=(i * 32, 0), storage="shared")\n'
START = f"""
{LOAD_Q}o = wp.tile_zeros(shape=(32, 32), dtype=float, storage="shared")
highest = wp.tile_full(shape=32, value=-1.0e30, dtype=float)
total = wp.tile_zeros(shape=32, dtype=float)
"""
LOOP = "for step in range(0, K.shape[0], 64):"
LOAD_K = 'k = wp.tile_load(K, shape=(64, 32), offset=(step, 0), storage="shared")\n'
LOAD_V = 'v = wp.tile_load(V, shape=(64, 32), offset=(step, 0), storage="shared")\n'
SCORES = """s = wp.tile_zeros(shape=(32, 64), dtype=float, storage="shared")
wp.tile_matmul(q, wp.tile_transpose(k), s)
"""
SOFTMAX = """raised = wp.tile_map(wp.max, highest, wp.tile_reduce(wp.max, s, axis=1))
factor = wp.tile_map(weight, highest, raised)
column = wp.tile_broadcast(wp.tile_reshape(raised, shape=(32, 1)), shape=(32, 64))
wp.tile_assign(s, wp.tile_map(weight, s, column))
wp.tile_assign(total, total * factor + wp.tile_sum(s, axis=1))
wp.tile_assign(o, o * wp.tile_broadcast(wp.tile_reshape(factor, shape=(32, 1)), shape=(32, 32)))
wp.tile_assign(highest, raised)
"""
VALUES = "wp.tile_matmul(wp.tile_astype(s, dtype=wp.float16), v, o)\n"
BODY = LOAD_K + LOAD_V + SCORES + SOFTMAX + VALUES
STORE = """
r = o / wp.tile_broadcast(wp.tile_reshape(total, shape=(32, 1)), shape=(32, 32))
wp.tile_store(O, r, offset=(i * 32, 0))
wp.tile_store(L[0], total, offset=i * 32)
"""
REBOUND = """raised = wp.tile_map(wp.max, highest, wp.tile_reduce(wp.max, s, axis=1))
factor = wp.tile_map(weight, highest, raised)
p = wp.tile_map(weight, s, wp.tile_broadcast(wp.tile_reshape(raised, shape=(32, 1)), shape=(32, 64)))
total = total * factor + wp.tile_sum(p, axis=1)
wp.tile_assign(o, o * wp.tile_broadcast(wp.tile_reshape(factor, shape=(32, 1)), shape=(32, 32)))
wp.tile_matmul(wp.tile_astype(p, dtype=wp.float16), v, o)
highest = raised
"""
DIVISION = "o / wp.tile_broadcast(wp.tile_reshape(total, shape=(32, 1)), shape=(32, 32))"
FACTOR = DIVISION.replace("/", "*").replace("total", "(1.0 / total)")
DIVIDED = f"""
wp.tile_assign(o, {DIVISION})
wp.tile_store(O, o, offset=(i * 32, 0))
wp.tile_store(L[0], total, offset=i * 32)
"""
COLUMNS = {  # vectors as columns
    "wp.tile_reduce(wp.max, s, axis=1)": "wp.tile_reshape(wp.tile_reduce(wp.max, s, axis=1), shape=(32, 1))",
    "wp.tile_sum(s, axis=1)": "wp.tile_reshape(wp.tile_sum(s, axis=1), shape=(32, 1))",
    "wp.tile_reshape(raised, shape=(32, 1))": "raised",
    "wp.tile_reshape(factor, shape=(32, 1))": "factor",
    "wp.tile_reshape(total, shape=(32, 1))": "total",
    "shape=32,": "shape=(32, 1),",
    "(L[0], total,": "(L[0], wp.tile_reshape(total, shape=(32,)),",
}


def indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.strip().splitlines())


def kernel(
    body: str = BODY, loop: str = LOOP, start: str = START, store: str = STORE, *, backward: bool = False
) -> str:
    return (
        HEAD.format(backward=backward) + indented(start, 4) + f"    {loop}\n" + indented(body, 8) + indented(store, 4)
    )


def replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def softmax(q: Matrix, k: Matrix, v: Matrix) -> tuple[Matrix, Matrix]:
    """The results, in float64."""
    scores = q @ k.T
    weights = np.exp(0.25 * (scores - scores.max(1, keepdims=True)))
    return weights @ v / weights.sum(1, keepdims=True), weights.sum(1)


def doubled(q: Matrix, k: Matrix, v: Matrix) -> tuple[Matrix, Matrix]:
    return 2 * (q @ k.T) @ v, np.zeros(len(q))


def padded(q: Matrix, k: Matrix, v: Matrix) -> tuple[Matrix, Matrix]:
    rows = ((0, -len(k) % N), (0, 0))
    return softmax(q, np.pad(k, rows), np.pad(v, rows))


@dataclass(frozen=True)
class Form:
    """A loop.

    Attributes:
        code: The code of the reason why its tiles do not stay in registers; empty if they do.
        keys: Rows of K and V.
        k_transposed: True if K has its rows as columns.
        columns: Of Q, K and V.
    """

    text: str
    code: str = ""
    expected: Callable[[Matrix, Matrix, Matrix], tuple[Matrix, Matrix]] = softmax
    keys: int = KEYS
    blocks: int = ROWS // M
    k_transposed: bool = False
    columns: int = D
    threads: int = THREADS

    def arguments(self) -> list[Matrix]:
        """Small integers, so that scores are exact."""
        random = np.random.default_rng(self.keys)
        q, k, v = (random.integers(-2, 3, (rows, self.columns)) for rows in (ROWS, self.keys, self.keys))
        q, k, v = (values.astype(np.float16) for values in (q, k, v))
        k = np.ascontiguousarray(k.T) if self.k_transposed else k
        return [q, k, v, np.zeros((ROWS, self.columns), dtype=np.float32), np.zeros((2, ROWS), dtype=np.float32)]

    @property
    def function(self) -> str:
        """The device function of its products on sm_90."""
        return "multiply_chain_by_warpgroups" if self.threads == 128 else "multiply_chain"

    def results(self) -> tuple[Matrix, Matrix]:
        """The expected O, and the expected L."""
        q, k, v = (values.astype(np.float64) for values in self.arguments()[:3])
        return self.expected(q, k.T if self.k_transposed else k, v)


STORE_O = "wp.tile_store(O, o, offset=(i * 32, 0))\n"
FILL, PRODUCT = SCORES.splitlines(keepends=True)
LOADS = LOAD_K + LOAD_V
BY_INDEX = BODY.replace("(step, 0)", "(step * 64, 0)")
OUTER = """for tile in range(Q.shape[0] // 32):
    q = wp.tile_load(Q, shape=(32, 32), offset=(tile * 32, 0), storage="shared")
    o = wp.tile_zeros(shape=(32, 32), dtype=float, storage="shared")
    highest = wp.tile_full(shape=32, value=-1.0e30, dtype=float)
    total = wp.tile_zeros(shape=32, dtype=float)
    for step in range(0, K.shape[0], 64):
"""
TRANSPOSED_K = {
    "K, shape=(64, 32), offset=(step, 0)": "K, shape=(32, 64), offset=(0, step)",
    "wp.tile_transpose(k)": "k",
}
FUNCTION = """@wp.func
def attended(
    Q: wp.array2d(dtype=wp.float16), K: wp.array2d(dtype=wp.float16), V: wp.array2d(dtype=wp.float16),
    L: wp.array2d(dtype=float), i: int,
):
    BODY
    wp.tile_store(L[0], total, offset=i * 32)
    return o / wp.tile_broadcast(wp.tile_reshape(total, shape=(32, 1)), shape=(32, 32))
"""
CALL = """r = attended(Q, K, V, L, i)
wp.tile_store(O, r, offset=(i * 32, 0))
"""
ROW = """t = wp.tile_reduce(wp.max, s, axis=1)
u = wp.tile_broadcast(t, shape=(32, 32))
wp.tile_assign(o, o + u)
"""


def with_rows_of_maxima(q: Matrix, k: Matrix, v: Matrix) -> tuple[Matrix, Matrix]:
    """Each iteration adds the maxima of a block's rows, as a row, to all rows of the block."""
    o = np.zeros_like(q)
    for at in range(0, len(k), N):
        scores = q @ k[at : at + N].T
        maxima = scores.max(1).reshape(-1, 1, M)
        o += scores @ v[at : at + N] + np.broadcast_to(maxima, (len(q) // M, M, M)).reshape(len(q), M)
    return o, np.zeros(len(q))


def nothing(q: Matrix, k: Matrix, v: Matrix) -> tuple[Matrix, Matrix]:
    return np.zeros_like(q), np.zeros(len(q))


DOUBLED_VALUES = VALUES.replace("(s,", "(s * 2.0,")
FORMS: dict[str, Form] = {
    "attention": Form(kernel()),
    "zeros before the loads": Form(kernel(FILL + BODY.replace(FILL, ""))),
    "a division behind the loop": Form(kernel(store=DIVIDED)),
    "a quotient that is used twice": Form(
        kernel(store=f"r = {DIVISION}\nwp.tile_assign(o, r)\nwp.tile_store(L[0], total, offset=i * 32)\n"
               "wp.tile_store(O, r * 0.5 + o * 0.5, offset=(i * 32, 0))\n")
    ),
    "a factor behind the loop": Form(kernel(store=DIVIDED.replace(DIVISION, FACTOR))),
    "a factor that is used twice": Form(
        kernel(store=f"f = {FACTOR[4:]}\nwp.tile_assign(o, o * f)\nwp.tile_store(L[0], total, offset=i * 32)\n"
               f"wp.tile_store(O, o * f * {DIVISION[4:]}, offset=(i * 32, 0))\n")
    ),
    "names that are bound again": Form(kernel(LOADS + SCORES + REBOUND)),
    "vectors as columns": Form(replaced(kernel(), COLUMNS)),
    "an unrolled loop": Form(kernel(BY_INDEX, "for step in range(3):"), code="unrolled_loop"),
    "a long constant range": Form(kernel(BY_INDEX, "for step in range(20):"), keys=20 * N),
    "a backward range": Form(
        kernel(BODY.replace("(step, 0)", "(2 * step - 64, 0)"), "for step in range(K.shape[0] // 2, 0, -32):")
    ),
    "K transposed": Form(
        replaced(kernel(loop="for step in range(0, K.shape[1], 64):"), TRANSPOSED_K), k_transposed=True
    ),
    "rows that end within a tile": Form(kernel(), expected=padded, keys=150),
    "no iteration": Form(
        kernel(LOADS + SCORES + DOUBLED_VALUES, "for step in range(0, K.shape[0] - 192, 64):", store=STORE_O),
        expected=nothing,
    ),
    "two products": Form(kernel(LOADS + SCORES + DOUBLED_VALUES, store=STORE_O), expected=doubled),
    "a sum in place": Form(
        kernel(LOADS + SCORES + "t = s * 0.5\nt += t\ns += t\n" + VALUES, store=STORE_O), expected=doubled
    ),
    "in an outer loop": Form(
        HEAD.format(backward=False) + indented(OUTER, 4) + indented(BODY, 12)
        + indented(STORE.replace("i * 32", "tile * 32"), 8),
        blocks=1,
    ),
    "a left operand that an outer loop uses again": Form(
        HEAD.format(backward=False) + indented(LOAD_Q + "for again in range(Q.shape[0] // 32):", 4)
        + indented(START.replace(LOAD_Q, "") + LOOP, 8) + indented(BODY, 12) + indented(STORE, 8)
    ),
    "a break before the loads": Form(
        kernel("if step == 128:\n    break\n" + BODY), code="chain_with_branches",
        expected=lambda q, k, v: softmax(q, k[:128], v[:128]),
    ),
    "tiles at multiples of 16 bytes alone": Form(
        kernel(
            start='pad = wp.tile_zeros(shape=20, dtype=float, storage="shared")\n' + START,
            store=STORE + "if i == 0:\n    wp.tile_store(L[1], pad, offset=0)\n",
        )
    ),
    "in a function": Form(
        replaced(
            HEAD.replace("@wp.kernel", FUNCTION + "@wp.kernel").format(backward=False) + indented(CALL, 4),
            {"BODY\n": "\n" + indented(START + LOOP, 4) + indented(BODY, 8)},
        )
    ),
    "with an adjoint": Form(kernel(backward=True)),
    "a tile that the loop binds again and that is read later": Form(
        kernel(
            start=START + "raised = wp.tile_zeros(shape=32, dtype=float)\n",
            store="wp.tile_store(L[1], raised, offset=i * 32)\n" + STORE,
        )
    ),
    "a branch": Form(kernel(BODY.replace(VALUES, "if step >= 0:\n    " + VALUES)), code="chain_with_branches"),
    "a load after a product": Form(kernel(LOAD_K + SCORES + LOAD_V + SOFTMAX + VALUES), code="load_after_product"),
    "a sum of columns": Form(kernel(BODY + "t = wp.tile_sum(s, axis=0)\n"), code="not_in_chain"),
    "another operation": Form(
        kernel(BODY + "t = wp.tile_ones(shape=(16, 16), dtype=float, storage='shared')\nt += t\n"), code="not_in_chain"
    ),
    "a broadcast row": Form(
        kernel(LOADS + SCORES + ROW + VALUES, store=STORE_O), code="not_in_chain", expected=with_rows_of_maxima
    ),
    "a store in the loop": Form(kernel(BODY.replace(SOFTMAX, STORE_O + SOFTMAX)), code="writes_array"),
}  # fmt: skip
FORMS |= {
    f"{name}, 128 threads": replace(
        FORMS[name], text=FORMS[name].text.replace("32", "64"), columns=64, blocks=ROWS // 64, threads=128
    )
    for name in (
        "attention",
        "rows that end within a tile",
        "K transposed",
        "no iteration",
        "in an outer loop",
    )
}
