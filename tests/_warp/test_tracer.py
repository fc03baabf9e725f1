"""Traces of real kernels."""

from typing import Any

import pytest

from tests._warp.generate import generate, loops_of, operations_named, trace_of
from tests.integration.helpers import load
from tests.loop_forms import FORMS
from tests.loop_texts import RANGE, START, STORE, kernel, loop
from warp_tiles.codegen.operations import Array, Effect, Operation, Product, Scalar, Tile
from warp_tiles.codegen.trace import Branch, FunctionTrace

pytestmark = pytest.mark.usefixtures("enabled")


def trace_kernel(*lines: str, label: str = "multiply", **options: Any) -> FunctionTrace:
    return trace_of(load(kernel(*lines, **options)), label)


def result(operation: Operation) -> Tile:
    (tile,) = operation.results
    assert isinstance(tile, Tile)
    return tile


def test_arrays_and_scalars() -> None:
    function = trace_of(load(FORMS["bounds from a shape"].text))
    first, second = operations_named(function, "tile_load")
    assert [value for value in first.operands if isinstance(value, Array)] == [Array("var_A", True, "adj_A")]
    assert [value for value in second.operands if isinstance(value, Array)] == [Array("var_B", True, "adj_B")]
    constants = [
        value.constant for value in operations_named(function, "tile_zeros")[0].values if isinstance(value, Scalar)
    ]
    assert "shared" in constants


# ---- tiles


def test_an_array_in_a_variable_has_no_shared_memory() -> None:
    text = (
        "@wp.kernel\n"
        "def multiply(A: wp.array3d[wp.float32], B: wp.array3d[wp.float32], C: wp.array3d[wp.float32]):\n"
        "    z, i, j = wp.tid()\n    a_z = A[z]\n    b_z = B[z]\n    c_z = C[z]\n"
        "    c = wp.tile_zeros(shape=(32, 32), dtype=wp.float32, storage='shared')\n"
        "    for k in range(0, A.shape[2], 16):\n"
        "        a = wp.tile_load(a_z, shape=(32, 16), offset=(i * 32, k), storage='shared')\n"
        "        b = wp.tile_load(b_z, shape=(16, 32), offset=(k, j * 32), storage='shared')\n"
        "        wp.tile_matmul(a, b, c)\n"
        "    wp.tile_store(c_z, c, offset=(i * 32, j * 32))\n"
    )
    function = trace_of(load(text))
    assert [size for _, size in function.frame] == [4096, 2048, 2048]


def test_storage_that_is_decided_later() -> None:
    function = trace_kernel("c = wp.tile_zeros(shape=(32, 32), dtype=wp.float32)", RANGE, STORE)
    assert result(operations_named(function, "tile_zeros")[0]).owner, "the product needs it in shared memory"
    function = trace_kernel(START, RANGE, "r = wp.tile_ones(shape=(32, 32), dtype=wp.float32)", STORE)
    unused = result(operations_named(function, "tile_ones")[0])
    assert (unused.storage, unused.owner) == ("register", False)


@pytest.mark.parametrize(
    ("code", "dense"),
    [
        ("wp.tile_transpose(c)", False),
        ("wp.tile_view(c, offset=(0, 0), shape=(16, 32))", True),
        ("wp.tile_view(c, offset=(0, 0), shape=(32, 16))", False),
        ("wp.tile_reshape(c, shape=(16, 64))", True),
    ],
)
def test_views_have_the_memory_of_their_tile(code: str, dense: bool) -> None:
    function = trace_kernel(START, RANGE, f"d = {code}", STORE)
    c = result(operations_named(function, "tile_zeros")[0])
    view = next(one for one in function.operations() if one.effect is Effect.ALIAS)
    assert result(view).memory == c.memory
    assert not result(view).owner
    assert result(view).dense is dense


@pytest.mark.parametrize(
    ("more", "alpha", "beta"),
    [
        ("", 1.0, 1.0),
        (", alpha=2.0", 2.0, 1.0),
        (", alpha=wp.float32(2.0), beta=wp.float32(0.0)", 2.0, 0.0),
        (", beta=C[0, 0]", 1.0, None),
        (", alpha=C[0, 0]", None, 1.0),
    ],
)
def test_factors(more: str, alpha: float | None, beta: float | None) -> None:
    function = trace_kernel(START, RANGE.replace("(a, b, c)", f"(a, b, c{more})"), STORE)
    (product,) = operations_named(function, "tile_matmul")
    assert product.product == Product(0, alpha, beta)


# ---- loops and branches


@pytest.mark.parametrize("kind", ["break", "continue"])
def test_jumps(kind: str) -> None:
    function = trace_kernel(
        START, loop("for k in range(0, A.shape[1], 16):", "k", more=("if k == 32:", f"    {kind}")), STORE
    )
    (jump,) = operations_named(function, kind)
    assert jump.effect is Effect.NONE
    (around,) = (node for node in loops_of(function)[0].nodes if isinstance(node, Branch))
    assert around.wait is not None, "loads are pending before the condition"
    assert jump.wait is None, "no load is pending after it"


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_statement_after_a_loop_can_wait_for_a_load_before_it(is_loaded: bool) -> None:
    loaded = "c = wp.tile_load(C, shape=(32, 32), offset=(i * 32, j * 32), storage='shared')"
    body = loop("for k in range(0, A.shape[1], 16):", "k")
    function = trace_kernel(loaded if is_loaded else START, body, STORE)
    (store,) = operations_named(function, "tile_store")
    assert (store.wait is not None) == is_loaded, "the loop may have no iterations"


def test_a_return() -> None:
    function = trace_kernel(START, "if i > 7:\n    return", RANGE, STORE)
    (leave,) = operations_named(function, "return")
    assert leave.effect is Effect.LEAVES


# ---- functions

FUNCTIONS = """
@wp.func
def number(k: int):
    return k * 16
@wp.func
def sum_of(x: Any):
    return wp.tile_sum(x)
@wp.func
def writes(C: wp.array2d(dtype=wp.float32)):
    C[0, 0] = 1.0
@wp.func
def calls_writes(C: wp.array2d(dtype=wp.float32)):
    writes(C)
@wp.func_native("WP_TILE_SYNC();")
def native(k: int): ...
@wp.func
def calls_native(k: int):
    native(k)
    return k + 1
@wp.func_native("return k;")
def expression(k: wp.uint64) -> wp.uint64: ...
@wp.func_native("return k;", replay_snippet="return f(k);")
def replayed(k: wp.uint64) -> wp.uint64: ...
@wp.func_native("C.data[0] = 1.0f;")
def of_array(C: wp.array2d(dtype=wp.float32)): ...
@wp.func_native("return 1;")
def of_tile(c: wp.tile(dtype=wp.float32, shape=(32, 32))) -> int: ...
"""


def test_functions_have_labels_and_the_effects_of_their_operations() -> None:
    lines = ("n = number(i)", "s = sum_of(c)", "writes(C)", "calls_writes(C)", "native(i)")
    lines += ("x = calls_native(i)", "y = replayed(expression(wp.uint64(i)))", "of_array(C)", "z = of_tile(c)")
    text = kernel(START, RANGE, *lines, STORE, above=FUNCTIONS)
    generated = generate(load(text))
    function = generated.trace.functions["multiply"]
    calls = [one for one in function.operations() if one.name.endswith("()")]
    found = {one.name.removesuffix("()"): (one.callee, one.effect) for one in calls}
    expected = {
        "number": Effect.NONE, "sum_of": Effect.TILES, "writes": Effect.WRITES, "calls_writes": Effect.WRITES,
        "native": Effect.ORDERED, "calls_native": Effect.ORDERED, "expression": Effect.NONE,
        "replayed": Effect.UNKNOWN, "of_array": Effect.UNKNOWN, "of_tile": Effect.UNKNOWN,
    }  # fmt: skip
    assert {name: effect for name, (_, effect) in found.items()} == expected
    for name in ("number", "sum_of", "writes", "calls_writes"):
        assert found[name][0] == name
        assert generated.trace.kernels_of[name] == ("multiply",)
    (call,) = (one for _, one in generated.trace.operations() if one.callee == "sum_of")
    assert call.operands == (result(operations_named(function, "tile_zeros")[0]),)


def test_instances_of_a_generic_function_have_separate_labels() -> None:
    above = FUNCTIONS + "\n\n@wp.func\ndef twice(x: Any):\n    return x + x\n"
    trace = generate(load(kernel(START, RANGE, "s = twice(i)", "t = twice(1.5)", STORE, above=above))).trace
    labels = [one.callee for one in trace.functions["multiply"].operations() if one.name == "twice()"]
    assert labels == ["twice", "twice#2"]
    assert set(labels) <= set(trace.functions)


def test_generated_adjoints_are_recorded() -> None:
    for backward in (True, False):
        text = kernel(START, RANGE, STORE, options=f"(enable_backward={backward})")
        generated = generate(load(text))
        assert generated.trace.reversed == ({"multiply"} if backward else set())
        assert generated.called == ({0} if backward else set())
