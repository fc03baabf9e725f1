"""The page: one HTML document that needs no script, no other file and no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warp_tiles.plan.products import TABLE_HEADINGS, table_rows
from warp_tiles.reports.chart import chart
from warp_tiles.reports.functions import (
    BUILT,
    BY_WARP,
    CACHED,
    IN_CACHE,
    NOT_BUILT,
    SCALAR,
    SHARED,
    SKIPPED,
    TO_BUILD,
    Function,
    Json,
    functions,
)
from warp_tiles.reports.html import STYLE, Content, Markup, content_security_policy, element, joined, table
from warp_tiles.reports.timeline import module_title, timeline

_KINDS = {
    BUILT: "compile",
    TO_BUILD: "compile",
    BY_WARP: "bad",
    SCALAR: "bad",
    CACHED: "cache",
    IN_CACHE: "cache",
    SHARED: "shared",
}
_SHORT = ("state", "LTO-IR", "seconds", "products")
_COUNTED = (
    (BUILT, "functions built"),
    (TO_BUILD, "functions to build"),
    (BY_WARP, "built by Warp"),
    (CACHED, "from the cache"),
    (IN_CACHE, "in the cache"),
    (SHARED, "shared by modules"),
    (SCALAR, "on the scalar path"),
    (NOT_BUILT, "not built in this run"),
)
_LOOPS = {"register_sums": "sums in registers", "as_warp": "as Warp does it"}


def size(count: float) -> str:
    """A number of bytes for people, in powers of ten."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def is_built(module: Json) -> bool:
    """True if the module was built, False if it was only planned or is up to date."""
    return "output" in module and not is_up_to_date(module)


def is_up_to_date(module: Json) -> bool:
    """True if ``warp-tiles compile`` kept the files of an earlier call."""
    return bool(module.get("up_to_date"))


def cards(modules: Sequence[Json]) -> Markup:
    """The totals of all modules."""
    found = [function for module in modules for function in functions(module)]
    states = [function.state for function in found]
    built = [module for module in modules if is_built(module)]
    kept = sum(map(is_up_to_date, modules))
    values: list[tuple[str, str]] = [
        (str(len(modules)), "module" if len(modules) == 1 else "modules"),
        *([(str(kept), "up to date")] if kept else []),
        (str(len(found)), "products and solvers"),
    ]
    values += [(str(states.count(state)), text) for state, text in _COUNTED if state in states]
    values.append((str(states.count(SKIPPED)), "adjoints skipped"))
    if built:
        values += [
            (size(sum(module.get("lto_bytes") or 0 for module in built)), "of LTO-IR"),
            (size(sum(module.get("cubin_bytes") or 0 for module in built)), "of cubins"),
            (f"{_covered_s(built):.1f} s", "in which modules were built"),
        ]
    return element("ul", *(element("li", element("b", value), text) for value, text in values), class_="cards")


def _covered_s(modules: Sequence[Json]) -> float:
    """The seconds in which at least one module was built."""
    starts = [(float(module.get("started_at_s") or 0), float(module.get("seconds") or 0)) for module in modules]
    covered = end = 0.0
    for start, seconds in sorted(starts):
        covered += max(0.0, start + seconds - max(start, end))
        end = max(end, start + seconds)
    return covered


def notes(modules: Sequence[Json]) -> list[str]:
    """Every warning, fallback and link by Warp, once, with the module's name."""
    found: list[str] = []
    for module in modules:
        name = f"Module {module.get('name')}: "
        for function in functions(module):
            if function.fallback:
                found.append(f"{name}{function.variant.get('role')} {function.size}: {function.fallback}")
        for build in module.get("builds") or ():
            found += [f"{name}{text}" for text in build.get("warnings") or ()]
        if module.get("linker") == "warp" and module.get("linker_reason"):
            found.append(f"{name}linked by Warp: {module['linker_reason']}")
        if module.get("loops_reason"):
            found.append(f"{name}loops stay as Warp generates them: {module['loops_reason']}")
    return list(dict.fromkeys(found))


def module_section(module: Json, *, is_open: bool) -> Markup:
    """One module: what was done with each product, solver and loop, and why."""
    found = functions(module)
    parts: list[Markup] = [_facts(_module_facts(module))]
    if found:
        parts.append(_functions_table(found, on_cpu=module.get("arch") is None))
    if module.get("loops"):
        parts.append(_loops_table(module["loops"]))
    counts = "up to date" if is_up_to_date(module) else _counts(found)
    title = element("summary", module_title(module), " ", element("span", counts, class_="muted"))
    return element("details", title, *parts, open="" if is_open else None)


def _counts(found: Iterable[Function]) -> str:
    states = [function.state for function in found]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no tile functions"


def _module_facts(module: Json) -> list[tuple[str, Content]]:
    if is_up_to_date(module):
        output = (element("code", str(module.get("output"))), f": {size(module.get('cubin_bytes') or 0)}, up to date")
        return [("file", joined(output)), ("build", "none in this run: the folder holds the files of an earlier one")]
    facts: list[tuple[str, Content]] = [("kernels", _codes(module.get("kernels") or ()))]
    if module.get("policy") not in (None, "auto") or module.get("provider") not in (None, "auto"):
        facts.append(("settings", f"policy {module.get('policy')}, provider {module.get('provider')}"))
    if is_built(module):
        made = f"{module.get('lto_builds', 0)} built, {module.get('lto_hits', 0)} from the cache or shared"
        facts.append(("functions", f"{made}, {size(module.get('lto_bytes') or 0)} of LTO-IR"))
        linker = ", found linked" if module.get("found") else f", linked by {module.get('linker')}"
        output = (element("code", str(module.get("output"))), f": {size(module.get('cubin_bytes') or 0)}{linker}")
        facts.append(("file", joined(output)))
        facts.append(("time", f"{float(module.get('seconds') or 0):.2f} s from the end of code generation to the file"))
    elif "builds" in module:
        facts.append(("build", "none in this run: Warp loaded the module from its own cache, or it was only planned"))
    facts += [("memory", str(memory["problem"])) for memory in module.get("memory") or () if memory.get("problem")]
    if module.get("register_limit"):
        limit = f"at most {module['register_limit']} per thread if warp_tiles links"
        facts.append(("registers", f"{limit}: {module.get('register_limit_reason')}"))
    return facts


def _facts(facts: Sequence[tuple[str, Content]]) -> Markup:
    pairs = [part for name, value in facts for part in (element("dt", name), element("dd", value))]
    return element("dl", *pairs, class_="facts")


def facts_list(facts: Iterable[tuple[str, str]]) -> Markup:
    """Names and values as a list of definitions."""
    return _facts([(name, value) for name, value in facts])


def _codes(names: Iterable[Any]) -> Markup:
    parts: list[Content] = []
    for name in names:
        parts += [", "] if parts else []
        parts.append(element("code", str(name)))
    return joined(parts)


def _functions_table(found: Sequence[Function], on_cpu: bool) -> Markup:
    headings = ["function", "kernels", "state", "provider, tile", "reason"]
    has_builds = any(function.build for function in found)
    if has_builds:
        headings += ["LTO-IR", "seconds"]
    rows = [_function_cells(function, has_builds, on_cpu) for function in found]
    return table(headings, rows, "products and solvers", _SHORT)


def _function_cells(function: Function, has_builds: bool, on_cpu: bool) -> list[Content]:
    variant, build = function.variant, function.build
    kind = "wait" if on_cpu else _KINDS.get(function.state, "wait")
    provider = ", ".join(text for text in (function.provider, function.tile) if text)
    reason = str(variant.get("reason") or "")
    cells: list[Content] = [
        _with_more(f"{variant.get('role')} {function.size}", function.dtypes),
        _codes(variant.get("kernels") or ()),
        element("span", function.state, class_=f"state {kind}"),
        _with_more(provider, function.choice),
        f"{reason}; {function.fallback}" if function.fallback else reason,
    ]
    if has_builds:
        cells += [size(build.get("lto_bytes") or 0), f"{build.get('seconds') or 0:.2f}"] if build else ["", ""]
    return cells


def _with_more(text: str, more: str) -> Content:
    """A text, and more in a line below it. Both are one cell of the narrow page's grid."""
    if not text:
        return more
    return element("span", text, *([element("span", more, class_="muted more")] if more else []))


def _loops_table(loops: Sequence[Json]) -> Markup:
    headings = ("kernel", "line", "products", "what is done", "reason", "gradients")
    rows = [
        (
            element("code", str(loop.get("kernel"))),
            element("code", f"{loop.get('file')}:{loop.get('line')}"),
            str(loop.get("products")),
            _treatment(loop),
            _with_more(str(loop.get("reason") or ""), "; ".join(filter(None, (loop.get("store"), loop.get("loads"))))),
            _with_more(str(loop.get("gradients") or ""), str(loop.get("reverse") or "")),
        )
        for loop in loops
    ]
    return table(headings, rows, "loops of products", _SHORT)


def _treatment(loop: Json) -> str:
    state = str(loop.get("state") or "")
    if state == "pipelined":
        return f"pipelined, {loop.get('stages')} stages"
    return _LOOPS.get(state, state)


def products_table(products: Sequence[Json]) -> Markup:
    """How ``warp_tiles.matmul`` computes products, and why so."""
    return table(TABLE_HEADINGS, table_rows(products), "products of warp_tiles.matmul", _SHORT)


_MOST_OPEN = 6  # with more modules, each is closed at first


def page(document: Mapping[str, Any], title: str, facts: Mapping[str, str]) -> str:
    """The page of a plan or of a run.

    Args:
        document: ``modules``, as :func:`warp_tiles.report` and ``warp-tiles plan --json`` give them, and ``matmul``, as
            the latter gives it.
        title: Its heading.
        facts: Facts about the run, by name: script, time, versions.

    Returns:
        The HTML text. Each text of the document is escaped.
    """
    modules = list(document.get("modules") or ())
    body = [
        element("h1", title),
        facts_list(facts.items()),
        cards(modules),
        *_warnings(notes(modules), any(map(is_built, modules))),
    ]
    if rows := timeline(modules):
        body += [
            element("h2", "Timeline of the builds"),
            element("p", "Thick bars work, thin bars wait. Each bar has its text as a tooltip.", class_="muted"),
            chart(rows),
        ]
    if products := document.get("matmul"):
        body += [element("h2", "Products of warp_tiles.matmul"), products_table(products)]
    body.append(element("h2", "Modules"))
    body += [module_section(module, is_open=len(modules) <= _MOST_OPEN) for module in modules]
    if not modules:
        body.append(element("p", "No module with products or solvers was planned or built."))
    return _document(title, body)


def _warnings(found: list[str], built: bool) -> list[Markup]:
    if not found:
        text = "No warning and no fallback." if built else "No warning."
        return [element("h2", "Warnings"), element("p", text, class_="muted")]
    items = [element("li", text) for text in found]
    return [element("h2", f"Warnings and fallbacks ({len(found)})"), element("ul", *items, class_="notes")]


def _document(title: str, body: list[Markup]) -> str:
    policy = {"http_equiv": "Content-Security-Policy", "content": content_security_policy(STYLE)}
    head = [
        element("meta", charset="utf-8"),
        element("meta", **policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Markup(STYLE)),
    ]
    html = element("html", element("head", *head), element("body", element("main", *body)), lang="en")
    return f"<!DOCTYPE html>\n{joined([html]).text}\n"
