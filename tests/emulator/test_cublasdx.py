"""The templates of ``kernels/cublasdx`` on the emulator, with operations that cuBLASDx's database chooses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.emulator.memory import Memory, Values
from tests.emulator.module import KERNELS, EmulatedModule, Machine
from tests.emulator.native import FOLDER
from tests.emulator.tiles import Matrix, Tile
from warp_tiles.gemm.problem import DType

_CPP = {"float16": "cublasdx::half", "float32": "float", "float64": "double"}
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)
# A kernel copies A, B and C to shared memory, calls the function and copies C back.
_KERNEL = """
extern "C" __global__ void {name}({scalar}* scalars, char* a, char* b, char* c)
{{
    char* const shared = static_cast<char*>(__cvta_shared_to_generic(wt::emulator::shared_start));
    char *const to_a = shared + {a_at}, *const to_b = shared + {b_at}, *const to_c = shared + {c_at};
    for (int i = int(threadIdx.x); i < {a_bytes}; i += {threads}) to_a[i] = a[i];
    for (int i = int(threadIdx.x); i < {b_bytes}; i += {threads}) to_b[i] = b[i];
    for (int i = int(threadIdx.x); i < {c_bytes}; i += {threads}) to_c[i] = c[i];
    __syncthreads();
    {scalar} alpha = scalars[0], beta = scalars[1];
    {name}_function(&alpha, reinterpret_cast<{a}*>(to_a), reinterpret_cast<{b}*>(to_b), &beta,
                    reinterpret_cast<{scalar}*>(to_c));
    __syncthreads();
    for (int i = int(threadIdx.x); i < {c_bytes}; i += {threads}) c[i] = to_c[i];
}}
"""


@dataclass(frozen=True)
class Case:
    """A product.

    Attributes:
        atom: The MMA operation, see ``cublasdx/database.h``.
        m, n, k: The size.
        units: Warps, or threads with ``universal_fma``, along M and N. Both are exchanged if A and B are row-major.
        layouts: Three letters for A, B and C: ``r`` for row-major, ``c`` for column-major.
        dtypes: Of A, B and C.
        threads: Of the block.
        padding: Elements between the end of a row or column and the next one, for A, B and C.
        alignments: Promised alignments in bytes; 0 for that of an element.
        arch: Compute capability.
    """

    atom: str
    m: int
    n: int
    k: int
    units: tuple[int, int] = (1, 1)
    layouts: str = "rcr"
    dtypes: tuple[DType, DType, DType] = ("float16", "float16", "float32")
    threads: int = 64
    padding: tuple[int, int, int] = (0, 0, 0)
    alignments: tuple[int, int, int] = (16, 16, 16)
    arch: int = 90

    @property
    def tiles(self) -> tuple[Tile, Tile, Tile]:
        """A, B and C in shared memory."""
        sizes = (self.m, self.k), (self.k, self.n), (self.m, self.n)
        found = []
        for (rows, columns), layout, dtype, extra in zip(sizes, self.layouts, self.dtypes, self.padding):
            line = (columns if layout == "r" else rows) + extra
            arrangement = "row_major" if layout == "r" else "col_major"
            found.append(replace(Tile.dense(rows, columns, dtype), arrangement=arrangement, leading_dimension=line))
        return found[0], found[1], found[2]

    def macros(self, name: str) -> dict[str, object]:
        """The macros that the provider defines, and those of ``cublasdx/database.h``."""
        found: dict[str, object] = {
            "WT_SYMBOL": f"{name}_function",
            "WT_THREADS": self.threads,
            "WT_SM": self.arch * 10,
        }
        found |= {"WT_M": self.m, "WT_N": self.n, "WT_K": self.k, "WT_TF32": str("tf32" in self.atom).lower()}
        for letter, tile, dtype, layout, extra, alignment in zip(
            "ABC", self.tiles, self.dtypes, self.layouts, self.padding, self.alignments
        ):
            found[f"WT_{letter}_DTYPE"] = _CPP[dtype]
            found[f"WT_{letter}_ROW_MAJOR"] = str(layout == "r").lower()
            found[f"WT_LD{letter}"] = tile.leading_dimension if extra else 0
            found[f"WT_ALIGN_{letter}"] = alignment
        return found


def source(cases: Mapping[str, Case]) -> str:
    """CUDA source of a module with a kernel for each case, by name."""
    products = "".join(_product(f"product_{name}", case) for name, case in cases.items())
    return (FOLDER / "cublasdx" / "database.h").read_text() + products


def _product(name: str, case: Case) -> str:
    macros = case.macros(name)
    template = _template("gemm.cuh")
    template = re.sub(r"\bnamespace wt \{", f"namespace wt_{name} {{", template)
    template = re.sub(r"\bwt::", f"wt_{name}::", template)
    units = f"{case.units[0]}, {case.units[1]}"
    chooser = f"""
namespace cublasdx::detail::cute_backend {{
template <class...> struct Chosen_{name} {{ static constexpr Choice value {{mma_atom::{case.atom}, {units}}}; }};
}}
"""
    choice = re.compile(r"database::get_tile_config<[^;]*\(\);")
    template, count = choice.subn(f"database::Chosen_{name}<>::value;", template)
    assert count == 1
    a, b, c = case.tiles
    a_at, b_at, c_at = _offsets(case)[:3]
    kernel = _KERNEL.format(
        name=name, scalar=_CPP[case.dtypes[2]], a=_CPP[case.dtypes[0]], b=_CPP[case.dtypes[1]], threads=case.threads,
        a_bytes=a.span, b_bytes=b.span, c_bytes=c.span, a_at=a_at, b_at=b_at, c_at=c_at,
    )  # fmt: skip
    defines = "".join(f"#define {macro} {value}\n" for macro, value in macros.items())
    return chooser + defines + template + kernel + "".join(f"#undef {macro}\n" for macro in macros)


def _offsets(case: Case) -> tuple[int, ...]:
    """Offsets of A, B and C in shared memory, and the size of all. No tile is more aligned than promised."""
    found, at = [], 0
    for tile, alignment in zip(case.tiles, case.alignments):
        found.append(-(-at // 16) * 16 + (alignment or tile.element_bytes) % 16)
        at = found[-1] + tile.span
    return (*found, at)


def _template(name: str) -> str:
    """A template with its own headers in place of the includes, without the database."""
    text = (KERNELS / "cublasdx" / name).read_text().replace("#pragma once\n", "")
    if name == "cublasdx_database.cuh":
        return ""
    return _INCLUDE.sub(lambda match: _template(match[1]), text)


class EmulatedProducts:
    """The kernels of some cases.

    Args:
        machine: The emulator of modules.
        cases: Cases by name, of one architecture.
    """

    def __init__(self, machine: Machine, cases: Mapping[str, Case]) -> None:
        (arch,) = {case.arch for case in cases.values()}
        self._cases = cases
        self._module: EmulatedModule = machine.module(source(cases), (), arch)

    def run(self, name: str, alpha: float, beta: float, a: Matrix, b: Matrix, c: Matrix) -> tuple[str, Matrix]:
        """Launch a case. Returns the error, or "", and C."""
        case = self._cases[name]
        memory = Memory()
        scalars = np.array([alpha, beta], dtype={"float16": "<f2"}.get(case.dtypes[2], case.dtypes[2]))
        contents = [np.frombuffer(tile.pack(values), np.uint8).copy() for tile, values in zip(case.tiles, (a, b, c))]
        arrays: list[Values] = [scalars, *contents]
        addresses = [memory.add(label, values) for label, values in zip("sabc", arrays)]
        arguments = [address.to_bytes(8, "little") for address in addresses]
        outcome = self._module.launch(f"product_{name}", 1, case.threads, arguments, memory, _offsets(case)[3])
        if outcome.error:
            return outcome.error, c
        return "", case.tiles[2].unpack(outcome.arrays["c"].tobytes())


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


@pytest.mark.slow
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
