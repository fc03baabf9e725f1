"""``warp-tiles bundle --wheel``: a wheel of what scripts launch, and programs that start from an installed one."""

from __future__ import annotations

import base64
import csv
import dataclasses
import functools
import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

import pytest
import warp as wp
from click.testing import CliRunner

import warp_tiles
from benchmarks.stand_in import StandIn
from tests.integration.commands import command, json_of, usage_error
from tests.integration.helpers import REPOSITORY
from warp_tiles._warp import installed
from warp_tiles._warp.internals import find
from warp_tiles._warp.lookups import ModuleLookups
from warp_tiles._warp.modules import forget_modules
from warp_tiles.build.engine import Engine
from warp_tiles.build.warp_module import WarpOutput
from warp_tiles.cli import bundling, commands
from warp_tiles.cli.bundling import clients_of
from warp_tiles.compile.pool import CompilerPool
from warp_tiles.compile.toolchain import ToolchainFacts
from warp_tiles.errors import PlanError
from warp_tiles.gemm.rejected import Rejected
from warp_tiles.store import MODULES, packages
from warp_tiles.store.cache import Cache
from warp_tiles.store.key import Entry
from warp_tiles.util.warn import WarnedTexts

CLIENT = "wheel_client"
PLAIN = """
import warp as wp

@wp.kernel(enable_backward=False)
def plain(x: wp.array(dtype=float)):
    i = wp.tid()
    x[i] = x[i] * 3.0
"""
PRODUCT = """
import warp as wp

@wp.kernel(enable_backward=False)
def product(a: wp.array2d(dtype=float), c: wp.array2d(dtype=float)):
    t = wp.tile_load(a, shape=(16, 16))
    wp.tile_store(c, wp.tile_matmul(t, t))
"""
SCRIPT = """
import sys
import warp as wp
import wheel_client, wheel_client.tiles

x, a = wp.zeros(8, dtype=float, device="cpu"), wp.zeros((16, 16), dtype=float, device="cpu")
wp.launch(wheel_client.plain, dim=8, inputs=[x], device="cpu")
if sys.argv[1:] == ["all of it"]:
    wp.launch_tiled(wheel_client.tiles.product, dim=[1], inputs=[a, a], block_dim=64, device="cpu")
if sys.argv[1:] == ["fails"]:
    wp.launch(wheel_client.plain, dim=8, inputs=[x], device="cpu")
    raise ValueError("no results")
"""


@dataclass(frozen=True)
class Made:
    """A wheel of the client's kernels for sm_80 and sm_90, the JSON of its command, and where both are installed."""

    folder: Path
    wheel: Path
    printed: dict[str, Any]
    client: Path
    site: Path

    def bundle(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command in an environment with the client."""
        return command("bundle", *words, PYTHONPATH=self.python_path, WARP_TILES_JOBS="2", **environment)

    @property
    def python_path(self) -> str:
        return os.pathsep.join([str(self.client), str(REPOSITORY), os.environ["PYTHONPATH"]])

    def wheel_of(self, target: Path, archs: str = "80,90") -> subprocess.CompletedProcess[str]:
        """Make the wheel."""
        script = self.client / "script.py"
        return self.bundle("--wheel", "Client.kernels", "--arch", archs, "-o", target, script, f"{script} 'all of it'")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, toolchain: None) -> Made:
    top = tmp_path_factory.mktemp("wheel")
    client, site = top / "client", top / "site"
    for name, text in {
        f"{CLIENT}/__init__.py": PLAIN,
        f"{CLIENT}/tiles.py": PRODUCT,
        "script.py": SCRIPT,
        "wheel_client_dist-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: wheel-client-dist\nVersion: 2.0\n",
        "wheel_client_dist-2.0.dist-info/top_level.txt": f"{CLIENT}\n",
    }.items():
        path = client / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    nothing = Made(top, top, {}, client, site)
    printed = json_of(nothing.wheel_of(top / "out"))
    wheel = Path(printed["wheel"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return Made(top, wheel, printed, client, site)


# ---- the wheel


@pytest.mark.slow
def test_the_wheel_names_its_client_warp_and_platform(made: Made) -> None:
    warp = metadata.version("warp-lang")
    text = metadata.distribution("warp-lang").read_text("WHEEL") or ""
    (tag,) = {line.rpartition("-")[2] for line in text.splitlines() if line.startswith("Tag: ")}
    assert made.wheel.name == f"client_kernels-2.0+warp{warp}-py3-none-{tag}.whl"
    assert made.printed["requires"] == ["wheel-client-dist==2.0", f"warp-lang=={warp}", "warp-tiles"]
    (info,) = made.site.glob("*.dist-info")
    text = (info / "METADATA").read_text()
    assert f"Name: Client.kernels\nVersion: 2.0+warp{warp}\n" in text
    assert [line for line in text.splitlines() if line.startswith("Requires-Dist")] == [
        f"Requires-Dist: {item}" for item in made.printed["requires"]
    ]


@pytest.mark.slow
def test_the_record_has_every_file(made: Made) -> None:
    with zipfile.ZipFile(made.wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    *_, record = files
    rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(files[record].decode()))}
    assert record.endswith(".dist-info/RECORD")
    assert rows.pop(record) == ("", "")
    del files[record]
    assert rows.keys() == files.keys()
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        assert rows[name] == (f"sha256={digest}", str(len(data)))


@pytest.mark.slow
def test_the_wheel_holds_each_module_once_under_all_of_its_keys(made: Made) -> None:
    folder = made.site / "warp_tiles_kernels" / "client_kernels"
    index = json.loads((folder / "index.json").read_text())["body"]
    assert index["modules"] == {
        CLIENT: [[80, 256, False], [90, 256, False]],
        f"{CLIENT}.tiles": [[80, 64, True], [90, 64, True]],
    }
    keys = index["keys"]
    counts = {kind: rows.count(";") for kind, rows in keys.items()}
    assert counts == {"module": 8, "ltoir": 2}, "a start key and a content key of each module"
    assert len(index["payloads"].split(";")[:-1]) == len(list(folder.glob("*.xz"))) == 6, (
        "both keys of a module lead to one payload"
    )
    assert made.wheel.stat().st_size < 115_000
    assert str(made.folder).encode() not in b"".join(path.read_bytes() for path in made.site.rglob("*.json"))


@pytest.mark.slow
def test_equal_inputs_give_equal_bytes(made: Made, tmp_path: Path) -> None:
    again = Path(json_of(made.wheel_of(tmp_path))["wheel"])
    assert again.name == made.wheel.name
    assert again.read_bytes() == made.wheel.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(util.find_spec("pip") is None, reason="pip is missing")
def test_pip_installs_it_and_removes_all_of_it(made: Made, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(tmp_path / "env/bin/python")]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")

    def run(*words: object) -> None:
        subprocess.run([*pip, *map(str, words)], check=True, capture_output=True, env=clean)

    run("install", "--no-index", "--no-deps", made.wheel)
    found = packages.KernelPackages("auto", "", [str(site)]).found
    assert [one.title for one in found] == [f"Client.kernels 2.0+warp{metadata.version('warp-lang')}"]
    run("uninstall", "-y", "client-kernels")
    assert [path.name for path in site.rglob("*")] in ([], [packages.NAMESPACE]), "pip leaves the empty folder"


@pytest.mark.slow
def test_what_cannot_be_made(made: Made, tmp_path: Path) -> None:
    script = made.client / "script.py"
    for words, message in (
        (("--wheel", "../a", script), "names no distribution"),
        (("--wheel", "a", tmp_path / "none.py"), "there is no script"),
        (("--wheel", "a", "--block-dim", "64", script), "--block-dim does not go with --wheel"),
        ((script,), "give -o FILE"),
        (("-o", tmp_path / "b", "--client", "a", script), "--client goes with --wheel"),
    ):
        done = made.bundle(*words)
        assert message in done.stderr
        assert usage_error(done) if "--wheel" in message or "-o" in message else done.returncode == 2


def test_a_python_without_lzma_runs_no_script(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundling, "find_spec", {"_lzma": None}.get)
    done = CliRunner().invoke(commands, ["bundle", "--wheel", "a", "--arch", "90", str(made.client / "script.py")])
    assert "built without the module lzma" in str(done.exception)
    assert done.output == ""


@pytest.mark.slow
def test_a_script_that_stops_early_makes_no_wheel_unless_that_is_allowed(made: Made, tmp_path: Path) -> None:
    words = "--wheel", "a", "--arch", "90", "-o", tmp_path, f"{made.client / 'script.py'} fails"
    done = made.bundle(*words)
    assert done.returncode == 2
    assert "`warp-tiles warm` ended with status 2" in done.stderr
    assert not list(tmp_path.iterdir())
    assert len(json_of(made.bundle("--allow-incomplete", *words))["modules"]) == 1


def test_a_start_list_takes_the_place_of_a_script(made: Made, tmp_path: Path) -> None:
    start, cache = tmp_path / "start.json", str(tmp_path / "cache")
    words = "--arch", "90", "--start", start, made.client / "script.py", "all of it"
    warmed = json_of(command("warm", *words, PYTHONPATH=made.python_path, WARP_TILES_CACHE_DIR=cache))
    words = "--wheel", "a", "--arch", "90", "-o", tmp_path, start
    assert "does not say whose kernels it has" in made.bundle(*words).stderr
    named = "--client", "wheel-client-dist"
    assert "which takes no arguments" in made.bundle(*named, *words[:-1], f"{start} --size 4").stderr
    found: dict[str, set[str]] = {}
    for cache in ("empty", "cache"):
        printed = json_of(made.bundle(*named, *words, WARP_TILES_CACHE_DIR=str(tmp_path / cache)))
        assert {row["key"] for row in printed["modules"]} == {row["key"] for row in warmed["modules"]}
        with zipfile.ZipFile(printed["wheel"]) as archive:
            rows = json.loads(archive.read("warp_tiles_kernels/a/index.json"))["body"]["keys"]["module"]
        found[cache] = {row.partition(" ")[0] for row in rows.split(";") if row}
    contents = {row["key"] for row in printed["modules"]}
    assert found["empty"] == contents, "a list binds no start key"
    start_keys = found["cache"] - contents
    assert len(start_keys) == 2, "of the plain module, and of the one with products"
    for start_key in start_keys:
        bound = Cache(tmp_path / "cache", MODULES).manifest(start_key)
        assert bound is not None
        assert ("kind", "start of a module of Warp") in [(field.label, field.shown) for field in bound.key.fields]


def test_the_client_is_found_from_the_kernels() -> None:
    rows = [{"packages": ["__main__", "warp", "numpy"]}, {"packages": ["pytest", "warp_tiles"]}]
    versions = {name: metadata.version(name) for name in ("numpy", "pytest")}
    assert clients_of(rows, None) == versions
    assert clients_of(rows, "click") == {"click": metadata.version("click")}
    for wrong, client, message in (
        ([{"packages": ["no_such_package"]}], None, "of the packages no_such_package"),
        ([{"packages": ["__main__"]}], None, "of the scripts' kernels"),
        (rows, "no-such-distribution", "the distribution no-such-distribution is not installed"),
    ):
        with pytest.raises(PlanError, match=message):
            clients_of(wrong, client)


@pytest.mark.slow
@pytest.mark.skipif(util.find_spec("pip") is None, reason="pip is missing")
def test_the_script_for_ci_makes_a_wheel_and_checks_it(made: Made, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "warp-tiles"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m warp_tiles "$@"\n')
    program.chmod(0o755)
    search = os.pathsep.join([str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    script = REPOSITORY / "examples" / "deploy" / "kernel_wheel.sh"
    done = subprocess.run(
        ["sh", script, "client-kernels", made.client / "script.py", f"{made.client / 'script.py'} tiles"],
        cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": made.python_path, "PATH": search, "ARCHS": "90", "WARP_TILES_JOBS": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.rpartition(": ")[2][:9] for line in done.stdout.splitlines() if "present" in line] == ["1 present"] * 2
    assert len(list((tmp_path / "dist").glob("client_kernels-2.0+warp*.whl"))) == 1


# ---- a program with the installed wheel


@pytest.fixture
def program(made: Made, stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """A program that uses the client, on a fake GPU, with empty caches and the default settings."""
    monkeypatch.setattr(packages, "_said", WarnedTexts())
    for place in (made.site, made.client):
        monkeypatch.syspath_prepend(str(place))
    warp_tiles.disable()
    names = [CLIENT, f"{CLIENT}.tiles"]
    try:
        for name in names:
            import_module(name)
        with warp_tiles.override(cache_dir=tmp_path / "tiles", progress="off", jobs=2), warp_tiles.enabled():
            yield Program(stand_in, monkeypatch)
    finally:
        forget_modules(names)
        for name in names:
            sys.modules.pop(name, None)


class Program:
    """Loads the client's modules, and notes what is generated and what the compilers get."""

    def __init__(self, device: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = device
        self.generated: list[str] = []
        self.requests: list[str] = []
        builder, submit = find("context.ModuleBuilder"), CompilerPool.submit
        init = builder.__init__

        @functools.wraps(init)
        def begin(new: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            self.generated.append(module.name)
            init(new, module, *args, **kwargs)

        def send(pool: Any, request: Any, **named: Any) -> Any:
            self.requests.append(type(request).__name__)
            return submit(pool, request, **named)

        monkeypatch.setattr(builder, "__init__", begin)
        monkeypatch.setattr(CompilerPool, "submit", send)

    def load(self) -> dict[str, str]:
        """Load both modules. Returns where each record's module came from, without the version."""
        for name, threads in ((CLIENT, 256), (f"{CLIENT}.tiles", 64)):
            self.device.load(name, threads)
        generated = list(self.generated)
        records = [record for record in warp_tiles.report()["modules"] if "output" in record]
        self.generated[:] = generated  # a report plans the modules with products that were not generated
        return {record["name"]: record["kernel_package"].partition(" ")[0] for record in records}

    def start_keys(self) -> dict[str, str]:
        """What the records say of them, the newest of each module."""
        return {record["name"]: record["start_key"] for record in warp_tiles.report()["modules"] if "output" in record}

    def missed(self) -> list[str]:
        return [each["reason"].partition(": ")[2] for each in warp_tiles.report().get("not_in_kernel_packages", ())]


BOTH = {CLIENT: "Client.kernels", f"{CLIENT}.tiles": "Client.kernels"}


@pytest.mark.slow
def test_an_installed_module_is_neither_generated_nor_compiled_nor_linked(program: Program, tmp_path: Path) -> None:
    assert program.load() == BOTH
    assert program.generated == []
    assert program.requests == []
    assert program.missed() == []
    assert program.start_keys() == dict.fromkeys(BOTH, "found")
    assert not list((tmp_path / "tiles").rglob("*.cubin")), "nothing is copied"
    assert "2 cached, 2 of them from Client.kernels 2.0+warp" in installed().engine.log.summary()


@pytest.mark.slow
def test_the_binaries_are_those_that_this_machine_would_build(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for folder, chosen in ((tmp_path / "served", "auto"), (tmp_path / "built", "none")):
        monkeypatch.setattr(wp.config, "kernel_cache_dir", str(folder))
        with warp_tiles.override(kernel_packages=chosen, modules="all"):
            program.load()
        files.append({path.name: path.read_bytes() for path in folder.rglob("*.cubin")})
        for name in BOTH:
            wp.get_module(name).execs.clear()
    assert len(files[0]) == 2
    assert files[0] == files[1]
    assert program.requests, "the second ones were built"


TILES = f"{CLIENT}.tiles"
PRODUCT_ALONE = {TILES: "Client.kernels"}


@pytest.mark.slow
def test_a_module_with_another_start_key_is_found_by_its_source(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "99", "0"))
    assert program.load() == BOTH
    assert program.generated == [*BOTH]
    assert program.start_keys() == dict.fromkeys(BOTH, "missing")
    assert program.requests == []


@pytest.mark.slow
@pytest.mark.usefixtures("digesting")
def test_a_module_from_another_source_is_built(program: Program) -> None:
    wp.get_module(CLIENT).options["fast_math"] = True
    assert program.load() == PRODUCT_ALONE
    assert program.missed() == ["it has it from another source, or with other options or constants"]
    assert program.generated == [CLIENT]


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "a setting": lambda patch: patch.setenv("WARP_TILES_MAIN_LOOP", "double_buffered"),
    "a constant": lambda _: wp.get_module(TILES).options.update(max_unroll=3),
    "a device source": lambda patch: patch.setattr(Engine, "fingerprint", lambda *_: "of other sources"),
    "the linker": lambda patch: patch.setattr(ToolchainFacts, "linker_digest", lambda _: "another"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.usefixtures("digesting")
def test_a_module_with_products_is_generated_if_anything_differs(
    name: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    CHANGES[name](monkeypatch)
    program.load()
    assert program.generated == [TILES]


@pytest.mark.slow
@pytest.mark.parametrize("modules", ["auto", "all"])
@pytest.mark.usefixtures("digesting")
def test_what_a_package_lacks_is_built_as_without_it(modules: str, program: Program) -> None:
    program.device.arch = 86
    with warp_tiles.override(modules=modules):
        assert program.load() == {name: "" for name in BOTH if modules == "all" or name != CLIENT}
    assert program.missed() == ["it has it for sm_80, sm_90, and not for sm_86"] * 2
    assert ("WarpCompileRequest" in program.requests) == (modules == "all")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "served"),
    [
        ({"kernel_packages": "none"}, {TILES: ""}),
        ({"kernel_packages": "other"}, {TILES: ""}),
        ({"kernel_packages": ["other", "client_kernels"]}, BOTH),
        ({"modules": "tiles"}, PRODUCT_ALONE),
        ({"modules": "all"}, BOTH),
        ({"policy": "locked"}, BOTH),
        ({"policy": "off"}, {}),
    ],
)
@pytest.mark.usefixtures("digesting")
def test_settings_say_what_comes_from_packages(
    settings: dict[str, Any], served: dict[str, str], program: Program
) -> None:
    with warp_tiles.override(**settings):
        if settings == {"policy": "off"}:  # Warp builds products with libmathdx
            program.device.load(CLIENT, 256)
            assert warp_tiles.report()["modules"] == []
            return
        assert program.load() == served
    assert program.missed() == []


@pytest.mark.slow
@pytest.mark.usefixtures("digesting")
def test_damaged_files_cost_one_warning_and_nothing_else(
    program: Program, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = packages.read_bounded
    damage = lambda files, name, most: (real(files, name, most)[0][: None if name == "index.json" else -1], None)  # noqa: E731
    monkeypatch.setattr(packages, "read_bounded", damage)
    with pytest.warns(RuntimeWarning, match="What it does not serve is built") as caught:
        assert program.load() == {TILES: ""}
    assert len([one for one in caught if "kernel package" in str(one.message)]) == 1
    assert program.generated == [CLIENT, TILES]


@pytest.mark.slow
def test_a_module_that_no_package_names_is_not_looked_up(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("its start key takes time")

    monkeypatch.setattr(ModuleLookups, "start_key", refuse)
    found = {name: wp.get_module(name) for name in BOTH}
    found[CLIENT].name = "another"
    try:
        wp.get_module(CLIENT).load(program.device.alias, 256)
    finally:
        found[CLIENT].name = CLIENT
    assert program.generated == ["another"]


@pytest.mark.slow
def test_with_a_start_list_too_a_module_of_a_package_is_neither_generated_nor_compiled(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(number: int) -> bytes:
        warp_tiles.disable()
        monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path / str(number)))
        for name in BOTH:
            wp.get_module(name).execs.clear()
        with warp_tiles.enabled(start=tmp_path / "start.json"):
            served = program.load()
            start = installed().program_start
            assert start is not None
            assert (start.to_json()["compiled"], served) == (0, BOTH) or number == 2
        return (tmp_path / "start.json").read_bytes()

    lists = [run(0), run(1)]
    assert (program.generated, program.requests) == ([], [])
    (tmp_path / "start.json").unlink()
    with warp_tiles.override(kernel_packages="none"):
        lists.append(run(2))
    assert program.generated == [*BOTH], "these were built"
    assert lists[0] == lists[1] == lists[2], "the list is the one of a program that builds its modules"


@pytest.mark.slow
def test_an_entry_of_an_earlier_version_is_generated_for_a_start_list(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = WarpOutput.of

    def without_functions(entry: Entry | None) -> WarpOutput | None:
        return None if (found := of(entry)) is None else dataclasses.replace(found, linked=None)

    monkeypatch.setattr(WarpOutput, "of", without_functions)
    warp_tiles.disable()
    with warp_tiles.enabled(start=tmp_path / "start.json"):
        assert program.load() == BOTH
        not_asked = f"not asked: {Rejected('without_functions')}"
        assert program.start_keys() == {CLIENT: "found", TILES: not_asked}
    assert (program.generated, program.requests) == ([TILES], [])


@pytest.mark.slow
def test_a_module_of_a_cache_that_others_fill_has_another_name(program: Program, tmp_path: Path) -> None:
    """The cache is asked before the package, and Warp's folder must not keep the code of others under Warp's name."""
    names = []
    for shared in (False, True):
        with warp_tiles.override(cache_shared=shared):
            assert program.load() == BOTH
        names.append({path.name for path in (tmp_path / "kernels").rglob(f"wp_{CLIENT}_*.cubin")})
        for name in BOTH:
            wp.get_module(name).execs.clear()
    assert (len(names[0]), len(names[1])) == (1, 2)


@pytest.mark.slow
def test_doctor_and_plan_name_the_package(made: Made, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    warp_tiles.disable()

    def finding_of_doctor() -> dict[str, str]:
        found = json.loads(CliRunner().invoke(commands, ["doctor", "--json"]).stdout)["findings"]
        return next(finding for finding in found if finding["subject"] == "packages")

    finding = finding_of_doctor()
    assert finding["state"] == "ok"
    assert f"in {made.site}: 2 modules for sm_80, sm_90" in finding["detail"]
    path = os.pathsep.join([str(made.site), made.python_path])
    script = made.client / "script.py"
    for arch, text in ((90, "has this module"), (75, "lacks this module: it has it for sm_80, sm_90")):
        done = command("plan", "--arch", arch, script, "all of it", PYTHONPATH=path)
        plans = {module["name"]: module["kernel_package"] for module in json_of(done)["modules"]}
        assert text in plans[TILES]
    shown = command("plan", script, "all of it", as_json=False, PYTHONPATH=path).stdout
    assert "kernel package Client.kernels" in shown
    for place in ("first", "second"):
        shutil.copytree(made.site / packages.NAMESPACE, made.folder / place / packages.NAMESPACE)
        monkeypatch.syspath_prepend(str(made.folder / place))
    finding = finding_of_doctor()
    assert finding["state"] == "note"
    assert "has 8 keys of modules that" in finding["detail"]
