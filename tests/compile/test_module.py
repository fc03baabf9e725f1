"""Options and links of whole modules: Warp's options are kept, and Warp links what warp_tiles cannot."""

import ctypes
import inspect
import json
import os
import time
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from warp._src import build

from tests.interpreter import python
from warp_tiles.compile.compiler import LTO_FLAGS, CompileRequest, LinkRequest
from warp_tiles.compile.find import Toolchain
from warp_tiles.compile.module import (
    KNOWN_KEYWORDS,
    ModuleSource,
    WarpCompileRequest,
    compile_with_warp,
    module_flags,
    names_in_code,
    reason_without_key,
    warp_link_reason,
)
from warp_tiles.compile.worker import run
from warp_tiles.errors import LinkError

NVRTC_12_9 = (12, 9)


def module(output: str = "cubin", arch: int = 90, **keywords: Any) -> ModuleSource:
    return ModuleSource("module.cu", arch, output, "/warp/native", keywords)


# ---- flags


def flags_of(nvrtc: tuple[int, int] = NVRTC_12_9, output: str = "cubin", arch: int = 90, **keywords: Any) -> set[str]:
    return set(module_flags(module(output, arch, **keywords), nvrtc))


@pytest.mark.parametrize(
    ("level", "nvrtc", "expected"),
    [
        (3, (12, 9), "0"), (2, (12, 9), "min"), (1, (12, 9), "mid"), (0, (12, 9), "max"), (0, (13, 0), "max"),
        (0, (13, 1), "mid"), (0, (13, 4), "mid"), (7, (13, 4), "0"), (0, (12, 8), None), (3, (12, 4), None),
    ],
)  # fmt: skip
def test_optimization_levels(level: int, nvrtc: tuple[int, int], expected: str | None) -> None:
    found = [flag for flag in flags_of(nvrtc, optimization_level=level) if flag.startswith("--Ofast-compile")]
    assert found == ([f"--Ofast-compile={expected}"] if expected else [])


@pytest.mark.parametrize(
    ("output", "arch", "level", "nvrtc", "expected"),
    [
        ("cubin", 90, 3, (12, 9), True), ("cubin", 120, 1, (12, 9), True), ("cubin", 89, 3, (12, 9), False),
        ("ptx", 90, 3, (12, 9), False), ("cubin", 90, 0, (12, 9), False), ("cubin", 90, 0, (12, 8), True),
        ("cubin", 90, 3, (12, 6), False), ("cubin", 90, 3, (13, 0), False),
    ],
)  # fmt: skip
def test_the_texture_workaround(output: str, arch: int, level: int, nvrtc: tuple[int, int], expected: bool) -> None:
    found = flags_of(nvrtc, output, arch, optimization_level=level)
    assert ("--define-macro=WP_WORKAROUND_CUDA_TEXTURE_CUBIN" in found) is expected


@pytest.mark.parametrize(
    ("output", "suffix", "target"),
    [("cubin", "", "sm_90"), ("ptx", "", "compute_90"), ("cubin", "a", "sm_90a"), ("ptx", "f", "compute_90f")],
)
def test_targets(output: str, suffix: str, target: str) -> None:
    assert module(output, arch_suffix=suffix).target == target
    assert f"-arch={target}" in flags_of(output=output, arch_suffix=suffix)


# ---- compared with Warp itself

OTHER: dict[str, Any] = {
    "fast_math": True, "fuse_fp": False, "lineinfo": True, "verify_fp": True, "arch_suffix": "a",
    "extra_include_dirs": ["/usr", "/tmp"], "optimization_level": 1,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "all others": OTHER,
    "ptx": {"output": "ptx", "lineinfo": True, "fuse_fp": False},
    "sm_80": {"arch": 80, "optimization_level": 0, "fast_math": True},
}

_WARP_SCRIPT = """
import ctypes, json, sys
from pathlib import Path
import warp as wp
wp.config.log_level = wp.LOG_WARNING if hasattr(wp, "LOG_WARNING") else wp.config.log_level
wp.init()
from warp._src import build, context
from warp_tiles.compile.compiler import CompileRequest
from warp_tiles.compile.worker import run
folder = Path(sys.argv[1])
source = folder / "module.cu"
source.write_text('extern "C" __device__ int f(); extern "C" __global__ void k(int* p) { *p = f(); }')
code = 'extern "C" __device__ int f() { return 1; }'
print("#toolkit", json.dumps(context.runtime.toolkit_version))
print("#native", Path(build.warp_home) / "native", flush=True)
for name, case in json.loads(sys.argv[2]).items():
    arch, output = case.pop("arch", 90), case.pop("output", "cubin")
    request = CompileRequest("f.cu", code, (f"-arch=sm_{arch}" + case.get("arch_suffix", ""),), (), "f")
    inputs = [run(request).payload]
    print("#case", name, flush=True)
    build.build_cuda(str(source), arch, str(folder / f"out.{output}"), pch_dir=None, ltoirs=inputs, **case)
    ctypes.CDLL(None).fflush(None)  # Warp prints through the C library, which buffers on its own
"""


@pytest.fixture(scope="module")
def warps_options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The options that Warp's own LTO path gives to NVRTC for each case, from Warp's debug output."""
    folder = tmp_path_factory.mktemp("options")
    environment = {"WARP_DEBUG": "1", "WARP_CACHE_PATH": str(folder / "warp")}
    result = python("-c", _WARP_SCRIPT, folder, json.dumps(CASES), **environment)
    facts, *cases = result.stdout.split("#case ")
    toolkit, native = (line.partition(" ")[2] for line in facts.splitlines() if line.startswith("#"))
    found: dict[str, Any] = {"toolkit": tuple(json.loads(toolkit)), "native": native}
    for case in cases:
        options = case.rpartition("NVRTC options:\n")[2].splitlines()
        found[case.partition("\n")[0]] = list(takewhile(lambda line: line.startswith("-"), options))
    assert all(found[name] for name in CASES), result.stdout
    return found


# flags that Warp gives to NVRTC and module_flags() omits
OMITTED = ("-pch", "--pch-dir=")  # precompiled headers change the time, not the code


def normalized(flags: list[str]) -> list[str]:
    """Flags in one spelling each. They are sorted, except include folders, whose order counts."""
    spellings = {"--gpu-architecture": "-arch", "-dlto": "--dlink-time-opt", "-rdc": "--relocatable-device-code"}
    plain, includes = [], []
    for flag in flags:
        name, equals, value = flag.partition("=")
        if flag.startswith(OMITTED):
            continue
        if name == "--include-path":
            includes.append(value)
        elif name == "--diag-suppress":
            plain += [f"{name}={number}" for number in value.split(",")]
        else:
            plain.append(f"{spellings.get(name, name)}{equals}{value}")
    return [*sorted(plain), *includes]


def own_flags(case: dict[str, Any], toolkit: tuple[int, int], native: str) -> list[str]:
    keywords = {name: value for name, value in case.items() if name not in ("arch", "output")}
    source = ModuleSource("module.cu", case.get("arch", 90), case.get("output", "cubin"), native, keywords)
    request = CompileRequest("module.cu", "", module_flags(source, toolkit), source.include_dirs, "m")
    return [*LTO_FLAGS, *request.all_flags]


@pytest.mark.parametrize("name", CASES)
def test_the_options_are_warps_and_another_nvrtc_changes_only_two(name: str, warps_options: dict[str, Any]) -> None:
    # with the NVRTC version inside Warp, all options are equal; tests above cover the two
    own = own_flags(CASES[name], warps_options["toolkit"], warps_options["native"])
    assert normalized(own) == normalized(warps_options[name])
    exempt = ("--Ofast-compile", "--define-macro=WP_WORKAROUND_CUDA_TEXTURE_CUBIN")
    old, new = (own_flags(CASES[name], version, "/native") for version in ((12, 9), (13, 4)))
    assert [f for f in old if not f.startswith(exempt)] == [f for f in new if not f.startswith(exempt)]


def test_every_keyword_of_this_warp_is_known() -> None:
    parameters = inspect.signature(build.build_cuda).parameters
    assert set(parameters) - {"cu_path", "arch", "output_path"} <= KNOWN_KEYWORDS


# ---- the choice of the linker

TOOLCHAIN = Toolchain(Path("/libnvrtc.so"), (12, 9), Path("/libnvJitLink.so"), (12, 9), (), "25.6")


def reason(made: ModuleSource, toolchain: Toolchain | None = TOOLCHAIN, foreign: tuple[str, ...] = ()) -> str:
    return warp_link_reason(made.keywords, toolchain=toolchain, foreign_inputs=foreign)


@pytest.mark.parametrize("output", ["cubin", "ptx"])
def test_a_plain_module_is_linked_here(output: str) -> None:
    assert reason(module(output)) == ""
    everything_off = dict.fromkeys(KNOWN_KEYWORDS - {"config"}, None)
    assert reason(module(output, config="release", **everything_off)) == ""


def test_a_linker_that_is_missing_or_older_than_the_compiler_and_foreign_inputs_are_named() -> None:
    assert "no toolchain" in reason(module(), None)
    assert "nvJitLink none" in reason(module(), replace(TOOLCHAIN, nvjitlink=None, nvjitlink_version=None))
    text = reason(module(), replace(TOOLCHAIN, nvjitlink_version=(12, 8)))
    assert "nvJitLink 12.8" in text
    assert "NVRTC 12.9" in text
    assert reason(module(), replace(TOOLCHAIN, nvjitlink_version=(13, 4))) == "", "a newer one is accepted"
    assert "libmathdx, a solver" in reason(module(), foreign=("libmathdx", "a solver"))


# ---- the link itself


@pytest.mark.parametrize(("output", "magic"), [("cubin", b"\x7fELF"), ("ptx", b".version")])
def test_a_module_and_a_function_are_linked(output: str, magic: bytes) -> None:
    function = run(CompileRequest("f.cu", "__device__ int f() { return 1; }", ("-arch=sm_90",), (), "f"))
    text = 'extern __device__ int f(); extern "C" __global__ void k(int* p) { *p = f(); }'
    kernel = run(CompileRequest("k.cu", text, ("-arch=sm_90",), (), "k"))
    arch = "sm_90" if output == "cubin" else "compute_90"
    linked = run(LinkRequest("m", (kernel.payload, function.payload), arch, output, 64))
    assert magic in linked.payload
    assert linked.compiler.startswith("nvJitLink ")
    with pytest.raises(LinkError):
        run(LinkRequest("m", (kernel.payload,), arch, "cubin"))


@pytest.mark.parametrize(
    ("status", "printed", "error"),
    [
        (0, "ready", None),
        (0, "unable to obtain mapped memory", None),
        (1, "unable to obtain mapped memory", MemoryError),
        (1, "no such type", LinkError),
    ],
)
def test_the_call_of_warps_compiler(
    status: int, printed: str, error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class Library:
        @staticmethod
        def wp_cuda_compile_program(*arguments: Any) -> int:
            os.write(1, printed.encode())
            Path(os.fsdecode(arguments[16])).write_bytes(b"code")
            calls.append(tuple(map(list, arguments[19:])))
            return status

    monkeypatch.setattr(ctypes, "CDLL", lambda path: Library)
    switches = (False, False, True, True)
    request = WarpCompileRequest("warp.so", "a.cu", b"", 90, "", "cubin", "/warp", 3, switches, (b"a",), (b"bc",))
    if error is None:
        assert compile_with_warp(request).payload == b"code"
    else:
        with pytest.raises(error, match=printed):
            compile_with_warp(request)
    lto_ir, fatbin = 3, 4  # nvJitLinkInputType of nvJitLink.h
    assert calls == [([b"a", b"bc"], [1, 2], [lto_ir, fatbin])]


def test_the_folder_of_warp_is_in_the_code_only_with_assertions() -> None:
    """Another machine, whose folder is another, must find the other modules."""
    assert names_in_code("a.cu", "/warp", verify_fp=False) == ["a.cu"]
    assert names_in_code("a.cu", "/warp", verify_fp=True) == ["a.cu", "/warp"]


# ---- sources that others may have written


@pytest.mark.parametrize(
    ("code", "may_read"),
    [
        ('# /* a */ include "x"', True),
        ("#\n\tembed", True),
        ("#in\\\nclude X", True),
        ("%:include", True),
        ("??=include", True),
        ("#/**//**/import", True),
        ("/* # include */", True),  # nobody knows that it is in a comment
        ("#if __has_include(x)", True),
        ('#include "builtin.h"\n#include "other.h"', True),
        ('#include "builtin.h"', False),
        ("#define include", False),
        ("#/* */ x */include", False),
        ("#/* open include", False),
        ("// #include x", False),
    ],
)
def test_code_that_may_read_files_has_no_key(code: str, may_read: bool, tmp_path: Path) -> None:
    (tmp_path / "builtin.h").touch()
    module = ModuleSource("m.cu", 90, "cubin", str(tmp_path), {})
    assert bool(reason_without_key(module, code)) == may_read


HOSTILE = {
    "comments": lambda n: "#" + "/**/" * n,
    "blank lines": lambda n: "\n" * n,
    "comments that do not end": lambda n: "#/*" * n,
    "one end": lambda n: "#/*" * n + "*/",
    "comments with directives": lambda n: "/*#/*x*/" * n,
    "directives": lambda n: "# " * n,
    "lines that go on": lambda n: "\\ " * n,
    "a name": lambda n: '#include "' + "a.h" * n,
    "line comments": lambda n: "// x\n" * n,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_time_for_a_source_grows_as_its_length(name: str) -> None:
    module = ModuleSource("m.cu", 90, "cubin", "/nowhere", {})

    def seconds(text: str) -> float:
        times = []
        for _ in range(2):
            start = time.process_time()
            reason_without_key(module, text)
            times.append(time.process_time() - start)
        return min(times)

    short, long = (seconds(HOSTILE[name](n)) for n in (2_000, 32_000))
    assert long < 80 * short + 0.01, "16 times the length; the square of it would take 256 times as long"
