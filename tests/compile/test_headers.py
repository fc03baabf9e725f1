"""Precompiled headers of NVRTC, written by one compiler process and read by another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from warp_tiles.compile.compiler import CompileRequest, HeaderFile, LinkRequest
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.compile.worker import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="headers are precompiled on Linux only")

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import json, sys
from warp_tiles.compile import compiler
from warp_tiles.compile.libraries import open_nvjitlink, open_nvrtc
from warp_tiles.compile.find import find_toolchain
paths = [str(path) for path in find_toolchain().paths]
nvrtc = open_nvrtc(paths[0])
for step in sys.argv[1:]:
    if step == "link":
        open_nvjitlink(paths[1])
    if step == "compile":
        nvrtc.compile("__device__ int x;", "x.cu", [], "PTX")
    if step == "allocate":
        large = bytearray(300 << 20)
before = list(compiler._mappings())
reserved = compiler.reserve_heap(nvrtc)
new = [m for m in compiler._mappings() if m[0] < compiler.HEAP_END <= m[1]]
print(json.dumps([reserved, new, len(list(compiler._mappings())) - len(before)]))
"""


@pytest.fixture
def request_with_header(tmp_path: Path) -> CompileRequest:
    """A translation unit with a header, and a file for precompiled headers."""
    (tmp_path / "shapes.h").write_text("__device__ inline int corners(int n) { return n == 4 ? 4 : 3; }\n")
    source = '#include "shapes.h"\nextern "C" __global__ void kernel(int* out) { *out = corners(4); }\n'
    header = HeaderFile(os.fspath(tmp_path / "shapes.pch"), True)
    return CompileRequest("kernel.cu", source, ("-arch=sm_90", "--std=c++17"), (os.fspath(tmp_path),), "kernel", header)


def cubin(request: CompileRequest) -> tuple[bytes, bool]:
    """The linked kernel from a new compiler process, and whether it wrote headers."""
    with CompilerPool(1) as pool:
        compiled = pool.submit(request).result()
        linked = pool.submit(LinkRequest("kernel", (compiled.payload,), "sm_90", "cubin")).result()
        return linked.payload, compiled.header_written


def probe(*steps: str) -> tuple[bool, list[list[int]], int]:
    done = subprocess.run([sys.executable, "-c", PROBE, *steps], cwd=ROOT, capture_output=True, text=True, check=True)
    reserved, new, more = json.loads(done.stdout)
    return reserved, new, more


@pytest.mark.parametrize("steps", [(), ("allocate", "link", "compile")])
def test_the_heap_has_the_same_address_whatever_the_process_did_before(steps: tuple[str, ...]) -> None:
    reserved, new, more = probe(*steps)
    assert reserved
    assert new == [[0x6000_0000_0000 - (256 << 20), 0x6000_0000_0000]]
    assert more < 30  # the ranges that were occupied for a moment are free again


def test_another_process_reads_the_headers(request_with_header: CompileRequest, tmp_path: Path) -> None:
    header = request_with_header.header
    assert header is not None
    expected, written = cubin(replace(request_with_header, header=None))
    assert not written
    assert cubin(request_with_header) == (expected, True)
    # only the precompiled headers still have the function
    (tmp_path / "shapes.h").write_text("")
    assert cubin(replace(request_with_header, header=replace(header, create=False))) == (expected, False)


def test_a_missing_file_costs_only_time(request_with_header: CompileRequest, tmp_path: Path) -> None:
    expected, _ = cubin(replace(request_with_header, header=None))
    absent = HeaderFile(os.fspath(tmp_path / "absent.pch"))
    assert cubin(replace(request_with_header, header=absent)) == (expected, False)
    unwritable = HeaderFile("/no/such/folder/shapes.pch", create=True)
    assert cubin(replace(request_with_header, header=unwritable)) == (expected, False)


def test_a_process_without_the_address_compiles_without_headers(
    request_with_header: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warp_tiles.compile import compiler

    monkeypatch.setattr(compiler, "reserve_heap", lambda nvrtc: False)
    compiled = run(request_with_header)
    assert compiled.payload
    assert not compiled.header_written
    assert request_with_header.header is not None
    assert not Path(request_with_header.header.path).exists()


def test_any_error_with_headers_costs_only_time(
    request_with_header: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warp_tiles.compile import compiler

    original = compiler._compile

    def fail(nvrtc: Any, request: CompileRequest, start: float, *more: str) -> Any:
        if more:
            raise RuntimeError("NVRTC: NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED")
        return original(nvrtc, request, start)

    monkeypatch.setattr(compiler, "reserve_heap", lambda nvrtc: True)
    monkeypatch.setattr(compiler, "_compile", fail)
    assert run(request_with_header).payload


def test_an_error_while_the_address_is_reserved_fails_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    from warp_tiles.compile import compiler

    asked: list[object] = []

    def fail(nvrtc: object) -> bool:
        asked.append(nvrtc)
        raise PermissionError("/proc/self/maps")

    monkeypatch.setattr(compiler, "_reserve", fail)
    assert compiler.reserve_heap.__wrapped__("NVRTC") is False
    assert asked == (["NVRTC"] if sys.platform == "linux" else [])
