"""The generated source: hooks, sources without hooks, and Warp's own text outside the hooks."""

import re
from typing import Any

import pytest

import warp_tiles
from tests._warp.generate import all_nodes, comparable, expanded, generate, source_of, traced_modules, warps_source
from tests.computed_kernels import ROUNDED
from tests.integration.helpers import gemm, load
from tests.loop_forms import FORMS
from tests.loop_texts import START, STORE, kernel
from warp_tiles._warp.internals import find
from warp_tiles.codegen.operations import (
    ASSIGN,
    COPY,
    ELEMENTWISE,
    OPERATORS,
    REDUCE,
    SUM,
    TILE_ASSIGN,
    UNREAD_ASSIGN,
    Operation,
    Tile,
)
from warp_tiles.codegen.trace import Branch, Loop
from warp_tiles.plan.planner import GeneratedModule

RANGE_FORM = FORMS["bounds from a shape"]
HOOKED = {"tile_load", "tile_store", "tile_astype", "tile_map", "tile_zeros", "tile_transpose", TILE_ASSIGN}
on = pytest.mark.usefixtures("enabled")


# ---- hooks


def check_hooks(generated: GeneratedModule) -> None:
    """Hooks have unique numbers and are in the source."""
    numbers: list[int] = []
    for function in generated.trace.functions.values():
        nodes = list(all_nodes(function.nodes))
        numbers += [node.hook for node in nodes if not isinstance(node, Branch) and node.hook is not None]
        waits = [node.wait for node in nodes] + [node.end_wait for node in nodes if not isinstance(node, Operation)]
        numbers += [number for number in (*waits, function.end_wait) if number is not None]
        for node in nodes:
            if isinstance(node, Operation):
                is_operator = node.name in OPERATORS | {"add_inplace", "sub_inplace", COPY} and any(
                    isinstance(value, Tile) for value in node.operands
                )
                is_operator |= node.name in (REDUCE, SUM) and not isinstance(node.operands[-1], Tile)
                is_copy = node.name == UNREAD_ASSIGN or (node.name == ASSIGN and len(node.tiles) == 2)
                is_hooked = node.name in HOOKED or is_operator or is_copy or node.product is not None
                assert (node.hook is not None) == is_hooked
                if node.hook is not None:
                    assert f"WT_AT_{node.hook}(" in generated.source
                    assert (f"WT_ADJOINT_{node.hook}(" in generated.source) == node.reverses
                    is_repeated = node.reverses and node.name in ELEMENTWISE
                    assert (f"WT_RECOMPUTE_{node.hook}(" in generated.source) == is_repeated
                    assert (f"WT_ZERO_{node.hook}(" in generated.source) == node.zeroes
            elif isinstance(node, Loop):
                assert f"WT_BEGIN_{node.hook}\n" in generated.source
                assert f"WT_END_{node.hook}\n" in generated.source
                assert (f"WT_REVERSE_BEGIN_{node.hook}\n" in generated.source) == node.reverses
                assert (f"WT_REVERSE_END_{node.hook}\n" in generated.source) == node.reverses
    assert len(set(numbers)) == len(numbers)


# ---- modules without a trace


def is_bare(source: str) -> bool:
    return "WT_" not in source and "warp_tiles" not in source


@on
@pytest.mark.parametrize("text", [kernel("C[i, j] = 1.0"), kernel(START, STORE)])
def test_nothing_is_recorded_for_modules_without_products_or_for_a_cpu(text: str) -> None:
    assert is_bare(source_of(load(text)))
    generated = generate(load(RANGE_FORM.text), arch=None)
    assert generated.trace.functions == {}
    assert "WT_" not in generated.source


@on
def test_nothing_is_recorded_with_the_policy_off() -> None:
    module = load(gemm())
    with traced_modules() as found, warp_tiles.override(policy="off"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(find("build"), "build_lto_dot", lambda *args, **kwargs: ("function", b""))
        assert is_bare(source_of(module))
    assert found == []


@on
def test_nothing_is_recorded_without_a_builder() -> None:
    module = load(RANGE_FORM.text)
    adjoint = module.multiply.adj
    adjoint.build(None, {"block_dim": 64, "output_arch": 90, "enable_backward": True})
    text = "\n".join(line for block in adjoint.blocks for line in (*block.body_forward, *block.body_replay))
    assert "tile_matmul" in text
    assert is_bare(text)


# ---- text outside the hooks


@pytest.mark.parametrize("name", FORMS)
def test_hooks_are_in_the_source_which_equals_warps_outside_of_them(name: str) -> None:
    module = load(FORMS[name].text)
    before = comparable(warps_source(module))
    with warp_tiles.enabled():
        generated = generate(module)
    check_hooks(generated)
    assert "WT_" in generated.source
    assert comparable(expanded(generated.source)) == before


def test_hooks_of_elementwise_operations() -> None:
    module = load(ROUNDED, block_dim=64)
    before = comparable(warps_source(module))
    with warp_tiles.enabled():
        source = generate(module).source
    assert len(re.findall(r"WT_RECOMPUTE_\d+\(.*\) WT_ADJOINT_\d+\(", source)) == 7
    assert comparable(expanded(source)) == before


@pytest.mark.parametrize("options", [{"lineinfo": True}, {"enable_backward": False}, {"max_unroll": 2}], ids=str)
def test_module_options_do_not_change_the_text(options: dict[str, Any]) -> None:
    module = load(FORMS["unrolled in a loop"].text, **options)
    before = comparable(warps_source(module))
    with warp_tiles.enabled():
        after = comparable(expanded(generate(module).source))
    # with lineinfo, each hook has its own #line
    texts = [[line for line in source.splitlines() if not line.startswith("#line")] for source in (before, after)]
    assert texts[0] == texts[1]
