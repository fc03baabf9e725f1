"""The typed keywords of ``configure()`` and ``override()`` are those of the settings."""

import typing
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from tools.project import pyproject
from warp_tiles import settings
from warp_tiles.errors import SettingError


def as_checked() -> ModuleType:
    """The settings as a type checker reads it. No program does."""
    spec = spec_from_file_location("checked_settings", settings.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typing, "TYPE_CHECKING", True)
        spec.loader.exec_module(module)
    return module


CHECKED = as_checked()
HINTS = typing.get_type_hints(CHECKED.Keywords, vars(CHECKED))


def words(name: str) -> tuple[str, ...]:
    """The words that the type of a setting allows; empty for other types."""
    options = typing.get_args(HINTS[name])
    return next((typing.get_args(o) for o in options if typing.get_origin(o) is typing.Literal), ())


def test_the_names_are_those_of_the_settings() -> None:
    assert list(HINTS) == list(settings.SETTINGS) == list(settings.ENVIRONMENT)


@pytest.mark.parametrize("name", [name for name in HINTS if words(name)])
def test_the_words_are_those_that_the_parser_accepts(name: str) -> None:
    with pytest.raises(SettingError) as caught:
        settings.SETTINGS[name].parse(name, "no such word")
    assert caught.value.remedy == f"valid values are {', '.join(words(name))}"


@pytest.mark.parametrize("name", settings.SETTINGS)
def test_each_default_has_the_type(name: str) -> None:
    default = getattr(settings.Settings, name)
    kinds = [option for option in typing.get_args(HINTS[name]) if not isinstance(option, typing.TypeVar)]
    plain = [typing.get_origin(option) or option for option in kinds]
    if default is None:
        assert name in ("cache_dir", "bundle", "signing_key")
    elif words(name):
        assert default in words(name)
    else:
        assert isinstance(default, tuple(kind for kind in plain if isinstance(kind, type)))


def test_the_type_checker_reads_the_calls_that_it_must_refuse() -> None:
    checked = pyproject()["tool"]["mypy"]
    assert "tests.settings.typed_keywords" in checked["modules"]
    assert set(checked["packages"]) == {"warp_tiles", "benchmarks", "tools"}
    assert checked["strict"] is True
