"""What the tests of builds share: a tiny kernel, and what is looked up of a build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.integration.helpers import (
    cubin_symbols,
    gemm,
)

FORWARD_ONLY = "@wp.kernel(enable_backward=False)"
TINY = gemm(m=8, n=8, k=8, decorator=FORWARD_ONLY)


def counts(record: dict[str, Any]) -> tuple[int, int]:
    """Variants built and variants found in the cache."""
    return record["lto_builds"], record["lto_hits"]


def kernels_in(cubin: Path) -> set[str]:
    """Kernels of a cubin without Warp's hashes, e.g. ``gemm_forward``."""
    symbols = cubin_symbols(cubin.read_bytes())
    assert symbols.undefined <= {"__assertfail", "vprintf"}, "a call to a function that not even the driver has"
    return {re.sub(r"_[0-9a-f]{8}_cuda_kernel", "", name) for name in symbols.functions}
