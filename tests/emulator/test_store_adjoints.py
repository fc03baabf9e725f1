"""Adjoints of stores of computed tiles that are computed in bands, on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.computed_kernels import REVERSED, SIZES, Case
from tests.emulator.generated import Kernels, Runs, build
from tests.emulator.module import Machine
from tests.nightly import some

Values = npt.NDArray[Any]
CALL = "wt_module::reverse_store<"
FUNCTIONS = """
from typing import Any

@wp.func
def square(x: wp.float32):
    return x * x

@wp.func
def product(x: wp.float32, y: wp.float32):
    return x * y + y

@wp.func
def scaled(x: wp.float32, y: wp.float32, s: wp.float32):
    return x * s + y * y

@wp.func
def store_product(C: wp.array2d(dtype=wp.{out}), c: Any, w: Any, i: int, j: int):
    wp.tile_store(C, wp.tile_astype(wp.tile_map(product, c, w), dtype=wp.{out}), offset=(i * 32, j * 32))
"""
KERNEL = """
@wp.kernel
def {name}(
    A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), V: wp.array2d(dtype=wp.float32),
    W: wp.array2d(dtype=wp.float32), S: wp.array(dtype=wp.float32), C: wp.array2d(dtype=wp.{out}), flag: int,
):
    i, j = wp.tid()
    a = wp.tile_load(A, shape=(32, 16), offset=(i * 32, 0), storage="shared")
    b = wp.tile_load(B, shape=(16, 32), offset=(0, j * 32), storage="shared")
    c = wp.tile_matmul(a, b)
    v = wp.tile_load(V, shape=(1, 32), offset=(0, j * 32), storage="shared")
    row = wp.tile_broadcast(v, shape=(32, 32))
    w = wp.tile_load(W, shape=(32, 32), offset=(i * 32, j * 32), storage="{storage}")
    s = S[j]
"""
STORE = "wp.tile_store(C, wp.tile_astype({tile}, dtype=wp.{{out}}), offset=(i * 32, j * 32))"


@dataclass(frozen=True)
class Inputs:
    """The elements of the operands that an element of C depends on, and its gradient."""

    c: Values
    row: Values
    w: Values
    s: Values
    g: Values


Gradients = dict[str, Values]


@dataclass(frozen=True)
class Form:
    """A store of a computed tile.

    Attributes:
        body: The end of its kernel.
        gradients: The gradients of the operands that each element of C contributes to.
        banded: True if the adjoint is computed in bands.
        stores: The number of stores.
        storage: That of ``w``.
    """

    body: str
    gradients: Callable[[Inputs], Gradients]
    banded: bool = True
    stores: int = 1
    storage: str = "shared"


def _product(x: Inputs) -> Gradients:
    return {"c": x.g * x.w, "w": x.g * (x.c + 1)}


def stored(tile: str, gradients: Callable[[Inputs], Gradients], *before: str, after: str = "", **fields: Any) -> Form:
    """The store of an expression, with statements before it and after it."""
    lines = [*before, STORE.format(tile=tile), *([after] if after else [])]
    return Form("\n    ".join(lines), gradients, **fields)


OF_TWO = STORE.format(tile="wp.tile_map(product, c, w)")
FORMS = {
    "type": stored("c", lambda x: {"c": x.g}),
    "sum with a row": stored("c + row", lambda x: {"c": x.g, "row": x.g}),
    "map": stored("wp.tile_map(square, c)", lambda x: {"c": 2 * x.c * x.g}),
    "map of two": Form(OF_TWO, _product),
    "map of one tile twice": stored("wp.tile_map(product, c, c)", lambda x: {"c": x.g * (2 * x.c + 1)}),
    "chain": stored(
        "wp.tile_map(square, c + row) - w",
        lambda x: {"c": 2 * (x.c + x.row) * x.g, "row": 2 * (x.c + x.row) * x.g, "w": -x.g},
    ),
    "in place": stored(
        "d * wp.float32(3.0)", lambda x: {"c": 6 * x.g, "row": 3 * x.g, "w": -3 * x.g},
        "d = c * 2.0", "d += row", "d -= w",
    ),
    "number": stored("wp.tile_map(scaled, c, w, s)", lambda x: {"c": x.g * x.s, "w": 2 * x.w * x.g, "s": x.g * x.c}),
    "views of one tile": stored(
        "c + row * wp.tile_broadcast(v, shape=(32, 32))", lambda x: {"c": x.g, "row": 2 * x.row * x.g}
    ),
    "operands share memory": stored("c * t + w", _product, "t = wp.tile_view(w, offset=(0, 0), shape=(32, 32))"),
    "in a function": Form("store_product(C, c, w, i, j)", _product),
    "registers in a function": Form("store_product(C, c, w, i, j)", _product, storage="register"),
    "registers": Form(OF_TWO, _product, banded=False, storage="register"),
    "in a branch": Form(f"if flag > 0:\n        {OF_TWO}", _product),
    "a branch returns": Form(
        f"if flag == 0:\n        return\n    {OF_TWO}\n    if flag == 2:\n        return\n    {OF_TWO}",
        _product, stores=2,
    ),
    "in a loop": Form(
        "for k in range(flag):\n"
        '        u = wp.tile_load(W, shape=(32, 32), offset=(i * 32, j * 32), storage="shared")\n        '
        + STORE.format(tile="wp.tile_map(square, u) + row"),
        lambda x: {"w": 2 * x.w * x.g, "row": x.g},
    ),
    "an operand changes": stored(
        "wp.tile_map(square, w * 2.0)", lambda x: {"w": 8 * x.w * x.g}, after="w += c", banded=False
    ),
}  # fmt: skip
TYPES = ("float16", "float32", "float64")
GRID = (2, 2)


NAMES = {form: f"form_{number}" for number, form in enumerate(FORMS)}
BOTH = ("array", "launch")


def text_of(out: str) -> str:
    """The kernels of all forms for a dtype of C."""
    kernels = (
        KERNEL.format(name=NAMES[name], out=out, storage=form.storage) + f"    {form.body.format(out=out)}\n"
        for name, form in FORMS.items()
    )
    return FUNCTIONS.format(out=out) + "".join(kernels)


@pytest.fixture(scope="module", params=some(TYPES, 2))
def kernels(
    request: pytest.FixtureRequest, machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Kernels]:
    """A dtype of C, and the kernels of all forms."""
    built = build(machine, tmp_path_factory.mktemp(request.param) / "m", text_of(request.param), names=NAMES)
    # both calls of the function have the text of the first one
    assert built.source.count(CALL) == sum(form.stores for form in FORMS.values() if form.banded) - 1
    return request.param, built


def drawn(out: str, size: str) -> tuple[list[Values], Values]:
    """The arrays of a launch, and the gradient of C."""
    rows, columns = SIZES[size]
    draw = np.random.default_rng(3)
    a, b = draw.integers(0, 2, (rows, 16)), draw.integers(0, 2, (16, columns))
    v, w = draw.integers(-1, 3, (1, columns)), draw.integers(-2, 3, (rows, columns))
    s = np.array([2, 3])
    g = draw.integers(-1, 3, (rows, columns)).astype(out)
    floats = [one.astype(np.float32) for one in (a, b, v, w, s)]
    return [*floats, np.zeros((rows, columns), dtype=out)], g


def expected(form: str, arrays: list[Values], g: Values) -> list[Values]:
    """The gradients of A, B, V, W and S."""
    a, b, v, w, s, _ = (one.astype(np.float64) for one in arrays)
    of_s = s[np.arange(g.shape[1]) // 32]
    c = a @ b
    row, numbers = np.broadcast_to(v, c.shape), np.broadcast_to(of_s, c.shape)
    found = FORMS[form].gradients(Inputs(c, row, w, numbers, g.astype(np.float64)))
    of = {name: found.get(name, np.zeros_like(c)) for name in ("c", "row", "w", "s")}
    accumulators = np.array([of["s"][:, :32].sum(), of["s"][:, 32:].sum()])
    return [of["c"] @ b.T, a.T @ of["c"], of["row"].sum(axis=0, keepdims=True), of["w"], accumulators]


def check(form: str, results: dict[str, Values], arrays: list[Values], g: Values) -> None:
    for name, values in zip("ABVWS", expected(form, arrays, g)):
        assert np.array_equal(results[f"adj_{name}"], values + 1), (form, name)
    assert not results["adj_C"].any(), form


def check_form(built: Runs, form: str, out: str) -> None:
    """Launches the adjoint of a form for each size of C."""
    for size in SIZES:
        arrays, g = drawn(out, size)
        check(form, built.run(form, GRID, [*arrays, 1], [*map(np.ones_like, arrays[:5]), g.copy(), None]), arrays, g)


@pytest.mark.slow
def test_gradients(kernels: tuple[str, Kernels]) -> None:
    out, built = kernels
    for form in FORMS:
        check_form(built, form, out)


@pytest.mark.slow
def test_branches_and_places_of_gradients(kernels: tuple[str, Kernels]) -> None:
    """Branches that are not taken, and returns before and after a store; gradients in the array, or of the launch."""
    out, built = kernels
    arrays, g = drawn(out, "whole")

    def run(form: str, flag: int, *passed_by: tuple[str, ...], of_c: Values | None = g) -> dict[str, Values]:
        gradients = [*map(np.ones_like, arrays[:5]), None if of_c is None else of_c.copy(), None]
        return built.run(form, GRID, [*arrays, flag], gradients, *passed_by)

    def is_unchanged(results: dict[str, Values]) -> bool:
        return all(np.all(results[f"adj_{name}"] == 1) for name in "ABVWS")

    for form in ("in a branch", "a branch returns"):
        results = run(form, 0)
        assert is_unchanged(results), form
        assert np.array_equal(results["adj_C"], g)
    check(form, run(form, 2), arrays, g)
    for passed_by in BOTH:
        check("chain", run("chain", 1, (passed_by,)), arrays, g)
    assert is_unchanged(run("chain", 1, of_c=None))


VIEWS: dict[str, Callable[[Values], Values]] = {
    "every second column": lambda x: np.tile(x, 2)[:, ::2],
    "rows begin in a vector": lambda x: np.tile(x, 2)[:, 1:65],
    "rows end in a vector": lambda x: x[:, :61],
}


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
def test_strided_arrays(kernels: tuple[str, Kernels], view: str) -> None:
    out, built = kernels
    of = VIEWS[view]
    arrays, g = drawn(out, "whole")
    *inputs, c = arrays
    given = np.zeros_like(g)
    given[:, : of(g).shape[1]] = of(g)
    results = built.run("chain", GRID, [*inputs, of(c), 1], [*map(np.ones_like, inputs), of(g), None])
    check("chain", results, arrays, given)


SHAPES = """
@wp.kernel
def shapes(
    A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), V: wp.array2d(dtype=wp.float32),
    C: wp.array2d(dtype=wp.float16), D: wp.array2d(dtype=wp.float16), E: wp.array2d(dtype=wp.float16),
    F: wp.array2d(dtype=wp.float16),
):
    a = wp.tile_load(A, shape=(32, 16), storage="shared")
    b = wp.tile_load(B, shape=(16, 32), storage="shared")
    c = wp.tile_matmul(a, b)
    wp.tile_store(F, wp.tile_astype(wp.tile_transpose(c), dtype=wp.float16))
    v = wp.tile_load(V, shape=(32, 1), storage="shared")
    column = wp.tile_broadcast(v, shape=(32, 24))
    row = wp.tile_broadcast(wp.tile_view(c, offset=(3, 1), shape=(1, 24)), shape=(32, 24))
    right = wp.tile_view(c, offset=(0, 8), shape=(32, 24))
    wp.tile_store(C, wp.tile_astype(column + column + row + right, dtype=wp.float16))
    wp.tile_store(D, wp.tile_astype(wp.tile_view(c, offset=(1, 1), shape=(8, 8)), dtype=wp.float16))
    wp.tile_store(E, wp.tile_astype(wp.tile_view(c, offset=(0, 4), shape=(32, 12)), dtype=wp.float16))
"""


@pytest.mark.slow
def test_shapes(machine: Machine, tmp_path: Path) -> None:
    """Threads with different columns, fewer vectors than threads, unaligned views, and rows without vectors."""
    built = build(machine, tmp_path / "m", SHAPES)
    assert built.source.count(CALL) == 3
    draw = np.random.default_rng(4)
    a, b, v, *gradients = (
        draw.integers(0, 2, shape).astype(dtype)
        for shape, dtype in (
            *(((32, 16), np.float32), ((16, 32), np.float32), ((32, 1), np.float32)),
            *(((32, 24), np.float16), ((8, 8), np.float16), ((32, 12), np.float16), ((32, 32), np.float16)),
        )
    )
    of_c = np.zeros((32, 32), dtype=np.float32)
    outputs = [np.zeros_like(one) for one in gradients]
    given = [np.zeros_like(a), np.zeros_like(b), np.zeros_like(v), *map(np.copy, gradients)]
    arrays = built.run("shapes", (1,), [a, b, v, *outputs], given)
    g, of_view, of_rows, of_transpose = (one.astype(np.float32) for one in gradients)
    of_c[3, 1:25] += g.sum(axis=0)
    of_c[:, 8:] += g
    of_c[1:9, 1:9] += of_view
    of_c[:, 4:16] += of_rows
    of_c += of_transpose.T
    assert np.array_equal(arrays["adj_V"], 2 * g.sum(axis=1, keepdims=True))
    assert np.array_equal(arrays["adj_A"], of_c @ b.T)
    assert not any(arrays[f"adj_{name}"].any() for name in "CDEF")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["rounded", "nonlinear float16"])
def test_gradients_are_those_of_warps_statements(machine: Machine, tmp_path: Path, form: str) -> None:
    """The sums of a row's gradients have another order."""
    out, text = REVERSED[form]
    banded, whole = (build(machine, tmp_path / f"wide_{wide}", text, async_copies=wide) for wide in (True, False))
    assert (banded.source.count(CALL), whole.source.count(CALL)) == (1, 0)
    for size in SIZES:
        a, b, c, _ = Case("direct", out, size).arrays()
        given = np.random.default_rng(5).integers(1, 3, c.shape).astype(out)
        gradients = [np.zeros_like(a), np.zeros_like(b), given, None]
        found, expected = (built.run("rounded", GRID, [a, b, c, 1], gradients) for built in (banded, whole))
        for name in ("adj_A", "adj_B"):
            assert np.any(expected[name] != 0)
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-4)
        assert not found["adj_C"].any()


COPY = """
@wp.kernel
def copied(A: wp.array2d(dtype=wp.float32), W: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    i = wp.tid()
    a = wp.tile_load(A, shape=(32, 32), storage="shared")
    c = wp.tile_matmul(a, a)
    w = wp.tile_load(W, shape=(48, 64), offset=(i * 48, 0){storage})
    wp.tile_store(C, w, offset=(i * 48, 0))
"""


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["register", "shared"])
def test_plain_stores_of_many_elements(machine: Machine, tmp_path: Path, storage: str) -> None:
    """48 elements of each of 64 threads: whole tiles, and tiles at an edge."""
    built = build(machine, tmp_path / "m", COPY.format(storage=f', storage="{storage}"'))
    draw = np.random.default_rng(1)
    a, of_a = np.ones((32, 32), np.float32), np.zeros((32, 32), np.float32)
    for shape in ((96, 64), (90, 62)):
        w, g, of_w = (draw.integers(-9, 10, shape).astype(np.float32) for _ in range(3))
        gradients = [of_a, of_w.copy(), g.copy()]
        arrays = built.run("copied", (2,), [a, w, np.zeros_like(w)], gradients)
        assert np.array_equal(arrays["adj_W"], of_w + g)
        assert not arrays["adj_C"].any()
