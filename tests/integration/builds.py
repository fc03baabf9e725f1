"""A tiny kernel and queries of build results, shared by the tests of builds."""

import re
from pathlib import Path
from typing import Any

from tests.integration.helpers import FORWARD_ONLY, cubin_symbols, gemm

TINY = gemm(m=8, n=8, k=8, decorator=FORWARD_ONLY)


def counts(record: dict[str, Any]) -> tuple[int, int]:
    """The numbers of functions that were built and that the cache had."""
    return record["lto_builds"], record["lto_hits"]


def kernels_in(cubin: Path) -> set[str]:
    """Kernels of a cubin without Warp's hashes, e.g. ``gemm_forward``. Helpers of the compiler do not count."""
    symbols = cubin_symbols(cubin.read_bytes())
    assert symbols.undefined <= {"__assertfail", "vprintf"}, "neither the cubin nor the driver has a called function"
    return {re.sub(r"_[0-9a-f]{8}_cuda_kernel", "", name) for name in symbols.functions if name[0] != "$"}
