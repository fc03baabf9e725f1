"""Values of settings: refusals with the valid choices, sizes, flags and folders."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warp_tiles import settings
from warp_tiles.errors import SettingError
from warp_tiles.settings import PROVIDER_ORDER, configure, current, from_environment, override
from warp_tiles.settings.table import parse_size, seconds

pytestmark = pytest.mark.usefixtures("clean_settings")

# ---- refused names and values


@pytest.mark.parametrize(
    ("call", "text", "valid"),
    [
        (lambda: configure(providr="auto"), "unknown setting providr", "{}"),
        (lambda: override(providr="auto").__enter__(), "unknown setting providr", "{}"),
        (lambda: current({"warp_tiles_polcy": "fast", "max_unroll": 3}, "m"), "warp_tiles_polcy is", "warp_tiles_{}"),
        (lambda: from_environment({"WARP_TILES_PROVIDR": "auto"}), "WARP_TILES_PROVIDR", "WARP_TILES_{}"),
    ],
)  # fmt: skip
def test_an_unknown_name_lists_the_valid_ones(call: Callable[[], object], text: str, valid: str) -> None:
    with pytest.raises(SettingError, match=text) as caught:
        call()
    names = map(str.upper, settings.SETTINGS) if valid.startswith("WARP") else settings.SETTINGS
    assert all(valid.format(name) in caught.value.remedy for name in names)
    assert from_environment({"WARP_CACHE_PATH": "x", "HOME": "y", "WARPTILES_JOBS": "z"}) == {}, "of others"


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        *(("provider", value, ("auto", *PROVIDER_ORDER)) for value in ("cublas", 3)),
        ("linker", "gold", ("auto", "own", "warp")), ("progress", "loud", ("auto", "on", "off")),
        ("cache_shared", "maybe", ("1", "0", "true", "false", "on", "off")),
        *(("cache_max_bytes", value, ("kB", "GiB")) for value in ("lots", True, "-1")),
        *(("cache_max_bytes", value, ("whole bytes", "1.5GB")) for value in (1.5, "0.5 B")),
        *(("jobs", value, ("whole number",)) for value in ("-1", -1, "two", 1.5, True)),
        ("cache_dir", 7, ("folder",)), ("cache_dir", "~nouser/x", ("folder",)),
        ("record_paths", ["/x", "~nouser/x"], ("folder",)), ("tune_budget_s", "soon", ("finite", "0 or more")),
        *(("tune_budget_s", value, ("finite",)) for value in (-1e-9, float("nan"), "inf", True, np.True_, 1j)),
    ],
)  # fmt: skip
def test_the_error_of_an_unknown_value_lists_the_valid_ones(name: str, value: object, valid: tuple[str, ...]) -> None:
    with pytest.raises(SettingError) as caught:
        configure(**{name: value})
    assert f"the setting {name} (configure()) is " in caught.value.message
    assert repr(value[-1] if isinstance(value, list) else value) in caught.value.message
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


def test_a_bad_environment_does_not_leave_an_override_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_TILES_JOBS", "bogus")
    with pytest.raises(SettingError), override(linker="warp"):
        pytest.fail("the block must not run")
    monkeypatch.delenv("WARP_TILES_JOBS")
    assert current().linker == "auto"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0), ("500", 500), (500, 500), (4e9, 4_000_000_000), ("1B", 1), ("2kB", 2000), ("2 KB", 2000),
        ("3MB", 3_000_000), ("1.5GB", 1_500_000_000), ("2KiB", 2048), ("0.5MiB", 524_288), ("1.1KiB", 1126),
        (" 4 gib ", 4 * 1024**3), ("1MB2", None), (None, None),
        *((text, None) for text in ("", "MB", "1 TB", "1e9", "4 G", "-1", "1..5MB", ".5MB", "nan", "inf")),
    ],
)  # fmt: skip
def test_sizes_are_read_or_refused(text: object, size_bytes: int | None) -> None:
    with nullcontext() if size_bytes is not None else pytest.raises(SettingError, match="size is"):
        assert parse_size("size", text) == size_bytes


@given(st.integers(0, 2**63), st.sampled_from([("", 1), ("kB", 1000), ("MB", 10**6), ("KiB", 2**10), ("GiB", 2**30)]))
def test_whole_numbers_keep_every_byte(number: int, unit: tuple[str, int]) -> None:
    assert parse_size("size", f"{number}{unit[0]}") == number * unit[1]


@pytest.mark.parametrize(
    ("given", "seconds_s"),
    [
        (0, 0.0), (1e-5, 1e-5), ("1e-5", 1e-5), ("2.5", 2.5), ("7.", 7.0), (np.float32(0.5), 0.5),
        (Decimal("1.5"), 1.5),
        *((given, None) for given in (10**400, 10**5000, 1e999, "1e999", "1e", None, [1], "-0.1")),
    ],
    ids="".format,
)  # fmt: skip
def test_seconds_are_read_or_refused(given: object, seconds_s: float | None) -> None:
    with nullcontext() if seconds_s is not None else pytest.raises(SettingError, match="limit is"):
        assert seconds("limit", given) == seconds_s


@pytest.mark.parametrize("given", [1e20, "1e20", 10**300])
def test_very_long_times_are_limited_to_a_valid_timeout(given: object) -> None:
    limit_s = seconds("limit", given)
    assert limit_s > 10 * 24 * 3600
    lock = threading.Lock()
    assert lock.acquire(timeout=limit_s)


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
