"""Small kernels on the emulator: elementwise builtins, coordinates, one kernel of each builtin, blocked solves."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warp_tiles
from tests.blocked_solves import BLOCKS, MOST, matrices, solution, text
from tests.emulator.generated import EmulatedKernels, Generated, Kernels, Runs, build, generate
from tests.emulator.memory import Values
from tests.emulator.module import Machine
from tests.integration.helpers import ARRAYS, WARP_VERSION, gemm, load
from tests.integration.solvers import CALLS, solver
from warp_tiles.codegen.operations import ELEMENTWISE, Elementwise

pytestmark = pytest.mark.skipif(WARP_VERSION < (1, 19), reason="headers and launches of Warp 1.19 are emulated")

# ---- tile_axpy changes its second tile, before stores and in the reverse pass; CHANGES has other places

SCALED = """
@wp.kernel
def {stored}({arrays}, S: wp.array2d(dtype=wp.float32)):
    a = wp.tile_load(A, shape=(16, 16))
    b = wp.tile_load(B, shape=(16, 16))
    s = wp.tile_load(S, shape=(16, 16))
    p = wp.tile_matmul(a, b) + s
    wp.tile_axpy({arguments})
    wp.tile_store(C, {stored})
"""


def test_the_second_tile_changes(machine: Machine, tmp_path: Path) -> None:
    arguments = {"p": "2.0, s, p", "s": "2.0, p, s"}  # by the tile that is stored
    text = "".join(SCALED.format(arrays=ARRAYS, arguments=given, stored=name) for name, given in arguments.items())
    axpy, random = build(machine, tmp_path / "m", text), np.random.default_rng(1)
    a, b, s, g = (random.integers(-3, 4, (16, 16)).astype(np.float32) for _ in range(4))
    for name, expected in (("p", 3 * s + a @ b), ("s", s + 2 * (a @ b + s))):
        assert np.array_equal(axpy.run(name, (1,), [a, b, np.full((16, 16), np.nan, np.float32), s])["C"], expected)
        gradients = [np.zeros_like(a), np.zeros_like(b), g, np.zeros_like(s)]
        arrays = axpy.run(name, (1,), [a, b, np.zeros_like(s), s], gradients)
        assert np.array_equal(arrays["adj_S"], 3 * g)
        assert np.array_equal(arrays["adj_A"], (g if name == "p" else 2 * g) @ b.T)


# ---- each elementwise builtin, with its record, and with a record that has a name alone

INTEGERS = "{{x}} = wp.tile_astype(wp.tile_astype({{x}}, dtype=wp.int32){}, dtype=wp.float32)"
WITH = " {} wp.tile_astype({{y}}, dtype=wp.int32)"
STATEMENTS: dict[str, tuple[str, Callable[[Values, Values], Values]]] = {  # that change x
    "add": ("{x} = {x} + {y}", np.add),
    "add_inplace": ("{x} += {y}", np.add),
    "bit_and": (INTEGERS.format(WITH.format("&")), np.bitwise_and),
    "bit_or": (INTEGERS.format(WITH.format("|")), np.bitwise_or),
    "bit_xor": (INTEGERS.format(WITH.format("^")), np.bitwise_xor),
    "div": ("{x} = {x} / 0.5", lambda x, y: 2 * x),
    "mul": ("{x} = {x} * {y}", np.multiply),
    "neg": ("{x} = -{x}", lambda x, y: -x),
    "sub": ("{x} = {x} - {y}", np.subtract),
    "sub_inplace": ("{x} -= {y}", np.subtract),
    "tile_astype": (INTEGERS.format(""), lambda x, y: x),
    "tile_axpy": ("wp.tile_axpy(2.0, {y}, {x})", lambda x, y: x + 2 * y),
    "tile_map": ("{x} = wp.tile_map(wp.max, {x}, {y})", np.maximum),
}
PLACES = {  # in a loop before its product and after it, and behind the loop, with x and y
    "operand": ("        {}\n        wp.tile_matmul(a, b, p)\n    wp.tile_store(C, p)", "b", "s"),
    "new tile": ("        q = wp.tile_matmul(a, b)\n        {}\n        wp.tile_store(C, q)", "q", "s"),
    "sum": ("        q = wp.tile_matmul(a, b)\n        {}\n    wp.tile_store(C, s)", "s", "q"),
    "store": ("        wp.tile_matmul(a, b, p)\n    q = p + s\n    {}\n    wp.tile_store(C, q)", "q", "s"),
}
CHANGES = """
@wp.kernel(enable_backward=False)
def {name}({arrays}, S: wp.array2d(dtype=wp.float32)):
    s = wp.tile_load(S, shape=(16, 16), storage="shared")
    p = wp.tile_zeros(shape=(16, 16), dtype=wp.float32, storage="shared")
    for k in range(A.shape[1] // 16):
        a = wp.tile_load(A, shape=(16, 16), offset=(0, k * 16), storage="shared")
        b = wp.tile_load(B, shape=(16, 16), offset=(k * 16, 0), storage="shared")
{body}
"""


def stored(place: str, name: str, a: Values, b: Values, s: Values) -> Values:
    """What a kernel of :data:`CHANGES` stores."""
    change, parts = STATEMENTS[name][1], [(a[:, k : k + 16], b[k : k + 16]) for k in (0, 16)]
    if place == "operand":
        return np.sum([x @ change(y, s) for x, y in parts], axis=0)
    if place == "new tile":
        return change(parts[1][0] @ parts[1][1], s)
    if place == "sum":
        return functools.reduce(lambda total, part: change(total, part[0] @ part[1]), parts, s)
    return change(a @ b + s, s)


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "a name alone"])
def test_changed_tiles(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    """A builtin without a statement here fails. What the record of one does not say makes no wrong number."""
    kernels = {f"{name}_{number}": (name, place) for name in ELEMENTWISE for number, place in enumerate(PLACES)}
    text = ""
    for kernel, (name, place) in kernels.items():
        if not is_known:
            monkeypatch.setitem(ELEMENTWISE, name, Elementwise(name))
        body, x, y = PLACES[place]
        body = body.format(STATEMENTS[name][0].format(x=x, y=y))
        text += CHANGES.format(name=kernel, arrays=ARRAYS, body=body)
    built = build(machine, tmp_path / "m", text)
    assert ("wt_module::store_computed<" in built.source) == is_known
    random = np.random.default_rng(1)
    a, b, s = (random.integers(-3, 4, shape) for shape in ((16, 32), (32, 16), (16, 16)))
    for kernel, (name, place) in kernels.items():
        given = (values.astype(np.float32) for values in (a, b, np.zeros_like(s), s))
        found = built.run(kernel, (1,), list(given))["C"]
        assert np.array_equal(found, stored(place, name, a, b, s)), (name, place)


# ---- the coordinates that wp.tid() returns in a module with a product

SIZES = ((5,), (3, 7), (2, 3, 5), (2, 3, 4, 5))
KERNEL = """
@wp.kernel
def coordinates_{n}(C: wp.array(dtype=wp.int32, ndim={n}), tiled: bool):
    {names} = wp.tid()
    if tiled:
        wp.tile_store(C, wp.tile_ones(shape={ones}, dtype=wp.int32), offset=({names},))
    else:
        C[{names}] += 1

"""
PRODUCT = """
@wp.kernel
def product(A: wp.array(dtype=float, ndim=2)):
    a = wp.tile_load(A, shape=(16, 16))
    wp.tile_store(A, wp.tile_matmul(a, a))
"""


@pytest.fixture(scope="module")
def compiled(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    kernels = [KERNEL.format(n=n, names=", ".join("ijkl"[:n]), ones=(1,) * n) for n in (len(sizes) for sizes in SIZES)]
    found = build(machine, tmp_path_factory.mktemp("launches") / "m", PRODUCT + "".join(kernels), 32)
    assert "wt_module::tid(_idx, dim, x, y, z, w)" in found.source
    return found


@pytest.mark.slow
@pytest.mark.parametrize("tiled", [True, False], ids=["blocks", "threads"])
@pytest.mark.parametrize("sizes", SIZES, ids=len)
def test_each_coordinate_occurs_once(compiled: Kernels, sizes: tuple[int, ...], tiled: bool) -> None:
    given = [np.zeros(sizes, dtype=np.int32), tiled]
    arrays = compiled.run(f"coordinates_{len(sizes)}", sizes, given, tiled=tiled)
    assert (arrays["C"] == 1).all()


# ---- each builtin calls its functions: without one of them, its results are wrong

TEXTS = {"tile_matmul": gemm(name="run"), **{call: solver(call, name="run") for call in CALLS}}


def without(generated: Generated, symbol: str, parameters: int) -> Generated:
    """The module with a function that returns at once in place of another one."""
    stub = f'extern "C" void {symbol}({", ".join(["void*"] * parameters)}) {{ }}'
    functions = tuple(stub if f"void {symbol}(" in unit else unit for unit in generated.functions)
    assert functions != generated.functions
    return replace(generated, functions=functions)


def results(
    machine: Machine, generated: Generated, kernel: Any, arrays: list[Any], gradients: list[Any]
) -> list[bytes]:
    """What a launch and its adjoint leave in the arrays, or their errors."""
    kernels = EmulatedKernels(machine, generated)
    outcomes = [
        kernels.forward(kernel, (1,), [array.copy() for array in arrays]),
        kernels.backward(kernel, (1,), [array.copy() for array in arrays], [array.copy() for array in gradients]),
    ]
    return [outcome.error.encode() or b"".join(v.tobytes() for v in outcome.arrays.values()) for outcome in outcomes]


@pytest.mark.slow
@pytest.mark.parametrize("builtin", TEXTS)
def test_every_function_is_needed(builtin: str, machine: Machine, tmp_path: Path) -> None:
    with warp_tiles.override(solver_gradients="own"):
        module = load(TEXTS[builtin])
        generated = generate(module, tmp_path / "m", 90, 64)
    random = np.random.default_rng(1)
    shapes = [(16, 16)] * 3 if builtin == "tile_matmul" else [(16, 16), (16, 4)]
    arrays, gradients = ([random.standard_normal(shape).astype(np.float32) for shape in shapes] for _ in range(2))
    if builtin != "tile_matmul":
        arrays[0] = arrays[0] @ arrays[0].T + 16 * np.eye(16, dtype=np.float32)
    called = dict(re.findall(r"^void (wt_\w+)\((.*)\);$", generated.source, re.M))
    assert len(called) == (3 if builtin == "tile_matmul" else 2)
    expected = results(machine, generated, module.run, arrays, gradients)
    for symbol, parameters in called.items():
        changed = without(generated, symbol, parameters.count(",") + 1)
        assert results(machine, changed, module.run, arrays, gradients) != expected, symbol


# ---- blocked factorizations, solves and inverses

THREADS = 64
BLOCKED = {"float32": 2e-5, "float64": 1e-12}  # with the tolerance


def check_blocked(kernels: Runs, n: int, size: int, count: int, dtype: str) -> None:
    """Solves and inverts some matrices of a size, in blocks of n rows."""
    a, b = matrices(size, count, dtype)
    factors, x = np.zeros_like(a), np.zeros_like(b)
    lower = np.linalg.cholesky(a[:, :size, :size].astype(np.float64))
    identity, zeros = np.eye(size, dtype=dtype), np.zeros((count, size, size), dtype)
    for name, given, output, expected in (
        (f"solve_{n}", [a, b, size, factors, x], "x", solution(a, b, size)),
        (f"invert_{n}", [lower.astype(dtype), identity, size, zeros, zeros.copy()], "inverse",
         np.linalg.inv(lower @ lower.swapaxes(1, 2))),
        (f"substitute_{n}", [lower.astype(dtype), b[:, :size, 0], size, zeros[:, 0]], "y",
         np.linalg.solve(lower, b[:, :size].astype(np.float64))[:, :, 0]),
    ):  # fmt: skip
        found = kernels.run(name, (count,), given)[output]
        np.testing.assert_allclose(found, expected, rtol=0, atol=BLOCKED[dtype], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BLOCKED)
def test_solves_and_inverses(dtype: str, machine: Machine, tmp_path: Path) -> None:
    kernels = build(machine, tmp_path / "m", text(dtype), THREADS)
    for n in BLOCKS:
        check_blocked(kernels, n, MOST, 2, dtype)


def test_the_plan_keeps_all_sums_in_registers(enabled: None) -> None:
    plan = warp_tiles.plan(load(text("float32"), block_dim=THREADS), arch=90, block_dim=THREADS)
    assert len(plan.loops) == 6 * len(BLOCKS)
    assert {loop.state for loop in plan.loops} <= {"register_accumulators", "pipelined"}
