"""When an operand is copied before its product."""

from __future__ import annotations

from dataclasses import replace

import pytest

from warp_tiles.gemm.matmul import choose_matmul, is_copied
from warp_tiles.gemm.matmul_question import STRIDED, MatmulConfig, MatmulProblem

HALF = MatmulProblem(4096, 64, 4096, a="float16", b="float16", a_alignment=2)


def is_a_copied(problem: MatmulProblem, steps_us: float, vectors: float) -> bool:
    return is_copied(problem, "a", steps_us, vectors)


def test_aligned_operands_are_never_copied() -> None:
    assert not is_a_copied(replace(HALF, a_alignment=16), 1e9, 1e9)


@pytest.mark.parametrize("alignment", [2, 4, 8, STRIDED])
def test_long_products_copy_and_short_ones_do_not(alignment: int) -> None:
    problem = replace(HALF, a_alignment=alignment)
    assert is_a_copied(problem, 500.0, 2500.0)
    assert not is_a_copied(problem, 5.0, 25.0)


def test_each_operand_has_lines_of_its_own() -> None:
    wide = MatmulProblem(64, 4096, 4096, a="float16", b="float16", a_alignment=8, b_alignment=8)
    assert is_copied(wide, "a", 30.0, 0.0)
    assert not is_copied(wide, "b", 30.0, 0.0)


def test_only_threads_that_load_single_elements_wait_for_each() -> None:
    for alignment, waits in {2: True, STRIDED: True, 4: False, 8: False}.items():
        problem = replace(HALF, a_alignment=alignment)
        assert is_a_copied(problem, 0.0, 2500.0) is waits
        assert is_a_copied(problem, 500.0, 0.0) is not waits


def test_float32_along_k_is_copied_only_with_gaps() -> None:
    problem = MatmulProblem(4096, 64, 4096, a_alignment=4, b_alignment=4)
    assert not is_a_copied(problem, 1e9, 1e9)
    assert is_a_copied(replace(problem, a_alignment=STRIDED), 3000.0, 0.0)
    assert is_a_copied(replace(problem, a_transposed=True), 3000.0, 0.0)
    assert is_a_copied(replace(problem, tf32=True), 1000.0, 0.0)
    b = replace(problem, m=64, n=4096)
    assert is_copied(b, "b", 3000.0, 0.0)
    assert not is_copied(replace(b, b_transposed=True), "b", 1e9, 1e9)


@pytest.mark.parametrize("a_alignment", [2, 16])
@pytest.mark.parametrize("b_alignment", [2, 16])
def test_the_choice_has_a_copy_of_each_unaligned_operand(a_alignment: int, b_alignment: int) -> None:
    problem = MatmulProblem(
        4096, 4096, 4096, a="float16", b="float16", a_alignment=a_alignment, b_alignment=b_alignment
    )
    config = choose_matmul(problem, 90, 132).config
    copies = {"copies_a": a_alignment < 16, "copies_b": b_alignment < 16}
    aligned = replace(problem, a_alignment=16, b_alignment=16)
    assert config == replace(choose_matmul(aligned, 90, 132).config, **copies)


def test_the_size_of_a_copy() -> None:
    lines = replace(HALF, m=1 << 20, k=9)  # 18 bytes of a line become 32
    us = 4.0 + 2 * 32 * (1 << 20) / 2.0e6
    assert is_a_copied(lines, us + 1.0, (us + 1.0) / 0.55)
    assert not is_a_copied(lines, us - 1.0, (us - 1.0) / 0.55)
    assert is_a_copied(replace(HALF, m=2**27 - 1, k=8), 1e6, 1e6)
    assert not is_a_copied(replace(HALF, m=2**27, k=8), 1e6, 1e6), "strides have 32 bits"


def test_an_operand_that_a_batch_shares_is_copied_once() -> None:
    problem = MatmulProblem(256, 256, 255, 1024, "float16", "float16", "float16", a_alignment=2, b_alignment=16)
    assert not is_a_copied(problem, 30.0, 160.0)
    assert is_a_copied(replace(problem, a_shared=True), 30.0, 160.0)
    assert choose_matmul(replace(problem, a_shared=True), 90, 132).config.copies_a


@pytest.mark.parametrize(
    ("sizes", "layout", "copies"),
    [
        ((1, 4800, 1184, 95), "nt", (True, True)),  # on an H100, 42 us without copies and about 20 with them
        ((1, 832, 113, 5595), "nt", (True, True)),  # 65 us without a copy of A, and about 30 with it
        ((441, 160, 503, 120), "nn", (False, True)),  # 245 us without copies, and about 130 with one
    ],
)
def test_products_that_are_slow_without_copies(
    sizes: tuple[int, int, int, int], layout: str, copies: tuple[bool, bool]
) -> None:
    batch, m, n, k = sizes
    a_transposed, b_transposed = (letter == "t" for letter in layout)
    alignments = {
        f"{name}_alignment": 16 if line % 8 == 0 else 2
        for name, line in (("a", m if a_transposed else k), ("b", k if b_transposed else n))
    }
    problem = MatmulProblem(
        m, n, k, batch, "float16", "float16", "float16", a_transposed, b_transposed, **alignments
    )  # fmt: skip
    config = choose_matmul(problem, 90, 132).config
    assert (config.copies_a, config.copies_b) == copies


def test_a_product_of_one_step_copies_nothing() -> None:
    config = choose_matmul(
        MatmulProblem(17, 17, 17, 1, "float16", "float16", a_alignment=2, b_alignment=2), 90, 132
    ).config
    assert (config.copies_a, config.copies_b) == (False, False)


def test_a_large_product_of_one_step_gains_nothing_from_wider_copies() -> None:
    problem = MatmulProblem(4096, 4096, 60, 1, "float16", "float16", "float16", a_alignment=4, b_alignment=4)
    config = choose_matmul(problem, 90, 132).config
    assert (config.copies_a, config.copies_b) == (False, False)


def test_records_without_copies_are_read() -> None:
    config = MatmulConfig(128, 256, 64, 256, 2, 4, copies_b=True)
    values = config.to_json()
    assert MatmulConfig.from_json(values) == config
    del values["copies_a"], values["copies_b"]
    assert MatmulConfig.from_json(values) == replace(config, copies_b=False)
