"""Empty caches under concurrency: every key is built once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.helpers import FORWARD_ONLY, gemm
from tests.interpreter import REPOSITORY, python

PROCESSES = 2

# compiles the kernels of a file after a line on standard input, and prints the record
WORKER = """
import json, sys
from pathlib import Path
import warp as wp
import warp_tiles
sys.path.insert(0, sys.argv[1])
import kernels
wp.set_module_options({"block_dim": 64}, module=kernels)
warp_tiles.enable()
with warp_tiles.override(cache_dir=Path(sys.argv[2]), jobs=1):
    warp_tiles.plan(kernels, arch=90)
    print("ready", file=sys.stderr, flush=True)
    sys.stdin.readline()
    wp.compile_aot_module(kernels, arch=90, module_dir=Path(sys.argv[3]), use_ptx=False)
    (record,) = [module for module in warp_tiles.report()["modules"] if module["builds"]]
print("record " + json.dumps(record))
"""


@pytest.mark.slow
def test_processes_on_a_cold_cache_build_every_key_once(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("import warp as wp\n\n" + gemm(m=8, n=16, k=24))
    (tmp_path / "worker.py").write_text(WORKER)
    arguments = [sys.executable, str(tmp_path / "worker.py"), str(tmp_path), str(tmp_path / "lto")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    started = [
        subprocess.Popen([*arguments, str(tmp_path / str(number))], text=True, cwd=REPOSITORY, env=environment, **pipes)
        for number in range(PROCESSES)
    ]
    records: list[dict[str, Any]] = []
    try:
        for process in started:  # all processes plan before any builds
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            assert any(line.strip() == "ready" for line in lines), f"exit status {process.wait()}"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in started:
            output, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
            (line,) = (text for text in output.splitlines() if text.startswith("record "))
            records.append(json.loads(line.removeprefix("record ")))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    assert [record["lto_builds"] + record["lto_hits"] for record in records] == [3] * PROCESSES
    assert sum(record["lto_builds"] for record in records) == 3
    built = [build["key"] for record in records for build in record["builds"] if not build["hit"]]
    assert len(set(built)) == 3
    sizes = {(build["key"], build["lto_bytes"]) for record in records for build in record["builds"]}
    assert len(sizes) == 3, "all processes link the same LTO-IR"


@pytest.mark.slow
def test_the_users_executor_compiles(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text("import warp as wp\n\n" + gemm(m=8, n=8, k=8, decorator=FORWARD_ONLY))
    script = f"""
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

if __name__ == "__main__":
    import warp as wp
    import warp_tiles
    sys.path.insert(0, {str(tmp_path)!r})
    import kernels
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        warp_tiles.enable(executor=executor)
        with warp_tiles.override(cache_dir=Path({str(tmp_path / "lto")!r})):
            wp.compile_aot_module(kernels, arch=90, module_dir=Path({str(tmp_path / "out")!r}), use_ptx=False)
        (record,) = warp_tiles.report()["modules"]
        warp_tiles.disable()
        assert executor.submit(int, "7").result() == 7, "the executor belongs to the user"
    print("counts", record["lto_builds"], record["linker"])
"""
    (tmp_path / "script.py").write_text(script)
    done = python(tmp_path / "script.py")
    assert done.returncode == 0, done.stderr
    assert "counts 1 warp_tiles" in done.stdout


@pytest.mark.slow
def test_a_script_without_a_main_guard_compiles(tmp_path: Path) -> None:
    # worker processes must not import the script again
    marker = tmp_path / "imports"
    (tmp_path / "script.py").write_text(f"""
import warp as wp
import warp_tiles

with open({str(marker)!r}, "a") as file:
    file.write("x")
warp_tiles.enable()

{gemm(m=8, n=8, k=8, decorator=FORWARD_ONLY)}
wp.compile_aot_module(__name__, arch=90, module_dir={str(tmp_path / "out")!r}, use_ptx=False)
print("linked by", warp_tiles.report()["modules"][0]["linker"])
""")
    done = python(tmp_path / "script.py", WARP_TILES_CACHE_DIR=str(tmp_path / "lto"))
    assert "linked by warp_tiles" in done.stdout
    assert marker.read_text() == "x"
