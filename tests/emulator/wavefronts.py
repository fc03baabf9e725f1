"""Shared-memory wavefronts of the most common products, recorded in ``wavefronts.json``.

``python -m tests.emulator.wavefronts`` counts them again and rewrites the file.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.emulator.emulator import ROLES, Answer, Emulator, find_compiler
from tests.emulator.gemm import INCLUDES, Case, error_of, launch, operand
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.problem import DTYPE_BYTES, DType, GemmProblem, Precision

FILE = Path(__file__).with_name("wavefronts.json")
SIZES = [(16, 16, 16), (32, 32, 32), (64, 64, 64), (128, 128, 32)]
# true for each of A, B and C that is row-major: the product itself, its adjoints dC B^T and A^T dC, both factors
# transposed, and a column-major result
FORMS = [(True, True, True), (True, False, True), (False, True, True), (False, False, True), (True, True, False)]
KINDS: list[tuple[DType, DType, Precision, int]] = [
    ("float16", "float16", "default", 90),
    ("float16", "float16", "default", 75),
    ("float16", "float32", "default", 90),
    ("bfloat16", "float32", "default", 90),
    ("float32", "float32", "tf32", 90),
    ("float32", "float32", "default", 90),
    ("float64", "float64", "default", 80),
    ("float64", "float64", "default", 90),
]
ALIGNMENT = 16
THREADS = 128


def fixed_cases() -> list[Case]:
    """Dense, aligned products with power-of-two sizes. They read C and write it."""
    cases = []
    for (inner, outer, precision, arch), (m, n, k), (a_rows, b_rows, c_rows) in itertools.product(KINDS, SIZES, FORMS):
        operands = (
            operand(inner, a_rows, k if a_rows else m, ALIGNMENT),
            operand(inner, b_rows, n if b_rows else k, ALIGNMENT),
            operand(outer, c_rows, n if c_rows else m, ALIGNMENT),
        )
        assert all(o.leading_dimension * DTYPE_BYTES[o.dtype] % ALIGNMENT == 0 for o in operands)
        variant = GemmProblem(m, n, k, *operands, precision, THREADS, arch)
        cases.append(Case(variant, choose(variant), 1.0, 1.0))
    return cases


def run(emulator: Emulator, cases: list[Case]) -> list[Answer]:
    """Run all cases and require correct results.

    Raises:
        AssertionError: A product is wrong.
    """
    launches = [launch(case) for case in cases]
    answers = emulator.run(launches, INCLUDES)
    failures = list(filter(None, map(error_of, cases, launches, answers)))
    assert not failures, "\n".join(failures[:5])
    return answers


def to_json(cases: list[Case], answers: list[Answer]) -> dict[str, Any]:
    """The configuration of each variant and, for each role, its instructions, wavefronts and ideal wavefronts."""
    entries: dict[str, Any] = {}
    for case, answer in zip(cases, answers):
        counts = (answer.counts[role] for role in ROLES)
        entries[case.variant.symbol] = {
            "config": case.config.to_json(),
            **{role: [count.instructions, count.wavefronts, count.ideal] for role, count in zip(ROLES, counts)},
        }
    return entries


def dumps(entries: dict[str, Any]) -> str:
    """The text of the file, with a line for each variant."""
    lines = (f"{json.dumps(symbol)}: {json.dumps(entry)}" for symbol, entry in entries.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Rewrite the file."""
    compiler = find_compiler()
    if compiler is None:
        print("no C++ compiler", file=sys.stderr)
        return 1
    cases = fixed_cases()
    with tempfile.TemporaryDirectory() as folder:
        emulator = Emulator(Path(folder), compiler)
        try:
            FILE.write_text(dumps(to_json(cases, run(emulator, cases))))
        finally:
            emulator.close()
    print(f"{FILE.name}: {len(cases)} variants")
    return 0


if __name__ == "__main__":
    sys.exit(main())
