"""``warp-tiles settings`` and ``--policy``, in their own processes."""

from pathlib import Path

import pytest

from tests.integration.commands import command, json_of


def test_settings_name_the_layer_of_each_value(folder: Path, tmp_path: Path) -> None:
    found = json_of(command("settings", WARP_TILES_POLICY="fast"))
    assert found["policy"] == {"value": "fast", "layer": "environment variable WARP_TILES_POLICY"}
    assert found["linker"] == {"value": "auto", "layer": "default"}
    table = command("settings", as_json=False, WARP_TILES_POLICY="fast").stdout
    assert "environment variable WARP_TILES_POLICY" in table


def test_settings_show_values_in_force_and_the_variables() -> None:
    environment = {"XDG_CACHE_HOME": "/proc/none", "WARP_TILES_CACHE_DIR": ""}  # short, so that no cell wraps
    table = command("settings", as_json=False, WARP_TILES_RECORD_PATHS="/a:/b", **environment).stdout
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    rows = {name: (value, variable) for name, value, _, variable in cells}
    assert rows["cache_dir"] == ("/proc/none/warp_tiles", "WARP_TILES_CACHE_DIR")
    assert rows["record_paths"][0] == "/a, /b"
    assert [rows[name][0] for name in ("bundle", "remote", "trusted_keys", "target_gpu")] == ["none"] * 3 + ["this one"]
    assert (rows["cache_shared"][0], rows["async_copies"][0], rows["jobs"][0]) == ("off", "on", "0")


def test_a_plan_under_another_policy(folder: Path) -> None:
    done = command("plan", "--policy", "scalar", folder / "main.py", folder, WARP_TILES_POLICY="fast")
    (module,) = json_of(done)["modules"]
    assert module["policy"] == "scalar"
    assert {planned["provider"] for planned in module["functions"] if planned["needed"]} == {"scalar"}


@pytest.mark.slow
def test_compile_under_the_policy_locked_only_uses_the_cache(filled_cache: Path, tmp_path: Path) -> None:
    options, script = ("compile", "--policy", "locked", "-o"), (filled_cache / "main.py", filled_cache)
    (module,) = json_of(command(*options, tmp_path / "whole", *script, cache=filled_cache / "lto"))["modules"]
    assert (module["lto_builds"], module["lto_hits"]) == (0, 3)
    done = command(*options, tmp_path / "cold", *script, cache=tmp_path / "empty", as_json=False)
    assert done.returncode == 2
    assert "needs 3 device functions not in the cache" in done.stderr
    assert "warp-tiles cache import" in done.stderr
    assert not list((tmp_path / "cold").rglob("*.cubin"))
