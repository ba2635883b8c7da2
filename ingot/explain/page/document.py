"""The page of a report: one HTML file that needs no network and no server.

A report as plain data goes in, with timelines and the limits of the machine if there are any. Out
comes a document of plain data, and the text of the page around it. Nothing is run here: a document
that was stored gives the same page anywhere.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ingot.events import encodable
from ingot.explain.page.costs import break_costs
from ingot.explain.page.flops import program_flops
from ingot.explain.text import code_at

VERSION = 1
"""The version of what `document` gives beside the report, which has its own."""

MOST_BYTES = 5_000_000
"""The size that a page has at most. The largest texts are left out of one that would be larger."""

LEFT_OUT = "left out: the page would be too large. `python -m ingot stages` prints it."

_LONG = 80
"""Characters from which on a text is written once, however often it occurs."""

_TEMPLATE = Path(__file__).parent / "template"
_SCRIPTS = (
    "core.js",
    "table.js",
    "timeline.js",
    "kernels.js",
    "graph.js",
    "lists.js",
    "memory.js",
    "main.js",
)


def document(
    report: Mapping[str, Any],
    timelines: Sequence[Mapping[str, Any]] = (),
    limits: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All that a page shows, as dicts, lists, strings, numbers and None.

    `report` is that of `Report.to_dict`; `timelines` are of `timeline.py`; `limits` are what the
    machine does at most: "bytes_per_second", "flops_per_second" and "device".
    """
    programs = report["programs"]
    return {
        "version": VERSION,
        "report": report,
        "timelines": list(timelines),
        "limits": limits,
        "flops": list(map(program_flops, programs)),
        "break_costs": break_costs(report, timelines),
        "code": code_lines(report, timelines),
    }


def code_lines(report: Mapping[str, Any], timelines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The user's line of code at each place that is named, as far as it can be read."""
    places: dict[str, None] = {}
    for program in report["programs"]:
        for kernel in program["kernels"]:
            places.update(dict.fromkeys(kernel["lines"]))
        for kind in ("calls", "nodes", "saved", "recomputed"):
            for item in program[kind]:
                places[item["where"]] = None
    for timeline in timelines:
        for lane in timeline["lanes"]:
            places.update(dict.fromkeys(event["where"] for event in lane["events"]))
    lines = {}
    for place in places:
        text = code_at(place)
        if text:
            lines[place] = text
    return lines


def page_of(data: Mapping[str, Any], most: int = MOST_BYTES) -> str:
    """The HTML text of a document, of at most so many bytes if leaving texts out can do it."""
    texts = _Texts()
    body = texts.without(data)
    page = _filled(data, body, texts.items)
    if len(page) > most:
        shown = texts.largest_left_out(len(page) - most)
        page = _filled(data, body, shown)
    return page


def packed(thing: Any) -> str:
    """Plain data as base64 of gzipped JSON: no character of it means anything in HTML."""
    text = json.dumps(thing, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), mtime=0)).decode("ascii")


def unpacked(page: str) -> Any:
    """The document of a page, as `document` gave it, but for the texts that were left out."""
    text = page.partition('id="data">')[2].partition("<")[0]
    body, texts = json.loads(gzip.decompress(base64.b64decode(text)))
    return _with_texts(body, texts)


def _filled(data: Mapping[str, Any], body: Any, texts: Sequence[str]) -> str:
    page, parts = _template()
    title = html.escape(encodable(data["report"]["name"]))
    left_out = sum(text == LEFT_OUT for text in texts)
    parts = {**parts, "title": title, "left-out": str(left_out), "data": packed([body, texts])}
    for name, text in parts.items():
        page = page.replace(f"<!--{name}-->", text)
    return page


@cache
def _template() -> tuple[str, dict[str, str]]:
    """The page without its data, and the style and the script that go into it."""
    scripts = [_read(name) for name in _SCRIPTS]
    return _read("page.html"), {"style": _read("page.css"), "script": "\n".join(scripts)}


def _read(name: str) -> str:
    return (_TEMPLATE / name).read_text("utf-8")


# -- texts, each written once ----------------------------------------------------------------------


class _Texts:
    """The long texts of a document. In their place stands `{"$": number}`."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self._numbers: dict[str, int] = {}

    def without(self, thing: Any) -> Any:
        """The same data with numbers for long texts."""
        if isinstance(thing, str) and len(thing) >= _LONG:
            number = self._numbers.setdefault(thing, len(self.items))
            if number == len(self.items):
                self.items.append(thing)
            return {"$": number}
        if isinstance(thing, Mapping):
            return dict(zip(thing, map(self.without, thing.values())))
        if isinstance(thing, (list, tuple)):
            return list(map(self.without, thing))
        return thing

    def largest_left_out(self, excess: int) -> list[str]:
        """The texts without as many of the largest as take up so many bytes of a page."""
        sizes = [len(packed(text)) for text in self.items]
        shown = list(self.items)
        for number in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
            if excess <= 0:
                break
            shown[number] = LEFT_OUT
            excess -= sizes[number] - len(packed(LEFT_OUT))
        return shown


def _with_texts(thing: Any, texts: Sequence[str]) -> Any:
    if isinstance(thing, dict):
        if thing.keys() == {"$"}:
            return texts[thing["$"]]
        return {name: _with_texts(value, texts) for name, value in thing.items()}
    if isinstance(thing, list):
        return [_with_texts(item, texts) for item in thing]
    return thing
