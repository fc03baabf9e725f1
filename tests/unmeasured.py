"""Numbers of the pages that no file of results holds: versions, sizes, limits, and runs that are not on record.

``tests/test_figures.py`` removes these texts from a page before it looks for figures that :mod:`tests.figures` lacks.
"""

from __future__ import annotations

OTHERS = {
    "README.md": ["Warp 1.19", "warp-lang 1.17, 1.18 or 1.19", "Python 3.10 to 3.14", "Python 3.10 or newer"],
    "docs/api.md": [],
    "docs/commands.md": [],
    "docs/measured.md": [
        "unmodified Warp 1.19", "at most 38 KB of 1,060 drawn functions, not on record", "driver 580.159, CUDA 13.0",
        "torch 2.11",
        "one is slower by more than 3 %", "for a form that varies by 13 % from run to run", "With 100 repeats",
        "that form has 0.993", "have 0.981 and 0.982", "on an H100, and",
        "in 24 processes", "each multiprocessor ran 16 of the 2,112 blocks before, and runs 15 to 18 of them now",
    ],
    "docs/policy.md": [],
    "docs/remote.md": [
        "waits at most 0.02 s", "Misses within 0.2 s do not count", "0.4 GB/s or so from the same machine",
        "the limits are 0.25 and 0.2.", "holds it below 0.05 s",
    ],
    "docs/cluster.md": [
        "an error after 5 s", "costs some 10 ms more than in own processes (not on record)",
        "(not on record), all processes together took 26.7 s for the eight modules with Dask and 20.9 s without, 1.28 "
        "times as much. 4.2 s of that are the four idle loops and profilers of Dask's workers over 23 s, and 0.9 s "
        "compilers.",
        "every 10 ms",
    ],
    "docs/cache.md": [
        "a hit of 5 MB", "A file has 76 MB", "`build_wait_s` (120 s)", "After 5 s", "NVRTC before 12.8",
        "0.25 to 0.35 s for them in a new compiler process, and 0.1 s with precompiled headers (not on record)",
        "takes about 0.15 s (not on record)",
        "costs 0.1 s once (not on record)", "take 1.6 ms (not on record)",
    ],
    "docs/loops.md": [
        "From Warp 1.19 on",
        "reached 0.95 of cuBLAS in place of 0.89 at 4096, and 128x256x64 tiles of fp16 0.86 in place of 0.94 at 8192 "
        "(not on record)",
        "loops over 8192 had 0.92 of cuBLAS's speed in fp16, and 0.91 and 0.95 in bf16 (not on record)", "On an H100",
        "up to 14 % fewer TFLOP/s: 0.43 of cuBLAS for 64x64 tiles of fp16, and 0.77 for 128x128 tiles of tf32 with "
        "contiguous columns of B (not on record)",
        "5,600 of 78,000 cycles in a product of 4096 in fp16 (not on record)",
        "took 414 us on an H200, and takes 250 us with vectors (not on record)",
    ],
    "docs/tuning.md": [
        "takes 1.4 to 1.5 s more", "took 5.1 us and 2.0 to 2.5 ms (not on record)",
        "takes 2 to 4 s, because it also builds them. 4096 x 4096 x 4096 takes 8 to 10 s, because its launches are "
        "long. Small shapes take 0.1 s (not on record)",
        "takes about 1.5 ms (not on record)", "release (1.19)", "more than 1.5 times the leader's", "5 % above the",
        "takes about 0.1 to 1 ms",
    ],
    "docs/matmul.md": [
        "On an H100, the batches of fp16 reached 1.03, 0.95 and 0.96, and the skinny products "
        "0.99 (not on record)", "alpha=1.0, beta=0.0", "with Warp 1.19 and newer",
        "have 64x128 tiles with Warp 1.19", "that skipped a division of about 0.1 us",
        "about 2 us plus the launch (not on record)", "torch 2.11",
        "by up to 0.1, and so do different machines",
        "the 60 products reached 0.59 of torch (not on record)",
        "sizes are 64 to 8192, and 8 to 512 in batches of 2 to 2048. A third of them, and half in batches, need not be "
        "multiples of 8",
    ],
    "docs/clients.md": [],
    "docs/recorded.md": ["Warp 1.19", "takes about 100 µs (not on record)"],
}  # fmt: skip
#: Pages whose figures are mostly not on record, and the sentence that says so.
MOSTLY_NOT_ON_RECORD = {
    "docs/templates.md": "Figures without a file of results beside them were measured once, while the code was written,"
    " and are not on record."
}
