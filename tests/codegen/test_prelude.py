"""The prelude of a generated source. No other code handles generated source as text."""

from __future__ import annotations

import ast
from pathlib import Path

import warp_tiles
from tests.codegen.modules import BIG
from tests.solver.test_variant import L
from warp_tiles.codegen.answers import FunctionCall, ModuleAnswer
from warp_tiles.codegen.hooks import Hook
from warp_tiles.codegen.prelude import PLACEHOLDER, finished_source, waiting_function
from warp_tiles.gemm.problem import Role
from warp_tiles.solver.variant import SolverVariant

SOURCE = f'#include "builtin.h"\nextern "C" {{\n{PLACEHOLDER}\n}}\nvoid kernel() {{ WT_WAIT_1 f(wt_site0_forward); }}\n'


FUNCTION = FunctionCall("wt_site0_forward", "f", BIG[Role.FORWARD])
SOLVER = FunctionCall("wt_site1_forward", "g", SolverVariant("cholesky", 8, 8, (L, L), False, 64, 90))


def finished(*calls: FunctionCall, moves: bool = False, source: str = SOURCE) -> str:
    return finished_source(source, ModuleAnswer(((Hook.WAIT, 1),), calls, (), (), moves))


def test_a_prelude_without_calls_only_defines_the_hooks() -> None:
    assert finished() == SOURCE.replace(PLACEHOLDER, '}  // extern "C"\n#define WT_WAIT_1\nextern "C" {')


def test_the_order_of_a_prelude() -> None:
    text = finished(FUNCTION, moves=True)
    parts = [
        "void f(",
        '}  // extern "C"',
        "namespace wt_module",
        "#define wt_site0_forward f",
        "#define WT_WAIT_1\n",
    ]
    positions = [text.index(part) for part in [*parts, '\nextern "C" {\n}\nvoid kernel()']]
    assert positions == sorted(positions)
    assert '#include "' not in text[text.index(parts[1]) :], "the header has no includes"
    assert finished(FUNCTION).count("wt_module") == 0


def test_solvers_follow_the_declarations_and_the_header_of_modules() -> None:
    text = finished(SOLVER, moves=True)
    parts = [
        "void g(void*",
        '}  // extern "C"',
        "namespace wt_module",
        "struct Solver",
        "struct g_call",
        "#define wt_site1",
    ]
    positions = [text.index(part) for part in parts]
    assert positions == sorted(positions)
    assert all(text.count(part) == 1 for part in ("struct Solver", "struct g_call"))
    assert '#include "' not in text[text.index(parts[1]) :], "the overloads have no includes"


def test_a_module_without_solvers_has_no_overloads() -> None:
    assert "struct Solver" not in finished(FUNCTION, moves=True)


def test_only_the_first_placeholder_is_replaced() -> None:
    assert finished(source=SOURCE + PLACEHOLDER).endswith(PLACEHOLDER)


def test_regular_expression_syntax_is_copied_literally() -> None:
    assert r"\1 \g<0> $&" in finished(FunctionCall("wt_site0_forward", r"\1 \g<0> $&"))


def test_a_waiting_function() -> None:
    assert waiting_function(BIG[Role.FORWARD], "f") == (
        "static void f_waiting(wp::float32* alpha, wp::float32* a, wp::float32* b, wp::float32* beta, wp::float32* c) "
        "{ WP_TILE_SYNC(); f(alpha, a, b, beta, c); }"
    )


# ---- no code searches generated text

PACKAGE = Path(warp_tiles.__file__).parent
FOLDERS = ("codegen", "_warp", "plan", "build")
MODULES = sorted(path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py"))


def test_no_module_imports_regular_expressions() -> None:
    refused = {"re", "regex", "sre_compile", "sre_parse", "fnmatch"}
    assert {path.parent.name for path in MODULES} == set(FOLDERS)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            assert not {name.partition(".")[0] for name in names} & refused, path
            assert not (isinstance(node, ast.Constant) and node.value == "re"), "as an argument of import_module()"
