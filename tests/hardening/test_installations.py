"""Packages outside site-packages; without the compiler another provider, with a warning of its cost, or an error."""

import functools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import warp as wp
from click.testing import CliRunner

import warp_tiles
from tests.integration.helpers import gemm, load
from tests.integration.solvers import solver
from tests.integration.test_hash import COPY
from warp_tiles._warp.internals import find
from warp_tiles.cli import commands
from warp_tiles.cli.script import Script, discover
from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import LockedError, ToolchainError, WarpTilesError

# ---- packages of `pip install --target`

SEARCHED = ("CUDA_HOME", "CUDA_PATH", "MATHDX_HOME", "CONDA_PREFIX", "LD_LIBRARY_PATH", "PYTHONHOME")
# with -S, the interpreter below a virtual environment knows no site-packages
INTERPRETER = [getattr(sys, "_base_executable", sys.executable), "-S"]


def link_packages(folder: Path, wanted: Callable[[str], bool]) -> Path:
    """Link the installed packages with wanted names of files and folders into a folder, with this checkout."""
    folder.mkdir()
    (folder / "warp_tiles").symlink_to(Path(warp_tiles.__file__).resolve().parent)
    for place in filter(os.path.isdir, sys.path):
        if not place.endswith(("site-packages", "dist-packages")):
            continue
        for item in Path(place).iterdir():
            if wanted(item.name) and item.suffix != ".pth" and not (folder / item.name).exists():
                (folder / item.name).symlink_to(item)
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is installed like by `pip install --target`."""
    return link_packages(tmp_path_factory.mktemp("installation") / "target", lambda name: True)


def run(command: Sequence[str], path: Path, **environment: str) -> str:
    """Standard output of Python with a PYTHONPATH, and without other places to find a toolchain."""
    inherited = {name: value for name, value in os.environ.items() if name not in SEARCHED}
    done = subprocess.run(
        command, env={**inherited, "PYTHONPATH": str(path), **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "RuntimeWarning" not in done.stderr
    return done.stdout


COMPILE = """
import json, os, sys
from pathlib import Path
import warp_tiles
sys.path.append(sys.argv[1])
from warp_tiles.compile.compiler import CompileRequest, LinkRequest
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.compile.find import find_toolchain

found = find_toolchain()
with CompilerPool(1, libraries=found.paths) as pool:
    request = CompileRequest("f.cu", 'extern "C" __global__ void f(int* x) { *x = 1; }', ("-arch=sm_90",), (), "f")
    compiled = pool.submit(request).result()
    linked = pool.submit(LinkRequest("f", (compiled.payload,), "sm_90", "cubin")).result()
    maps = Path(f"/proc/{pool._processes[0]._process.pid}/maps").read_text()
libraries = {line.split()[-1] for line in maps.splitlines() if "libnvrtc.so" in line or "libnvJitLink.so" in line}
print(json.dumps([linked.payload[:4].hex(), sorted(libraries), [str(found.nvrtc), str(found.nvjitlink)]]))
"""


@pytest.mark.parametrize("safe_path", ["", "1"])
def test_a_compiler_process_has_the_libraries_of_a_folder_added_at_run_time(
    target: Path, tmp_path: Path, safe_path: str
) -> None:
    plain = link_packages(tmp_path / "plain", lambda name: not name.startswith("nvidia"))
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "nvidia").symlink_to(target / "nvidia")
    magic, loaded, found = json.loads(run([*INTERPRETER, "-c", COMPILE, str(wheels)], plain, PYTHONSAFEPATH=safe_path))
    assert bytes.fromhex(magic) == b"\x7fELF"
    assert all(Path(path).is_relative_to(wheels) for path in found)
    assert loaded == sorted(str(Path(path).resolve()) for path in found)


SCRIPT = f"""
import warnings
import warp as wp
{{filter}}
{gemm(decorator="@wp.kernel(enable_backward=False)")}
a = wp.zeros((16, 16), dtype=wp.float32, device="cpu")
wp.launch_tiled(gemm, dim=[1], inputs=[a, a], outputs=[a], block_dim=64, device="cpu")
"""


@pytest.mark.slow
def test_a_module_is_compiled_by_own_templates(target: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(filter=""))
    words = ["-m", "warp_tiles", "compile", "--json", "-o", str(tmp_path / "out"), str(tmp_path / "script.py")]
    caches = {"WARP_TILES_CACHE_DIR": str(tmp_path / "lto"), "WARP_CACHE_PATH": str(tmp_path / "warp")}
    (module,) = json.loads(run([*INTERPRETER, *words], target, **caches))["modules"]
    assert module["lto_builds"] == 1
    assert max(module["lto_bytes"], module["cubin_bytes"]) < 100_000, "libmathdx needs megabytes"


# ---- without the compiler


@pytest.fixture
def no_toolchain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """A machine without NVRTC, whose libmathdx and whose own compiler do nothing. Yields the builds of libmathdx."""
    built: list[str] = []

    def missing(store: ToolchainFacts) -> None:
        raise ToolchainError("NVRTC was not found", remedy="install it")

    build = find("build")

    @functools.wraps(build.build_lto_dot)  # warp_tiles checks the signatures
    def build_lto_dot(M: int, N: int, K: int, *rest: Any, **_: Any) -> tuple[str, bytes]:
        built.append(f"{M}x{N}x{K}")
        return f"dot_{M}_{N}_{K}", b"LTO-IR"

    @functools.wraps(build.build_cuda)
    def build_cuda(cu_path: str, arch: int, output_path: str, **keywords: Any) -> None:
        Path(output_path).touch()

    warp_tiles.disable()
    monkeypatch.setattr(ToolchainFacts, "toolchain", missing)
    monkeypatch.setattr(build, "build_lto_dot", build_lto_dot)
    monkeypatch.setattr(build, "build_cuda", build_cuda)
    with warp_tiles.override(cache_dir=tmp_path / "lto", progress="off"):
        yield built
    warp_tiles.disable()


def planned(text: str, folder: Path) -> warp_tiles.ModulePlan:
    return warp_tiles.plan(load(text), arch=90)


def compiled(text: str, folder: Path, **options: Any) -> Path:
    (cubin,) = wp.compile_aot_module(load(text, **options), arch=90, module_dir=folder)
    return Path(cubin)


@pytest.mark.parametrize(
    ("block_dim", "instead"),
    [
        (64, "functions in the module's source, which Warp compiles with the module, without a limit of registers"),
        (48, "Warp's libmathdx, which takes 5 to 18 s and 1 to 7 MB of LTO-IR for each function"),
    ],
)
def test_compile_warns_of_what_replaces_nvrtc_and_its_cost(
    block_dim: int, instead: str, no_toolchain: list[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    text = SCRIPT.format(filter="warnings.simplefilter('ignore')")
    script.write_text(text.replace("block_dim=64", f"block_dim={block_dim}"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = CliRunner().invoke(commands, ["compile", "-o", str(tmp_path / "out"), str(script)])
    assert done.exit_code == 0, done.output
    assert no_toolchain == (["16x16x16"] if block_dim == 48 else [])
    (text,) = (str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning))
    assert text == f"warp_tiles: NVRTC was not found; using {instead}. Remedy: install it"


def test_a_script_has_no_effect_on_the_filters_of_warnings(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(filter="warnings.simplefilter('ignore'); warnings.showwarning = print"))
    before = list(warnings.filters), warnings.showwarning
    discover(Script(str(script)))
    assert (warnings.filters, warnings.showwarning) == before


@pytest.mark.parametrize(("policy", "error"), [("fast", ToolchainError), ("locked", LockedError)])
@pytest.mark.parametrize("text", [gemm(), solver("tile_lower_solve")], ids=["product", "solver"])
@pytest.mark.parametrize("use", [planned, compiled])
def test_fast_and_locked_need_the_toolchain(
    policy: str, error: type[WarpTilesError], text: str, use: Callable[[str, Path], object], no_toolchain: list[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    with warp_tiles.enabled(), warp_tiles.override(policy=policy), pytest.raises(error) as caught:
        use(text, tmp_path)
    assert "NVRTC was not found" in caught.value.message
    assert f"the setting policy (override()) is {policy!r}" in caught.value.message
    assert caught.value.remedy.startswith("install it; ")
    assert no_toolchain == []


@pytest.mark.parametrize("policy", ["fast", "locked"])
def test_modules_without_functions_and_a_cpu_need_no_toolchain(
    policy: str, no_toolchain: list[str], tmp_path: Path
) -> None:
    module = load(gemm(decorator="@wp.kernel(enable_backward=False)"))
    with warp_tiles.enabled(), warp_tiles.override(policy=policy):
        assert compiled(COPY, tmp_path / "copy").exists()
        # 16 threads are too few for every function
        assert compiled(gemm(), tmp_path / "few", block_dim=16).exists()
        found = warp_tiles.plan(load(gemm()), arch=None)
        assert {planned.provider for planned in found.needed} <= {"scalar"}
        a, c = wp.full((16, 16), 2.0, dtype=wp.float32, device="cpu"), wp.zeros((16, 16), device="cpu")
        wp.launch_tiled(module.gemm, dim=[1], inputs=[a, a], outputs=[c], block_dim=64, device="cpu")
    assert float(c.numpy()[3, 5]) == 64.0
    assert no_toolchain == []


@pytest.mark.parametrize("policy", ["scalar", "off"])
def test_scalar_and_off_need_no_toolchain(policy: str, no_toolchain: list[str], tmp_path: Path) -> None:
    with warp_tiles.enabled(), warp_tiles.override(policy=policy), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(gemm(), tmp_path).exists()
    assert bool(no_toolchain) == (policy == "off")


def test_only_the_users_own_choice_of_fast_needs_the_toolchain(no_toolchain: list[str], tmp_path: Path) -> None:
    # this module has the limits of `fast`, but no layer has set that policy
    opted_out = {"enable_mathdx_gemm": False, "warp_tiles_mathdx_opt_out": "own"}
    with (
        warp_tiles.enabled(),
        pytest.warns(RuntimeWarning, match="NVRTC was not found; using functions in the module's"),
    ):
        compiled(gemm(), tmp_path, **opted_out)
    with warp_tiles.enabled(), warp_tiles.override(policy="fast"), pytest.raises(ToolchainError):
        compiled(gemm(), tmp_path, **opted_out)
