"""Makes root obey permissions, as every other user does."""

from __future__ import annotations

import ctypes
import os

_CAPABILITIES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_PR_CAPBSET_DROP = 24
_VERSION = 0x20080522  # https://man7.org/linux/man-pages/man2/capset.2.html


def obey_permissions() -> None:
    """Drop the capabilities that ignore permissions from this process and its children. Nothing to do for others."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, for numbers below 32 and then above
    if libc.capget(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for capability in _CAPABILITIES:
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
        for place in (0, 1, 2):
            sets[place] &= ~(1 << capability)
    if libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")
