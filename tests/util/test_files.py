"""Creating folders: several threads at once, and where it fails."""

import os
from pathlib import Path

import pytest

from warp_tiles.util.files import make_private_folders


@pytest.mark.parametrize("level", [1, 2, 3])
def test_folders_that_another_thread_creates_meanwhile_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    wanted = tmp_path / "a" / "b" / "c"
    others = [wanted.parent.parent, wanted.parent, wanted][:level]
    mkdir = os.mkdir

    def created_meanwhile(path: os.PathLike[str], mode: int = 0o777) -> None:
        try:
            mkdir(path, mode)
        except FileNotFoundError:
            while others:
                mkdir(others.pop(0))  # stands for another thread that is faster
            raise

    monkeypatch.setattr(os, "mkdir", created_meanwhile)
    make_private_folders(wanted)
    assert wanted.is_dir()


def test_a_folder_that_cannot_be_created_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def refused(path: os.PathLike[str], mode: int = 0o777) -> None:
        if Path(path).name == "c":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", refused)
    with pytest.raises(FileNotFoundError) as caught:
        make_private_folders(tmp_path / "a" / "c")
    assert caught.value.filename == str(tmp_path / "a" / "c")
    assert (tmp_path / "a").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        make_private_folders(tmp_path / "file")
