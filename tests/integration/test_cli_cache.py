"""``warp-tiles cache``, and a policy that needs one, as users call them: in their own processes, with ``--json``."""

import datetime
import json
import shutil
from pathlib import Path

import pytest

from tests.integration.commands import command, json_of, usage_error
from warp_tiles.gemm.tile_config import TileConfig


def test_cache_info_and_list(filled_cache: Path) -> None:
    info = json_of(command("cache", "info", cache=filled_cache / "lto"))
    assert info["root"] == str(filled_cache / "lto")
    assert (info["exists"], info["entries"], info["payloads"]) == (True, 3, 3)
    assert 0 < info["payload_bytes"] < info["size_bytes"] < info["max_bytes"]
    entries = json_of(command("cache", "list", cache=filled_cache / "lto"))["entries"]
    assert len({entry["key"] for entry in entries}) == 3
    assert sum(entry["payload_bytes"] for entry in entries) == info["payload_bytes"]
    assert {entry["info"]["provider"] for entry in entries} == {"own"}
    assert all(TileConfig.from_json(entry["info"]["tile_config"]) for entry in entries)
    used = [entry["used_at_ns"] for entry in entries]
    assert used == sorted(used, reverse=True)
    table = command("cache", "list", cache=filled_cache / "lto", as_json=False).stdout
    assert "last used" in table
    assert table.count(f" {datetime.date.today().year}-") == 3
    (module,) = json_of(command("plan", filled_cache / "main.py", filled_cache, cache=filled_cache / "lto"))["modules"]
    assert {planned["key"] for planned in module["functions"]} == {entry["key"] for entry in entries}
    assert all(planned["cached"] for planned in module["functions"])


def test_cache_explain(filled_cache: Path) -> None:
    entry = json_of(command("cache", "list", cache=filled_cache / "lto"))["entries"][0]
    found = json_of(command("cache", "explain", entry["key"][:12], cache=filled_cache / "lto"))
    assert found["key"] == entry["key"]
    for label in ("problem.m", "problem.threads", "compiler", "source", "flags", "translation_unit"):
        assert label in json.dumps(found["transcript"])
    table = command("cache", "explain", entry["key"], cache=filled_cache / "lto", as_json=False)
    assert "problem.threads" in table.stdout
    for digits, said in (("0" * 64, "no stored key begins with"), ("", "3 stored keys begin with ''")):
        message = usage_error(command("cache", "explain", digits, cache=filled_cache / "lto"))
        assert said in message
        assert ("more digits" in message) == (not digits)


def test_cache_verify_finds_and_removes_damage(filled_cache: Path, tmp_path: Path) -> None:
    cache = copy_of(filled_cache, tmp_path)
    report = json_of(command("cache", "verify", cache=cache))
    assert (report["checked"], report["sound"], report["damaged"]) == (3, 3, [])
    payload = max(cache.rglob("*.ltoir"), key=lambda path: path.stat().st_size)
    data = bytearray(payload.read_bytes())
    data[len(data) // 2] ^= 1
    payload.write_bytes(data)
    report = json_of(command("cache", "verify", cache=cache), status=1)
    assert report["damaged"]
    assert str(payload) in json.dumps(report["damaged"])
    assert json_of(command("cache", "verify", cache=cache))["damaged"] == [], "the damaged entry was removed"
    assert json_of(command("cache", "info", cache=cache))["payloads"] == 2
    done = command("compile", "-o", tmp_path / "out", filled_cache / "main.py", filled_cache, cache=cache)
    (module,) = json_of(done)["modules"]
    assert (module["lto_builds"], module["lto_hits"]) == (1, 2), "only the damaged entry is built again"


def copy_of(filled_cache: Path, folder: Path) -> Path:
    """A copy of the filled_cache cache."""
    shutil.copytree(filled_cache / "lto", folder / "lto")
    return folder / "lto"


def test_cache_export_and_import(filled_cache: Path, tmp_path: Path) -> None:
    bundle, other = tmp_path / "bundle.tar", tmp_path / "other"
    exported = json_of(command("cache", "export", bundle, cache=filled_cache / "lto"))
    assert (exported["added"], exported["skipped"]) == (3, [])
    assert bundle.stat().st_size > exported["payload_bytes"]
    assert json_of(command("cache", "import", bundle, cache=other))["added"] == 3
    again = json_of(command("cache", "import", bundle, cache=other))
    assert (again["added"], again["present"]) == (0, 3)
    lists = [json_of(command("cache", "list", cache=cache))["entries"] for cache in (filled_cache / "lto", other)]
    keys = [{(entry["key"], entry["payload_sha256"]) for entry in entries} for entries in lists]
    assert keys[0] == keys[1]
    done = command("compile", "-o", tmp_path / "out", filled_cache / "main.py", filled_cache, cache=other)
    (module,) = json_of(done)["modules"]
    assert (module["lto_builds"], module["lto_hits"]) == (0, 3)


def test_cache_gc_and_clear(filled_cache: Path, tmp_path: Path) -> None:
    cache = copy_of(filled_cache, tmp_path)
    result = json_of(command("cache", "gc", "--max-size", "1GiB", cache=cache))
    assert result["removed"] == []
    largest = json_of(command("cache", "info", cache=cache))["size_bytes"] - 1
    evicted = json_of(command("cache", "gc", "--max-size", largest, cache=cache))["removed"]
    assert 1 <= len(evicted) < 3
    assert json_of(command("cache", "info", cache=cache))["entries"] == 3 - len(evicted)
    cleared = command("cache", "clear", cache=copy_of(filled_cache, tmp_path / "other"), as_json=False)
    assert "evicted" not in cleared.stdout
    text = command("cache", "info", cache=cache, as_json=False).stdout
    assert "total size" in text
    assert " kB" in text
    assert json_of(command("cache", "clear", cache=cache))["total_bytes"] > 0
    assert json_of(command("cache", "clear", "--all", cache=cache))["total_bytes"] == 0
    assert json_of(command("cache", "info", cache=cache))["entries"] == 0


def test_an_empty_cache(tmp_path: Path) -> None:
    cache = tmp_path / "nothing"
    assert json_of(command("cache", "info", cache=cache))["exists"] is False
    assert json_of(command("cache", "list", cache=cache)) == {"entries": []}
    for words in (("cache", "list"), ("tune", "list"), ("keys", "show")):
        assert command(*words, cache=cache, as_json=False, HOME=str(tmp_path)).stdout == "none\n", "without a header"
    assert not cache.exists(), "reading creates no folder"


@pytest.mark.slow
def test_compile_under_the_policy_locked_builds_nothing(filled_cache: Path, tmp_path: Path) -> None:
    words = ("compile", "--policy", "locked", "-o", tmp_path / "cold", filled_cache / "main.py", filled_cache)
    done = command(*words, cache=tmp_path / "empty", as_json=False)
    assert done.returncode == 2
    assert "needs 3 device functions not in the cache" in done.stderr
    assert "warp-tiles cache import" in done.stderr
    assert not list((tmp_path / "cold").rglob("*.cubin"))
