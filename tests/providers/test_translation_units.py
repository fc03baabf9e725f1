"""The translation units of the providers, and the alignments that are promised to cuBLASDx."""

import re
from dataclasses import replace
from typing import Any

from tests.bench import problem_of
from tests.gemm.test_problem import BASE, CHANGED
from tests.providers.test_provider import FMA
from tests.solver.test_problem import BASE as SOLVER
from tests.solver.test_problem import CHANGED as SOLVER_CHANGED
from warp_tiles.compile.sources import kernels_folder
from warp_tiles.gemm.choose import choose
from warp_tiles.gemm.problem import GemmProblem
from warp_tiles.gemm.tile_config import TileConfig
from warp_tiles.providers.cublasdx import promised, source_text
from warp_tiles.providers.own import (
    config_struct,
    problem_struct,
    register_accumulators,
    solver_translation_unit,
    translation_unit,
    unique_name,
)
from warp_tiles.solver.problem import SolverConfig


def test_what_is_promised_to_cublasdx() -> None:
    strided, half, six = CHANGED["a.leading_dimension"], problem_of(8, "float16"), problem_of(6)
    assert promised(strided) == strided.without_alignment(), "nothing with an explicit leading dimension"
    assert promised(strided).symbol != strided.symbol
    assert half.alignments == (16, 16, 16)
    assert promised(half).alignments == (16, 16, 8), "at most 8 bytes for a 16-bit result"
    assert promised(promised(half)) == promised(half)
    assert promised(BASE) == BASE
    assert six.alignments == (8, 8, 8)
    assert promised(six) == six.without_alignment(), "nothing for rows that are not a multiple of 16 bytes"


# ---- cuBLASDx's translation unit


def macros(problem: GemmProblem) -> dict[str, str]:
    return dict(re.findall(r"^#define WT_(\w+) (.+)$", source_text(problem), re.M))


def test_macros_of_a_packed_problem() -> None:
    assert macros(BASE) == {
        "SYMBOL": BASE.symbol, "M": "24", "N": "20", "K": "16", "A_DTYPE": "__half", "A_ROW_MAJOR": "1",
        "B_DTYPE": "__nv_bfloat16", "B_ROW_MAJOR": "0", "C_DTYPE": "float", "C_ROW_MAJOR": "1", "LDA": "0",
        "LDB": "0", "LDC": "0", "ALIGN_A": "16", "ALIGN_B": "8", "ALIGN_C": "4", "TF32": "0", "THREADS": "128",
        "SM": "900",
    }  # fmt: skip


def test_an_explicit_leading_dimension_sets_all_and_the_minimal_alignment_is_omitted() -> None:
    explicit, minimal = macros(CHANGED["a.leading_dimension"]), macros(BASE.without_alignment())
    assert [explicit[f"LD{name}"] for name in "ABC"] == ["99", "16", "20"]
    for found in (explicit, minimal):
        assert [found[f"ALIGN_{name}"] for name in "ABC"] == ["0", "0", "0"]


def test_every_macro_is_used_by_the_device_source() -> None:
    text = "".join(path.read_text() for path in (kernels_folder() / "cublasdx").glob("*.cuh"))
    for name in macros(BASE):
        assert re.search(rf"\bWT_{name}\b", text), name


# ---- the translation unit of mma


def test_the_structs_of_mma() -> None:
    assert problem_struct(BASE).splitlines() == [
        "struct Problem {",
        "    using A = wt::f16; using B = wt::bf16; using C = float;",
        "    enum : int { m = 24, n = 20, k = 16, lda = 16, ldb = 16, ldc = 20 };",
        "    enum : int { align_a = 16, align_b = 8, align_c = 4 };",
        "    enum : bool { a_row_major = true, b_row_major = false, c_row_major = true, tf32 = false };",
        "    enum : int { threads = 128, sm = 90 };",
        "};",
    ]


def test_the_config_struct_has_every_field() -> None:
    config = TileConfig("mma_m16n8k16", 32, 64, k_vector=8, swizzle_a=2, swizzle_b=4, swizzle_c=2, transposed=True)
    text = config_struct(config)
    found = {
        name: value
        for kind, names in re.findall(r"^    (?:enum : |static constexpr )([\w:]+) (?:\{ )?(.*?)(?: \})?;$", text, re.M)
        for name, value in (part.split(" = ") for part in names.split(", "))
        if kind in ("int", "bool", "wt::Instruction")
    }
    expected = {name: str(value).lower() for name, value in config.to_json().items()}
    assert found == {**expected, "instruction": "wt::Instruction::mma_m16n8k16"}
    assert text.startswith("struct Config {\n")
    assert text.endswith("};")


def test_the_templates_use_every_field_of_the_structs() -> None:
    text = "".join(path.read_text() for path in (kernels_folder() / "gemm").glob("*.cuh"))
    for name in re.findall(r"\b(\w+) = ", problem_struct(BASE)):
        assert re.search(rf"\bP::{name}\b|typename P::{name}\b", text), name
    for name in re.findall(r"\b(\w+) = ", config_struct(FMA)):
        assert re.search(rf"\bConfig::{name}\b", text), name


def test_only_sums_of_at_least_32_bits_stay_in_registers_over_a_loop() -> None:
    single, half = problem_of(32, "float32", 64), problem_of(32, "float16", 64)
    assert not isinstance(register_accumulators(single, single.symbol, choose(single)), str)
    text = translation_unit(single, choose(single))
    for name in ("_add", "_finish"):  # otherwise the compiler cannot keep the caller's accumulators in registers
        assert f"__attribute__((always_inline)) void {single.symbol}{name}(" in text
    assert "rounded to float16" in str(register_accumulators(half, half.symbol, choose(half)))
    assert "_add(" not in translation_unit(half, choose(half))


def test_each_problem_and_configuration_has_templates_of_its_own() -> None:
    names = {unique_name(symbol, members) for symbol in ("f", "g") for members in ("int m;", "int n;")}
    assert len(names) == 4


# ---- the translation unit of a solver


def test_a_matrix_has_the_strides_of_its_arrangement() -> None:
    text = solver_translation_unit(SOLVER, SolverConfig())
    assert "using T = wt::solver::Matrix<float, 24, 1, 16>;" in text, "row-major"
    assert "using Y = wt::solver::Matrix<float, 1, 24, 8>;" in text, "column-major"
    assert "in_place = false" in text
    assert "in_place = true" in solver_translation_unit(replace(SOLVER, in_place=True), SolverConfig())


def test_templates_of_different_problems_have_different_names() -> None:
    texts = [solver_translation_unit(problem, SolverConfig(4)) for problem in (SOLVER, *SOLVER_CHANGED.values())]
    texts.append(solver_translation_unit(SOLVER, SolverConfig(8)))
    names = [_name(text) for text in texts]
    assert len(set(names)) == len(names), "with equal names, the linker would use one problem's templates for all"


def _name(text: str) -> Any:
    found = re.search(r"^struct (w\w{8}) \{$", text, re.M)
    assert found is not None
    return found[1]
