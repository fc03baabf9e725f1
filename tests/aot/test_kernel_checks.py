"""The kernel check: its configurations cover the templates."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest

from warp_tiles.aot import command
from warp_tiles.gemm.tile_config import Instruction, TileConfig
from warp_tiles.toolchain.store import ToolchainStore


@pytest.mark.parametrize("provider", ["mma", "cublasdx"])
def test_the_checks_cover_every_dtype_arch_and_arrangement(provider: str) -> None:
    checks = [job.variant for job in command.check_jobs() if job.provider == provider]
    assert len({variant.symbol for variant in checks}) == len(checks) <= 32
    operands = [operand for variant in checks for operand in (variant.a, variant.b, variant.c)]
    assert {operand.dtype for operand in operands} == {"float16", "bfloat16", "float32", "float64"}
    assert {variant.arch for variant in checks} >= {75, 80, 90, 120}
    assert any(variant.precision == "tf32" for variant in checks)
    assert any(not variant.is_dense for variant in checks)
    assert any(variant.m < 8 for variant in checks)
    for name in "abc":
        assert {getattr(variant, name).arrangement for variant in checks} == {"row_major", "col_major"}


def test_the_checks_cover_every_instruction_and_field() -> None:
    configs = [job.tile_config for job in command.check_jobs() if job.tile_config is not None]
    assert {config.instruction for config in configs} == set(get_args(Instruction))
    for item in fields(TileConfig):
        assert len({getattr(config, item.name) for config in configs}) > 1, f"{item.name} is the same in every check"


def test_every_device_source_is_compiled_by_a_check(store: ToolchainStore) -> None:
    assert command.unchecked(store) == ()
