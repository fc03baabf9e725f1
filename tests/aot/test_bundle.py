"""Files of single variants, their builds with a fake compiler, and bundles."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.aot.manifests import FACTOR, OTHER, SOLVE, TINY, jobs
from warp_tiles.aot import bundle as aot
from warp_tiles.aot.manifest import Job, for_arch
from warp_tiles.cache import Cache
from warp_tiles.errors import BuildError, CacheError, PlanError, ToolchainError
from warp_tiles.heuristics.choose import choose
from warp_tiles.providers.cublasdx import CublasdxProvider
from warp_tiles.providers.mma import MmaProvider
from warp_tiles.providers.solver import SolverProvider
from warp_tiles.solver.variant import SolverConfig, SolverVariant
from warp_tiles.toolchain.store import ToolchainStore

# ---- files


def test_files_are_rewritten_only_when_they_change(tmp_path: Path, store: ToolchainStore) -> None:
    (job,) = jobs(TINY)
    assert aot.write_variants(tmp_path, [job], store) == (job.name,)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert set(before) == {"index.json", f"{job.name}.json"}
    aot.write_variants(tmp_path, [job], store)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    aot.write_variants(tmp_path, [job, *jobs(for_arch(TINY, 80))], store)
    assert (tmp_path / f"{job.name}.json").stat().st_mtime_ns == before[f"{job.name}.json"]
    assert (tmp_path / "index.json").stat().st_mtime_ns != before["index.json"]


def test_an_unknown_target_is_refused(tmp_path: Path, store: ToolchainStore) -> None:
    with pytest.raises(ToolchainError, match="sm_99") as caught:
        aot.write_variants(tmp_path, jobs(for_arch(TINY, 99)), store)
    assert "90" in caught.value.remedy


def test_the_depfile_names_headers_and_compiler(tmp_path: Path, store: ToolchainStore) -> None:
    aot.write_depfile(tmp_path / "d", Job("cublasdx", TINY), tmp_path / "a b#$.ltoir", store)
    text = (tmp_path / "d").read_text("utf-8")
    assert text.startswith(f"{tmp_path}/a\\ b\\#$$.ltoir: \\\n")
    assert text.endswith("\n")
    for name in ("gemm.cuh", "cublasdx_version.hpp", "libnvrtc", "variant.py"):
        assert name in text


def test_the_depfile_of_mma_names_no_header_of_cublasdx(tmp_path: Path, store: ToolchainStore) -> None:
    aot.write_depfile(tmp_path / "d", Job("mma", TINY, choose(TINY)), tmp_path / "out.ltoir", store)
    text = (tmp_path / "d").read_text("utf-8")
    for name in ("block_gemm.cuh", "arch/mma.cuh", "libnvrtc", "choose.py", "tile_config.py"):
        assert name in text
    assert "cublasdx_version.hpp" not in text


def test_mma_needs_no_toolchain_headers(tmp_path: Path, store: ToolchainStore, monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(store.toolchain(), include_dirs=(), missing_headers=("no headers", "pip install some"))
    monkeypatch.setattr(ToolchainStore, "toolchain", lambda self: found)
    job = Job("mma", TINY, choose(TINY))
    assert aot.write_variants(tmp_path, [job], store) == (job.name,)
    assert "gemm/block_gemm.cuh" in aot.kernel_sources(store, [MmaProvider])
    assert aot.watched(store, [MmaProvider])
    with pytest.raises(ToolchainError, match="no headers"):
        aot.kernel_sources(store)


@pytest.mark.parametrize("field", ["provider", "variant", "tile_config"])
def test_a_damaged_description_is_refused(field: str, tmp_path: Path, store: ToolchainStore) -> None:
    job = Job("mma", TINY, choose(TINY))
    aot.write_variants(tmp_path, [job], store)
    path = tmp_path / f"{job.name}.json"
    assert aot.read_job(path) == job
    data = json.loads(path.read_text())
    for job_data in (
        {**data["job"], field: "other"},
        {**data["job"], field: 5},
        {k: v for k, v in data["job"].items() if k != field},
    ):
        path.write_text(json.dumps({**data, "job": job_data}))
        with pytest.raises(PlanError, match="not usable") as caught:
            aot.read_job(path)
        assert "configure again" in caught.value.remedy


def test_inputs_of_keys_are_watched(store: ToolchainStore) -> None:
    watched = aot.watched(store)
    assert len(watched) == len(set(watched))
    assert all(Path(path).exists() for path in watched)
    assert any(path.endswith("gemm.cuh") for path in watched)
    assert any("libnvrtc" in path for path in watched)


# ---- build and pack


def test_a_rejected_alignment_is_dropped_as_in_the_engine(
    tmp_path: Path, store: ToolchainStore, compiled: list[str]
) -> None:
    (job,) = jobs(TINY)
    aot.write_variants(tmp_path, [job], store)
    assert aot.read_job(tmp_path / f"{job.name}.json") == job
    warning = aot.build(job, tmp_path / f"{job.name}.ltoir", store)
    weaker = TINY.without_alignment()
    assert "without" in warning
    assert compiled == [f"{TINY.symbol}_cublasdx.cu", f"{weaker.symbol}_cublasdx.cu"]
    report = aot.pack(tmp_path / "index.json", tmp_path / "bundle.tar")
    assert report.added == 1
    cache = Cache(tmp_path / "cache")
    assert cache.import_bundle(tmp_path / "bundle.tar").added == 1
    entry = cache.get(CublasdxProvider(store).key(weaker))
    assert entry is not None
    assert entry.payload == f"{weaker.symbol}_cublasdx.cu".encode()
    assert entry.manifest.info["symbol"] == weaker.symbol
    assert cache.get(CublasdxProvider(store).key(TINY)) is None


def test_mma_is_built_with_its_tile_configuration_under_the_engines_key(
    tmp_path: Path, store: ToolchainStore, compiled: list[str]
) -> None:
    plain = TINY.without_alignment()
    planned = [Job("mma", plain, choose(plain)), Job("cublasdx", plain)]
    names = aot.write_variants(tmp_path, planned, store)
    for name in names:
        assert aot.build(aot.read_job(tmp_path / f"{name}.json"), tmp_path / f"{name}.ltoir", store) == ""
    assert compiled == [f"{plain.symbol}_mma.cu", f"{plain.symbol}_cublasdx.cu"]
    assert aot.pack(tmp_path / "index.json", tmp_path / "bundle.tar").added == 2
    cache = Cache(tmp_path / "cache")
    assert cache.import_bundle(tmp_path / "bundle.tar").added == 2
    entry = cache.get(MmaProvider(store).key(plain))
    assert entry is not None
    assert entry.payload == f"{plain.symbol}_mma.cu".encode()
    assert entry.manifest.info["tile_config"] == choose(plain).to_json()
    assert cache.get(MmaProvider(store).key(plain, OTHER)) is None
    other = cache.get(CublasdxProvider(store).key(plain))
    assert other is not None
    assert other.manifest.info["provider"] == "cublasdx"


def test_solvers_are_built_under_the_engines_key(tmp_path: Path, store: ToolchainStore, compiled: list[str]) -> None:
    planned = [Job("mma", FACTOR, SolverConfig()), Job("mma", SOLVE, SolverConfig(8))]
    names = aot.write_variants(tmp_path, planned, store)
    for name, job in zip(names, planned):
        assert aot.read_job(tmp_path / f"{name}.json") == job
        assert aot.build(job, tmp_path / f"{name}.ltoir", store) == ""
    assert compiled == [f"{FACTOR.symbol}_mma.cu", f"{SOLVE.symbol}_mma.cu"]
    assert aot.pack(tmp_path / "index.json", tmp_path / "bundle.tar").added == 2
    cache = Cache(tmp_path / "cache")
    assert cache.import_bundle(tmp_path / "bundle.tar").added == 2
    for variant, config in ((FACTOR, SolverConfig()), (SOLVE, SolverConfig(8))):
        entry = cache.get(SolverProvider(store).key(variant, config))
        assert entry is not None
        assert entry.payload == f"{variant.symbol}_mma.cu".encode()
        assert entry.manifest.info["tile_config"] == config.to_json()
        assert SolverVariant.from_json(entry.manifest.info["variant"]) == variant  # type: ignore[arg-type]


def test_solvers_and_products_depend_on_their_own_sources(tmp_path: Path, store: ToolchainStore) -> None:
    aot.write_depfile(tmp_path / "solver", Job("mma", FACTOR, SolverConfig()), tmp_path / "out.ltoir", store)
    aot.write_depfile(tmp_path / "product", Job("mma", TINY, choose(TINY)), tmp_path / "out.ltoir", store)
    solver, product = ((tmp_path / name).read_text("utf-8") for name in ("solver", "product"))
    assert "solver/cholesky.cuh" in solver
    assert "gemm/block_gemm.cuh" not in solver
    assert "solver/cholesky.cuh" not in product
    assert {aot.provider_class(Job("mma", variant)) for variant in (TINY, FACTOR)} == {MmaProvider, SolverProvider}


def test_cublasdx_builds_no_solver(tmp_path: Path, store: ToolchainStore) -> None:
    job = Job("mma", FACTOR, SolverConfig())
    aot.write_variants(tmp_path, [job], store)
    path = tmp_path / f"{job.name}.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "job": {**data["job"], "provider": "cublasdx"}}))
    with pytest.raises(PlanError, match="no provider 'cublasdx' builds cholesky of 8x8 float32"):
        aot.read_job(path)


def test_mma_has_no_weaker_promises(tmp_path: Path, store: ToolchainStore, compiled: list[str]) -> None:
    with pytest.raises(BuildError, match="refused"):
        aot.build(Job("mma", TINY, choose(TINY)), tmp_path / "out.ltoir", store)
    assert compiled == [f"{TINY.symbol}_mma.cu"]


def test_a_check_has_no_fallback(tmp_path: Path, store: ToolchainStore, compiled: list[str]) -> None:
    with pytest.raises(BuildError, match="refused"):
        aot.build(Job("cublasdx", TINY), tmp_path / "out.ltoir", store, fallback=False)
    assert not (tmp_path / "out.ltoir").exists()
    assert len(compiled) == 1


def test_files_that_changed_after_the_build_are_not_packed(
    tmp_path: Path, store: ToolchainStore, compiled: list[str]
) -> None:
    plain = TINY.without_alignment()
    (job,) = jobs(plain)
    aot.write_variants(tmp_path, [job], store)
    output = tmp_path / f"{job.name}.ltoir"
    aot.build(job, output, store)
    output.write_bytes(b"other")
    with pytest.raises(CacheError, match="changed after"):
        aot.pack(tmp_path / "index.json", tmp_path / "bundle.tar")
    output.unlink()
    with pytest.raises(CacheError, match="cannot be packed"):
        aot.pack(tmp_path / "index.json", tmp_path / "bundle.tar")
    aot.entry_path(output).write_text("{}")
    with pytest.raises(PlanError, match="not usable"):
        aot.pack(tmp_path / "index.json", tmp_path / "bundle.tar")
    assert [path.name for path in tmp_path.glob(".warp_tiles-*")] == []
    assert not (tmp_path / "bundle.tar").exists()


def test_the_bundle_of_a_plan_without_products_can_be_imported(tmp_path: Path, store: ToolchainStore) -> None:
    aot.write_variants(tmp_path, [], store)
    assert aot.pack(tmp_path / "index.json", tmp_path / "bundle.tar").added == 0
    assert Cache(tmp_path / "cache").import_bundle(tmp_path / "bundle.tar").added == 0


def test_an_index_of_another_schema_is_refused(tmp_path: Path, store: ToolchainStore) -> None:
    aot.write_variants(tmp_path, [], store)
    index = tmp_path / aot.INDEX_NAME
    index.write_text(json.dumps({**json.loads(index.read_text()), "schema": 99}))
    with pytest.raises(PlanError, match="its schema is 99"):
        aot.pack(index, tmp_path / "bundle")


def test_the_umask_decides_who_can_read_a_bundle(tmp_path: Path, store: ToolchainStore) -> None:
    aot.write_variants(tmp_path, [], store)
    before = os.umask(0o027)
    try:
        aot.pack(tmp_path / aot.INDEX_NAME, tmp_path / "bundle")
    finally:
        os.umask(before)
    assert (tmp_path / "bundle").stat().st_mode & 0o777 == 0o640
