"""The number of wavefronts that one access of a warp takes. A wavefront moves 128 bytes of shared memory."""

from __future__ import annotations

from functools import lru_cache

from warp_tiles.gemm.hardware import BANK_BYTES, BANKS, LANES


@lru_cache(maxsize=4096)
def wavefronts_of(addresses: tuple[int, ...], size_bytes: int) -> int:
    """Wavefronts of one access of all lanes.

    The hardware serves lanes in groups of up to 128 bytes: all 32 lanes with up to 4 bytes each, half of them with 8
    bytes, a quarter with 16. A group has twice as many lanes if every lane shares its address with the lane next to it
    or the next but one. It takes as many wavefronts as its busiest bank has distinct words. Measured on an H200
    (docs/templates.md).

    Args:
        addresses: Byte offset of each of the 32 lanes.
        size_bytes: Bytes that each lane accesses, at most 16.
    """
    group = min(LANES, LANES * BANK_BYTES // max(size_bytes, BANK_BYTES))
    shared = any(all(addresses[i] == addresses[i ^ other] for i in range(LANES)) for other in (1, 2))
    if shared and group < LANES:
        group *= 2
    total = 0
    for start in range(0, LANES, group):
        words: dict[int, set[int]] = {}
        for address in addresses[start : start + group]:
            for word in range(address // BANK_BYTES, (address + size_bytes - 1) // BANK_BYTES + 1):
                words.setdefault(word % BANKS, set()).add(word)
        total += max(len(found) for found in words.values())
    return total
