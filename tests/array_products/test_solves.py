"""``warp_tiles.cholesky`` and ``warp_tiles.solve`` on the CPU: values, views, info, gradients and errors."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warp as wp

import warp_tiles
from benchmarks.speed.cubin import stack_bytes
from tests.array_products.cases import LAYOUTS, Values, on, values_of, zeros
from tests.array_products.solve_cases import (
    cholesky_gradient,
    factor_of,
    folded,
    gradient,
    info_of,
    matrices,
    read_triangle,
    spoiled,
    symmetric,
)
from tests.nightly import some
from warp_tiles.array_products import solve_choice
from warp_tiles.array_products.call import lower_view
from warp_tiles.array_products.prepared_solves import SolveCall, prepare_solve
from warp_tiles.array_products.solve_choice import SolveProblem, choose_solve, configs
from warp_tiles.array_products.solve_kernels import ThreadKernel, fits_registers, thread_kernel
from warp_tiles.gemm.problem import DTYPE_BYTES

F64, F32 = wp.float64, wp.float32
LARGE = 150  # several tiles
SIZES = [1, 5, 16, 30, 64, LARGE]


@pytest.mark.parametrize(("n", "upper"), some([(n, upper) for upper in (False, True) for n in SIZES], 5, "slow"))
def test_factors(n: int, upper: bool) -> None:
    a = matrices(n, n, 2)
    expected = factor_of(a, upper)
    for a_layout, out_layout in itertools.product(LAYOUTS, LAYOUTS):
        given = LAYOUTS[a_layout](read_triangle(a, upper), F64)
        out = LAYOUTS[out_layout](np.full(a.shape, np.nan), F64)
        assert warp_tiles.cholesky(given, out, upper=upper) is out
        np.testing.assert_allclose(values_of(out), expected, rtol=0, atol=1e-13)
    single = warp_tiles.cholesky(on(a[1], F64), upper=upper)
    np.testing.assert_allclose(values_of(single), expected[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("n", "upper"), some([(n, upper) for n in (5, LARGE, 64) for upper in (False, True)], 3, "slow")
)
def test_solutions(n: int, upper: bool) -> None:
    a = matrices(n, n, 2)
    factor = factor_of(a, upper)
    for columns, layout in zip((0, 1, 2, 8, 40), itertools.cycle(LAYOUTS)):
        b = np.random.default_rng(columns).normal(size=(2, n, max(1, columns)))
        expected = np.linalg.solve(a, b)
        laid_out = LAYOUTS[layout]
        right = on(b[..., 0], F64) if columns == 0 else laid_out(b, F64)
        expected = expected[..., 0] if columns == 0 else expected
        found = warp_tiles.solve(laid_out(read_triangle(a, upper), F64), right, upper=upper)
        np.testing.assert_allclose(values_of(found), expected, rtol=0, atol=1e-12)
        given = laid_out(read_triangle(factor, upper), F64)
        assert warp_tiles.solve(given, right, right, upper=upper, factored=True) is right
        np.testing.assert_allclose(values_of(right), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_drawn_calls() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        n, batch, columns = (int(random.integers(1, most)) for most in (65, 6, 41))
        upper, in_place = bool(random.integers(2)), bool(random.integers(2))
        names = random.choice(list(LAYOUTS), 3)
        a, b = matrices(int(random.integers(99)), n, batch), random.normal(size=(batch, n, columns))
        given = LAYOUTS[names[0]](read_triangle(a, upper), F64)
        right = LAYOUTS[names[1]](b, F64)
        out = right if in_place else LAYOUTS[names[2]](np.full(b.shape, np.nan), F64)
        info = wp.full(batch, 7, dtype=int, device="cpu")
        warp_tiles.solve(given, right, out, upper=upper, info=info)
        case = (n, batch, columns, upper, in_place, names)
        np.testing.assert_allclose(values_of(out), np.linalg.solve(a, b), rtol=0, atol=1e-12, err_msg=str(case))
        assert not info.numpy().any(), case


@pytest.mark.parametrize("n", some([30, LARGE], 1, "slow"))
def test_float32_and_one_matrix(n: int) -> None:
    a, b = matrices(3, n), np.random.default_rng(1).normal(size=n)
    found = warp_tiles.solve(on(a), on(b))
    assert found.dtype is F32
    assert found.shape == (n,)
    np.testing.assert_allclose(values_of(found), np.linalg.solve(a, b), rtol=0, atol=1e-5)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", some([16, LARGE], 1, "slow"))
def test_info_is_that_of_lapack(n: int, upper: bool) -> None:
    orders = [0, 1, n // 2, n, 2, 0]
    a = spoiled(matrices(1, n, len(orders)), orders)
    a[5, :2, :2] = 1.0  # the second minor is exactly zero
    assert info_of(a) == [*orders[:-1], 2]
    info = wp.full(len(orders), 7, dtype=int, device="cpu")
    found = warp_tiles.cholesky(on(a, F64), upper=upper, info=info)
    assert info.numpy().tolist() == [*orders[:-1], 2]
    np.testing.assert_allclose(values_of(found)[0], factor_of(a[0], upper), rtol=0, atol=1e-13)
    info.fill_(7)
    warp_tiles.solve(on(a, F64), on(np.ones((len(orders), n)), F64), upper=upper, info=info)
    assert info.numpy().tolist() == [*orders[:-1], 2]
    a[0, n - 1, n - 1] = np.nan
    warp_tiles.cholesky(on(a, F64), upper=upper, info=info)
    assert info.numpy()[0] == n


def test_in_place() -> None:
    a = matrices(1, LARGE, 2)
    array = on(a, F64)
    assert warp_tiles.cholesky(array, array) is array
    np.testing.assert_allclose(values_of(array), factor_of(a, False), rtol=0, atol=1e-13)
    array = on(a, F64)
    warp_tiles.cholesky(array, array[:], upper=True)  # another view of the same elements
    np.testing.assert_allclose(values_of(array), factor_of(a, True), rtol=0, atol=1e-13)


def test_a_repeated_call() -> None:
    a, out, info = on(matrices(1, 5), F64), on(np.zeros((5, 5)), F64), wp.full(1, 7, dtype=int, device="cpu")
    for scale in (1.0, 4.0):
        a.assign(scale * matrices(1, 5))
        assert warp_tiles.cholesky(a, out, info=info) is out
        np.testing.assert_allclose(values_of(out), scale**0.5 * factor_of(matrices(1, 5), False), rtol=0, atol=1e-13)
    with pytest.raises(TypeError, match="info is of type int"):
        warp_tiles.cholesky(a, out, info=0)  # type: ignore[arg-type]
    b = on(np.ones(5), F64)
    for scale in (1.0, 4.0):
        b.fill_(scale)
        warp_tiles.solve(out, b, b, factored=True)
        expected = np.linalg.solve(4.0 * matrices(1, 5), scale * np.ones(5))
        np.testing.assert_allclose(values_of(b), expected, rtol=0, atol=1e-13)


# ---- one thread for each matrix

MANY = 7  # matrices, as many as no other test has


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_choice, "LEAST_BATCHES", {16: MANY})
    assert choose_solve(SolveProblem("solve", "float32", 16, MANY, 4), None).config.form == "thread"


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("n", some([5, 16, *(n for n in range(1, 16) if n != 5)], 2, "slow"))
def test_small_matrices(n: int, dtype: Any) -> None:
    tolerance = {"rtol": 0, "atol": 1e-5 if dtype is F32 else 1e-12}
    a, info = matrices(n, n, MANY), wp.full(MANY, 7, dtype=int, device="cpu")
    for upper, (first, second) in itertools.product((False, True), itertools.product(LAYOUTS.values(), repeat=2)):
        given, factor = first(read_triangle(a, upper), dtype), second(np.full(a.shape, np.nan), dtype)
        warp_tiles.cholesky(given, factor, upper=upper, info=info)
        np.testing.assert_allclose(values_of(factor), factor_of(a, upper), **tolerance)
        assert not info.numpy().any()
        for columns in (0, 3):
            b = np.random.default_rng(columns).normal(size=(MANY, n, max(1, columns)))
            expected = np.linalg.solve(a, b) if columns else np.linalg.solve(a, b)[..., 0]
            right = second(b, dtype) if columns else on(b[..., 0], dtype)
            found = warp_tiles.solve(given, right, upper=upper, info=info)
            np.testing.assert_allclose(values_of(found), expected, **tolerance)
            assert warp_tiles.solve(factor, right, right, upper=upper, factored=True) is right
            np.testing.assert_allclose(values_of(right), expected, **tolerance)
        warp_tiles.cholesky(given, given, upper=upper, info=info)
        np.testing.assert_allclose(values_of(given), factor_of(a, upper), **tolerance)


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("n", some([5, 16, *(n for n in range(1, 16) if n != 5)], 2, "slow"))
def test_info_of_small_matrices(n: int) -> None:
    orders = [0, 1, n, (n + 1) // 2, 0, 1, 0]
    a = spoiled(matrices(n, n, MANY), orders)
    a[6, n - 1, n - 1], a[5, 0, 0] = np.nan, 0.0
    for upper in (False, True):
        info = wp.full(MANY, 7, dtype=int, device="cpu")
        found = warp_tiles.cholesky(on(a, F64), upper=upper, info=info)
        assert info.numpy().tolist() == [*orders[:6], n]
        np.testing.assert_allclose(values_of(found)[[0, 4]], factor_of(a[[0, 4]], upper), rtol=0, atol=1e-12)
        info.fill_(7)
        warp_tiles.solve(on(a, F64), on(np.ones((MANY, n, 0)), F64), upper=upper, info=info)  # no right-hand sides
        assert info.numpy().tolist() == [*orders[:6], n]
    small = on(np.full((MANY, 1, 1), 1e-310), F64)  # subnormal
    warp_tiles.cholesky(small, info=info)
    assert info.numpy().tolist() == [1] * MANY


@pytest.mark.usefixtures("in_threads")
def test_threads_and_blocks_compute_the_same() -> None:
    a, out = on(matrices(1, 5, MANY), F64), [on(np.full((MANY, 5, 5), np.nan), F64) for _ in range(2)]
    for in_threads, factor in zip((True, False), out):
        call = SolveCall(lower_view(a, upper=False), lower_view(factor, upper=False))
        prepared = prepare_solve(call, a.device, None if in_threads else "block")
        (kernel,) = (step.launch.launch.kernel for step in prepared.steps)
        assert kernel.key.endswith("solve_in_thread") == in_threads
        prepared.run(a, factor, None, None, None)
    np.testing.assert_allclose(values_of(out[0]), values_of(out[1]), rtol=0, atol=1e-14)


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("upper", [False, True])
def test_gradients_of_small_matrices(upper: bool) -> None:
    a, b = matrices(1, 3, MANY), np.random.default_rng(2).normal(size=(MANY, 3, 2))
    seed, lower = np.random.default_rng(1).normal(size=a.shape), factor_of(a, False)
    given = on(read_triangle(a, upper), F64, requires_grad=True), on(b, F64, requires_grad=True)
    (found,) = taped(lambda x: warp_tiles.cholesky(x, upper=upper), seed, given[0])
    expected = cholesky_gradient(lower, seed.swapaxes(1, 2) if upper else seed)
    np.testing.assert_allclose(found, expected.swapaxes(1, 2) if upper else expected, rtol=0, atol=1e-11)
    of_a, of_b = taped(lambda x, y: warp_tiles.solve(x, y, upper=upper), seed[..., :2], *given)
    np.testing.assert_allclose(of_b, np.linalg.solve(a, seed[..., :2]), rtol=0, atol=1e-12)
    outer = -of_b @ np.linalg.solve(a, b).swapaxes(1, 2)
    np.testing.assert_allclose(of_a, folded(outer, upper), rtol=0, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [0, 1])
@pytest.mark.parametrize(("dtype", "n"), [("float32", 16), ("float64", 8), ("float64", 12), ("float64", 16)])
def test_registers_of_small_matrices(dtype: str, n: int, columns: int, tmp_path: Path) -> None:
    problem = SolveProblem("solve" if columns else "factor", dtype, n, 1 << 20, columns)  # type: ignore[arg-type]
    threads, solves = configs(problem, 90)["thread"].threads, columns > 0
    in_registers = fits_registers(n, DTYPE_BYTES[problem.dtype])
    key = ThreadKernel(problem.dtype, n, columns, threads, True, in_registers, True, not solves, solves, True)
    module = thread_kernel(key).module
    wp.set_module_options({"block_dim": threads}, module=module)
    wp.compile_aot_module(module, arch=90, module_dir=tmp_path, use_ptx=False)
    (cubin,) = tmp_path.glob("*.cubin")
    assert set(stack_bytes(cubin.read_bytes()).values()) == {0}  # nothing is spilled


def test_nothing_to_do() -> None:
    info = wp.full(0, 7, dtype=int, device="cpu")
    assert warp_tiles.cholesky(on(np.zeros((0, 3, 3))), info=info).shape == (0, 3, 3)
    info = wp.full(2, 7, dtype=int, device="cpu")
    assert warp_tiles.cholesky(on(np.zeros((2, 0, 0))), info=info).shape == (2, 0, 0)
    assert info.numpy().tolist() == [0, 0]
    assert warp_tiles.solve(on(np.zeros((2, 0, 0))), on(np.zeros((2, 0, 3)))).shape == (2, 0, 3)
    assert warp_tiles.solve(on(np.eye(3)), on(np.zeros((3, 0)))).shape == (3, 0)
    info = wp.full(1, 7, dtype=int, device="cpu")
    warp_tiles.solve(on(-np.eye(3)), on(np.zeros((3, 0))), info=info)
    assert info.numpy().tolist() == [1]


# ---- gradients


def taped(function: Any, result_gradient: Values, *arrays: Any) -> list[Values]:
    """The gradients of arrays, which hold ones before the backward pass."""
    for array in arrays:
        array.grad.fill_(1.0)
    with wp.Tape() as tape:
        out = function(*arrays)
    out.grad = on(result_gradient, out.dtype)
    tape.backward()
    assert not out.grad.numpy().any()  # the call overwrote what was there
    found = [values_of(array.grad) - 1.0 for array in arrays]
    tape.zero()
    assert not any(array.grad.numpy().any() for array in arrays)
    return found


@pytest.mark.parametrize("upper", [False, True])
def test_gradients_of_factors(upper: bool) -> None:
    a = matrices(1, 5, 2)
    seed = np.random.default_rng(1).normal(size=a.shape)  # also of the zeros, where it does not count
    call = lambda x: warp_tiles.cholesky(x, upper=upper)  # noqa: E731
    (found,) = taped(call, seed, on(read_triangle(a, upper), F64, requires_grad=True))
    expected = gradient(lambda x: float(np.sum(seed * factor_of(symmetric(x, upper), upper))), a)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("factored", [False, True])
@pytest.mark.parametrize("upper", [False, True])
def test_gradients_of_solutions(upper: bool, factored: bool) -> None:
    a, b = matrices(1, 5, 2), np.random.default_rng(2).normal(size=(2, 5, 3))
    given = read_triangle(factor_of(a, upper) if factored else a, upper)
    seed = np.random.default_rng(1).normal(size=b.shape)

    def value(x: Values, y: Values) -> float:
        half = np.triu(x) if upper else np.tril(x)
        other = half.swapaxes(1, 2)
        whole = (other @ half if upper else half @ other) if factored else symmetric(x, upper)
        return float(np.sum(seed * np.linalg.solve(whole, y)))

    arrays = on(given, F64, requires_grad=True), on(b, F64, requires_grad=True)
    found = taped(lambda x, y: warp_tiles.solve(x, y, upper=upper, factored=factored), seed, *arrays)
    clean = np.nan_to_num(given)
    np.testing.assert_allclose(found[0], gradient(lambda x: value(x, b), clean), rtol=0, atol=1e-8)
    np.testing.assert_allclose(found[1], gradient(lambda y: value(clean, y), b), rtol=0, atol=1e-8)


@pytest.mark.slow
def test_gradients_of_several_tiles() -> None:
    a, b = matrices(1, LARGE), np.random.default_rng(2).normal(size=LARGE)
    lower, seed = factor_of(a, False), np.random.default_rng(3).normal(size=a.shape)
    (found,) = taped(warp_tiles.cholesky, seed, on(a, F64, requires_grad=True))
    np.testing.assert_allclose(found, cholesky_gradient(lower, seed), rtol=0, atol=1e-11)
    arrays = on(a, F64, requires_grad=True), on(b, F64, requires_grad=True)
    of_a, of_b = taped(warp_tiles.solve, seed[0], *arrays)
    np.testing.assert_allclose(of_b, np.linalg.solve(a, seed[0]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(of_a, folded(-np.outer(of_b, np.linalg.solve(a, b)), False), rtol=0, atol=1e-12)


def test_a_factor_and_its_solutions_on_one_tape() -> None:
    a, b = matrices(1, 5), np.random.default_rng(2).normal(size=5)
    arrays = on(a, F64, requires_grad=True), on(b, F64, requires_grad=True)
    seed = np.random.default_rng(1).normal(size=5)
    together = taped(warp_tiles.solve, seed, *arrays)
    apart = taped(lambda x, y: warp_tiles.solve(warp_tiles.cholesky(x), y, factored=True), seed, *arrays)
    for one, other in zip(together, apart):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)


def test_only_one_operand_has_a_gradient() -> None:
    a, b = matrices(1, 5), np.ones(5)
    seed = np.ones(5)
    right = on(b, F64, requires_grad=True)
    (found,) = taped(lambda y: warp_tiles.solve(on(a, F64), y), seed, right)
    np.testing.assert_allclose(found, np.linalg.solve(a, seed), rtol=0, atol=1e-13)
    with wp.Tape() as tape:
        warp_tiles.solve(on(a, F64), on(b, F64))
    assert not tape.launches


# ---- errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: warp_tiles.cholesky(zeros(3, 4)), "not square"),
        (lambda: warp_tiles.cholesky(zeros(3)), "1 dimensions"),
        (lambda: warp_tiles.cholesky(zeros(3, 3, dtype=wp.float16)), "use float32 or float64"),
        (lambda: warp_tiles.cholesky(zeros(3, 3), zeros(3, 4)), r"result has shape \(3, 3\) and dtype float32"),
        (lambda: warp_tiles.cholesky(zeros(3, 3), zeros(3, 3, dtype=F64)), "result has .* dtype float32"),
        (lambda: warp_tiles.cholesky(zeros(3, 3), info=zeros(1)), r"shape \(1,\) and dtype int32"),
        (lambda: warp_tiles.cholesky(zeros(2, 3, 3), info=zeros(1, dtype=int)), r"shape \(2,\) and dtype int32"),
        (lambda: warp_tiles.cholesky(zeros(3, 3), zeros(1, 3).reshape((3,))), "1 dimensions"),
        (lambda: warp_tiles.solve(zeros(3, 3), zeros(4)), "do not fit"),
        (lambda: warp_tiles.solve(zeros(2, 3, 3), zeros(3, 3)), "do not fit"),
        (lambda: warp_tiles.solve(zeros(3, 3), zeros(2, 3, 1)), "3 dimensions"),
        (lambda: warp_tiles.solve(zeros(3, 3), zeros(3, dtype=F64)), "different dtypes"),
        (lambda: warp_tiles.solve(zeros(3, 3), zeros(3), factored=True, info=zeros(1, dtype=int)), "a is factored"),
        (lambda: overlapping(), "overlaps out"),
        (lambda: broadcast(), "elements share memory"),
        (lambda: solved_in_broadcast(), "elements share memory"),
    ],
)
def test_arguments_that_do_not_fit(call: Any, message: str) -> None:
    with pytest.raises(warp_tiles.MatmulError, match=message):
        call()


def overlapping() -> None:
    memory = zeros(5, 3)
    warp_tiles.cholesky(memory[:3], memory[1:4])


def broadcast() -> None:
    out = wp.array(ptr=zeros(3).ptr, shape=(3, 3), strides=(0, 4), dtype=F32, device="cpu")
    warp_tiles.cholesky(zeros(3, 3), out)


def solved_in_broadcast() -> None:
    b = wp.array(ptr=zeros(3).ptr, shape=(3, 2), strides=(4, 0), dtype=F32, device="cpu")
    warp_tiles.solve(zeros(3, 3), b, b)


def test_solutions_must_not_overlap_the_matrix() -> None:
    memory = zeros(4, 3)
    for call in (lambda: warp_tiles.solve(memory[:3], memory[3]), lambda: warp_tiles.solve(zeros(3, 3), memory[0])):
        call()
    with pytest.raises(warp_tiles.MatmulError, match="overlaps out"):
        warp_tiles.solve(memory[:3], zeros(3), memory[2])
    with pytest.raises(warp_tiles.MatmulError, match=r"b has .* overlaps out"):
        warp_tiles.solve(zeros(3, 3), memory[0:3], memory[1:4])


def test_other_types() -> None:
    with pytest.raises(TypeError, match="a is of type ndarray"):
        warp_tiles.cholesky(np.eye(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="info is of type list"):
        warp_tiles.cholesky(zeros(3, 3), info=[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["lower", 1, None, np.ones(2)], ids=["text", "number", "None", "array"])
def test_flags_are_true_or_false(value: Any) -> None:
    with pytest.raises(TypeError, match=r"upper is .*, and must be True or False"):
        warp_tiles.cholesky(zeros(3, 3), upper=value)
    for flags in ({"upper": value}, {"factored": value}):
        with pytest.raises(TypeError, match="must be True or False"):
            warp_tiles.solve(zeros(3, 3), zeros(3), **flags)
    eye = on(np.eye(3), F64)
    assert np.array_equal(warp_tiles.cholesky(eye, upper=np.True_).numpy(), np.eye(3))


def test_results_in_place_have_no_gradient() -> None:
    a = on(matrices(1, 5), F64, requires_grad=True)
    b = on(np.ones(5), F64, requires_grad=True)
    with wp.Tape() as tape:
        for call in (lambda: warp_tiles.cholesky(a, a), lambda: warp_tiles.solve(a, b, b)):
            with pytest.raises(warp_tiles.MatmulError, match="in place of an operand"):
                call()
    assert not tape.launches


def test_gradients_that_share_memory_are_refused_before_anything_is_written() -> None:
    one = on(np.eye(3), F32, requires_grad=True)
    layout = {"shape": (2, 3, 3), "strides": (0, 12, 4), "dtype": F32, "device": "cpu"}
    a = wp.array(ptr=one.ptr, grad=wp.array(ptr=one.grad.ptr, **layout), **layout)
    out, b = on(np.full((2, 3, 3), 7.0), F32, requires_grad=True), zeros(2, 3)
    x = on(np.full((2, 3), 7.0), F32, requires_grad=True)
    with wp.Tape():
        with pytest.raises(warp_tiles.MatmulError, match="the gradient of a has shape"):
            warp_tiles.cholesky(a, out)
        with pytest.raises(warp_tiles.MatmulError, match="the gradient of a has shape"):
            warp_tiles.solve(a, b, x)
    assert (out.numpy() == 7.0).all()
    assert (x.numpy() == 7.0).all()
