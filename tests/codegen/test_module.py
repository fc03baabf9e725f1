"""One generated module: what each site's names stand for, what is declared, and what is left to Warp."""

from __future__ import annotations

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
    SMALL,
    declared,
    forms,
    functions,
    generated,
    macros,
    names_of,
    session,
    text_of,
)
from warp_tiles.codegen.loops import LoopDecision, LoopSums, decide
from warp_tiles.codegen.module import (
    SCALAR_FUNCTION,
    DeviceFunction,
    GeneratedModule,
    declaration,
    loop_declarations,
    pointers,
)
from warp_tiles.codegen.prelude import PLACEHOLDER, waiting_function
from warp_tiles.codegen.trace import ModuleTrace
from warp_tiles.gemm.variant import GemmVariant, Role
from warp_tiles.plan.planning import Session, resolve
from warp_tiles.settings import Settings

A, B, C = Role.ADJOINT_A, Role.ADJOINT_B, Role.FORWARD
SCALAR = [SCALAR_FUNCTION] * 3


# ---- names of functions


def test_every_built_product_is_named_and_declared() -> None:
    text = text_of(generated(session(("k", BIG)), called={0}), functions(*BIG.values()))
    assert names_of(text, 0) == [BIG[C].symbol, BIG[A].symbol, BIG[B].symbol]
    for variant in BIG.values():
        assert text.count(declaration(variant, variant.symbol)) == 1
    assert PLACEHOLDER not in text


def test_calls_are_left_as_warp_wrote_them() -> None:
    module = generated(session(("k", BIG)), called={0})
    before, _, behind = module.source.partition(PLACEHOLDER)
    text = text_of(module, functions(*BIG.values()))
    assert text.startswith(before)
    assert text.endswith(behind)


def test_declarations_are_sorted_and_each_is_there_once() -> None:
    made = session(("one", SMALL), ("two", BIG), ("three", SMALL))
    text = text_of(generated(made, called=range(3)), functions(*BIG.values(), *SMALL.values()))
    assert declared(text) == sorted({v.symbol for v in (*BIG.values(), *SMALL.values())})


def test_an_adjoint_that_nothing_calls_gets_the_forward_functions_name() -> None:
    text = text_of(generated(session(("k", BIG))), functions(BIG[C]))
    assert names_of(text, 0) == [BIG[C].symbol] * 3
    assert declared(text) == [BIG[C].symbol]


def test_an_adjoint_that_nothing_calls_is_not_named_even_if_it_exists() -> None:
    text = text_of(generated(session(("k", BIG))), functions(*BIG.values()))
    assert BIG[A].symbol not in text  # else it would be declared by one site and linked for none


@pytest.mark.parametrize("missing", list(Role))
def test_a_missing_needed_product_sends_the_whole_site_to_the_scalar_path(missing: Role) -> None:
    built = functions(*(variant for role, variant in BIG.items() if role is not missing))
    text = text_of(generated(session(("k", BIG)), called={0}), built)
    assert names_of(text, 0) == SCALAR
    assert "wt_gemm" not in text


def test_a_missing_product_leaves_other_sites_alone() -> None:
    text = text_of(generated(session(("one", BIG), ("two", SMALL))), functions(SMALL[C]))
    assert names_of(text, 0) == SCALAR
    assert names_of(text, 1) == [SMALL[C].symbol] * 3


def test_a_weaker_function_stands_in_under_its_own_name() -> None:
    weaker = BIG[C].without_alignment()
    assert weaker != BIG[C]
    text = text_of(generated(session(("k", BIG))), {BIG[C]: DeviceFunction(weaker.symbol, "none")})
    assert names_of(text, 0) == [weaker.symbol] * 3
    assert BIG[C].symbol not in text
    assert f"void {weaker.symbol}(" in text


@pytest.mark.parametrize("called", [True, False])
def test_a_cholesky_site_names_its_one_product(called: bool) -> None:
    made = Session("module", 90, 128)
    site = made.add("tile_cholesky", "k", {A: BIG[A]})
    module = generated(
        made, f"    wp::adj_tile_cholesky({site.placeholder(A)}, var_0);", called={0} if called else set()
    )
    expected = BIG[A].symbol if called else SCALAR_FUNCTION
    assert names_of(text_of(module, functions(BIG[A])), 0) == [SCALAR_FUNCTION, expected, SCALAR_FUNCTION]
    assert names_of(text_of(module, {}), 0) == SCALAR


def test_a_declaration_has_warps_pointer_types() -> None:
    variant = forms(8, 8, 8, "bfloat16")[C]
    expected = "void f(wp::float32*, wp::bfloat16*, wp::bfloat16*, wp::float32*, wp::float32*);"
    assert declaration(variant, "f") == expected
    mixed = replace(variant, a=replace(variant.a, dtype="float16"), c=replace(variant.c, dtype="float64"))
    assert declaration(mixed, "f") == "void f(wp::float64*, wp::float16*, wp::bfloat16*, wp::float64*, wp::float64*);"
    sums = LoopSums("f", "wp::float64", 4)
    assert loop_declarations(mixed, sums).splitlines() == [
        "void f_add(wp::float64*, wp::float16*, wp::bfloat16*);",
        "void f_finish(wp::float64*, wp::float64*);",
    ]


# ---- adjoints that wait


def product_of(a: str, b: str) -> ModuleTrace:
    return t.module(t.function(t.product(t.tile(a), t.tile(b), t.tile("c"))))


def test_the_second_adjoint_of_operands_that_may_share_memory_waits() -> None:
    made, built = session(("k", BIG)), functions(*BIG.values())
    apart = generated(made, called={0}, trace=product_of("a", "b"))
    together = generated(made, called={0}, trace=product_of("a", "a"))
    assert "_waiting" not in text_of(apart, built)
    text = text_of(together, built)
    assert names_of(text, 0) == [BIG[C].symbol, BIG[A].symbol, f"{BIG[B].symbol}_waiting"]
    assert text.count(waiting_function(BIG[B].symbol, pointers(BIG[B]))) == 1
    assert text.index(f"void {BIG[B].symbol}(") < text.index(f"static void {BIG[B].symbol}_waiting")
    assert "_waiting" not in text_of(together, {})
    assert "_waiting" not in text_of(generated(made, trace=product_of("a", "a")), built), "it has no adjoint"


# ---- loops and loads

LOOP_SUMS = LoopSums(BIG[C].symbol, "wp::float32", 8)


def looping(*, called: bool = False) -> GeneratedModule:
    """Loads two tiles in a loop and multiplies them; C has room for both."""
    a, b, c = t.tile("a", 8, 4), t.tile("b", 4, 12), t.tile("c", 8, 128)
    body = t.loop(t.load(a), t.load(b), t.product(a, b, c))
    trace = t.module(t.function(t.zeros(c), body), kernels_of={"k": ("k", "again")})
    return generated(session(("k", BIG)), called={0} if called else (), trace=trace)


def kept(*roles: Role) -> dict[GemmVariant, DeviceFunction]:
    return {BIG[role]: DeviceFunction(BIG[role].symbol, LOOP_SUMS if role is C else "an adjoint") for role in roles}


def test_a_loop_is_planned_for_each_kernel_that_runs_it() -> None:
    planned = looping().loops(kept(C), Settings())
    assert [loop.kernel for loop in planned] == ["k", "again"]
    assert {(loop.state, loop.stages, loop.products, loop.file) for loop in planned} == {("pipelined", 2, 1, "file.py")}


def test_plan_and_source_share_one_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[bool] = []

    def note(*arguments: Any, ahead: bool) -> tuple[LoopDecision, ...]:
        decided.append(ahead)
        return decide(*arguments, ahead=ahead)

    monkeypatch.setattr("warp_tiles.codegen.module.decide", note)
    module = looping()
    assert module.loops(kept(C), Settings()) == module.loops(kept(C), Settings())
    text_of(module, kept(C))
    assert len(decided) == 1
    text_of(module, functions(BIG[C]))
    text_of(module, kept(C), Settings(wide_moves=False))
    assert decided == [True, True, False], "other functions or settings decide anew"


def test_a_loop_that_nothing_reaches_is_not_planned() -> None:
    module = looping()
    assert replace(module, trace=replace(module.trace, kernels_of={})).loops(kept(C), Settings()) == ()


def test_a_pipelined_loop_is_written_with_its_declarations() -> None:
    text = text_of(looping(), kept(C))
    assert text.count(loop_declarations(BIG[C], LOOP_SUMS)) == 1
    assert "namespace wt_module" in text
    found = macros(text)
    assert sum("wt_module::Steps" in body for body in found.values()) == 1
    assert sum(f"{BIG[C].symbol}_finish(" in body for body in found.values()) == 1


@pytest.mark.parametrize(
    ("settings", "state", "reason"),
    [
        (Settings(loop_sums=False), "as_warp", "the setting loop_sums is off"),
        (Settings(wide_moves=False), "register_sums", "the setting wide_moves is off"),
    ],
)
def test_settings_are_followed(settings: Settings, state: str, reason: str) -> None:
    module = looping()
    (loop, _) = module.loops(kept(C), settings)
    assert (loop.state, loop.stages, loop.reason) == (state, 1, reason)
    text = text_of(module, kept(C), settings)
    assert ("_finish(" in text) is settings.loop_sums
    assert ("wt_module::" in text) is settings.wide_moves


def test_a_product_of_the_scalar_path_leaves_its_loop_and_its_loads_to_warp() -> None:
    module = looping()
    (loop, _) = module.loops({}, Settings())
    assert (loop.state, loop.reason) == ("as_warp", "the product takes Warp's scalar path: nothing was built")
    text = text_of(module, {})
    assert "wt_module" not in text
    assert {body for name, body in macros(text).items() if name.startswith(("WT_AT", "WT_REPLAY_"))} <= {
        "__VA_ARGS__",
        "",
    }


def test_the_scalar_paths_reason_is_the_loops() -> None:
    module = looping()
    module.session.sites[0] = replace(module.session.sites[0], variants={}, scalar_reason="strides")
    (loop, _) = module.loops(kept(C), Settings())
    assert loop.reason == "the product takes Warp's scalar path: strides"


def test_an_adjoint_that_was_not_built_leaves_the_loop_to_warp_too() -> None:
    module = looping(called=True)
    assert {loop.state for loop in module.loops(kept(C, A), Settings())} == {"as_warp"}
    assert {loop.state for loop in module.loops(kept(C, A, B), Settings())} == {"pipelined"}


def test_a_function_without_sums_gives_the_reason() -> None:
    (loop, _) = looping().loops(functions(BIG[C]), Settings())
    assert (loop.state, loop.reason) == ("as_warp", "the test keeps no sums")


def test_the_reverse_pass_does_not_repeat_a_product_that_nothing_reads() -> None:
    module = looping()
    (operation,) = (one for one in module.trace.functions["k"].operations() if one.product)
    name = f"WT_REPLAY_{operation.hook}"
    assert macros(text_of(module, kept(C)))[name] == "WP_TILE_SYNC();"
    assert macros(text_of(module, kept(C), Settings(loop_sums=False)))[name] == "__VA_ARGS__"
    assert macros(text_of(module, {}))[name] == "__VA_ARGS__"


def test_loads_of_functions_without_a_product_are_left_to_warp() -> None:
    first, a, b, c = t.load(t.tile("x")), t.tile("a"), t.tile("b"), t.tile("c")
    second = t.load(a)
    other = t.function(first, t.operation("tile_sum", t.tile("x")), label="other")
    own = t.function(second, t.product(a, b, c))
    text = text_of(generated(session(("k", BIG)), trace=t.module(other, own)), functions(BIG[C]))
    assert macros(text)[f"WT_AT_{first.hook}"] == "__VA_ARGS__"
    assert macros(text)[f"WT_AT_{second.hook}"] == "wt_module::Load<true>() << __VA_ARGS__"


def test_every_hook_of_every_function_is_defined_whatever_was_built() -> None:
    module = looping()

    def hooks(built: Mapping[GemmVariant, DeviceFunction]) -> set[str]:
        return {name for name in macros(text_of(module, built)) if re.fullmatch(r"WT_\w+_\d+", name)}

    assert len(hooks({})) >= 10
    assert hooks({}) == hooks(functions(BIG[C])) == hooks(kept(C))


# ---- any module

SHAPES = [forms(m, n, k) for m, n, k in itertools.product((4, 8), repeat=3)]


@st.composite
def modules(draw: st.DrawFn) -> tuple[GeneratedModule, Mapping[GemmVariant, DeviceFunction]]:
    made = Session("module", 90, 128)
    called = set()
    for index in range(draw(st.integers(0, 14))):  # two-digit indices: site1 is a prefix of site10
        variants = draw(st.sampled_from([{}, *SHAPES]))
        made.add("tile_matmul", f"f{index % 3}", variants, scalar_reason="" if variants else "strides")
        if draw(st.booleans()):
            called.add(index)
    every = sorted({v for site in made.sites for v in site.variants.values()}, key=lambda v: v.symbol)
    built = draw(st.sets(st.sampled_from(every))) if every else set()
    operands = draw(st.sampled_from([("a", "b"), ("a", "a")]))
    trace = t.module(
        t.function(
            *(t.product(*map(t.tile, operands), t.tile("c"), site.index) for site in made.sites if site.variants)
        )
    )
    return generated(made, called=called, trace=trace), functions(*built)


@given(modules())
def test_every_name_is_defined_and_what_it_stands_for_is_declared(
    module: tuple[GeneratedModule, Mapping[GemmVariant, DeviceFunction]],
) -> None:
    made, built = module
    text = text_of(made, built)
    assert PLACEHOLDER not in text
    placeholders = {site.placeholder(role) for site in made.session.sites for role in Role}
    assert {name for name in macros(text) if name.startswith("wt_site")} == placeholders
    assert declared(text) == sorted(set(declared(text)))
    assert set(declared(text)) <= {function.symbol for function in built.values()}
    for site in made.session.sites:
        names = names_of(text, site.index)
        # one scalar name makes all scalar: Warp's templates look at the forward function
        assert (SCALAR_FUNCTION in names) == (names == SCALAR)
        for name in set(names) - {SCALAR_FUNCTION}:
            assert name in declared(text) or f"static void {name}(" in text


@given(modules())
def test_the_plan_and_the_source_agree(
    module: tuple[GeneratedModule, Mapping[GemmVariant, DeviceFunction]],
) -> None:
    made, _ = module
    plan = resolve(made.session, made.called, ["k"], [])
    needed = {item.variant for item in plan.needed if item.variant is not None}
    assert set(declared(text_of(made, functions(*needed)))) == {variant.symbol for variant in needed}
