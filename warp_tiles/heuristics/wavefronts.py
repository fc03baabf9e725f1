"""How many wavefronts, passes of 128 bytes through shared memory, one access of a warp takes."""

from __future__ import annotations

from functools import lru_cache

from warp_tiles.gemm.hardware import BANK_BYTES, BANKS, LANES


@lru_cache(maxsize=4096)
def wavefronts_of(addresses: tuple[int, ...], size_bytes: int) -> int:
    """Wavefronts of one access of every lane.

    Lanes go together as far as 128 bytes reach: all 32 with up to 4 bytes each, halves with 8, quarters with 16;
    twice as many where every lane shares its address with the lane next to it, or with the next but one. A group
    takes as many wavefronts as its busiest bank has different words. Found by measuring on an H200 (docs/design.md).

    Args:
        addresses: Byte offset of each of the 32 lanes.
        size_bytes: Bytes that each lane accesses: up to 16.
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
