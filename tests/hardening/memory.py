"""How much memory a refusal takes."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

from tests.interpreter import python


@contextmanager
def less_than(size_bytes: int) -> Iterator[None]:
    """The block allocates less than this at a time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size_bytes
    finally:
        tracemalloc.stop()


def kilobytes_of_refusal(before: str, call: str, error: type[Exception], reason: str = "") -> int:
    """Kilobytes that a new process needs for a call that raises an error of the package, after other statements."""
    code = f"""
import resource
from pathlib import Path
from warp_tiles.errors import {error.__name__}
{before}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    {call}
except {error.__name__} as error:
    assert {reason!r} in str(error), error
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    return int(python("-c", code).stdout)
