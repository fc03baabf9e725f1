"""The kinds of what is stored below one root, each in a folder of its own. docs/design.md has the rules of each."""

from __future__ import annotations

from dataclasses import dataclass

JSON = ".json"
MAX_PAYLOAD_BYTES = 256 << 20


@dataclass(frozen=True)
class Kind:
    """One kind.

    Attributes:
        part: What it counts as in ``cache info``.
        folder: By name below the root of all caches; empty for the root itself.
        suffix: Of its files, or of the payloads of its entries.
        most_bytes: The largest file or payload that is read.
        most_files: The oldest files above this number are removed; 0 for no such limit.
        private: Its files are for this user alone, also below a shared root.
    """

    part: str
    folder: str
    suffix: str = JSON
    most_bytes: int = 4 << 20
    most_files: int = 0
    private: bool = True


#: Entries, in caches of their own.
FUNCTIONS = Kind("functions", "", ".ltoir", MAX_PAYLOAD_BYTES, private=False)
MODULES = Kind("linked_modules", "modules", ".cubin", MAX_PAYLOAD_BYTES, private=False)
HEADERS = Kind("precompiled_headers", "cuda_headers", ".pch", MAX_PAYLOAD_BYTES)
#: Tuning records. One with a thousand timings has 0.4 MB.
MEASUREMENTS = Kind("tuning_records", "tuning", private=False)
#: Sealed files, which are made again if they are lost.
SEALED = (
    TOOLCHAIN_FACTS := Kind("facts", "toolchain"),
    MISSED_KEYS := Kind("facts", "asked", most_files=256),
    ASKED_HEADERS := Kind("facts", "asked_headers", most_files=64),
)
REJECTED_SOURCES = Kind("facts", "failed", ".cu")
STARTS = Kind("facts", "starts")
KINDS = (FUNCTIONS, MODULES, HEADERS, MEASUREMENTS, *SEALED, REJECTED_SOURCES, STARTS, Kind("facts", "stats"))
