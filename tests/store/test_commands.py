"""``warp-tiles keys`` and ``warp-tiles cache push``, ``pull`` and ``status``, between two machines."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import command, json_of, usage_error
from tests.integration.conftest import filled_cache  # noqa: F401  a fixture
from tests.store.server import dav, send, serving

NOTHING = {"moved": 0, "present": 0, "skipped": 0, "failed": 0, "moved_bytes": 0}


def keys(*arguments: object, **environment: str) -> Any:
    return command("keys", *arguments, as_json=False, **environment)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A private key's file, and its public key."""
    path = tmp_path_factory.mktemp("keys") / "key.pem"
    return path, keys("new", "-o", path).stdout.strip()


@pytest.mark.slow
def test_a_private_key_and_its_public_key_which_is_trusted_once(pair: tuple[Path, str], tmp_path: Path) -> None:
    path, public = pair
    assert public.startswith("ed25519:")
    assert json_of(keys("show", "--json", path))["public"] == public
    assert json_of(keys("new", "--json", "-o", path.with_name("other.pem")))["public"].startswith("ed25519:")
    assert "an existing key is never replaced" in usage_error(keys("new", "-o", path))
    assert keys("show", path).stdout.strip() == public
    config = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert "added to" in keys("trust", public, "our", "CI", **config).stdout
    assert json_of(keys("trust", "--json", public, **config))["added"] is False
    (row,) = json_of(keys("show", "--json", **config))["trusted"]
    assert (row["public"], row["comment"]) == (public, "our CI")
    assert "is not a public key" in usage_error(keys("trust", "ssh-ed25519 AAAA", **config))


@pytest.mark.slow
def test_push_pull_and_status(filled_cache: Path, pair: tuple[Path, str], tmp_path: Path) -> None:  # noqa: F811
    private, public = pair
    shutil.copytree(filled_cache / "lto", tmp_path / "ci", symlinks=True)
    (tmp_path / "store").mkdir()
    store = {"WARP_TILES_REMOTE": (tmp_path / "store").as_uri(), "WARP_TILES_TRUSTED_KEYS": public}
    ci = {**store, "WARP_TILES_SIGNING_KEY": str(private)}

    first = json_of(command("cache", "push", cache=tmp_path / "ci", **ci))
    assert (first["ltoir"]["moved"], first["module"], first["records"]) == (3, NOTHING, NOTHING)
    assert json_of(command("cache", "push", cache=tmp_path / "ci", **ci))["ltoir"]["present"] == 3

    pulled = json_of(command("cache", "pull", cache=tmp_path / "fleet", **store))
    assert pulled["ltoir"] == first["ltoir"]
    names = {path.name for path in (tmp_path / "ci" / "v2" / "objects").rglob("*.ltoir")}
    assert {path.name for path in (tmp_path / "fleet" / "v2" / "objects").rglob("*.ltoir")} == names

    state = json_of(command("cache", "status", cache=tmp_path / "fleet", **store))
    assert (state["state"], state["functions"], state["writes"]) == ("it answers", 3, False)

    # what was fetched is left to those who signed it
    (tmp_path / "second").mkdir()
    again = {**ci, "WARP_TILES_REMOTE": (tmp_path / "second").as_uri()}
    assert json_of(command("cache", "push", cache=tmp_path / "fleet", **again))["ltoir"] == {**NOTHING, "skipped": 3}
    shared = command("cache", "push", cache=tmp_path / "ci", as_json=False, WARP_TILES_CACHE_SHARED="1", **ci)
    assert "other users can write this cache" in usage_error(shared)

    stranger = {**store, "WARP_TILES_TRUSTED_KEYS": ""}
    refused = json_of(command("cache", "pull", cache=tmp_path / "stranger", **stranger))["ltoir"]
    assert refused == {**NOTHING, "skipped": 3}


@pytest.mark.slow
def test_the_steps_of_a_ci_over_webdav(filled_cache: Path, pair: tuple[Path, str], tmp_path: Path) -> None:  # noqa: F811
    """``docs/remote.md``: the CI has a signing key alone, and trusts it; the fleet trusts its public key."""
    private, public = pair
    shutil.copytree(filled_cache / "lto", tmp_path / "ci", symlinks=True)
    (tmp_path / "store").mkdir()
    with dav(tmp_path / "store") as url:
        ci = {"WARP_TILES_REMOTE": url, "WARP_TILES_SIGNING_KEY": str(private)}
        script = filled_cache / "main.py"
        done = command("compile", "-o", tmp_path / "out", script, tmp_path, cache=tmp_path / "ci", **ci)
        assert json_of(done)["modules"][0]["lto_hits"] == 3
        assert "no key is trusted" not in done.stderr
        pushed = json_of(command("cache", "push", cache=tmp_path / "ci", **ci))
        assert (pushed["ltoir"]["moved"], pushed["module"]["moved"]) == (3, 2), "the module has a start key"
        fleet = {"WARP_TILES_REMOTE": url, "WARP_TILES_TRUSTED_KEYS": public}
        pulled = json_of(command("cache", "pull", cache=tmp_path / "fleet", **fleet))
        assert {kind: pulled[kind] for kind in ("ltoir", "module")} == {
            kind: pushed[kind] for kind in ("ltoir", "module")
        }


@pytest.mark.slow
def test_webdav_without_lists_of_all_levels(pair: tuple[Path, str], tmp_path: Path) -> None:
    with dav(tmp_path, infinite=False) as url:
        fleet = {"WARP_TILES_REMOTE": url, "WARP_TILES_TRUSTED_KEYS": pair[1]}
        text = usage_error(command("cache", "pull", cache=tmp_path, as_json=False, **fleet))
    assert "cannot be listed" in text


@pytest.mark.parametrize("name", ["push", "pull"])
def test_without_a_store(name: str, tmp_path: Path, pair: tuple[Path, str]) -> None:
    text = usage_error(command("cache", name, cache=tmp_path, as_json=False, WARP_TILES_REMOTE=""))
    assert "set WARP_TILES_REMOTE to its URL" in text
    away = {"WARP_TILES_REMOTE": "http://127.0.0.1:1", "WARP_TILES_SIGNING_KEY": str(pair[0])}
    assert "does not answer" in usage_error(command("cache", name, cache=tmp_path, as_json=False, **away))
    state = json_of(command("cache", "status", cache=tmp_path, WARP_TILES_REMOTE=""))
    assert (state["remote"], state["state"]) == ("", "there is none")


@pytest.mark.slow
def test_a_push_that_fails_fails(filled_cache: Path, pair: tuple[Path, str]) -> None:  # noqa: F811
    with serving(send(b"", 404)) as server:  # without PUT
        given = {"WARP_TILES_REMOTE": server.url, "WARP_TILES_SIGNING_KEY": str(pair[0])}
        done = command("cache", "push", cache=filled_cache / "lto", **given)
    assert json_of(done, 1)["ltoir"]["failed"] == 3


def test_no_command_prints_a_password(tmp_path: Path) -> None:
    url = "http://user:s3cr3t@127.0.0.1:1/path?sig=T0KEN"
    for words in (["settings"], ["cache", "status"]):
        done = command(*words, cache=tmp_path, WARP_TILES_REMOTE=url)
        assert done.returncode == 0, done.stderr
        assert "http://127.0.0.1:1/path" in done.stdout
        for secret in ("s3cr3t", "T0KEN"):
            assert secret not in done.stdout + done.stderr
    broken = usage_error(command("settings", as_json=False, WARP_TILES_REMOTE="http://user:s3/cr3t@127.0.0.1/"))
    assert "is not the URL of a store" in broken
    assert "s3/cr3t" not in broken
