"""``warp-tiles cache``, as users call it: in processes of its own, with ``--json``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.integration.commands import command, parsed, refused
from warp_tiles.gemm.tile_config import TileConfig


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
