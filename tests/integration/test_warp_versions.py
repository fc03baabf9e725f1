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

from tests.integration.helpers import gemm, run_python
from tests.integration.solvers import solver
from tests.loop_forms import SPELLINGS
from tests.nightly import some

SCRIPT = """
import json, sys
import warp as wp
import warp_tiles

{kernel}
warp_tiles.enable()
plan = warp_tiles.plan(__name__, arch=90, block_dim=64)
wp.set_module_options({{"block_dim": 64}})
for folder in sys.argv[1:]:
    (cubin,) = wp.compile_aot_module(__name__, arch=90, module_dir=folder, use_ptx=False)
    open(cubin, "rb").read().index(b"gemm_")
records = [module for module in warp_tiles.report()["modules"] if module["builds"]]
print("result " + json.dumps({{
    "version": wp.__version__,
    "path": wp.__file__,
    "roles": [planned.role.value for planned in plan.needed],
    "counts": [[record["lto_builds"], record["lto_hits"], record["linker"]] for record in records],
}}))
"""
RECORDED = """
import warp as wp
import warp_tiles

@wp.kernel
def scaled(x: wp.array(dtype=wp.float32), s: wp.float32, out: wp.array(dtype=wp.float32)):
    i = wp.tid()
    out[i] = s * x[i]

x, other, out = (wp.full(2, value, dtype=wp.float32, device="cpu", requires_grad=True) for value in (1.0, 5.0, 0.0))
pair = warp_tiles.record(scaled, 2, [x, 3.0], [out], device="cpu")
with wp.Tape() as tape:
    pair.forward()
tape.backward(grads={out: wp.ones_like(out)})
found = [out.numpy()[0], x.grad.numpy()[1]]
pair.set("x", other)
pair.set("s", 4.0)
scaled.module.mark_modified()
pair.forward()
out.grad.fill_(1.0)
pair.adjoint()
print("result", wp.__version__, *found, out.numpy()[1], other.grad.numpy()[0], type(pair._forward).__name__)
"""
LOOPS = """
import json
import warp as wp
import warp_tiles
from tests.integration.helpers import load
from tests.loop_forms import SPELLINGS

warp_tiles.enable()
plans = {name: warp_tiles.plan(load(form.text), arch=90, block_dim=64) for name, form in SPELLINGS.items()}
states = {name: [loop.state for loop in plan.loops] for name, plan in plans.items()}
print("result " + json.dumps([wp.__version__, states]))
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


def result_of(packages: Path, folder: Path, *arguments: str) -> str:
    """What a Python process prints after ``result``, with the Warp of a folder."""
    caches = {"WARP_TILES_CACHE_DIR": str(folder / "lto"), "WARP_CACHE_PATH": str(folder / "warp")}
    done = run_python(arguments, first_on_path=[packages], environment=caches)
    assert done.returncode == 0, done.stderr
    (line,) = (text for text in done.stdout.splitlines() if text.startswith("result "))
    return line.removeprefix("result ")


@pytest.mark.slow
@pytest.mark.slow
def test_another_warp_records_launches(other_warp: tuple[str, Path], tmp_path: Path) -> None:
    version, packages = other_warp
    (tmp_path / "script.py").write_text(RECORDED)
    result = result_of(packages, tmp_path, str(tmp_path / "script.py"))
    assert result.split() == [version, "3.0", "3.0", "20.0", "4.0", "_CpuLaunch"]


@pytest.mark.slow
@pytest.mark.slow
def test_another_warp_pipelines_every_spelling(other_warp: tuple[str, Path], tmp_path: Path) -> None:
    version, packages = other_warp
    result = result_of(packages, tmp_path, "-c", LOOPS)
    assert json.loads(result) == [version, {name: ["pipelined"] for name in SPELLINGS}]


@pytest.mark.slow
@pytest.mark.slow
def test_another_warp_plans_builds_and_links(other_warp: tuple[str, Path], tmp_path: Path) -> None:
    version, packages = other_warp
    (tmp_path / "script.py").write_text(SCRIPT.format(kernel=gemm(m=8, n=16, k=24) + solver("tile_lower_solve")))
    outputs = [str(tmp_path / name) for name in ("cold", "warm")]
    result = json.loads(result_of(packages, tmp_path, str(tmp_path / "script.py"), *outputs))
    assert result["version"] == version
    assert Path(result["path"]).is_relative_to(packages)
    assert result["roles"] == ["forward", "adjoint_a", "adjoint_b", "forward", "adjoint"]
    assert result["counts"] == [[5, 0, "warp_tiles"], [0, 5, "warp_tiles"]]
