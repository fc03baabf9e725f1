"""Claims: objects that say which machine builds a key, so that others wait for it and do not build it too.

Anybody who can write to a store can plant claims, and a machine can die with one. So a claim counts for a minute, and a
process waits for claims only so long in all. A second build of a key does no harm.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass

from warp_tiles.util.processes import described, this_process

#: Seconds for which a claim counts.
VALID_S = 60.0
#: Seconds after which a waiting machine says so.
PATIENCE_S = 5.0
#: Bytes of a claim that are read.
MAX_BYTES = 4096


@dataclass(frozen=True)
class Claim:
    """The claim of one process.

    Attributes:
        data: The content of its object, which is unique.
    """

    data: bytes

    @classmethod
    def new(cls) -> Claim:
        """A claim of this process, from now on."""
        by = this_process().decode("utf-8", "replace")
        return cls(json.dumps({"time": time.time(), "by": by, "id": secrets.token_hex(8)}).encode("utf-8"))

    @property
    def counts(self) -> bool:
        """True if it is a claim, and younger than :data:`VALID_S`."""
        try:
            age_s = time.time() - float(json.loads(self.data)["time"])
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            return False
        return -VALID_S < age_s < VALID_S

    @property
    def holder(self) -> str:
        """The process, for a message."""
        try:
            return described(str(json.loads(self.data)["by"]).encode("utf-8", "replace"))
        except (ValueError, TypeError, LookupError, RecursionError):
            return described(b"")
