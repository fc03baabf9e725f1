"""docs/formats.md names the tests of this folder and of tests/store, and each of them exists."""

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER.parents[1] / "docs" / "formats.md"
OTHERS = {
    "test_security_page.py", "test_installations.py", "test_children.py", "test_command_line.py",
    "test_shared_cache.py", "test_commands.py", "test_envelope.py",
    "test_transfer.py",
}  # no threats  # fmt: skip


def test_every_row_names_a_test_that_exists() -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE.read_text("utf-8")))
    tests = [*FOLDER.glob("test_*.py"), *FOLDER.with_name("store").glob("test_[!c]*.py")]
    assert named == {path.name for path in tests} - OTHERS
