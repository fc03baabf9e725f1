"""Adjoints of one product whose operands may share memory: the second one waits for the first."""

from __future__ import annotations

import pytest

from warp_tiles.codegen.shared_gradients import wait_between, waiting_function

OWN = "        wp::tile_shared_t<wp::float32> {0} = wp::tile_alloc_empty<wp::float32>();\n"
VIEW = "        wp::tile_shared_t<wp::float32> {0};\n"


def source(a: str, b: str, declarations: str, call: str = "adj_tile_matmul_acc") -> str:
    names = "wt_site0_forward, wt_site0_adjoint_a, wt_site0_adjoint_b"
    arguments = f"{names}, {a}, {b}, var_9, var_1, var_2, {names}, adj_4, adj_5, adj_9, adj_1, adj_2"
    return f"static void f()\n{{\n{declarations}        wp::{call}({arguments});\n}}\n"


def waits(text: str, sites: tuple[int, ...] = (0,)) -> bool:
    """Whether the second adjoint waits, in both places that name it; nothing else may have changed."""
    edited = wait_between(text, sites)
    assert edited.replace("_waiting", "") == text
    assert edited.count("wt_site0_adjoint_b_waiting") == edited.count("_waiting")
    assert edited.count("_waiting") in (0, 2)
    return edited != text


@pytest.mark.parametrize("call", ["adj_tile_matmul", "adj_tile_matmul_acc"])
def test_tiles_with_memory_of_their_own_need_no_wait(call: str) -> None:
    both = OWN.format("var_4") + OWN.format("var_5")
    assert not waits(source("var_4", "var_5", both, call))


@pytest.mark.parametrize("call", ["adj_tile_matmul", "adj_tile_matmul_acc", "adj_tile_matmul<1>"])
def test_one_tile_on_both_sides_waits(call: str) -> None:
    assert waits(source("var_4", "var_4", OWN.format("var_4"), call))


def test_a_view_waits() -> None:
    assert waits(source("var_4", "var_5", OWN.format("var_4") + VIEW.format("var_5")))
    assert waits(source("var_5", "var_4", OWN.format("var_4") + VIEW.format("var_5")))


def test_what_is_not_recognised_waits() -> None:
    both = OWN.format("var_4") + OWN.format("var_5")
    assert waits(source("var_4", "&var_5", both))


def test_parameters_of_a_function_wait() -> None:
    assert waits(source("var_a", "var_b", ""))


def test_declarations_of_another_function_do_not_count() -> None:
    other = f"static void g()\n{{\n{OWN.format('var_4')}{OWN.format('var_5')}}}\n"
    assert waits(other + source("var_4", "var_5", ""))


def test_sites_on_the_scalar_path_are_left_alone() -> None:
    assert not waits(source("var_4", "var_4", ""), sites=())
    assert not waits(source("var_4", "var_4", ""), sites=(1,))


def test_a_forward_call_is_left_alone() -> None:
    text = "        wp::tile_matmul(wt_site0_forward, wt_site0_adjoint_a, wt_site0_adjoint_b, var_4, var_4, var_9);\n"
    assert wait_between(text, (0,)) == text


def test_the_waiting_function() -> None:
    text = waiting_function("gemm", ("float*", "half*", "half*", "float*", "float*"))
    assert text == (
        "static void gemm_waiting(float* alpha, half* a, half* b, float* beta, float* c) "
        "{ WP_TILE_SYNC(); gemm(alpha, a, b, beta, c); }"
    )
