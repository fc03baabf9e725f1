"""``warp-tiles settings`` and ``--policy``: in processes of their own."""

from __future__ import annotations

from pathlib import Path

from tests.integration.commands import command, parsed


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
