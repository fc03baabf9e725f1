"""From manifests to jobs, without CMake and without a compiler."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.aot.manifests import FACTOR, OTHER, SOLVE, TINY, jobs, manifest, mma_row, row, solver_row
from warp_tiles.aot.manifest import Job, Selection, for_arch, parse_archs, read_manifest, select
from warp_tiles.errors import PlanError, SettingError
from warp_tiles.gemm.problem import GemmProblem, Operand
from warp_tiles.heuristics.choose import choose
from warp_tiles.heuristics.solver import choose as choose_solver
from warp_tiles.solver.variant import SolverConfig

# ---- archs


@pytest.mark.parametrize(
    ("text", "archs"),
    [("", ()), ("80;90", (80, 90)), ("90,80", (90, 80)), ("90 90;", (90,)), ("120", (120,))],
)
def test_archs_are_parsed_from_a_list(text: str, archs: tuple[int, ...]) -> None:
    assert parse_archs(text) == archs


@pytest.mark.parametrize("text", ["sm_90", "90a", "-90", "9.0", "70", "80;x", "²", "999999999"])
def test_invalid_archs_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="WARP_TILES_ARCHS is") as caught:
        parse_archs(text)
    assert caught.value.remedy


# ---- manifests


def test_a_printed_plan_is_accepted() -> None:
    assert select(json.loads(json.dumps(manifest(row())))).jobs == jobs(TINY)
    planned = json.loads(json.dumps(manifest(mma_row())))
    assert select(planned).jobs == (Job("mma", TINY, choose(TINY)),)


def test_a_row_of_mma_keeps_its_tile_configuration() -> None:
    assert choose(TINY) != OTHER
    assert select(manifest(mma_row(config=OTHER))).jobs == (Job("mma", TINY, OTHER),)
    assert select(manifest(mma_row(tile_config=None))).jobs == (Job("mma", TINY, choose(TINY)),), "a handwritten row"


def test_on_another_target_the_tile_configuration_is_chosen_again() -> None:
    found = select(manifest(mma_row(config=OTHER)), (80, 90)).jobs
    older = for_arch(TINY, 80)
    assert found == (Job("mma", older, choose(older)), Job("mma", TINY, OTHER))


def test_two_providers_of_one_variant_are_two_jobs() -> None:
    found = select(manifest(row(), mma_row())).jobs
    assert [job.provider for job in found] == ["cublasdx", "mma"]
    assert [job.name for job in found] == [f"{TINY.symbol}_cublasdx", f"{TINY.symbol}_mma"]


def test_a_cublasdx_job_has_the_weaker_promises() -> None:
    half = replace(TINY, c=Operand("float16", "row_major", 8, 16))
    promised = replace(half, c=replace(half.c, alignment=8))
    for symbol in (half.symbol, promised.symbol):
        assert select(manifest(row(half, symbol=symbol))).jobs == jobs(promised)


def test_a_bfloat16_result_of_mma_is_built() -> None:
    narrow = replace(TINY, **{name: Operand("bfloat16", "row_major", 8, 16) for name in "abc"})  # type: ignore[arg-type]
    assert select(manifest(mma_row(narrow))).jobs == (Job("mma", narrow, choose(narrow)),)


def test_each_variant_is_built_once_for_each_arch() -> None:
    other = for_arch(TINY, 80)
    selection = select(manifest(row(), row(other, symbol=other.symbol), row()), (80, 90))
    assert [job.variant.arch for job in selection.jobs] == [80, 90]
    assert len(select(manifest(row(), row(other))).jobs) == 2


def test_skipped_and_scalar_rows_are_not_built() -> None:
    selection = select(manifest(row(needed=False, provider=""), row(None, provider="scalar", symbol="")))
    assert selection == Selection(())


def test_a_row_of_another_provider_gets_a_note() -> None:
    selection = select(manifest(row(provider="libmathdx")))
    assert not selection.jobs
    assert "libmathdx" in selection.notes[0]


def test_a_row_of_a_solver_is_built_by_mma() -> None:
    planned = json.loads(json.dumps(manifest(solver_row(), solver_row(SOLVE, config=SolverConfig(4)), row())))
    found = select(planned).jobs
    assert found == (Job("mma", FACTOR, SolverConfig()), Job("mma", SOLVE, SolverConfig(4)), *jobs(TINY))
    assert [Job.from_json(json.loads(json.dumps(job.to_json()))) for job in found] == [*found]


def test_the_lanes_of_a_solver_are_chosen_on_another_target_and_for_a_handwritten_row() -> None:
    older = replace(SOLVE, arch=80)
    found = select(manifest(solver_row(SOLVE, config=SolverConfig(32))), (80, 90)).jobs
    assert found == (Job("mma", older, choose_solver(older)), Job("mma", SOLVE, SolverConfig(32)))
    assert select(manifest(solver_row(SOLVE, tile_config=None))).jobs == (Job("mma", SOLVE, choose_solver(SOLVE)),)


def test_a_solver_of_another_provider_gets_a_note() -> None:
    selection = select(manifest(solver_row(provider="scalar")))
    assert not selection.jobs
    assert "cholesky of 8x8 float32" in selection.notes[0]
    assert select(manifest(solver_row(needed=False, provider=""))) == Selection(())


def test_tf32_depends_on_the_target() -> None:
    tf32 = GemmProblem(8, 8, 8, TINY.a, TINY.b, TINY.c, "tf32", 32, 90)
    for planned in (row(tf32), mma_row(tf32)):
        old, new = (job.variant for job in select(manifest(planned), (75, 120)).jobs)
        assert (old.precision, new.precision) == ("default", "tf32")
    assert "tf32" in select(manifest(row(for_arch(tf32, 75))), (90,)).notes[0]


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ([], "'modules'"),
        ({}, "'modules'"),
        ({"modules": {}}, "'modules'"),
        ({"modules": [1]}, r"modules\[0\]"),
        ({"modules": [{"name": "m"}]}, "'variants'"),
        (manifest(1), r"variants\[0\] is not an object"),  # type: ignore[arg-type]
        (manifest(row(colour="blue")), "unknown field 'colour'"),
        (manifest(row(needed="yes")), "'needed'"),
        (manifest(row(provider=None)), "'provider'"),
        (manifest(row(m=0)), "not a GEMM variant"),
        (manifest(row(m="8")), "not a GEMM variant"),
        (manifest(row(a_dtype="int8")), "not a GEMM variant"),
        (manifest(row(a_dtype=["float32"])), "not a GEMM variant"),
        (manifest(row(alignments=[4, 4])), "not a GEMM variant"),
        (manifest(row(alignments=[16, 16, 16, 16])), "not a GEMM variant"),
        (manifest(row(m=16)), "has the symbol"),
        (manifest({k: v for k, v in row().items() if k != "m"}), "not a GEMM variant"),
        (manifest(row(for_arch(TINY, 70))), "sm_70"),
        (manifest(mma_row(tile_config=3)), "not a tile configuration"),
        (manifest(mma_row(tile_config={**OTHER.to_json(), "colour": 1})), "not a tile configuration"),
        (manifest(mma_row(tile_config={**OTHER.to_json(), "tile_m": "8"})), "another type"),
        (manifest(mma_row(tile_config={**OTHER.to_json(), "tile_m": True})), "another type"),
        (manifest(mma_row(tile_config={**OTHER.to_json(), "instruction": "wgmma"})), "instruction is 'wgmma'"),
        (manifest(mma_row(config=replace(OTHER, lanes_m=2))), "lanes_m"),
        (manifest(mma_row(replace(TINY, threads=48), OTHER)), "threads=48"),
        (manifest(mma_row(), mma_row(config=OTHER)), "another tile_config"),
        (manifest(row(columns=4)), "unknown field 'columns'"),
        (manifest(solver_row(colour="blue")), "unknown field 'colour'"),
        (manifest(solver_row(solver="qr")), "not a solver variant"),
        (manifest(solver_row(n=16)), "has the symbol"),
        (manifest(solver_row(replace(FACTOR, threads=48))), "threads=48"),
        (manifest(solver_row(replace(FACTOR, arch=70))), "sm_70"),
        (manifest(solver_row(tile_config={"lanes": 3})), "not a solver configuration"),
        (manifest(solver_row(tile_config=OTHER.to_json())), "not a solver configuration"),
        (manifest(solver_row(), solver_row(config=SolverConfig(2))), "another tile_config"),
    ],
)
def test_malformed_manifests_are_refused(broken: Any, what: str) -> None:
    with pytest.raises(PlanError, match=what) as caught:
        select(broken)
    assert caught.value.remedy
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "\udcff"])
def test_a_file_that_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(PlanError, match="not JSON"):
        read_manifest(path)
    with pytest.raises(PlanError, match="cannot be read"):
        read_manifest(tmp_path / "missing.json")


def test_the_command_exits_with_2_and_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    command = [sys.executable, "-m", "warp_tiles.aot", "variants", "--manifest", "plan.json"]
    command += ["--folder", "variants", "--state", "state"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("warp-tiles: the manifest plan.json is not JSON")
    assert "Remedy:" in done.stderr
    assert not done.stdout
