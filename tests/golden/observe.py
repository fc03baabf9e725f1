"""Plans the corpus without a GPU, and collects the decisions and the digests of the finished sources."""

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import warp as wp

import warp_tiles
from benchmarks.speed.cubin import registers, sections
from tests.golden.corpus import Case
from warp_tiles._warp.internals import find
from warp_tiles.codegen import prelude
from warp_tiles.compile import sources
from warp_tiles.compile.find import dotted, find_toolchain
from warp_tiles.compile.sources import flatten

Entry = dict[str, Any]  # "source": digest, "lines": decisions
HEADERS = {
    name: getattr(prelude, name) for name in ("REVERSED_HEADER", "STAGED_HEADER", "MODULE_HEADER", "SOLVER_HEADER")
}
LOOP_VALUES = ("products", "stages", "instruction", "accumulators", "operands", "reverse_instructions", "registers",
               "shared_bytes", "resident_blocks")  # fmt: skip
LOOP_CODES = ("gradients_code", "reverse_code", "store_code")


@contextmanager
def planning() -> Iterator[None]:
    """Enables warp_tiles with the default settings and an empty cache."""
    with tempfile.TemporaryDirectory() as folder, warp_tiles.enabled(), warp_tiles.override(cache_dir=folder):
        yield


def observe(case: Case, arch: int) -> Entry:
    """Plans one case for one compute capability, inside :func:`planning`."""
    module, threads = case.make(arch)
    with warp_tiles.override(**dict(case.settings)):
        plan, source = planned(module, arch, threads)
    headers, text = without_headers(source)
    return {"source": digest(text), "headers": headers, "lines": [*case.lines(arch), *decisions(plan)]}


def planned(module: Any, arch: int, threads: int) -> tuple[warp_tiles.ModulePlan, str]:
    """The plan of a module and its finished source, inside :func:`planning`."""
    texts: list[str] = []
    builder = find("context").ModuleBuilder
    codegen = builder.codegen

    def kept(self: Any, device: str) -> str:
        texts.append(codegen(self, device))
        return texts[-1]

    with patch.object(builder, "codegen", kept):
        return warp_tiles.plan(module, arch=arch, block_dim=threads), texts[-1]


def digest(text: str) -> str:
    """A short digest of a text, without what depends on other modules of the process or on files."""
    text = re.sub(r"^// /.*\.py:\d+$|<L \d+>$", "", _without_hash(text), flags=re.M)  # files and lines of the kernel
    return hashlib.sha256(_renumbered(text).encode("utf-8")).hexdigest()[:10]


def _renumbered(text: str) -> str:
    """A source whose functions, which Warp numbers over all modules, are numbered from 0."""
    names = re.findall(r"^static CUDA_CALLABLE .* (\w+_\d+)\($", text, re.M)
    numbers = {name: str(n) for n, name in enumerate(dict.fromkeys(n.removeprefix("adj_") for n in names))}
    pattern = "|".join(map(re.escape, numbers))
    replaced = {name: name.rpartition("_")[0] + f"_{number}" for name, number in numbers.items()}
    return re.sub(rf"\b(adj_)?({pattern})\b", lambda m: (m[1] or "") + replaced[m[2]], text) if numbers else text


def _without_hash(text: str) -> str:
    return re.sub(r"_[0-9a-f]{8}_cuda_kernel", "_cuda_kernel", text)


def header_texts() -> dict[str, str]:
    """The device functions that a source may contain, by the name of their header; larger ones first."""
    folder = sources.kernels_folder()
    return {name: flatten(f'#include "{path}"', folder) for name, path in HEADERS.items()}


def header_digests() -> dict[str, str]:
    """Digests of the device functions by header."""
    return {name: digest(text) for name, text in header_texts().items()}


def without_headers(text: str) -> tuple[list[str], str]:
    """The headers that a source contains, and the rest of it."""
    found = []
    for name, header in header_texts().items():
        if header in text:
            found.append(name)
            text = text.replace(header, f"/* {name} */")
    return found, text


def decisions(plan: warp_tiles.ModulePlan) -> Iterator[str]:
    """Yields the decisions of a plan with the codes of their reasons: a line for each loop and each function."""
    yield f"registers={plan.register_limit}"
    for number, loop in enumerate(plan.loops):
        values = ((name, getattr(loop, name)) for name in LOOP_VALUES)
        values = ((name, "+".join(value) if isinstance(value, tuple) else value) for name, value in values)
        whole = " whole" if loop.kernel in plan.whole_products else ""
        codes = ((name, getattr(loop, name)) for name in LOOP_CODES)
        found = (f"{name}={value}" for name, value in (*values, *codes, ("codes", "+".join(loop.codes))) if value)
        yield f"loop {number}: {loop.state}{whole} {' '.join(found)}"
    for planned in plan.to_json()["functions"]:
        config = {name: value for name, value in (planned["tile_config"] or {}).items() if value not in (1, False)}
        symbol, provider = planned["symbol"].rpartition("_sm")[0], planned["provider"] if planned["needed"] else "-"
        tile = " ".join(f"{name}={value}" for name, value in config.items())
        code = " ".join(filter(None, (planned["code"], planned["no_gradient_code"])))
        yield " ".join(filter(None, (planned["role"], symbol, provider, planned["choice"], tile, code)))


# ---- cubins


def compiled(case: Case, arch: int) -> dict[str, str]:
    """Compiles one case for one compute capability, inside :func:`planning`.

    Returns:
        Registers, shared bytes and the digest of the machine code, by kernel.
    """
    module, threads = case.make(arch)
    module = getattr(module, "module", module)  # of a kernel
    wp.set_module_options({"block_dim": threads}, module=module)
    with tempfile.TemporaryDirectory() as folder, warp_tiles.override(**dict(case.settings)):
        (output,) = wp.compile_aot_module(module, arch=arch, module_dir=folder, use_ptx=False)
        cubin = Path(output).read_bytes()
        (meta,) = (json.loads(path.read_text()) for path in Path(folder).glob("*.meta"))
    code = {name.removeprefix(".text."): content for name, content in sections(cubin) if name.startswith(".text.")}
    return {
        _without_hash(name): f"{count} registers, {meta.get(f'{name}_smem_bytes', 0)} shared bytes, "
        f"code {hashlib.sha256(code[name]).hexdigest()[:12]}"
        for name, count in sorted(registers(cubin).items())
        if name in code
    }


def compiler() -> str:
    """The releases of the compiler and the linker that this machine has."""
    found = find_toolchain()
    return f"NVRTC {dotted(found.nvrtc_version)}, nvJitLink {dotted(found.nvjitlink_version)}"


# ---- files


def packed(entries: Mapping[str, Mapping[int, Entry]], rest: Mapping[str, Any]) -> dict[str, Any]:
    """The entries by case and architecture as JSON values.

    Each line is kept once, and named by its number. Architectures with equal decisions have one list.
    """
    numbers: dict[str, int] = {}
    cases: dict[str, Any] = {}
    for name, of_archs in entries.items():
        groups: list[tuple[list[str], list[int], dict[str, str]]] = []
        for arch, entry in of_archs.items():
            lines = [numbers.setdefault(line, len(numbers)) for line in entry["lines"]]
            group = next((found for found in groups if found[:2] == (entry["headers"], lines)), None)
            if group is None:
                group = entry["headers"], lines, {}
                groups.append(group)
            group[2][str(arch)] = entry["source"]
        cases[name] = [[" ".join(headers), lines, sources] for headers, lines, sources in groups]
    return {**rest, "cases": cases, "lines": list(numbers)}


def unpacked(data: Mapping[str, Any]) -> dict[str, dict[int, Entry]]:
    """Inverse of :func:`packed`."""
    return {
        name: {
            int(arch): {"source": text, "headers": headers.split(), "lines": [data["lines"][n] for n in numbers]}
            for headers, numbers, sources in groups
            for arch, text in sources.items()
        }
        for name, groups in data["cases"].items()
    }
