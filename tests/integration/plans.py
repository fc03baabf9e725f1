"""Plans of kernels and of cases, for the tests of planning."""

from typing import Any

import pytest

import warp_tiles
from tests.integration.helpers import ARRAYS, LOADS, STORE, WARP_VERSION, load
from tests.products import Case, make_kernel
from warp_tiles.plan.planning import ModulePlan

H, B, F, D = "float16", "bfloat16", "float32", "float64"
ALL = ["forward", "adjoint_a", "adjoint_b"]
ARCHS = (75, 80, 86, 87, 89, 90, 100, 103, 120, 121)

needs_tf32 = pytest.mark.skipif(WARP_VERSION < (1, 19), reason="tile_matmul's precision argument came with Warp 1.19")
TILE = "wp.tile(dtype=wp.float32, shape=(16, 16))"
HELPER = f"""
@wp.func
def helper(a: {TILE}, b: {TILE}, c: {TILE}):
    wp.tile_matmul(a, b, c)
"""


def plan(text: str, *, arch: int | None = 90, block_dim: int = 64, **options: Any) -> ModulePlan:
    return warp_tiles.plan(load(text, **options), arch=arch, block_dim=block_dim)


def plan_case(case: Case, arch: int | None = 90) -> ModulePlan:
    return warp_tiles.plan(make_kernel(case).module, arch=arch, block_dim=case.threads)


def caller(name: str, decorator: str = "@wp.kernel") -> str:
    return f"""
{decorator}
def {name}({ARRAYS}):{LOADS.format(m=16, n=16, k=16)}
    c = wp.tile_zeros(shape=(16, 16), dtype=wp.float32, storage="shared")
    helper(a, b, c){STORE}
"""
