"""The command line, as users call it: in processes of its own, with ``--json``."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.helpers import cubin_symbols, gemm, run_python
from warp_tiles import __version__
from warp_tiles.tile_config import TileConfig

FORWARD_ONLY = "@wp.kernel(enable_backward=False)"
PLAN_FIELDS = {
    "role", "m", "n", "k", "a_dtype", "b_dtype", "c_dtype", "precision", "arrangement", "leading_dimensions",
    "threads", "arch", "needed", "reason", "provider", "key", "cached",
}  # fmt: skip
MORE_PLAN_FIELDS = {"alignments", "symbol", "call", "function", "kernels", "tile_config"}
COMPILE_FIELDS = {"name", "cubin", "cubin_bytes", "lto_builds", "lto_hits", "lto_bytes", "seconds"}

MAIN = (
    "import sys\nfrom pathlib import Path\n\nimport numpy as np\nimport warp as wp\n\n"
    + gemm()
    + """

def main(folder):
    a = wp.array(np.full((16, 16), 2.0), dtype=wp.float32, device="cpu")
    c = wp.zeros((16, 16), dtype=wp.float32, device="cpu")
    wp.launch_tiled(gemm, dim=[1], inputs=[a, a], outputs=[c], block_dim=64, device="cpu")
    print("sum", c.numpy().sum())
    Path(folder, "sum").write_text(str(c.numpy().sum()))
    Path(folder, "arguments").write_text(" ".join(sys.argv[2:]))


if __name__ == "__main__":
    main(sys.argv[1])
"""
)
WITHOUT_GUARD = MAIN.partition('if __name__ == "__main__"')[0] + "main(sys.argv[1])\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with scripts, where the script's own results go too."""
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "plain.py").write_text(WITHOUT_GUARD)
    return tmp_path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of three variants, and where they were compiled to; tests copy it before they change it."""
    top = tmp_path_factory.mktemp("filled")
    (top / "main.py").write_text(MAIN.replace("(16, 16)", "(8, 8)"))
    done = command("compile", top / "main.py", top, "-o", top / "out", cache=top / "lto")
    (module,) = parsed(done)["modules"]
    assert (module["lto_builds"], module["lto_hits"]) == (3, 0)
    return top


def command(
    *arguments: object, cache: Path | None = None, as_json: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``python -m warp_tiles`` with arguments, by default with ``--json`` right behind the command."""
    words = [str(argument) for argument in arguments]
    if as_json:
        words.insert(2 if words[0] == "cache" else 1, "--json")
    if cache is not None:
        environment["WARP_TILES_CACHE_DIR"] = str(cache)
    return run_python(["-m", "warp_tiles", *words], environment=environment)


def parsed(done: subprocess.CompletedProcess[str], status: int = 0) -> Any:
    """Its JSON, which is all that it printed on standard output."""
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The message of a command that refused, without a traceback."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


# ---- run


def test_run_with_a_report_and_arguments(folder: Path) -> None:
    report = folder / "report.json"
    words = (folder / "main.py", folder, "--arch", "x", "-o", "--json")
    done = command("run", "--report", report, *words, as_json=False, WARP_CACHE_PATH=str(folder / "warp"))
    assert done.returncode == 0, done.stderr
    assert "sum 16384.0" in done.stdout
    assert (folder / "sum").read_text() == "16384.0"
    assert (folder / "arguments").read_text() == "--arch x -o --json", "what follows the script is the script's"
    (module,) = json.loads(report.read_text())["modules"]
    assert module["kernels"] == ["gemm"]
    assert [variant["role"] for variant in module["variants"]] == ["forward", "adjoint_a", "adjoint_b"]
    assert all("CPU" in variant["reason"] for variant in module["variants"])
    assert module["builds"] == []


def test_run_prints_json_alone(folder: Path) -> None:
    done = command("run", folder / "main.py", folder, WARP_CACHE_PATH=str(folder / "warp"))
    (module,) = parsed(done)["modules"]
    assert (module["name"], module["arch"]) == ("__main__", None)
    assert "sum 16384.0" in done.stderr


def test_run_reports_what_warp_loads_from_its_own_cache_too(folder: Path) -> None:
    runs = [command("run", folder / "main.py", folder, WARP_CACHE_PATH=str(folder / "warp")) for _ in range(2)]
    first, second = (parsed(done)["modules"] for done in runs)
    assert [module["variants"] for module in second] == [module["variants"] for module in first]
    assert len(first) == 1


def test_run_reports_what_was_built(folder: Path) -> None:
    text = "import sys\nimport warp as wp\n\n" + gemm(m=8, n=8, k=8, decorator=FORWARD_ONLY)
    text += "wp.compile_aot_module(__name__, arch=90, module_dir=sys.argv[1], use_ptx=False)\n"
    (folder / "aot.py").write_text(text)
    (module,) = parsed(command("run", folder / "aot.py", folder / "out", cache=folder / "lto"))["modules"]
    assert (module["lto_builds"], module["lto_hits"], module["linker"]) == (1, 0, "warp_tiles")
    assert [variant["needed"] for variant in module["variants"]] == [True, False, False]
    (build,) = module["builds"]
    assert (build["hit"], build["provider"]) == (False, "mma")
    assert build["tile_config"] == module["variants"][0]["tile_config"]
    assert (folder / "out" / module["output"]).stat().st_size == module["cubin_bytes"]


def test_run_writes_the_report_of_a_script_that_fails(folder: Path) -> None:
    (folder / "fails.py").write_text(WITHOUT_GUARD + "raise RuntimeError('on purpose')\n")
    report = folder / "report.json"
    warp_cache = str(folder / "warp")
    done = command("run", "--report", report, folder / "fails.py", folder, as_json=False, WARP_CACHE_PATH=warp_cache)
    assert done.returncode == 1
    assert "RuntimeError: on purpose" in done.stderr
    assert json.loads(report.read_text())["modules"][0]["kernels"] == ["gemm"]


@pytest.mark.parametrize(("ending", "status"), [("sys.exit(3)", 3), ("sys.exit(0)", 0), ("sys.exit()", 0)])
def test_run_ends_as_the_script_ends(folder: Path, ending: str, status: int) -> None:
    (folder / "exits.py").write_text(f"import sys\nprint('here')\n{ending}\n")
    report = folder / "report.json"
    done = command("run", "--report", report, folder / "exits.py", as_json=False)
    assert done.returncode == status
    assert "here" in done.stdout
    assert json.loads(report.read_text()) == {"modules": []}


def test_run_sees_the_scripts_own_folder_and_name(folder: Path) -> None:
    (folder / "beside.py").write_text("value = 7\n")
    (folder / "imports.py").write_text("import sys, beside\nprint(beside.value, __name__, sys.argv[0] == __file__)\n")
    done = command("run", folder / "imports.py", as_json=False)
    assert "7 __main__ True" in done.stdout, done.stderr


# ---- plan


@pytest.mark.parametrize("name", ["main.py", "plain.py"])
def test_plan(folder: Path, name: str) -> None:
    done = command("plan", folder / name, folder, cache=folder / "lto")
    document = parsed(done)
    assert set(document) == {"modules"}
    (module,) = document["modules"]
    assert module["name"] == "__main__"
    assert module["kernels"] == ["gemm"]
    assert module["arch"] == 90
    for variant in module["variants"]:
        assert set(variant) == PLAN_FIELDS | MORE_PLAN_FIELDS
        assert (variant["m"], variant["n"], variant["k"]) == (16, 16, 16)
        assert variant["a_dtype"] == variant["b_dtype"] == variant["c_dtype"] == "float32"
        assert (variant["precision"], variant["threads"], variant["arch"]) == ("default", 64, 90)
        assert variant["leading_dimensions"] == [16, 16, 16]
        assert len(variant["arrangement"]) == 3
        assert (variant["needed"], variant["provider"], variant["cached"]) == (True, "mma", False)
        assert TileConfig.from_json(variant["tile_config"]).instruction == "fma"
        assert "mma: the first that is asked" in variant["reason"]
        assert len(variant["key"]) == 64
        assert variant["reason"]
    assert [variant["role"] for variant in module["variants"]] == ["forward", "adjoint_a", "adjoint_b"]
    assert "sum 0.0" in done.stderr, "what the script prints goes beside the JSON"
    assert (folder / "sum").read_text() == "0.0", "nothing was launched"
    assert parsed(command("cache", "info", cache=folder / "lto"))["entries"] == 0, "nothing was built"


def test_plan_for_another_architecture_and_block_size(folder: Path) -> None:
    document = parsed(command("plan", "--arch", "80", "--block-dim", "256", folder / "main.py", folder))
    (module,) = document["modules"]
    assert {(v["arch"], v["threads"]) for v in module["variants"]} == {(80, 256)}


def test_plan_options_may_follow_the_script(folder: Path) -> None:
    done = run_python(["-m", "warp_tiles", "plan", str(folder / "main.py"), str(folder), "--arch", "80", "--json"])
    assert {v["arch"] for v in parsed(done)["modules"][0]["variants"]} == {80}


def test_plan_prints_a_table(folder: Path) -> None:
    done = command("plan", folder / "main.py", folder, as_json=False)
    assert done.returncode == 0, done.stderr
    for text in ("forward", "adjoint_a", "adjoint_b", "16x16x16", "gemm", "sm_90", "64 threads", "mma", "fma", "lanes"):
        assert text in done.stdout


def test_plan_with_another_provider(folder: Path) -> None:
    done = command("plan", folder / "main.py", folder, WARP_TILES_PROVIDER="cublasdx")
    (module,) = parsed(done)["modules"]
    assert module["provider"] == "cublasdx"
    for variant in module["variants"]:
        assert (variant["provider"], variant["tile_config"]) == ("cublasdx", None)
        assert "cublasdx: the setting provider (environment variable WARP_TILES_PROVIDER) names it" in variant["reason"]


def test_a_provider_that_cannot_serve_a_plan_is_one_message(folder: Path) -> None:
    done = command("plan", "--block-dim", "48", folder / "main.py", folder, WARP_TILES_PROVIDER="mma")
    message = refused(done)
    assert "mma cannot serve threads=48" in message
    assert "16x16x16 float32" in message
    assert "WARP_TILES_PROVIDER=auto" in message


def test_plan_of_a_kernel_that_is_launched_with_two_block_sizes(folder: Path) -> None:
    text = WITHOUT_GUARD.replace('    print("sum"', "    wp.launch_tiled(gemm, dim=[1], inputs=[a, a], outputs=[c], "
                                 'block_dim=128, device="cpu")\n    print("sum"')  # fmt: skip
    (folder / "twice.py").write_text(text)
    modules = parsed(command("plan", folder / "twice.py", folder))["modules"]
    assert sorted(module["block_dim"] for module in modules) == [64, 128]
    assert {(m["block_dim"], v["threads"]) for m in modules for v in m["variants"]} == {(64, 64), (128, 128)}


def test_plan_of_a_generic_kernel_knows_the_launched_types(folder: Path) -> None:
    text = MAIN.replace("dtype=wp.float32)", "dtype=Any)", 3).replace(
        "import sys\n", "import sys\nfrom typing import Any\n"
    )
    (folder / "generic.py").write_text(text)
    (module,) = parsed(command("plan", folder / "generic.py", folder))["modules"]
    assert {v["a_dtype"] for v in module["variants"]} == {"float32"}
    assert len(module["variants"]) == 3


def test_plan_of_a_script_that_needs_its_results(folder: Path) -> None:
    (folder / "checks.py").write_text(WITHOUT_GUARD + "assert Path(sys.argv[1], 'sum').read_text() == '16384.0'\n")
    done = command("plan", folder / "checks.py", folder)
    assert len(parsed(done)["modules"][0]["variants"]) == 3
    assert "stopped early" in done.stderr
    assert "AssertionError" in done.stderr


def test_plan_of_a_script_without_the_gpu_it_wants(folder: Path) -> None:
    (folder / "cuda.py").write_text(WITHOUT_GUARD.replace('"cpu"', '"cuda:99"'))
    done = command("plan", folder / "cuda.py", folder)
    (module,) = parsed(done)["modules"]
    assert module["kernels"] == ["gemm"]
    assert module["block_dim"] == 256, "Warp's default: the launch was never reached"
    assert "stopped early" in done.stderr


def test_plan_of_a_script_without_kernels(folder: Path) -> None:
    (folder / "empty.py").write_text("print('nothing')\n")
    assert "no kernel was found" in refused(command("plan", folder / "empty.py"))


def test_plan_of_a_script_with_a_mistake(folder: Path) -> None:
    (folder / "mistake.py").write_text(MAIN.replace("B, shape=(16, 16)", "B, shape=(8, 16)"))
    done = command("plan", folder / "mistake.py", folder)
    assert done.returncode != 0
    assert "consistent for a matmul" in done.stderr


# ---- compile


def test_compile(folder: Path) -> None:
    (folder / "main.py").write_text(MAIN.replace("@wp.kernel", FORWARD_ONLY))
    first = parsed(command("compile", folder / "main.py", folder, "-o", folder / "out", cache=folder / "lto"))
    (module,) = first["modules"]
    assert set(module) >= COMPILE_FIELDS
    assert (module["name"], module["lto_builds"], module["lto_hits"]) == ("__main__", 1, 0)
    cubin = Path(module["cubin"])
    assert cubin.parent == folder / "out"
    assert cubin.stat().st_size == module["cubin_bytes"]
    assert module["lto_bytes"] > 1000
    assert module["seconds"] > 0
    assert any(name.startswith("gemm_") for name in cubin_symbols(cubin.read_bytes()).functions)
    assert [path.suffix for path in sorted((folder / "out").iterdir())].count(".meta") == 1
    assert not (folder / "sum").exists() or (folder / "sum").read_text() == "0.0", "nothing was launched"

    second = parsed(command("compile", folder / "main.py", folder, "-o", folder / "again", cache=folder / "lto"))
    (module,) = second["modules"]
    assert (module["lto_builds"], module["lto_hits"]) == (0, 1)
    assert Path(module["cubin"]).read_bytes() == cubin.read_bytes()


def test_compile_for_two_block_sizes(folder: Path) -> None:
    text = WITHOUT_GUARD.replace("@wp.kernel", FORWARD_ONLY).replace("(16, 16)", "(8, 8)")
    text = text.replace('    print("sum"', "    wp.launch_tiled(gemm, dim=[1], inputs=[a, a], outputs=[c], "
                        'block_dim=128, device="cpu")\n    print("sum"')  # fmt: skip
    (folder / "twice.py").write_text(text)
    done = command("compile", "--arch", "80", folder / "twice.py", folder, "-o", folder / "out", cache=folder / "lto")
    modules = parsed(done)["modules"]
    assert sorted(module["block_dim"] for module in modules) == [64, 128]
    assert len({module["cubin"] for module in modules}) == 2
    assert [(module["lto_builds"], module["arch"]) for module in modules] == [(1, 80), (1, 80)]


def test_compile_needs_a_folder(folder: Path) -> None:
    done = command("compile", folder / "main.py")
    assert done.returncode == 2
    assert "--output" in done.stderr


# ---- cache


def test_cache_info_and_list(filled: Path) -> None:
    info = parsed(command("cache", "info", cache=filled / "lto"))
    assert info["root"] == str(filled / "lto")
    assert (info["exists"], info["entries"], info["payloads"]) == (True, 3, 3)
    assert 0 < info["payload_bytes"] < info["size_bytes"] < info["max_bytes"]
    entries = parsed(command("cache", "list", cache=filled / "lto"))["entries"]
    assert len({entry["key"] for entry in entries}) == 3
    assert sum(entry["payload_bytes"] for entry in entries) == info["payload_bytes"]
    assert {entry["info"]["provider"] for entry in entries} == {"mma"}
    assert all(TileConfig.from_json(entry["info"]["tile_config"]) for entry in entries)
    used = [entry["used_at_ns"] for entry in entries]
    assert used == sorted(used, reverse=True)


def test_cache_keys_are_those_of_the_plan(filled: Path) -> None:
    (module,) = parsed(command("plan", filled / "main.py", filled, cache=filled / "lto"))["modules"]
    entries = parsed(command("cache", "list", cache=filled / "lto"))["entries"]
    assert {variant["key"] for variant in module["variants"]} == {entry["key"] for entry in entries}
    assert all(variant["cached"] for variant in module["variants"])


def test_cache_explain(filled: Path) -> None:
    entry = parsed(command("cache", "list", cache=filled / "lto"))["entries"][0]
    found = parsed(command("cache", "explain", entry["key"][:12], cache=filled / "lto"))
    assert found["key"] == entry["key"]
    for label in ("variant.m", "variant.threads", "compiler", "source", "option.arch", "translation_unit"):
        assert label in json.dumps(found["transcript"])
    table = command("cache", "explain", entry["key"], cache=filled / "lto", as_json=False)
    assert "variant.threads" in table.stdout


def test_cache_explain_of_a_key_that_is_not_stored(filled: Path) -> None:
    assert "0 stored keys begin with" in refused(command("cache", "explain", "0" * 64, cache=filled / "lto"))


def test_cache_verify_finds_and_removes_damage(filled: Path, tmp_path: Path) -> None:
    cache = copy_of(filled, tmp_path)
    report = parsed(command("cache", "verify", cache=cache))
    assert (report["checked"], report["sound"], report["damaged"]) == (3, 3, [])
    payload = max(cache.rglob("*.ltoir"), key=lambda path: path.stat().st_size)
    data = bytearray(payload.read_bytes())
    data[len(data) // 2] ^= 1
    payload.write_bytes(data)
    report = parsed(command("cache", "verify", cache=cache), status=1)
    assert report["damaged"]
    assert str(payload) in json.dumps(report["damaged"])
    assert parsed(command("cache", "verify", cache=cache))["damaged"] == [], "it was set aside"
    assert parsed(command("cache", "info", cache=cache))["quarantined"] == 1
    done = command("compile", filled / "main.py", filled, "-o", tmp_path / "out", cache=cache)
    (module,) = parsed(done)["modules"]
    assert (module["lto_builds"], module["lto_hits"]) == (1, 2), "and only it is built again"


def copy_of(filled: Path, folder: Path) -> Path:
    """A cache of one's own."""
    shutil.copytree(filled / "lto", folder / "lto")
    return folder / "lto"


def test_cache_export_and_import(filled: Path, tmp_path: Path) -> None:
    bundle, other = tmp_path / "bundle.tar", tmp_path / "other"
    exported = parsed(command("cache", "export", bundle, cache=filled / "lto"))
    assert (exported["added"], exported["skipped"]) == (3, [])
    assert bundle.stat().st_size > exported["payload_bytes"]
    assert parsed(command("cache", "import", bundle, cache=other))["added"] == 3
    again = parsed(command("cache", "import", bundle, cache=other))
    assert (again["added"], again["present"]) == (0, 3)
    lists = [parsed(command("cache", "list", cache=cache))["entries"] for cache in (filled / "lto", other)]
    keys = [{(entry["key"], entry["payload_sha256"]) for entry in entries} for entries in lists]
    assert keys[0] == keys[1]
    done = command("compile", filled / "main.py", filled, "-o", tmp_path / "out", cache=other)
    (module,) = parsed(done)["modules"]
    assert (module["lto_builds"], module["lto_hits"]) == (0, 3)


def test_cache_export_of_one_key(filled: Path, tmp_path: Path) -> None:
    key = parsed(command("cache", "list", cache=filled / "lto"))["entries"][0]["key"]
    parsed(command("cache", "export", tmp_path / "one.tar", "--key", key[:16], cache=filled / "lto"))
    parsed(command("cache", "import", tmp_path / "one.tar", cache=tmp_path / "other"))
    entries = parsed(command("cache", "list", cache=tmp_path / "other"))["entries"]
    assert [entry["key"] for entry in entries] == [key]


def test_cache_import_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "bundle.tar").write_bytes(b"not a bundle")
    refused(command("cache", "import", tmp_path / "bundle.tar", cache=tmp_path / "lto"))
    refused(command("cache", "import", tmp_path / "missing.tar", cache=tmp_path / "lto"))


def test_cache_gc_and_clear(filled: Path, tmp_path: Path) -> None:
    cache = copy_of(filled, tmp_path)
    kept = parsed(command("cache", "gc", "--max-size", "1GiB", cache=cache))
    assert kept["evicted"] == []
    largest = parsed(command("cache", "info", cache=cache))["size_bytes"] - 1
    evicted = parsed(command("cache", "gc", "--max-size", largest, cache=cache))["evicted"]
    assert 1 <= len(evicted) < 3
    assert parsed(command("cache", "info", cache=cache))["entries"] == 3 - len(evicted)
    parsed(command("cache", "clear", cache=cache))
    assert parsed(command("cache", "info", cache=cache))["entries"] == 0


def test_cache_gc_of_a_size_that_is_none(tmp_path: Path) -> None:
    assert "kB, MB, GB" in refused(command("cache", "gc", "--max-size", "many", cache=tmp_path / "lto"))


def test_an_empty_cache(tmp_path: Path) -> None:
    cache = tmp_path / "nothing"
    assert parsed(command("cache", "info", cache=cache))["exists"] is False
    assert parsed(command("cache", "list", cache=cache)) == {"entries": []}
    assert not cache.exists(), "looking makes no folder"


# ---- doctor and bad input


def test_doctor(tmp_path: Path) -> None:
    findings = {item["subject"]: item for item in parsed(command("doctor", cache=tmp_path / "lto"))["findings"]}
    assert set(findings) >= {"python", "platform", "warp", "seams", "toolchain", "headers", "gpu", "settings", "cache"}
    assert {item["state"] for item in findings.values()} <= {"ok", "note"}
    assert "NVRTC" in findings["toolchain"]["detail"]
    assert "nvidia-mathdx" in findings["headers"]["detail"]
    assert "tile_matmul" in findings["seams"]["detail"] or "build_lto_dot" in findings["seams"]["detail"]
    table = command("doctor", cache=tmp_path / "lto", as_json=False)
    assert table.returncode == 0
    assert "toolchain" in table.stdout


def test_doctor_refuses_a_cache_that_others_can_write(tmp_path: Path) -> None:
    cache = tmp_path / "lto"
    cache.mkdir()
    cache.chmod(0o777)
    findings = {item["subject"]: item for item in parsed(command("doctor", cache=cache), status=1)["findings"]}
    assert findings["cache"]["state"] == "problem"
    assert findings["cache"]["remedy"]
    shared = command("doctor", cache=cache, WARP_TILES_CACHE_SHARED="1")
    assert {item["subject"]: item["state"] for item in parsed(shared)["findings"]}["cache"] == "ok"


def test_doctor_without_headers(tmp_path: Path) -> None:
    # a cuda-pathfinder that finds nothing stands for an environment without the wheels
    (tmp_path / "sitecustomize.py").write_text(
        "import cuda.pathfinder as p\np.find_nvidia_header_directory = lambda name: None\n"
    )
    done = run_python(["-m", "warp_tiles", "doctor", "--json"], first_on_path=[tmp_path])
    findings = {item["subject"]: item for item in parsed(done)["findings"]}
    assert findings["toolchain"]["state"] == "ok"
    assert findings["headers"]["state"] == "note", "own templates need none"
    assert "the provider mma needs none, cublasdx is not available" in findings["headers"]["detail"]
    assert "pip install nvidia-cuda-nvcc-cu12" in findings["headers"]["remedy"]


# a cuda-pathfinder that finds no library stands for an environment without the compiler
NO_COMPILER = """
import cuda.pathfinder as p

def missing(name):
    raise p.DynamicLibNotFoundError(name)

p.load_nvidia_dynamic_lib = missing
"""


def test_doctor_without_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_COMPILER)
    done = run_python(["-m", "warp_tiles", "doctor", "--json"], first_on_path=[tmp_path])
    findings = {item["subject"]: item for item in parsed(done, status=1)["findings"]}
    assert findings["toolchain"]["state"] == "problem"
    assert "pip install nvidia-cuda-nvrtc-cu12" in findings["toolchain"]["remedy"]
    assert findings["headers"]["state"] == "ok"


@pytest.mark.parametrize(
    "words", [("plan", "x.py"), ("compile", "x.py", "-o", "out"), ("run", "x.py"), ("cache", "info")]
)
def test_an_unknown_variable(words: tuple[str, ...], tmp_path: Path) -> None:
    message = refused(command(*words, WARP_TILES_FOO="1"))
    assert "WARP_TILES_FOO" in message
    assert "WARP_TILES_PROVIDER" in message, "the valid ones are listed"


@pytest.mark.parametrize(
    ("variable", "value", "valid"),
    [
        ("WARP_TILES_PROVIDER", "cutlass", "auto, mma, cublasdx, libmathdx, scalar"),
        ("WARP_TILES_LINKER", "gold", "auto, own, warp"),
        ("WARP_TILES_CACHE_MAX_BYTES", "lots", "GiB"),
        ("WARP_TILES_JOBS", "-1", "whole number"),
    ],
)
def test_an_unknown_value(variable: str, value: str, valid: str) -> None:
    message = refused(command("cache", "info", **{variable: value}))
    assert variable in message
    assert repr(value) in message
    assert valid in message


def test_doctor_names_an_unknown_variable() -> None:
    done = command("doctor", WARP_TILES_FOO="1")
    assert done.returncode in (1, 2)
    assert "WARP_TILES_FOO" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("plan",), ("run",), ("compile", "-o", "out")])
def test_a_missing_script(words: tuple[str, ...], tmp_path: Path) -> None:
    message = refused(command(*words, tmp_path / "missing.py"))
    assert str(tmp_path / "missing.py") in message


def test_version_and_help() -> None:
    assert __version__ in run_python(["-m", "warp_tiles", "--version"]).stdout
    text = run_python(["-m", "warp_tiles", "--help"]).stdout
    assert all(name in text for name in ("run", "plan", "compile", "cache", "doctor"))


def test_the_plan_without_a_toolchain_says_so(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(NO_COMPILER)
    done = run_python(
        ["-m", "warp_tiles", "plan", "--json", str(folder / "main.py"), str(folder)],
        first_on_path=[folder],
        environment={"WARP_TILES_CACHE_DIR": str(folder / "lto")},
    )
    (module,) = parsed(done)["modules"]
    assert {variant["provider"] for variant in module["variants"]} == {"libmathdx"}
    assert all("NVRTC (libnvrtc) was found neither" in variant["reason"] for variant in module["variants"])


def test_without_headers_everything_is_built_by_mma(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text(
        "import cuda.pathfinder as p\np.find_nvidia_header_directory = lambda name: None\n"
    )
    words = ["-m", "warp_tiles", "compile", "--json", "-o", str(folder / "out"), str(folder / "main.py"), str(folder)]
    environment = {"WARP_TILES_CACHE_DIR": str(folder / "lto"), "WARP_CACHE_PATH": str(folder / "warp")}
    done = run_python(words, first_on_path=[folder], environment=environment)
    (module,) = parsed(done)["modules"]
    assert module["lto_builds"] == 3
    assert "RuntimeWarning" not in done.stderr


# ---- settings and policies


def test_settings_say_where_each_value_comes_from(folder: Path, tmp_path: Path) -> None:
    found = parsed(command("settings", WARP_TILES_POLICY="fast"))
    assert found["policy"] == {"value": "fast", "layer": "environment variable WARP_TILES_POLICY"}
    assert found["linker"] == {"value": "auto", "layer": "default"}
    table = command("settings", as_json=False, WARP_TILES_POLICY="fast").stdout
    assert "environment variable WARP_TILES_POLICY" in table


def test_a_plan_under_another_policy(folder: Path) -> None:
    done = command("plan", folder / "main.py", folder, "--policy", "scalar", WARP_TILES_POLICY="fast")
    (module,) = parsed(done)["modules"]
    assert module["policy"] == "scalar"
    assert {variant["provider"] for variant in module["variants"] if variant["needed"]} == {"scalar"}


def test_an_unknown_policy_lists_the_valid_ones(folder: Path) -> None:
    done = command("plan", folder / "main.py", "--policy", "quick", as_json=False)
    assert done.returncode == 2
    assert "'off', 'scalar', 'fast', 'auto', 'max', 'locked'" in done.stderr


def test_compile_under_the_policy_locked_is_a_check(filled: Path, tmp_path: Path) -> None:
    options = ("compile", filled / "main.py", filled, "--policy", "locked", "-o")
    (module,) = parsed(command(*options, tmp_path / "whole", cache=filled / "lto"))["modules"]
    assert (module["lto_builds"], module["lto_hits"]) == (0, 3)
    done = command(*options, tmp_path / "cold", cache=tmp_path / "empty", as_json=False)
    assert done.returncode == 2
    assert "needs 3 GEMM functions not in the cache" in done.stderr
    assert "warp-tiles cache import" in done.stderr
    assert not list((tmp_path / "cold").glob("*.cubin"))
