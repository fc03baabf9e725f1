"""The layers of the package: a folder imports only lower layers, lazy and type-only imports included."""

import ast
import functools
from pathlib import Path

import warp_tiles
from warp_tiles.codegen.operations import ELEMENTWISE, OPERATORS

PACKAGE = Path(warp_tiles.__file__).resolve().parent
# each folder or module imports only itself and lower layers; the lowest layer comes first
FOLDERS = (
    "errors", "util", "gemm", "solver", "settings", "store", "compile", "codegen", "plan", "providers", "build",
    "_warp", "recorded", "tuning", "reports", "array_products", "api", "cli", "__init__",
)  # fmt: skip
LAYER_OF = {**{folder: number for number, folder in enumerate(FOLDERS)}, "__main__": len(FOLDERS) - 1}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def folder_of(module: str) -> str:
    return module.split(".")[0]


def imported(path: Path) -> set[str]:
    """Modules of the package that a module imports anywhere, by name within the package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            top, _, rest = name.partition(".")
            if top != "warp_tiles":
                continue
            while rest and rest not in MODULES:  # a name in a module
                rest = rest.rpartition(".")[0]
            found.add(rest or "__init__")
    return found


@functools.cache
def imports() -> dict[str, set[str]]:
    """The modules of the package that each of them imports."""
    return {name: imported(path) - {name} for name, path in MODULES.items()}


def test_every_folder_has_a_layer() -> None:
    assert {folder_of(module) for module in MODULES} <= set(LAYER_OF)
    assert set(LAYER_OF) == {folder_of(module) for module in MODULES} | {"__init__"}


def test_each_folder_imports_only_lower_layers() -> None:
    wrong = {
        f"{module} -> {target}"
        for module, targets in imports().items()
        for target in targets
        if folder_of(module) != folder_of(target) and LAYER_OF[folder_of(target)] >= LAYER_OF[folder_of(module)]
    }
    assert not wrong


def test_whole_arrays_are_imported_by_public_calls_and_commands_alone() -> None:
    """Whole arrays use the rest of the package. Nothing in it knows them, but for the doors that are named here."""
    doors = {
        "__init__ -> array_products.public",  # warp_tiles.matmul, cholesky, solve
        "api -> array_products.backward",  # gradients that enable() gives to tapes
        "cli.bundling -> array_products.tensor_matmul",
        "cli.run -> array_products.tensor_kernel",  # what warm compiles
        "cli.run -> array_products.tensor_matmul",
        "cli.contribution -> array_products.measured_solves",
        "cli.contribution -> array_products.solve_choice",
    }
    inner = "array_products"
    assert doors == {
        f"{module} -> {target}"
        for module, targets in imports().items()
        for target in targets
        if folder_of(target) == inner != folder_of(module)
    }


def test_code_is_written_from_plans_alone() -> None:
    """No module that writes source reaches a trace, a plan or the settings, directly or through another module."""
    reached = {"codegen.emit_loops", "codegen.prelude"}
    while added := {target for module in reached for target in imports()[module]} - reached:
        reached |= added
    assert "codegen.module_code" in reached
    decides = {"codegen.trace", "codegen.loops", "codegen.pipelines"}
    assert not {module for module in reached if module in decides or folder_of(module) in ("settings", "plan")}


def test_no_cycle_of_modules() -> None:
    # a package's __init__ imports its exports, and its modules do not import the package
    state: dict[str, str] = {}
    cycles: list[list[str]] = []

    def visit(module: str, path: list[str]) -> None:
        state[module] = "open"
        for target in sorted(imports()[module]):
            if state.get(target) == "open":
                cycles.append([*path[path.index(target) :], target] if target in path else [module, target])
            elif target not in state:
                visit(target, [*path, target])
        state[module] = "done"

    for module in MODULES:
        if module not in state:
            visit(module, [module])
    assert not cycles


def test_one_file_names_elementwise_builtins() -> None:
    """What else decides about one reads its record. Operators are those of numbers too."""
    names = ELEMENTWISE.keys() - OPERATORS
    naming = {
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert naming == {"codegen.operations"}


def test_a_record_is_a_tuning_record_or_a_recorded_launch() -> None:
    """The word has one meaning in the names of modules and classes, and that of the public feature."""
    classes = {
        node.name
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    modules = {name.rpartition(".")[2] for name in MODULES}
    of_tuning = {"record", "Record", "RecordError", "RecordFolder", "RecordStore", "StoredRecord"}
    of_launches = {"recorded", "RecordedLaunch", "RecordingError", "RecordingTarget"}
    assert {name for name in classes | modules if "record" in name.lower()} == of_tuning | of_launches
