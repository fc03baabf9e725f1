"""The toolchain: its values, the search, and the errors for missing parts."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warp_tiles.compile import search
from warp_tiles.compile.search import (
    HEADERS,
    Toolchain,
    dotted,
    find_toolchain,
    folder_of,
    load_library,
    package_folders,
    require_arch,
    require_linkable,
)
from warp_tiles.errors import ToolchainError

# ---- values

PLAIN = Toolchain(Path("/x/libnvrtc.so.12"), (12, 9), Path("/x/libnvJitLink.so.12"), (12, 9), (Path("/i"),), "25.6.0")


WITHOUT_HEADERS = replace(PLAIN, include_dirs=(), missing_headers=("there are no headers", "pip install some"))


@pytest.mark.parametrize("made", [PLAIN, replace(PLAIN, nvjitlink=None, nvjitlink_version=None), WITHOUT_HEADERS])
def test_a_toolchain_survives_json(made: Toolchain) -> None:
    assert Toolchain.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_missing_headers_raise_when_they_are_required() -> None:
    assert PLAIN.require_headers() == (Path("/i"),)
    with pytest.raises(ToolchainError, match="there are no headers") as caught:
        WITHOUT_HEADERS.require_headers()
    assert caught.value.remedy == "pip install some"


@pytest.mark.parametrize(
    ("linker", "can"), [((12, 9), True), ((13, 0), True), ((12, 8), False), ((11, 9), False), (None, False)]
)
def test_a_linker_reads_lto_ir_up_to_its_own_version(linker: tuple[int, int] | None, can: bool) -> None:
    assert replace(PLAIN, nvjitlink_version=linker).can_link is can


def test_versions_as_text() -> None:
    assert (dotted((12, 9)), dotted(None)) == ("12.9", "none")


@pytest.mark.parametrize("toolkit", [(12, 9), (13, 0), None])
def test_an_nvrtc_up_to_warps_version_is_accepted(toolkit: tuple[int, int] | None) -> None:
    require_linkable(PLAIN, toolkit)


@pytest.mark.parametrize("toolkit", [(12, 8), (11, 9)])
def test_a_newer_nvrtc_is_refused_with_both_versions(toolkit: tuple[int, int]) -> None:
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


def test_an_architecture_unknown_to_nvrtc_is_refused() -> None:
    toolchain = Toolchain(Path("nvrtc"), (12, 9), None, None, (), "25.6", (80, 90))
    require_arch(toolchain, 90)
    with pytest.raises(ToolchainError, match=r"NVRTC 12\.9 does not compile for sm_110, only for sm_80, sm_90"):
        require_arch(toolchain, 110)


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
    # an installation by `pip install --target` may be complete, and only its folder missing from the path
    assert "neither where Python imports packages from (sys.path)" in caught.value.message
    assert "add the folder of `pip install --target` to PYTHONPATH" in caught.value.remedy


def test_a_missing_linker_leaves_the_link_to_warp(pathfinder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    load = pathfinder.load_nvidia_dynamic_lib

    def fail_for_nvjitlink(name: str) -> Any:
        if name == "nvJitLink":
            raise pathfinder.DynamicLibNotFoundError(name)
        return load(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", fail_for_nvjitlink)
    found = find_toolchain()
    assert (found.nvjitlink, found.nvjitlink_version, found.can_link) == (None, None, False)


@pytest.mark.parametrize("name", HEADERS)
def test_missing_headers_name_the_package(name: str, pathfinder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    find, folder_of = pathfinder.find_nvidia_header_directory, search.folder_of
    monkeypatch.setattr(pathfinder, "find_nvidia_header_directory", lambda one: None if one == name else find(one))
    monkeypatch.setattr(search, "folder_of", lambda wheel: None if wheel is HEADERS[name] else folder_of(wheel))
    found = find_toolchain()  # the own templates need only the compiler
    assert found.nvrtc.is_file()
    assert (found.include_dirs, found.mathdx_version) == ((), "none")
    with pytest.raises(ToolchainError, match=f"the {name} headers") as caught:
        found.require_headers()
    assert f"pip install {HEADERS[name].name}" in caught.value.remedy


def test_missing_cublasdx_headers_name_the_package(pathfinder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "package_folders", tuple)
    monkeypatch.delenv("MATHDX_HOME", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    with pytest.raises(ToolchainError, match=r"cublasdx\.hpp") as caught:
        search._find_mathdx()
    assert "pip install nvidia-mathdx" in caught.value.remedy
    assert "MATHDX_HOME" in caught.value.message


@pytest.mark.parametrize("variable", ["MATHDX_HOME", "CONDA_PREFIX"])
def test_mathdx_home_and_the_conda_environment_are_fallbacks(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cublasdx.hpp").touch()
    (tmp_path / "external/cutlass/include").mkdir(parents=True)
    monkeypatch.setattr(search, "package_folders", tuple)
    monkeypatch.delenv("MATHDX_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    folders, _ = search._find_mathdx()
    assert folders == (tmp_path / "include", tmp_path / "external/cutlass/include")


def test_without_cuda_core_the_remedy_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda.bindings", "cuda.pathfinder"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ToolchainError, match="cuda-core is not usable") as caught:
        find_toolchain()
    assert "pip install" in caught.value.remedy
    assert "cuda-core" in caught.value.remedy
    with pytest.raises(ToolchainError, match="cuda-core is not usable"):
        search._find_cuda_headers()


def test_a_cuda_13_toolkit_keeps_cccl_one_level_down(
    tmp_path: Path, pathfinder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cccl").mkdir()
    monkeypatch.setattr(search, "package_folders", tuple)
    monkeypatch.setattr(pathfinder, "find_nvidia_header_directory", lambda name: str(tmp_path))
    assert search._find_cuda_headers() == (tmp_path, tmp_path / "cccl")


# ---- wheels, wherever Python imports from


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of sys.path, two with a package ``nvidia``, which no other importer knows."""
    found = [tmp_path / name for name in ("first", "second")]
    for place in found:
        (place / "nvidia").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(place) for place in found])
    other_importer(monkeypatch, [])
    return found


def other_importer(monkeypatch: pytest.MonkeyPatch, locations: Sequence[Path]) -> None:
    spec = importlib.machinery.ModuleSpec("nvidia", None, is_package=True)
    spec.submodule_search_locations = list(map(str, locations))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def add_headers(place: Path, name: str, folder: str) -> Path:
    file = place / "nvidia" / folder / HEADERS[name].files[0]
    file.parent.mkdir(parents=True)
    file.touch()
    return place / "nvidia" / folder


def test_folders_have_the_order_of_the_path(places: list[Path], tmp_path: Path) -> None:
    sys.path[:0] = [str(tmp_path / "missing"), str(tmp_path / "archive.zip"), str(places[1])]
    (tmp_path / "archive.zip").touch()
    assert package_folders() == (places[1] / "nvidia", places[0] / "nvidia")


def test_folders_of_other_importers_come_last(
    places: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editable = tmp_path / "editable/nvidia"
    editable.mkdir(parents=True)
    other_importer(monkeypatch, [editable, places[0] / "nvidia"])
    assert package_folders() == (places[0] / "nvidia", places[1] / "nvidia", editable)


def test_a_relative_entry_counts_and_an_empty_one_does_not(
    places: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia").mkdir()
    monkeypatch.chdir(tmp_path)
    sys.path[:] = ["", "second"]
    other_importer(monkeypatch, [tmp_path / "nvidia"])  # Python itself looks there
    assert package_folders() == (places[1] / "nvidia",)


def test_a_module_without_a_specification_is_no_error(places: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ValueError(f"{name}.__spec__ is None")

    monkeypatch.setattr(importlib.util, "find_spec", fail)
    assert len(package_folders()) == 2


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_the_first_folder_that_has_them(name: str, places: list[Path]) -> None:
    wheel = HEADERS[name]
    assert folder_of(wheel) is None
    (places[0] / "nvidia" / wheel.folders[-1]).mkdir(parents=True)  # without the file
    second = add_headers(places[1], name, wheel.folders[-1])
    assert folder_of(wheel) == (second, wheel.files[0])
    first = add_headers(places[0], name, wheel.folders[0])
    assert folder_of(wheel) == (first, wheel.files[0])


def test_a_library_that_the_loader_refuses_is_named(places: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_is_loaded", lambda soname: False)
    load_library("nvrtc")  # no wheel has it
    folder = places[1] / "nvidia/cuda_nvrtc/lib"
    folder.mkdir(parents=True)
    (folder / "libnvrtc.so.12").write_text("not a library")
    with pytest.raises(ToolchainError, match=r"libnvrtc\.so\.12 cannot be loaded") as caught:
        load_library("nvrtc")
    assert str(folder) in caught.value.message
    assert "install nvidia-cuda-nvrtc-cu12" in caught.value.remedy


def test_a_library_is_loaded_once(places: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_is_loaded", lambda soname: soname.endswith(".13"))
    monkeypatch.setattr(search, "package_folders", lambda: pytest.fail("it is loaded already"))
    load_library("nvJitLink")
