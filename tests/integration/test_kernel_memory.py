"""Kernels whose tiles do not fit the shared memory of a block: plans and builds say so, with the remedy."""

import json
from pathlib import Path

import pytest

from tests.integration.commands import command, json_of
from tests.integration.helpers import compile_module, gemm, load
from tests.integration.plans import plan
from tests.integration.solvers import solver
from warp_tiles._warp.modules import launch_failures

pytestmark = pytest.mark.usefixtures("enabled")

FACTOR = solver("tile_cholesky", decorator="@wp.kernel(enable_backward=False)").replace("(16, 16)", "(250, 250)")
PRODUCT = gemm(m=256, n=256, k=256, decorator="@wp.kernel(enable_backward=False)")
LARGE = {"factor": (FACTOR, 2 * 250 * 250 * 4 + 16 * 4 * 4), "product": (PRODUCT, 3 * 256 * 256 * 4)}


def problems(text: str, arch: int = 90) -> tuple[str, ...]:
    return plan(text, arch=arch).launch_failures


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_kernel_that_cannot_be_launched(tmp_path: Path, name: str) -> None:
    text, tile_bytes = LARGE[name]
    (problem,) = problems(text)
    needed = f"a block needs {tile_bytes + 1024 + 4 * 64:,} bytes of shared memory, and has 232,448"
    assert problem.endswith(f"fails: {needed}; use smaller tiles")
    with pytest.warns(RuntimeWarning, match="a block needs"):
        compile_module(load(text), tmp_path)


@pytest.mark.slow
def test_only_the_backward_pass_cannot_be_launched(tmp_path: Path) -> None:
    text = gemm(m=128, n=128, k=128)  # 192 KiB, and twice as much with gradients
    (problem,) = problems(text)
    assert problem.startswith("the backward pass of kernel gemm fails: a block needs 394,496 bytes")
    assert problem.endswith("or set enable_backward=False")
    compile_module(load(text), tmp_path)  # without a warning: a program may never ask for gradients


CALL = """
from typing import Any


@wp.func
def doubled(x: Any):
    return x + x


@wp.kernel(enable_backward=False)
def product(A: wp.array2d(dtype=wp.float32), C: wp.array2d(dtype=wp.float32)):
    a = wp.tile_load(A, shape=(16, 16), storage="shared")
    wp.tile_store(C, wp.tile_matmul(a, doubled(a)))
"""


def test_the_result_of_a_function_that_a_product_moves_to_shared_memory() -> None:
    """Warp alone does not count it in the function, and the kernel writes beyond its memory."""
    (memory,) = plan(CALL).memory
    assert memory.needed_bytes == 4 * 16 * 16 * 4 + 1024 + 4 * 64  # a, C, and the result in the function and outside


def test_the_architecture_decides() -> None:
    text = gemm(m=96, n=96, k=96, decorator="@wp.kernel(enable_backward=False)")
    assert [len(problems(text, arch)) for arch in (80, 86, 90, 120)] == [0, 1, 0, 1]


@pytest.mark.slow
def test_commands_say_what_cannot_be_launched(tmp_path: Path) -> None:
    script = tmp_path / "large.py"
    script.write_text(f"import warp as wp\n{PRODUCT}")
    printed = command("plan", script, as_json=False).stdout
    assert "a launch of kernel gemm fails: a block needs" in printed
    (module,) = json_of(command("plan", script))["modules"]
    assert [memory["direction"] for memory in module["memory"]] == ["forward"]
    for _ in range(2):  # the second time, the file is up to date
        done = command("compile", "--arch", "86,89", "-o", tmp_path / "out", script, cache=tmp_path / "lto")
        assert done.returncode == 2
        assert "warp-tiles: a launch of kernel gemm fails: a block needs" in done.stderr
        error = done.stderr.partition("warp-tiles: a launch")[2]
        assert error.count("a block needs") == 1, "both have the same limit"


@pytest.mark.parametrize("sizes", [(400_000, 100), (100, 400_000)])
def test_each_instance_of_a_kernel_has_to_fit(sizes: tuple[int, int], tmp_path: Path) -> None:
    names = [f"scale_{digits}_cuda_kernel_forward_smem_bytes" for digits in ("1a2b", "3c4d")]
    (tmp_path / "wp_m_1234567.meta").write_text(json.dumps(dict(zip(names, sizes))))
    (problem,) = launch_failures(tmp_path / "wp_m_1234567.sm90.cubin", 90, 64)
    assert problem.startswith("a launch of kernel scale fails: a block needs 40")
