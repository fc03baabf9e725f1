"""The page as a parser sees it: well-formed, escaped, complete, and without anything from outside."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.reports.logs import HOSTILE, LOOP, hostile, plan, planned, run
from warp_tiles.reports.page import STYLE, content_security_policy, element, escaped, page

FACTS = {"script": "train.py", "versions": "warp_tiles 1, Warp 2"}
VOID = {"meta"}


class Reader(HTMLParser):
    """Checks that elements nest, and collects them with their texts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


DOCUMENTS: dict[str, Any] = {"run": run(), "plan": planned(), "hostile": hostile(), "empty": {"modules": []}}
every_document = pytest.mark.parametrize("document", DOCUMENTS.values(), ids=list(DOCUMENTS))


@every_document
def test_a_page_is_well_formed_and_has_one_heading(document: Any) -> None:
    text = page(document, "Run of train.py", FACTS)
    assert text.startswith("<!DOCTYPE html>\n<html")
    reader = read(text)
    assert [tag for tag, _ in reader.elements].count("h1") == 1
    assert "Run of train.py" in reader.text
    assert "train.py" in reader.text


@every_document
def test_a_page_uses_nothing_from_outside_and_runs_nothing(document: Any) -> None:
    text = page(document, "title", FACTS)
    reader = read(text)
    names = {tag for tag, _ in reader.elements}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "form", "a", "base", "image", "use"}
    attributes = {name for _, given in reader.elements for name in given}
    assert not {name for name in attributes if name.startswith("on")}
    assert not attributes & {"src", "href", "xlink:href", "style", "srcset", "action", "background"}
    assert not re.search(r"https?://|//[a-z]|url\(|@import", text)


def test_the_policy_allows_this_style_alone() -> None:
    reader = read(page(run(), "title", FACTS))
    (policy,) = [a["content"] for tag, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == content_security_policy(STYLE)
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    tags = [tag for tag, _ in reader.elements]
    assert tags.index("meta") < tags.index("style"), "the policy comes before what it governs"
    assert content_security_policy(STYLE + " ") != policy


def test_texts_of_the_record_are_escaped() -> None:
    text = page(hostile(), HOSTILE, {HOSTILE: HOSTILE})
    assert "<script" not in text
    assert "\x1b" not in text
    shown = HOSTILE.replace("\x1b", "\\x1b")
    reader = read(text)
    assert reader.text.count(shown) > 40
    assert f"first{shown}" in reader.text
    assert any(shown in (value or "") for _, given in reader.elements for value in given.values())
    for part in ("own failed; using cuBLASDx", "a debug build", "train.py", LOOP.reason):
        assert f"{part}{shown}" in reader.text or f"{part}{shown}:" in reader.text, part


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>&\"'", "&lt;b&gt;&amp;&quot;&#x27;"),
        ("a\x00b\x7f", "a\\x00b\\x7f"),
        ("\ud800", "\\ud800"),
        ("\u202e", "\\u202e"),
    ],
)
def test_control_characters_are_shown_and_markup_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown
    assert element("p", text, title=text) == f'<p title="{shown}">{shown}</p>'
    element("p", text).encode("utf-8")


def rows_of(document: Any) -> list[list[str]]:
    return [row for row in read(page(document, "title", FACTS)).rows if row]


@pytest.mark.parametrize("name", ["run", "plan"])
def test_every_product_and_loop_of_the_record_has_a_row(name: str) -> None:
    document = DOCUMENTS[name]
    rows = rows_of(document)
    for module in document["modules"]:
        for function in module["functions"]:
            title = f"{function['role']} {function['m']}x{function['n']}x{function['k']}"
            matching = [row for row in rows if row[0].startswith(title) and function["reason"] in row[4]]
            assert matching, title
            assert all(kernel in matching[0][1] for kernel in function["kernels"])
        for loop in module["loops"]:
            cells = next(row for row in rows if f"{loop['file']}:{loop['line']}" in row)
            assert any(loop["reason"] in cell and loop["store"] in cell for cell in cells)
    products = document.get("matmul", ())
    for product in products:
        numbers = [str(product[name]) for name in ("instruction", "stages", "resident_blocks")]
        assert [product["product"], "32x64x16", "128", "1", *numbers, product["reason"]] in rows
    solves = document.get("solves", ())
    for solve in solves:
        assert [solve["problem"], "block", "16x16", "2", "32", solve["reason"]] in rows
    found = [products, solves, *(module[name] for module in document["modules"] for name in ("functions", "loops"))]
    count, tables = sum(map(len, found)), sum(map(bool, found))
    assert len(rows) == count + tables


def test_what_the_run_itself_did_is_shown() -> None:
    start = {"file": f"{HOSTILE}.json", "compiled": 3, "used": 1, "unused": 2, "unused_seconds": 1.25}
    missed = {"name": "m", "arch": 75, "block_dim": 64, "reason": "a 1.0: no sm_75"}
    shown = read(page(run() | {"start": start, "not_in_kernel_packages": [missed]}, "run", FACTS)).text
    assert ".json : 3 modules compiled ahead, 1 used, 2 for no launch (1.2 s)" in shown
    assert "1 module: a 1.0: no sm_75" in shown
    assert "start list" not in read(page(run(), "run", FACTS)).text


def test_rows_say_what_was_done_by_what_and_why() -> None:
    rows = rows_of(run())

    def of(title: str) -> list[list[str]]:
        return [row for row in rows if row[0].startswith(title)]

    first, *others = of("forward 8x12x4")
    assert first[2:4] == ["built", "own, fma 8x4, lanes 8x4x1chosen from a tuning record"]
    assert first[5:] == ["30.0 kB", "0.60"]
    assert [row[2] for row in others] == ["shared", "from cache", "not built"]
    assert of("adjoint_a 8x4x12")[0][2:5] == ["skipped", "", "not needed: kernel 'k' has enable_backward=False"]
    hit = of("forward 4x4x16")[0]
    assert (hit[2], hit[3].endswith("chosen by default")) == ("from cache", True)


def test_a_plan_says_what_a_build_would_do() -> None:
    changes = ({}, {"cached": True}, {"provider": "libmathdx", "key": ""}, {"provider": "scalar"},
               {"provider": "stages", "key": ""})  # fmt: skip
    document: dict[str, Any] = {"modules": [plan(f"module {number}").to_json() for number in range(len(changes))]}
    for module, change in zip(document["modules"], changes):
        module["functions"][0] |= change
    states = [row[2] for row in rows_of(document) if row[0].startswith("forward")]
    assert states == ["to build", "in the cache", "built by Warp", "scalar path", "in stages"]
    assert "Timeline" not in page(document, "title", FACTS)


def test_warnings_and_fallbacks_are_listed_once_with_their_module() -> None:
    reader = read(page(run(), "title", FACTS))
    notes = [text for text in reader.texts if text.startswith("Module ")]
    assert notes == [
        "Module second: adjoint_b 16x4x4: planned with own, built with cublasdx",
        "Module second: own failed; using cuBLASDx",
        "Module late: linked by Warp: a debug build",
    ]
    assert "No warning" not in reader.text
    assert "No warning" in read(page(planned(), "title", FACTS)).text


def test_the_sums_are_those_of_the_record() -> None:
    document = run()
    text = read(page(document, "title", FACTS)).text
    accumulators = {
        "modules": len(document["modules"]),
        "functions built": 3,
        "from the cache": 2,
        "shared by modules": 1,
        "adjoints skipped": 8,
        "of LTO-IR": f"{sum(m.get('lto_bytes', 0) for m in document['modules']) / 1000:.1f} kB",
        "of cubins": "520.0 kB",
        "in which modules were built": "4.0 s",  # 1.0 to 4.04, and one second later
    }
    for name, value in accumulators.items():
        assert f"{value} {name}" in text, name
