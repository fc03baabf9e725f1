"""Which folder an error below a trusted root is about."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from warp_tiles.util.trusted_folder import TrustedFolder

DENIED = PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(
    ("folder", "mode", "error", "expected"),
    [
        ("modules", 0o700, DENIED, "modules"),
        ("modules", 0o777, DENIED, ""),  # the root is refused
        ("modules", 0o700, OSError(errno.ENOSPC, "No space left on device"), ""),
        ("", 0o700, DENIED, ""),
    ],
)
def test_an_error_names_the_root_unless_it_is_sound(
    folder: str, mode: int, error: OSError, expected: str, tmp_path: Path
) -> None:
    tmp_path.chmod(mode)
    assert TrustedFolder(tmp_path, folder).unusable(error) == tmp_path / expected


def test_a_missing_root_is_named(tmp_path: Path) -> None:
    assert TrustedFolder(tmp_path / "missing", "modules").unusable(DENIED) == tmp_path / "missing"
