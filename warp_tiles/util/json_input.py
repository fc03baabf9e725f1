"""JSON from files that somebody else may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from warp_tiles.util.files import read_whole

MAX_BYTES = 32 << 20


def read_json(path: Path, most_bytes: int = MAX_BYTES) -> Any:
    """Read a JSON file.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger than ``most_bytes``.
        ValueError: It is not JSON in UTF-8, or is nested too deeply.
    """
    data, _ = read_whole(path, most_bytes)
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
