"""From manifests to variants and files, without CMake and without a compiler."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warp_tiles import aot
from warp_tiles.cache import Cache
from warp_tiles.cli import emit
from warp_tiles.compiler import Compiled, CompileRequest
from warp_tiles.errors import BuildError, CacheError, PlanError, SettingError, ToolchainError
from warp_tiles.planning import PlannedVariant
from warp_tiles.providers import CublasdxProvider
from warp_tiles.toolchain import ToolchainStore, find_toolchain
from warp_tiles.variant import GemmVariant, Operand, Role

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


def row(variant: GemmVariant | None = TINY, **changes: Any) -> dict[str, Any]:
    planned = PlannedVariant(variant, Role.FORWARD, "tile_matmul", "gemm", ("gemm",), True, "why", "cublasdx")
    return {**planned.to_json(), **changes}


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
    assert aot.parse_archs(text) == archs


@pytest.mark.parametrize("text", ["sm_90", "90a", "-90", "9.0", "70", "80;x", "²", "999999999"])
def test_other_archs_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="WARP_TILES_ARCHS is") as caught:
        aot.parse_archs(text)
    assert caught.value.remedy


# ---- manifests


def test_a_plan_is_taken_as_it_is_printed() -> None:
    assert aot.select(json.loads(json.dumps(manifest(row())))).variants == (TINY,)


def test_archs_multiply_variants_and_equal_ones_are_built_once() -> None:
    other = aot.for_arch(TINY, 80)
    selection = aot.select(manifest(row(), row(other, symbol=other.symbol), row()), (80, 90))
    assert [variant.arch for variant in selection.variants] == [80, 90]
    assert len(aot.select(manifest(row(), row(other))).variants) == 2


def test_what_is_skipped_or_scalar_is_not_built() -> None:
    selection = aot.select(manifest(row(needed=False, provider=""), row(None, provider="scalar", symbol="")))
    assert selection == aot.Selection(())


def test_what_another_provider_builds_is_named() -> None:
    selection = aot.select(manifest(row(provider="libmathdx")))
    assert not selection.variants
    assert "libmathdx" in selection.notes[0]


def test_tf32_follows_the_target() -> None:
    tf32 = GemmVariant(8, 8, 8, TINY.a, TINY.b, TINY.c, "tf32", 32, 90)
    old, new = aot.select(manifest(row(tf32)), (75, 120)).variants
    assert (old.precision, new.precision) == ("default", "tf32")
    assert "tf32" in aot.select(manifest(row(aot.for_arch(tf32, 75))), (90,)).notes[0]


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
        (manifest(row(aot.for_arch(TINY, 70))), "sm_70"),
    ],
)
def test_malformed_manifests_are_refused(broken: Any, what: str) -> None:
    with pytest.raises(PlanError, match=what) as caught:
        aot.select(broken)
    assert caught.value.remedy
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "\udcff"])
def test_a_file_that_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(PlanError, match="not JSON"):
        aot.read_manifest(path)
    with pytest.raises(PlanError, match="cannot be read"):
        aot.read_manifest(tmp_path / "missing.json")


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
    assert aot.write_variants(tmp_path, [TINY], store) == (TINY.symbol,)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert set(before) == {"index.json", f"{TINY.symbol}.json"}
    aot.write_variants(tmp_path, [TINY], store)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    aot.write_variants(tmp_path, [TINY, aot.for_arch(TINY, 80)], store)
    assert (tmp_path / f"{TINY.symbol}.json").stat().st_mtime_ns == before[f"{TINY.symbol}.json"]
    assert (tmp_path / "index.json").stat().st_mtime_ns != before["index.json"]


def test_a_target_that_the_compiler_does_not_know_is_refused(tmp_path: Path, store: ToolchainStore) -> None:
    with pytest.raises(ToolchainError, match="sm_99") as caught:
        aot.write_variants(tmp_path, [aot.for_arch(TINY, 99)], store)
    assert "90" in caught.value.remedy


def test_the_depfile_names_headers_and_compiler(tmp_path: Path, store: ToolchainStore) -> None:
    aot.write_depfile(tmp_path / "d", tmp_path / "a b#$.ltoir", store)
    text = (tmp_path / "d").read_text("utf-8")
    assert text.startswith(f"{tmp_path}/a\\ b\\#$$.ltoir: \\\n")
    assert text.endswith("\n")
    for name in ("gemm.cuh", "cublasdx_version.hpp", "libnvrtc", "variant.py"):
        assert name in text


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
    aot.write_variants(tmp_path, [TINY], store)
    output = tmp_path / f"{TINY.symbol}.ltoir"
    told = aot.build(tmp_path / f"{TINY.symbol}.json", output, store)
    weaker = TINY.without_alignment()
    assert "without" in told
    assert compiled == [f"{TINY.symbol}.cu", f"{weaker.symbol}.cu"]
    report = aot.pack(tmp_path / "index.json", tmp_path / "bundle.tar")
    assert report.added == 1
    cache = Cache(tmp_path / "cache")
    assert cache.import_bundle(tmp_path / "bundle.tar").added == 1
    entry = cache.get(CublasdxProvider(store).key(weaker))
    assert entry is not None
    assert entry.payload == f"{weaker.symbol}.cu".encode()
    assert entry.manifest.info["symbol"] == weaker.symbol
    assert cache.get(CublasdxProvider(store).key(TINY)) is None


def test_a_check_is_built_exactly(tmp_path: Path, store: ToolchainStore, compiled: list[str]) -> None:
    aot.write_variants(tmp_path, [TINY], store)
    with pytest.raises(BuildError, match="refused"):
        aot.build(tmp_path / f"{TINY.symbol}.json", tmp_path / "out.ltoir", store, fallback=False)
    assert not (tmp_path / "out.ltoir").exists()
    assert len(compiled) == 1


def test_what_was_changed_after_the_build_is_not_packed(
    tmp_path: Path, store: ToolchainStore, compiled: list[str]
) -> None:
    plain = TINY.without_alignment()
    aot.write_variants(tmp_path, [plain], store)
    output = tmp_path / f"{plain.symbol}.ltoir"
    aot.build(tmp_path / f"{plain.symbol}.json", output, store)
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


def test_the_checks_cover_every_kind_of_configuration() -> None:
    checks = emit.check_variants()
    assert len({variant.symbol for variant in checks}) == len(checks) <= 16
    operands = [operand for variant in checks for operand in (variant.a, variant.b, variant.c)]
    assert {operand.dtype for operand in operands} == {"float16", "bfloat16", "float32", "float64"}
    assert {variant.arch for variant in checks} >= {75, 80, 90, 120}
    assert any(variant.precision == "tf32" for variant in checks)
    assert any(not variant.is_dense for variant in checks)
    assert any(variant.m < 8 for variant in checks)
    for name in "abc":
        assert {getattr(variant, name).arrangement for variant in checks} == {"row_major", "col_major"}


def test_every_device_source_is_compiled_by_a_check(store: ToolchainStore) -> None:
    assert emit.unchecked(store) == ()
