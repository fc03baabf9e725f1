"""The sentences of rejections: one for each code, with a place for each value and a remedy where there is one."""

import ast
import functools
from pathlib import Path

import pytest

import warp_tiles
from warp_tiles.gemm import rejected
from warp_tiles.gemm.rejected import REASONS, Rejected, accepted, refuse, rejectable

# nothing that a user changes helps, the sentence already is the setting, or a value has the remedy
WITHOUT_REMEDY = {
    "setting", "cpu", "no_leading_dimension", "not_built", "not_followed", "no_async_copies",
    "double_buffers_asked", "next_stage_leaves_fewer_blocks", "measured", "no_function", "new_c", "new_tile", "used",
    "moving_view", "writes_array", "unknown_effects", "works_on_tile", "as_forward", "shapes", "blocks_do_not_cover",
    "steps_do_not_cover", "little_work", "unsuitable_arguments", "capturing", "loop_configured", "loop_faster",
    "loop_asked", "gpu_without_wgmma", "kernel_dtypes", "no_products", "kernel_sums",
    "kernel_alignment", "kernel_copies", "kernel_side", "kernel_depth", "function_in_bundle", "not_enabled",
    "stages_forbidden", "others_keep_accumulators", "no_calls", "left_to_warp", "changed_since_hash",
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
        if not isinstance(node, ast.Call) or called not in ("Rejected", "refuse"):
            continue
        given, *values = node.args[called == "refuse" :]
        if called == "Rejected" and values:
            values = values[0].elts if isinstance(values[0], ast.Tuple) else [ast.Starred(values[0])]
        count = None if any(isinstance(value, ast.Starred) for value in values) else len(values)
        for code in (given.body, given.orelse) if isinstance(given, ast.IfExp) else (given,):
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


@rejectable
def chosen(size: int, inner: Rejected | None = None) -> int:
    refuse(size > 8, "kernel_side", size)
    accepted(inner, at=3)
    return size


def test_a_function_returns_its_result_or_the_first_rejection() -> None:
    assert chosen(8) == 8
    assert chosen(9, Rejected("cpu")) == Rejected("kernel_side", (9,))
    assert chosen(8, Rejected("cpu")) == Rejected("cpu").at(3)
