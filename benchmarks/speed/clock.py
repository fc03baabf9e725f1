"""Kernels of benchmarks: one reads the clock of a multiprocessor, one marks a place in a profile; GELU for a layer."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,valid-type"

import warp as wp

_SPIN = """
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    const long long clock = clock64();
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
    clocks[slot] = double(clock64() - clock) / double(now - begin);
"""


@wp.func_native(_SPIN)
def _spin(clocks: wp.array(dtype=wp.float64), slot: int, nanoseconds: wp.uint64): ...


@wp.kernel(enable_backward=False, module="unique")
def read_clock(clocks: wp.array(dtype=wp.float64), slot: int, nanoseconds: wp.uint64):
    """Write clocks per nanosecond, which are GHz, into a slot."""
    _spin(clocks, slot, nanoseconds)


@wp.kernel(enable_backward=False, module="unique")
def separator():
    """Marks a place among the kernels of a profile."""


@wp.func
def gelu(x: wp.float32):
    return 0.5 * x * (1.0 + wp.erf(x * 0.70710678))
