"""Compiled loops of products: each architecture gets the instructions that it has."""

import re
from pathlib import Path

import pytest

from tests.integration.helpers import compile_module, gemm_loop, load
from tests.nightly import some
from warp_tiles import settings

ASYNC = re.compile(r"cp\.async\.cg\.shared\.global")
VECTOR_ADD = re.compile(r"red\.\S*global\.\S*v4\.(?:f32|f16x2|bf16x2)")


def ptx_of(tmp_path: Path, dtype: str, arch: int) -> str:
    module = load(gemm_loop(dtype=dtype), block_dim=128)
    output, record = compile_module(module, tmp_path, arch, use_ptx=True)
    assert record["linker"] == "warp_tiles", record
    return output.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize(
    ("dtype", "arch"),
    some(
        [
            *(("float16", 75), ("bfloat16", 80), ("float32", 90), ("float16", 120), ("float16", 80), ("float16", 90)),
            *(("bfloat16", arch) for arch in (75, 90, 120)),
            *(("float32", arch) for arch in (75, 80, 120)),
        ],
        3,
    ),
)
def test_instructions(tmp_path: Path, dtype: str, arch: int) -> None:
    text = ptx_of(tmp_path, dtype, arch)
    assert bool(ASYNC.search(text)) is (arch >= 80)
    assert bool(VECTOR_ADD.search(text)) is (arch >= 90)


@pytest.mark.slow
@pytest.mark.usefixtures("enabled")
def test_the_setting_leaves_loads_to_warp(tmp_path: Path) -> None:
    with settings.override(async_copies=False):
        text = ptx_of(tmp_path, "float16", 90)
    assert not ASYNC.search(text)
    assert not VECTOR_ADD.search(text)
