"""Forms of loops that compute operands of their products, such as J^T D J, see :mod:`tests.loop_forms`."""

from typing import Any

import numpy as np

from tests.loop_texts import (
    LOAD_A,
    LOAD_B,
    ONES,
    OTHER,
    START,
    STORE,
    STORE_SUM,
    Form,
    Matrix,
    even_steps,
    form,
    indented,
    kernel,
    loop,
    ranged,
    steps,
    with_code,
)

ABOVE = """
@wp.func
def kept(weight: Any, x: Any):
    return wp.where(weight > weight - weight, x, x - x)


@wp.func
def weighted(weights: Any, rows: Any):
    return wp.tile_map(wp.mul, wp.tile_broadcast(wp.tile_reshape(weights, shape=(16, 1)), shape=(16, 32)), rows)


@wp.func
def doubled(rows: Any):
    result = wp.tile_zeros(shape=(16, 32), dtype=wp.float32, storage="shared")
    result += rows
    result += rows
    return result
"""
NATIVE = """
@wp.func_native("WP_TILE_SYNC(); return n * 16;")
def step_of_block(n: wp.int64) -> wp.int64: ...
"""
LOAD_WEIGHTS = "e = wp.tile_load(A[i * 32], shape=16, offset=k)"
BROADCAST = "w = wp.tile_broadcast(wp.tile_reshape(e, shape=(16, 1)), shape=(16, 32))"
BY_MAP, BY_OPERATOR = f"{BROADCAST}\nr = wp.tile_map(wp.mul, w, b)", f"{BROADCAST}\nr = b * w"
BY_FUNCTION = "r = weighted(e, b)"
NEW, INTO_C = "c += wp.tile_matmul(t, r)", "wp.tile_matmul(t, r, c)"
TRANSPOSED = "t = wp.tile_transpose(b)"
RANGE = "for k in range(0, A.shape[1], 16):"
BUFFERS, ALL_BUFFERS = (f"double buffers of {size} bytes lie in C's memory" for size in (2048, 4096))
EXTRA_BUFFERS = "double buffers of 2048 bytes lie in extra shared memory"
COMPUTED = "arrive before other statements on tiles"
PRODUCT, OF_R = "wp.tile_matmul(a, b, c)", "wp.tile_matmul(a, r, c)"


def gram(*computed: str, product: str = NEW, start: str = ONES, head: str = RANGE, above: str = ABOVE) -> str:
    """A kernel whose blocks multiply the transpose of tiles of B by the same tiles with rows scaled by A."""
    lines = (LOAD_B.format(k="k"), LOAD_WEIGHTS, *computed, product)
    return kernel(start, head, indented(*lines), STORE, above=above)


def of_gram(a: Matrix, b: Matrix, start: int = 1, length: int | None = None) -> Matrix:
    """What :func:`gram` computes."""
    rows = [
        [start + part[:length].T @ (a[i : i + 1, :length].T * part[:length]) for part in (b[:, :32], b[:, 32:])]
        for i in (0, 32)
    ]
    return np.block(rows)


def computed(*statements: str, product: str = OF_R, start: str = START, above: str = "", **fields: Any) -> Form:
    """A loop that computes an operand between its loads and its product. Its plan has buffers, or a code."""
    text = kernel(start, ranged(more=statements, product=product), STORE, above=above)
    return Form(text, **({} if "code" in fields else {"reason": BUFFERS}) | fields)


NEGATED = "r = -b"
SKIP, LEAVE = ("if k % 32 == 16:", "    continue"), ("if k == 160:", "    break")
WORKS_ON_TILE = with_code("register_accumulators", "works_on_tile")


def minus(a: Matrix, b: Matrix) -> Matrix:
    return -(a @ b)


def minus_even(a: Matrix, b: Matrix) -> Matrix:
    return -(even_steps(a) @ even_steps(b.T).T)


def minus_half(a: Matrix, b: Matrix) -> Matrix:
    return -(a[:, :160] @ b[:160])


def doubled(a: Matrix, b: Matrix) -> Matrix:
    return 2 * (a @ b)


COMPUTED_FORMS: dict[str, Form] = {
    "rows scaled by a map of a broadcast vector": Form(
        gram(BY_MAP, TRANSPOSED),
        reason=BUFFERS,
        expected=of_gram,
        differentiable=False,  # Warp's adjoint of the transpose doubles the tile, before that of the map reads it
        has_half=False,
    ),
    "rows scaled by an operator, into C": Form(
        gram(TRANSPOSED, BY_OPERATOR, product=INTO_C), reason=EXTRA_BUFFERS, expected=of_gram
    ),
    "rows scaled by a function": Form(
        gram(TRANSPOSED, BY_FUNCTION, product=INTO_C, start=START).replace("offset=k)", "offset=k, storage='shared')"),
        reason=COMPUTED, expected=lambda a, b: of_gram(a, b, 0),
    ),
    "columns scaled by a map of a broadcast vector": Form(
        gram(
            "r = wp.tile_map(wp.mul, wp.tile_transpose(b), wp.tile_broadcast(e, shape=(32, 16)))",
            product="c += wp.tile_matmul(r, b)",
        ),
        reason=BUFFERS, expected=of_gram, has_half=False,
    ),
    "rows masked by the sign of a vector, in a while loop": Form(
        gram(
            TRANSPOSED, f"{BROADCAST}\nr = wp.tile_map(kept, w, b)", f"{NEW}\nk += 16",
            product="", head="k = int(0)\nwhile k < A.shape[1]:",
        ),
        reason=BUFFERS, expected=lambda a, b: of_gram((a > 0).astype(float), b), differentiable=False, has_half=False,
    ),
    "rows scaled in no iteration": Form(
        gram(TRANSPOSED, BY_MAP, head="for k in range(0, A.shape[1] // 100000, 16):"),
        reason=BUFFERS, expected=lambda a, b: np.ones((64, 64)), has_half=False,
    ),
    "rows scaled in one iteration": Form(
        gram(TRANSPOSED, BY_MAP, head="for k in range(0, A.shape[1] // 20, 16):"),
        reason=BUFFERS, expected=lambda a, b: of_gram(a, b, 1, 16), has_half=False,
    ),
    "an operand is scaled by a number of the step": computed(
        "r = B.dtype(k // 16 + 1) * b", above=ABOVE, expected=lambda a, b: steps(lambda k: k + 1, a, b)
    ),
    "an operand is scaled by a number that is computed between": computed(
        "x = A.dtype(k // 16 % 3)", "r = x * b", above=ABOVE, expected=lambda a, b: steps(lambda k: k % 3, a, b)
    ),
    "a sum of two loaded tiles, one in registers": computed(
        "d = wp.tile_load(A, shape=(32, 16), offset=((1 - i) * 32, k))", "s = a + d",
        product="wp.tile_matmul(s, b, c)", expected=lambda a, b: (a + np.roll(a, 32, axis=0)) @ b,
    ),
    "an operand from a function with a shared tile": computed(
        "r = doubled(b)", above=ABOVE, expected=doubled, differentiable=False, has_half=False
    ),
    "an operand from a function with a shared tile, with a start value": computed(
        "r = doubled(b)", start=ONES, above=ABOVE, **with_code("register_accumulators", "call_beside_buffers"),
        expected=lambda a, b: 1 + 2 * (a @ b), differentiable=False, has_half=False,
    ),
    "both operands are computed": computed(
        "s = -a", "r = b + b", product="wp.tile_matmul(s, r, c)", reason=COMPUTED, expected=lambda a, b: -2 * (a @ b)
    ),
    "a loaded tile is changed in place": computed(
        "b += b", product=PRODUCT, reason=ALL_BUFFERS, expected=doubled, differentiable=False
    ),
    "a transpose of a computed operand": computed(
        "s = -a", "t = wp.tile_transpose(s)",
        product="wp.tile_matmul(wp.tile_transpose(t), b, c)", expected=minus, differentiable=False,
    ),
    "a computed operand, with a start value": computed(
        NEGATED, start=ONES, reason=EXTRA_BUFFERS, expected=lambda a, b: 1 - a @ b
    ),
    "a second operand is computed after the first product": form(
        START, OTHER, ranged(more=(NEGATED,), product=f"{OF_R}\n    s = a + a\n    wp.tile_matmul(s, b, d)"),
        *STORE_SUM, reason=ALL_BUFFERS,
    ),
    "an operand of the first product is changed after it": form(
        START, OTHER, ranged(product=f"{PRODUCT}\n    b += b\n    wp.tile_matmul(a, b, d)"), *STORE_SUM,
        **WORKS_ON_TILE, expected=lambda a, b: 3 * (a @ b), differentiable=False,
    ),
    "an operand is changed after the product": computed(
        NEGATED, product=f"{OF_R}\n    r += b", **WORKS_ON_TILE, expected=minus, differentiable=False
    ),
    "an operand is computed between the loads": form(
        START, RANGE, indented(LOAD_B.format(k="k"), NEGATED, LOAD_A.format(k="k"), OF_R), STORE,
        **WORKS_ON_TILE, expected=minus,
    ),
    "continue after an operand is computed": computed(NEGATED, *SKIP, expected=minus_even, differentiable=False),
    "continue before an operand is computed": computed(*SKIP, NEGATED, expected=minus_even, differentiable=False),
    "break before an operand is computed": computed(*LEAVE, NEGATED, expected=minus_half, differentiable=False),
    "break after an operand is computed": computed(NEGATED, *LEAVE, expected=minus_half, differentiable=False),
    "an element of a loaded tile decides": computed(
        "if a[0, 0] * a[0, 0] < a.dtype(0.0):", "    break", product=PRODUCT, reason=ALL_BUFFERS, differentiable=False
    ),
    "an operand is computed under a condition, in loads and product under another": form(
        START, RANGE,
        "    if k % 32 == 0:",
        indented(indented(LOAD_A.format(k="k"), LOAD_B.format(k="k"))),
        "        if k % 64 == 0:",
        "            b += b",
        f"        {PRODUCT}", STORE,
        reason=ALL_BUFFERS, expected=lambda a, b: steps(lambda k: 2 * (k % 4 == 0) + (k % 4 == 2), a, b),
        differentiable=False,
    ),
    "an operand is computed in an inner loop": computed(
        "for _ in range(A.shape[0] // 32):", "    b += b",
        product=PRODUCT, reason=ALL_BUFFERS, expected=lambda a, b: 4 * (a @ b), differentiable=False,
    ),
    "a computed operand in a loop in a loop": form(
        START, "for part in range(A.shape[1] // 64):",
        indented(loop("for s in range(A.shape[0] // 16):", "(part * 4 + s) * 16", more=(NEGATED,), product=OF_R)),
        STORE, reason=BUFFERS, expected=minus,
    ),
    "a computed operand in two loops of the same names": form(
        START, OTHER, ranged(more=(NEGATED,), product=OF_R),
        ranged(more=("r = b + b",), product="wp.tile_matmul(a, r, d)"), *STORE_SUM, reason=BUFFERS, loops=2,
    ),
    "a computed operand in Warp's unrolled loop": form(
        START, loop("for k in range(3):", "k * 16", more=(NEGATED,), product=OF_R), STORE,
        **WORKS_ON_TILE, expected=lambda a, b: -(a[:, :48] @ b[:48]),
    ),
    "a computed operand that is stored": computed(
        NEGATED, "wp.tile_store(C, r, offset=(i * 32, j * 32))", **with_code("register_accumulators", "writes_array"),
        expected=minus, differentiable=False, has_half=False,
    ),
    "a computed operand beside a native function": computed(
        NEGATED, "x = step_of_block(wp.int64(k))", above=NATIVE,
        **with_code("register_accumulators", "unknown_effects"), expected=minus, differentiable=False,
    ),
}  # fmt: skip
