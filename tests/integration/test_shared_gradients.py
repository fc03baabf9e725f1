"""Adjoints that may add to one gradient, in generated source: the second one waits. Other adjoints do not."""

import re
from pathlib import Path

import pytest

from tests.codegen.modules import macros
from tests.integration.helpers import generated_source, load

HEAD = """
@wp.func
def multiply(x: wp.tile(dtype=wp.float32, shape=(16, 16)), y: wp.tile(dtype=wp.float32, shape=(16, 16))):
    return wp.tile_matmul(x, y)


@wp.kernel
def product(A: wp.array2d(dtype=wp.float32), B: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    a = wp.tile_load(A, shape=(16, 16), storage="shared")
    b = wp.tile_load(B, shape=(16, 16), storage="shared")
    c = wp.tile_zeros(shape=(16, 16), dtype=wp.float32, storage="shared")
    {}
    wp.tile_store(C, c)
"""
BODIES = {  # True if the adjoints may add to one gradient
    "two tiles": ("c = wp.tile_matmul(a, b)", False),
    "two tiles into a third": ("wp.tile_matmul(a, b, c)", False),
    "one tile": ("c = wp.tile_matmul(a, a)", True),
    "one tile into another": ("wp.tile_matmul(a, a, c)", True),
    "a transposed view": ("c = wp.tile_matmul(a, wp.tile_transpose(a))", True),
    "a view": ("wp.tile_matmul(wp.tile_view(a, offset=(0, 0), shape=(16, 16)), a, c)", True),
    "parameters": ("c = multiply(a, b)", False),
    "parameters that are one tile": ("c = multiply(a, a)", True),
    "parameters that are one tile in one call of two": ("c = multiply(a, b) + multiply(b, b)", True),
    "a parameter and a view of it": ("c = multiply(a, wp.tile_transpose(a))", True),
}


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("body", BODIES)
def test_the_second_adjoint_waits_only_for_a_shared_gradient(tmp_path: Path, body: str) -> None:
    code, shared = BODIES[body]
    source = generated_source(load(HEAD.format(code)), tmp_path)
    calls = re.findall(r"^.*\bwp::adj_tile_matmul(?:_acc)?\(.*$", source, re.M)
    assert calls
    names = [macros(source)[name] for call in calls for name in re.findall(r"\bwt_site\d+_adjoint_b\b", call)]
    assert len(names) == 2 * len(calls), "each call names it for the value and for the gradient"
    assert all(name.endswith("_waiting") is shared for name in names)
    assert ("WP_TILE_SYNC(); wt_gemm" in source) is shared


@pytest.mark.slow
@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize("opt_out", ["auto", "own", "warp"])
def test_the_second_adjoint_of_a_product_that_opts_out_waits_unless_warp_has_it(tmp_path: Path, opt_out: str) -> None:
    text, options = HEAD.format("c = wp.tile_matmul(a, a)"), {"enable_mathdx_gemm": False}
    source = generated_source(load(text, **options, warp_tiles_mathdx_opt_out=opt_out), tmp_path)
    assert ("WP_TILE_SYNC(); wt_gemm" in source) == (opt_out != "warp")
