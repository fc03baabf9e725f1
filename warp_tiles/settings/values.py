"""Parsers of settings.

Each takes the name for messages and a value of any layer. It returns the typed value, or raises a
:class:`~warp_tiles.errors.SettingError` with the value and the remedy.
"""

from __future__ import annotations

import math
import numbers
import os
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from warp_tiles.errors import SettingError, shown, unless_signalled

#: The largest number of parallel compiler processes; a larger setting means this one.
MAX_JOBS = 1024
_MAX_DIGITS = 18
_PUBLIC_KEY = re.compile(r"ed25519:[A-Za-z0-9+/]{43}=")
_FLAGS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False, "": False}
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _refused(name: str, value: Any, remedy: str, reason: str = "") -> SettingError:
    return SettingError(f"{name} is {shown(value, 200)}{reason or ', which is invalid'}", remedy=remedy)


def _printed(value: Any) -> str:
    """The text of a value; for one that Python does not print, a number of thousands of digits."""
    try:
        return "" if isinstance(value, bool) else str(value).strip()
    except (ValueError, RecursionError):
        return "9" * 5000


def choice(*valid: str, **former: str) -> Callable[[str, Any], str]:
    """A parser that accepts the given words, and names the present ones of former words."""

    def parse(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in valid:  # an array has no truth value
            renamed = f"it is now {former[value]!r}; " if isinstance(value, str) and value in former else ""
            raise _refused(name, value, f"{renamed}valid values are {', '.join(valid)}")
        return str(value)

    return parse


def main_loop(name: str, value: Any) -> str:
    """A choice of a loop's pipeline (:class:`warp_tiles.gemm.pipeline.PipelineOverrides`), as text."""
    from warp_tiles.gemm.pipeline import PipelineOverrides

    try:
        PipelineOverrides.parse(_printed(value))
    except ValueError as error:
        remedy = (
            "give 'auto', 'wgmma', 'mma' or 'double_buffered', or fields with commas between, e.g. "
            "'wgmma,stages=3,in_flight=0,warps_m=2'"
        )
        raise _refused(name, value, remedy, f": {error!s:.200}") from error
    return str(value)


def path(name: str, value: Any) -> Path | None:
    """A folder or file, with ``~`` expanded; None for an empty value."""
    if value is None or value == "":
        return None
    remedy = "give the path of a folder or of a file"
    if not isinstance(value, (str, os.PathLike)):
        raise _refused(name, value, remedy)
    try:
        if "\0" in os.fspath(value):
            raise _refused(name, value, remedy, ", which contains a NUL")
        os.fsencode(value)
        return Path(value).expanduser()
    except UnicodeEncodeError as error:
        raise _refused(name, value, "give another path", ", which no file can have as its name") from error
    except unless_signalled(RuntimeError, TypeError) as error:  # no such user; a path of bytes
        raise _refused(name, value, remedy, f": {error}") from error


def paths(name: str, value: Any) -> tuple[Path, ...]:
    """Folders, from one path, from several paths, or from a text with ``os.pathsep`` between paths."""
    if isinstance(value, str):
        value = value.split(os.pathsep)
    if isinstance(value, os.PathLike):
        value = [value]
    if not isinstance(value, Iterable):
        raise _refused(name, value, f"give paths of folders, with {os.pathsep!r} between them")
    return tuple(folder for folder in (path(name, item) for item in value) if folder is not None)


def require_absolute(name: str, value: Any) -> None:
    """Refuse relative paths, because whoever fills the working folder would choose what they name."""
    for given in value if isinstance(value, tuple) else (value,):
        if given is not None and not given.is_absolute():
            raise SettingError(
                f"{name} contains the relative path {str(given)!r}, which means another place in each working folder",
                remedy="give absolute paths",
            )


def flag(name: str, value: Any) -> bool:
    """True or False, from a bool or from a word such as ``on`` or ``0``."""
    typed = value if isinstance(value, bool) else _FLAGS.get(_printed(value).lower())
    if typed is None:
        raise _refused(name, value, "valid values are 1, 0, true, false, on, off")
    return typed


def parse_size(name: str, value: Any) -> int:
    """Bytes from a whole number or a text such as ``500MB`` or ``1.5GiB``, which is rounded down."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", _printed(value).lower())
    if match is None or match.group(2) not in _UNITS or len(match.group(1)) > 2 * _MAX_DIGITS:
        raise _refused(name, value, "give bytes, or a number with kB, MB, GB, KiB, MiB or GiB")
    from decimal import Decimal  # imported here because it takes long

    number, unit = Decimal(match.group(1)), _UNITS[match.group(2)]
    if unit == 1 and number % 1:
        raise _refused(name, value, "give whole bytes, or a unit, e.g. 1.5GB", ", which has a fraction of a byte")
    return int(number * unit)


def count(name: str, value: Any) -> int:
    """An integer of 0 or more."""
    text = _printed(value)
    if not re.fullmatch(r"\d+", text):
        raise _refused(name, value, "give a whole number, 0 for one per core")
    digits = text.lstrip("0") or "0"
    return MAX_JOBS if len(digits) > _MAX_DIGITS else min(int(digits), MAX_JOBS)


def seconds(name: str, value: Any) -> float:
    """Seconds, a finite number of 0 or more. The result is at most half of ``threading.TIMEOUT_MAX``."""
    try:
        is_number = isinstance(value, (str, numbers.Number)) and not isinstance(value, bool)
        number = float(value) if is_number else math.nan
    except (TypeError, ValueError):
        number = math.nan
    except OverflowError:  # an integer, which may have more digits than Python prints
        number = value = math.inf
    if not 0 <= number < math.inf:
        raise _refused(name, value, "give seconds, a finite number of 0 or more; 0 for no limit")
    return min(number, threading.TIMEOUT_MAX / 2)


def wait_seconds(name: str, value: Any) -> float:
    """Seconds to wait, more than 0 and at most a day."""
    number = seconds(name, value)
    if not 0 < number <= 86400:
        raise _refused(name, value, "give seconds, more than 0 and at most 86400")
    return number


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _refused(name, value, "give a text")
    return value


def store_url(name: str, value: Any) -> str:
    url = text(name, value).strip()
    try:
        return checked_url(url) if url else ""
    except ValueError as error:
        raise SettingError(  # without the text, which may contain a password
            f"{name} is not the URL of a store: {error}",
            remedy="give a URL such as https://host/path, s3://bucket/path or file:///folder",
        ) from error


def package_names(name: str, value: Any) -> str:
    """``auto``, ``none``, or names of distributions, as text with commas between them."""
    if isinstance(value, str):
        value = value.split(",")
    given = value if isinstance(value, (list, tuple)) else ()
    names = [re.sub(r"[-_.]+", "-", text(name, item).strip()).lower() for item in given]
    if not names or not all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", item) for item in names):
        raise _refused(name, value, "give auto, none, or names of packages, with commas between them")
    if len(names) > 1 and not {"auto", "none"}.isdisjoint(names):
        raise _refused(name, value, "give auto or none alone, or names of packages")
    return ",".join(dict.fromkeys(names))


def public_keys(name: str, value: Any) -> tuple[str, ...]:
    """Public keys, from several texts, or from one with commas between them."""
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, Iterable):
        raise _refused(name, value, "give texts, with commas between them")
    keys = tuple(stripped for stripped in (text(name, item).strip() for item in value) if stripped)
    for key in keys:
        if not _PUBLIC_KEY.fullmatch(key):
            raise SettingError(f"{name} contains {key!r:.100}", "give keys as `warp-tiles keys show` prints them")
    return keys


# ---- URLs of stores of objects

SCHEMES = ("file", "http", "https", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")


def checked_url(text: str) -> str:
    """A store's URL. Raises a ValueError that lists the known kinds of stores."""
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"its scheme is {parts.scheme!r}; known are {', '.join(f'{name}://' for name in SCHEMES)}")
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path.startswith("/")):
        raise ValueError("give a folder with its whole path: file:///path")
    if parts.scheme != "file" and not parts.hostname:
        raise ValueError("it names no host or bucket")
    if parts.netloc.rpartition("@")[2].count(":") == 1 and not _has_port(parts):
        raise ValueError("the text after the host is not a port; a password needs %2F for /, %3F for ? and %23 for #")
    return text


def _has_port(parts: SplitResult) -> bool:
    try:
        return parts.port is not None
    except ValueError:
        return False


def without_password(url: str) -> str:
    """A URL for messages, without user name, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(no URL)"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def secrets_of(url: str) -> tuple[str, ...]:
    """Parts of a URL that no message may contain, the longest first: user name and password, and the query."""
    parts = urlsplit(url)
    secrets = {parts.netloc.rpartition("@")[0], parts.password or "", unquote(parts.password or ""), parts.query}
    secrets |= {unquote(parts.query)}
    return tuple(sorted(filter(None, secrets), key=len, reverse=True))
