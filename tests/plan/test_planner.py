"""One generated module: the definitions of each site's names, the declarations, and the parts left to Warp."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen import traces as t
from tests.codegen.modules import (
    BIG,
    NO_ACCUMULATORS,
    declared,
    forms,
    functions,
    generated,
    macros,
    names_of,
    planned,
    session,
    with_settings,
    written,
)
from warp_tiles.codegen.loops import decide
from warp_tiles.codegen.module_code import DeviceFunction, LoopAccumulators, LoopDecision
from warp_tiles.codegen.pipelines import LoopTarget
from warp_tiles.codegen.prelude import PLACEHOLDER, SCALAR_FUNCTION, declaration, loop_declarations, waiting_function
from warp_tiles.codegen.trace import ModuleTrace, Session
from warp_tiles.errors import PlanError
from warp_tiles.gemm.main_loop import LoopProblem, MeasuredPipeline
from warp_tiles.gemm.pipeline import PipelineOverrides
from warp_tiles.gemm.problem import PRODUCT_ROLES, GemmProblem, Role
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.plan import planner
from warp_tiles.plan.planner import GeneratedModule, plan_module, resolve
from warp_tiles.plan.planning import STAGES, PlannedFunction, PlannedLoop

A, B, C = Role.ADJOINT_A, Role.ADJOINT_B, Role.FORWARD
SCALAR = [SCALAR_FUNCTION] * 3


# ---- names of functions


@pytest.mark.parametrize("built", [functions(BIG[C]), functions(*BIG.values())], ids=["forward", "all"])
def test_an_unused_adjoint_gets_the_forward_functions_name(built: Mapping[Any, DeviceFunction]) -> None:
    text = written(generated(session(("k", BIG))), built)
    assert names_of(text, 0) == [BIG[C].symbol] * 3
    assert declared(text) == [BIG[C].symbol]
    assert BIG[A].symbol not in text  # else the source would declare a function that is not linked


@pytest.mark.parametrize("missing", PRODUCT_ROLES)
def test_a_missing_needed_product_sends_the_whole_site_to_the_scalar_path(missing: Role) -> None:
    built = functions(*(problem for role, problem in BIG.items() if role is not missing))
    text = written(generated(session(("k", BIG)), called={0}), built)
    assert names_of(text, 0) == SCALAR
    assert "wt_gemm" not in text


def test_a_function_with_weaker_promises_keeps_its_own_name() -> None:
    weaker = BIG[C].without_alignment()
    assert weaker != BIG[C]
    text = written(generated(session(("k", BIG))), {BIG[C]: DeviceFunction(weaker.symbol, NO_ACCUMULATORS)})
    assert names_of(text, 0) == [weaker.symbol] * 3
    assert BIG[C].symbol not in text
    assert f"void {weaker.symbol}(" in text


@pytest.mark.parametrize("called", [True, False])
def test_warps_adjoint_of_a_cholesky_names_its_one_product(called: bool) -> None:
    sites = Session("module", 90, 128)
    site = sites.add("tile_cholesky", "k", {A: BIG[A]}, roles=(A,))
    module = generated(
        sites, f"    wp::adj_tile_cholesky({site.placeholder(A)}, var_0);", called={0} if called else set()
    )
    expected = BIG[A].symbol if called else SCALAR_FUNCTION
    assert macros(written(module, functions(BIG[A])))[site.placeholder(A)] == expected
    assert macros(written(module, {}))[site.placeholder(A)] == SCALAR_FUNCTION


def test_a_declaration_has_warps_pointer_types() -> None:
    problem = forms(8, 8, 8, "bfloat16")[C]
    expected = "void f(wp::float32*, wp::bfloat16*, wp::bfloat16*, wp::float32*, wp::float32*);"
    assert declaration(problem, "f") == expected
    mixed = replace(problem, a=replace(problem.a, dtype="float16"), c=replace(problem.c, dtype="float64"))
    assert declaration(mixed, "f") == "void f(wp::float64*, wp::float16*, wp::bfloat16*, wp::float64*, wp::float64*);"
    accumulators = LoopAccumulators("f", "wp::float64", 4)
    assert loop_declarations(mixed, accumulators).splitlines() == [
        "void f_add(wp::float64*, wp::float16*, wp::bfloat16*, bool);",
        "void f_finish(wp::float64*, wp::float64*, bool);",
    ]


# ---- waiting adjoints


def product_of(a: str, b: str) -> ModuleTrace:
    return t.module(t.function(t.product(t.tile(a), t.tile(b), t.tile("c"))))


def test_the_second_adjoint_of_operands_that_may_share_memory_waits() -> None:
    sites, built = session(("k", BIG)), functions(*BIG.values())
    distinct = generated(sites, called={0}, trace=product_of("a", "b"))
    shared = generated(sites, called={0}, trace=product_of("a", "a"))
    assert "_waiting" not in written(distinct, built)
    text = written(shared, built)
    assert names_of(text, 0) == [BIG[C].symbol, BIG[A].symbol, f"{BIG[B].symbol}_waiting"]
    assert text.count(waiting_function(BIG[B], BIG[B].symbol)) == 1
    assert text.index(f"void {BIG[B].symbol}(") < text.index(f"static void {BIG[B].symbol}_waiting")
    assert "_waiting" not in written(shared, {})
    assert "_waiting" not in written(generated(sites, trace=product_of("a", "a")), built), "no adjoint is called"


@pytest.mark.parametrize("has_problems", [True, False])
@pytest.mark.parametrize(("operands", "is_named"), [(("a", "a"), True), (("a", "b"), False)])
def test_a_scalar_adjoint_names_the_race_of_operands_that_may_share_memory(
    operands: tuple[str, str], is_named: bool, has_problems: bool
) -> None:
    sites = session(("k", BIG if has_problems else {}))
    module = generated(sites, called={0}, trace=product_of(*operands))
    plan = planned(module, {})
    reasons = {each.role: each.reason for each in plan.functions}
    of_plan = {(each.problem, each.role): each for each in plan.functions}
    again = plan_module(module, lambda needed: of_plan[needed.problem, needed.role], before=plan)
    assert again.functions == plan.functions, "a new plan does not name it twice"
    assert ("two adjoints may add to one gradient" in reasons[B]) == is_named
    assert "two adjoints" not in reasons[A] + reasons[C]
    assert "two adjoints" not in planned(module, functions(*BIG.values())).functions[-1].reason or not has_problems


# ---- loops and loads

LOOP_ACCUMULATORS = LoopAccumulators(BIG[C].symbol, "wp::float32", 8)


def module_with_loop(*, called: bool = False) -> GeneratedModule:
    """A module with a loop that loads two tiles and multiplies them. C has memory for both buffers."""
    a, b, c = t.tile("a", 8, 4), t.tile("b", 4, 12), t.tile("c", 8, 128)
    body = t.loop(t.load(a), t.load(b), t.product(a, b, c))
    trace = t.module(t.function(t.zeros(c), body), kernels_of={"k": ("k",)})
    return generated(session(("k", BIG)), called={0} if called else (), trace=trace)


def functions_with_sums(*roles: Role) -> dict[GemmProblem, DeviceFunction]:
    return {
        BIG[role]: DeviceFunction(BIG[role].symbol, LOOP_ACCUMULATORS if role is C else NO_ACCUMULATORS)
        for role in roles
    }


def loops_of(module: GeneratedModule, built: Mapping[GemmProblem, DeviceFunction]) -> tuple[PlannedLoop, ...]:
    return planned(module, built).loops


def test_a_plan_decides_about_each_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[LoopTarget] = []

    def count(context: Any, accumulators: Any, target: LoopTarget) -> tuple[LoopDecision, ...]:
        calls.append(target)
        return decide(context, accumulators, target)

    monkeypatch.setattr(planner, "decide", count)
    planned(module_with_loop(), functions_with_sums(C))
    assert len(calls) == 1
    planned(module_with_stages(), {})
    assert planned(module_by_wgmma(128), {}).arch_suffix == "a"
    assert [target.families for target in calls[1:]] == [("wgmma", "mma")] * 2


def test_with_a_product_on_the_scalar_path_warp_keeps_loop_and_loads() -> None:
    module = module_with_loop()
    (loop,) = loops_of(module, {})
    assert (loop.state, loop.codes) == ("as_warp", ("not_built", "few_accumulators"))
    assert loop.reason.startswith("the product takes Warp's scalar path: nothing was built; no stages: with less than ")
    text = written(module, {})
    assert "wt_module" not in text
    hooks = {body for name, body in macros(text).items() if name.startswith(("WT_AT", "WT_REPLAY_"))}
    assert hooks <= {"__VA_ARGS__", ""}


def test_with_a_missing_adjoint_warp_keeps_the_loop() -> None:
    module = module_with_loop(called=True)
    assert {loop.state for loop in loops_of(module, functions_with_sums(C, A))} == {"as_warp"}
    assert {loop.state for loop in loops_of(module, functions_with_sums(C, A, B))} == {"pipelined"}


# ---- products that loops compute

STAGED = forms(64, 64, 32)


def module_with_stages(*, called: bool = False, repeated: bool = False) -> GeneratedModule:
    a, b, c = t.tile("a", 64, 32), t.tile("b", 32, 64), t.tile("c", 64, 64)
    nodes: tuple[Any, ...] = (t.zeros(c), t.loop(t.load(a), t.load(b), t.product(a, b, c)))
    if repeated:  # the reverse pass reads C in each iteration of the loop around
        nodes = (t.loop(*nodes, t.operation("tile_sum", c)),)
    trace = t.module(t.function(*nodes), kernels_of={"k": ("k",)})
    return generated(session(("k", STAGED)), called={0} if called else (), trace=trace)


def module_by_wgmma(step: int) -> GeneratedModule:
    """A loop with so many columns of A in each iteration. Without wgmma, long ones prefer four stages to two blocks."""
    a, b, c = t.tile("a", 64, step, "float16"), t.tile("b", step, 128, "float16"), t.tile("c", 64, 128)
    product = replace(forms(64, 128, step, "float16")[C], c=forms(64, 128, step)[C].c)
    frame = tuple((tile.name, tile.size_bytes) for tile in (a, b, c))
    function = t.function(t.zeros(c), t.loop(t.load(a), t.load(b), t.product(a, b, c)), frame=frame)
    trace = t.module(function, kernels_of={"k": ("k",)})
    return generated(session(("k", {C: product})), trace=trace)


def scalar(function: PlannedFunction) -> PlannedFunction:
    return replace(function, provider="scalar")


@pytest.mark.parametrize(("step", "stages"), [(32, 4), (128, 2)])
def test_a_plan_without_wgmma_has_the_memory_of_the_plan_before(step: int, stages: int) -> None:
    module = module_by_wgmma(step)
    before = plan_module(module, scalar)
    (loop,) = before.loops
    assert (loop.instruction, loop.resident_blocks) == ("wgmma", 2 if step == 128 else 4)
    extra = loop.shared_bytes - 2 * step * (64 + 128) - 4 * 64 * 128
    assert before.reserved == {"k": (extra, 0)}, "no byte for another plan, which would leave fewer resident blocks"
    after = plan_module(module, scalar, before=before, without_wgmma=True)
    assert (after.loops[0].instruction, after.loops[0].stages) == ("mma_m16n8k16", stages)
    assert all(size <= extra for size in after.reserved["k"])
    assert after.memory == before.memory
    with pytest.raises(PlanError, match="needs more shared memory"):
        plan_module(module, scalar, before=replace(before, reserved={"k": (-16, 0)}))


def test_a_new_plan_without_wgmma_has_mma_although_a_setting_asks_for_wgmma() -> None:
    """A chain spares memory, so Warp has not reserved what its loop needs without one."""
    module = module_by_wgmma(32)
    module = with_settings(module, main_loop="wgmma")
    before = plan_module(module, scalar)
    after = plan_module(module, scalar, before=before, without_wgmma=True)
    assert [plan.loops[0].instruction for plan in (before, after)] == ["wgmma", "mma_m16n8k16"]
    assert plan_module(module, scalar, without_wgmma=True).loops[0].instruction == "", "of a first plan"


class SlowRecords:
    """The records of a machine on which few stages were fastest with wgmma, and many without it."""

    def pipeline(self, problem: LoopProblem) -> MeasuredPipeline:
        return MeasuredPipeline(PipelineOverrides(stages=2 if "wgmma" in problem.families else 4), "measured")


def test_a_record_does_not_decide_about_stages_that_the_memory_of_the_plan_before_lacks() -> None:
    module = replace(module_by_wgmma(128), records=SlowRecords())
    before = plan_module(module, scalar)
    after = plan_module(module, scalar, before=before, without_wgmma=True)
    rings = [plan.loops[0].ring for plan in (before, after)]
    assert [(ring.plan.loop.stages, ring.measured) for ring in rings if ring] == [(2, "measured"), (2, "")]


class NoFunctions(dict[GemmProblem, DeviceFunction]):
    """Refuses to be asked for a function."""

    def get(self, problem: GemmProblem, /) -> DeviceFunction | None:  # type: ignore[override]
        raise AssertionError(f"asked for {problem.describe()}")


def test_a_loop_with_stages_asks_for_no_function() -> None:
    module = module_with_stages()
    plan = planned(module, NoFunctions())
    assert {each.provider for each in plan.functions if each.needed} == {STAGES}
    assert [loop.reverse for loop in plan.loops] == [""], "nothing runs backwards"
    text = written(module, NoFunctions())
    assert names_of(text, 0) == SCALAR, "nothing expands the names"
    assert declared(text) == []
    assert "wt_staged_" in text


def test_an_adjoint_without_stages_needs_its_functions_alone() -> None:
    module = module_with_stages(called=True)
    built = functions(STAGED[A], STAGED[B])
    providers = {each.role: each.provider for each in planned(module, built).functions}
    assert providers == {C: STAGES, A: "own", B: "own"}
    text = written(module, built)
    assert names_of(text, 0) == [STAGED[A].symbol, STAGED[A].symbol, STAGED[B].symbol], "a forward name that is no 0"
    assert sorted(declared(text)) == sorted((STAGED[A].symbol, STAGED[B].symbol))
    without = written(module, functions(STAGED[A]))
    assert names_of(without, 0) == SCALAR, "the adjoints take the scalar path"
    assert "wt_staged_" in without, "and the loop keeps its stages"


def test_a_product_that_the_reverse_pass_repeats_needs_its_function_too() -> None:
    module = module_with_stages(called=True, repeated=True)
    providers = {each.role: each.provider for each in planned(module, functions(*STAGED.values())).functions}
    assert providers == {C: "own", A: "own", B: "own"}


def test_a_provider_that_forbids_stages_names_their_cost() -> None:
    (loop,) = loops_of(with_settings(module_with_stages(), provider="cublasdx"), functions(STAGED[C]))
    assert (loop.state, loop.instruction) == ("as_warp", "")
    assert loop.codes == (NO_ACCUMULATORS.code, "setting")
    asked = Rejected("setting", ("the setting provider (default)", "'cublasdx'"))
    assert loop.reason.endswith(f"; no stages: {asked}")
    assert loop.cost == str(Rejected("stages_forbidden", (asked, "fma", 0.73)))
    assert loop.explanation.endswith(loop.cost)
    (small,) = loops_of(with_settings(module_with_loop(), provider="cublasdx"), functions_with_sums(C))
    assert small.cost == "", "it would have no stages anyway"


def test_the_reverse_pass_does_not_repeat_a_product_that_nothing_reads() -> None:
    module = module_with_loop()
    (operation,) = (one for one in module.trace.functions["k"].operations() if one.product)
    name = f"WT_REPLAY_{operation.hook}"
    assert macros(written(module, functions_with_sums(C)))[name] == "WP_TILE_SYNC();"
    in_memory = with_settings(module, register_accumulators=False)
    for text in (written(in_memory, functions_with_sums(C)), written(module, {})):
        assert macros(text)[name] == "__VA_ARGS__"


def test_every_hook_is_defined_for_any_set_of_built_functions() -> None:
    module = module_with_loop()

    def hooks(built: Mapping[GemmProblem, DeviceFunction]) -> set[str]:
        return {name for name in macros(written(module, built)) if re.fullmatch(r"WT_\w+_\d+", name)}

    assert len(hooks({})) >= 10
    assert hooks({}) == hooks(functions(BIG[C])) == hooks(functions_with_sums(C))


# ---- any module

SHAPES = [forms(m, n, k) for m, n, k in itertools.product((4, 8), repeat=3)]


Generated = tuple[GeneratedModule, Mapping[GemmProblem, DeviceFunction]]


@st.composite
def modules(draw: st.DrawFn) -> Generated:
    sites = Session("module", 90, 128)
    called = set()
    for index in range(draw(st.integers(0, 14))):  # two-digit indices: site1 is a prefix of site10
        problems = draw(st.sampled_from([{}, *SHAPES]))
        sites.add("tile_matmul", f"f{index % 3}", problems, scalar_reason=None if problems else Rejected("cpu"))
        if draw(st.booleans()):
            called.add(index)
    variants_of_all = sorted({v for site in sites.sites for v in site.problems.values()}, key=lambda v: v.symbol)
    built = draw(st.sets(st.sampled_from(variants_of_all))) if variants_of_all else set()
    operands = draw(st.sampled_from([("a", "b"), ("a", "a")]))
    calls = (t.product(*map(t.tile, operands), t.tile("c"), site.index) for site in sites.sites if site.problems)
    trace = t.module(t.function(*calls))
    return generated(sites, called=called, trace=trace), functions(*built)


@given(modules())
def test_every_name_is_defined_by_a_declared_function(module: Generated) -> None:
    generated_module, built = module
    text = written(generated_module, built)
    assert PLACEHOLDER not in text
    placeholders = {site.placeholder(role) for site in generated_module.session.sites for role in site.roles}
    assert {name for name in macros(text) if name.startswith("wt_site")} == placeholders
    assert declared(text) == sorted(set(declared(text)))
    assert set(declared(text)) <= {function.symbol for function in built.values()}
    for site in generated_module.session.sites:
        names = names_of(text, site.index)
        # one scalar name makes all of them scalar, because Warp's templates test the forward function
        assert (SCALAR_FUNCTION in names) == (names == SCALAR)
        for name in set(names) - {SCALAR_FUNCTION}:
            assert name in declared(text) or f"static void {name}(" in text


@given(modules())
def test_the_plan_and_the_source_agree(module: Generated) -> None:
    generated_module, _ = module
    plan = resolve(generated_module.session, generated_module.called, ["k"], [])
    needed = {item.problem for item in plan.needed if item.problem is not None}
    assert set(declared(written(generated_module, functions(*needed)))) == {problem.symbol for problem in needed}
