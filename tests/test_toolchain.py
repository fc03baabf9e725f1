"""The toolchain: what is found, what is remembered, and what is said when something is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warp_tiles import toolchain as module
from warp_tiles.errors import ToolchainError
from warp_tiles.toolchain import (
    HEADER_WHEELS,
    Toolchain,
    ToolchainStore,
    dotted,
    find_toolchain,
    include_closure,
    require_arch,
    require_linkable,
)


def tree(root: Path, **files: str) -> Path:
    """Files by name, with ``__`` for a slash and a suffix ``.h``."""
    for name, text in files.items():
        path = root / (name.replace("__", "/") + ".h")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# ---- include_closure


def test_a_closure_names_files_as_they_are_included(tmp_path: Path) -> None:
    src = tree(tmp_path / "src", top='#include "local.h"\n#include <lib/a.h>\n', local="")
    inc = tree(tmp_path / "inc", lib__a='#include "b.h"\n', lib__b="#include <c.h>", c="", unused="")
    closure = include_closure(src / "top.h", [src, inc])
    assert closure == {
        "top.h": src / "top.h",
        "local.h": src / "local.h",
        "lib/a.h": inc / "lib/a.h",
        "lib/b.h": inc / "lib/b.h",
        "c.h": inc / "c.h",
    }


def test_cycles_end(tmp_path: Path) -> None:
    root = tree(tmp_path, a='#include "b.h"', b='#include "a.h"\n#include "b.h"')
    assert set(include_closure(root / "a.h", [root])) == {"a.h", "b.h"}


def test_missing_headers_are_left_out(tmp_path: Path) -> None:
    root = tree(tmp_path, a='#include "gone.h"\n#include <cstdio>\n#include "b.h"', b="")
    assert set(include_closure(root / "a.h", [root])) == {"a.h", "b.h"}


def test_paths_upwards_are_followed(tmp_path: Path) -> None:
    root = tree(tmp_path, lib__x__a='#include "../y/b.h"', lib__y__b="", top="#include <lib/x/a.h>")
    assert include_closure(root / "top.h", [root]).keys() == {"top.h", "lib/x/a.h", "lib/y/b.h"}


def test_a_name_beside_the_file_wins_over_the_folders(tmp_path: Path) -> None:
    root = tree(tmp_path, one__a='#include "v.h"', one__v="", two__v="")
    closure = include_closure(root / "one/a.h", [root / "two"])
    assert closure["v.h"] == root / "one/v.h"


def test_an_angle_include_is_not_looked_for_beside_the_file(tmp_path: Path) -> None:
    root = tree(tmp_path, one__a="#include <v.h>", one__v="", two__v="")
    assert root / "two/v.h" in include_closure(root / "one/a.h", [root / "two"]).values()


def test_folders_are_searched_in_order(tmp_path: Path) -> None:
    root = tree(tmp_path, src__a="#include <v.h>", one__v="", two__v="")
    assert include_closure(root / "src/a.h", [root / "one", root / "two"])["v.h"] == root / "one/v.h"
    assert include_closure(root / "src/a.h", [root / "two", root / "one"])["v.h"] == root / "two/v.h"


@pytest.mark.parametrize(
    "line", ["  #  include  <b.h>", "\t#include\t<b.h>", "#if 0\n#include <b.h>\n#endif", '#include "b.h" // why']
)
def test_every_spelling_of_an_include_counts(tmp_path: Path, line: str) -> None:
    root = tree(tmp_path, a=line, b="")
    assert "b.h" in include_closure(root / "a.h", [root])


@pytest.mark.parametrize(
    "line", ["// #include <b.h>", "#include NAME", "#define X #include", 'auto s = "#include <b.h>";']
)
def test_what_is_no_include_does_not(tmp_path: Path, line: str) -> None:
    root = tree(tmp_path, a=line, b="")
    assert set(include_closure(root / "a.h", [root])) == {"a.h"}


def test_two_files_of_one_name_in_different_folders_both_count(tmp_path: Path) -> None:
    # "detail.h" beside one/a.h and beside two/b.h are two files; a key must see both
    root = tree(
        tmp_path,
        top="#include <one/a.h>\n#include <two/b.h>",
        one__a='#include "detail.h"',
        one__detail="",
        two__b='#include "detail.h"',
        two__detail="",
    )
    found = set(include_closure(root / "top.h", [root]).values())
    assert {root / "one/detail.h", root / "two/detail.h"} <= found


def test_two_files_that_different_folders_hold_under_one_name_both_count(tmp_path: Path) -> None:
    # src/top.h sees src/v.h beside it; inc/a.h, found in another folder, sees inc/v.h beside it
    src = tree(tmp_path / "src", top='#include "v.h"\n#include <a.h>', v="")
    inc = tree(tmp_path / "inc", a='#include "v.h"', v="")
    found = set(include_closure(src / "top.h", [inc]).values())
    assert {src / "v.h", inc / "v.h"} <= found


# ---- values

PLAIN = Toolchain(Path("/x/libnvrtc.so.12"), (12, 9), Path("/x/libnvJitLink.so.12"), (12, 9), (Path("/i"),), "25.6.0")


@pytest.mark.parametrize("made", [PLAIN, replace(PLAIN, nvjitlink=None, nvjitlink_version=None)])
def test_json_brings_a_toolchain_back(made: Toolchain) -> None:
    assert Toolchain.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    ("linker", "can"), [((12, 9), True), ((13, 0), True), ((12, 8), False), ((11, 9), False), (None, False)]
)
def test_a_linker_reads_what_is_not_newer(linker: tuple[int, int] | None, can: bool) -> None:
    assert replace(PLAIN, nvjitlink_version=linker).can_link is can


def test_versions_for_people() -> None:
    assert (dotted((12, 9)), dotted(None)) == ("12.9", "none")


@pytest.mark.parametrize("toolkit", [(12, 9), (13, 0), None])
def test_an_nvrtc_that_warps_linker_reads_is_taken(toolkit: tuple[int, int] | None) -> None:
    require_linkable(PLAIN, toolkit)


@pytest.mark.parametrize("toolkit", [(12, 8), (11, 9)])
def test_a_newer_nvrtc_is_refused_by_name_of_both_versions(toolkit: tuple[int, int]) -> None:
    with pytest.raises(ToolchainError) as caught:
        require_linkable(PLAIN, toolkit)
    assert "NVRTC 12.9" in caught.value.message
    assert f"CUDA {dotted(toolkit)}" in caught.value.message
    assert dotted(toolkit) in caught.value.remedy


def test_the_compilers_libraries_are_nvrtc_and_its_builtins(tmp_path: Path) -> None:
    for name in ("libnvrtc.so.12", "libnvrtc-builtins.so.12.9", "libother.so"):
        (tmp_path / name).write_bytes(b"")
    made = replace(PLAIN, nvrtc=tmp_path / "libnvrtc.so.12")
    assert set(made.libraries) == {"libnvrtc.so.12", "libnvrtc-builtins.so.12.9"}


# ---- the search


@pytest.fixture
def pathfinder() -> Any:
    return pytest.importorskip("cuda.pathfinder", reason="cuda-pathfinder searches")


def test_the_toolchain_of_this_environment(pathfinder: Any) -> None:
    found = find_toolchain()
    assert found.nvrtc.is_file()
    assert found.nvrtc_version >= (12, 0)
    for header in ("cublasdx.hpp", "cuda_fp16.h", "crt/host_config.h", "cuda/std/type_traits", "cute/tensor.hpp"):
        assert any((folder / header).is_file() for folder in found.include_dirs), header


def test_missing_nvrtc_names_the_package(pathfinder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise pathfinder.DynamicLibNotFoundError(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", fail)
    with pytest.raises(ToolchainError, match="NVRTC") as caught:
        find_toolchain()
    assert "pip install nvidia-cuda-nvrtc-cu12" in caught.value.remedy
    assert "CUDA_HOME" in caught.value.remedy


def test_a_missing_linker_leaves_the_link_to_warp(pathfinder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    load = pathfinder.load_nvidia_dynamic_lib

    def fail_for_nvjitlink(name: str) -> Any:
        if name == "nvJitLink":
            raise pathfinder.DynamicLibNotFoundError(name)
        return load(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", fail_for_nvjitlink)
    found = find_toolchain()
    assert (found.nvjitlink, found.nvjitlink_version, found.can_link) == (None, None, False)


@pytest.mark.parametrize(("name", "wheel"), HEADER_WHEELS.items())
def test_missing_headers_name_the_package(
    name: str, wheel: str, pathfinder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = pathfinder.find_nvidia_header_directory
    monkeypatch.setattr(
        pathfinder, "find_nvidia_header_directory", lambda asked: None if asked == name else search(asked)
    )
    with pytest.raises(ToolchainError, match=f"the {name} headers") as caught:
        find_toolchain()
    assert f"pip install {wheel}" in caught.value.remedy


def no_nvidia_package(name: str, package: str | None = None) -> None:
    assert name == "nvidia"


def test_missing_cublasdx_headers_name_the_package(pathfinder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", no_nvidia_package)
    monkeypatch.delenv("MATHDX_HOME", raising=False)
    with pytest.raises(ToolchainError, match=r"cublasdx\.hpp") as caught:
        module._find_mathdx()
    assert "pip install nvidia-mathdx" in caught.value.remedy
    assert "MATHDX_HOME" in caught.value.message


def test_mathdx_home_is_the_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cublasdx.hpp").touch()
    (tmp_path / "external/cutlass/include").mkdir(parents=True)
    monkeypatch.setattr(module.importlib.util, "find_spec", no_nvidia_package)
    monkeypatch.setenv("MATHDX_HOME", str(tmp_path))
    folders, _ = module._find_mathdx()
    assert folders == (tmp_path / "include", tmp_path / "external/cutlass/include")


def test_without_cuda_core_the_remedy_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda.bindings", "cuda.pathfinder"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ToolchainError, match="cuda-core is not usable") as caught:
        find_toolchain()
    assert "pip install" in caught.value.remedy
    assert "cuda-core" in caught.value.remedy


def test_headers_below_cuda_home_are_the_fallback(tmp_path: Path, pathfinder: Any) -> None:
    # pathfinder looks at the wheels, then at CUDA_HOME; a process without wheels shows the second
    folder = tmp_path / "cuda/include"
    for header in ("nvcc.h", "fatbinary_section.h", "crt/host_config.h", "cuda_runtime.h", "cuda/std/version"):
        path = folder / header
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + sys.argv[1:]; "
        "from warp_tiles import toolchain; print(*toolchain._find_cuda_headers())"
    )
    places = tmp_path / "packages"  # cuda.pathfinder and this package alone, without the wheels' folders
    places.mkdir()
    (places / "cuda").symlink_to(Path(pathfinder.__file__).parent.parent)
    (places / "warp_tiles").symlink_to(Path(module.__file__).parent)
    for needed in ("filelock", "platformdirs"):
        (places / needed).symlink_to(Path(__import__(needed).__file__ or "").parent)
    environment = {**os.environ, "CUDA_HOME": str(tmp_path / "cuda"), "CUDA_PATH": str(tmp_path / "cuda")}
    environment.pop("CONDA_PREFIX", None)
    result = subprocess.run(
        [sys.executable, "-S", "-c", code, str(places)], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert {Path(word).resolve() for word in result.stdout.split()} == {folder.resolve()}


def test_a_cuda_13_toolkit_keeps_cccl_one_level_down(
    tmp_path: Path, pathfinder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cccl").mkdir()
    monkeypatch.setattr(pathfinder, "find_nvidia_header_directory", lambda name: str(tmp_path))
    assert module._find_cuda_headers() == (tmp_path, tmp_path / "cccl")


# ---- the store


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Toolchain]:
    """Every search that was made; each finds a toolchain of two small files."""
    searches: list[Toolchain] = []
    library = tmp_path / "lib/libnvrtc.so.12"
    library.parent.mkdir()
    library.write_bytes(b"compiler")
    include = tree(tmp_path / "inc", a="#pragma once\n")

    def search() -> Toolchain:
        searches.append(Toolchain(library, (12, 9), None, None, (include,), "25.6.0"))
        return searches[-1]

    monkeypatch.setattr(module, "find_toolchain", search)
    monkeypatch.setattr(module, "search_state", lambda: ["state"])
    return searches


def test_a_search_is_made_once(found: list[Toolchain], tmp_path: Path) -> None:
    store = ToolchainStore(tmp_path / "memo")
    assert store.toolchain() == store.toolchain() == found[0]
    assert len(found) == 1
    assert ToolchainStore(tmp_path / "memo").toolchain() == found[0]  # as another process would
    assert len(found) == 1


def test_making_a_store_touches_nothing(found: list[Toolchain], tmp_path: Path) -> None:
    ToolchainStore(tmp_path / "memo")
    assert not (tmp_path / "memo").exists()
    assert found == []


def test_a_changed_environment_is_searched_again(
    found: list[Toolchain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ToolchainStore(tmp_path / "memo").toolchain()
    monkeypatch.setattr(module, "search_state", lambda: ["another state"])
    ToolchainStore(tmp_path / "memo").toolchain()
    assert len(found) == 2


def cut(text: str) -> str:
    return text[: len(text) // 2]


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        *(lambda text, whole=whole: whole for whole in ("", "[]", "null", "{}")),  # type: ignore[misc]
        lambda text: '{"state": ["state"]}',
        lambda text: '{"state": ["state"], "value": {}}',
        lambda text: '{"state": ["state"], "value": {"nvrtc": 3}}',
        lambda text: '{"state": ["state"], "value": []}',
        lambda text: text.replace("[12, 9]", "[]"),
        lambda text: text.replace("[12, 9]", '"x"'),
        lambda text: "\udcff",
    ],
)
def test_a_damaged_memo_costs_a_search_and_nothing_else(
    damage: Callable[[str], str], found: list[Toolchain], tmp_path: Path
) -> None:
    memo = tmp_path / "memo"
    ToolchainStore(memo).toolchain()
    (path,) = memo.glob("toolchain-*.json")
    path.write_bytes(damage(path.read_text()).encode("utf-8", "surrogateescape"))
    assert ToolchainStore(memo).toolchain() == found[0]
    assert len(found) == 2
    assert ToolchainStore(memo).toolchain() == found[0]
    assert len(found) == 2  # it was repaired


def test_a_memo_of_files_that_are_gone_is_not_believed(found: list[Toolchain], tmp_path: Path) -> None:
    # a toolkit below CUDA_HOME that is removed or replaced changes no folder of packages
    memo = tmp_path / "memo"
    ToolchainStore(memo).toolchain()
    shutil.rmtree(tmp_path / "lib")
    ToolchainStore(memo).toolchain()
    assert len(found) == 2


def test_a_memo_that_cannot_be_written_costs_nothing_else(found: list[Toolchain], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = ToolchainStore(tmp_path / "file" / "memo")
    assert store.toolchain() == found[0]
    assert len(store.compiler_digest()) == 64


def test_a_failed_search_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Toolchain:
        raise ToolchainError("nothing here")

    monkeypatch.setattr(module, "find_toolchain", fail)
    store = ToolchainStore(tmp_path / "memo")
    with pytest.raises(ToolchainError, match="nothing here"):
        store.toolchain()
    monkeypatch.setattr(module, "find_toolchain", lambda: PLAIN)
    assert store.toolchain() == PLAIN


def test_the_compilers_digest_follows_its_bytes(found: list[Toolchain], tmp_path: Path) -> None:
    before = ToolchainStore(tmp_path / "memo").compiler_digest()
    assert ToolchainStore(tmp_path / "memo").compiler_digest() == before
    (tmp_path / "lib/libnvrtc.so.12").write_bytes(b"Compiler")
    assert ToolchainStore(tmp_path / "memo").compiler_digest() != before


def test_a_source_digest_follows_every_file_of_the_closure(found: list[Toolchain], tmp_path: Path) -> None:
    source = tree(tmp_path / "kernels", gemm='#include <a.h>\n#include "tile.h"\n', tile="") / "gemm.h"
    digests = [ToolchainStore(tmp_path / "memo").source_digest(source)]
    for path in (source, tmp_path / "kernels/tile.h", tmp_path / "inc/a.h"):
        path.write_text(path.read_text() + "// more\n")
        digests.append(ToolchainStore(tmp_path / "memo").source_digest(source))
    assert len(set(digests)) == 4


def test_a_new_include_of_a_source_is_followed(found: list[Toolchain], tmp_path: Path) -> None:
    source = tree(tmp_path / "kernels", gemm="", tile="") / "gemm.h"
    assert set(ToolchainStore(tmp_path / "memo").closure(source)) == {"gemm.h"}
    source.write_text('#include "tile.h"\n')
    assert set(ToolchainStore(tmp_path / "memo").closure(source)) == {"gemm.h", "tile.h"}


@pytest.mark.parametrize("value", ["[]", "3", '{"gemm.h": 3}', "null"])
def test_a_damaged_closure_is_taken_again(found: list[Toolchain], tmp_path: Path, value: str) -> None:
    source = tree(tmp_path / "kernels", gemm="#include <a.h>\n") / "gemm.h"
    expected = ToolchainStore(tmp_path / "memo").closure(source)
    (path,) = (tmp_path / "memo").glob("closure-*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "value": json.loads(value)}))
    assert ToolchainStore(tmp_path / "memo").closure(source) == expected


def test_a_closure_follows_the_folders_of_another_toolchain(
    found: list[Toolchain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tree(tmp_path / "kernels", gemm="#include <a.h>\n") / "gemm.h"
    assert ToolchainStore(tmp_path / "memo").closure(source)["a.h"] == tmp_path / "inc/a.h"
    newer = replace(found[0], include_dirs=(tree(tmp_path / "newer", a=""),))
    monkeypatch.setattr(ToolchainStore, "toolchain", lambda self: newer)
    assert ToolchainStore(tmp_path / "memo").closure(source)["a.h"] == tmp_path / "newer/a.h"


def test_a_closure_is_taken_once(found: list[Toolchain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tree(tmp_path / "kernels", gemm="#include <a.h>\n") / "gemm.h"
    calls: list[Path] = []
    take = module.include_closure

    def counted(path: Path, folders: Any) -> dict[str, Path]:
        calls.append(path)
        return take(path, folders)

    monkeypatch.setattr(module, "include_closure", counted)
    first = ToolchainStore(tmp_path / "memo")
    assert first.closure(source) == first.closure(source) == ToolchainStore(tmp_path / "memo").closure(source)
    assert calls == [source]


def test_the_state_of_the_search_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = module.search_state()
    assert module.search_state() == before
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert module.search_state() != before
    monkeypatch.undo()
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    with_packages = module.search_state()
    assert with_packages != before
    (packages / "nvidia").mkdir()
    assert module.search_state() != with_packages
    assert json.loads(json.dumps(module.search_state())) == module.search_state()


def test_a_scripts_own_folder_does_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = module.search_state()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert module.search_state() == before


def test_the_search_needs_no_warp() -> None:
    assert not any(isinstance(value, types.ModuleType) and value.__name__ == "warp" for value in vars(module).values())


def test_the_root_is_private_whatever_the_umask(tmp_path: Path) -> None:
    # a group-writable root would be refused by the cache later
    before = os.umask(0o002)
    try:
        root = tmp_path / "new" / "root"
        ToolchainStore(root / "toolchain")._write("anything", [], {})
    finally:
        os.umask(before)
    assert (root / "toolchain").is_dir()
    assert root.stat().st_mode & 0o777 == 0o700


def test_an_architecture_that_nvrtc_does_not_know_is_named() -> None:
    toolchain = Toolchain(Path("nvrtc"), (12, 9), None, None, (), "25.6", (80, 90))
    require_arch(toolchain, 90)
    with pytest.raises(ToolchainError, match=r"NVRTC 12\.9 does not compile for sm_110, but for sm_80, sm_90"):
        require_arch(toolchain, 110)
