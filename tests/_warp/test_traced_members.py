"""A newer Warp whose code generator cannot be traced: products are served, and loops stay as Warp generates them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import warp as wp

import warp_tiles
from tests._warp.generate import generate
from tests.integration.helpers import compile_module, load
from tests.loop_forms import FORMS
from tests.nightly import some
from warp_tiles._warp.internals import TRACED, find
from warp_tiles.cli import plan_commands as plan_command

PATHS = list(TRACED)
WITH_PARAMETERS = [path for path, parameters in TRACED.items() if parameters]
TEXT = FORMS["bounds from a shape"].text


@contextmanager
def enabled_without(path: str, caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Enable warp_tiles in a Warp that lacks a part. Yields the logged messages.

    Warp itself needs the part to generate code, so the part is restored before the with-block.
    """
    wp.init()
    owner, _, name = path.rpartition(".")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "warp_tiles"):
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(find(owner), name)
            warp_tiles.enable()
        try:
            yield [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        finally:
            warp_tiles.disable()


@pytest.mark.parametrize("path", some(PATHS, 3))
def test_a_missing_part_is_named_once_and_loops_stay_unchanged(path: str, caplog: pytest.LogCaptureFixture) -> None:
    module = load(TEXT)
    wp.init()
    adjoint = find("codegen.Adjoint")
    before = dict(vars(adjoint))
    with enabled_without(path, caplog) as messages:
        (message,) = messages
        changed = {name for name, value in vars(adjoint).items() if value is not before.get(name)}
        assert changed == {"build"}, "nothing is recorded"
        assert f"warp._src.{path}" in message
        assert wp.__version__ in message
        assert "loops" in message
        plan = warp_tiles.plan(module, arch=90, block_dim=64)
        assert plan.loops == ()
        assert plan.loops_reason in message
        assert f"warp._src.{path}" in plan.loops_reason
        assert plan.to_json()["loops_reason"] == plan.loops_reason
        assert warp_tiles.plan(module, block_dim=64).loops_reason == "", "loops for a CPU are not traced"
        assert {item.provider for item in plan.needed} == {"own"}
        assert [item.role.value for item in plan.needed] == ["forward", "adjoint_a", "adjoint_b"]
        generated = generate(module)
        assert generated.trace.functions == {}
        assert generated.called == {0}, "the generated adjoints are known nevertheless"
        assert "WT_" not in generated.source
        assert "wt_site0_forward" in generated.source
    assert dict(vars(adjoint)) == before


@pytest.mark.parametrize("path", WITH_PARAMETERS)
def test_a_missing_parameter_is_named(path: str, caplog: pytest.LogCaptureFixture) -> None:
    wp.init()
    owner, _, name = path.rpartition(".")
    with caplog.at_level(logging.WARNING, "warp_tiles"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(find(owner), name, lambda self: None)
        warp_tiles.enable()
        warp_tiles.disable()
    (record,) = caplog.records
    first = TRACED[path].split()[0]
    assert f"parameter '{first}' of warp._src.{path}" in record.getMessage()


def test_the_kernel_is_compiled(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with enabled_without("codegen.Adjoint.add_return", caplog):
        _, record = compile_module(load(TEXT, block_dim=64), tmp_path, use_ptx=True)
    assert record["linker"] == "warp_tiles", record
    assert {build["provider"] for build in record["builds"]} == {"own"}
    assert record["loops"] == []
    assert "warp._src.codegen.Adjoint.add_return" in record["loops_reason"]
    (source,) = (path.read_text() for path in tmp_path.glob("*.cu"))
    assert "WT_AT_" not in source
    assert "_finish(" not in source


def test_the_command_prints_why_loops_stay_unchanged(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with enabled_without("types.is_reference", caplog):
        plan_command.print_plan(warp_tiles.plan(load(TEXT), arch=90, block_dim=64).to_json())
    assert "loops stay as Warp generates them: Warp" in capsys.readouterr().out


def test_this_warp_has_every_part(caplog: pytest.LogCaptureFixture) -> None:
    wp.init()
    with caplog.at_level(logging.WARNING, "warp_tiles"), warp_tiles.enabled():
        adjoint = find("codegen.Adjoint")
        for path in PATHS:
            if path.startswith("codegen.Adjoint."):
                assert hasattr(vars(adjoint)[path.rpartition(".")[2]], "__wrapped__")
        assert warp_tiles.plan(load(TEXT), arch=90, block_dim=64).loops_reason == ""
    assert caplog.records == []
