"""Plans: what the generated source calls decides, and no placeholder is left behind."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles.codegen.shared_gradients import waiting_function
from warp_tiles.gemm.dispatch import Target, Tile, products
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.gemm.variant import GemmVariant, Role
from warp_tiles.plan.planning import (
    DECLARATIONS,
    SCALAR_FUNCTION,
    FunctionUse,
    ModulePlan,
    PlannedVariant,
    Session,
    Site,
    adjoints_called,
    declaration,
    pointers,
    resolve,
    substitute,
)


def forms(m: int, n: int, k: int, dtype: str = "float32") -> dict[Role, GemmVariant]:
    def packed(rows: int, cols: int, kind: str) -> Tile:
        return Tile(kind, (rows, cols), (cols, 1), "row_major", True)  # type: ignore[arg-type]

    out = "float32" if dtype == "bfloat16" else dtype
    found = products(packed(m, k, dtype), packed(k, n, dtype), packed(m, n, out), precision="default", target=_SM90)
    return found.variants


_SM90 = Target(90, 128)
A, B, C = Role.ADJOINT_A, Role.ADJOINT_B, Role.FORWARD
BIG, SMALL = forms(8, 12, 4), forms(4, 4, 16)
FORWARD_REASON = "every launch runs the forward product"


def session(*sites: tuple[str, dict[Role, GemmVariant]]) -> Session:
    made = Session("module", 90, 128)
    for function, variants in sites:
        made.add("tile_matmul", function, variants)
    return made


def forward(index: int) -> str:
    names = ", ".join(f"wt_site{index}_{role.value}" for role in Role)
    return f"    wp::tile_matmul<1>({names}, var_0, var_1, var_2, var_3, var_4);"


def backward(index: int) -> str:
    names = ", ".join(f"wt_site{index}_{role.value}" for role in Role)
    return f"    wp::adj_tile_matmul<1>({names}, var_0, var_1, var_2, adj_0, adj_1, adj_2);"


OWN = [f"    wp::tile_shared_t<wp::float32> var_{i} = wp::tile_alloc_empty<wp::float32>();" for i in (0, 1)]


def source(*lines: str) -> str:
    return "\n".join([DECLARATIONS, 'extern "C" __global__ void kernel() {', *OWN, *lines, "}"])


# ---- adjoints_called


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("wp::tile_matmul(wt_site0_forward, wt_site0_adjoint_a, wt_site0_adjoint_b, var_0);", set()),
        ("wp::adj_tile_matmul(wt_site0_forward, wt_site0_adjoint_a, wt_site0_adjoint_b, var_0);", {0}),
        ("adj_tile_matmul(wt_site3_adjoint_b);", {3}),
        ("wp::adj_tile_matmul (wt_site12_forward);", {12}),
        ("wp::adj_tile_matmul<1>(wt_site1_forward);", {1}),
        ("wp::adj_tile_matmul<wp::tile_t<wp::vec_t<2, float>, 8>, (8>>1)>(wt_site1_forward);", {1}),
        ("wp::adj_tile_cholesky<false>(wt_site2_adjoint_a);", {2}),
        ("// wp::adj_tile_matmul(wt_site0_forward);", set()),
        ("    var_7 = 1; // wp::adj_tile_matmul(wt_site0_forward);", set()),
        ("wp::adj_tile_matmul(wt_site0_forward); // wt_site5_forward", {0}),
        ("wp::adj_tile_matmul(wt_site0_forward); wp::adj_tile_matmul(wt_site1_forward);", {0, 1}),
        ("wp::tile_matmul(wt_site0_forward); wp::adj_tile_matmul(wt_site1_forward);", {1}),
        ("wp::adj_tile_matmul(wt_site1_forward); wp::tile_matmul(wt_site0_forward);", {1}),
        ("wp::adj_tile_matmul(wt_site10_forward);", {10}),
        ("wp::adj_tile_matmul(not_wt_site4_forward);", set()),
        ("wp::adj_tile_matmul(wt_site4_forwards);", set()),
        ("adj_var = wt_site0_forward;", set()),
        ("readj_tile_matmul(wt_site0_forward);", set()),
        ("", set()),
    ],
)
def test_adjoints_called(line: str, expected: set[int]) -> None:
    assert adjoints_called(line) == expected


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["forward", "backward", "comment"])), max_size=12))
def test_adjoints_called_in_any_source(lines: list[tuple[int, str]]) -> None:
    text = {"forward": forward, "backward": backward, "comment": lambda index: "//" + backward(index)}
    found = adjoints_called("\n".join(text[kind](index) for index, kind in lines))
    assert found == {index for index, kind in lines if kind == "backward"}


# ---- resolve


def by_role(plan: ModulePlan) -> dict[Role, PlannedVariant]:
    assert len({item.role for item in plan.variants}) == len(plan.variants)
    return {item.role: item for item in plan.variants}


def use(kernel: str, function: str, backward: bool) -> FunctionUse:
    return FunctionUse(kernel, function, backward, f"{kernel} {'has' if backward else 'has no'} backward pass")


def test_a_forward_only_kernel_needs_one_product() -> None:
    plan = resolve(session(("k", BIG)), source(forward(0)), ["k"], [use("k", "k", False)])
    found = by_role(plan)
    assert {role: item.needed for role, item in found.items()} == {C: True, A: False, B: False}
    assert found[C].reason == FORWARD_REASON
    assert found[A].reason == found[B].reason == "k has no backward pass"
    assert [item.variant for item in plan.needed] == [BIG[C]]
    assert (plan.name, plan.arch, plan.block_dim, plan.kernels) == ("module", 90, 128, ("k",))


def test_a_differentiable_kernel_needs_three() -> None:
    plan = resolve(session(("k", BIG)), source(forward(0), backward(0)), ["k"], [use("k", "k", True)])
    found = by_role(plan)
    assert all(item.needed for item in found.values())
    assert {role: item.variant for role, item in found.items()} == BIG
    assert found[A].reason == "k has backward pass"
    assert {item.kernels for item in found.values()} == {("k",)}


def test_without_a_use_the_source_gives_the_reason() -> None:
    called = resolve(session(("k", BIG)), source(backward(0)), ["k"], [])
    assert by_role(called)[A].reason == "its adjoint is called"
    skipped = resolve(session(("k", BIG)), source(forward(0)), ["k"], [])
    assert by_role(skipped)[A].reason == "no generated code calls its adjoint"


def test_a_helper_shared_by_two_kernels_gets_its_adjoints_for_one() -> None:
    uses = [use("infer", "helper", False), use("train", "helper", True)]
    plan = resolve(session(("helper", BIG)), source(forward(0), backward(0)), ["infer", "train"], uses)
    found = by_role(plan)
    assert found[C].kernels == ("infer", "train")
    assert found[A].kernels == found[B].kernels == ("train",)
    assert found[A].reason == "train has backward pass"


def test_a_skipped_adjoint_names_the_kernels_that_contain_it() -> None:
    uses = [use("one", "helper", False), use("two", "helper", False), use("other", "elsewhere", False)]
    found = by_role(resolve(session(("helper", BIG)), source(forward(0)), ["one", "two", "other"], uses))
    assert found[A].kernels == ("one", "two")
    assert found[A].reason == "one has no backward pass; two has no backward pass"


def test_equal_variants_of_two_sites_are_one() -> None:
    uses = [use("one", "one", False), use("two", "two", False)]
    plan = resolve(session(("one", BIG), ("two", BIG)), source(forward(0), forward(1)), ["one", "two"], uses)
    assert len(plan.needed) == 1
    assert plan.needed[0].kernels == ("one", "two")
    assert len(plan.variants) == 3  # the skipped adjoints are one as well


def test_a_needed_variant_absorbs_its_skipped_equal() -> None:
    uses = [use("infer", "infer", False), use("train", "train", True)]
    text = source(forward(0), forward(1), backward(1))
    plan = resolve(session(("infer", BIG), ("train", BIG)), text, ["infer", "train"], uses)
    found = by_role(plan)
    assert all(item.needed for item in found.values())
    assert found[A].kernels == ("train",)
    assert found[C].kernels == ("infer", "train")


def test_different_sizes_stay_apart() -> None:
    plan = resolve(session(("k", BIG), ("k", SMALL)), source(forward(0), forward(1)), ["k"], [use("k", "k", False)])
    assert {item.variant for item in plan.needed} == {BIG[C], SMALL[C]}
    assert len(plan.variants) == 6


def test_a_product_that_is_forward_here_and_adjoint_there_is_listed_under_both_roles() -> None:
    # what one site computes forward may be another's adjoint; it is built once all the same, see test_engine_plans.py
    site = {C: BIG[C], A: SMALL[C], B: BIG[B]}
    text = source(forward(0), backward(0), forward(1))
    plan = resolve(session(("one", site), ("two", SMALL)), text, ["one", "two"], [])
    assert {item.role for item in plan.needed if item.variant == SMALL[C]} == {C, A}


def test_the_scalar_path_is_planned_with_its_reason() -> None:
    made = Session("module", None, 1)
    made.add("tile_matmul", "k", {}, scalar_reason="the target is a CPU")
    plan = resolve(made, source(forward(0), backward(0)), ["k"], [use("k", "k", True)])
    found = by_role(plan)
    assert plan.needed == ()
    assert {role: item.needed for role, item in found.items()} == dict.fromkeys(Role, True)
    assert {item.variant for item in found.values()} == {None}
    assert found[C].reason.startswith("the target is a CPU; ")
    assert found[A].reason == "the target is a CPU; k has backward pass"


def test_scalar_sites_of_different_functions_stay_apart() -> None:
    made = Session("module", None, 1)
    for name in ("one", "two"):
        made.add("tile_matmul", name, {}, scalar_reason="the target is a CPU")
    plan = resolve(made, source(forward(0), forward(1)), ["one", "two"], [])
    assert {item.function for item in plan.variants if item.role is C} == {"one", "two"}


def test_an_adjoint_of_bfloat16_operands_is_refused_by_name_on_the_scalar_path() -> None:
    made = Session("module", None, 1)
    made.add("tile_matmul", "gemm", {}, scalar_reason="the target is a CPU", bfloat16_operands=True)
    words = r"In 'gemm'.*bfloat16 'a' or 'b'.*enable_backward=False.*'mma' does.*Here the target is a CPU"
    with pytest.raises(TypeError, match=words):
        resolve(made, source(forward(0), backward(0)), ["gemm"], [])
    assert resolve(made, source(forward(0)), ["gemm"], []).needed == ()


def test_an_adjoint_of_bfloat16_operands_is_planned_where_it_has_a_function() -> None:
    made = Session("module", 90, 128)
    variants = forms(8, 8, 8, "bfloat16")
    made.add("tile_matmul", "gemm", variants, bfloat16_operands=True)
    plan = resolve(made, source(forward(0), backward(0)), ["gemm"], [])
    assert {item.variant for item in plan.needed} == set(variants.values())


def test_bfloat16_operands_are_planned_forward() -> None:
    variants = forms(8, 8, 8, "bfloat16")
    made = Session("module", 90, 128)
    made.add("tile_matmul", "gemm", variants, bfloat16_operands=True)
    plan = resolve(made, source(forward(0), "//" + backward(0)), ["gemm"], [use("gemm", "gemm", False)])
    assert [item.variant for item in plan.needed] == [variants[C]]


def test_a_cholesky_site_has_one_adjoint_alone() -> None:
    made = Session("module", 90, 128)
    site = made.add("tile_cholesky", "k", {A: BIG[A]})
    text = source(f"    wp::adj_tile_cholesky({site.placeholder(A)}, var_0);")
    (planned,) = resolve(made, text, ["k"], [use("k", "k", True)]).variants
    assert (planned.call, planned.role, planned.needed, planned.variant) == ("tile_cholesky", A, True, BIG[A])
    (skipped,) = resolve(made, source(), ["k"], [use("k", "k", False)]).variants
    assert not skipped.needed
    assert resolve(made, source(), ["k"], []).needed == ()


PLAN_FIELDS = {
    "role", "m", "n", "k", "a_dtype", "b_dtype", "c_dtype", "precision", "arrangement", "leading_dimensions",
    "threads", "arch", "needed", "reason", "provider", "key", "cached", "tile_config", "symbol",
}  # fmt: skip


def test_a_plan_prints_the_fields_that_the_issue_lists() -> None:
    plan = resolve(session(("k", BIG)), source(forward(0)), ["k"], [use("k", "k", False)])
    data = json.loads(json.dumps(plan.to_json()))
    assert data["name"] == "module"
    assert data["kernels"] == ["k"]
    assert all(set(item) >= PLAN_FIELDS for item in data["variants"])
    roles = [item["role"] for item in data["variants"]]
    assert sorted(roles) == ["adjoint_a", "adjoint_b", "forward"]
    assert GemmVariant.from_json(data["variants"][0]) == plan.variants[0].variant


def test_a_plan_prints_who_was_asked_and_how_it_is_computed() -> None:
    plan = resolve(session(("k", BIG)), source(forward(0)), ["k"], [])
    assert plan.to_json()["provider"] == plan.settings.provider == "auto"
    assert plan.to_json()["policy"] == "auto"
    config = TileConfig("fma", 8, 4, lanes_m=8, lanes_n=4)
    planned = replace(plan.needed[0], provider="mma", symbol="f", tile_config=config)
    data = json.loads(json.dumps(planned.to_json()))
    assert (data["provider"], data["symbol"]) == ("mma", "f")
    assert TileConfig.from_json(data["tile_config"]) == config
    assert plan.needed[0].to_json()["tile_config"] is None
    assert plan.needed[0].to_json()["symbol"] == BIG[C].symbol, "until a provider names its function"


def test_a_scalar_plan_prints_null_sizes() -> None:
    made = Session("module", None, 1)
    made.add("tile_matmul", "k", {}, scalar_reason="the target is a CPU")
    for item in resolve(made, source(forward(0)), ["k"], []).to_json()["variants"]:
        assert set(item) >= PLAN_FIELDS
        assert item["m"] is None
        assert item["arrangement"] is None
        assert item["symbol"] == ""


# ---- substitute


def symbols(*variants: GemmVariant) -> dict[GemmVariant, str]:
    return {variant: variant.symbol for variant in variants}


def test_every_built_product_is_named_and_declared() -> None:
    text = substitute(source(forward(0), backward(0)), session(("k", BIG)), symbols(*BIG.values()))
    names = f"{BIG[C].symbol}, {BIG[A].symbol}, {BIG[B].symbol}"
    assert text.count(f"tile_matmul<1>({names}, ") == 2
    for variant in BIG.values():
        assert text.count(declaration(variant, variant.symbol)) == 1
    assert DECLARATIONS not in text


def test_declarations_are_sorted_and_each_is_there_once() -> None:
    made = session(("one", SMALL), ("two", BIG), ("three", SMALL))
    text = source(*(line for index in range(3) for line in (forward(index), backward(index))))
    declared = re.findall(r"^void (\w+)\(", substitute(text, made, symbols(*BIG.values(), *SMALL.values())), re.M)
    assert declared == sorted({v.symbol for v in (*BIG.values(), *SMALL.values())})


def test_an_adjoint_that_nothing_calls_gets_the_forward_functions_name() -> None:
    text = substitute(source(forward(0)), session(("k", BIG)), symbols(BIG[C]))
    assert f"({BIG[C].symbol}, {BIG[C].symbol}, {BIG[C].symbol}, " in text
    assert re.findall(r"^void (\w+)\(", text, re.M) == [BIG[C].symbol]


def test_an_adjoint_that_nothing_calls_is_not_named_even_if_it_exists() -> None:
    text = substitute(source(forward(0)), session(("k", BIG)), symbols(*BIG.values()))
    assert BIG[A].symbol not in text  # else it would be declared by one site and linked for none


def test_the_second_adjoint_of_operands_that_may_share_memory_waits() -> None:
    apart = source(forward(0), backward(0))
    together = apart.replace(OWN[1], "")
    made, built = session(("k", BIG)), symbols(*BIG.values())
    assert "_waiting" not in substitute(apart, made, built)
    text = substitute(together, made, built)
    assert text.count(f"{BIG[B].symbol}_waiting") == 2  # the call and the function
    assert text.count(waiting_function(BIG[B].symbol, pointers(BIG[B]))) == 1
    assert "_waiting" not in substitute(together, made, {})


@pytest.mark.parametrize("missing", list(Role))
def test_a_missing_needed_product_sends_the_whole_site_to_the_scalar_path(missing: Role) -> None:
    built = symbols(*(variant for role, variant in BIG.items() if role is not missing))
    text = substitute(source(forward(0), backward(0)), session(("k", BIG)), built)
    assert text.count(f"tile_matmul<1>({SCALAR_FUNCTION}, {SCALAR_FUNCTION}, {SCALAR_FUNCTION}, ") == 2
    assert "wt_gemm" not in text


def test_a_missing_product_leaves_other_sites_alone() -> None:
    text = substitute(
        source(forward(0), forward(1)), session(("one", BIG), ("two", SMALL)), symbols(SMALL[C])
    ).splitlines()
    assert f"({SCALAR_FUNCTION}, {SCALAR_FUNCTION}, {SCALAR_FUNCTION}, " in text[-3]
    assert SMALL[C].symbol in text[-2]


def test_a_weaker_function_stands_in_under_its_own_name() -> None:
    weaker = BIG[C].without_alignment()
    assert weaker != BIG[C]
    text = substitute(source(forward(0)), session(("k", BIG)), {BIG[C]: weaker.symbol})
    assert weaker.symbol in text
    assert BIG[C].symbol not in text
    assert f"void {weaker.symbol}(" in text


def test_a_cholesky_site_names_its_one_product() -> None:
    made = Session("module", 90, 128)
    site = made.add("tile_cholesky", "k", {A: BIG[A]})
    text = source(f"    wp::adj_tile_cholesky({site.placeholder(A)}, var_0);")
    assert f"adj_tile_cholesky({BIG[A].symbol}, var_0)" in substitute(text, made, symbols(BIG[A]))
    assert f"adj_tile_cholesky({SCALAR_FUNCTION}, var_0)" in substitute(text, made, {})


def test_a_declaration_has_warps_pointer_types() -> None:
    variant = forms(8, 8, 8, "bfloat16")[C]
    expected = "void f(wp::float32*, wp::bfloat16*, wp::bfloat16*, wp::float32*, wp::float32*);"
    assert declaration(variant, "f") == expected
    mixed = replace(variant, a=replace(variant.a, dtype="float16"), c=replace(variant.c, dtype="float64"))
    assert declaration(mixed, "f") == "void f(wp::float64*, wp::float16*, wp::bfloat16*, wp::float64*, wp::float64*);"


SHAPES = [forms(m, n, k) for m, n, k in itertools.product((4, 8), repeat=3)]


@st.composite
def modules(draw: st.DrawFn) -> tuple[Session, str, dict[GemmVariant, str], set[int]]:
    made = Session("module", 90, 128)
    lines, called = [], set()
    for index in range(draw(st.integers(0, 14))):  # two-digit indices: site1 is a prefix of site10
        variants = draw(st.sampled_from([{}, *SHAPES]))
        made.add("tile_matmul", f"f{index % 3}", variants, scalar_reason="" if variants else "strides")
        lines.append(forward(index))
        if draw(st.booleans()):
            called.add(index)
            lines.append(backward(index))
        elif draw(st.booleans()):
            lines.append("//" + backward(index))
    every = sorted({v for site in made.sites for v in site.variants.values()}, key=lambda v: v.symbol)
    built = draw(st.sets(st.sampled_from(every))) if every else set()
    return made, source(*draw(st.permutations(lines))), symbols(*built), called


@given(modules())
def test_substitution_leaves_no_placeholder_and_declares_what_it_names(
    module: tuple[Session, str, dict[GemmVariant, str], set[int]],
) -> None:
    made, text, built, called = module
    assert adjoints_called(text) == called
    result = substitute(text, made, built)
    assert "wt_site" not in result
    assert DECLARATIONS not in result
    code = [line for line in result.splitlines() if "tile_matmul" in line and not line.startswith("//")]
    named = {name for line in code for name in re.findall(r"\bwt_gemm\w+", line)}
    declared = re.findall(r"^void (\w+)\(", result, re.M)
    assert named <= set(declared)
    assert set(declared) <= set(built.values())
    assert declared == sorted(set(declared))
    for line in code:  # one scalar name makes all scalar: Warp's templates look at the forward function
        names = line.split("(", 1)[1].split(", ")[:3]
        assert (SCALAR_FUNCTION in names) == (set(names) == {SCALAR_FUNCTION})


@given(modules())
def test_the_plan_and_the_substitution_agree(
    module: tuple[Session, str, dict[GemmVariant, str], set[int]],
) -> None:
    made, text, _, _ = module
    plan = resolve(made, text, ["k"], [])
    needed = {item.variant for item in plan.needed if item.variant is not None}
    result = substitute(text, made, symbols(*needed))
    assert set(re.findall(r"^void (\w+)\(", result, re.M)) == {variant.symbol for variant in needed}


def test_placeholders_are_unique_within_a_module() -> None:
    sites = [Site(index, "tile_matmul", "f", {}) for index in range(12)]
    names = {site.placeholder(role) for site in sites for role in Role}
    assert len(names) == 36
