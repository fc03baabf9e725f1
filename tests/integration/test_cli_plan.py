"""``warp-tiles plan`` and ``compile``, as users call them: in their own processes, with ``--json``."""

import json
from pathlib import Path

import pytest

from tests.integration.commands import COMPILE_FIELDS, MAIN, PLAN_FIELDS, WITHOUT_GUARD, command, json_of, usage_error
from tests.integration.helpers import FORWARD_ONLY, cubin_symbols, gemm
from tests.integration.solvers import solver
from warp_tiles.cli.script import PLANNED
from warp_tiles.gemm.tile_config import TileConfig


@pytest.mark.parametrize("name", ["main.py", "plain.py"])
def test_plan(folder: Path, name: str) -> None:
    done = command("plan", folder / name, folder, cache=folder / "lto")
    document = json_of(done)
    assert set(document) == {"modules", "matmul", "solves"}
    assert document["matmul"] == document["solves"] == []
    (module,) = document["modules"]
    assert module["name"] == "__main__"
    assert module["kernels"] == ["gemm"]
    assert module["arch"] == 90
    for planned in module["functions"]:
        assert set(planned) == PLAN_FIELDS
        assert (planned["size"], planned["threads"], planned["arch"]) == ("16x16x16", 64, 90)
        assert (planned["needed"], planned["provider"], planned["cached"]) == (True, "own", False)
        assert TileConfig.from_json(planned["tile_config"]).instruction == "fma"
        assert len(planned["key"]) == 64
    assert [planned["role"] for planned in module["functions"]] == ["forward", "adjoint_a", "adjoint_b"]
    assert "sum 0.0" in done.stderr, "output of the script is separate from the JSON"
    assert (folder / "sum").read_text() == "0.0", "nothing was launched"
    assert json_of(command("cache", "info", cache=folder / "lto"))["entries"] == 0, "nothing was built"


def test_options_behind_the_script_belong_to_it_and_are_named(folder: Path) -> None:
    text = WITHOUT_GUARD.replace('block_dim=64, device="cpu"', 'block_dim=64, device="cuda:97"')
    (folder / "words.py").write_text(text + "print(sys.argv[2:])\n")
    done = command("plan", "--arch", "sm_80,90a", folder / "words.py", folder, "--arch", "75", "--own")
    assert [module["arch"] for module in json_of(done)["modules"]] == [80, 90]
    assert f"{PLANNED}['--arch', '75', '--own']" in done.stderr, "and what a planned script prints is marked"
    assert "warp-tiles: --arch stands behind the script" in done.stderr
    assert "names cuda:97, which this machine lacks" in done.stderr, "also if only a launch names it"
    done = command("plan", folder / "words.py", "--", folder, "--arch", "75", as_json=False)
    assert f"{PLANNED}['--arch', '75']" in done.stdout
    assert "stands behind" not in done.stderr


def test_a_module_is_planned_as_python_runs_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = folder / "package"
    package.mkdir()
    (package / "folders.py").write_text("import sys\nfolder = sys.argv[1]\n")
    (package / "__main__.py").write_text(WITHOUT_GUARD.replace("main(sys", "from .folders import folder\nmain(sys"))
    monkeypatch.chdir(folder)
    (module,) = json_of(command("plan", "-m", "package", folder))["modules"]
    assert (module["name"], module["kernels"]) == ("__main__", ["gemm"])
    done = command("run", "-m", "package", folder, "a", as_json=False, WARP_CACHE_PATH=str(folder / "warp"))
    assert "sum 16384.0" in done.stdout, done.stderr
    assert (folder / "arguments").read_text() == "a"
    assert "there is no module package.gone" in usage_error(command("plan", "-m", "package.gone"))


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("plan --ach 90 main.py", "--arch"),
        ("plam main.py", "plan"),
        ("compile --arch=x -o out main.py", "such as 90"),
        ("plan --policy=quick main.py", "'off', 'scalar', 'fast', 'auto', 'max', 'locked'"),
    ],
)
def test_a_misspelt_word_is_named_with_what_is_valid(folder: Path, words: str, meant: str) -> None:
    message = usage_error(command(*words.split(), as_json=False))
    assert words.split()[0 if meant == "plan" else 1].partition("=")[0] in message
    assert meant in message


SOLVERS = f"""import warp as wp

wp.set_module_options({{"block_dim": 64}})
{solver("tile_cholesky", name="factor")}
{solver("tile_lower_solve_inplace", name="solve")}
"""


def test_plan_of_solvers(folder: Path) -> None:
    (folder / "solvers.py").write_text(SOLVERS)
    (module,) = json_of(command("plan", folder / "solvers.py", cache=folder / "lto"))["modules"]
    for row in module["functions"]:
        assert set(row) == PLAN_FIELDS | {"solver", "columns", "dtype", "in_place"}
        assert {row[name] for name in ("m", "k", "a_dtype", "b_dtype", "c_dtype", "precision")} == {None}
        assert row["symbol"].startswith(f"wt_{row['solver']}_")
        assert row["tile_config"].keys() == {"lanes"}
    assert {(row["role"], row["solver"], row["in_place"]) for row in module["functions"]} == {
        ("forward", "cholesky", False), ("adjoint", "cholesky_adjoint", False), ("forward", "lower_solve", True)
    }  # fmt: skip
    assert module["register_limit"] == 64
    assert "every kernel calls a solver function" in module["register_limit_reason"]
    table = command("plan", folder / "solvers.py", as_json=False).stdout
    assert f"at most 64 registers per thread if warp_tiles links: {module['register_limit_reason']}" in table
    for text in ("cholesky 16x16", "cholesky_adjoint 16x16", "lower_solve 16x16, 4", "in place", "float32", "adjoint"):
        assert text in table


def test_a_provider_that_cannot_serve_a_plan_is_a_usage_error(folder: Path) -> None:
    done = command("plan", "--block-dim", "48", folder / "main.py", folder, WARP_TILES_PROVIDER="own")
    message = usage_error(done)
    assert "own cannot serve threads=48" in message
    assert "16x16x16 float32" in message
    assert "WARP_TILES_PROVIDER=auto" in message


def test_plan_of_a_script_that_needs_its_results(folder: Path) -> None:
    (folder / "checks.py").write_text(WITHOUT_GUARD + "assert Path(sys.argv[1], 'sum').read_text() == '16384.0'\n")
    done = command("plan", folder / "checks.py", folder)
    assert len(json_of(done, status=2)["modules"][0]["functions"]) == 3
    assert "stopped early" in done.stderr
    line = len((folder / "checks.py").read_text().splitlines())
    assert f"AssertionError, in line {line}; what it would have launched after that is missing" in done.stderr
    done = command("plan", "--allow-incomplete", folder / "checks.py", folder)
    assert len(json_of(done)["modules"]) == 1
    assert "stopped early" in done.stderr


def test_plan_of_a_script_without_kernels(folder: Path) -> None:
    (folder / "empty.py").write_text("print('nothing')\n")
    assert "no kernel was found" in usage_error(command("plan", folder / "empty.py"))


# ---- compile


@pytest.mark.slow
def test_compile_for_two_block_sizes(folder: Path) -> None:
    text, launch = MAIN.replace("@wp.kernel", FORWARD_ONLY), '    print("sum"'
    again = 'wp.launch_tiled(gemm, dim=[1], inputs=[a, a], outputs=[c], block_dim=128, device="cpu")'
    (folder / "main.py").write_text(text.replace(launch, f"    {again}\n{launch}"))
    first = json_of(command("compile", "-o", folder / "out", folder / "main.py", folder, cache=folder / "lto"))
    assert sorted(module["block_dim"] for module in first["modules"]) == [64, 128]
    cubins = {module["block_dim"]: Path(module["cubin"]) for module in first["modules"]}
    for module in first["modules"]:
        assert set(module) >= COMPILE_FIELDS
        assert (module["name"], module["lto_builds"], module["lto_hits"]) == ("__main__", 1, 0)
        cubin = cubins[module["block_dim"]]
        assert cubin.parent == folder / "out" / "sm_90", "as with several architectures"
        assert cubin.stat().st_size == module["cubin_bytes"]
        assert module["lto_bytes"] > 1000
        assert module["seconds"] > 0
        assert any(name.startswith("gemm_") for name in cubin_symbols(cubin.read_bytes()).functions)
        assert cubin.with_name(f"{cubin.name.partition('.sm')[0]}.meta").is_file(), "Warp looks for it there"
    assert not (folder / "sum").exists() or (folder / "sum").read_text() == "0.0", "nothing was launched"
    second = json_of(command("compile", "-o", folder / "again", folder / "main.py", folder, cache=folder / "lto"))
    for module in second["modules"]:
        assert (module["lto_builds"], module["lto_hits"]) == (0, 1)
        assert Path(module["cubin"]).read_bytes() == cubins[module["block_dim"]].read_bytes()


@pytest.mark.slow
def test_compile_writes_the_record_of_its_builds(folder: Path) -> None:
    report, trace = folder / "report.json", folder / "trace.json"
    options = ("--report", report, "--trace", trace, "-o", folder / "out")
    done = command("compile", *options, folder / "main.py", folder, cache=folder / "lto")
    (row,) = json_of(done)["modules"]
    (module,) = json.loads(report.read_text())["modules"]
    assert (module["lto_builds"], module["cubin_bytes"]) == (row["lto_builds"], row["cubin_bytes"])
    assert module["target"] == row["target"] == "sm_90"
    assert all(build["started_at_s"] >= module["started_at_s"] for build in module["builds"])
    assert json.loads(trace.read_text())["traceEvents"]
    assert not row["up_to_date"]

    page, output = folder / "again.html", module["output"]
    again = command("compile", "--report", page, "-o", folder / "out", folder / "main.py", folder, cache=folder / "lto")
    (kept,) = json_of(again)["modules"]
    assert (kept["up_to_date"], kept["target"]) == (True, None)
    shown = command("compile", "-o", folder / "out", folder / "main.py", folder, as_json=False, cache=folder / "lto")
    assert "up to date" in shown.stdout
    text = page.read_text()
    assert "<li><b>1</b>module</li><li><b>1</b>up to date</li>" in text
    assert f"<code>{output}</code>" in text
    assert "No module with products or solvers" not in text


@pytest.mark.slow
def test_a_report_has_the_modules_beside_a_failed_build_and_the_end_of_the_script(folder: Path) -> None:
    good, bad = ((folder / f"{name}_module.py") for name in ("good", "bad"))
    good.write_text((folder / "main.py").read_text().partition("if __name__")[0])
    bad.write_text(
        "import warp as wp\n@wp.func_native('return no_such_symbol;')\ndef value() -> float:\n    ...\n"
        "@wp.kernel\ndef wrong(x: wp.array(dtype=float)):\n    x[0] = value()\n"
    )
    launch = "import {0}_module, warp as wp\nwp.launch({0}_module.{1}, dim=1, inputs=[{2}])\n"
    script, report, trace = folder / "both.py", folder / "report.json", folder / "trace.json"
    kept = launch.format("good", "gemm", "*[wp.zeros((16, 16))] * 3")
    end = "raise ValueError('after the launches')\n"
    options = ("--report", report, "--trace", trace, "-o", folder / "both")
    script.write_text(kept + end)
    done = command("compile", *options, script, folder, as_json=False, cache=folder / "lto")
    assert done.returncode == 2, done.stderr
    assert "what it would have launched after that is missing" in done.stderr
    assert list((folder / "both").glob("sm_90/*.cubin")), "what was found is written"
    assert "after the launches" in json.loads(trace.read_text())["otherData"]["ended by"]
    script.write_text(kept + launch.format("bad", "wrong", "wp.zeros(1)") + end)
    done = command("compile", *options, script, folder, as_json=False, cache=folder / "lto")
    assert done.returncode != 0
    assert "no_such_symbol" in done.stderr
    (kept_module,) = json.loads(report.read_text())["modules"]
    assert (kept_module["name"], kept_module["up_to_date"]) == ("good_module", True)


def test_the_package_of_a_module_is_planned_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up of the module must not import its package, whose launches would run and whose kernels would be lost."""
    (tmp_path / "outer").mkdir()
    text = "import warp as wp\n\n" + gemm(m=8, n=8, k=8, decorator=FORWARD_ONLY)
    text += "import sys\nprint('imported')\nsys.stdout.writelines(['one\\n', 'two\\n'])\n"
    (tmp_path / "outer" / "__init__.py").write_text(text)
    (tmp_path / "outer" / "inner.py").write_text("import outer\n")
    monkeypatch.chdir(tmp_path)
    done = command("plan", "-m", "outer.inner")
    (module,) = json_of(done)["modules"]
    assert module["name"] == "outer"
    assert "planned| imported\nplanned| one\nplanned| two\n" in done.stderr


LOUD = """
import logging, sys, threading, warnings
import warp_tiles

print("a result")
print("an error", file=sys.stderr)
sys.stderr.writelines(["one\\n", "two\\n"])
print("half a ", end="", file=sys.stderr)
print("line", file=sys.stderr)
print("\\x1b[31mred\\x1b[0m", file=sys.stderr)
print("\\r 10 %", end="", file=sys.stderr)
print("\\r 20 %", file=sys.stderr)
print("\\x1b[2K 30 %", file=sys.stderr)
warnings.warn("of the script")
logging.basicConfig(level=logging.INFO)
logging.warning("logged")
thread = threading.Thread(target=print, args=("of a thread",), kwargs={"file": sys.stderr})
thread.start()
thread.join()
warp_tiles.util.warn.warn("of warp_tiles")
"""


def test_the_lines_of_a_planned_script_are_marked_on_both_streams(tmp_path: Path) -> None:
    """But not those that are drawn again, and what a logger of the script prints later."""
    (tmp_path / "loud.py").write_text("import warp as wp\n\n" + gemm(m=8, n=8, k=8, decorator=FORWARD_ONLY) + LOUD)
    done = command("compile", "--arch", "90", "-o", tmp_path / "out", tmp_path / "loud.py", as_json=False)
    assert done.returncode == 0, done.stderr
    assert f"{PLANNED}a result\n" in done.stdout
    lines = done.stderr.split("\n")
    marked = [line.removeprefix(PLANNED) for line in lines if line.startswith(PLANNED)]
    for line in ("an error", "one", "two", "half a line", "\x1b[31mred\x1b[0m", "WARNING:root:logged", "of a thread"):
        assert line in marked
    assert any(line.endswith("UserWarning: of the script") for line in marked)
    assert any(line.endswith("RuntimeWarning: warp_tiles: of warp_tiles") for line in marked)
    assert any(line.startswith("INFO:warp_tiles:__main__ sm_90: 1 function built") for line in lines)
    assert [line for line in lines if line.endswith(" %")] == [
        " 10 %",
        " 20 %",
        "\x1b[2K 30 %",
    ]  # of text, \r is an end


def test_a_script_that_disables_warp_tiles_is_planned(tmp_path: Path) -> None:
    text = "import warp as wp\nimport warp_tiles\n\n" + gemm(m=8, n=8, k=8, decorator=FORWARD_ONLY)
    (tmp_path / "ends.py").write_text(text + "warp_tiles.enable()\nwarp_tiles.disable()\n")
    (module,) = json_of(command("plan", tmp_path / "ends.py"))["modules"]
    assert module["functions"]
