"""Start lists in commands: ``run`` keeps them, and ``warm`` compiles and pushes their modules."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import warp_tiles
from tests.integration.builds import TINY
from tests.integration.commands import command
from tests.integration.helpers import load
from tests.nightly import some
from tests.store.warp_modules import compiled, entries, records, rewrite, text, warm
from warp_tiles.build.start_list import read_start_list
from warp_tiles.cli import commands
from warp_tiles.errors import RemoteError
from warp_tiles.store import start_file
from warp_tiles.store.keys import SigningKey

pytestmark = pytest.mark.usefixtures("without_gpus")
SCRIPT = """
import warp as wp
{kernel}
if __name__ == "__main__":
    wp.compile_aot_module(wp.get_module("__main__"), arch=90, module_dir={folder!r})
"""


def run(folder: Path, script: str, *options: str, **environment: str) -> str:
    """Run a script under ``warp-tiles run``, with a cache in its folder. Returns what it prints."""
    (folder / "script.py").write_text(script)
    words = "run", *options, folder / "script.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = command(*words, cache=folder / "cache", as_json=False, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("by", some(["a setting", "a store"], 1, "slow"))
def test_run_keeps_a_list_for_each_script(by: str, tmp_path: Path) -> None:
    asks = {"WARP_TILES_MODULES": "all"} if by == "a setting" else {"WARP_TILES_REMOTE": (tmp_path / "store").as_uri()}
    (tmp_path / "store").mkdir()
    run(tmp_path, SCRIPT.format(kernel=text(), folder=str(tmp_path / "out")), **asks)
    kept = start_file(tmp_path / "cache", tmp_path / "script.py")
    assert [module.name for module in read_start_list(kept).modules] == ["__main__"]


@pytest.mark.parametrize(
    ("option", "kept"), some([(("--start", "given.json"), "given"), ((), "script"), (("--no-start",), "")], 1, "slow")
)
def test_a_script_may_name_its_list_under_run(option: tuple[str, ...], kept: str, tmp_path: Path) -> None:
    enable = "\nimport warp_tiles\nwarp_tiles.enable(start='script.json')\n"
    run(tmp_path, enable + SCRIPT.format(kernel=text(), folder=str(tmp_path / "out")), *option)
    assert [path.stem for path in tmp_path.glob("*.json")] == [kept][: bool(kept)]
    assert not list((tmp_path / "cache").glob("starts/*.json"))


def test_a_record_that_no_gpu_fills_is_said(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('it ran')\n")
    script, start = tmp_path / "script.py", tmp_path / "given.json"
    done = command("run", "--start", start, script, as_json=False, CUDA_VISIBLE_DEVICES="")
    assert "it ran\n" in done.stdout
    assert f"`warp-tiles warm --arch 90 --start {start} {script}`" in done.stderr
    assert not start.exists()
    assert "has no GPU" not in command("run", script, as_json=False, CUDA_VISIBLE_DEVICES="").stderr


# ---- warp-tiles warm


def rows_of(*arguments: object, **given: Any) -> list[dict[str, Any]]:
    """What ``warp-tiles warm`` says about each module."""
    found: list[dict[str, Any]] = json.loads(warm("--json", *arguments, **given))["modules"]
    return found


@pytest.mark.slow
def test_warm_compiles_a_record_for_several_architectures(recorded: Any, tmp_path: Path, toolchain: None) -> None:
    file = recorded("first", load(text()))
    record = read_start_list(file)
    (kept,) = record.modules
    clustered = dataclasses.replace(kept, name="clustered", source=f"// WP_CLUSTER_DIMS(2, 1, 1)\n{kept.source}")
    broken = dataclasses.replace(kept, name="broken", source="nonsense")
    rewrite(file, broken, kept, clustered)
    cache = tmp_path / "other" / "cache"
    rows = rows_of("--arch", "80,90", "--record", file, status=1, WARP_TILES_CACHE_DIR=cache)
    states = {(row["module"], row["arch"]): row["state"] for row in rows}
    assert states == {
        ("broken", 80): "failed", ("broken", 90): "failed", (kept.name, 80): "compiled", (kept.name, 90): "compiled",
        ("clustered", 80): "left out", ("clustered", 90): "compiled",
    }  # fmt: skip
    assert sorted(found["target"] for found in entries(tmp_path / "other")) == [
        ".sm_80.cubin", ".sm_90.cubin", ".sm_90.cubin",
    ]  # fmt: skip
    file.write_bytes(record.to_bytes())
    assert "1 present" in warm("--arch", "80", "--record", file, WARP_TILES_CACHE_DIR=cache)


def test_a_start_without_an_option_finds_what_a_list_has_compiled(recorded: Any, toolchain: None) -> None:
    plain, product = load(text()), load(TINY)
    file, cache = recorded("first", plain, product), recorded.folder / "other" / "cache"
    with warp_tiles.override(cache_dir=cache), warp_tiles.enabled():
        compiled(plain, recorded.folder / "before")
        assert not records(), "nothing was kept, so nothing is looked up"
    warm("--record", file, WARP_TILES_CACHE_DIR=cache)
    for modules, found in (("auto", [True, True]), ("tiles", [True])):
        with warp_tiles.override(cache_dir=cache, modules=modules), warp_tiles.enabled():
            for module in (plain, product):
                compiled(module, recorded.folder / modules / module.__name__)
            assert [record["found"] for record in records()] == found
    with warp_tiles.override(cache_dir=cache), warp_tiles.enabled():
        compiled(load(text(4)), recorded.folder / "another")
        assert not records(), "what is not there is left to Warp"
    assert len(entries(recorded.folder / "other")) == 3, "a list binds no start key, a lookup keeps nothing, tiles does"


def test_warm_pushes_what_it_is_asked_to(recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warp_tiles.store.remote.SLOW_S", 20.0)  # a loaded machine may answer late
    file, store, key = recorded("first", load(text())), tmp_path / "store", tmp_path / "key.pem"
    store.mkdir()
    assert CliRunner().invoke(commands, ["keys", "new", "-o", str(key)]).exit_code == 0
    given = {"WARP_TILES_REMOTE": store.as_uri(), "WARP_TILES_SIGNING_KEY": key}
    warm("--record", file, WARP_TILES_CACHE_DIR=tmp_path / "a", **given)
    assert not list(store.rglob("*"))
    assert "1 pushed" in warm("--push", "--record", file, WARP_TILES_CACHE_DIR=tmp_path / "a", **given)
    (module,) = rows_of("--record", file, WARP_TILES_CACHE_DIR=tmp_path / "b", **given)
    assert module["state"] == "present"
    assert [path.name for path in store.rglob("*") if path.is_file()] == [module["key"]]


def test_warm_looks_for_the_store_before_it_builds(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file, store = recorded("first", load(text())), recorded.folder / "store"
    store.mkdir()
    SigningKey.generate().write(recorded.folder / "key.pem")
    given = {"WARP_TILES_REMOTE": store.as_uri(), "WARP_TILES_SIGNING_KEY": str(recorded.folder / "key.pem")}
    monkeypatch.setattr("warp_tiles.cli.run.build_ahead", lambda *_, **__: pytest.fail("it is built in vain"))
    assert "no remote store" in failure("--push", "--record", file)
    assert "without a signing key" in failure("--push", "--record", file, WARP_TILES_REMOTE=store.as_uri())
    assert "other users can write" in failure("--push", "--record", file, WARP_TILES_CACHE_SHARED="1", **given)


def test_warm_prints_what_it_compiled_if_the_push_fails(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RemoteError("the store went away")

    file = recorded("first", load(text()))
    monkeypatch.setattr("warp_tiles.cli.run.require_push", lambda: None)
    monkeypatch.setattr("warp_tiles.cli.run.sign_and_write", fail)
    (row,) = rows_of("--push", "--record", file, status=1, WARP_TILES_CACHE_DIR=recorded.folder / "a")
    assert row["state"] == "compiled"


def test_warm_refuses_what_it_cannot_build(recorded: Any, tmp_path: Path) -> None:
    file = recorded("first", load(text()))
    assert "is missing" in failure("--record", tmp_path / "none.json")
    assert "Warp's compiler does not know" in failure("--arch", "13", "--record", file)
    assert "which builds nothing" in failure("--record", file, WARP_TILES_POLICY="locked")
    file.write_bytes(dataclasses.replace(read_start_list(file), warp="1.0").to_bytes())
    assert "is of Warp 1.0" in failure("--record", file)


def failure(*arguments: object, **environment: str) -> str:
    return str(CliRunner().invoke(commands, ["warm", *map(str, arguments)], env=environment).exception)
