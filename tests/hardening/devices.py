"""Device nodes that a test may lose: its own where it may create them, else those of the system."""

import os
import stat
from pathlib import Path

import pytest

_NUMBERS = {"null": (1, 3), "full": (1, 7)}  # https://www.kernel.org/doc/Documentation/admin-guide/devices.txt


def device(folder: Path, name: str) -> Path:
    """A device node that acts as ``/dev/<name>``. A process that may not create one cannot replace those of the system.

    Args:
        folder: Receives the node.
        name: ``null`` or ``full``.
    """
    path = folder / name
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*_NUMBERS[name]))
        with open(path, "wb"):  # the file system of the folder may have no devices
            return path
    except PermissionError:
        path.unlink(missing_ok=True)
        if os.geteuid() == 0 and os.access("/dev", os.W_OK):
            pytest.skip("no device node can be created here, and the test could replace those of the system")
        return Path("/dev") / name
