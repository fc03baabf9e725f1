"""The kernel check: its configurations cover the templates."""

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.nightly import some
from tests.providers import kernel_checks as checks
from warp_tiles import settings
from warp_tiles.build.engine import Engine
from warp_tiles.cli.common import write_depfile
from warp_tiles.errors import OutputError
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import Instruction, TileConfig
from warp_tiles.providers.base import Recipe
from warp_tiles.solver.problem import OPERANDS, RIGHT_SIDES, SolverProblem, reason_unsupported
from warp_tiles.util.threads import side_by_side


def checked(kind: type) -> list[Any]:
    """The checks of one kind of problem."""
    return [job for job in checks.all_checks() if isinstance(job.problem, kind)]


def values(items: list[Any], name: str) -> set[Any]:
    return {getattr(item, name) for item in items}


@pytest.mark.parametrize("provider", ["own", "cublasdx"])
def test_the_checks_cover_every_dtype_arch_and_arrangement(provider: str) -> None:
    problems = [job.problem for job in checked(GemmProblem) if job.provider.name == provider]
    assert len(values(problems, "symbol")) == len(problems) <= 32
    operands = [operand for problem in problems for operand in (problem.a, problem.b, problem.c)]
    assert values(operands, "dtype") == {"float16", "bfloat16", "float32", "float64"}
    assert values(problems, "arch") >= {75, 80, 90, 120}
    assert values(problems, "precision") == {"default", "tf32"}
    assert values(problems, "is_dense") == {False, True}
    assert min(values(problems, "m")) < 8
    for name in "abc":
        assert values([getattr(problem, name) for problem in problems], "arrangement") == {"row_major", "col_major"}


def test_the_checks_cover_every_instruction_and_field() -> None:
    configs = [job.tile_config for job in checked(GemmProblem) if job.tile_config is not None]
    assert values(configs, "instruction") == set(get_args(Instruction))
    for item in fields(TileConfig):
        assert len(values(configs, item.name)) > 1, f"{item.name} is the same in every check"


def test_the_checks_cover_every_solver_function() -> None:
    jobs = checked(SolverProblem)
    problems = [job.problem for job in jobs]
    assert len(values(problems, "symbol")) == len(problems) <= 32
    assert values(problems, "arch") >= {75, 80, 90, 120}
    for function, names in OPERANDS.items():
        same = [problem for problem in problems if problem.function == function]
        assert values(same, "dtype") == {"float32", "float64"}
        assert values(same, "in_place") == {False, True}
        assert {operand.alignment for problem in same for operand in problem.operands} >= {16}
        for position, name in enumerate(names):
            found = values([problem.operands[position] for problem in same], "arrangement")
            assert found == {"row_major", "col_major"}, f"{name} of {function}"
        lanes = {job.tile_config.lanes for job in jobs if job.problem.function == function}
        assert (len(lanes) > 1) == (function != "cholesky"), "several lanes of a column, and one"
    for problem in problems:
        assert reason_unsupported(problem) is None
        if problem.in_place:
            shared = [name in RIGHT_SIDES or "solve" not in problem.function for name in OPERANDS[problem.function]]
            assert len({operand for operand, same in zip(problem.operands, shared) if same}) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("toolchain")
def test_every_device_source_is_compiled_by_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with settings.override(cache_dir=tmp_path):
        assert checks.unchecked() == ()
        (one,) = (check for check in checks.all_checks() if check.problem == checked(SolverProblem)[0].problem)
        monkeypatch.setattr(checks, "all_checks", lambda: (one,))
        assert "gemm/block_gemm.cuh" in checks.unchecked()


@pytest.mark.slow
@pytest.mark.parametrize("step", some([3, 1], 1))
@pytest.mark.usefixtures("toolchain")
def test_every_check_compiles(tmp_path: Path, step: int) -> None:
    """Of a function in three; a nightly run has all."""
    with settings.override(cache_dir=tmp_path, policy="auto", remote=""):
        engine = Engine()
        context = engine.build_context(settings.current())

        def build(check: checks.Check) -> None:
            recipe = Recipe("", check.problem, check.problem.symbol, check.tile_config)
            check.provider(context.facts).build(recipe, context)

        known = [each for each in checks.all_checks() if each.problem.arch in context.toolchain().archs]
        try:
            side_by_side(build, known[::step], 32)  # the threads wait for compiler processes
        finally:
            engine.close()
    assert len(known) > 50, "some compilers lack the oldest or newest targets"


@pytest.mark.usefixtures("toolchain")
def test_a_depfile_names_everything_that_decides(tmp_path: Path) -> None:
    with settings.override(cache_dir=tmp_path):
        write_depfile(tmp_path / "a b#$.bundle", tmp_path / "missing.py", Path(__file__))
    text = (tmp_path / "a b#$.bundle.d").read_text("utf-8")
    assert text.startswith(f"{tmp_path}/a\\ b\\#$$.bundle: ")
    for name in (__file__, "gemm/block_gemm.cuh", "cublasdx_version.hpp", "libnvrtc", "problem.py", "native/tile.h"):
        assert name in text
    assert "missing.py" not in text
    with pytest.raises(OutputError, match="cannot be written"):
        write_depfile(tmp_path / "absent" / "bundle")
