"""Ranges for NVIDIA's profilers, by the optional package ``nvtx``."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from warp_tiles.util.warn import WarnedTexts, warn

DOMAIN = "warp_tiles"
_warned = WarnedTexts()


def marked(active: bool, name: str) -> AbstractContextManager[Any]:
    """A with-block that profilers show as a range of the domain ``warp_tiles``.

    Args:
        active: The setting ``nvtx``. If it is off, nothing is imported and the block is not marked.
        name: The text of the range.

    Warns:
        RuntimeWarning: Once, if the package nvtx is missing. Then blocks are not marked.
    """
    if not active:
        return contextlib.nullcontext()
    try:
        from nvtx import annotate
    except ImportError:
        warn(
            "the setting nvtx is on, and the package nvtx is not installed, so no ranges are marked. "
            "Remedy: pip install 'warp-tiles[nvtx]'",
            _warned,
        )
        return contextlib.nullcontext()
    found: AbstractContextManager[Any] = annotate(name, domain=DOMAIN)
    return found
