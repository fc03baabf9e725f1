"""Settings: the order of their layers, and what is refused with the valid choices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles import settings
from warp_tiles.errors import SettingError
from warp_tiles.setting_values import parse_size
from warp_tiles.settings import configure, current, from_environment, override


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No setting from the environment, from code or from another test."""
    for variable in settings.ENVIRONMENT.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(settings, "_configured", {})
    monkeypatch.setattr(settings, "_overrides", [])
    monkeypatch.setattr(settings, "_listeners", [])
    monkeypatch.chdir(tmp_path)  # and none from a project file
    yield
    assert settings._overrides == []  # no test leaves a layer behind


def test_defaults() -> None:
    now = current()
    assert (now.provider, now.linker, now.progress, now.jobs) == ("auto", "auto", "auto", 0)
    assert now.cache_dir is None
    assert not now.cache_shared
    assert {name: getattr(now, name) for name in settings.defaults()} == settings.defaults()


def test_layers_lie_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current().jobs == 0
    monkeypatch.setenv("WARP_TILES_JOBS", "1")
    assert current().jobs == 1
    configure(jobs=2)
    assert current().jobs == 2
    with override(jobs=3) as outer:
        assert (outer.jobs, current().jobs) == (3, 3)
        with override(jobs=4):
            assert current().jobs == 4
        assert current().jobs == 3
    assert current().jobs == 2
    configure(jobs=None)
    assert current().jobs == 1
    monkeypatch.delenv("WARP_TILES_JOBS")
    assert current().jobs == 0


def test_layers_are_merged_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_TILES_PROVIDER", "scalar")
    configure(linker="warp")
    with override(jobs=2):
        now = current()
    assert (now.provider, now.linker, now.jobs) == ("scalar", "warp", 2)


def test_a_none_in_configure_takes_back_that_name_alone() -> None:
    configure(jobs=2, linker="warp")
    configure(jobs=None)
    assert current().jobs == 0
    assert current().linker == "warp"
    configure(linker=None)
    assert current() == settings.Settings()


def test_an_override_ends_with_an_exception() -> None:
    with pytest.raises(KeyError), override(provider="scalar"):
        raise KeyError("the block failed")
    assert current().provider == "auto"


def test_overrides_that_end_out_of_order_take_their_own_layer_with_them() -> None:
    first, second = override(jobs=1), override(jobs=1, linker="warp")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert (current().jobs, current().linker) == (1, "warp")
    second.__exit__(None, None, None)
    assert current() == settings.Settings()


def test_equal_override_layers_are_told_apart() -> None:
    with override(jobs=5):
        with override(jobs=5):
            pass
        assert current().jobs == 5


# ---- every layer

SAMPLES: dict[str, list[Any]] = {
    "provider": list(settings.PROVIDERS),
    "linker": list(settings.LINKERS),
    "cache_dir": ["/a", "/b", "/c"],
    "cache_max_bytes": ["1MB", 2_000_000, "3GiB"],
    "cache_shared": [True, False],
    "jobs": [1, "2", 3, 4, 5],
    "progress": list(settings.SWITCHES),
    "loop_sums": [True, False],
    "policy": list(settings.POLICIES),
    "background": [True, False],
    "record_paths": ["/a", "/b"],
    "stale_records": ["reuse", "retune"],
    "record_gpu": ["one GPU", "another"],
    "tune_budget_s": [1, "2.5", 30],
}
LAYERS = ("override()", "configure()", "module option", "environment variable", "pyproject.toml")


@st.composite
def layered(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """For some settings, a value in some of the layers."""
    names = draw(st.lists(st.sampled_from(sorted(SAMPLES)), unique=True, max_size=4))
    found = {}
    for name in names:
        layers = draw(st.lists(st.sampled_from(LAYERS), unique=True))
        found[name] = {layer: draw(st.sampled_from(SAMPLES[name])) for layer in layers}
    return found


def toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, (bool, int)) else f'"{value}"'


@given(layered())
def test_the_innermost_layer_that_names_a_setting_decides(
    tmp_path_factory: pytest.TempPathFactory, given_values: dict[str, dict[str, Any]]
) -> None:
    def of(layer: str) -> dict[str, Any]:
        return {name: values[layer] for name, values in given_values.items() if layer in values}

    folder = tmp_path_factory.mktemp("project")
    (folder / "below").mkdir()
    lines = [f"{name} = {toml(value)}" for name, value in of("pyproject.toml").items()]
    (folder / "pyproject.toml").write_text("\n".join(["[tool.warp_tiles]", *lines]))
    options = {"enable_backward": True, **{f"warp_tiles_{name}": value for name, value in of("module option").items()}}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "below")
        for name, value in of("environment variable").items():
            patch.setenv(settings.ENVIRONMENT[name], str(value))
        configure(**of("configure()"))
        try:
            with override(**of("override()")):
                now = current(options, "m")
                process = current()
        finally:
            configure(**dict.fromkeys(SAMPLES))
    for name, default in settings.defaults().items():
        values = given_values.get(name, {})
        inner = next((layer for layer in LAYERS if layer in values), None)
        expected = default if inner is None else settings._PARSERS[name](name, values[inner])
        assert getattr(now, name) == expected
        assert now.layer(name).startswith("default" if inner is None else inner.replace("pyproject.toml", str(folder)))
        inner = next((layer for layer in LAYERS if layer in values and layer != "module option"), None)
        assert getattr(process, name) == (default if inner is None else settings._PARSERS[name](name, values[inner]))


def test_layers_are_named_in_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.warp_tiles]\npolicy = "fast"\n')
    monkeypatch.chdir(tmp_path)
    assert current().named("policy") == f"the setting policy ({tmp_path / 'pyproject.toml'})"
    monkeypatch.setenv("WARP_TILES_POLICY", "max")
    assert current().named("policy") == "the setting policy (environment variable WARP_TILES_POLICY)"
    option = {"warp_tiles_policy": "locked"}
    assert current(option, "m").named("policy") == "the setting policy (module option warp_tiles_policy of module m)"
    configure(policy="auto")
    assert current(option, "m").named("policy") == "the setting policy (configure())"
    with override(policy="scalar"):
        assert current(option, "m").named("policy") == "the setting policy (override())"
    configure(policy=None)
    assert current().to_json()["policy"] == {"value": "max", "layer": "environment variable WARP_TILES_POLICY"}
    assert current().to_json()["linker"] == {"value": "auto", "layer": "default"}


def test_settings_of_equal_values_are_equal_whatever_their_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_TILES_JOBS", "3")
    of_environment = current()
    with override(jobs=3):
        assert current() == of_environment
        assert hash(current()) == hash(of_environment)
        assert current().layers != of_environment.layers


# ---- options of a module


def test_an_option_that_is_none_names_nothing() -> None:
    assert current({"warp_tiles_provider": None}).layer("provider") == "default"


@pytest.mark.parametrize("option", ["cutlass", 3, "", ["mma"], True])
def test_an_unknown_provider_of_a_module_lists_the_valid_ones(option: object) -> None:
    with pytest.raises(SettingError, match="module m: option warp_tiles_provider is ") as caught:
        current({"warp_tiles_provider": option}, "m")
    assert "auto, mma, cublasdx, libmathdx, scalar" in caught.value.remedy
    with override(provider="mma"), pytest.raises(SettingError):
        current({"warp_tiles_provider": option})


def test_an_unknown_option_of_a_module_lists_the_valid_ones() -> None:
    with pytest.raises(SettingError, match="module m: option warp_tiles_polcy is unknown") as caught:
        current({"warp_tiles_polcy": "fast", "max_unroll": 3}, "m")
    assert all(f"warp_tiles_{name}" in caught.value.remedy for name in settings.defaults())


# ---- the project file


def project(folder: Path, text: str) -> Path:
    file = folder / "pyproject.toml"
    file.write_text(text)
    return file


def test_the_nearest_file_with_the_table_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    project(tmp_path, "[tool.warp_tiles]\njobs = 1\n")
    project(tmp_path / "a", "[tool.other]\njobs = 2\n")
    monkeypatch.chdir(inner)
    assert current().jobs == 1
    middle = project(tmp_path / "a", "[tool.warp_tiles]\njobs = 3\nlinker = 'warp'\n")
    assert (current().jobs, current().layer("jobs")) == (3, str(middle))
    project(inner, "[tool.warp_tiles]\n")
    assert current() == settings.Settings(), "an empty table is one too"


def test_the_file_is_read_when_it_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    file = project(tmp_path, "[tool.warp_tiles]\njobs = 1\n")
    assert current().jobs == 1
    reads: list[Path] = []
    original = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path) or original(path))
    assert current().jobs == 1
    assert reads == []
    project(tmp_path, "[tool.warp_tiles]\njobs = 22\n")
    assert current().jobs == 22
    assert reads == [file]
    file.unlink()
    assert current().jobs == 0


def test_folders_are_relative_to_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    project(tmp_path, '[tool.warp_tiles]\ncache_dir = "c"\nrecord_paths = ["r", "/s"]\n')
    monkeypatch.chdir(tmp_path / "below")
    assert current().cache_dir == tmp_path / "c"
    assert current().record_paths == (tmp_path / "r", Path("/s"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.warp_tiles]\npolcy = 'fast'\n", r"unknown setting polcy in \[tool.warp_tiles\] of .*pyproject.toml"),
        ("[tool.warp_tiles]\npolicy = 'quick'\n", r"policy in \[tool.warp_tiles\] of .*pyproject.toml is 'quick'"),
        ("[tool.warp_tiles]\njobs = -1\n", r"jobs in \[tool.warp_tiles\] of .*pyproject.toml is -1"),
        ("[tool]\nwarp_tiles = 3\n", r"tool.warp_tiles in .*pyproject.toml is 3"),
        ("[tool.warp_tiles\n", r"pyproject.toml cannot be read"),
        ("tool = 3\n", r"pyproject.toml cannot be read"),
    ],
)
def test_a_bad_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str) -> None:
    project(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=message) as caught:
        current()
    assert caught.value.remedy


def test_a_file_that_somebody_else_left_in_a_common_folder_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project(tmp_path, "[tool.warp_tiles]\njobs = 1\n")
    monkeypatch.chdir(tmp_path)
    owner = os.stat("pyproject.toml").st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    if owner == 0:  # root's files count for everybody
        os.chown("pyproject.toml", 1234, -1)
    assert current().jobs == 1, "a folder that only its owner can write is as good as the owner"
    tmp_path.chmod(0o1777)
    assert current().jobs == 0


def test_a_working_directory_that_is_gone_has_no_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert current() == settings.Settings()


# ---- policy and provider


@pytest.mark.parametrize(
    ("policy", "provider"),
    [
        *((policy, provider) for policy in ("off", "scalar") for provider in ("mma", "cublasdx", "libmathdx")),
        ("off", "scalar"),
        ("fast", "cublasdx"),
        ("fast", "libmathdx"),
    ],
)
def test_a_provider_that_the_policy_forbids_is_named_with_it(
    policy: str, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARP_TILES_POLICY", policy)
    configure(provider=provider)
    with pytest.raises(SettingError) as caught:
        _ = current().providers
    assert f"{policy!r} (environment variable WARP_TILES_POLICY)" in caught.value.message
    assert f"{provider!r} (configure())" in caught.value.message


@pytest.mark.parametrize("policy", settings.POLICIES)
def test_every_policy_goes_with_the_default_provider(policy: str) -> None:
    for named in ({}, {"provider": "auto"}):
        with override(policy=policy, **named):
            assert current().providers == settings.POLICIES[policy].providers


@pytest.mark.parametrize("policy", ["auto", "max", "locked"])
@pytest.mark.parametrize("provider", settings.PROVIDERS[1:])
def test_a_named_provider_is_asked_alone_under_any_policy_that_allows_it(policy: str, provider: str) -> None:
    with override(policy=policy, provider=provider):
        assert current().providers == (provider,)


# ---- what is refused


@pytest.mark.parametrize("call", [configure, lambda **values: override(**values).__enter__()])
def test_an_unknown_name_lists_the_valid_ones(call: object) -> None:
    with pytest.raises(SettingError, match="unknown setting providr") as caught:
        call(providr="auto")  # type: ignore[operator]
    assert all(name in caught.value.remedy for name in settings.defaults())


def test_an_unknown_name_with_none_is_refused_too() -> None:
    with pytest.raises(SettingError, match="unknown setting providr"):
        configure(providr=None)


def test_an_unknown_environment_variable_lists_the_valid_ones() -> None:
    with pytest.raises(SettingError, match="WARP_TILES_PROVIDR") as caught:
        from_environment({"WARP_TILES_PROVIDR": "auto"})
    assert all(variable in caught.value.remedy for variable in settings.ENVIRONMENT.values())


def test_other_environment_variables_are_left_alone() -> None:
    assert from_environment({"WARP_CACHE_PATH": "x", "HOME": "y", "WARPTILES_JOBS": "z"}) == {}


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("provider", "cublas", settings.PROVIDERS),
        ("provider", 3, settings.PROVIDERS),
        ("linker", "gold", settings.LINKERS),
        ("progress", "loud", settings.SWITCHES),
        ("cache_shared", "maybe", ("1", "0", "true", "false", "on", "off")),
        ("cache_max_bytes", "lots", ("kB", "GiB")),
        ("cache_max_bytes", True, ("kB", "GiB")),
        ("cache_max_bytes", "-1", ("kB", "GiB")),
        ("jobs", "-1", ("whole number",)),
        ("jobs", -1, ("whole number",)),
        ("jobs", "two", ("whole number",)),
        ("jobs", 1.5, ("whole number",)),
        ("jobs", True, ("whole number",)),
        ("cache_dir", 7, ("folder",)),
    ],
)
def test_an_unknown_value_says_the_value_and_the_valid_ones(name: str, value: object, valid: tuple[str, ...]) -> None:
    with pytest.raises(SettingError) as caught:
        configure(**{name: value})
    assert name in caught.value.message
    assert repr(value) in caught.value.message
    assert all(word in caught.value.remedy for word in valid)
    assert current() == settings.Settings()


@pytest.mark.parametrize("name", ["provider", "linker", "progress", "jobs", "cache_max_bytes", "cache_shared"])
def test_a_bad_value_in_the_environment_names_the_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = settings.ENVIRONMENT[name]
    monkeypatch.setenv(variable, "bogus")
    with pytest.raises(SettingError, match=f"{variable} is 'bogus'"):
        current()


def test_one_bad_value_changes_nothing() -> None:
    configure(jobs=2)
    with pytest.raises(SettingError):
        configure(jobs=5, linker=None, provider="bogus")
    with pytest.raises(SettingError):
        configure(jobs=None, bogus=None)
    assert current().jobs == 2


def test_a_refused_override_leaves_no_layer() -> None:
    with pytest.raises(SettingError), override(provider="bogus"):
        pytest.fail("the block must not run")
    assert current() == settings.Settings()


def test_a_bad_environment_does_not_leave_an_override_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_TILES_JOBS", "bogus")
    with pytest.raises(SettingError), override(linker="warp"):
        pytest.fail("the block must not run")
    monkeypatch.delenv("WARP_TILES_JOBS")
    assert current().linker == "auto"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("500", 500),
        (500, 500),
        ("1B", 1),
        ("2kB", 2000),
        ("2 KB", 2000),
        ("3MB", 3_000_000),
        ("1.5GB", 1_500_000_000),
        ("2KiB", 2048),
        ("0.5MiB", 524_288),
        (" 4 gib ", 4 * 1024**3),
    ],
)
def test_sizes(text: object, size_bytes: int) -> None:
    assert parse_size("size", text) == size_bytes


@pytest.mark.parametrize("text", ["", "MB", "1 TB", "1e9", "4 G", "-1", "1..5MB", ".5MB", "nan", "inf", None, "1MB2"])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(SettingError, match="size is"):
        parse_size("size", text)


@given(st.integers(0, 2**63), st.sampled_from([("", 1), ("kB", 1000), ("MB", 10**6), ("KiB", 2**10), ("GiB", 2**30)]))
def test_whole_numbers_keep_every_byte(number: int, unit: tuple[str, int]) -> None:
    assert parse_size("size", f"{number}{unit[0]}") == number * unit[1]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("TRUE", True), ("on", True), ("0", False), ("false", False), ("Off", False), ("", False)],
)
def test_flags(text: str, value: bool) -> None:
    assert from_environment({"WARP_TILES_CACHE_SHARED": text}) == {"cache_shared": value}


def test_folders() -> None:
    assert from_environment({"WARP_TILES_CACHE_DIR": "~/x"})["cache_dir"] == Path("~/x").expanduser()
    assert from_environment({"WARP_TILES_CACHE_DIR": ""}) == {"cache_dir": None}
    configure(cache_dir=Path("/somewhere"))
    assert current().cache_dir == Path("/somewhere")


def test_every_setting_can_come_from_the_environment() -> None:
    values = {
        "provider": "scalar",
        "linker": "own",
        "cache_dir": "/x",
        "cache_max_bytes": "1MB",
        "cache_shared": "1",
        "jobs": "3",
        "progress": "off",
        "loop_sums": "0",
        "policy": "fast",
        "background": "on",
        "record_paths": os.pathsep.join(("/a", "/b")),
        "stale_records": "retune",
        "record_gpu": "NVIDIA H200",
        "tune_budget_s": "2.5",
    }
    assert set(values) == set(settings.defaults())
    found = from_environment({settings.ENVIRONMENT[name]: value for name, value in values.items()})
    typed = {"cache_dir": Path("/x"), "cache_max_bytes": 10**6, "cache_shared": True, "jobs": 3, "loop_sums": False}
    typed |= {"background": True, "record_paths": (Path("/a"), Path("/b")), "tune_budget_s": 2.5}
    assert found == {**values, **typed}


def test_a_listener_hears_every_change_by_code_once() -> None:
    heard: list[int] = []
    listener = lambda: heard.append(current().jobs)  # noqa: E731
    settings.on_change(listener)
    settings.on_change(listener)
    configure(jobs=1)
    assert heard == [1]
    with override(jobs=2):
        assert heard == [1, 2]
    assert heard == [1, 2, 1]
    with pytest.raises(SettingError):
        configure(jobs="bogus")
    assert heard == [1, 2, 1]  # nothing changed
