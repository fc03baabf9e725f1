"""Device functions of ``kernels/cublasdx`` as kernels of an emulated module.

``cublasdx/database.h`` stands for cuBLASDx's database. A case names the operation and the units that it would choose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tests.emulator.memory import Memory, Values
from tests.emulator.module import KERNELS, EmulatedModule, Machine
from tests.emulator.native import FOLDER
from tests.emulator.tiles import Matrix, Tile
from warp_tiles.gemm.problem import DType

_CPP = {"float16": "cublasdx::half", "float32": "float", "float64": "double"}
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"\n', re.MULTILINE)
_MACRO = re.compile(r"#define (\w+)")
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
