"""The toolchain: its values, the search, and the errors for missing parts."""

import ctypes.util
import importlib.machinery
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warp_tiles.compile import find
from warp_tiles.compile.compiler import Nvrtc
from warp_tiles.compile.find import (
    MIN_NVRTC,
    Toolchain,
    choose_libraries,
    dotted,
    find_toolchain,
    package_folders,
    require_arch,
    unlinkable_reason,
)
from warp_tiles.errors import ToolchainError

# ---- values

PLAIN = Toolchain(Path("/x/libnvrtc.so.12"), (12, 9), Path("/x/libnvJitLink.so.12"), (12, 9), (Path("/i"),), "25.6.0")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"nvjitlink": None, "nvjitlink_version": None},
        {"include_dirs": (), "missing_headers": ("there are no headers", "pip install some")},
    ],
)
def test_a_toolchain_survives_json(changes: dict[str, Any]) -> None:
    made = replace(PLAIN, **changes)
    assert Toolchain.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize("version", [(12, 9), (13, 0), (12, 8), (11, 9), None])
def test_a_linker_reads_lto_ir_up_to_its_own_version(version: tuple[int, int] | None) -> None:
    """nvJitLink, and that of Warp, which is tried if its version is not known."""
    assert replace(PLAIN, nvjitlink_version=version).can_link is (version in ((12, 9), (13, 0)))
    text = unlinkable_reason(PLAIN, version, "it is a debug build")
    assert (text == "") is (version not in ((12, 8), (11, 9)))
    for part in ("NVRTC 12.9", f"CUDA {dotted(version)}", "it is a debug build") if text else ():
        assert part in text
    assert unlinkable_reason(PLAIN, version, "") == "", "nvJitLink links them"


def test_the_compilers_libraries_are_nvrtc_and_its_builtins(tmp_path: Path) -> None:
    for name in ("libnvrtc.so.12", "libnvrtc-builtins.so.12.9", "libother.so"):
        (tmp_path / name).write_bytes(b"")
    made = replace(PLAIN, nvrtc=tmp_path / "libnvrtc.so.12")
    assert set(made.libraries) == {"libnvrtc.so.12", "libnvrtc-builtins.so.12.9"}


@pytest.mark.parametrize(
    ("version", "arch", "reason"),
    [
        ((12, 9), 110, r"NVRTC 12\.9 does not compile for sm_110, only for sm_90, sm_120"),
        *(((13, minor), 120, rf"NVRTC 13\.{minor} rejects valid kernels for sm_120.*warp#1118") for minor in (1, 2, 3)),
        *(((13, minor), 120, "") for minor in (0, 4, 5)),
    ],
)
def test_an_architecture_that_nvrtc_does_not_compile_for_is_refused(
    version: tuple[int, int], arch: int, reason: str
) -> None:
    toolchain = replace(PLAIN, nvrtc_version=version, archs=(90, 120))
    require_arch(toolchain, 90)
    if not reason:
        require_arch(toolchain, arch)
        return
    with pytest.raises(ToolchainError, match=reason) as caught:
        require_arch(toolchain, arch)
    assert "pip install" in caught.value.remedy


# ---- which compiler and linker are used


def library(version: tuple[int, int], where: str = "") -> Any:
    return SimpleNamespace(version=version, path=Path(f"/{where or dotted(version)}/lib.so"))


@pytest.mark.parametrize(
    ("compilers", "linkers", "warp", "expected"),
    [
        ([(13, 5), (12, 8)], [(13, 5), (12, 8)], (13, 4), ((13, 5), (13, 5))),  # torch of CUDA 12 beside ours
        ([(13, 0)], [(13, 5)], (13, 4), ((13, 0), (13, 5))),  # torch 2.14: the linker may be newer
        ([(13, 5), (12, 8)], [(13, 5), (12, 9)], (12, 9), ((12, 8), (12, 9))),  # a Warp of CUDA 12
        ([(13, 4), (13, 0)], [(13, 0)], (13, 4), ((13, 0), (13, 0))),  # never with an older linker
        ([(13, 4), (12, 9)], [(12, 8)], (13, 4), ((13, 4), None)),  # Warp links
        ([(12, 4), (12, 8)], [(12, 8)], None, ((12, 8), (12, 8))),
        ([(13, 5)], [(13, 5)], None, ((13, 5), (13, 5))),
    ],
)
def test_the_first_compiler_with_a_linker_that_reads_its_code(
    compilers: list[tuple[int, int]], linkers: list[tuple[int, int]], warp: Any, expected: tuple[Any, Any]
) -> None:
    nvrtc, nvjitlink, passed_over = choose_libraries([*map(library, compilers)], [*map(library, linkers)], warp)
    assert (nvrtc.version, nvjitlink and nvjitlink.version) == expected
    before = compilers[: compilers.index(expected[0])]
    linkers_alone = linkers if nvjitlink is None else []
    skipped = [("NVRTC", version) for version in before] + [("nvJitLink", version) for version in linkers_alone]
    names = [f"{name} {dotted(version)} (/{dotted(version)}/lib.so)" for name, version in skipped]
    assert [text.partition(":")[0] for text in passed_over] == names


def test_each_compiler_that_is_passed_over_has_its_reason() -> None:
    *_, passed_over = choose_libraries(
        [library((12, 4)), library((13, 5)), library((12, 9)), library((12, 8))], [library((12, 8))], (12, 9)
    )
    assert [text.partition(": ")[2] for text in passed_over] == [
        "it is older than 12.8",
        "drivers for the CUDA 12.9 of this Warp may not load its code",
        "no nvJitLink here reads its LTO-IR",
    ]


@pytest.mark.parametrize(
    ("found", "warp", "remedy"),
    [
        ((13, 5), (12, 9), 'pip install "warp-tiles[cu12]"'),
        ((12, 4), (13, 4), "pip install nvidia-cuda-nvrtc nvidia-nvjitlink"),
    ],
)
def test_without_a_fit_compiler_the_error_names_each(found: Any, warp: Any, remedy: str) -> None:
    with pytest.raises(ToolchainError, match=f"no NVRTC can be used: NVRTC {dotted(found)}") as caught:
        choose_libraries([library(found)], [library(found)], warp)
    assert caught.value.remedy == remedy


# ---- the search


def test_the_toolchain_of_this_environment() -> None:
    found = find_toolchain()
    assert found.nvrtc.is_file()
    assert found.nvrtc_version >= MIN_NVRTC
    assert found.can_link
    for header in ("cublasdx.hpp", "cuda_fp16.h", "crt/host_config.h", "cuda/std/type_traits", "cute/tensor.hpp"):
        assert any((folder / header).is_file() for folder in found.include_dirs), header


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Hides the files of some libraries."""
    paths = find._LibraryFile.paths
    monkeypatch.setattr(find._LibraryFile, "paths", lambda file: iter(() if file.name in names else paths(file)))


def test_missing_nvrtc_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "libnvrtc")
    with pytest.raises(ToolchainError, match="NVRTC") as caught:
        find_toolchain()
    assert "pip install nvidia-cuda-nvrtc" in caught.value.remedy
    assert "CUDA_HOME" in caught.value.remedy
    # an installation by `pip install --target` may be complete, and only its folder missing from the path
    assert "neither where Python imports packages from (sys.path)" in caught.value.message
    assert "add the folder of `pip install --target` to PYTHONPATH" in caught.value.remedy


def test_a_missing_linker_leaves_the_link_to_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "libnvJitLink")
    found = find_toolchain()
    assert (found.nvjitlink, found.nvjitlink_version, found.can_link) == (None, None, False)
    assert found.paths == (found.nvrtc,)


def test_libraries_of_wheels_come_before_those_of_toolkits(
    places: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit = tmp_path / "toolkit"
    monkeypatch.setattr(find, "_DEFAULT_ROOT", tmp_path / "none")
    for variable in ("CONDA_PREFIX", "CUDA_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    wanted = [
        places[0] / "nvidia/cu13/lib/libnvrtc.so.13",
        places[0] / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        places[1] / "nvidia/cu13/lib/libnvrtc.so.13",
        toolkit / "lib64/libnvrtc.so.13",
        toolkit / "targets/sbsa-linux/lib/libnvrtc.so.12",
    ]
    for path in wanted:
        path.parent.mkdir(parents=True)
        path.touch()
    assert list(find._NVRTC.paths()) == wanted


def test_a_file_that_is_no_library_is_passed_over_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, broken = find_toolchain().nvrtc, tmp_path / "libnvrtc.so.12"
    broken.write_text("not a library")
    monkeypatch.setattr(find._LibraryFile, "paths", lambda file: iter([broken, real]))
    assert find_toolchain().passed_over[0].startswith(f"{broken} cannot be loaded")
    monkeypatch.setattr(find._LibraryFile, "paths", lambda file: iter([broken]))
    with pytest.raises(ToolchainError, match=r"libnvrtc\.so\.12 cannot be loaded") as caught:
        find_toolchain()
    assert "install the package of NVRTC" in caught.value.remedy
    with pytest.raises(ToolchainError, match="cannot be loaded"):  # a library of another kind
        Nvrtc(ctypes.util.find_library("m") or "libm.so.6")


# ---- headers


@pytest.fixture
def header_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the package ``nvidia``, and no toolkit."""
    monkeypatch.setattr(find, "package_folders", lambda: (tmp_path,))
    monkeypatch.setattr(find, "_roots", list)
    return tmp_path


def add_headers(
    root: Path, crt: str, cudart: str, cccl: str, *, cuda: int = 12090, cccl_version: int = 2_008_002
) -> None:
    for folder, name, text in (
        (crt, "crt/host_config.h", ""),
        (cudart, "cuda_runtime_api.h", f"#define CUDART_VERSION  {cuda}\n"),
        (cccl, "cuda/std/version", ""),
        (cccl, "cuda/std/__cccl/version.h", f"#define CCCL_VERSION {cccl_version}\n"),
    ):
        (root / folder / name).parent.mkdir(parents=True, exist_ok=True)
        (root / folder / name).write_text(text)


CU12 = ("cuda_nvcc/include", "cuda_runtime/include", "cuda_cccl/include")
CU13 = ("cu13/include", "cu13/include", "cu13/include/cccl")


@pytest.mark.parametrize("include", ["cu13/include", "include", "targets/x86_64-linux/include"])
def test_headers_of_one_place_are_used_together(
    include: str, header_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of CUDA 13 have CCCL one level down."""
    if include != "cu13/include":  # of a toolkit
        monkeypatch.setattr(find, "_roots", lambda: [header_tree])
    add_headers(header_tree, include, include, f"{include}/cccl", cuda=13000, cccl_version=3_000_001)
    (header_tree / "cuda_runtime/include").mkdir(parents=True)  # torch of CUDA 12 has this package alone
    assert find._find_cuda_headers((13, 0)) == (header_tree / include, header_tree / include / "cccl")
    add_headers(header_tree, *CU12)
    assert find._find_cuda_headers((13, 4)) == tuple(header_tree / name for name in CU12)


@pytest.mark.parametrize(
    ("facts", "nvrtc", "reason"),
    [
        ({"cuda": 13050}, (12, 8), "NVRTC 12.8 does not read headers of CUDA 13"),
        ({"cuda": 13050, "cccl_version": 3_003_005}, (13, 5), "CCCL 3.3, only with CCCL before 3.2"),
    ],
)
def test_headers_that_do_not_fit_are_named(
    facts: dict[str, int], nvrtc: tuple[int, int], reason: str, header_tree: Path
) -> None:
    add_headers(header_tree, *CU13, **facts)
    with pytest.raises(ToolchainError, match=re.escape(reason)) as caught:
        find._find_cuda_headers(nvrtc)
    assert "pip install nvidia-cuda-nvcc-cu12 nvidia-cuda-runtime-cu12 nvidia-cuda-cccl-cu12" in caught.value.remedy


@pytest.mark.parametrize("missing", ["crt/host_config.h", "cuda_runtime_api.h", "cuda/std/version"])
def test_missing_headers_are_named(missing: str, header_tree: Path) -> None:
    with pytest.raises(ToolchainError, match="none were found"):
        find._find_cuda_headers(None)
    add_headers(header_tree, *CU12)
    next(header_tree.rglob(missing)).unlink()
    with pytest.raises(ToolchainError, match=f"{missing} is missing"):
        find._find_cuda_headers(None)


def test_own_templates_need_no_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_header_folders", lambda: iter(()))
    found = find_toolchain()
    assert found.nvrtc.is_file()
    assert (found.include_dirs, found.mathdx_version) == ((), "none")
    with pytest.raises(ToolchainError, match="CUDA's headers"):
        found.require_headers()


@pytest.mark.parametrize("variable", ["MATHDX_HOME", "CONDA_PREFIX"])
def test_mathdx_home_and_the_conda_environment_are_fallbacks(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "package_folders", tuple)
    for name in ("MATHDX_HOME", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ToolchainError, match=r"cublasdx\.hpp") as caught:
        find._find_mathdx()
    assert "pip install nvidia-mathdx" in caught.value.remedy
    assert "MATHDX_HOME" in caught.value.message
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cublasdx.hpp").touch()
    (tmp_path / "external/cutlass/include").mkdir(parents=True)
    monkeypatch.setenv(variable, str(tmp_path))
    folders, _ = find._find_mathdx()
    assert folders == (tmp_path / "include", tmp_path / "external/cutlass/include")


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


def test_folders_have_the_order_of_the_path_and_those_of_other_importers_come_last(
    places: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.path[:0] = [str(tmp_path / "missing"), str(tmp_path / "archive.zip"), str(places[1])]
    (tmp_path / "archive.zip").touch()
    editable = tmp_path / "editable/nvidia"
    editable.mkdir(parents=True)
    other_importer(monkeypatch, [editable, places[0] / "nvidia"])
    assert package_folders() == (places[1] / "nvidia", places[0] / "nvidia", editable)


def test_a_relative_entry_counts_and_an_empty_one_does_not(
    places: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise ValueError(f"{name}.__spec__ is None")

    (tmp_path / "nvidia").mkdir()
    monkeypatch.chdir(tmp_path)
    sys.path[:] = ["", "second"]
    other_importer(monkeypatch, [tmp_path / "nvidia"])  # Python itself looks there
    assert package_folders() == (places[1] / "nvidia",)
    monkeypatch.setattr(importlib.util, "find_spec", fail)  # a module without a specification
    assert package_folders() == (places[1] / "nvidia",)
