"""Common forms of one loop of products, with the expected plan and result. Several test modules use them.

Each form is a kernel ``multiply(A, B, C)`` of 32x32 tiles over K = 320 in steps of 16, in float32, and computes
``expected(A, B)``. A and B are arrays of 64 x 320 and 320 x 64 elements; a transposed B has 64 x 320.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.computed_forms import COMPUTED_FORMS
from tests.loop_texts import (
    EXTRA,
    LOAD_A,
    LOAD_B,
    ONES,
    OTHER,
    RANGE,
    START,
    STORE,
    STORE_SUM,
    Form,
    K,
    Matrix,
    even_steps,
    indented,
    kernel,
    loop,
    ranged,
    steps,
    with_transposed_b,
)
from tests.native_forms import NATIVE_FORMS

FUNCTION = """
@wp.func
def product(A: wp.array2d(dtype={kind}), B: wp.array2d(dtype={kind}), i: int, j: int):
    c = wp.tile_zeros(shape=(32, 32), dtype=wp.float32, storage="shared")
    for k in range(0, A.shape[1], 16):
        a = wp.tile_load(A, shape=(32, 16), offset=(i * 32, k), storage="shared")
        b = wp.tile_load(B, shape=(16, 32), offset=(k, j * 32), storage="shared")
        wp.tile_matmul(a, b, c)
    return c
"""
INTO_PARAMETER = """
@wp.func
def add_product(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), i: int, j: int, c: Any):
    for k in range(0, A.shape[1], 16):
        a = wp.tile_load(A, shape=(32, 16), offset=(i * 32, k), storage="shared")
        b = wp.tile_load(B, shape=(16, 32), offset=(k, j * 32), storage="shared")
        wp.tile_matmul(a, b, c)
"""
ODD = """wp.tile_matmul(a, b, c)"""
TRANSPOSED = "wp.tile_matmul(a, wp.tile_transpose(b), c)"
INNER = "".join(f"        {line}\n" for line in (LOAD_A.format(k="k"), LOAD_B.format(k="k"), ODD))


def substitution(rows: str, blocks: str, *, view: str = "wp.tile_view(x, shape=(16, 32), offset=({row}, 0))") -> str:
    """The source of a kernel that subtracts products of A and blocks of a tile from another block of the tile."""
    return kernel(
        "x = wp.tile_load(B, shape=(64, 32), offset=(0, j * 32), storage='shared')",
        f"for p in {rows}:",
        f"    y = {view.format(row='p')}",
        f"    for q in {blocks}:",
        "        a = wp.tile_load(A, shape=(16, 16), offset=(p, q), storage='shared')",
        f"        z = {view.format(row='q')}",
        "        wp.tile_matmul(a, z, y, alpha=-1.0)",
        "wp.tile_store(C, wp.tile_view(x, shape=(32, 32), offset=(i * 32, 0)), offset=(i * 32, j * 32))",
    )


def substituted(rows: Sequence[int], blocks: Callable[[int], Sequence[int]]) -> Callable[[Matrix, Matrix], Matrix]:
    """What :func:`substitution` computes."""

    def expected(a: Matrix, b: Matrix) -> Matrix:
        x = b[:64].copy()
        for p in rows:
            for q in blocks(p):
                x[p : p + 16] -= a[p : p + 16, q : q + 16] @ x[q : q + 16]
        return x

    return expected


# the eleven forms in the first table of this project
SPELLINGS: dict[str, Form] = {
    "bounds from a shape": Form(kernel(START, RANGE, STORE)),
    "an extra k // 2": Form(kernel(START, loop("for k in range(A.shape[1] // 16):", "k // 2 * 16 + k % 2 * 16"), STORE),
                            expected=lambda a, b: reordered(a) @ reordered(b.T).T),
    "a constant range": Form(kernel(START, loop("for k in range(20):", "k * 16"), STORE)),
    "a function computes offsets": Form(
        kernel(START, loop("for k in range(A.shape[1] // 16):", "row_of(k)"), STORE)
    ),
    "exclusive or in an index": Form(kernel(START, loop("for k in range(A.shape[1] // 16):", "(k ^ 1) * 16"), STORE)),
    "B transposed": Form(
        kernel(START, with_transposed_b(ranged(product=TRANSPOSED)), STORE),
        reason="fma multiplies 4 stages of 4096 bytes",
        b_transposed=True,
        stages=4,
    ),
    "while": Form(
        kernel(START, "k = int(0)", loop("while k < A.shape[1]:", "k") + "\n    k += 16", STORE), differentiable=False
    ),
    "a sum after the loop": Form(
        kernel(START, RANGE, "d = c + wp.tile_ones(shape=(32, 32), dtype=wp.float32)", STORE.replace("C, c", "C, d")),
        expected=lambda a, b: a @ b + 1,
    ),
    "a map after the loop": Form(
        kernel(START, RANGE, "d = wp.tile_map(plus_one, c)", STORE.replace("C, c", "C, d")),
        expected=lambda a, b: a @ b + 1,
    ),
    "in a function": Form(
        kernel("c = product(A, B, i, j)", STORE, above=FUNCTION.format(kind="wp.float32")),
    ),
    "in a generic function": Form(kernel("c = product(A, B, i, j)", STORE, above=FUNCTION.format(kind="Any"))),
}  # fmt: skip

MORE: dict[str, Form] = {
    "into a parameter": Form(kernel(START, "add_product(A, B, i, j, c)", STORE, above=INTO_PARAMETER)),
    "into a parameter that holds values": Form(
        kernel(ONES, "add_product(A, B, i, j, c)", STORE, above=INTO_PARAMETER),
        reason=EXTRA,
        expected=lambda a, b: a @ b + 1,
    ),
    "a start value": Form(kernel(ONES, RANGE, STORE), reason=EXTRA, expected=lambda a, b: a @ b + 1),
    "nested": Form(
        kernel(
            START,
            "for part in range(A.shape[0] // 32):\n    for step in range(A.shape[1] // 32):\n"
            "        k = (part * 10 + step) * 16\n" + INNER,
            STORE,
        ),
        differentiable=False,
    ),
    "two sums": Form(
        kernel(START, OTHER, ranged(product="wp.tile_matmul(a, b, c)\n    wp.tile_matmul(a, b, d)"), *STORE_SUM),
        expected=lambda a, b: 2 * (a @ b),
    ),
    "two products of one C": Form(
        kernel(START, ranged(product="wp.tile_matmul(a, b, c)\n    wp.tile_matmul(a, b, c)"), STORE),
        expected=lambda a, b: 2 * (a @ b),
    ),
    "two products, three tiles": Form(
        kernel(
            START,
            OTHER,
            ranged(
                product="wp.tile_matmul(a, b, c)\n"
                "    e = wp.tile_load(B, shape=(16, 32), offset=(k, (1 - j) * 32), storage='shared')\n"
                "    wp.tile_matmul(a, e, d)"
            ),
            "f = c + d",
            STORE.replace("C, c", "C, f"),
        ),
        reason="double buffers of 6144 bytes lie in C's memory",
        expected=lambda a, b: a @ b + a @ np.roll(b, 32, axis=1),
    ),
    "a product under a condition": Form(
        kernel(START, ranged(product=f"if k % 32 == 0:\n        {ODD}"), STORE),
        state="register_accumulators",
        code="loaded_in_other_branch",
        expected=lambda a, b: even_steps(a) @ even_steps(b.T).T,
    ),
    "loads and product under a condition": Form(
        kernel(START, "for k in range(0, A.shape[1], 16):\n    if k % 32 == 0:\n" + INNER, STORE),
        expected=lambda a, b: even_steps(a) @ even_steps(b.T).T,
    ),
    "break before the product": Form(
        kernel(START, ranged(more=("if k == 160:", "    break")), STORE),
        expected=lambda a, b: a[:, :160] @ b[:160],
        differentiable=False,
    ),
    "break after the product": Form(
        kernel(START, RANGE + "\n    if k == 160:\n        break", STORE),
        expected=lambda a, b: a[:, :176] @ b[:176],
        differentiable=False,
    ),
    "continue between loads and product": Form(
        kernel(START, ranged(more=("if k % 32 == 0:", "    continue")), STORE),
        expected=lambda a, b: (a @ b) - even_steps(a) @ even_steps(b.T).T,
        differentiable=False,
    ),
    "continue between two products": Form(
        kernel(START, ranged(product=f"{ODD}\n    if k % 32 == 0:\n        continue\n    {ODD}"), STORE),
        state="register_accumulators",
        code="jump_between_products",
        expected=lambda a, b: 2 * (a @ b) - even_steps(a) @ even_steps(b.T).T,
        differentiable=False,
    ),
    "a view in a loop whose last iteration multiplies nothing": Form(
        kernel(START, with_transposed_b(ranged(more=("if k % 32 == 16:", "    continue"), product=TRANSPOSED)), STORE),
        expected=lambda a, b: even_steps(a) @ even_steps(b.T).T,
        b_transposed=True,
        differentiable=False,
    ),
    "a tile of A that stays": Form(
        kernel(
            START,
            "a = wp.tile_load(A, shape=(32, 16), offset=(i * 32, 0), storage='shared')",
            "for k in range(0, A.shape[1], 16):",
            *(f"    {line}" for line in (LOAD_B.format(k="k"), ODD)),
            STORE,
        ),
        reason="double buffers of 2048 bytes lie in C's memory",
        expected=lambda a, b: sum(a[:, :16] @ b[k : k + 16] for k in range(0, K, 16)),
    ),
    "a struct's member bounds it": Form(
        kernel(START, "sizes = Sizes()", "sizes.k = A.shape[1]", loop("for k in range(0, sizes.k, 16):", "k"), STORE)
    ),
    "an offset from an element of an array": Form(
        kernel(START, loop("for k in range(20):", "k * 16 + int(A[0, 0] * A[0, 0]) * 0"), STORE)
    ),
    "C is stored in the loop": Form(
        kernel(START, RANGE + f"\n    {STORE}"), state="as_warp", code="stored", differentiable=False
    ),
    "a copy of C": Form(
        kernel(START, "d = wp.tile_transpose(c)", RANGE, STORE.replace("C, c", "C, d")),
        state="pipelined",
        reason="double buffers of 4096 bytes",
        expected=lambda a, b: transposed_tiles(a @ b),
        differentiable=False,
    ),
    "alpha": Form(
        kernel(START, ranged(product="wp.tile_matmul(a, b, c, alpha=2.0)"), STORE), expected=lambda a, b: 2 * (a @ b)
    ),
    "alpha of -1, with a start value": Form(
        kernel(ONES, ranged(product="wp.tile_matmul(a, b, c, alpha=-1.0)"), STORE),
        reason=EXTRA,
        expected=lambda a, b: 1 - a @ b,
    ),
    "alpha of 1 and of -0.5, with a start value": Form(
        kernel(ONES, ranged(product="wp.tile_matmul(a, b, c)\n    wp.tile_matmul(a, b, c, alpha=-0.5)"), STORE),
        state="as_warp",
        code="another_alpha",
        expected=lambda a, b: 1 + 0.5 * (a @ b),
    ),
    "an alpha that changes": Form(
        kernel(
            START,
            "x = float(2.0)",
            ranged(product="wp.tile_matmul(a, b, c, alpha=wp.float32(x))\n    x = x + 1.0"),
            STORE,
        ),
        state="as_warp",
        code="unknown_alpha",
        expected=lambda a, b: steps(lambda k: 2 + k, a, b),
        differentiable=False,
    ),
    "an alpha that is computed before": Form(
        kernel(
            START,
            "x = float(C.shape[0]) / float(C.shape[1] + C.shape[0])",
            ranged(product="wp.tile_matmul(a, b, c, alpha=x)"),
            STORE,
        ),
        expected=lambda a, b: (a @ b) * (a.shape[0] / (a.shape[0] + b.shape[1])),
    ),
    "an alpha that is computed before, with a start value": Form(
        kernel(
            ONES,
            "x = float(C.shape[0]) / float(C.shape[1] + C.shape[0])",
            ranged(product="wp.tile_matmul(a, b, c, alpha=x)"),
            STORE,
        ),
        reason=EXTRA,
        expected=lambda a, b: 1 + (a @ b) * (a.shape[0] / (a.shape[0] + b.shape[1])),
    ),
    "an infinite alpha, and no iteration": Form(
        kernel(
            START,
            "x = 1.0 / float(A.shape[1] // 100000)",
            "for k in range(0, A.shape[1] // 100000, 16):"
            + RANGE.partition(":")[2].replace("tile_matmul(a, b, c)", "tile_matmul(a, b, c, alpha=x)"),
            STORE,
        ),
        expected=lambda a, b: np.zeros((a.shape[0], b.shape[1])),
        differentiable=False,
    ),
    "an alpha that is computed in the loop": Form(
        kernel(START, ranged(product="x = 1.0 + float(k)\n    wp.tile_matmul(a, b, c, alpha=x)"), STORE),
        state="as_warp",
        code="unknown_alpha",
        expected=lambda a, b: steps(lambda k: 1 + 16 * k, a, b),
        differentiable=False,
    ),
    "an alpha that is converted": Form(
        kernel(START, ranged(product="wp.tile_matmul(a, b, c, alpha=float(int(2.7)))"), STORE),
        expected=lambda a, b: 2 * (a @ b),
    ),
    "a jump before the difference": Form(
        kernel(START, ranged(product="p = wp.tile_matmul(a, b)\n    if k == 32:\n        continue\n    c -= p"), STORE),
        state="as_warp",
        code="new_tile_in_sum",
        expected=lambda a, b: a[:, 32:48] @ b[32:48] - a @ b,
        differentiable=False,
    ),
    "beta": Form(
        kernel(START, ranged(product="wp.tile_matmul(a, b, c, beta=-1.0)"), STORE),
        state="as_warp",
        code="beta",
        expected=lambda a, b: steps(lambda k: (-1) ** (19 - k), a, b),
    ),
    "a difference": Form(
        kernel(ONES, ranged(product="c -= wp.tile_matmul(a, b)"), STORE),
        reason="double buffers of 4096 bytes",
        expected=lambda a, b: 1 - a @ b,
    ),
    "a difference, with alpha": Form(
        kernel(START, ranged(product="c -= wp.tile_matmul(a, b, alpha=-2.0)"), STORE),
        reason="double buffers of 4096 bytes",
        expected=lambda a, b: 2 * (a @ b),
    ),
    "a difference that is assigned": Form(
        kernel(ONES, ranged(product="c = c - wp.tile_matmul(a, b)"), STORE),
        reason="double buffers of 4096 bytes",
        expected=lambda a, b: 1 - a @ b,
        has_half=False,
    ),
    "a sum that is assigned, with a start value in registers": Form(
        kernel(
            "c = wp.tile_ones(shape=(32, 32), dtype=wp.float32)",
            ranged(product="p = wp.tile_matmul(a, b)\n    c = p + c"),
            STORE,
        ),
        reason="double buffers of 4096 bytes",
        expected=lambda a, b: a @ b + 1,
    ),
    "a difference from the product that is assigned": Form(
        kernel(ONES, ranged(product="c = wp.tile_matmul(a, b) - c"), STORE),
        state="as_warp",
        code="new_tile",
        expected=lambda a, b: 1 + steps(lambda k: (-1) ** (19 - k), a, b),
    ),
    "a difference that is assigned and leaves the loop early": Form(
        kernel(ONES, ranged(product="c = c - wp.tile_matmul(a, b)\n    if k == 160:\n        break"), STORE),
        state="as_warp",
        code="new_tile_in_sum",
        expected=lambda a, b: 1 - a[:, :176] @ b[:176],
        differentiable=False,
        has_half=False,
    ),
    "a difference that is read before it is assigned": Form(
        kernel(
            ONES,
            START.replace("c =", "e ="),
            ranged(product="d = c - wp.tile_matmul(a, b)\n    e += d\n    c = d"),
            STORE,
        ),
        state="as_warp",
        code="new_tile_in_sum",
        expected=lambda a, b: 1 - a @ b,
        differentiable=False,
        has_half=False,
    ),
    "the return form": Form(
        kernel(START, ranged(product="c += wp.tile_matmul(a, b)"), STORE), reason="double buffers of 4096 bytes"
    ),
    "the return form, added to a view": Form(
        kernel(START, "v = wp.tile_reshape(c, shape=(32, 32))", ranged(product="v += wp.tile_matmul(a, b)"), STORE),
        reason="double buffers of 4096 bytes",
        differentiable=False,
    ),
    "the return form, reshaped and added to a flat tile": Form(
        kernel(
            START.replace("c =", "flat =").replace("(32, 32)", "1024"),
            ranged(product="flat += wp.tile_reshape(wp.tile_matmul(a, b), shape=(1024,))"),
            "c = wp.tile_reshape(flat, shape=(32, 32))",
            STORE,
        ),
        reason="double buffers of 4096 bytes lie in C's memory",
        has_half=False,
    ),
    "the return form, reshaped and subtracted from a tile in registers, first in no iteration": Form(
        kernel(
            "for part in range(0, A.shape[1], 160):",
            "    c = wp.tile_ones(shape=(1, 32, 32), dtype=wp.float32)",
            indented(
                loop(
                    "for k in range(0, part, 16):",
                    "k",
                    product="c = c - wp.tile_reshape(wp.tile_matmul(a, b), shape=(1, 32, 32))",
                )
            ),
            "    wp.tile_store(C, wp.tile_squeeze(c), offset=(i * 32, j * 32))",
        ),
        reason="double buffers of 4096 bytes lie in C's memory",
        expected=lambda a, b: 1 - a[:, :160] @ b[:160],
        differentiable=False,
        has_half=False,
    ),
    "the return form, subtracted with a factor that is computed before the loop": Form(
        kernel(ONES, "x = 1.0 + float(A.shape[1] - 319)", ranged(product="c -= wp.tile_matmul(a, b, alpha=x)"), STORE),
        reason="double buffers of 4096 bytes",
        expected=lambda a, b: 1 - 2 * (a @ b),
        has_half=False,
    ),
    "the return form, with a start value in registers": Form(
        kernel(
            "c = wp.tile_ones(shape=(32, 32), dtype=wp.float32)", ranged(product="c += wp.tile_matmul(a, b)"), STORE
        ),
        reason="double buffers of 4096 bytes",
        expected=lambda a, b: a @ b + 1,
    ),
    "the return form, in Warp's unrolled loop": Form(
        kernel(START, loop("for k in range(3):", "k * 16", product="c += wp.tile_matmul(a, b)"), STORE),
        state="as_warp",
        code="unrolled_new_tile",
        expected=lambda a, b: a[:, :48] @ b[:48],
    ),
    "two loops that use the same names": Form(
        kernel(START, OTHER, RANGE, ranged(product="wp.tile_matmul(a, b, d)"), *STORE_SUM),
        expected=lambda a, b: 2 * (a @ b),
        loops=2,
    ),
    "two loops that use the same names, in a loop": Form(
        kernel(
            START,
            OTHER,
            "for part in range(A.shape[0] // 32):",
            *(
                indented(loop("for k in range(A.shape[1] // 32):", f"{k} * 16", product=f"wp.tile_matmul(a, b, {c})"))
                for c, k in (("c", "(part * 10 + k)"), ("d", "((1 - part) * 10 + k)"))
            ),
            *STORE_SUM,
        ),
        expected=lambda a, b: 2 * (a @ b),
        loops=2,
        differentiable=False,
    ),
    "a name that the loop changes and that is read later": Form(
        kernel(START, *(line.format(k="0") for line in (LOAD_A, LOAD_B)), RANGE, ODD, STORE),
        state="register_accumulators",
        code="replaced_tile",
        expected=lambda a, b: a @ b + a[:, -16:] @ b[-16:],
        differentiable=False,
    ),
    "a name that the loop changes and reads first": Form(
        kernel(
            START,
            *(line.format(k="0") for line in (LOAD_A, LOAD_B)),
            "for k in range(0, A.shape[1], 16):",
            *(f"    {line}" for line in (ODD, LOAD_A.format(k="k"), LOAD_B.format(k="k"))),
            STORE,
        ),
        state="register_accumulators",
        code="no_loaded_operand",
        expected=lambda a, b: a @ b + a[:, :16] @ b[:16] - a[:, -16:] @ b[-16:],
        differentiable=False,
    ),
    "forward substitution in a tile": Form(
        substitution("range(0, A.shape[0], 16)", "range(0, p, 16)"),
        state="register_accumulators",
        code="moving_view",
        expected=substituted(range(0, 64, 16), lambda p: range(0, p, 16)),
        differentiable=False,
        has_half=False,
    ),
    "backward substitution in a tile": Form(
        substitution("range(A.shape[0] - 16, -1, -16)", "range(p + 16, A.shape[0], 16)"),
        state="register_accumulators",
        code="moving_view",
        expected=substituted(range(48, -1, -16), lambda p: range(p + 16, 64, 16)),
        differentiable=False,
        has_half=False,
    ),
    "a flat load": Form(
        kernel(
            "flat = wp.array(ptr=B.ptr, shape=(B.shape[0] * B.shape[1],), dtype=wp.float32)",
            START.replace("(32, 32)", "(32, 64)"),
            "for k in range(0, A.shape[1], 8):",
            "    a = wp.tile_load(A, shape=(32, 8), offset=(i * 32, k), storage='shared')",
            "    rows = wp.tile_load(flat, shape=512, offset=k * 64, storage='shared')",
            "    b = wp.tile_reshape(rows, shape=(8, 64))",
            "    wp.tile_matmul(a, b, c)",
            "half = wp.tile_view(c, shape=(32, 32), offset=(0, j * 32))",
            STORE.replace("C, c", "C, half"),
        ),
        reason="double buffers of 3072 bytes lie in C's memory",
        differentiable=False,
        has_half=False,
    ),
    "fixed views of loaded tiles": Form(
        kernel(
            START,
            "row = i * 32",
            "for k in range(0, A.shape[1], 16):",
            "    rows = wp.tile_load(A, shape=(64, 16), offset=(0, k), storage='shared')",
            "    columns = wp.tile_load(B, shape=(16, 64), offset=(k, 0), storage='shared')",
            "    a = wp.tile_view(rows, shape=(32, 16), offset=(row, 0))",
            "    b = wp.tile_view(columns, shape=(16, 32), offset=(0, j * 32))",
            "    wp.tile_matmul(a, b, c)",
            STORE,
        ),
        reason="double buffers of 4096 bytes lie in C's memory",
    ),
    "an array is written": Form(
        kernel(START, RANGE + "\n    if k == 0:\n        wp.atomic_add(C, 63, 63, wp.float32(0.0))", STORE),
        state="register_accumulators",
        code="writes_array",
    ),
    "a loaded tile is used": Form(
        kernel(START, RANGE + "\n    s = wp.tile_sum(a)", STORE), state="register_accumulators", code="works_on_tile"
    ),
    "products in two branches": Form(
        kernel(START, ranged(product=f"if k % 32 == 0:\n        {ODD}\n    else:\n        {ODD}"), STORE),
        state="register_accumulators",
        code="products_in_branches",
    ),
    "unrolled": Form(
        kernel(START, loop("for k in range(3):", "k * 16"), STORE),
        reason="Warp unrolls the loop, so that each iteration has tiles of its own",
        expected=lambda a, b: a[:, :48] @ b[:48],
    ),
    "unrolled, with a start value": Form(
        kernel(ONES, loop("for k in range(3):", "k * 16"), STORE),
        reason="Warp unrolls the loop, so that each iteration has tiles of its own",
        expected=lambda a, b: a[:, :48] @ b[:48] + 1,
    ),
    "unrolled in a loop": Form(
        kernel(
            START,
            "for part in range(A.shape[1] // 32):\n    for step in range(2):\n        k = (part * 2 + step) * 16\n"
            + INNER,
            STORE,
        ),
        reason="Warp unrolls the loop, so that each iteration has tiles of its own",
    ),
}
FORMS = SPELLINGS | MORE | NATIVE_FORMS | COMPUTED_FORMS


def reordered(a: Matrix) -> Matrix:
    """The columns at ``k // 2 * 16 + k % 2 * 16``, in order."""
    return np.concatenate([a[:, k // 2 * 16 + k % 2 * 16 :][:, :16] for k in range(K // 16)], axis=1)


def transposed_tiles(c: Matrix) -> Matrix:
    """C with each tile transposed."""
    return np.block([[c[i : i + 32, j : j + 32].T for j in (0, 32)] for i in (0, 32)])


def in_half(text: str) -> str:
    """The source of a form whose arrays A and B are float16, so that its loops may load into stages."""
    for name in "AB":
        text = text.replace(f"{name}: wp.array2d(dtype=wp.float32)", f"{name}: wp.array2d(dtype=wp.float16)")
    return text
