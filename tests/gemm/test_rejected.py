"""The sentences of rejections: one for each code, with a place for each value and a remedy where there is one."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import warp_tiles
from warp_tiles.gemm import rejected
from warp_tiles.gemm.rejected import REASONS, Rejected

# nothing that a user changes helps, the sentence already is the setting, or a value has the remedy
WITHOUT_REMEDY = {
    "setting", "cpu", "no_leading_dimension", "not_built", "not_followed", "solver_function", "no_async_copies",
    "double_buffers_asked", "next_stage_leaves_fewer_blocks", "measured", "no_function", "new_c", "new_tile", "used",
    "moving_view", "writes_array", "unknown_effects", "works_on_tile", "as_forward", "shapes", "blocks_do_not_cover",
    "steps_do_not_cover", "little_work", "unsuitable_arguments", "capturing", "loop_configured", "loop_faster",
    "loop_asked", "gpu_without_wgmma", "kernel_dtypes", "kernel_tf32_layout", "no_products", "kernel_sums",
    "kernel_alignment", "kernel_side", "not_enabled",
}  # fmt: skip


@functools.cache
def nodes() -> tuple[ast.AST, ...]:
    """The syntax of the package without the table."""
    paths = set(Path(warp_tiles.__file__).parent.rglob("*.py")) - {Path(rejected.__file__)}
    return tuple(node for path in sorted(paths) for node in ast.walk(ast.parse(path.read_text("utf-8"))))


@functools.cache
def used() -> dict[str, set[int | None]]:
    """The numbers of values that the package gives to each code; None where the source does not tell."""
    found: dict[str, set[int | None]] = {}
    for node in nodes():
        if isinstance(node, ast.Constant) and node.value in REASONS:
            found.setdefault(str(node.value), set())
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if not isinstance(node, ast.Call):
            continue
        if called == "Rejected.first":
            found |= {str(one.arg): {0} for one in node.keywords}
        if called == "_expect":  # of codegen/whole.py
            unpacks = any(isinstance(value, ast.Starred) for value in node.args)
            found[ast.literal_eval(node.args[1])] = {None if unpacks else len(node.args) - 2}
        if called == "Rejected":
            values = node.args[1:]
            parts = [part for value in values for part in (value.elts if isinstance(value, ast.Tuple) else [None])]
            count = None if any(part is None or isinstance(part, ast.Starred) for part in parts) else len(parts)
            branch = node.args[0]
            for code in (branch.body, branch.orelse) if isinstance(branch, ast.IfExp) else (branch,):
                if isinstance(code, ast.Constant):
                    found.setdefault(str(code.value), set()).add(count)
    return found


def test_the_table_has_the_codes_of_the_package() -> None:
    assert used().keys() == REASONS.keys()


@pytest.mark.parametrize("code", REASONS)
def test_a_sentence(code: str) -> None:
    sentence = REASONS[code]
    assert used()[code] <= {sentence.count("{}"), None}
    problem, _, remedy = sentence.partition(": ")
    assert bool(remedy) == (code not in WITHOUT_REMEDY)
    assert not sentence.endswith(".")
    assert problem[:1].islower() or problem.startswith(("A ", "A,", "C ", "Warp", "{}"))
    assert sentence == "{}" or list(REASONS.values()).count(sentence) == 1


def test_a_rejection_is_about_a_line_or_a_part() -> None:
    found = Rejected("used", ("tile_sum", "C"))
    assert str(found.at(9).after("no stages: ")) == "no stages: line 9: tile_sum uses C in each iteration"
    assert found.at(9) == Rejected("used", ("tile_sum", "C"), "line 9: ")


def test_the_first_code_that_holds() -> None:
    assert Rejected.first(cpu=False, not_built=True, not_enabled=True) == Rejected("not_built")
    assert Rejected.first(cpu=False) is None
