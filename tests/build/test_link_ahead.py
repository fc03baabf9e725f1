"""Modules that are linked before they are needed: the cubin is used for the same inputs alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.build.test_module_build import Case, artifact
from tests.codegen.modules import BIG, generated
from warp_tiles.build.module_build import ModuleBuild
from warp_tiles.compile.module import ModuleSource
from warp_tiles.gemm.variant import Role
from warp_tiles.plan.planning import FunctionUse, resolve
from warp_tiles.plan.registers import with_register_limit

FORWARD = BIG[Role.FORWARD]


def link_ahead(case: Case, **keywords: Any) -> None:
    """Build and link the module of a case as a build in the background does."""
    plan = with_register_limit(resolve(case.session, case.called, ["k"], [FunctionUse("k", "k", False, "")]))
    build = ModuleBuild(case.engine, generated(case.session, called=case.called), plan)  # type: ignore[arg-type]
    assert build.build_ahead()
    build.link_ahead(ModuleSource("module.cu", 90, "cubin", "/warp/native", keywords))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_the_same_module_takes_the_cubin(case: Case) -> None:
    link_ahead(case)
    assert [len(case.engine.pool.compiled), len(case.engine.pool.linked)] == [1, 1]
    assert case.build().linker == "warp_tiles"
    assert [len(case.engine.pool.compiled), len(case.engine.pool.linked)] == [1, 1]
    assert case.output.read_bytes() == b"the cubin"
    assert case.engine.linked_ahead == {}
    assert case.engine.kept == [artifact(FORWARD)]


def test_other_options_are_linked_again(case: Case) -> None:
    link_ahead(case)
    case.build(fast_math=True)
    assert len(case.engine.pool.linked) == 2


def test_another_function_is_linked_again(case: Case) -> None:
    link_ahead(case)
    case.engine.started.clear()
    case.engine.results[FORWARD] = replace(artifact(FORWARD), payload=b"other LTO-IR")
    case.build()
    assert [len(request.inputs) for request in case.engine.pool.linked] == [2, 2]
    assert case.engine.pool.linked[1].inputs[1] == b"other LTO-IR"


@pytest.mark.parametrize("keywords", [{"lineinfo": True}, {"config": "debug"}], ids=str)
def test_modules_that_are_not_linked_ahead(case: Case, keywords: dict[str, Any]) -> None:
    """Line numbers refer to the source of the module that the program loads."""
    link_ahead(case, **keywords)
    assert case.engine.linked_ahead == {}
    assert case.engine.pool.linked == []
