"""The page: one HTML document that needs no script, no other file and no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from warp_tiles.reports.chart import chart
from warp_tiles.reports.html import Markup, element, joined
from warp_tiles.reports.sections import cards, facts_list, is_built, module_section, notes, products_table
from warp_tiles.reports.style import STYLE, content_security_policy
from warp_tiles.reports.timeline import timeline

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
