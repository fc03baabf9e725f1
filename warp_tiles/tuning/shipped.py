"""The tuning records that the package ships, by subject and GPU. Importing this module does not import the tuner."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warp_tiles.tuning.record import Record

SHIPPED_RECORDS = Path(__file__).resolve().parent / "records"


def shipped_file(subject: str, gpu: str) -> Path:
    """The file of the records of a subject for a GPU, by the GPU's name."""
    from warp_tiles.tuning.tuning_key import slug

    return SHIPPED_RECORDS / slug(subject) / f"{slug(gpu)}.json"


@functools.cache
def shipped_records(subject: str, gpu: str, kind: tuple[int | None, int] | None = None) -> tuple[Record, ...]:
    """The records of a subject that the package ships for a GPU. Compilers and versions do not count.

    GPUs with equal multiprocessors can have different memory, as an H100 and an H200 have. ``kind`` is the architecture
    and the multiprocessors, which must be those of the records; None if only the name of the GPU is known.
    """
    from warp_tiles.tuning.record import decode_records

    path = shipped_file(subject, gpu)
    found = decode_records(path.read_bytes()) if path.is_file() else []
    places = [(record, record.key.environment) for record in found]
    return tuple(
        record
        for record, where in places
        if where.device == gpu and kind in (None, (where.arch, where.multiprocessors))
    )
