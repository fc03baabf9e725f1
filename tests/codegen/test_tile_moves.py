"""Which loads and adjoints of loads are edited, and what the source becomes."""

from __future__ import annotations

from warp_tiles.codegen.tile_moves import move_wide

LOAD = "var_24 = wp::tile_load<wp::float16, true, false, 64, 64>(var_A, var_19, var_21);"
OTHER = "var_34 = wp::tile_load<wp::float16, true, false, 64, 64>(var_B, var_29, var_31);"
PRODUCT = "wp::tile_matmul_acc(wt_site0_forward, wt_site0_adjoint_a, wt_site0_adjoint_b, var_24, var_34, var_6);"
ADJOINT = "wp::adj_tile_load(var_B, var_29, var_31, adj_B, adj_29, adj_31, adj_34);"


def shared(name: str) -> str:
    layout = "wp::tile_layout_strided_t<wp::tile_shape_t<64,64>, wp::tile_stride_t<64,1>>"
    return f"wp::tile_shared_t<wp::float16,{layout}, true> {name} = wp::tile_alloc_empty<wp::float16>();"


def module(body: str, product: str = PRODUCT, more: str = "") -> str:
    return f"""#define WP_TILE_BLOCK_DIM 128
#include "builtin.h"
#include "deterministic.h"
#define float(x) cast_float(x)

extern "C" __global__ void kernel_forward(
    wp::launch_bounds_t<2> dim)
{{
        {shared("var_24")}
        {shared("var_34")}
        {more}
        start_for_0:;
            if (iter_cmp(var_13) == 0) goto end_for_0;
            {body}
            {product}
            goto start_for_0;
        end_for_0:;
}}
"""


def edited(source: str) -> list[str]:
    """Lines of the kernel, behind the header that was put in."""
    text = move_wide(source)
    return [line.strip() for line in text[text.index("#define float(x)") :].splitlines()]


def test_loads_of_a_loop_go_side_by_side() -> None:
    lines = edited(module(f"{LOAD}\n            var_29 = wp::mul(var_14, var_28);\n            // b = ...\n{OTHER}"))
    first = lines.index(f"wt_module::load<true>({LOAD[9:-1].join(['var_24, ', ''])});")
    second = next(i for i, line in enumerate(lines) if line.startswith("wt_module::load<false>(var_34, "))
    waits = lines.index("wt_module::loaded();")
    assert first < second < waits == lines.index(PRODUCT) - 1


def test_the_header_follows_the_includes() -> None:
    text = move_wide(module(LOAD))
    assert text.index('"deterministic.h"') < text.index("namespace wt_module {") < text.index("#define float(x)")


def test_anything_but_arithmetic_waits_for_the_loads() -> None:
    for line in ("var_9 = wp::tile_sum(var_24);", "if (var_3) {", "goto end_for_0;", "label_1:;", "f(var_24);"):
        lines = edited(module(f"{LOAD}\n            {line}\n            {OTHER}"))
        assert lines.index("wt_module::loaded();") == lines.index(line) - 1
        assert any(text.startswith("wt_module::load<true>(var_34, ") for text in lines)


def test_a_tile_that_is_copied_or_added_is_waited_for() -> None:
    for line in ("var_25 = wp::copy(var_24);", "var_26 = wp::add(var_24, var_24);", "var_27 = wp::mul(var_c, var_28);"):
        parameter = "tile_c& var_c)"  # of a function, whose types are templates
        lines = edited(module(f"{LOAD}\n            {line}\n            {OTHER}", more=parameter))
        assert lines.index("wt_module::loaded();") == lines.index(line) - 1
        assert any(text.startswith("wt_module::load<true>(var_34, ") for text in lines)


def test_tiles_in_registers_are_left_alone_because_their_loads_need_no_barrier() -> None:
    register = "wp::tile_register_t<wp::float16,wp::tile_layout_register_t<wp::tile_shape_t<64,64>>> var_44 = {};"
    load = LOAD.replace("var_24", "var_44")
    lines = edited(module(f"{load}\n            {LOAD}", more=register))
    assert load in lines
    assert lines[lines.index(load) + 1].startswith("wt_module::load<true>(var_24, ")


def test_loads_outside_loops_go_side_by_side_too() -> None:
    lines = edited(module("").replace("start_for_0:;", f"{LOAD}\n        {OTHER}\n        start_for_0:;"))
    first = next(i for i, line in enumerate(lines) if line.startswith("wt_module::load<true>(var_24, "))
    assert lines[first + 1].startswith("wt_module::load<false>(var_34, ")
    assert lines[first + 2 : first + 4] == ["wt_module::loaded();", "start_for_0:;"]


def test_a_load_at_the_end_of_a_function_is_waited_for() -> None:
    loop = "            goto start_for_0;\n        end_for_0:;\n"
    lines = edited(module("", product=f"{PRODUCT}\n{LOAD}").replace(loop, ""))
    load = next(i for i, line in enumerate(lines) if line.startswith("wt_module::load<true>(var_24, "))
    assert lines[load + 1 :] == ["wt_module::loaded();", "}"]


def test_tiles_of_other_dimensions_are_left_alone() -> None:
    flat = "var_24 = wp::tile_load<wp::float16, true, false, 64>(var_A, var_19);"
    assert move_wide(module(flat)) == module(flat)


def test_functions_without_a_product_are_left_alone() -> None:
    source = module(f"{LOAD}\n{ADJOINT}", product="wp::tile_store(var_24);")
    assert move_wide(source) == source


def test_adjoints_of_loads_add_vectors() -> None:
    assert f"wt_module::adj_load{ADJOINT[17:]}" in edited(module(ADJOINT))


def test_adjoints_of_other_dimensions_and_modes_are_left_alone() -> None:
    for call in (
        "wp::adj_tile_load(var_B, var_29, adj_B, adj_29, adj_34);",
        "wp::adj_tile_load(var_B, var_29, var_31, adj_B, adj_29, adj_31, adj_34, det_0);",
    ):
        assert call in edited(module(f"{LOAD}\n{call}"))


def test_comments_are_kept() -> None:
    comment = f"// {LOAD}"
    assert comment in edited(module(f"{LOAD}\n            {comment}"))
