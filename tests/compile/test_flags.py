"""The flags of compiler and linker, compared with those that cuda-core makes of the same keywords."""

from __future__ import annotations

from typing import Any

import pytest

from warp_tiles.compile.compiler import compiler_flags, linker_flags
from warp_tiles.compile.module import ModuleSource, module_options

CASES: dict[str, dict[str, Any]] = {
    "template": {"arch": "sm_90", "std": "c++17", "include_path": ["/kernels"]},
    "cublasdx": {
        "arch": "sm_80",
        "std": "c++17",
        "device_as_default_execution_space": True,
        "gen_opt_lto": True,
        "include_path": ["/a", "/b"],
    },
}
MODULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "all": {"lineinfo": True, "fast_math": True, "fuse_fp": False, "verify_fp": True, "optimization_level": 0},
    "folders": {"extra_include_dirs": ["/c"], "optimization_level": 2},
}
for name, keywords in MODULES.items():
    CASES[f"module {name}"] = module_options(ModuleSource("m.cu", 90, "cubin", "/native", keywords), (12, 9))


@pytest.mark.parametrize("name", CASES)
def test_the_compilers_flags_are_those_of_cuda_core(name: str) -> None:
    core = pytest.importorskip("cuda.core", reason="cuda-core is the reference")
    options = core.ProgramOptions(link_time_optimization=True, relocatable_device_code=True, **CASES[name])
    expected = [flag.decode() for flag in options.as_bytes("nvrtc")]
    assert sorted(compiler_flags(CASES[name].items())) == sorted(expected)
    searched = [flag for flag in compiler_flags(CASES[name].items()) if flag.startswith("--include-path")]
    assert searched == [flag for flag in expected if flag.startswith("--include-path")], "folders keep their order"


@pytest.mark.parametrize("registers", [None, 56])
@pytest.mark.parametrize("output", ["cubin", "ptx"])
def test_the_linkers_flags_are_those_of_cuda_core(output: str, registers: int | None) -> None:
    core = pytest.importorskip("cuda.core", reason="cuda-core is the reference")
    options = core.LinkerOptions(
        arch="sm_90",
        link_time_optimization=True,
        optimize_unused_variables=True,
        max_register_count=registers,
        split_compile=0,
        ptx=True if output == "ptx" else None,
    )
    expected = [flag.decode() for flag in options.as_bytes("nvjitlink")]
    assert sorted(linker_flags("sm_90", output, registers)) == sorted(expected)


def test_an_unknown_keyword_is_an_error() -> None:
    with pytest.raises(ValueError, match="'time' has no flag"):
        compiler_flags([("time", True)])
