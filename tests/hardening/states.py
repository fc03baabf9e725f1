"""States of the file system in which the cache cannot be used."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path


def _with_mode(mode: int, inside: str = "") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        root = folder / "cache"
        (root / inside).mkdir(parents=True)
        root.chmod(mode)
        return root

    return make


def _below_no_permission(folder: Path) -> Path:
    (folder / "home").mkdir(mode=0)
    return folder / "home" / ".cache" / "warp_tiles"


def _part_without_permission(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        place = folder / "cache" / name
        place.mkdir(parents=True)
        for path in place.parents:
            if path.is_relative_to(folder / "cache"):
                path.chmod(0o700)
        place.chmod(0)
        return folder / "cache"

    return make


def _of_another_user(folder: Path) -> Path:
    root = folder / "cache"
    root.mkdir(mode=0o700)
    os.chown(root, 65534, 65534)
    return root


def _long_name(folder: Path) -> Path:
    return folder / ("n" * 300)


def _file(folder: Path) -> Path:
    (folder / "cache").write_text("in the way")
    return folder / "cache"


def _loop(folder: Path) -> Path:
    (folder / "cache").symlink_to(folder / "cache")
    return folder / "cache"


def _link(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "elsewhere" / "loop").mkdir(parents=True, mode=0o700)
        place = folder / "cache" / name
        place.parent.mkdir(parents=True, mode=0o700)
        place.parent.chmod(0o700)
        (folder / "cache").chmod(0o700)
        place.symlink_to(folder / "elsewhere")
        return folder / "cache"

    return make


def _no_working_folder(folder: Path) -> Path:
    (folder / "gone").mkdir()
    os.chdir(folder / "gone")
    (folder / "gone").rmdir()
    return folder / "cache"


def _no_home(home: str | None) -> Callable[[Path], str]:
    """The default folder, for a user without an entry in the user database. The caller restores both."""

    def no_entry(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    def make(folder: Path) -> str:
        for name in ("HOME", "XDG_CACHE_HOME"):
            os.environ.pop(name, None)
        if home is not None:
            os.environ["HOME"] = home
        pwd.getpwuid = no_entry
        return ""

    return make


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "cache")
    return folder / "cache"


STATES: dict[str, Callable[[Path], Path | str]] = {
    "no permission": _with_mode(0, "tuning/loop"),
    "below a folder without permission": _below_no_permission,
    "a layout without permission": _part_without_permission("v1"),
    "tuning records without permission": _part_without_permission("tuning"),
    "facts without permission": _part_without_permission("toolchain"),
    "open to all": _with_mode(0o777),
    "of another user": _of_another_user,
    "a long name": _long_name,
    "a file in its place": _file,
    "a FIFO in its place": _fifo,
    "a link to itself": _loop,
    "read-only": _with_mode(0o500),
    "a link in place of the layout": _link("v1"),
    "a link in place of the records": _link("tuning"),
    "a link in place of the facts": _link("toolchain"),
    "no working folder": _no_working_folder,
    "no home folder": _no_home(None),
    "a relative home folder": _no_home("home"),
}
