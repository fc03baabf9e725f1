"""Forms of loops that call native functions, see :mod:`tests.loop_forms`."""

from typing import Any

from tests.loop_texts import START, STORE, Form, form, loop, ranged, with_code

NATIVE = """
@wp.func_native("return n * 16;")
def step(n: {number}) -> {number}: ...


@wp.func_native("WP_TILE_SYNC(); return n * 16;")
def step_of_block(n: {number}) -> {number}: ...


@wp.func_native('''
__shared__ int calls;
WP_TILE_SYNC();
if (threadIdx.x == 0)
    calls = n == 0 ? 0 : calls + 1;
WP_TILE_SYNC();
return calls;
''')
def calls_since_zero(n: {number}) -> {number}: ...
"""
ADDRESS = """
@wp.func_native("return (uint64_t)values.data;")
def address(values: wp.array2d(dtype=wp.float32)) -> wp.uint64: ...
"""


def offset_by(expression: str, number: str, **fields: Any) -> Form:
    """A loop whose offset k is an expression of n, with native functions of a type of number."""
    offset = f"for n in range(A.shape[1] // 16):\n    k = {expression}"
    return form(START, loop(offset, "k"), STORE, above=NATIVE.format(number=number), **fields)


NATIVE_FORMS: dict[str, Form] = {
    "native functions of numbers": offset_by(
        "step(calls_since_zero(n))", "int", differentiable=False  # the reverse pass begins with the last n
    ),
    "a native function that waits for the block": offset_by("step_of_block(n)", "int"),
    "a native function of an array": form(
        START,
        ranged().replace("tile_load(A,", "tile_load(wp.array(ptr=address(A), shape=(64, 320), dtype=wp.float32),"),
        STORE, above=ADDRESS, differentiable=False, has_half=False,  # no gradient belongs to an address
    ),
    "a native function of larger numbers": offset_by(
        "int(step(calls_since_zero(wp.int64(n))))", "wp.int64",
        **with_code("register_accumulators", "unknown_effects"), differentiable=False,
    ),
}  # fmt: skip
