"""The toolchain: what is found, what is remembered, and what is said when something is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.test_sources import tree
from warp_tiles import toolchain as module
from warp_tiles.errors import ToolchainError
from warp_tiles.sources import DeviceSource
from warp_tiles.toolchain import (
    HEADER_WHEELS,
    Toolchain,
    ToolchainStore,
    dotted,
    find_toolchain,
    require_arch,
    require_linkable,
)

# ---- values

PLAIN = Toolchain(Path("/x/libnvrtc.so.12"), (12, 9), Path("/x/libnvJitLink.so.12"), (12, 9), (Path("/i"),), "25.6.0")


WITHOUT_HEADERS = replace(PLAIN, include_dirs=(), missing_headers=("there are no headers", "pip install some"))


@pytest.mark.parametrize("made", [PLAIN, replace(PLAIN, nvjitlink=None, nvjitlink_version=None), WITHOUT_HEADERS])
def test_json_brings_a_toolchain_back(made: Toolchain) -> None:
    assert Toolchain.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_headers_are_required_where_they_are_used() -> None:
    assert PLAIN.require_headers() == (Path("/i"),)
    with pytest.raises(ToolchainError, match="there are no headers") as caught:
        WITHOUT_HEADERS.require_headers()
    assert caught.value.remedy == "pip install some"


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
    found = find_toolchain()  # the compiler is there, and own templates need no more
    assert found.nvrtc.is_file()
    assert (found.include_dirs, found.mathdx_version) == ((), "none")
    with pytest.raises(ToolchainError, match=f"the {name} headers") as caught:
        found.require_headers()
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


def test_without_cuda_core_the_headers_are_missing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with pytest.raises(ToolchainError, match="cuda-core is not usable"):
        module._find_cuda_headers()


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


def test_missing_headers_are_looked_for_again(
    found: list[Toolchain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # those of a toolkit below CUDA_HOME can be installed without a trace in the state of the search
    search = module.find_toolchain
    monkeypatch.setattr(module, "find_toolchain", lambda: replace(search(), missing_headers=("none", "install")))
    store = ToolchainStore(tmp_path / "memo")
    assert store.toolchain() == store.toolchain()
    assert len(found) == 1
    ToolchainStore(tmp_path / "memo").toolchain()
    assert len(found) == 2


def test_the_compilers_digest_follows_its_bytes(found: list[Toolchain], tmp_path: Path) -> None:
    before = ToolchainStore(tmp_path / "memo").compiler_digest()
    assert ToolchainStore(tmp_path / "memo").compiler_digest() == before
    (tmp_path / "lib/libnvrtc.so.12").write_bytes(b"Compiler")
    assert ToolchainStore(tmp_path / "memo").compiler_digest() != before


def device(source: Path, include_dir: Path) -> DeviceSource:
    """A source that sees its own folder and another."""
    return DeviceSource(source, source.parent, (source.parent, include_dir))


def test_a_source_digest_follows_every_file_of_the_closure(found: list[Toolchain], tmp_path: Path) -> None:
    source = tree(tmp_path / "kernels", gemm='#include <a.h>\n#include "tile.h"\n', tile="") / "gemm.h"
    digests = [ToolchainStore(tmp_path / "memo").source_digest(device(source, tmp_path / "inc"))]
    for path in (source, tmp_path / "kernels/tile.h", tmp_path / "inc/a.h"):
        path.write_text(path.read_text() + "// more\n")
        digests.append(ToolchainStore(tmp_path / "memo").source_digest(device(source, tmp_path / "inc")))
    assert len(set(digests)) == 4


def test_a_new_include_of_a_source_is_followed(found: list[Toolchain], tmp_path: Path) -> None:
    source = tree(tmp_path / "kernels", gemm="", tile="") / "gemm.h"
    assert set(ToolchainStore(tmp_path / "memo").closure(device(source, tmp_path / "inc"))) == {"gemm.h"}
    source.write_text('#include "tile.h"\n')
    assert set(ToolchainStore(tmp_path / "memo").closure(device(source, tmp_path / "inc"))) == {"gemm.h", "tile.h"}


@pytest.mark.parametrize("value", ["[]", "3", '{"gemm.h": 3}', "null"])
def test_a_damaged_closure_is_taken_again(found: list[Toolchain], tmp_path: Path, value: str) -> None:
    source = tree(tmp_path / "kernels", gemm="#include <a.h>\n") / "gemm.h"
    expected = ToolchainStore(tmp_path / "memo").closure(device(source, tmp_path / "inc"))
    (path,) = (tmp_path / "memo").glob("closure-*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "value": json.loads(value)}))
    assert ToolchainStore(tmp_path / "memo").closure(device(source, tmp_path / "inc")) == expected


def test_a_closure_follows_the_folders_of_another_toolchain(found: list[Toolchain], tmp_path: Path) -> None:
    source = tree(tmp_path / "kernels", gemm="#include <a.h>\n") / "gemm.h"
    assert ToolchainStore(tmp_path / "memo").closure(device(source, tmp_path / "inc"))["a.h"] == tmp_path / "inc/a.h"
    newer = device(source, tree(tmp_path / "newer", a=""))
    assert ToolchainStore(tmp_path / "memo").closure(newer)["a.h"] == tmp_path / "newer/a.h"


def test_a_closure_is_taken_once(found: list[Toolchain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tree(tmp_path / "kernels", gemm="#include <a.h>\n") / "gemm.h"
    calls: list[Path] = []
    take = module.include_closure

    def counted(path: Path, folders: Any) -> dict[str, Path]:
        calls.append(path)
        return take(path, folders)

    monkeypatch.setattr(module, "include_closure", counted)
    first = ToolchainStore(tmp_path / "memo")
    asked = device(source, tmp_path / "inc")
    assert first.closure(asked) == first.closure(asked) == ToolchainStore(tmp_path / "memo").closure(asked)
    assert calls == [source]


def test_a_new_file_of_the_own_folder_has_the_closure_taken_again(found: list[Toolchain], tmp_path: Path) -> None:
    source = tree(tmp_path / "kernels", gemm__top='#include "arch/a.h"\n', lib__arch__a="") / "gemm/top.h"
    asked = DeviceSource(source, tmp_path / "kernels", (tmp_path / "kernels", tmp_path / "kernels/lib"))
    assert ToolchainStore(tmp_path / "memo").closure(asked)["arch/a.h"] == tmp_path / "kernels/lib/arch/a.h"
    tree(tmp_path / "kernels", arch__a="")  # found first from now on
    assert ToolchainStore(tmp_path / "memo").closure(asked)["arch/a.h"] == tmp_path / "kernels/arch/a.h"


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


def test_threads_that_ask_at_once_all_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered, files_state = ToolchainStore._remembered_toolchain, module._files_state
    first, just_found, search = iter([True]), threading.Event(), module.find_toolchain

    def late(store: ToolchainStore) -> Toolchain | None:
        if not next(first, False):
            just_found.wait(30)  # then the second thread learns that nothing is remembered
        return None if not just_found.is_set() else remembered(store)

    def slow(toolchain: Toolchain) -> Any:
        just_found.set()
        time.sleep(0.3)
        return files_state(toolchain)

    def long() -> Toolchain:
        if just_found.is_set():
            time.sleep(0.6)
        return search()

    monkeypatch.setattr(module, "find_toolchain", long)
    monkeypatch.setattr(ToolchainStore, "_remembered_toolchain", late)
    monkeypatch.setattr(module, "_files_state", slow)
    store = ToolchainStore(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        found = [future.result() for future in [pool.submit(store.toolchain) for _ in range(2)]]
    assert found[0] == found[1] == store.toolchain()
