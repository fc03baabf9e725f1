"""A project file, which may come with a cloned folder, decides neither what is loaded nor what is deleted."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bench import Bench
from warp_tiles import settings
from warp_tiles.errors import SettingError
from warp_tiles.settings import table as values
from warp_tiles.store import default_root
from warp_tiles.store.keys import TrustedKeys

SECURITY = Path(__file__).resolve().parents[2] / "docs" / "security.md"
VALUES = {
    "provider": '"libmathdx"', "linker": '"warp"', "cache_dir": '".wt"', "cache_shared": "true",
    "cache_max_bytes": '"0B"', "record_paths": '["records"]', "trusted_project_dirs": '["."]',
    "remote": '"file:///tmp"', "remote_push": "true", "bundle": '"bundle.zip"', "kernel_packages": '"none"',
    "signing_key": '"key.pem"', "build_wait_s": "0", "remote_wait_s": "60", "trusted_keys": f'"ed25519:{"A" * 43}="',
}  # fmt: skip
USERS_OWN = {name for name, item in settings.SETTINGS.items() if item.users_own}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_settings: None) -> Callable[..., Path]:
    """Writes a project file and enters its folder."""

    def make(*lines: str) -> Path:
        folder = tmp_path / "clone"
        folder.mkdir(exist_ok=True)
        (folder / "pyproject.toml").write_text("\n".join(["[tool.warp_tiles]", *lines]))
        monkeypatch.chdir(folder)
        return folder

    return make


def test_the_settings_that_are_refused_and_others(clone: Callable[..., Path]) -> None:
    assert set(VALUES) == USERS_OWN
    clone("policy = 'fast'", "jobs = 3")
    assert settings.current().policy == "fast"


@pytest.mark.parametrize("name", VALUES)
def test_a_setting_of_the_user_is_refused_by_name(clone: Callable[..., Path], name: str) -> None:
    folder = clone(f"{name} = {VALUES[name]}", "policy = 'fast'")
    with pytest.raises(
        SettingError, match=rf"^{name} in \[tool.warp_tiles\] of .*clone/pyproject.toml is refused"
    ) as caught:
        settings.current()
    assert settings.ENVIRONMENT[name] in caught.value.remedy
    assert f"WARP_TILES_TRUSTED_PROJECT_DIRS={folder}" in caught.value.remedy


@pytest.mark.parametrize("value", ["0x{0}", "[0x{0}]", "{{a = 0x{0}}}"])
@pytest.mark.parametrize("trusted", [False, True])
def test_a_number_that_python_does_not_print_is_an_ordinary_error(
    clone: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, value: str, trusted: bool
) -> None:
    if trusted:
        monkeypatch.setenv("WARP_TILES_TRUSTED_PROJECT_DIRS", str(clone()))
    refused = set()
    for name in [*settings.SETTINGS, "unknown"]:
        clone(f"{name} = {value.format('f' * 5000)}")
        try:
            settings.current()
        except SettingError as error:
            refused.add(name)
            assert len(str(error)) < 2000  # noqa: PT017
    assert set(settings.SETTINGS) - refused <= {"jobs", "record_paths", "trusted_project_dirs"}
    folder = clone()
    (folder / "pyproject.toml").write_text(f"[tool]\nwarp_tiles = [0x{'f' * 5000}]")
    with pytest.raises(SettingError, match=r"tool\.warp_tiles in .* is a value of the type list"):
        settings.current()


def test_the_security_page_names_the_effect_of_each_other_setting() -> None:
    section = SECURITY.read_text("utf-8").partition("## What a project file can do")[2].partition("\n## ")[0]
    rows = [re.findall(r"`(\w+)`", line.split(" | ")[0]) for line in section.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in row]
    assert sorted(named) == sorted(set(settings.SETTINGS) - USERS_OWN)


@pytest.mark.parametrize("consent", ["environment", "configure", "override"])
def test_the_user_can_trust_a_folder(clone: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, consent: str) -> None:
    folder = clone('cache_dir = ".wt"', "cache_shared = true")
    if consent == "environment":
        monkeypatch.setenv("WARP_TILES_TRUSTED_PROJECT_DIRS", str(folder))
        assert settings.current().cache_dir == folder / ".wt"
        with settings.override(cache_shared=False) as now:
            assert now.store_trust == f"project {folder / 'pyproject.toml'}"
    elif consent == "configure":
        settings.configure(trusted_project_dirs=[folder])
        assert settings.current().cache_shared
    else:
        with settings.override(trusted_project_dirs=[folder]) as now:
            assert now.cache_dir == folder / ".wt"
        with pytest.raises(SettingError):
            settings.current()


@pytest.mark.parametrize("trusted", ["parent", "sibling", "below", "module option"])
def test_consent_is_for_one_folder(clone: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, trusted: str) -> None:
    folder = clone('cache_dir = ".wt"')
    options = {}
    if trusted == "module option":
        options = {"warp_tiles_trusted_project_dirs": str(folder)}
    else:
        place = {"parent": folder.parent, "sibling": folder.parent / "other", "below": folder / "below"}[trusted]
        monkeypatch.setenv("WARP_TILES_TRUSTED_PROJECT_DIRS", str(place))
    with pytest.raises(SettingError, match="is refused"):
        settings.current(options)


@pytest.mark.parametrize("layer", ["environment", "configure", "override", "module option"])
def test_a_relative_path_is_no_anchor_of_trust(
    monkeypatch: pytest.MonkeyPatch, clean_settings: None, layer: str
) -> None:
    """In each working folder it would be another place, which somebody else may have filled."""
    paths = {name for name, item in settings.SETTINGS.items() if item.parse in (values.path, values.paths)}
    assert "bundle" in paths, "its signatures decide, and not its place"
    for name in sorted(paths - {"bundle"}):
        setters: dict[str, Callable[[], Any]] = {
            "environment": settings.current,
            "module option": lambda name=name: settings.current({f"warp_tiles_{name}": ".wt"}),
            "configure": lambda name=name: settings.configure(**{name: Path(".wt")}),
            "override": lambda name=name: settings.override(**{name: Path(".wt")}).__enter__(),
        }
        with monkeypatch.context() as patched:
            if layer == "environment":
                patched.setenv(settings.ENVIRONMENT[name], ".wt")
            with pytest.raises(SettingError, match=r"relative path '\.wt'") as caught:
                setters[layer]()
            assert caught.value.remedy == "give absolute paths"


def test_relative_folders_of_the_platform_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """https://specifications.freedesktop.org/basedir-spec/latest/: all paths in these variables must be absolute."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, ".wt")
    (tmp_path / ".wt" / "warp_tiles").mkdir(parents=True, mode=0o700)
    (tmp_path / ".wt" / "warp_tiles" / "trusted_keys").write_text(f"ed25519:{'A' * 43}=\n")
    assert TrustedKeys().read() == ()
    assert not default_root().is_relative_to(tmp_path)


def test_code_of_stores_with_different_trust_has_different_hashes(bench: Bench) -> None:
    project = settings.Settings(cache_dir=Path("/clone/.wt"), layers=(("cache_dir", "/clone/pyproject.toml"),))
    shared = [settings.Settings(cache_dir=Path(place), cache_shared=True) for place in ("/a", "/b")]
    own = [settings.Settings(cache_dir=place) for place in (None, Path("/a"))]
    texts = [now.store_trust for now in (project, *shared, *own)]
    assert len(set(texts)) == 4
    assert texts[3] == texts[4] == "own"
    assert len({bench.engine.fingerprint(now) for now in (project, *shared, *own)}) == 4
