"""Locks between processes, on file systems with and without them."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from warp_tiles.util import trusted_folder
from warp_tiles.util.trusted_folder import NoLocksError, TrustedFolder

CODES = [pytest.param(getattr(errno, name), id=name) for name in ("ENOSYS", "ENOLCK", "ENOTSUP")]


def without_flock(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let ``flock()`` fail."""

    def fail(*args: object) -> None:
        raise OSError(code, "flock() fails")

    monkeypatch.setattr(fcntl, "flock", fail)


@pytest.fixture
def files(tmp_path: Path) -> TrustedFolder:
    return TrustedFolder(tmp_path)


def test_a_held_lock_is_waited_for_and_names_its_holder(files: TrustedFolder) -> None:
    with files.lock("a.lock", 0.0), pytest.raises(TimeoutError, match=rf"a\.lock was held for 0 s by .*{os.getpid()}"):
        files.lock("a.lock", 0.0).__enter__()
    with files.lock("a.lock", 0.0):
        assert (files.root / "a.holder").exists()
    assert not (files.root / "a.holder").exists()


@pytest.mark.filterwarnings("ignore:.*SoftFileLock")  # from filelock 3.24 to 3.29
@pytest.mark.parametrize("code", CODES)
def test_a_file_system_without_locks_is_named(monkeypatch: pytest.MonkeyPatch, files: TrustedFolder, code: int) -> None:
    without_flock(monkeypatch, code)
    for _ in range(2):  # a first attempt leaves nothing that a second one takes for a held lock
        with pytest.raises(NoLocksError, match="no lock on this file system") as caught:
            files.lock("a.lock", 0.0).__enter__()
        assert caught.value.errno == code


def test_other_errors_are_no_missing_locks(monkeypatch: pytest.MonkeyPatch, files: TrustedFolder) -> None:
    without_flock(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="flock") as caught:
        files.lock("a.lock", 0.0).__enter__()
    assert not isinstance(caught.value, NoLocksError)


def test_a_deadlock_within_a_thread_is_an_error_of_its_own(
    files: TrustedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusted_folder, "PATIENCE_S", 0.1)
    with files.lock("a.lock", 0.0), pytest.raises(RuntimeError, match="Deadlock"):
        files.lock("a.lock", -1.0).__enter__()
