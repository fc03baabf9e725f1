"""Other supported Warp versions, each installed into its own folder.

``nox -s warp`` runs the other integration tests with them. These tests are part of every test run.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.helpers import gemm
from tests.integration.solvers import solver
from tests.interpreter import REPOSITORY, python
from tests.loop_forms import SPELLINGS
from tests.nightly import some

SCRIPT = """
import json, sys
import warp as wp
import warp_tiles
from tests.integration.helpers import load
from tests.loop_forms import SPELLINGS
from tests.recorded.recorded_kernels import arguments_on, arrays_of, launched_by_warp, weighted

{kernel}
recorded = []
for is_taped in (True, False):
    arguments, pair = arguments_on("cpu"), warp_tiles.record(weighted, 2, arguments_on("cpu"), device="cpu")
    for name, value in zip(pair.names, arguments):
        pair.set(name, value)
    weighted.module.mark_modified()
    with wp.Tape() as tape:
        pair.forward()
    if is_taped:
        tape.backward(grads={{arguments[3]: wp.ones_like(arguments[3])}})
    else:
        arguments[3].grad.fill_(1.0)
        pair.adjoint()
    recorded.append(arrays_of(arguments) == launched_by_warp("cpu"))
warp_tiles.enable()
plan = warp_tiles.plan(__name__, arch=90, block_dim=64)
wp.set_module_options({{"block_dim": 64}})
for folder in sys.argv[1:]:
    (cubin,) = wp.compile_aot_module(__name__, arch=90, module_dir=folder, use_ptx=False)
    open(cubin, "rb").read().index(b"gemm_")
records = [module for module in warp_tiles.report()["modules"] if module["builds"]]
plans = {{name: warp_tiles.plan(load(form.text), arch=90, block_dim=64) for name, form in SPELLINGS.items()}}
print("result " + json.dumps({{
    "version": wp.__version__,
    "path": wp.__file__,
    "recorded": [*recorded, type(pair._forward).__name__],
    "roles": [planned.role.value for planned in plan.needed],
    "counts": [[record["lto_builds"], record["lto_hits"], record["linker"]] for record in records],
    "loops": {{name: [loop.state for loop in plan.loops] for name, plan in plans.items()}},
}}))
"""
# parts of pip's messages if no package index is reachable
UNREACHABLE = ("connection", "name resolution", "proxy", "no matching distribution", "timed out", "network")


def install(version: str, folder: Path) -> None:
    """Install a Warp into a folder, without its dependencies, which are installed already."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed here")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--retries", "1", "--timeout", "20", "--target", str(folder), f"warp-lang=={version}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    if done.returncode and any(word in done.stderr.lower() for word in UNREACHABLE):
        pytest.skip(f"no package index with warp-lang {version} is reachable: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=some(["1.17.0", "1.18.0"], 1))
def other_warp(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The version of another Warp, and its folder."""
    folder = tmp_path_factory.mktemp("packages")
    install(request.param, folder)
    return request.param, folder


@pytest.mark.slow
def test_another_warp_records_launches_plans_builds_links_and_pipelines_every_spelling(
    other_warp: tuple[str, Path], tmp_path: Path
) -> None:
    version, packages = other_warp
    path = os.pathsep.join([str(packages), str(REPOSITORY), os.environ["PYTHONPATH"]])
    caches = {"WARP_TILES_CACHE_DIR": str(tmp_path / "lto"), "WARP_CACHE_PATH": str(tmp_path / "warp")}
    (tmp_path / "script.py").write_text(SCRIPT.format(kernel=gemm(m=8, n=16, k=24) + solver("tile_lower_solve")))
    done = python(tmp_path / "script.py", tmp_path / "cold", tmp_path / "warm", PYTHONPATH=path, **caches)
    (line,) = (text for text in done.stdout.splitlines() if text.startswith("result "))
    result = json.loads(line.removeprefix("result "))
    assert result["version"] == version
    assert Path(result["path"]).is_relative_to(packages)
    assert result["recorded"] == [True, True, "_CpuLaunch"]
    assert result["roles"] == ["forward", "adjoint_a", "adjoint_b", "forward", "adjoint"]
    assert result["counts"] == [[5, 0, "warp_tiles"], [0, 5, "warp_tiles"]]
    assert result["loops"] == {name: ["pipelined"] for name in SPELLINGS}
