"""Modules whose loops have stages: no function is built, and the module is linked, kept and limited all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import warp_tiles
from tests.integration.helpers import compile_module, gemm_loop, load, roles
from tests.integration.test_loop_targets import FORWARD
from tests.nightly import some

pytestmark = pytest.mark.usefixtures("enabled")


@pytest.mark.slow
@pytest.mark.parametrize("arch", some([80, 90, 120, 86, 89, 100], 3))
def test_a_module_without_functions_is_linked_limited_and_kept(tmp_path: Path, arch: int) -> None:
    for number in range(2):
        with warp_tiles.override(modules="tiles"):
            output, record = compile_module(load(FORWARD, block_dim=256), tmp_path / str(number), arch)
        assert (record["builds"], record["linker"], record["register_limit"]) == ([], "warp_tiles", 128)
        assert record["target"] == ("sm_90a" if arch == 90 else f"sm_{arch}")
        assert record["module_key"]
        assert record["found"] is bool(number)
        assert 0 < output.stat().st_size < 100_000
    (forward,) = (variant for variant in record["variants"] if variant["role"] == "forward")
    assert (forward["needed"], forward["provider"], forward["key"]) == (True, "stages", "")
    assert forward["reason"].endswith("computed by its loop from stages, so no function is built")


def test_a_loop_and_its_reverse_pass_need_no_function() -> None:
    plan = warp_tiles.plan(load(gemm_loop(dtype="float16")), arch=90, block_dim=128)
    assert plan is not None
    assert roles(plan, needed=True) == ["forward", "adjoint_a", "adjoint_b"]
    assert {variant.provider for variant in plan.variants} == {"stages"}
    assert plan.needed == ()


@pytest.mark.slow
def test_an_adjoint_without_stages_builds_its_functions_alone(tmp_path: Path) -> None:
    """With a break in the loop, the reverse pass has no stages."""
    text = gemm_loop(dtype="float16").replace(
        "        wp.tile_matmul(a, b, c)", "        wp.tile_matmul(a, b, c)\n        if step > 100:\n            break"
    )
    _, record = compile_module(load(text, block_dim=128), tmp_path)
    assert record["loops"][0]["instruction"] == "wgmma"
    assert record["loops"][0]["reverse_instructions"] == []
    providers = {variant["role"]: variant["provider"] for variant in record["variants"]}
    assert providers == {"forward": "stages", "adjoint_a": "own", "adjoint_b": "own"}
    assert len(record["builds"]) == 2
    assert record["linker"] == "warp_tiles"


@pytest.mark.slow
def test_a_forced_provider_that_costs_a_loop_its_stages_warns(tmp_path: Path) -> None:
    with warp_tiles.override(provider="cublasdx"):
        plan = warp_tiles.plan(load(FORWARD), arch=90, block_dim=128)
        assert plan is not None
        (loop,) = plan.loops
        assert loop.state == "as_warp"
        assert "the setting provider (override()) is 'cublasdx'" in loop.cost
        assert "0.09 of the speed of stages" in loop.explanation
        with pytest.warns(RuntimeWarning, match="0.09 of the speed of stages"):
            compile_module(load(FORWARD, block_dim=128), tmp_path)
