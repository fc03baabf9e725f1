"""The flags of the linker, compared with those that cuda-core makes. test_module.py has those of the compiler."""

from __future__ import annotations

import pytest

from warp_tiles.compile.compiler import linker_flags


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
