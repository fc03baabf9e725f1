"""Files that commands write on request, while another exception is on its way."""

from pathlib import Path

import pytest

from warp_tiles.cli.common import write_reports
from warp_tiles.errors import BuildError, OutputError

REPORT = {"builds": [], "modules": []}


def write(page: Path, ended: BaseException | None) -> None:
    """Write a report to a path that is a folder, at the end of a block that an exception ends."""
    try:
        if ended is not None:
            raise ended
    finally:
        write_reports(page, None, REPORT, "title", {})


@pytest.mark.parametrize("ended", [None, SystemExit(0)])
def test_a_report_that_cannot_be_written_is_an_error(ended: BaseException | None, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write(tmp_path, ended)


@pytest.mark.parametrize("ended", [BuildError("no such symbol"), KeyboardInterrupt(), SystemExit(3)])
def test_it_does_not_hide_another_error(
    ended: BaseException, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(ended)) as raised:
        write(tmp_path, ended)
    assert raised.value is ended
    assert f"{tmp_path} cannot be written" in capsys.readouterr().err
