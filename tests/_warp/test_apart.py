"""Modules that compiler processes compile by Warp's own compiler: the same bytes, or Warp's own way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from warp_tiles._warp.apart import COMPILER
from warp_tiles._warp.internals import find
from warp_tiles.compile import pool
from warp_tiles.compile.compiler import NativeRequest

ARCH = 90
SNIPPET = "out[tid] = 2 * tid;"


@wp.struct
class Pair:
    one: wp.float32
    other: wp.vec3


@wp.func_native(SNIPPET)
def doubled(out: wp.array(dtype=int), tid: int): ...


@wp.kernel(module="apart_plain")
def plain(a: wp.array(dtype=float), pairs: wp.array(dtype=Pair)):
    i = wp.tid()
    a[i] = wp.sin(a[i]) * wp.length(pairs[i].other) + pairs[i].one


@wp.kernel(module="apart_native", enable_backward=False)
def native(out: wp.array(dtype=int)):
    doubled(out, wp.tid())


@wp.kernel(module="apart_wrong")
def wrong(out: wp.array(dtype=int)):
    broken(out, wp.tid())


@wp.func_native("this is no C++;")
def broken(out: wp.array(dtype=int), tid: int): ...


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[NativeRequest]:
    """The calls that compiler processes make."""
    found: list[NativeRequest] = []
    run = pool._Process.run

    def noted(self: Any, request: Any) -> Any:
        if isinstance(request, NativeRequest):
            found.append(request)
        return run(self, request)

    monkeypatch.setattr(pool._Process, "run", noted)
    return found


@pytest.fixture
def enabled(tmp_path: Path) -> Iterator[None]:
    warp_tiles.disable()
    with warp_tiles.override(modules="all", jobs=2, cache_dir=tmp_path / "lto"), warp_tiles.enabled():
        yield


def cubin(kernel: wp.Kernel, folder: Path) -> bytes:
    folder.mkdir(exist_ok=True)
    kernel.module.mark_modified()
    wp.compile_aot_module(kernel.module, arch=ARCH, module_dir=str(folder))
    (file,) = folder.glob(f"*{kernel.module.name}*.cubin")
    return file.read_bytes()


@pytest.mark.usefixtures("clean_settings")
def test_the_bytes_are_those_of_warp(tmp_path: Path, sent: list[NativeRequest]) -> None:
    warp_tiles.disable()
    kernels = (plain, native)
    expected = [cubin(kernel, tmp_path / "warp") for kernel in kernels]
    settings = warp_tiles.override(modules="all", jobs=2, cache_dir=tmp_path / "lto")
    with settings, warp_tiles.enabled(), ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda kernel: cubin(kernel, tmp_path / kernel.key), kernels))
    assert found == expected
    assert len(sent) == 2
    warp_tiles.disable()
    assert cubin(plain, tmp_path / "after") == expected[0]
    assert len(sent) == 2, "without warp_tiles, Warp compiles in this process"
    assert getattr(find("context.runtime.core"), COMPILER).argtypes


@pytest.mark.usefixtures("enabled")
def test_warp_compiles_here_if_a_process_dies(
    tmp_path: Path, sent: list[NativeRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = pool._Process._start
    monkeypatch.setattr(pool._Process, "_start", lambda self: killed(start(self)))
    with pytest.warns(RuntimeWarning, match="Warp compiles the module in this process"):
        assert cubin(plain, tmp_path / "a")
    assert len(sent) == 1


def killed(process: Any) -> Any:
    process.kill()
    process.wait()
    return process


@pytest.mark.usefixtures("enabled")
def test_an_error_of_the_compiler_is_that_of_warp(tmp_path: Path, sent: list[NativeRequest]) -> None:
    with pytest.raises(Exception, match="CUDA kernel build failed with error code"):
        cubin(wrong, tmp_path / "a")
    assert len(sent) == 1


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("setting", ["tiles", "own headers"])
def test_other_modules_are_compiled_here(tmp_path: Path, sent: list[NativeRequest], setting: str) -> None:
    headers = warp_tiles.override(modules="tiles") if setting == "tiles" else contextlib.nullcontext()
    build = find("build")
    original = build.build_cuda
    with headers, pytest.MonkeyPatch.context() as patch:
        if setting != "tiles":
            patch.setattr(
                build, "build_cuda", lambda *a, **k: original(*a, **{**k, "extra_include_dirs": (str(tmp_path),)})
            )
        assert cubin(plain, tmp_path / "a")
    assert sent == []
