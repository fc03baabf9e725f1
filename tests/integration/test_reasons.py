"""The plan of a kernel of the corpus shows its code, and each code has such a kernel or another test."""

import re

import pytest

import warp_tiles
from tests.integration.helpers import REPOSITORY, WARP_VERSION, load
from tests.reasons import KERNELS, OTHERS, codes_of
from warp_tiles.gemm.rejected import REASONS

pytestmark = pytest.mark.usefixtures("enabled", "warp_warnings")


@pytest.mark.parametrize("code", KERNELS)
def test_the_plan_of_its_kernel_has_the_code(code: str) -> None:
    kernel = KERNELS[code]
    if kernel.since > WARP_VERSION:
        pytest.skip(f"Warp {kernel.since} or newer")
    module = load(kernel.text, **{"block_dim": kernel.threads, **kernel.options})
    with warp_tiles.override(**kernel.settings):
        plan = warp_tiles.plan(module, arch=kernel.arch, block_dim=kernel.threads)
    assert code in codes_of(plan), plan


def test_each_code_has_a_kernel_or_another_test() -> None:
    assert sorted([*KERNELS, *OTHERS]) == sorted(REASONS)
    for code, (reason, path) in OTHERS.items():
        assert re.search(f"[\"']{code}[\"']", (REPOSITORY / path).read_text("utf-8")), (code, reason)
