"""Settings: the order of their layers, and what is refused with the valid choices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles import settings
from warp_tiles.errors import SettingError
from warp_tiles.settings import (
    ProviderChoice,
    configure,
    current,
    from_environment,
    override,
    parse_size,
    provider_choice,
)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting from the environment, from code or from another test."""
    for variable in settings.ENVIRONMENT.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(settings, "_configured", {})
    monkeypatch.setattr(settings, "_overrides", [])
    monkeypatch.setattr(settings, "_listeners", [])
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


# ---- the provider of a module


def test_the_provider_of_a_module_lies_between_code_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert provider_choice() == ProviderChoice("auto", "the default of the setting provider")
    assert provider_choice("mma") == ProviderChoice("mma", "the module option warp_tiles_provider")
    monkeypatch.setenv("WARP_TILES_PROVIDER", "scalar")
    assert provider_choice() == ProviderChoice("scalar", "the setting provider (WARP_TILES_PROVIDER)")
    assert provider_choice("mma").name == "mma"
    configure(provider="cublasdx")
    assert provider_choice("mma") == ProviderChoice("cublasdx", "the setting provider")
    with override(jobs=2):
        assert provider_choice("mma").name == "cublasdx", "a block that does not name it changes nothing"
    with override(provider="libmathdx"):
        assert provider_choice("mma") == ProviderChoice("libmathdx", "the setting provider")
        with override(provider="auto"):
            assert provider_choice("mma").name == "auto", "code that asks for the default overrides the option too"
    configure(provider=None)
    assert provider_choice("mma").name == "mma"


@pytest.mark.parametrize("option", ["cutlass", 3, "", ["mma"], True])
def test_an_unknown_provider_of_a_module_lists_the_valid_ones(option: object) -> None:
    with pytest.raises(SettingError, match="the module option warp_tiles_provider is ") as caught:
        provider_choice(option)
    assert "auto, mma, cublasdx, libmathdx, scalar" in caught.value.remedy
    with override(provider="mma"), pytest.raises(SettingError):
        provider_choice(option)


@pytest.mark.parametrize("name", settings.PROVIDERS)
def test_the_provider_of_a_module_is_that_of_the_settings_where_it_has_no_option(name: str) -> None:
    with override(provider=name):
        assert provider_choice().name == current().provider == name


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
        "wide_moves": "0",
        "policy": "fast",
        "background": "on",
        "record_paths": os.pathsep.join(("/a", "/b")),
        "stale_records": "retune",
        "record_gpu": "NVIDIA H200",
        "tune_budget_s": "2.5",
    }
    assert set(values) == set(settings.defaults())
    found = from_environment({settings.ENVIRONMENT[name]: value for name, value in values.items()})
    typed = {
        "cache_dir": Path("/x"),
        "cache_max_bytes": 10**6,
        "cache_shared": True,
        "jobs": 3,
        "loop_sums": False,
        "wide_moves": False,
    }
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
