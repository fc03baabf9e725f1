"""Random kernels with two loops that use the same names of tiles."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from tests.random_kernels.generate import draw
from tests.random_kernels.kernel import RandomKernel

_LOAD = re.compile(
    r"^ *(?P<name>\w+) = wp\.tile_load\(\w+, (?P<shape>shape=\S+ \S+).*?(?P<storage>, storage=\S+)?\)$", re.M
)
_VIEW = re.compile(r"^ *(?P<name>\w+) = (?P<view>wp\.tile_(transpose|view)\(.*\))$", re.M)


def with_shared_names(kernel: RandomKernel) -> RandomKernel | None:
    """Returns a kernel whose second loop uses the first one's names for tiles of equal types; None without such."""
    first, second, rest = kernel.source.partition("\n    for st")
    text = rest
    for pattern, kind in ((_LOAD, ("shape", "storage")), (_VIEW, ("view",))):
        known = [(match["name"], match.group(*kind)) for match in pattern.finditer(first)]
        for match in pattern.finditer(text):
            name = next((name for name, same in known if same == match.group(*kind)), None)
            if name is not None:
                known = [one for one in known if one[0] != name]
                text = re.sub(rf"\b{match['name']}\b", name, text)
    return (
        None
        if text == rest or "\n        if " in text
        else replace(kernel, name=f"{kernel.name}_shared", source=first + second + text)
    )


def kernels(block_dim: int) -> Iterator[RandomKernel]:
    """Yields such kernels for a block size. Warp cannot assign tiles that an ``if`` of the second loop makes."""
    for seed in itertools.count():
        kernel = draw(seed)
        if kernel.block_dim == block_dim and "shape two loops" in kernel.features:
            shared = with_shared_names(kernel)
            if shared is not None:
                yield shared
