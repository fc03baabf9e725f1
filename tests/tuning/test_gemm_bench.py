"""The benchmark of a GEMM variant: layout and contents of its tiles, and refused results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.bench import variant_of
from tests.tuning.gemm_variants import gemm_variants
from warp_tiles.codegen.loops import LoopSums
from warp_tiles.gemm.problem import DTYPE_BYTES, GemmProblem
from warp_tiles.tuning import gemm_bench as bench

HALF = variant_of(64, "float16", threads=128)


def result_of(variant: GemmProblem, products: int, error: float = 0.0) -> bench.Bytes:
    """Shared memory after a candidate whose errors are a fraction of their bound."""
    wanted = bench.expected(variant, products)
    memory = bench.image(variant).copy()
    stored = bench._encoded(wanted.values + error * wanted.bound, variant.c.dtype)
    memory[bench._byte_offsets(variant, 2)] = np.ascontiguousarray(stored).view(np.uint8).reshape(-1)
    return memory


@settings(max_examples=60, deadline=None)
@given(gemm_variants())
def test_tiles_are_aligned_as_promised_and_do_not_overlap(variant: GemmProblem) -> None:
    found = bench.layout(variant)
    assert found.size_bytes % 16 == 0
    places = [set(bench._byte_offsets(variant, index).tolist()) for index in range(3)]
    for operand, offset in zip((variant.a, variant.b, variant.c), found.offsets):
        assert offset % operand.alignment == 0
        assert operand.alignment == 16 or offset % 16
    assert sum(len(one) for one in places) == len(set().union(*places))
    assert max(set().union(*places)) < found.size_bytes
    sizes = (variant.m * variant.k, variant.k * variant.n, variant.m * variant.n)
    operands = (variant.a, variant.b, variant.c)
    assert [len(one) for one in places] == [n * DTYPE_BYTES[o.dtype] for n, o in zip(sizes, operands)]


@settings(max_examples=40, deadline=None)
@given(gemm_variants())
def test_inputs_are_never_zero_and_always_the_same(variant: GemmProblem) -> None:
    first = bench.image(variant).copy()
    bench.image.cache_clear()
    assert np.array_equal(first, bench.image(variant))
    for index in range(3):
        values = abs(bench.matrix(variant, first, index))
        assert values.min() >= 0.12
        assert values.max() <= 1.0


@settings(max_examples=40, deadline=None)
@given(gemm_variants(largest=24), st.integers(1, 4), st.sampled_from([0.0, 0.2, -0.2]))
def test_a_result_within_the_bound_passes(variant: GemmProblem, products: int, error: float) -> None:
    assert bench.problem_with(variant, result_of(variant, products, error), products) == ""


@settings(max_examples=40, deadline=None)
@given(gemm_variants(largest=24), st.integers(1, 4))
def test_a_missing_product_is_detected(variant: GemmProblem, products: int) -> None:
    assume(DTYPE_BYTES[variant.c.dtype] >= 4)  # in half precision, the bound of a large sum exceeds a whole product
    assume(variant.precision == "default")
    assume(variant.m * variant.n >= 16)
    found = bench.problem_with(variant, result_of(variant, products), products + 1)
    assert found.startswith("wrong result: C[")


def test_nan_is_a_wrong_result() -> None:
    assert "is nan" not in bench.problem_with(HALF, result_of(HALF, 1), 1)
    memory = result_of(HALF, 1)
    memory[bench._byte_offsets(HALF, 2)[:2]] = 0xFF  # a NaN
    assert "C[0, 0] is nan" in bench.problem_with(HALF, memory, 1)
    assert bench.problem_with(HALF, bench.image(HALF), 1), "a kernel that does nothing"


def test_a_write_outside_c_is_detected() -> None:
    wide = replace(HALF, c=replace(HALF.c, leading_dimension=72))
    memory = result_of(wide, 1)
    memory[bench.layout(wide).offsets[2] + 64 * 2] ^= 1  # in the gap after the first row
    assert bench.problem_with(wide, memory, 1).startswith("wrote outside C: byte ")


@settings(max_examples=60, deadline=None)
@given(gemm_variants(largest=300))
def test_a_launch_is_divided_evenly_among_usual_numbers_of_blocks(variant: GemmProblem) -> None:
    products = bench.products_per_launch(variant)
    assert 48 <= products <= 4800
    assert all(products % blocks == 0 for blocks in (1, 2, 3, 4, 6, 8, 12, 16))


def test_a_larger_product_is_repeated_less() -> None:
    assert bench.products_per_launch(HALF) > bench.products_per_launch(variant_of(128, "float16", threads=128))


def test_the_source_has_a_kernel_for_each_form() -> None:
    both = bench.text(HALF, "f", LoopSums("g", "wp::float32", 32))
    assert f"void {bench.KERNEL}(" in both
    assert f"void {bench.LOOP_KERNEL}(" in both
    assert "float sums[32];" in both
    assert bench.LOOP_KERNEL not in bench.text(HALF, "f", None)


@pytest.mark.parametrize(("threads", "own", "registers"), [(128, True, None), (256, True, 128), (256, False, None)])
def test_the_benchmark_is_linked_as_modules_are(threads: int, own: bool, registers: int | None) -> None:
    request = bench.link_request(replace(HALF, threads=threads), [b"a", b"b"], own)
    assert (request.max_registers, request.output, request.arch) == (registers, "cubin", "sm_90")
    assert request.inputs == (b"a", b"b")
