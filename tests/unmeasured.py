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
    "docs/design.md": [
        "Clusters of four took up to 1.7 times as long",
        "5120x1024x448 of fp16 took 25.3 us with rows of 912 bytes and 16.8 us with 896, and torch 13.3 and 11.5. Rows "
        "of 960 bytes, which begin at multiples of 64, took 17 us. With `cp.async.ca` the first two took 22.9 and 19.6 "
        "us, and",
        "a product of 4096 took 417.6 us in place of 408, and the product 195 in place of 193",
        "reached 0.70 of cuBLAS", "before the loop 0.91", "they reached 0.98 (not on record)",
        "version 0.4.0 (nvidia-mathdx 25.6)",
        "gradients of a product took 503 us in place of 429 (fp16, 4096; not on record)",
        "such a block took 1.8 us for a step of 128x128x64 tiles of fp16, in place of 0.3 to 0.5 us (not on record)",
        "which takes 20 to 40 registers", "16x16x256 products of fp64 reached 0.86 of their speed (not on record)",
        "256x128x32 tiles of tf32 took 469 us at 4096, takes 424, and took 461 with a sum of 64 bits",
        "128x128x32 tiles of fp16 with 256 threads took 264 us and take 256",
        "128x64x16 tiles with 256 threads took 2,980 us in place of 2,710",
        "one resident block fewer, 0.78 of torch in place of 0.86 (not on record)",
        # variants without a gain, all on one H200 (not on record)
        "with few blocks: at most 5 % faster than plain `cp.async` with as many stages, and often slower",
        "took 48 us with three stages of 128x128x64 tiles and 128 threads, and takes 35 with six",
        "113 of them took 0.22 us for 64x64x64 tiles of fp16, which is 3.9 cycles for each at 1.98 GHz (not on record)",
        "which took 2 to 3 us for a block on an H100 (not on record)",
        "0.62 of the speed of 128x256 at 8192",
        "192x128 with 384 threads: 0.62 as well, because the 64 rows of B do not divide among passes of 24 rows",
        "201 us in place of 198 for fp16 of 4096", "3,060 us in place of 2,820 with 256",
        "predicts 0.72 FMAs in a cycle for the double buffers, and counters showed 0.69 (neither on record)",
        "1.13 cycles for an FMA by the model, in place of 1.39 (not on record)",
        "reached 0.77 of cuBLAS in place of 0.91 (not on record)", "fit the instruction cache: 0.21 (not on record)",
        "1.47 cycles for an FMA by the model",
        "keeps the banks: 1.16 by the model, and not measured (neither on record)",
        "copies between the products: 0.83.", "around the loads of fragments: 0.85, as without",
        "With `m16n8k16`: 0.78.", "sets of fragments apart: 0.83, and 390 TFLOP/s in place of 400 for fp16",
        "| 132, or one for each tile | 0.94 to 0.95 | 0.95 to 0.96 | 0.99 to 1.01 |",
        "| one for each tile | 0.99 to 1.01 | 0.97 | 1.01 to 1.04 |",
        "| 132, which load their next tile before they store | 0.97 to 1.00 | 1.00 | 1.02 to 1.05 |",
        "| TMA by a separate warp | 132 | 0.97 to 0.99 | 1.00 to 1.01 | 1.02 to 1.03 |",
        "multicast | 132 | 0.94 | 0.99 | 1.02 to 1.03 |",
        "by a separate warpgroup | 132 | 0.89 to 0.90 | 0.88 to 0.89 | 0.87 |",
        "4096 takes 193 us in place of 188",
        "64x4096x4096 took 13.1 us in place of 13.7 to 14.3, but 256x4096x4096 and batches of 256x256x256 took 1 to 2 "
        "% longer",
        # starts of blocks, and lean kernels (not on record)
        "take 2,683 us at 4096 where 64x64 tiles take 2,866. 4096x128x1024 takes 7.74 us in place of 7.97",
        "bf16 takes 79 us in place of 73", "had 0.94 to 1.07 of their speed at 4096, and 0.92 to 0.99 at 8192",
        "256x256x256 in fp16 take 130 to 149 us in place of 120", "as fast as 128 threads, or up to 1.2 times as long",
        "take 73 us in place of 75 with one distance, and 80 to 95 with others",
        "five or six stages 537 TFLOP/s in place of 549, and a barrier for two iterations 541",
        "Adding to gradients takes 6 % longer than writing them",
        "45.8 TFLOP/s for 128x128x32 tiles, and 40.3 with a stage more (not on record)",
        "0.72 in place of 0.74.", "0.56 in place of 0.62.",
        "about 2.4 TB/s of the L2 cache", "took 2.28 ms in place of 1.42 with tiles of 128x128 (not on record)",
        # tensor copies from a table of maps, on one H100 (not on record)
        "| fp16, 128x256, 64, 256 threads | 0.89 | 0.895 | 0.90 | 0.90 |",
        "| fp16, 128x128, 64, 128 threads | 0.80 | 0.76 | 0.835 | 0.83 |",
        "| fp16, 64x64, 64, 128 threads | 0.43 | 0.37 | 0.44 | 0.41 |",
        "| tf32, 256x128, 32, 256 threads | 0.85 | 0.90 | 0.90 | 0.90 |",
        "| tf32, 128x128, 32, 256 threads | 0.68 | 0.73 | 0.74 | 0.685 |",
        "were slower in any case: 0.66 in place of 0.70.",
        "reached 0.94, 0.955 and 0.99 for fp16 of 2048, 4096 and 8192, in place of 0.95, 0.95 and 0.97 to 0.985, "
        "and 0.86 in place of 0.85 for tf32", "one resident block 0 to 5 % faster",
        # loops by mma.sync and of fp64, on one H100 (not on record)
        "spends 60 to 65 % of the time in its products", "DMMA reads its operands for about 22 cycles",
        "fp16 with 128x256 tiles 0.54 in place of 0.535, 128x128, 32 0.51 in place of 0.545; fp64 with 128x64 tiles "
        "0.837 in place of 0.833 with 128 threads, and 0.77 in place of 0.90 with 256",
        "fp64 with 64x64 tiles and 128 threads 0.865 in place of 0.843, and 0.78 in place of 0.86 in `matmul`",
        "fp16: 0.51 to 0.55 in place of 0.53 to 0.555",
        "fp16 with 128x256 tiles 0.553 in place of 0.534, 128x128, 32 0.515 in place of 0.545; fp64 0.81 to 0.89 in "
        "place of 0.83 to 0.90; fp32 0.925 in place of 0.944",
        "fp16 0.86 in place of 0.89, `matmul` 0.91 in place of 0.95, and tf32 with 256x128 tiles 0.865 in place of "
        "0.855",
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
