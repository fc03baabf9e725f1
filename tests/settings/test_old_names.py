"""Settings that were renamed: every layer reads the old name, with a warning that gives the new one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from warp_tiles import settings
from warp_tiles.errors import SettingError
from warp_tiles.settings import configure, current, override, table, values
from warp_tiles.util.warn import WarnedTexts

pytestmark = pytest.mark.usefixtures("clean_settings")

RENAMED: dict[str, tuple[str, Any]] = {
    "whole_gradients": ("gemm_gradients", "always"),
    "without_mathdx": ("mathdx_opt_out", "own"),
    "trusted_projects": ("trusted_project_dirs", "/projects"),
    "stale_records": ("record_driver_mismatch", "retune"),
    "record_gpu": ("target_gpu", "NVIDIA H200"),
    "wide_moves": ("async_copies", "0"),
    "loop_sums": ("register_accumulators", "0"),
}
every_name = pytest.mark.parametrize(("old", "new", "value"), [(old, *new) for old, new in RENAMED.items()])


@pytest.fixture(autouse=True)
def _warns_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "warned", WarnedTexts())


def typed(name: str, value: Any) -> Any:
    return settings.SETTINGS[name].parse(name, value)


def test_the_old_names() -> None:
    assert {old: new for old, (new, _) in RENAMED.items()} == table.FORMER
    assert not set(RENAMED) & set(settings.SETTINGS)


@every_name
def test_every_layer_reads_the_old_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, old: str, new: str, value: str
) -> None:
    if new != "trusted_project_dirs":
        (tmp_path / "pyproject.toml").write_text(f'[tool.warp_tiles]\n{old} = "{value}"\n')
        with pytest.warns(RuntimeWarning, match=rf"{old} in .*pyproject.toml is now called {new}; the next release"):
            assert getattr(current(), new) == typed(new, value)
        (tmp_path / "pyproject.toml").unlink()
    with pytest.warns(RuntimeWarning, match=rf"module m: option warp_tiles_{old} is now called warp_tiles_{new}; "):
        assert getattr(current({f"warp_tiles_{old}": value}, "m"), new) == typed(new, value)
    with pytest.warns(RuntimeWarning, match=rf"the setting {old} \(configure\(\)\) is now called {new}; "):
        configure(**{old: value})
    assert (getattr(current(), new), current().layer(new)) == (typed(new, value), "configure()")
    configure(**{old: None})
    assert current() == settings.Settings()
    with (
        pytest.warns(RuntimeWarning, match=rf"the setting {old} \(override\(\)\) is now called {new}; "),
        override(**{old: value}) as now,
    ):
        assert getattr(now, new) == typed(new, value)
    with pytest.warns(RuntimeWarning, match=rf"{old} is now called {new}; "):
        assert getattr(now, old) == typed(new, value)
    monkeypatch.setenv(f"WARP_TILES_{old.upper()}", value)
    with pytest.warns(RuntimeWarning, match=f"WARP_TILES_{old.upper()} is now called WARP_TILES_{new.upper()}; "):
        assert getattr(current(), new) == typed(new, value)


def test_a_value_under_the_new_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARP_TILES_TARGET_GPU", "new")
    monkeypatch.setenv("WARP_TILES_RECORD_GPU", "old")
    with pytest.warns(RuntimeWarning, match="WARP_TILES_RECORD_GPU is now called WARP_TILES_TARGET_GPU"):
        assert current().target_gpu == "new"


def test_an_old_name_is_checked_as_the_new_one(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning), pytest.raises(SettingError, match=r"the setting whole_gradients .* is 'never'"):
        configure(whole_gradients="never")
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.warp_tiles]\ntrusted_projects = ["/"]\n')
    with pytest.raises(SettingError, match=r"^trusted_projects in .* is refused") as caught:
        current()
    assert "set WARP_TILES_TRUSTED_PROJECT_DIRS yourself" in caught.value.remedy


def test_no_other_name_is_a_setting() -> None:
    with pytest.raises(AttributeError, match="'Settings' object has no attribute 'whole_gradient'"):
        _ = current().whole_gradient


def test_double_buffers_have_their_old_name_too() -> None:
    with pytest.warns(RuntimeWarning, match=r"'two_buffers' of the setting main_loop .* called 'double_buffered'"):
        configure(main_loop="two_buffers")
    assert current().main_loop == "double_buffered"


@pytest.mark.parametrize("value", ["1", "0"])
def test_a_setting_that_went_is_ignored_with_a_warning(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert set(table.REMOVED) == {"background", "prefetch"}
    reason = r"has no effect any more: a launch waits for slow builds; the policy 'fast' has none"
    with pytest.warns(RuntimeWarning, match=rf"the setting background \(configure\(\)\) {reason}"):
        configure(background=value)
    assert settings.configured() == {}
    configure(background=None)
    with pytest.warns(RuntimeWarning, match=f"module m: option warp_tiles_background {reason}"):
        assert current({"warp_tiles_background": value}, "m") == settings.Settings()
    monkeypatch.setenv("WARP_TILES_BACKGROUND", value)
    with pytest.warns(RuntimeWarning, match=f"WARP_TILES_BACKGROUND {reason}"):
        assert current() == settings.Settings()
