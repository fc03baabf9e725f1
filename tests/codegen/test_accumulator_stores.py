"""Which stores take the accumulators of a loop from registers, decided from hand-written traces."""

import pytest

from tests.codegen import traces as t
from tests.codegen.test_stages import TARGET, A, B, C, body, decided
from tests.gemm.test_main_loop import fp64, problem_of
from warp_tiles.codegen.module_code import AccumulatorStore, LoopDecision
from warp_tiles.codegen.operations import Scalar, Tile
from warp_tiles.codegen.stages import LoopTarget
from warp_tiles.codegen.trace import Node
from warp_tiles.gemm.problem import DTYPE_BYTES, DType, GemmProblem, Precision
from warp_tiles.gemm.rejected import Rejected

M, N, K = 64, 64, 32
ZEROS = t.zeros(C, hook=t.number())
E = t.register("e", rows=M, cols=N, dtype="float16")


def planned(
    *after: Node, before: tuple[Node, ...] = (ZEROS,), target: LoopTarget = TARGET
) -> AccumulatorStore | Rejected:
    """The decision about a loop with some statements before and after it."""
    return outcome(decided(*before, t.loop(*body()), *after, tiles=(C, A, B), target=target))


def outcome(decision: LoopDecision) -> AccumulatorStore | Rejected:
    """The store that takes the accumulators from registers, or the reason why C is written."""
    assert decision.accumulator_store is not None
    return decision.accumulator_store


def test_a_conditional_store() -> None:
    assert isinstance(planned(t.branch(t.store(C))), AccumulatorStore)
    assert isinstance(planned(t.branch(t.arithmetic()), t.branch(t.branch(t.store(C)))), AccumulatorStore)


STORE_REASON, LOOP_BETWEEN = Rejected("no_store"), Rejected("loop_before_store")
USES_C, TOO_FEW = Rejected("c_used", (1,)), Rejected("few_neighbours", ("float16",))


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ((t.operation("tile_sum", C, results=(E,)), t.store(E)), STORE_REASON),
        ((t.store(C), t.operation("tile_sum", C)), USES_C),
        ((t.alias(t.view("v", C), C), t.store(C)), USES_C),
        ((t.loop(t.store(C)),), LOOP_BETWEEN),
        ((t.loop(t.arithmetic()), t.store(C)), LOOP_BETWEEN),
        ((t.branch(t.loop(t.arithmetic())), t.store(C)), LOOP_BETWEEN),
    ],
)
def test_reasons_after_the_loop(after: tuple[Node, ...], reason: Rejected) -> None:
    assert planned(*after) == reason


def test_reasons_of_c() -> None:
    doubles = LoopTarget({0: fp64(M, N, K, 128)}, TARGET.families)
    for target in (TARGET, doubles):
        assert isinstance(planned(t.store(C), before=(t.load(C),), target=target), AccumulatorStore)
    start, nodes = t.load(C), (t.loop(*body()), t.store(C))
    assert outcome(decided(t.loop(start, *nodes), tiles=(C, A, B))) == USES_C  # also after the loop


@pytest.mark.parametrize("start", [ZEROS, t.load(C)], ids=["zeros", "a start value"])
def test_a_store_that_reads_a_view_of_c(start: Node) -> None:
    view = t.tile("v", M, N, memory=frozenset({"c"}))
    operation = t.compute("tile_map", Scalar("f"), C, view, result=E)
    assert planned(operation, t.store(E), before=(start, t.alias(view, C))) == Rejected("stores_view")


def of_problem(problem: GemmProblem, stored: Tile | None = None) -> AccumulatorStore | Rejected:
    """The decision about a loop of a product, whose C or a tile computed from it is stored."""
    dtype = problem.a.dtype
    a, b = t.tile("a", problem.m, problem.k, dtype), t.tile("b", problem.k, problem.n, dtype)
    c = t.tile("c", problem.m, problem.n, problem.c.dtype)
    left, right, views = a, b, []
    if problem.a.arrangement == "col_major":
        a = t.tile("a", problem.k, problem.m, dtype)
        left = t.tile("left", problem.m, problem.k, dtype, memory=a.memory, dense=False)
        views.append(t.alias(left, a))
    if problem.b.arrangement == "col_major":
        b = t.tile("b", problem.n, problem.k, dtype)
        right = t.tile("right", problem.k, problem.n, dtype, memory=b.memory, dense=False)
        views.append(t.alias(right, b))
    end = [t.store(c)] if stored is None else [t.compute("tile_astype", c, result=stored), t.store(stored)]
    nodes = t.zeros(c, hook=t.number()), t.loop(t.load(a), t.load(b), *views, t.product(left, right, c)), *end
    found = decided(*nodes, tiles=(c, a, b), target=LoopTarget({0: problem}, ("wgmma", "mma")))
    assert found.ring is not None, found.reasons
    return outcome(found)


def of(
    dtype: DType, layout: str = "rr", precision: Precision = "default", stored: Tile | None = None
) -> AccumulatorStore | Rejected:
    """The same for operands of a type, each contiguous along its rows ("r") or columns ("c")."""
    result: DType = "float64" if dtype == "float64" else "float32"
    k = 16 if DTYPE_BYTES[dtype] > 2 and precision == "default" else 32
    return of_problem(problem_of(128, 64, k, 128, 90, dtype, result, layout, precision), stored)


def test_columns_of_a_leave_a_thread_no_neighbours() -> None:
    assert of("float64", "cr") == Rejected("no_neighbours")


def test_wide_elements() -> None:
    of_vectors = t.register("vectors", rows=128, cols=64, size_bytes=128 * 64 * 12)
    assert of("float16", stored=of_vectors) == Rejected("elements_do_not_fit_vector", (2, 12))
    pairs = t.register("pairs", rows=128, cols=64, size_bytes=128 * 64 * 8)
    assert isinstance(of("float16", stored=pairs), AccumulatorStore)
    assert of("float32", stored=pairs) == Rejected("elements_do_not_fit_vector", (4, 8))


def test_narrow_results_of_products_through_registers() -> None:
    rounded = t.register("rounded", rows=128, cols=64, dtype="float16")
    assert isinstance(of("float32", "rr", "tf32"), AccumulatorStore)
    assert of("float32", "rr", "tf32", rounded) == TOO_FEW
    assert isinstance(of("float16", "rr", stored=rounded), AccumulatorStore)


def test_narrow_results_of_the_transpose_of_c() -> None:
    problem = problem_of(32, 64, 32, 128)
    rounded = t.register("rounded", rows=32, cols=64, dtype="float16")
    assert isinstance(of_problem(problem), AccumulatorStore)
    assert of_problem(problem, rounded) == TOO_FEW
