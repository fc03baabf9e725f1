"""Recorded traces of real kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests._warp.generate import all_nodes, generate, loops_of, operations_named, trace_of
from tests.integration.helpers import gemm, load
from tests.loop_forms import FORMS, RANGE, START, STORE, kernel, loop
from warp_tiles.codegen.operations import Affine, Array, Effect, Operation, Product, Scalar, Tile
from warp_tiles.codegen.trace import Branch, FunctionTrace

RANGE_FORM = FORMS["bounds from a shape"]


pytestmark = pytest.mark.usefixtures("enabled")


def trace_kernel(*lines: str, label: str = "multiply", **options: Any) -> FunctionTrace:
    return trace_of(load(kernel(*lines, **options)), label)


def result(operation: Operation) -> Tile:
    (tile,) = operation.results
    assert isinstance(tile, Tile)
    return tile


# ---- operations and values


def test_the_operations_of_a_common_kernel() -> None:
    module = load(RANGE_FORM.text)
    function = trace_of(module)
    names = ("tid", "tile_zeros", "tile_load", "tile_matmul", "tile_store")
    assert [one.name for one in function.operations() if one.name in names] == [
        *("tid", "tile_zeros", "tile_load", "tile_load", "tile_matmul", "tile_store")
    ]
    assert function.parameters == ("var_A", "var_B", "var_C")
    assert function.file == module.__file__
    lines = Path(function.file).read_text("utf-8").splitlines()
    for operation in function.operations():
        if operation.name in names:
            assert f"wp.{operation.name}(" in lines[operation.line - 1]
    (found,) = loops_of(function)
    assert lines[found.line - 1].strip().startswith("for ")


def test_arrays_and_scalars() -> None:
    function = trace_of(load(RANGE_FORM.text))
    first, second = operations_named(function, "tile_load")
    assert [value for value in first.operands if isinstance(value, Array)] == [Array("var_A", True, "adj_A")]
    assert [value for value in second.operands if isinstance(value, Array)] == [Array("var_B", True, "adj_B")]
    constants = [
        value.constant for value in operations_named(function, "tile_zeros")[0].values if isinstance(value, Scalar)
    ]
    assert "shared" in constants


def test_effects() -> None:
    function = trace_kernel(START, RANGE, "d = wp.tile_transpose(c)", "C[0, 0] = 1.0", STORE)
    expected = {
        "tid": Effect.NONE,
        "tile_zeros": Effect.TILES,
        "tile_load": Effect.TILES,
        "tile_matmul": Effect.TILES,
        "tile_transpose": Effect.ALIAS,
        "array_store": Effect.WRITES,
        "tile_store": Effect.WRITES,
        "mul": Effect.NONE,
    }
    found = {one.name: one.effect for one in function.operations()}
    assert {name: found.get(name) for name in expected} == expected


# ---- tiles


def test_tiles_that_own_their_memory() -> None:
    function = trace_of(load(RANGE_FORM.text))
    c = result(operations_named(function, "tile_zeros")[0])
    a, b = map(result, operations_named(function, "tile_load"))
    assert [(one.shape, one.size_bytes, one.dtype) for one in (a, b, c)] == [
        ((32, 16), 2048, "float32"),
        ((16, 32), 2048, "float32"),
        ((32, 32), 4096, "float32"),
    ]
    assert all(one.owner and one.dense and one.memory == {one.name} and not one.parameter for one in (a, b, c))
    (product,) = operations_named(function, "tile_matmul")
    assert product.tiles == (a, b, c)
    assert product.results == ()


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


def test_a_view_of_a_view() -> None:
    function = trace_kernel(START, RANGE, "d = wp.tile_transpose(wp.tile_transpose(c))", STORE)
    first, second = map(result, operations_named(function, "tile_transpose"))
    assert first.memory == second.memory == result(operations_named(function, "tile_zeros")[0]).memory


def test_a_parameter_has_its_own_memory() -> None:
    form = FORMS["into a parameter"]
    module = generate(load(form.text)).trace
    (product,) = operations_named(module.functions["add_product"], "tile_matmul")
    c = product.tiles[2]
    assert (c.parameter, c.owner, c.memory) == (True, False, {c.name})
    assert c.name in module.functions["add_product"].parameters


# ---- products


def test_products_have_sites_in_order() -> None:
    found = operations_named(trace_of(load(FORMS["two sums"].text)), "tile_matmul")
    assert [one.product for one in found] == [Product(0, 1.0, 1.0), Product(1, 1.0, 1.0)]


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


@pytest.mark.parametrize("value", ["1.0", "0.5"])
def test_factors_in_double_precision(value: str) -> None:
    text = RANGE_FORM.text.replace("(a, b, c)", f"(a, b, c, alpha=wp.float64({value}), beta=wp.float64(1.0))")
    function = trace_of(load(text.replace("wp.float32", "wp.float64")))
    (product,) = operations_named(function, "tile_matmul")
    assert product.product == Product(0, float(value), 1.0)


def test_the_return_form_gives_its_c() -> None:
    function = trace_of(load(gemm()), "gemm")
    (product,) = operations_named(function, "tile_matmul")
    assert product.product == Product(0, 1.0, 0.0)
    assert result(product).owner
    assert len(product.operands) == 2


# ---- loops and branches


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("bounds from a shape", ["range"]),
        ("a constant range", ["range"]),
        ("while", ["while"]),
        ("unrolled", ["unrolled"]),
        ("nested", ["range", "range"]),
        ("unrolled in a loop", ["range", "unrolled"]),
    ],
)
def test_kinds_of_loops(name: str, kinds: list[str]) -> None:
    function = trace_of(load(FORMS[name].text))
    found = loops_of(function)
    assert [one.kind for one in found] == kinds
    outer, *inner = found
    assert all(one in all_nodes(outer.nodes) for one in inner)
    for one in found:
        assert bool(one.variable) is (one.kind == "range")
    products = operations_named(function, "tile_matmul")
    assert len(products) == {"unrolled": 3, "unrolled in a loop": 2}.get(name, 1)
    assert all(one in all_nodes(found[-1].nodes) for one in products)


def test_branches() -> None:
    function = trace_of(load(FORMS["products in two branches"].text))
    (outer,) = loops_of(function)
    branches = [node for node in outer.nodes if isinstance(node, Branch)]
    assert [[one.name for one in all_nodes(found.nodes)].count("tile_matmul") for found in branches] == [1, 1]


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


@pytest.mark.parametrize("statement", ["print(i)", "assert i < 3"])
def test_statements_of_other_kinds(statement: str) -> None:
    function = trace_kernel(START, RANGE, statement, STORE)
    effects = {one.name: one.effect for one in function.operations()}
    assert effects[statement[:5] if statement[0] == "p" else "assert"] in (Effect.UNKNOWN, Effect.NONE, Effect.WRITES)


# ---- offsets


def offsets(function: FunctionTrace) -> list[Affine | None]:
    """The offsets in a function's tuples, among them those of loads."""
    return [
        value.offset
        for one in operations_named(function, "tuple")
        for value in one.operands
        if isinstance(value, Scalar)
    ]


def test_offsets_of_loads() -> None:
    function = trace_of(load(RANGE_FORM.text))
    (found,) = loops_of(function)
    row, column = operations_named(function, "tid")[0].results
    assert Affine.variable(found.variable) in offsets(function)
    assert Affine.of(0, {row.name: 32}) in offsets(function)
    assert Affine.of(0, {column.name: 32}) in offsets(function)


def test_offsets_of_sums_and_multiples() -> None:
    function = trace_kernel(START, loop("for k in range(A.shape[1] // 16):", "(k - 1) * 16 + 32"), STORE)
    (found,) = loops_of(function)
    assert Affine.of(16, {found.variable: 16}) in offsets(function)


def test_the_result_of_another_operation_is_a_variable() -> None:
    function = trace_kernel(START, loop("for k in range(A.shape[1] // 16):", "(k ^ 1) * 16"), STORE)
    (found,) = loops_of(function)
    (other,) = operations_named(function, "bit_xor")[0].results
    assert Affine.of(0, {other.name: 16}) in offsets(function)
    assert not any(found.variable in one.variables for one in offsets(function) if one is not None)


def test_a_variable_that_a_loop_assigns_has_no_offset() -> None:
    function = trace_of(load(FORMS["while"].text))
    (found,) = loops_of(function)
    (assigned,) = {
        one.operands[0].name for one in all_nodes(found.nodes) if isinstance(one, Operation) and one.name == "assign"
    }
    for operation in all_nodes(found.nodes):
        if isinstance(operation, Operation):
            for value in operation.operands:
                if isinstance(value, Scalar) and value.name == assigned:
                    assert value.offset is None


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


@wp.func_native("return;")
def native(k: int): ...
"""


def test_functions_have_labels_and_the_effects_of_their_operations() -> None:
    lines = ("n = number(i)", "s = sum_of(c)", "writes(C)", "calls_writes(C)", "native(i)")
    text = kernel(START, RANGE, *lines, STORE, above=FUNCTIONS)
    generated = generate(load(text))
    function = generated.trace.functions["multiply"]
    calls = [one for one in function.operations() if one.name.endswith("()")]
    found = {one.name.removesuffix("()"): (one.callee, one.effect) for one in calls}
    expected = {
        "number": Effect.NONE,
        "sum_of": Effect.TILES,
        "writes": Effect.WRITES,
        "calls_writes": Effect.WRITES,
        "native": Effect.UNKNOWN,
    }
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
