"""The generated source: its hooks, where there are none, and that all else is Warp's own text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests._warp.generate import comparable, every, expanded, generate, noted, warps_source
from tests.integration.helpers import gemm, load
from tests.loop_forms import FORMS, LOAD_A, LOAD_B, START, STORE, Form, kernel
from warp_tiles.codegen.trace import Branch, Loop, Operation

RANGE_FORM = FORMS["bounds from a shape"]
on = pytest.mark.usefixtures("enabled")


# ---- hooks


@on
@pytest.mark.parametrize("name", FORMS)
def test_hooks_have_numbers_of_their_own_and_all_stand_in_the_source(name: str) -> None:
    generated = generate(load(FORMS[name].text))
    numbers: list[int] = []
    for function in generated.trace.functions.values():
        nodes = list(every(function.nodes))
        numbers += [node.hook for node in nodes if not isinstance(node, Branch) and node.hook is not None]
        waits = [node.wait for node in nodes] + [node.end_wait for node in nodes if not isinstance(node, Operation)]
        numbers += [number for number in (*waits, function.end_wait) if number is not None]
        for node in nodes:
            if isinstance(node, Operation):
                assert (node.hook is not None) == (node.name == "tile_load" or node.product is not None)
                if node.hook is not None:
                    assert f"WT_AT_{node.hook}(" in generated.source
            elif isinstance(node, Loop):
                assert f"WT_BEGIN_{node.hook}\n" in generated.source
                assert f"WT_END_{node.hook}\n" in generated.source
    assert len(set(numbers)) == len(numbers)


# ---- nothing is recorded


def is_bare(source: str) -> bool:
    return "WT_" not in source and "warp_tiles" not in source


@on
def test_nothing_is_recorded_for_a_cpu() -> None:
    generated = generate(load(RANGE_FORM.text), arch=None)
    assert generated.trace.functions == {}
    assert "WT_" not in generated.source


@on
@pytest.mark.parametrize("text", [kernel("C[i, j] = 1.0"), kernel(START, STORE)])
def test_nothing_is_recorded_of_modules_without_products(text: str) -> None:
    assert is_bare(source_here(load(text)))


@on
def test_nothing_is_recorded_with_the_policy_off() -> None:
    module = load(gemm())
    with noted() as found, warp_tiles.override(policy="off"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(warp_tiles._warp.find("build"), "build_lto_dot", lambda *args, **kwargs: ("theirs", b""))
        assert is_bare(source_here(module))
    assert found == []


def source_here(module: Any) -> str:
    """What Warp generates now, with whatever is hooked into it."""
    context = warp_tiles._warp.find("context")
    user = wp.get_module(module.__name__)
    user.get_module_hash(64)
    options = user.resolve_options(wp.config) | {"output_arch": 90, "block_dim": 64}
    source: str = context.ModuleBuilder(user, options, hasher=user.hashers[64]).codegen("cuda")
    return source


@on
def test_nothing_is_recorded_without_a_builder() -> None:
    module = load(RANGE_FORM.text)
    adjoint = module.multiply.adj
    adjoint.build(None, {"block_dim": 64, "output_arch": 90, "enable_backward": True})
    text = "\n".join(line for block in adjoint.blocks for line in (*block.body_forward, *block.body_replay))
    assert "tile_matmul" in text
    assert is_bare(text)


# ---- the text is Warp's


@pytest.mark.parametrize("name", FORMS)
def test_outside_the_hooks_the_source_is_warps(name: str) -> None:
    module = load(FORMS[name].text)
    before = comparable(warps_source(module))
    with warp_tiles.enabled():
        source = generate(module).source
    assert "WT_" in source
    assert comparable(expanded(source)) == before


@pytest.mark.parametrize("options", [{"lineinfo": True}, {"enable_backward": False}, {"max_unroll": 2}], ids=str)
def test_options_change_no_text_either(options: dict[str, Any]) -> None:
    module = load(FORMS["unrolled in a loop"].text, **options)
    before = comparable(warps_source(module))
    with warp_tiles.enabled():
        after = comparable(expanded(generate(module).source))
    # each hook is a statement, with the line of its own that lineinfo asks for
    assert without_lines(after) == without_lines(before)


def without_lines(source: str) -> list[str]:
    return [line for line in source.splitlines() if not line.startswith("#line")]


def test_the_comparison_finds_a_difference() -> None:
    form: Form = replace(RANGE_FORM, text=kernel(START, LOAD_A.format(k=0), LOAD_B.format(k=0), STORE))
    one, other = load(form.text), load(form.text.replace("(16, 32)", "(16, 16)"))
    assert comparable(warps_source(one)) != comparable(warps_source(other))
