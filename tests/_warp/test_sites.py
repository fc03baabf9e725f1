"""The call of Warp's own builder: libmathdx gets the whole problem."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import warp as wp

from tests.emulator.gemm import operand
from warp_tiles._warp.sites import WARP_LAYOUTS, libmathdx_build
from warp_tiles.errors import BuildError
from warp_tiles.gemm.problem import GemmProblem

PROBLEM = GemmProblem(
    16, 24, 32,
    operand("float16", True, 40, 16), operand("float16", False, 33, 2), operand("float32", True, 28, 16),
    "default", 64, 90,
)  # fmt: skip
SINGLE = replace(
    PROBLEM,
    a=operand("float32", True, 32, 16),
    b=operand("float32", True, 24, 4),
    c=operand("float32", False, 16, 16),
    precision="tf32",
)
Call = dict[str, Any]


def recorder(calls: list[Call]) -> Callable[..., tuple[str, bytes]]:
    """A fake of Warp's ``build_lto_dot``, which stores its arguments."""

    def build_lto_dot(
        m: int, n: int, k: int, adtype: Any, bdtype: Any, cdtype: Any, alayout: Any, blayout: Any, clayout: Any,
        arch: int, num_threads: int, builder: Any, *, lda: int | None = None, ldb: int | None = None,
        ldc: int | None = None, aligned_bases: Any = None, precision: str = "default",
    ) -> tuple[str, bytes]:  # fmt: skip
        calls.append({name: value for name, value in locals().items() if name != "calls"})
        assert builder.ltoirs == {}
        return "dot", b"LTO-IR"

    return build_lto_dot


def test_the_whole_problem_is_passed_on() -> None:
    calls: list[Call] = []
    for problem in (PROBLEM, SINGLE):
        assert libmathdx_build(recorder(calls), problem) == ("dot", b"LTO-IR")
    call, single = calls
    assert (call["m"], call["n"], call["k"]) == (16, 24, 32)
    assert (call["adtype"], call["bdtype"], call["cdtype"]) == (wp.float16, wp.float16, wp.float32)
    assert [WARP_LAYOUTS[call[f"{name}layout"]] for name in "abc"] == ["row_major", "col_major", "row_major"]
    assert (call["lda"], call["ldb"], call["ldc"]) == (40, 33, 28)
    assert (call["arch"], call["num_threads"]) == (90, 64)
    assert (call["precision"], single["precision"]) == ("default", "tf32")
    above_an_element = (True, False, True)
    assert call["aligned_bases"] == single["aligned_bases"] == above_an_element


def test_a_warp_without_tf32_refuses_it() -> None:
    def build_lto_dot(*arguments: Any, lda: int, ldb: int, ldc: int) -> tuple[str, bytes]:
        return f"dot_{lda}_{ldb}_{ldc}", b"LTO-IR"

    assert libmathdx_build(build_lto_dot, PROBLEM)[0] == "dot_40_33_28"
    with pytest.raises(BuildError, match="cannot build"):
        libmathdx_build(build_lto_dot, SINGLE)


def test_an_error_of_libmathdx_has_its_text_as_the_log() -> None:
    def build_lto_dot(*arguments: Any, **keywords: Any) -> tuple[str, bytes]:
        raise RuntimeError("no such configuration")

    with pytest.raises(BuildError, match="libmathdx could not build 16x24x32") as caught:
        libmathdx_build(build_lto_dot, PROBLEM)
    assert caught.value.log == "no such configuration"
