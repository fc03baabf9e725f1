"""``warp-tiles run``, as users call it: in its own process, with ``--json``."""

import json
import re
import signal
from pathlib import Path

import pytest

from tests.integration.commands import command, json_of
from tests.integration.helpers import FORWARD_ONLY, gemm


@pytest.mark.slow
def test_run_with_a_report_and_arguments(folder: Path) -> None:
    report = folder / "report.json"
    words = (folder / "main.py", folder, "--arch", "x", "-o", "--json", "-v", "--quiet")
    done = command("run", "--report", report, *words, as_json=False, WARP_CACHE_PATH=str(folder / "warp"))
    assert done.returncode == 0, done.stderr
    assert "warp-tiles: --json, -v, --quiet stands behind the script, which gets it" in done.stderr
    assert "sum 16384.0" in done.stdout
    assert (folder / "sum").read_text() == "16384.0"
    assert (folder / "arguments").read_text() == "--arch x -o --json -v --quiet", (
        "arguments after the script belong to the script"
    )
    (module,) = json.loads(report.read_text())["modules"]
    assert module["kernels"] == ["gemm"]
    assert [planned["role"] for planned in module["functions"]] == ["forward", "adjoint_a", "adjoint_b"]
    assert all("CPU" in planned["reason"] for planned in module["functions"])
    assert module["builds"] == []


def test_run_prints_only_json_also_for_modules_from_warps_own_cache(folder: Path) -> None:
    runs = [command("run", folder / "main.py", folder, WARP_CACHE_PATH=str(folder / "warp")) for _ in range(2)]
    (first,), (second,) = (json_of(done)["modules"] for done in runs)
    assert (first["name"], first["arch"]) == ("__main__", None)
    assert second["functions"] == first["functions"]
    assert all("sum 16384.0" in done.stderr for done in runs)


# builds a module with one product and two skipped adjoints, without a GPU
BUILDS = f"""import sys
import warp as wp

{gemm(m=8, n=8, k=8, decorator=FORWARD_ONLY)}
wp.compile_aot_module(__name__, arch=90, module_dir=sys.argv[1], use_ptx=False)
"""


def test_run_reports_builds(folder: Path) -> None:
    planned = "import warp_tiles\nwarp_tiles.plan(__name__, arch=90)\nwarp_tiles.plan(__name__, arch=80)\n"
    (folder / "aot.py").write_text(BUILDS + planned)  # and plans it, which is no part of the run
    done = command("run", "--verbose", folder / "aot.py", folder / "out", cache=folder / "lto")
    (module,) = json_of(done)["modules"]
    assert re.search(
        r"^warp_tiles: modules: 1 built, 0 cached; functions: 1 built, 0 cached; \d+\.\d s$", done.stderr, re.M
    )
    assert "__main__ sm_90: 1 function built" in done.stderr
    (folder / "quiet.py").write_text("import warp as wp\nwp.config.log_level = wp.LOG_WARNING\n" + BUILDS)
    for words in (["--quiet", folder / "aot.py"], [folder / "quiet.py"]):
        quiet = command("run", *words, folder / "again", as_json=False, cache=folder / "lto")
        assert quiet.returncode == 0, quiet.stderr
        assert "functions" not in quiet.stdout + quiet.stderr, "the line has the log level of Warp's own lines"
    assert (module["lto_builds"], module["lto_hits"], module["linker"]) == (1, 0, "warp_tiles")
    assert [planned["needed"] for planned in module["functions"]] == [True, False, False]
    (build,) = module["builds"]
    assert (build["hit"], build["provider"]) == (False, "own")
    assert build["tile_config"] == module["functions"][0]["tile_config"]
    assert (folder / "out" / module["output"]).stat().st_size == module["cubin_bytes"]


def test_a_script_has_its_own_folder_and_name(folder: Path) -> None:
    (folder / "beside.py").write_text("value = 7\n")
    (folder / "imports.py").write_text("import sys, beside\nprint(beside.value, __name__, sys.argv[0] == __file__)\n")
    done = command("run", folder / "imports.py", as_json=False)
    assert "7 __main__ True" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_report_that_ends_in_html_is_a_page_and_a_trace_has_the_builds(folder: Path) -> None:
    report, trace = folder / "report.HTML", folder / "trace.json"
    options = ("--report", report, "--trace", trace)
    (folder / "aot.py").write_text(BUILDS + "raise KeyError('<b>')\n")
    done = command("run", *options, folder / "aot.py", folder / "out", as_json=False, cache=folder / "lto")
    assert "KeyError" in done.stderr
    text = report.read_text()
    assert text.startswith("<!DOCTYPE html>")
    for part in ("Run of aot.py with warp_tiles", "forward 8x8x8", "Timeline of the builds", "enable_backward=False"):
        assert part in text
    assert "KeyError: &#x27;&lt;b&gt;&#x27;" in text
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["cat"] for event in events if event["ph"] == "X"} >= {"module", "compile", "link"}


@pytest.mark.parametrize(
    ("name", "option", "what"), [("run", "--report", "report"), ("run", "--trace", "trace"), ("plan", "--html", "page")]
)
def test_an_output_without_a_folder_is_refused_before_the_script_runs(
    folder: Path, name: str, option: str, what: str
) -> None:
    done = command(name, option, folder / "none" / "file.html", folder / "main.py", folder, as_json=False)
    assert done.returncode == 2
    assert f"the {what} cannot be written: there is no folder" in done.stderr
    assert not (folder / "sum").exists()


@pytest.mark.parametrize(
    ("end", "status", "message"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit()", 0, ""),
        ("input()", 1, "EOFError: EOF when reading a line"),
        ("raise BrokenPipeError('of a worker')", 1, "BrokenPipeError: of a worker"),
        ("raise KeyboardInterrupt('text')", -signal.SIGINT, "warp-tiles: interrupted"),
        ("sys.stdout.close()", 0, ""),
    ],
)
def test_the_end_of_a_script_is_its_own_and_the_report_is_written(
    tmp_path: Path, end: str, status: int, message: str
) -> None:
    script, report = tmp_path / "ends.py", tmp_path / "report.json"
    script.write_text(f"import sys\nprint('here', flush=True)\n{end}\n")
    done = command("run", "--report", report, script, as_json=False)
    assert done.returncode == status, done.stderr
    assert "here" in done.stdout
    assert message in done.stderr
    assert ("Traceback" in done.stderr) == (status == 1)
    shown = re.findall(r'^  File "(.*)", line', done.stderr, re.M)
    assert shown == [str(script)] * (status == 1), "as python shows it"
    assert json.loads(report.read_text()) == {"modules": []}


def test_a_script_in_place_of_a_command_is_answered_with_the_command_that_runs_it() -> None:
    done = command("train.py", as_json=False)
    assert done.returncode == 2
    assert "No such command 'train.py'. To run a script: warp-tiles run train.py" in done.stderr
