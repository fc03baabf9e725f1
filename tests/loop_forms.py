"""Common forms of one loop of products, with the expected plan and result. Several test modules use them.

Each form is a kernel ``multiply(A, B, C)`` of 32x32 tiles over K = 320 in steps of 16, in float32, and computes
``expected(A, B)``. A and B are arrays of 64 x 320 and 320 x 64 elements; a transposed B has 64 x 320.
"""

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
    TWO_BUFFERS,
    Form,
    K,
    Matrix,
    even_steps,
    form,
    indented,
    kernel,
    loop,
    product,
    ranged,
    steps,
    with_code,
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


def stored(name: str) -> str:
    """The statement that stores a tile of another name in place of C."""
    return STORE.replace("C, c", f"C, {name}")


def even(a: Matrix, b: Matrix) -> Matrix:
    """The product of every other step."""
    return even_steps(a) @ even_steps(b.T).T


def plus_one(a: Matrix, b: Matrix) -> Matrix:
    return a @ b + 1


def doubled(a: Matrix, b: Matrix) -> Matrix:
    return 2 * (a @ b)


def by_step(k: str) -> str:
    """A loop that counts steps, with the offset ``k`` of a step."""
    return loop("for k in range(A.shape[1] // 16):", k)


# the eleven forms in the first table of this project
SPELLINGS: dict[str, Form] = {
    "bounds from a shape": form(START, RANGE, STORE),
    "an extra k // 2": form(
        START, by_step("k // 2 * 16 + k % 2 * 16"), STORE, expected=lambda a, b: reordered(a) @ reordered(b.T).T
    ),
    "a constant range": form(START, loop("for k in range(20):", "k * 16"), STORE),
    "a function computes offsets": form(START, by_step("row_of(k)"), STORE),
    "exclusive or in an index": form(START, by_step("(k ^ 1) * 16"), STORE),
    "B transposed": form(
        START, with_transposed_b(ranged(product=TRANSPOSED)), STORE,
        reason="fma multiplies 4 stages of 4096 bytes", b_transposed=True, stages=4,
    ),
    "while": form(
        START, "k = int(0)", loop("while k < A.shape[1]:", "k") + "\n    k += 16", STORE, differentiable=False
    ),
    "a sum after the loop": form(
        START, RANGE, "d = c + wp.tile_ones(shape=(32, 32), dtype=wp.float32)", stored("d"), expected=plus_one
    ),
    "a map after the loop": form(START, RANGE, "d = wp.tile_map(plus_one, c)", stored("d"), expected=plus_one),
    "in a function": form("c = product(A, B, i, j)", STORE, above=FUNCTION.format(kind="wp.float32")),
    "in a generic function": form("c = product(A, B, i, j)", STORE, above=FUNCTION.format(kind="Any")),
}  # fmt: skip

ONE_IN_REGISTERS = "c = wp.tile_ones(shape=(32, 32), dtype=wp.float32)"
NESTED = """for part in range(A.shape[{outer}] // 32):
    for step in range({inner}):
        k = (part * {by} + step) * 16
"""
COMPUTED_ALPHA = "x = float(C.shape[0]) / float(C.shape[1] + C.shape[0])"
THREE_STEPS = loop("for k in range(3):", "k * 16")
LOADED = [line.format(k="0") for line in (LOAD_A, LOAD_B)]
STORE_IN_FUNCTION = f"""
@wp.func
def store_sum(
    A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32), i: int, j: int,
    d: Any,
):
{indented(START, RANGE, "e = wp.tile_map(wp.add, c, d)", stored("e"))}

"""
WAITING = """
@wp.func_native("WP_TILE_SYNC();")
def wait_with(values: wp.array2d(dtype=Any)): ...

"""
FORWARD_ONLY = {"differentiable": False, "has_half": False}
NEW_TILE_IN_SUM = with_code("as_warp", "new_tile_in_sum")


def share(a: Matrix, b: Matrix) -> float:
    """The value of ``COMPUTED_ALPHA``."""
    return a.shape[0] / (a.shape[0] + b.shape[1])


MORE: dict[str, Form] = {
    "into a parameter": form(START, "add_product(A, B, i, j, c)", STORE, above=INTO_PARAMETER),
    "into a parameter that holds values": form(
        ONES, "add_product(A, B, i, j, c)", STORE, above=INTO_PARAMETER, reason=EXTRA, expected=plus_one
    ),
    "a start value": form(ONES, RANGE, STORE, reason=EXTRA, expected=plus_one),
    "nested": form(START, NESTED.format(outer=0, inner="A.shape[1] // 32", by=10) + INNER, STORE, differentiable=False),
    "two sums": form(START, OTHER, ranged(product=f"{ODD}\n    wp.tile_matmul(a, b, d)"), *STORE_SUM, expected=doubled),
    "two products of one C": product(f"{ODD}\n{ODD}", expected=doubled),
    "two products, three tiles": form(
        START, OTHER,
        ranged(
            product=f"{ODD}\n    e = wp.tile_load(B, shape=(16, 32), offset=(k, (1 - j) * 32), storage='shared')\n"
            "    wp.tile_matmul(a, e, d)"
        ),
        "f = c + d", stored("f"),
        reason="double buffers of 6144 bytes lie in C's memory",
        expected=lambda a, b: a @ b + a @ np.roll(b, 32, axis=1),
    ),
    "a product under a condition": product(
        f"if k % 32 == 0:\n    {ODD}", **with_code("register_accumulators", "loaded_in_other_branch"), expected=even
    ),
    "loads and product under a condition": form(
        START, "for k in range(0, A.shape[1], 16):\n    if k % 32 == 0:\n" + INNER, STORE, expected=even
    ),
    "break before the product": product(
        ODD, more=("if k == 160:", "    break"), expected=lambda a, b: a[:, :160] @ b[:160], differentiable=False
    ),
    "break after the product": product(
        f"{ODD}\nif k == 160:\n    break", expected=lambda a, b: a[:, :176] @ b[:176], differentiable=False
    ),
    "continue between loads and product": product(
        ODD, more=("if k % 32 == 0:", "    continue"), expected=lambda a, b: a @ b - even(a, b), differentiable=False
    ),
    "continue between two products": product(
        f"{ODD}\nif k % 32 == 0:\n    continue\n{ODD}", **with_code("register_accumulators", "jump_between_products"),
        expected=lambda a, b: 2 * (a @ b) - even(a, b), differentiable=False,
    ),
    "a view in a loop whose last iteration multiplies nothing": form(
        START, with_transposed_b(ranged(more=("if k % 32 == 16:", "    continue"), product=TRANSPOSED)), STORE,
        expected=even, b_transposed=True, differentiable=False,
    ),
    "a tile of A that stays": form(
        START, LOADED[0], "for k in range(0, A.shape[1], 16):", indented(LOAD_B.format(k="k"), ODD), STORE,
        reason="double buffers of 2048 bytes lie in C's memory",
        expected=lambda a, b: sum(a[:, :16] @ b[k : k + 16] for k in range(0, K, 16)),
    ),
    "a struct's member bounds it": form(
        START, "sizes = Sizes()", "sizes.k = A.shape[1]", loop("for k in range(0, sizes.k, 16):", "k"), STORE
    ),
    "an offset from an element of an array": form(
        START, loop("for k in range(20):", "k * 16 + int(A[0, 0] * A[0, 0]) * 0"), STORE
    ),
    "C is stored in the loop": form(
        START, f"{RANGE}\n    {STORE}", **with_code("as_warp", "stored"), differentiable=False
    ),
    "a copy of C": form(
        START, "d = wp.tile_transpose(c)", RANGE, stored("d"),
        reason=TWO_BUFFERS, expected=lambda a, b: transposed_tiles(a @ b), differentiable=False,
    ),
    "alpha": product("wp.tile_matmul(a, b, c, alpha=2.0)", expected=doubled),
    "alpha of -1, with a start value": product(
        "wp.tile_matmul(a, b, c, alpha=-1.0)", start=ONES, reason=EXTRA, expected=lambda a, b: 1 - a @ b
    ),
    "alpha of 1 and of -0.5, with a start value": product(
        f"{ODD}\nwp.tile_matmul(a, b, c, alpha=-0.5)", start=ONES, **with_code("as_warp", "another_alpha"),
        expected=lambda a, b: 1 + 0.5 * (a @ b),
    ),
    "an alpha that changes": form(
        START, "x = float(2.0)", ranged(product="wp.tile_matmul(a, b, c, alpha=wp.float32(x))\n    x = x + 1.0"), STORE,
        **with_code("as_warp", "unknown_alpha"), expected=lambda a, b: steps(lambda k: 2 + k, a, b),
        differentiable=False,
    ),
    "an alpha that is computed before": form(
        START, COMPUTED_ALPHA, ranged(product="wp.tile_matmul(a, b, c, alpha=x)"), STORE,
        expected=lambda a, b: (a @ b) * share(a, b),
    ),
    "an alpha that is computed before, with a start value": form(
        ONES, COMPUTED_ALPHA, ranged(product="wp.tile_matmul(a, b, c, alpha=x)"), STORE,
        reason=EXTRA, expected=lambda a, b: 1 + (a @ b) * share(a, b),
    ),
    "an infinite alpha, and no iteration": form(
        START, "x = 1.0 / float(A.shape[1] // 100000)",
        loop("for k in range(0, A.shape[1] // 100000, 16):", "k", product="wp.tile_matmul(a, b, c, alpha=x)"), STORE,
        expected=lambda a, b: np.zeros((a.shape[0], b.shape[1])), differentiable=False,
    ),
    "an alpha that is computed in the loop": product(
        "x = 1.0 + float(k)\nwp.tile_matmul(a, b, c, alpha=x)", **with_code("as_warp", "unknown_alpha"),
        expected=lambda a, b: steps(lambda k: 1 + 16 * k, a, b), differentiable=False,
    ),
    "an alpha that is converted": product("wp.tile_matmul(a, b, c, alpha=float(int(2.7)))", expected=doubled),
    "a jump before the difference": product(
        "p = wp.tile_matmul(a, b)\nif k == 32:\n    continue\nc -= p", **NEW_TILE_IN_SUM,
        expected=lambda a, b: a[:, 32:48] @ b[32:48] - a @ b, differentiable=False,
    ),
    "beta": product(
        "wp.tile_matmul(a, b, c, beta=-1.0)", **with_code("as_warp", "beta"),
        expected=lambda a, b: steps(lambda k: (-1) ** (19 - k), a, b),
    ),
    "a difference": product(
        "c -= wp.tile_matmul(a, b)", start=ONES, reason=TWO_BUFFERS, expected=lambda a, b: 1 - a @ b
    ),
    "a difference, with alpha": product(
        "c -= wp.tile_matmul(a, b, alpha=-2.0)", reason=TWO_BUFFERS, expected=doubled
    ),
    "a difference that is assigned": product(
        "c = c - wp.tile_matmul(a, b)", start=ONES,
        reason=TWO_BUFFERS, expected=lambda a, b: 1 - a @ b, has_half=False,
    ),
    "a sum that is assigned, with a start value in registers": product(
        "p = wp.tile_matmul(a, b)\nc = p + c", start=ONE_IN_REGISTERS, reason=TWO_BUFFERS, expected=plus_one
    ),
    "a difference from the product that is assigned": product(
        "c = wp.tile_matmul(a, b) - c", start=ONES, **with_code("as_warp", "new_tile"),
        expected=lambda a, b: 1 + steps(lambda k: (-1) ** (19 - k), a, b),
    ),
    "a difference that is assigned and leaves the loop early": product(
        "c = c - wp.tile_matmul(a, b)\nif k == 160:\n    break", start=ONES,
        **NEW_TILE_IN_SUM, expected=lambda a, b: 1 - a[:, :176] @ b[:176], **FORWARD_ONLY,
    ),
    "a difference that is read before it is assigned": form(
        ONES, START.replace("c =", "e ="), ranged(product="d = c - wp.tile_matmul(a, b)\n    e += d\n    c = d"), STORE,
        **NEW_TILE_IN_SUM, expected=lambda a, b: 1 - a @ b, **FORWARD_ONLY,
    ),
    "the return form": product("c += wp.tile_matmul(a, b)", reason=TWO_BUFFERS),
    "the return form, added to a view": form(
        START, "v = wp.tile_reshape(c, shape=(32, 32))", ranged(product="v += wp.tile_matmul(a, b)"), STORE,
        reason=TWO_BUFFERS, differentiable=False,
    ),
    "the return form, reshaped and added to a flat tile": form(
        START.replace("c =", "flat =").replace("(32, 32)", "1024"),
        ranged(product="flat += wp.tile_reshape(wp.tile_matmul(a, b), shape=(1024,))"),
        "c = wp.tile_reshape(flat, shape=(32, 32))", STORE, has_half=False,
    ),
    "the return form, reshaped and subtracted from a tile in registers, first in no iteration": form(
        "for part in range(0, A.shape[1], 160):",
        "    c = wp.tile_ones(shape=(1, 32, 32), dtype=wp.float32)",
        indented(
            loop(
                "for k in range(0, part, 16):", "k",
                product="c = c - wp.tile_reshape(wp.tile_matmul(a, b), shape=(1, 32, 32))",
            )
        ),
        "    wp.tile_store(C, wp.tile_squeeze(c), offset=(i * 32, j * 32))",
        expected=lambda a, b: 1 - a[:, :160] @ b[:160], **FORWARD_ONLY,
    ),
    "the return form, subtracted with a factor that is computed before the loop": form(
        ONES, "x = 1.0 + float(A.shape[1] - 319)", ranged(product="c -= wp.tile_matmul(a, b, alpha=x)"), STORE,
        reason=TWO_BUFFERS, expected=lambda a, b: 1 - 2 * (a @ b), has_half=False,
    ),
    "the return form, with a start value in registers": product(
        "c += wp.tile_matmul(a, b)", start=ONE_IN_REGISTERS, reason=TWO_BUFFERS, expected=plus_one
    ),
    "the return form, in Warp's unrolled loop": form(
        START, loop("for k in range(3):", "k * 16", product="c += wp.tile_matmul(a, b)"), STORE,
        **with_code("as_warp", "unrolled_new_tile"), expected=lambda a, b: a[:, :48] @ b[:48],
    ),
    "two loops that use the same names": form(
        START, OTHER, RANGE, ranged(product="wp.tile_matmul(a, b, d)"), *STORE_SUM, expected=doubled, loops=2
    ),
    "two loops that use the same names, in a loop": form(
        START, OTHER, "for part in range(A.shape[0] // 32):",
        *(
            indented(loop("for k in range(A.shape[1] // 32):", f"{k} * 16", product=f"wp.tile_matmul(a, b, {c})"))
            for c, k in (("c", "(part * 10 + k)"), ("d", "((1 - part) * 10 + k)"))
        ),
        *STORE_SUM, expected=doubled, loops=2, differentiable=False,
    ),
    "a name that the loop changes and that is read later": form(
        START, *LOADED, RANGE, ODD, STORE, **with_code("register_accumulators", "replaced_tile"),
        expected=lambda a, b: a @ b + a[:, -16:] @ b[-16:], differentiable=False,
    ),
    "a name that the loop changes and reads first": form(
        START, *LOADED, "for k in range(0, A.shape[1], 16):",
        indented(ODD, LOAD_A.format(k="k"), LOAD_B.format(k="k")), STORE,
        **with_code("register_accumulators", "no_loaded_operand"),
        expected=lambda a, b: a @ b + a[:, :16] @ b[:16] - a[:, -16:] @ b[-16:], differentiable=False,
    ),
    "forward substitution in a tile": Form(
        substitution("range(0, A.shape[0], 16)", "range(0, p, 16)"),
        **with_code("register_accumulators", "moving_view"),
        expected=substituted(range(0, 64, 16), lambda p: range(0, p, 16)), **FORWARD_ONLY,
    ),
    "backward substitution in a tile": Form(
        substitution("range(A.shape[0] - 16, -1, -16)", "range(p + 16, A.shape[0], 16)"),
        **with_code("register_accumulators", "moving_view"),
        expected=substituted(range(48, -1, -16), lambda p: range(p + 16, 64, 16)), **FORWARD_ONLY,
    ),
    "a flat load": form(
        "flat = wp.array(ptr=B.ptr, shape=(B.shape[0] * B.shape[1],), dtype=wp.float32)",
        START.replace("(32, 32)", "(32, 64)"),
        "for k in range(0, A.shape[1], 8):",
        "    a = wp.tile_load(A, shape=(32, 8), offset=(i * 32, k), storage='shared')",
        "    rows = wp.tile_load(flat, shape=512, offset=k * 64, storage='shared')",
        "    b = wp.tile_reshape(rows, shape=(8, 64))",
        "    wp.tile_matmul(a, b, c)",
        "half = wp.tile_view(c, shape=(32, 32), offset=(0, j * 32))", stored("half"),
        reason="double buffers of 3072 bytes lie in C's memory", **FORWARD_ONLY,
    ),
    "fixed views of loaded tiles": form(
        START, "row = i * 32",
        "for k in range(0, A.shape[1], 16):",
        "    rows = wp.tile_load(A, shape=(64, 16), offset=(0, k), storage='shared')",
        "    columns = wp.tile_load(B, shape=(16, 64), offset=(k, 0), storage='shared')",
        "    a = wp.tile_view(rows, shape=(32, 16), offset=(row, 0))",
        "    b = wp.tile_view(columns, shape=(16, 32), offset=(0, j * 32))",
        "    wp.tile_matmul(a, b, c)", STORE,
    ),
    "an array is written": product(
        f"{ODD}\nif k == 0:\n    wp.atomic_add(C, 63, 63, wp.float32(0.0))",
        **with_code("register_accumulators", "writes_array"),
    ),
    "a loaded tile is used": product(
        f"{ODD}\ns = wp.tile_sum(a)", **with_code("register_accumulators", "works_on_tile")
    ),
    "products in two branches": product(
        f"if k % 32 == 0:\n    {ODD}\nelse:\n    {ODD}", **with_code("register_accumulators", "products_in_branches")
    ),
    "unrolled": form(START, THREE_STEPS, STORE, code="unrolled_tiles", expected=lambda a, b: a[:, :48] @ b[:48]),
    "unrolled, with a start value": form(
        ONES, THREE_STEPS, STORE, code="unrolled_tiles", expected=lambda a, b: a[:, :48] @ b[:48] + 1
    ),
    "unrolled in a loop": form(START, NESTED.format(outer=1, inner=2, by=2) + INNER, STORE, code="unrolled_tiles"),
    "unrolled, around a condition": form(
        START, "for k in range(1):\n    if i < 99:\n" + INNER, STORE,
        **with_code("register_accumulators", "unrolled_condition"), expected=lambda a, b: a[:, :16] @ b[:16],
    ),
    "unrolled, with two products of the same loads": form(
        START, *LOADED, loop("for k in range(3):", "k * 16", product=f"{ODD}\n    {ODD}"), STORE,
        **with_code("register_accumulators", "unrolled_without_loads"),
        expected=lambda a, b: 2 * (a[:, :48] @ b[:48]),
    ),
    "a return": product(
        f"{ODD}\nif k > A.shape[1]:\n    return", **with_code("as_warp", "returns_within"), differentiable=False
    ),
    "a moving view of a loaded tile": form(
        START, "for k in range(0, A.shape[1], 16):",
        "    rows = wp.tile_load(A, shape=(64, 16), offset=(0, k), storage='shared')",
        indented(LOAD_B.format(k="k"), "a = wp.tile_view(rows, shape=(32, 16), offset=(k % 32, 0))", ODD), STORE,
        **with_code("register_accumulators", "moving_view_of_loaded_tile"),
        expected=lambda a, b: np.tile(rows(a, b), (2, 1)), differentiable=False,
    ),
    "a native function of an array that waits for the block": product(
        f"wait_with(A)\n{ODD}", above=WAITING, **with_code("register_accumulators", "constant_unknown_effects"),
    ),
    "an element of a tile that stays": form(
        "s = wp.tile_ones(shape=8, dtype=wp.float32, storage='shared')", START,
        "for k in range(0, A.shape[1], 16):",
        indented("t = wp.tile_extract(s, 0)", LOAD_A.format(k="k"), LOAD_B.format(k="k"), ODD), STORE,
        **with_code("register_accumulators", "constant_works_on_tile"),
    ),
    "a load into registers": product(
        f"r = wp.tile_load(A, shape=(32, 16), offset=(i * 32, k), storage='register')\n{ODD}",
        **with_code("register_accumulators", "loaded_to_registers"),
    ),
    "a loaded tile that is used after the loop": form(
        START, RANGE, "s = wp.tile_sum(a)", STORE, **with_code("register_accumulators", "loaded_tile_used"),
        differentiable=False,
    ),
    "a loaded tile that is not multiplied": product(
        f"e = wp.tile_load(B, shape=(16, 32), offset=(k, 0), storage='shared')\n{ODD}",
        **with_code("register_accumulators", "loaded_tile_not_multiplied"),
    ),
    "another loop before the store": form(
        START, RANGE, "n = int(0)", "for q in range(A.shape[1]):\n    n += q", STORE
    ),
    "a store that reads a view": form(
        START, "v = wp.tile_transpose(c)", RANGE, "d = wp.tile_map(wp.add, c, v)", stored("d"),
        expected=lambda a, b: a @ b + transposed_tiles(a @ b), reason=TWO_BUFFERS, differentiable=False,
    ),
    "a store that reads a tile of the caller": form(
        ONES.replace("c =", "d ="), "store_sum(A, B, C, i, j, d)", above=STORE_IN_FUNCTION, expected=plus_one
    ),
}  # fmt: skip
FORMS = SPELLINGS | MORE | NATIVE_FORMS | COMPUTED_FORMS


def reordered(a: Matrix) -> Matrix:
    """The columns at ``k // 2 * 16 + k % 2 * 16``, in order."""
    return np.concatenate([a[:, k // 2 * 16 + k % 2 * 16 :][:, :16] for k in range(K // 16)], axis=1)


def rows(a: Matrix, b: Matrix) -> Matrix:
    """The sum of products of rows 0 to 31 of A in even steps, and of rows 16 to 47 in odd ones."""
    return np.asarray(sum(a[k % 32 :][:32, k : k + 16] @ b[k : k + 16] for k in range(0, K, 16)))


def transposed_tiles(c: Matrix) -> Matrix:
    """C with each tile transposed."""
    return np.block([[c[i : i + 32, j : j + 32].T for j in (0, 32)] for i in (0, 32)])


def in_half(text: str) -> str:
    """The source of a form whose arrays A and B are float16, so that its loops may load into stages."""
    for name in "AB":
        text = text.replace(f"{name}: wp.array2d(dtype=wp.float32)", f"{name}: wp.array2d(dtype=wp.float16)")
    return text
