"""From manifests to variants and files, without CMake and without a compiler."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from warp_tiles.aot import bundle as aot
from warp_tiles.aot import command as emit
from warp_tiles.aot.manifest import Job, Selection, for_arch, parse_archs, read_manifest, select
from warp_tiles.cache import Cache
from warp_tiles.compile.compiler import Compiled, CompileRequest
from warp_tiles.errors import BuildError, CacheError, PlanError, SettingError, ToolchainError
from warp_tiles.gemm.tile_config import Instruction, TileConfig
from warp_tiles.gemm.variant import GemmVariant, Operand, Role
from warp_tiles.heuristics.choose import choose
from warp_tiles.plan.planning import PlannedVariant
from warp_tiles.providers import CublasdxProvider, MmaProvider
from warp_tiles.toolchain.search import find_toolchain
from warp_tiles.toolchain.store import ToolchainStore

TINY = GemmVariant(
    8,
    8,
    8,
    Operand("float32", "row_major", 8, 16),
    Operand("float32", "row_major", 8, 16),
    Operand("float32", "row_major", 8, 16),
    "default",
    32,
    90,
)


OTHER = TileConfig("fma", 8, 4, lanes_m=8, lanes_n=4)


def row(variant: GemmVariant | None = TINY, **changes: Any) -> dict[str, Any]:
    planned = PlannedVariant(variant, Role.FORWARD, "tile_matmul", "gemm", ("gemm",), True, "why", "cublasdx")
    return {**planned.to_json(), **changes}


def own_row(variant: GemmVariant = TINY, config: TileConfig | None = None, **changes: Any) -> dict[str, Any]:
    """A row of the provider mma."""
    return row(variant, **{"provider": "mma", "tile_config": (config or choose(variant)).to_json(), **changes})


def jobs(*variants: GemmVariant) -> tuple[Job, ...]:
    return tuple(Job("cublasdx", variant) for variant in variants)


def manifest(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"modules": [{"name": "m", "arch": 90, "block_dim": 32, "kernels": ["gemm"], "variants": list(rows)}]}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> ToolchainStore:
    try:
        find_toolchain()
    except ToolchainError as error:
        pytest.skip(f"no toolchain: {error.message}")
    return ToolchainStore(tmp_path_factory.mktemp("toolchain"))


# ---- archs


@pytest.mark.parametrize(
    ("text", "archs"),
    [("", ()), ("80;90", (80, 90)), ("90,80", (90, 80)), ("90 90;", (90,)), ("120", (120,))],
)
def test_archs_are_a_list(text: str, archs: tuple[int, ...]) -> None:
    assert parse_archs(text) == archs


@pytest.mark.parametrize("text", ["sm_90", "90a", "-90", "9.0", "70", "80;x", "²", "999999999"])
def test_other_archs_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="WARP_TILES_ARCHS is") as caught:
        parse_archs(text)
    assert caught.value.remedy


# ---- manifests


def test_a_plan_is_taken_as_it_is_printed() -> None:
    assert select(json.loads(json.dumps(manifest(row())))).jobs == jobs(TINY)
    planned = json.loads(json.dumps(manifest(own_row())))
    assert select(planned).jobs == (Job("mma", TINY, choose(TINY)),)


def test_a_row_of_mma_is_built_as_it_was_planned() -> None:
    assert choose(TINY) != OTHER
    assert select(manifest(own_row(config=OTHER))).jobs == (Job("mma", TINY, OTHER),)
    assert select(manifest(own_row(tile_config=None))).jobs == (Job("mma", TINY, choose(TINY)),), "made by hand"


def test_on_another_target_the_tile_configuration_is_chosen_again() -> None:
    found = select(manifest(own_row(config=OTHER)), (80, 90)).jobs
    older = for_arch(TINY, 80)
    assert found == (Job("mma", older, choose(older)), Job("mma", TINY, OTHER))


def test_two_providers_of_one_variant_are_two_jobs() -> None:
    found = select(manifest(row(), own_row())).jobs
    assert [job.provider for job in found] == ["cublasdx", "mma"]
    assert [job.name for job in found] == [f"{TINY.symbol}_cublasdx", f"{TINY.symbol}_mma"]


def test_cublasdx_gets_no_more_than_it_is_promised() -> None:
    half = replace(TINY, c=Operand("float16", "row_major", 8, 16))
    promised = replace(half, c=replace(half.c, alignment=8))
    for symbol in (half.symbol, promised.symbol):
        assert select(manifest(row(half, symbol=symbol))).jobs == jobs(promised)


def test_a_bfloat16_result_of_mma_is_built() -> None:
    narrow = replace(TINY, **{name: Operand("bfloat16", "row_major", 8, 16) for name in "abc"})  # type: ignore[arg-type]
    assert select(manifest(own_row(narrow))).jobs == (Job("mma", narrow, choose(narrow)),)


def test_archs_multiply_variants_and_equal_ones_are_built_once() -> None:
    other = for_arch(TINY, 80)
    selection = select(manifest(row(), row(other, symbol=other.symbol), row()), (80, 90))
    assert [job.variant.arch for job in selection.jobs] == [80, 90]
    assert len(select(manifest(row(), row(other))).jobs) == 2


def test_what_is_skipped_or_scalar_is_not_built() -> None:
    selection = select(manifest(row(needed=False, provider=""), row(None, provider="scalar", symbol="")))
    assert selection == Selection(())


def test_what_another_provider_builds_is_named() -> None:
    selection = select(manifest(row(provider="libmathdx")))
    assert not selection.jobs
    assert "libmathdx" in selection.notes[0]


def test_tf32_follows_the_target() -> None:
    tf32 = GemmVariant(8, 8, 8, TINY.a, TINY.b, TINY.c, "tf32", 32, 90)
    for made in (row(tf32), own_row(tf32)):
        old, new = (job.variant for job in select(manifest(made), (75, 120)).jobs)
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
        (manifest(own_row(tile_config=3)), "not a tile configuration"),
        (manifest(own_row(tile_config={**OTHER.to_json(), "colour": 1})), "not a tile configuration"),
        (manifest(own_row(tile_config={**OTHER.to_json(), "tile_m": "8"})), "another type"),
        (manifest(own_row(tile_config={**OTHER.to_json(), "tile_m": True})), "another type"),
        (manifest(own_row(tile_config={**OTHER.to_json(), "instruction": "wgmma"})), "instruction is 'wgmma'"),
        (manifest(own_row(config=replace(OTHER, lanes_m=2))), "lanes_m"),
        (manifest(own_row(replace(TINY, threads=48), OTHER)), "threads=48"),
        (manifest(own_row(), own_row(config=OTHER)), "another tile_config"),
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


def test_a_target_that_the_compiler_does_not_know_is_refused(tmp_path: Path, store: ToolchainStore) -> None:
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


def test_the_depfile_of_mma_names_no_header_of_others(tmp_path: Path, store: ToolchainStore) -> None:
    aot.write_depfile(tmp_path / "d", Job("mma", TINY, choose(TINY)), tmp_path / "out.ltoir", store)
    text = (tmp_path / "d").read_text("utf-8")
    for name in ("block_gemm.cuh", "arch/mma.cuh", "libnvrtc", "choose.py", "tile_config.py"):
        assert name in text
    assert "cublasdx_version.hpp" not in text


def test_mma_needs_no_headers_of_others(tmp_path: Path, store: ToolchainStore, monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(store.toolchain(), include_dirs=(), missing_headers=("no headers", "pip install some"))
    monkeypatch.setattr(ToolchainStore, "toolchain", lambda self: found)
    job = Job("mma", TINY, choose(TINY))
    assert aot.write_variants(tmp_path, [job], store) == (job.name,)
    assert "gemm/block_gemm.cuh" in aot.kernel_sources(store, ["mma"])
    assert aot.watched(store, ["mma"])
    with pytest.raises(ToolchainError, match="no headers"):
        aot.kernel_sources(store)


@pytest.mark.parametrize("field", ["provider", "variant", "tile_config"])
def test_a_damaged_description_is_refused(field: str, tmp_path: Path, store: ToolchainStore) -> None:
    job = Job("mma", TINY, choose(TINY))
    aot.write_variants(tmp_path, [job], store)
    path = tmp_path / f"{job.name}.json"
    assert aot.read_job(path) == job
    data = json.loads(path.read_text())
    for job_data in ({**data["job"], field: "other"}, {k: v for k, v in data["job"].items() if k != field}):
        path.write_text(json.dumps({**data, "job": job_data}))
        with pytest.raises(PlanError, match="not usable") as caught:
            aot.read_job(path)
        assert "configure again" in caught.value.remedy


def test_what_decides_keys_is_watched(store: ToolchainStore) -> None:
    watched = aot.watched(store)
    assert len(watched) == len(set(watched))
    assert all(Path(path).exists() for path in watched)
    assert any(path.endswith("gemm.cuh") for path in watched)
    assert any("libnvrtc" in path for path in watched)


# ---- build and pack, with a compiler that is pretended


Compiler = Callable[[CompileRequest], Compiled]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what the compiler was asked for; it refuses what promises 16 bytes."""
    asked: list[str] = []

    def compile_(request: CompileRequest) -> Compiled:
        asked.append(request.name)
        if "_al16_16_16_" in request.name:
            raise BuildError("refused", log="error: alignment")
        return Compiled(request.name.encode(), 0.5, "", "NVRTC 12.9")

    monkeypatch.setattr(aot, "compile_to_ltoir", compile_)
    return asked


def test_a_refused_alignment_is_dropped_as_in_the_engine(
    tmp_path: Path, store: ToolchainStore, compiled: list[str]
) -> None:
    (job,) = jobs(TINY)
    aot.write_variants(tmp_path, [job], store)
    assert aot.read_job(tmp_path / f"{job.name}.json") == job
    told = aot.build(job, tmp_path / f"{job.name}.ltoir", store)
    weaker = TINY.without_alignment()
    assert "without" in told
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
    made = [Job("mma", plain, choose(plain)), Job("cublasdx", plain)]
    names = aot.write_variants(tmp_path, made, store)
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


def test_mma_has_no_weaker_promises(tmp_path: Path, store: ToolchainStore, compiled: list[str]) -> None:
    with pytest.raises(BuildError, match="refused"):
        aot.build(Job("mma", TINY, choose(TINY)), tmp_path / "out.ltoir", store)
    assert compiled == [f"{TINY.symbol}_mma.cu"]


def test_a_check_is_built_exactly(tmp_path: Path, store: ToolchainStore, compiled: list[str]) -> None:
    with pytest.raises(BuildError, match="refused"):
        aot.build(Job("cublasdx", TINY), tmp_path / "out.ltoir", store, fallback=False)
    assert not (tmp_path / "out.ltoir").exists()
    assert len(compiled) == 1


def test_what_was_changed_after_the_build_is_not_packed(
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


def test_a_plan_without_products_gives_a_bundle_that_imports(tmp_path: Path, store: ToolchainStore) -> None:
    aot.write_variants(tmp_path, [], store)
    assert aot.pack(tmp_path / "index.json", tmp_path / "bundle.tar").added == 0
    assert Cache(tmp_path / "cache").import_bundle(tmp_path / "bundle.tar").added == 0


# ---- the kernel check


@pytest.mark.parametrize("provider", ["mma", "cublasdx"])
def test_the_checks_cover_every_kind_of_configuration(provider: str) -> None:
    checks = [job.variant for job in emit.check_jobs() if job.provider == provider]
    assert len({variant.symbol for variant in checks}) == len(checks) <= 32
    operands = [operand for variant in checks for operand in (variant.a, variant.b, variant.c)]
    assert {operand.dtype for operand in operands} == {"float16", "bfloat16", "float32", "float64"}
    assert {variant.arch for variant in checks} >= {75, 80, 90, 120}
    assert any(variant.precision == "tf32" for variant in checks)
    assert any(not variant.is_dense for variant in checks)
    assert any(variant.m < 8 for variant in checks)
    for name in "abc":
        assert {getattr(variant, name).arrangement for variant in checks} == {"row_major", "col_major"}


def test_the_checks_cover_every_instruction_and_field() -> None:
    configs = [job.tile_config for job in emit.check_jobs() if job.tile_config is not None]
    assert {config.instruction for config in configs} == set(get_args(Instruction))
    for item in fields(TileConfig):
        assert len({getattr(config, item.name) for config in configs}) > 1, f"{item.name} is the same in every check"


def test_every_device_source_is_compiled_by_a_check(store: ToolchainStore) -> None:
    assert emit.unchecked(store) == ()
