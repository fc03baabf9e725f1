"""Compares decisions, sources and cubins of a corpus with ``golden.json``, or with those of another state.

    python -m tests.golden                     compares this checkout with tests/golden/golden.json
    python -m tests.golden --write             rewrites it, after a change that is meant
    python -m tests.golden --write FILE        writes another file
    python -m tests.golden --before FILE       compares with a file
    python -m tests.golden --before FOLDER     compares with another checkout, which is planned in a process of its own
    python -m tests.golden --only TEXT         only the cases whose names contain the text
    python -m tests.golden --no-cubins         without the cubins, which take most of the time

Needs no GPU. It plans about 370 modules for sm_80, 90, 100 and 120, which takes a minute, and compiles some.

What may change, and when:

- ``source`` is the digest of the text that is compiled, without the device functions of ``kernels/``. It changes if the
  code generator or a decision does. A change that only moves code leaves it.
- ``headers`` are the digests of these device functions. They change with the files of ``kernels/module``.
- ``lines`` are the decisions: loops and functions of the plan, and matmul's configurations. They have values and the
  codes of reasons, so a change of a sentence leaves them; list a changed decision in the commit's message.
- ``cubins`` have registers, shared bytes and the digest of the machine code of each kernel. After a change that is said
  to leave machine code as it is, they are equal. They belong to the releases of NVRTC and nvJitLink that the extra
  ``test`` of pyproject.toml names.

If a rebase stops at a conflict in ``golden.json``, run ``--write`` again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.golden.corpus import ARCHS, CUBINS, corpus
from tests.golden.observe import compiled, compiler, header_digests, observe, packed, planning, unpacked

GOLDEN = Path(__file__).with_name("golden.json")


def observed(only: str = "", *, cubins: bool = True) -> dict[str, Any]:
    """All that is kept of this checkout, as JSON values."""
    cases = [case for case in corpus() if only in case.name]
    with planning():
        entries = {case.name: {arch: observe(case, arch) for arch in ARCHS} for case in cases}
        found = {
            f"{case.name}, sm_{arch}": compiled(case, arch)
            for case in cases
            for arch in CUBINS.get(case.name, ())
            if cubins
        }
    return packed(entries, {"compiler": compiler(), "headers": header_digests(), "cubins": found})


def written(data: Mapping[str, Any]) -> str:
    """The text of a file: a line for each header, cubin, case and line."""

    def compact(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    parts = []
    for name, value in data.items():
        if isinstance(value, dict):
            rows = ",\n".join(f"{json.dumps(key)}:{compact(one)}" for key, one in value.items())
            parts.append(f"{json.dumps(name)}:{{\n{rows}\n}}")
        elif isinstance(value, list):
            parts.append(f"{json.dumps(name)}:[\n" + ",\n".join(map(compact, value)) + "\n]")
        else:
            parts.append(f"{json.dumps(name)}:{compact(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yields what differs between two states, in lines to read. Cases that only one of them has count too."""
    for name in sorted(before["headers"].keys() | now["headers"].keys()):
        if before["headers"].get(name) != now["headers"].get(name):
            yield f"device functions of {name} differ"
    old, new = unpacked(before), unpacked(now)
    for name in (*old, *(name for name in new if name not in old)):
        for arch in ARCHS:
            was, has = old.get(name, {}).get(arch), new.get(name, {}).get(arch)
            if was == has:
                continue
            where = f"{name}, sm_{arch}"
            if was is None or has is None:
                yield f"{where}: {'new' if was is None else 'gone'}"
                continue
            if was["headers"] != has["headers"]:
                yield f"{where}: includes {has['headers']}, and did {was['headers']}"
            if was["source"] != has["source"]:
                yield f"{where}: another source"
            yield from (f"{where}:\n  - {line}" for line in was["lines"] if line not in has["lines"])
            yield from (f"{where}:\n  + {line}" for line in has["lines"] if line not in was["lines"])
            if sorted(was["lines"]) == sorted(has["lines"]) and was["lines"] != has["lines"]:
                yield f"{where}: another order of decisions"
    if before["compiler"] == now["compiler"]:
        for name, kernels in before["cubins"].items():
            if name in now["cubins"] and now["cubins"][name] != kernels:
                yield f"{name}: cubin\n  - {kernels}\n  + {now['cubins'][name]}"


def of_checkout(folder: Path, options: list[str]) -> dict[str, Any]:
    """What is kept of another checkout."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "golden.json"
        environment = {**os.environ, "PYTHONPATH": str(folder.resolve())}
        command = [sys.executable, "-m", "tests.golden", "--write", str(output), *options]
        subprocess.run(command, cwd=folder, env=environment, check=True)
        found: dict[str, Any] = json.loads(output.read_text("utf-8"))
    return found


def main() -> int:
    """Entry point. Returns 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", nargs="?", type=Path, const=GOLDEN, help="a file to write")
    parser.add_argument("--before", type=Path, default=GOLDEN, help="a file or a checkout")
    parser.add_argument("--only", default="", help="a part of the cases' names")
    parser.add_argument("--no-cubins", action="store_true")
    arguments = parser.parse_args()
    if arguments.write == GOLDEN and (arguments.only or arguments.no_cubins):
        parser.error(f"{GOLDEN.name} has all cases and their cubins")
    now = observed(arguments.only, cubins=not arguments.no_cubins)
    if arguments.write:
        arguments.write.write_text(written(now), "utf-8")
        return 0
    if arguments.before.is_dir():
        options = ["--only", arguments.only, *(["--no-cubins"] if arguments.no_cubins else [])]
        before = of_checkout(arguments.before, options)
    else:
        before = json.loads(arguments.before.read_text("utf-8"))
        before["cases"] = {name: case for name, case in before["cases"].items() if arguments.only in name}
    found = list(differences(before, now))
    print("\n".join(found) or "nothing differs")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
