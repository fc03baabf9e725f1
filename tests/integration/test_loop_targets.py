"""Modules whose loops multiply by wgmma: their target, and what they become if Warp links them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import warp_tiles
from tests.integration.helpers import FORWARD_ONLY, compile_module, gemm_loop, generated_source, load
from tests.nightly import some
from warp_tiles.compile.compiler import LinkRequest

pytestmark = pytest.mark.usefixtures("enabled")
FORWARD = gemm_loop(decorator=FORWARD_ONLY, dtype="float16")


def loop_module() -> Any:
    return load(FORWARD, block_dim=128)


def instruction_of(record: dict[str, Any], folder: Path) -> str:
    """The instruction of the loop, by the record and by the source."""
    (source,) = (path.read_text() for path in folder.glob("*.cu"))
    (loop,) = record["loops"]
    assert ("Product<wt_module::WarpgroupProduct<" in source) is (loop["instruction"] == "wgmma")
    assert ("Product<wt_module::WarpProduct<" in source) is (loop["instruction"] == "mma_m16n8k16")
    # the products issue the copies
    assert ("RequestBuffer<wt_module::BufferLoader<decltype" in source) is (loop["instruction"] == "mma_m16n8k16")
    return str(loop["instruction"])


@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 120])
def test_each_architecture_has_its_target_and_instruction(tmp_path: Path, arch: int) -> None:
    plan = warp_tiles.plan(loop_module(), arch=arch, block_dim=128)
    generated_source(loop_module(), tmp_path, arch)
    assert plan.target == plan.to_json()["target"] == ("sm_90a" if arch == 90 else f"sm_{arch}")
    assert instruction_of(plan.to_json(), tmp_path) == ("wgmma" if arch == 90 else "mma_m16n8k16")


@pytest.mark.slow
@pytest.mark.parametrize("arch", some([80, 90, 120, 86, 89, 100], 3))
def test_a_module_without_functions_is_linked_limited_and_kept(tmp_path: Path, arch: int) -> None:
    for number in range(2):
        with warp_tiles.override(modules="tiles"):
            output, record = compile_module(load(FORWARD, block_dim=256), tmp_path / str(number), arch)
        assert (record["builds"], record["linker"], record["register_limit"]) == ([], "warp_tiles", 128)
        assert record["target"] == ("sm_90a" if arch == 90 else f"sm_{arch}")
        assert record["module_key"]
        assert record["found"] is bool(number)
        assert 0 < output.stat().st_size < 100_000
    (forward,) = (planned for planned in record["functions"] if planned["role"] == "forward")
    assert (forward["needed"], forward["provider"], forward["key"]) == (True, "stages", "")
    assert forward["reason"].endswith("computed by its loop from stages, so no function is built")


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "options"), [({"linker": "warp"}, {}), ({}, {"mode": "debug"})], ids=str)
def test_a_module_that_warp_links_has_mma(tmp_path: Path, settings: dict[str, str], options: dict[str, str]) -> None:
    module = load(FORWARD, block_dim=128, **options)
    with warp_tiles.override(**settings):
        assert warp_tiles.plan(module, arch=90, block_dim=128).target == "sm_90"
        _, record = compile_module(module, tmp_path, 90)
    assert (record["linker"], record["target"]) == ("warp", "sm_90")
    assert (record["builds"], record["register_limit"]) == ([], None)
    assert instruction_of(record, tmp_path) == "mma_m16n8k16"


@pytest.mark.slow
def test_a_link_that_fails_here_leaves_mma_to_warp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged_request(name: str, inputs: tuple[bytes, ...], *rest: Any) -> LinkRequest:
        return LinkRequest(name, tuple(data[:100] for data in inputs), *rest)

    monkeypatch.setattr("warp_tiles.build.module_build.LinkRequest", damaged_request)
    with pytest.warns(RuntimeWarning, match="Warp links module .* itself"):
        _, record = compile_module(loop_module(), tmp_path, 90)
    assert (record["linker"], record["target"]) == ("warp", "sm_90")
    assert instruction_of(record, tmp_path) == "mma_m16n8k16"


NEGATED = """
@wp.kernel
def negated(A: wp.array2d(dtype=float), W: wp.array2d(dtype=float), C: wp.array2d(dtype=float)):
    i, j = wp.tid()
    c = wp.tile_zeros(shape=(16, 16), dtype=float)
    for k in range(4):
        a = wp.tile_load(A, shape=(16, 16), offset=(i * 16, k * 16))
        w = wp.tile_load(W, shape=(16, 16), offset=(k * 16, j * 16))
        wp.tile_matmul(a, w, c)
    wp.tile_store(C, -c, offset=(i * 16, j * 16))
"""


@pytest.mark.slow
def test_a_debug_build_of_a_computed_store_with_a_gradient(tmp_path: Path) -> None:
    # the linker of CUDA 13.4 rejects a symbol of an inlined function, so adjoint_chains.cuh does not inline it
    cubin, record = compile_module(load(NEGATED, block_dim=256, mode="debug"), tmp_path, 90)  # a warning is an error
    assert record["linker"] == "warp"
    assert {build["provider"] for build in record["builds"]} == {"own"}
    assert cubin.stat().st_size > 0


def reserved_bytes(folder: Path) -> int:
    """The shared memory that a kernel reserves for its launches, by Warp's metadata."""
    (meta,) = (json.loads(path.read_text()) for path in folder.glob("*.meta"))
    (size,) = (size for name, size in meta.items() if name.endswith("forward_smem_bytes"))
    return int(size)


@pytest.mark.parametrize(("main_loop", "stages"), [("auto", 4), ("mma", 4), ("double_buffered", 0)])
def test_shared_memory_covers_the_stages(tmp_path: Path, main_loop: str, stages: int) -> None:
    with warp_tiles.override(main_loop=main_loop):
        generated_source(loop_module(), tmp_path)
    tiles = 4 * 64 * 64 + 2 * 2 * 64 * 32
    assert reserved_bytes(tmp_path) == (stages * 2 * 2 * 64 * 32 + 1024 if stages else tiles)


ASYNC = re.compile(r"cp\.async\.cg\.shared\.global")
VECTOR_ADD = re.compile(r"red\.\S*global\.\S*v4\.(?:f32|f16x2|bf16x2)")
PTX = (("float16", 75), ("bfloat16", 80), ("float16", 90), ("float16", 120), ("float16", 80), ("float32", 90))
MORE = (*(("bfloat16", arch) for arch in (75, 90, 120)), *(("float32", arch) for arch in (75, 80, 120)))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "arch"), some([*PTX, *MORE], 3))
def test_ptx_has_the_instructions_of_its_architecture_and_no_others(tmp_path: Path, dtype: str, arch: int) -> None:
    output, record = compile_module(load(gemm_loop(dtype=dtype), block_dim=128), tmp_path, arch, use_ptx=True)
    text = output.read_text()
    assert (record["linker"], output.suffix) == ("warp_tiles", ".ptx")
    assert f".target sm_{arch}\n" in text, "any GPU from there on may run it"
    assert re.search(r"\.entry gemm_[0-9a-f]{8}_cuda_kernel_forward", text)
    assert not re.search(r"\.extern \.func", text), "the products are linked in"
    assert bool(ASYNC.search(text)) is (arch >= 80)
    assert bool(VECTOR_ADD.search(text)) is (arch >= 90)
    assert ("mma.sync" in text) is (arch >= {"float16": 75, "bfloat16": 80, "float32": 999}[dtype])


@pytest.mark.slow
def test_the_setting_async_copies_leaves_loads_to_warp(tmp_path: Path) -> None:
    with warp_tiles.override(async_copies=False):
        output, _ = compile_module(load(gemm_loop(dtype="float16"), block_dim=128), tmp_path, 90, use_ptx=True)
    assert not ASYNC.search(output.read_text())
    assert not VECTOR_ADD.search(output.read_text())


SMALL: dict[str, Any] = {"name": "small", "m": 128, "n": 128, "k": 32}
LARGE: dict[str, Any] = {"name": "large", "m": 128, "n": 256, "k": 16}


@pytest.mark.parametrize(
    ("kernels", "backward", "settings", "stages", "limit"),
    [
        ([SMALL], False, {}, 3, 128),
        ([SMALL], True, {}, 4, None),
        ([SMALL, LARGE], False, {}, 4, None),
        ([SMALL], False, {"linker": "warp"}, 4, None),
    ],
    ids=["two blocks", "a reverse pass by fma", "a loop with many accumulators", "Warp's link"],
)
def test_stages_fit_the_register_limit_of_the_module(
    kernels: list[dict[str, Any]], backward: bool, settings: dict[str, Any], stages: int, limit: int | None
) -> None:
    decorator = "@wp.kernel" if backward else FORWARD_ONLY
    module = load("".join(gemm_loop(**kernel, decorator=decorator) for kernel in kernels), block_dim=256)
    with warp_tiles.override(**settings):
        plan = warp_tiles.plan(module, arch=90, block_dim=256).to_json()
    loop = next(loop for loop in plan["loops"] if loop["kernel"] == "small")
    assert (loop["stages"], plan["register_limit"]) == (stages, limit)


def test_no_memory_is_reserved_for_a_stage_that_is_not_used(tmp_path: Path) -> None:
    """The kernel reserves what a link by Warp needs too. With a fourth stage only one block would be resident."""
    generated_source(load(gemm_loop(**SMALL, decorator=FORWARD_ONLY), block_dim=256), tmp_path)
    tiles = 4 * (32 * (128 + 128) + 128 * 128)
    assert tiles < reserved_bytes(tmp_path) < tiles + 4096
