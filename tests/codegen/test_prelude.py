"""The prelude of a generated source. No other code handles generated source as text."""

import ast
from pathlib import Path

import warp_tiles
from warp_tiles.codegen.macros import Hook
from warp_tiles.codegen.module_code import FunctionCall, ModuleCode
from warp_tiles.codegen.prelude import PLACEHOLDER, finished_source

SOURCE = f'#include "builtin.h"\nextern "C" {{\n{PLACEHOLDER}\n}}\nvoid kernel() {{ WT_WAIT_1 f(wt_site0_forward); }}\n'


def finished(*calls: FunctionCall, moves: bool = False, source: str = SOURCE) -> str:
    return finished_source(source, ModuleCode(((Hook.WAIT, 1),), calls, (), (), moves))


def test_a_prelude_without_calls_only_defines_the_hooks() -> None:
    assert finished() == SOURCE.replace(PLACEHOLDER, '}  // extern "C"\n#define WT_WAIT_1\nextern "C" {')


def test_only_the_first_placeholder_is_replaced() -> None:
    assert finished(source=SOURCE + PLACEHOLDER).endswith(PLACEHOLDER)


def test_regular_expression_syntax_is_copied_literally() -> None:
    assert r"\1 \g<0> $&" in finished(FunctionCall("wt_site0_forward", r"\1 \g<0> $&"))


# ---- no other code handles generated text

PACKAGE = Path(warp_tiles.__file__).parent
FOLDERS = ("codegen", "_warp", "plan", "build")
# methods of str that search, split or change a text
TEXT_METHODS = {
    *("split", "rsplit", "splitlines", "partition", "rpartition", "replace", "translate", "expandtabs"),
    *("find", "rfind", "index", "rindex", "count", "startswith", "endswith", "removeprefix", "removesuffix"),
    *("strip", "lstrip", "rstrip"),
}
# names of variables and attributes that hold generated C++ in these folders
GENERATED = {"source", "text", "texts", "code", "line", "lines", "statement", "repeated", "replay", "generated"}
EXCEPTIONS = {
    ("codegen/prelude.py", "source.replace(PLACEHOLDER, '\\n'.join(lines), 1)"),
    # a line of a compiler's log
    ("build/engine.py", "line.strip()"),
    # drops the space after a macro without a body; the text is the package's own
    ("codegen/macros.py", "f\"#define {name} {' '.join(self._texts.get(name, ()))}\".rstrip()"),
}
MODULES = sorted(path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_the_folders_exist() -> None:
    assert {path.parent.name for path in MODULES} == set(FOLDERS)
    assert "codegen/prelude.py" in map(relative, MODULES)


def test_no_module_imports_regular_expressions() -> None:
    refused = {"re", "regex", "sre_compile", "sre_parse", "fnmatch"}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            assert not {name.partition(".")[0] for name in names} & refused, path
            assert not (isinstance(node, ast.Constant) and node.value == "re"), "as an argument of import_module()"


def text_method_calls(tree: ast.AST) -> set[str]:
    """Calls of a method of str on a generated text."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        receiver = node.func.value
        name = receiver.id if isinstance(receiver, ast.Name) else getattr(receiver, "attr", "")
        literal = isinstance(receiver, ast.JoinedStr)
        if node.func.attr in TEXT_METHODS and (name in GENERATED or literal):
            found.add(ast.unparse(node))
    return found


def test_only_the_prelude_changes_generated_text() -> None:
    found = {
        (relative(path), call) for path in MODULES for call in text_method_calls(ast.parse(path.read_text("utf-8")))
    }
    assert found == EXCEPTIONS
