"""Wheels of NVIDIA in the folders that Python imports from."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from warp_tiles.compile import search
from warp_tiles.compile.search import HEADERS, folder_of, load_library, package_folders
from warp_tiles.errors import ToolchainError


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


# ---- folders


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


# ---- headers


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_the_first_folder_that_has_them(name: str, places: list[Path]) -> None:
    wheel = HEADERS[name]
    assert folder_of(wheel) is None
    (places[0] / "nvidia" / wheel.folders[-1]).mkdir(parents=True)  # without the file
    second = add_headers(places[1], name, wheel.folders[-1])
    assert folder_of(wheel) == (second, wheel.files[0])
    first = add_headers(places[0], name, wheel.folders[0])
    assert folder_of(wheel) == (first, wheel.files[0])


# ---- libraries


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
