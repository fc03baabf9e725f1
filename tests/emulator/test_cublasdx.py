"""The templates of ``kernels/cublasdx`` on the emulator, with operations that cuBLASDx's database chooses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.cublasdx import Case, EmulatedProducts
from tests.emulator.module import Machine
from tests.emulator.tiles import Matrix

HALVES = ("float16", "float16", "float16")
FLOATS = ("float32", "float32", "float32")
DOUBLES = ("float64", "float64", "float64")
CASES = {
    # ldmatrix of four, two and one matrices, and transposed
    "half": Case("half_16816", 64, 32, 48, (2, 1)),
    "half_transposed": Case("half_16816", 64, 32, 48, (2, 1), "crc"),
    "half_two_columns": Case("half_16816", 32, 16, 32, (1, 2), padding=(8, 8, 4)),
    "half_short": Case("half_1688", 16, 8, 8, threads=32),
    "half_short_transposed": Case("half_1688", 16, 8, 8, (1, 1), "crr", threads=32),
    "half_short_deep": Case("half_1688", 32, 16, 24, (1, 1), "rcc"),
    # stmatrix
    "to_half": Case("half_16816_to_half", 32, 32, 32, (2, 1), "rcr", HALVES),
    "to_half_transposed": Case("half_16816_to_half", 32, 32, 32, (2, 1), "rcc", HALVES),
    "to_half_narrow": Case("half_16816_to_half", 16, 8, 16, (1, 1), "rcr", HALVES, 32),
    "to_half_padded": Case("half_16816_to_half", 48, 16, 32, (1, 2), "crc", HALVES, padding=(8, 8, 8)),
    "to_half_irregular": Case("half_16816_to_half", 48, 16, 32, (1, 1), "rcr", HALVES, 32),
    "half_odd_lines": Case("half_16816", 32, 32, 32, (2, 1), "rcr", padding=(1, 3, 1), alignments=(16, 16, 16)),
    "half_edges_aligned": Case("half_16816", 20, 12, 24, (2, 1), "rcr"),
    # elements beyond the edges, and no promised alignment
    "half_edges": Case("half_16816", 20, 12, 24, (2, 1), "rcr", alignments=(0, 0, 0)),
    "half_edges_padded": Case("half_16816", 37, 19, 21, (1, 2), "crc", padding=(3, 1, 5), alignments=(2, 2, 4)),
    "to_half_edges": Case("half_16816_to_half", 20, 12, 18, (1, 1), "rrr", HALVES, 32, alignments=(4, 8, 8)),
    "half_unaligned": Case("half_16816", 32, 32, 32, (2, 1), "rcr", padding=(1, 2, 3), alignments=(2, 4, 4)),
    # less alignment than the leading dimensions would allow
    "half_promised": Case("half_16816", 32, 32, 32, (2, 1), "rcr", alignments=(4, 2, 8)),
    "tf32_promised": Case("tf32_1688", 64, 32, 24, (2, 1), "crc", FLOATS, alignments=(8, 4, 8)),
    "fma_promised": Case("universal_fma", 32, 16, 12, (8, 8), "rcr", FLOATS, alignments=(8, 4, 8)),
    # both operands row-major: units are exchanged
    "rows": Case("half_16816", 64, 32, 32, (2, 1), "rrr"),
    # interleaved repetitions
    "tf32": Case("tf32_1688", 64, 32, 24, (2, 1), "rcr", FLOATS),
    "tf32_transposed": Case("tf32_1688", 64, 32, 24, (2, 1), "crc", FLOATS),
    "tf32_edges": Case("tf32_1688", 25, 30, 11, (1, 2), "crr", FLOATS, alignments=(0, 0, 0)),
    "fp64": Case("double_884", 32, 16, 12, (2, 1), "rcr", DOUBLES),
    "fp64_transposed": Case("double_884", 32, 16, 12, (1, 2), "crc", DOUBLES),
    "fp64_edges": Case("double_884", 13, 9, 6, (2, 1), "rrr", DOUBLES, alignments=(0, 0, 0)),
    "fma": Case("universal_fma", 32, 16, 12, (8, 8), "rcr", FLOATS),
    "fma_transposed": Case("universal_fma", 32, 16, 12, (8, 8), "crc", FLOATS),
    "fma_edges": Case("universal_fma", 21, 13, 7, (16, 4), "rrr", FLOATS, alignments=(0, 0, 0)),
    "fma_widening": Case("universal_fma", 16, 16, 20, (8, 4), "rcr", ("float16", "float16", "float32")),
    "long_k": Case("half_16816", 32, 32, 1040, (1, 1), threads=32),
}


@pytest.fixture(scope="module")
def products(machine: Machine) -> EmulatedProducts:
    return EmulatedProducts(machine, CASES)


def small(seed: int, tile_shape: tuple[int, int]) -> Matrix:
    """Integers whose products and sums are exact in half precision."""
    return np.random.default_rng(seed).integers(-2, 3, tile_shape).astype(np.float64)


@pytest.mark.parametrize("beta", [0.0, 3.0])
@pytest.mark.parametrize("name", CASES)
def test_results_are_exact(products: EmulatedProducts, name: str, beta: float) -> None:
    case = CASES[name]
    a, b, c = (small(seed, shape) for seed, shape in enumerate([(case.m, case.k), (case.k, case.n), (case.m, case.n)]))
    before = c if beta else np.full_like(c, np.nan)
    error, found = products.run(name, 2.0, beta, a, b, before)
    assert error == ""
    assert np.array_equal(found, 2 * (a @ b) + beta * (c if beta else 0))


def test_an_older_architecture_has_no_stmatrix(machine: Machine) -> None:
    case = Case("half_16816_to_half", 32, 16, 16, (1, 1), "rcr", HALVES, 32, arch=80)
    a, b, c = small(1, (32, 16)), small(2, (16, 16)), small(3, (32, 16))
    error, found = EmulatedProducts(machine, {"old": case}).run("old", 1.0, 1.0, a, b, c)
    assert error == ""
    assert np.array_equal(found, a @ b + c)


def test_half_operands_are_multiplied_in_the_result_type(products: EmulatedProducts) -> None:
    """The product of two halves has 22 bits, which half precision would round."""
    case = CASES["fma_widening"]
    a, b = np.zeros((case.m, case.k)), np.zeros((case.k, case.n))
    a[:, 0] = b[0] = 1 + 2.0**-10
    error, found = products.run("fma_widening", 1.0, 0.0, a, b, np.zeros((case.m, case.n)))
    assert error == ""
    assert np.array_equal(found, a @ b)
