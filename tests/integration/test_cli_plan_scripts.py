"""``warp-tiles plan`` and ``compile`` on scripts: examples, those that need results, and modules without products."""

from pathlib import Path

import pytest

import warp_tiles
from tests.integration.ahead_modules import generated
from tests.integration.commands import MAIN, WITHOUT_GUARD, command, json_of
from tests.integration.helpers import FORWARD_ONLY, REPOSITORY, gemm, load
from warp_tiles.store.cache import Cache

# examples with kernels without products: their own, and those of products and solves of whole arrays
WITHOUT_PRODUCTS = {
    "matmul.py": {"mean_square", "epilogue_gradient", "column_sums", "add_slices"},
    "solves.py": {"scaled_copy"},
}
EXAMPLES = sorted(path.name for path in (REPOSITORY / "examples").glob("*.py"))
PLAIN = """
@wp.kernel
def count_down(left: wp.array(dtype=int)):
    left[0] = left[0] - 1
"""


@pytest.mark.parametrize("name", ["plan", "compile"])
def test_a_script_asks_whether_it_is_planned(folder: Path, name: str) -> None:
    text = WITHOUT_GUARD.replace("@wp.kernel", FORWARD_ONLY).replace("import numpy as np\n", "import warp_tiles\n")
    text = text.replace("np.full((16, 16), 2.0)", "[[2.0] * 16] * 16")
    text += "if not warp_tiles.is_planning():\n    raise SystemExit('results are needed')\n"
    (folder / "asks.py").write_text(text)
    options = ["-o", folder / "out"] if name == "compile" else []
    done = command(name, *options, folder / "asks.py", folder)
    assert len(json_of(done)["modules"]) == 1
    assert "stopped early" not in done.stderr
    assert not warp_tiles.is_planning()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_planned_to_its_end(name: str, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    done = command("plan", "--html", page, REPOSITORY / "examples" / name, cache=tmp_path / "tiles")
    modules, products, solves = (json_of(done)[name] for name in ("modules", "matmul", "solves"))
    without = {kernel.split("__locals__")[-1] for m in modules if not m["functions"] for kernel in m["kernels"]}
    assert without == WITHOUT_PRODUCTS.get(name, set())
    assert any(module["functions"] for module in modules)
    assert "stopped early" not in done.stderr
    assert list(Cache(tmp_path / "tiles").entries()) == []
    assert not list((tmp_path / "tiles").rglob("tuning/**/*.json"))
    assert {product["decided_by"] for product in products} == (
        {"record", "heuristic"} if name == "matmul.py" else {"heuristic"} if name == "solves.py" else set()
    )
    if not products:
        return
    assert {loop["state"] for module in modules for loop in module["loops"]} == {"pipelined"}
    shown = command("plan", REPOSITORY / "examples" / name, as_json=False).stdout
    for product in products:
        assert product["product"] in page.read_text()
        assert product["product"] in shown
    assert "products of warp_tiles.matmul" in shown
    assert bool(solves) == (name == "solves.py") == ("calls of warp_tiles.cholesky and warp_tiles.solve" in shown)
    for solve in solves:
        assert solve["problem"] in page.read_text()
        assert solve["reason"] in page.read_text()


def test_modules_without_tile_functions_are_counted(folder: Path) -> None:
    (folder / "other_kernels.py").write_text(f"import warp as wp\n{PLAIN}")
    text = MAIN.replace("import numpy as np\n", "import numpy as np\nimport other_kernels\n")
    (folder / "two.py").write_text(text)
    table = command("plan", folder / "two.py", folder, as_json=False).stdout
    assert table.count("module __main__") == 1
    assert "other_kernels" not in table
    assert table.rstrip().endswith("\n1 module without tile functions, which Warp builds as always")
    names = [module["name"] for module in json_of(command("plan", folder / "two.py", folder))["modules"]]
    assert sorted(names) == ["__main__", "other_kernels"]


@pytest.mark.slow
def test_a_helper_that_makes_the_module_compile_again_is_named(folder: Path) -> None:
    text = WITHOUT_GUARD.replace("@wp.kernel", FORWARD_ONLY).replace("\ndef main", f"\n{PLAIN}\ndef main", 1)
    text += 'wp.launch(count_down, dim=1, inputs=[wp.zeros(1, dtype=int, device="cpu")], device="cpu"{})\n'
    (folder / "helper.py").write_text(text.format(""))
    page = folder / "plan.html"
    shown = command("plan", "--html", page, folder / "helper.py", folder, as_json=False).stdout
    message = "module __main__ is compiled once more, with 1 function, only because count_down without tile functions"
    assert f"{message} is launched with 256 threads: launch it with block_dim=64" in shown
    assert message in page.read_text()
    several = command("plan", "--arch", "80,90", folder / "helper.py", folder, as_json=False).stdout
    assert several.count("compiled once more") == 1
    assert "is compiled once more for each of 2 architectures, with 2 functions, only because" in several
    assert "2 functions not needed: kernel 'gemm' has enable_backward=False" in shown, "in one line"
    key = folder / "key.pem"
    command("keys", "new", "-o", key, as_json=False)
    for name in ("compile", "bundle"):
        written = ("-o", folder / name, folder / "helper.py", folder)
        done = command(name, *written, as_json=False, WARP_TILES_SIGNING_KEY=str(key))
        assert f"{message} is launched with 256 threads: launch it with block_dim=64" in done.stdout, done.stderr
    generic = "from typing import Any\n" + text.replace("array2d(dtype=wp.float32)", "array2d(dtype=Any)")
    assert "dtype=Any" in generic
    (folder / "helper.py").write_text(generic.format(""))
    assert message in command("plan", folder / "helper.py", folder, as_json=False).stdout
    (folder / "helper.py").write_text(text.format(", block_dim=64"))
    assert "compiled once more" not in command("plan", folder / "helper.py", folder, as_json=False).stdout


GENERIC = """
@wp.func
def multiplied(a: Any, b: Any):
    return wp.tile_matmul(a, b)


@wp.kernel
def generic(A: wp.array2d(dtype=Any), B: wp.array2d(dtype=Any), C: wp.array2d(dtype=Any)):
    wp.tile_store(C, multiplied(wp.tile_load(A, shape=(16, 16)), wp.tile_load(B, shape=(16, 16))))


@wp.kernel
def without_tiles(A: wp.array(dtype=Any)):
    A[0] = A[1]
"""


def test_a_generic_kernel_without_an_instance_is_named(folder: Path) -> None:
    script, page = folder / "generic.py", folder / "plan.html"
    script.write_text(f"from typing import Any\nimport warp as wp\n{GENERIC}")
    title, shown = command("plan", "--html", page, script, as_json=False).stdout.splitlines()[-2:]
    assert title.startswith("module __main__, ")
    assert shown.startswith("generic kernels without an instance: generic; their functions depend on the types")
    assert "launch them, or name the types with wp.overload()" in shown
    assert shown in page.read_text()
    (module,) = json_of(command("plan", script))["modules"]
    assert (module["uninstantiated"], module["uninstantiated_reason"]) == (["generic"], shown)
    with warp_tiles.enabled():
        assert f"problem: {shown}" in str(warp_tiles.plan(load(f"from typing import Any\n{GENERIC}"), arch=90))
    script.write_text(f"{script.read_text()}\nwp.overload(generic, [wp.array2d(dtype=float)] * 3)\n")
    (module,) = json_of(command("plan", script))["modules"]
    assert (module["uninstantiated"], len(module["functions"])) == ([], 3)


def test_a_module_that_is_left_to_warp_is_shown(folder: Path) -> None:
    words = ("plan", "--policy", "off", folder / "main.py", folder)
    shown = command(*words, as_json=False).stdout
    assert "module __main__" in shown
    assert "without tile functions" not in shown
    (module,) = json_of(command(*words, WARP_TILES_POLICY="fast"))["modules"]
    assert module["policy"] == "off", "the option comes before the environment"


def test_planning_generates_no_code_without_tile_functions() -> None:
    with warp_tiles.enabled():
        plain, product = load(PLAIN), load(gemm())
        option_off = load(gemm(), enable_mathdx_gemm=False)

        with generated() as names:
            plans = [warp_tiles.plan(module, arch=90, block_dim=64) for module in (plain, product, option_off)]
    assert names == [product.__name__, option_off.__name__]
    assert [plan.kernels for plan in plans] == [("count_down",), ("gemm",), ("gemm",)]
    assert [len(plan.functions) for plan in plans] == [0, 3, 3], "also without MathDx the reason is shown"
