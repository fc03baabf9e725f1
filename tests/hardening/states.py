"""States of the file system in which the cache cannot be used."""

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


def _layout_without_permission(folder: Path) -> Path:
    (folder / "cache" / "v2").mkdir(parents=True)
    (folder / "cache").chmod(0o700)
    (folder / "cache" / "v2").chmod(0)
    return folder / "cache"


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


def _linked_layout(folder: Path) -> Path:
    (folder / "elsewhere").mkdir(mode=0o700)
    (folder / "cache").mkdir(mode=0o700)
    (folder / "cache" / "v2").symlink_to(folder / "elsewhere")
    return folder / "cache"


def _no_working_folder(folder: Path) -> Path:
    (folder / "gone").mkdir()
    os.chdir(folder / "gone")
    (folder / "gone").rmdir()
    return folder / "cache"


def _no_home(folder: Path) -> str:
    """The default folder, for a user without an entry in the user database. The caller restores both."""

    def no_entry(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    pwd.getpwuid = no_entry
    return ""


STATES: dict[str, Callable[[Path], Path | str]] = {
    "no permission": _with_mode(0, "tuning/loop"),
    "a layout without permission": _layout_without_permission,
    "open to all": _with_mode(0o777),
    "of another user": _of_another_user,
    "a long name": _long_name,
    "a file in its place": _file,
    "a link to itself": _loop,
    "read-only": _with_mode(0o500),
    "a link in place of the layout": _linked_layout,
    "no working folder": _no_working_folder,
    "no home folder": _no_home,
}
