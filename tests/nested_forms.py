"""Loops of products beside each other, in other loops and in branches. Their results are exact."""

from functools import partial

import numpy as np

from tests import loop_texts
from tests.loop_texts import LOAD_A, LOAD_B, OTHER, START, STORE, STORE_SUM, Form, indented, loop

form = partial(loop_texts.form, differentiable=False)


def again(text: str, c: str = "c") -> str:
    """A loop with other names of its tiles."""
    return text.replace("a = ", "a1 = ").replace("b = ", "b1 = ").replace("(a, b, c)", f"(a1, b1, {c})")


FIRST = loop("for s in range(0, A.shape[1] // 2, 16):", "s")
LAST = again(loop("for t in range(A.shape[1] // 2, A.shape[1], 16):", "t"))
WHOLE = loop("for s in range(0, A.shape[1], 16):", "s")
BY_HALVES = loop("for s in range(0, A.shape[1] // 2, 16):", "s + part * 160")
ONCE, IF = "for part in range(A.shape[1] // 320):", "if A.shape[0] > 1000:"
ONE_STEP = (LOAD_A.format(k="0"), LOAD_B.format(k="0"), "wp.tile_matmul(a, b, c)")
NESTED_FORMS: dict[str, Form] = {
    "two loops of one C in a loop": form(START, ONCE, indented(FIRST, LAST), STORE),
    "a product and a loop of one C in a loop": form(
        START, ONCE, indented(*ONE_STEP, again(loop("for t in range(16, A.shape[1], 16):", "t"))), STORE
    ),
    "two loops of two C in a loop": form(
        START, OTHER, ONCE, indented(WHOLE, again(WHOLE, "d")), *STORE_SUM,
        expected=lambda a, b: 2 * (a @ b),
    ),
    "an outer loop stores C": form(START, "for part in range(A.shape[1] // 160):", indented(BY_HALVES, STORE)),
    "two loops in sequence": form(START, FIRST, LAST, STORE),
    "a loop in either branch": form(START, IF, indented(WHOLE), "else:", indented(again(WHOLE)), STORE),
    "an outer loop with a break": form(
        START, "for part in range(A.shape[1]):", indented("if part == 2:", "    break", BY_HALVES), STORE
    ),
    "a branch that is not taken in one unrolled iteration": form(
        START, "for s in range(1):", indented(IF, indented(*ONE_STEP)), STORE,
        expected=lambda a, b: np.zeros((len(a), b.shape[1])),
    ),
    "a view that moves with the loop": form(
        START, "for k in range(0, A.shape[1], 8):",
        "    a0 = wp.tile_load(A, shape=(32, 16), offset=(i * 32, k // 16 * 16), storage='shared')",
        "    a = wp.tile_view(a0, offset=(0, k % 16), shape=(32, 8))",
        "    b = wp.tile_load(B, shape=(8, 32), offset=(k, j * 32), storage='shared')",
        "    wp.tile_matmul(a, b, c)", STORE,
    ),
}  # fmt: skip
