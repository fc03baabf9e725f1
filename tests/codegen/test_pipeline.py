"""Which loops load ahead, and what the source becomes."""

from __future__ import annotations

import pytest

from warp_tiles.codegen.loops import LoopSums, keep_sums
from warp_tiles.codegen.pipeline import pipeline
from warp_tiles.codegen.tile_moves import move_wide

FUNCTIONS = "wt_site0_forward, wt_site0_adjoint_a, wt_site0_adjoint_b"
OTHER_LOAD = "var_44 = wp::tile_load<wp::float32, true, false, 16, 16>(var_D, var_1, var_2);"
SUMS = LoopSums("wt_gemm", "wp::float32", 32)


def tile(name: str, dtype: str, m: int, n: int) -> str:
    layout = f"wp::tile_layout_strided_t<wp::tile_shape_t<{m},{n}>, wp::tile_stride_t<{n},1>>"
    return f"wp::tile_shared_t<wp::{dtype},{layout}, true> {name} = wp::tile_alloc_empty<wp::{dtype}>();"


def module(
    *,
    start: str = "var_6 = wp::tile_zeros<wp::float32, 64, 64>();",
    between: str = "",
    inside: str = "",
    behind: str = "",
    then: str = "",
    k: int = 64,
    dtype: str = "float16",
) -> str:
    """A kernel as Warp generates it: C is ``start``ed, then A and B are loaded and multiplied in a loop."""
    loads = (f"wp::tile_load<wp::{dtype}, true, false, 64, {k}>", f"wp::tile_load<wp::{dtype}, true, false, {k}, 64>")
    return f"""#include "builtin.h"

extern "C" __global__ void kernel_forward(
    wp::launch_bounds_t<2> dim)
{{
        {tile("var_6", "float32", 64, 64)}
        {tile("var_24", dtype, 64, k)}
        {tile("var_34", dtype, k, 64)}
        {tile("var_44", "float32", 16, 16)}
        const wp::float32 var_8 = 1.0;
        const wp::float32 var_9 = 1.0;
        {start}
        {between}
        start_for_0:;
            if (iter_cmp(var_13) == 0) goto end_for_0;
            var_14 = wp::iter_next(var_13);
            var_24 = {loads[0]}(var_A, var_19, var_21);
            {inside}
            var_34 = {loads[1]}(var_B, var_29, var_31);
            wp::tile_matmul_acc({FUNCTIONS}, var_24, var_34, var_6, var_8, var_9);
            {then}
            goto start_for_0;
        end_for_0:;
        {behind}
        wp::tile_store<wp::float32, true, false>(var_C, var_38, var_40, var_6);
}}
"""


def edited(source: str) -> list[str]:
    text = pipeline(move_wide(keep_sums(source, {0: SUMS}, {})))
    return [line.strip() for line in text[text.index('extern "C"') :].splitlines()]


def index_of(lines: list[str], start: str) -> int:
    found = [index for index, line in enumerate(lines) if line.startswith(start)]
    assert len(found) == 1, (start, lines)
    return found[0]


def test_a_loop_multiplies_the_tiles_of_the_turn_before() -> None:
    lines = edited(module())
    order = [
        "wt_module::Turns<decltype(var_24), decltype(var_34)> wt_turns_0;",
        "wt_turns_0.start(var_24, var_34, var_6.data.ptr);",
        "start_for_0:;",
        "wt_turns_0.more = iter_cmp(var_13); if (wt_turns_0.more) {",
        "wt_turns_0.next(var_24, var_34);",
        "wt_module::load<false>(var_24, ",
        "wt_module::load<false>(var_34, ",
        "} if (wt_turns_0.earlier()) wt_gemm_add(wt_sums_0, wt_turns_0.a(), wt_turns_0.b());",
        "wt_turns_0.keep(); if (!wt_turns_0.more) goto end_for_0;",
        "end_for_0:;",
        "wt_turns_0.end(var_24, var_34, var_6.data.ptr); var_6 = wp::tile_zeros<wp::float32, 64, 64>();",
        "WP_TILE_SYNC(); wt_gemm_finish(wt_sums_0, var_6.data.ptr);",
    ]
    places = [index_of(lines, text) for text in order]
    assert places == sorted(places)
    assert sum("wt_gemm_add(" in line for line in lines) == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            {"start": "var_6 = wp::tile_load<wp::float32, true, false, 64, 64>(var_C, var_1, var_2);"}, id="C is loaded"
        ),
        pytest.param({"between": "if (var_3) { var_4 = var_5; }"}, id="a branch behind the zeros"),
        pytest.param({"inside": "if (var_3) goto end_for_0;"}, id="a branch between the loads"),
        pytest.param({"inside": "var_50 = wp::tile_sum(var_24);"}, id="A is read elsewhere in the loop"),
        pytest.param({"behind": "var_50 = wp::tile_sum(var_34);"}, id="B is read behind the loop"),
        pytest.param({"then": "if (var_3) { goto end_for_0; }"}, id="the loop is left behind the product"),
        pytest.param({"then": "if (var_3) { continue; }"}, id="the function is left behind the product"),
        pytest.param({"inside": OTHER_LOAD, "then": "wp::tile_add_inplace(var_10, var_44);"}, id="a third tile"),
        pytest.param({"then": "wp::tile_store<wp::float16, true, false>(var_A, var_1, var_2, var_50);"}, id="a store"),
        pytest.param({"then": "wp::array_store(var_A, var_19, var_21, var_52);"}, id="an element is written"),
        pytest.param({"then": "var_53 = wp::atomic_add(var_A, var_19, var_21, var_52);"}, id="an element is added to"),
        pytest.param({"inside": "helper_0(var_A, var_19);"}, id="a function that might write"),
        pytest.param({"k": 128}, id="C is too small for another A and B"),
        pytest.param({"dtype": "float32", "k": 64}, id="C is too small for wider ones"),
    ],
)
def test_loops_that_are_not_pipelined(change: dict[str, object]) -> None:
    text = move_wide(keep_sums(module(**change), {0: SUMS}, {}))  # type: ignore[arg-type]
    assert pipeline(text) == text


@pytest.mark.parametrize(
    "line",
    [
        "var_50 = &(var_A.shape);",
        "var_50 = wp::extract(var_51, var_52);",
        "var_50 = wp::int32(var_51);",
        "var_50 = (var_51 < var_52);",
        "wp::assign(var_50, var_51);",
        "// wp::tile_store(var_A, var_10);",
    ],
)
def test_arithmetic_and_reads_do_not_keep_a_loop_from_being_pipelined(line: str) -> None:
    assert any("wt_turns_0" in text for text in edited(module(then=line)))


def test_what_is_behind_the_product_runs_once_for_each_turn() -> None:
    lines = edited(module(then="var_51 = wp::add(var_51, var_14);"))
    assert index_of(lines, "wt_turns_0.keep(") < index_of(lines, "var_51 = ") < index_of(lines, "goto start_for_0;")


def test_c_that_just_holds_another_a_and_b_is_enough() -> None:
    assert any("wt_turns_0" in line for line in edited(module(dtype="float32", k=32)))
    assert not any("wt_turns_0" in line for line in edited(module(dtype="float32", k=33)))
