"""Loops whose sums stay in registers: which calls qualify, and what the source becomes."""

from __future__ import annotations

import pytest

from warp_tiles.codegen.loops import LoopSums, keep_sums

SUMS = LoopSums("wt_gemm", "wp::float32", 32)
CALL = (
    "wp::tile_matmul_acc(wt_site0_forward, wt_site0_adjoint_a, wt_site0_adjoint_b, var_2, var_3, var_5, var_8, var_9);"
)
ADJOINT = (
    "wp::adj_tile_matmul_acc(wt_site0_forward, wt_site0_adjoint_a, wt_site0_adjoint_b, "
    "var_2, var_3, var_5, var_8, var_9, adj_1, adj_1, adj_1, adj_2, adj_3, adj_5, adj_8, adj_9);"
)


def function(body: str, declarations: str = "", alpha: str = "1.0", beta: str = "1.0") -> str:
    """A kernel as Warp generates it, with a loop around ``body``."""
    return f"""
extern "C" __global__ void kernel_forward(
    wp::launch_bounds_t<2> dim)
{{
        wp::tile_shared_t<wp::float32> var_5 = wp::tile_alloc_empty<wp::float32>();
        const wp::float32 var_8 = {alpha};
        const wp::float32 var_9 = {beta};
        {declarations}
        var_5 = wp::tile_zeros<wp::float32, 64, 64>();
        start_for_0:;
            if (iter_cmp(var_12) == 0) goto end_for_0;
            {body}
            goto start_for_0;
        end_for_0:;
        wp::tile_store<wp::float32, true, false>(var_C, var_38, var_40, var_5);
}}
"""


def edited(source: str) -> list[str]:
    return [line.strip() for line in keep_sums(source, {0: SUMS}, {0}).splitlines()]


def sites_in_loops(source: str) -> set[int]:
    """Sites of which some call keeps its sums in registers."""
    return {site for site in range(2) if keep_sums(source, {site: SUMS}, ()) != source}


def test_a_loop_keeps_its_sums() -> None:
    source = function(CALL)
    assert sites_in_loops(source) == {0}
    lines = edited(source)
    declared = lines.index("wp::float32 wt_sums_0[32];")
    zeroed = lines.index("for (int wt_i = 0; wt_i < 32; ++wt_i) wt_sums_0[wt_i] = wp::float32(0);")
    start = lines.index("start_for_0:;")
    added = next(
        i for i, line in enumerate(lines) if line.startswith("wt_gemm_add(wt_sums_0, var_2.data.ptr, var_3.data.ptr);")
    )
    end = lines.index("end_for_0:;")
    finished = lines.index("WP_TILE_SYNC(); wt_gemm_finish(wt_sums_0, var_5.data.ptr); WP_TILE_SYNC();")
    stored = next(i for i, line in enumerate(lines) if "tile_store" in line)
    assert declared < zeroed < start < added < end < finished < stored
    assert "WP_TILE_SYNC();" in lines[added]
    assert not any(line.startswith("wp::tile_matmul_acc") for line in lines)


def test_a_site_that_is_not_named_is_left_alone() -> None:
    source = function(CALL)
    assert keep_sums(source, {}, ()) == source
    assert keep_sums(source, {1: SUMS}, ()) == source


@pytest.mark.parametrize(
    "body",
    [
        f"{CALL}\n            var_5 = wp::tile_map(relu, var_5);",
        f"var_7 = wp::tile_sum(var_5);\n            {CALL}",
        f"{CALL}\n            {CALL}",
        CALL.replace("var_2, var_3, var_5", "var_5, var_3, var_5"),
        "wp::tile_store(var_C, var_5);",
    ],
    ids=["written", "read", "twice", "an operand", "no product"],
)
def test_c_must_be_alone_with_its_product(body: str) -> None:
    assert sites_in_loops(function(body)) == set()


@pytest.mark.parametrize(
    "declarations",
    [
        "auto& var_20 = var_5;",
        "auto var_20 = wp::tile_view<64, 64>(var_5, 0, 0);",
        "auto var_20 = wp::tile_transpose(var_5);",
        "helper(var_5);",
    ],
)
def test_no_second_name_for_c(declarations: str) -> None:
    assert sites_in_loops(function(CALL, declarations)) == set()


@pytest.mark.parametrize(("alpha", "beta"), [("2.0", "1.0"), ("1.0", "0.0"), ("1.5", "1.0"), ("-1.0", "1.0")])
def test_alpha_and_beta_must_be_one(alpha: str, beta: str) -> None:
    assert sites_in_loops(function(CALL, alpha=alpha, beta=beta)) == set()


def test_a_scale_that_is_computed_does_not_qualify() -> None:
    assert sites_in_loops(function(CALL.replace("var_8", "var_18"))) == set()


def test_a_parameter_does_not_qualify() -> None:
    source = function(CALL).replace(
        "        wp::tile_shared_t<wp::float32> var_5 = wp::tile_alloc_empty<wp::float32>();\n", ""
    )
    assert sites_in_loops(source) == set()


def test_outside_a_loop_nothing_changes() -> None:
    source = function("var_1 = 2;").replace("end_for_0:;", f"end_for_0:;\n        {CALL}")
    assert keep_sums(source, {0: SUMS}, {0}) == source


def test_the_innermost_loop_counts() -> None:
    inner = f"""start_for_1:;
            if (iter_cmp(var_13) == 0) goto end_for_1;
            {CALL}
            goto start_for_1;
            end_for_1:;"""
    lines = edited(function(inner))
    finished = next(i for i, line in enumerate(lines) if "wt_gemm_finish" in line)
    assert lines[finished - 1] == "end_for_1:;"
    # no goto may jump over a declaration with a value
    assert lines.index("wp::float32 wt_sums_0[32];") < lines.index("start_for_0:;")


def test_two_functions_do_not_share() -> None:
    source = function(CALL) + function(CALL, "auto& var_20 = var_5;")
    lines = edited(source)
    assert sum("wt_gemm_finish" in line for line in lines) == 1
    assert sum(line.startswith("wp::tile_matmul_acc") for line in lines) == 1


def test_comments_do_not_count() -> None:
    assert sites_in_loops(function(f"// var_5 is C\n            {CALL}")) == {0}
    assert sites_in_loops(function(f"// {CALL}")) == set()


def reverse(after: str = "") -> str:
    """A backward kernel as Warp generates it."""
    return f"""
extern "C" __global__ void kernel_backward()
{{
        auto& adj_5 = var_5;
        wp::adj_tile_store(var_C, var_38, var_40, var_5, adj_C, adj_38, adj_40, adj_5);
        start_for_0:;
            if (iter_cmp(var_12) == 0) goto end_for_0;
            {CALL}
            {ADJOINT}
            goto start_for_0;
        end_for_0:;
        {after}
}}
"""


def test_a_reverse_loop_does_not_repeat_the_product() -> None:
    lines = edited(reverse())
    assert not any(line.startswith("wp::tile_matmul_acc") for line in lines)
    assert ADJOINT in lines
    assert any(line.startswith("WP_TILE_SYNC();  // wp::tile_matmul_acc") for line in lines)


def test_a_reverse_loop_whose_c_is_read_later_repeats_it() -> None:
    source = reverse("wp::adj_tile_map(relu, var_5, adj_5);")
    assert keep_sums(source, {}, {0}) == source
