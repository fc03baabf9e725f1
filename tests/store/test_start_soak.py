"""Many starts with a list, while modules, the list and the cache change at random: no launch gets a wrong module."""

import dataclasses
import random
import shutil
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import warp as wp

import warp_tiles
from tests.integration.builds import TINY
from tests.integration.helpers import load
from tests.nightly import some
from tests.store.warp_modules import compiled, records, text
from warp_tiles._warp import installed
from warp_tiles._warp.internals import find
from warp_tiles.build.start_list import StartModule, read_start_list
from warp_tiles.compile.compiler import Compiled
from warp_tiles.compile.module import WarpCompileRequest
from warp_tiles.compile.pool import CompilerPool

STARTS = 50
VALUES = 4  # of the constant of each module


def changes(chance: random.Random) -> dict[str, Callable[[tuple[StartModule, ...]], tuple[StartModule, ...]]]:
    """What may have happened to the modules of a list since it was written."""

    def one(**change: Callable[[StartModule], Any]) -> Callable[[tuple[StartModule, ...]], tuple[StartModule, ...]]:
        def changed(modules: tuple[StartModule, ...]) -> tuple[StartModule, ...]:
            place = chance.randrange(len(modules))
            new = {name: make(modules[place]) for name, make in change.items()}
            return (*modules[:place], dataclasses.replace(modules[place], **new), *modules[place + 1 :])

        return changed

    def cut(module: StartModule) -> str:
        place = chance.randrange(len(module.source))
        return module.source[:place] + module.source[place + 1 :]

    def functions(module: StartModule) -> Any:
        linked = module.linked
        limit = chance.choice([None, 32, 128])
        return linked and dataclasses.replace(linked, functions=linked.functions[1:], register_limit=limit)

    def swapped(modules: tuple[StartModule, ...]) -> tuple[StartModule, ...]:
        sources = chance.sample([module.source for module in modules], len(modules))
        return tuple(dataclasses.replace(module, source=source) for module, source in zip(modules, sources))

    return {
        "nothing": lambda modules: modules,
        "order": lambda modules: tuple(chance.sample(modules, len(modules))),
        "sources of others": swapped,
        "a character": one(source=cut),
        "the name": one(program=lambda _: "wp_other_1234567.cu"),
        "the architecture": one(arch=lambda _: 80),
        "a switch": one(switches=lambda module: (not module.switches[0], *module.switches[1:])),
        "the level": one(optimization_level=lambda _: 1),
        "metadata": one(meta=lambda module: {name: size + 16 for name, size in module.meta.items()}),
        "functions": one(linked=functions),
        "the kind": one(linked=lambda _: None),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", some(range(20), 1))
def test_no_launch_gets_a_wrong_module(seed: int, digesting: None, tmp_path: Path) -> None:
    chance, file = random.Random(seed), tmp_path / "start.json"
    modules = [load(text()), load(text(expression="f(x[i], N)")), load(TINY + text())]
    expected: dict[tuple[str, int], bytes] = {}
    cache, used, wasted = tmp_path / "cache", 0, 0
    happened = changes(chance)

    def binary(module: Any, value: int, folder: Path) -> bytes:
        """What a launch gets."""
        module.N = wp.constant(value)
        wp.get_module(module.__name__).mark_modified()
        wp.compile_aot_module(module, arch=90, module_dir=folder)
        (found,) = folder.glob("*.cubin")
        data = found.read_bytes()
        shutil.rmtree(folder)
        return data

    def start(wanted: list[tuple[Any, int]], given: Path | None) -> list[bytes]:
        nonlocal used, wasted
        settings = {"cache_dir": cache, "modules": "all", "jobs": 2}
        with warp_tiles.override(**settings), warp_tiles.enabled(start=given):
            time.sleep(chance.choice([0.0, 0.002, 0.05]))
            found = [binary(module, value, tmp_path / "out") for module, value in wanted]
            if given is not None:
                facts = installed().program_start.to_json()
                used, wasted = used + facts["used"], wasted + facts["unused"]
        return found

    for module in modules:
        for value in range(VALUES):
            (expected[module.__name__, value],) = start([(module, value)], None)
    assert len(set(expected.values())) == len(modules) * VALUES
    for number in range(STARTS):
        if chance.random() < 0.5:
            for part in ("v2", "modules"):  # the facts about the toolchain stay, which take time
                shutil.rmtree(cache / part, ignore_errors=True)
        if file.exists() and (record := read_start_list(file)) is not None:
            change = happened[chance.choice(list(happened))]
            file.write_bytes(dataclasses.replace(record, modules=change(record.modules)).to_bytes())
            if chance.random() < 0.1:
                file.write_bytes(file.read_bytes()[:-9])
        wanted = [(module, chance.randrange(VALUES)) for module in chance.sample(modules, chance.randint(1, 3))]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*the start list .* cannot be used")
            found = start(wanted, file)
        assert found == [expected[module.__name__, value] for module, value in wanted], f"start {number}"
        try:
            read_start_list(file)
        except warp_tiles.errors.RecordError:
            file.unlink()
    assert used > 0
    assert wasted > 0


@pytest.mark.parametrize("seed", some(range(20), 1))
def test_starts_while_modules_change_at_random_serve_no_wrong_module(
    seed: int, everything: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(_: CompilerPool, request: WarpCompileRequest, **__: object) -> Future[Compiled]:
        done: Future[Compiled] = Future()  # the "binary" names all that the compiler has read
        fields = (request.name, request.source, request.arch, request.options, request.output)
        done.set_result(Compiled(repr(fields).encode(), 0.0, "Warp"))
        return done

    monkeypatch.setattr(CompilerPool, "submit", submit)
    monkeypatch.setattr(CompilerPool, "start_processes", lambda *_: None)
    choose, module = random.Random(seed), load(text(1))
    for start in range(50):
        module.N = choose.choice([1, 1 + 2**32, 0.5, 0.5 + 1e-12, True, wp.int8(1), wp.uint8(1), wp.vec2(1.0, 2.0)[0]])
        options = {"fast_math": choose.random() < 0.5, "optimization_level": choose.choice([1, 3])}
        wp.set_module_options(options, module=module)
        wp.get_module(module.__name__).mark_modified()
        arch, folder = choose.choice([80, 90]), everything / str(start)
        found = compiled(module, folder, arch=arch)
        with warp_tiles.override(modules="tiles"), monkeypatch.context() as patch:
            patch.setattr(find("build"), "build_cuda", lambda _, __, output, **___: Path(output).touch())
            expected = compiled(module, folder / "warp", arch=arch)
        (name,) = (name for name in expected if name.endswith(".cu"))
        assert found[name] == expected[name], f"start {start}"
        binary = next(data for other, data in found.items() if other.endswith("cubin"))
        assert repr((name, found[name], arch)).encode()[1:-1] in binary
        assert f"optimization_level={options['optimization_level']}".encode() in binary
        assert f"fast_math={options['fast_math']}".encode() in binary
    assert sum(record["found"] for record in records()) > 5
