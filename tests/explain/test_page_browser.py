"""Pages of reports in a browser: every part is opened, and its numbers are the report's fields.

`INGOT_SCREENSHOTS=folder` leaves a picture of each part there.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import examples.gpt2
import examples.resnet
import ingot
from ingot.explain.cli import main
from ingot.explain.page.document import MOST_BYTES, document, page_of, unpacked
from tests.browser import Browser, find
from tests.explain.page_programs import make_broken, recompiled

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find() is None, reason="there is no Chromium with its WebDriver on PATH"),
]

PARTS = ["timeline", "kernels", "graph", "breaks", "history", "memory", "compile"]
SECONDS = 2.0
"""Within which a page is drawn."""

Document = dict[str, Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


def by_command(*command: str) -> Callable[[Path], Document]:
    """What has the command line write a page; gives its document."""

    def write(file: Path) -> Document:
        arguments = ["explain", "--html", str(file), *command]
        assert main(ingot.compile, ingot.explain, arguments) == 0
        data: Document = unpacked(file.read_text("utf-8"))
        return data

    return write


def of_recompiled(file: Path) -> Document:
    report = recompiled()
    report.html(file)
    data: Document = unpacked(file.read_text("utf-8"))
    assert data["report"] == report.to_dict()
    return data


def of_resnet(file: Path) -> Document:
    pytest.importorskip("triton")
    from tests.explain.gpu_document import gpu_document

    stored = json.dumps(gpu_document(*examples.resnet.make()))
    file.write_text(page_of(json.loads(stored)), "utf-8")
    data: Document = json.loads(stored)
    return data


PROGRAMS = str(Path(__file__).with_name("page_programs.py"))
PAGES = {
    "gpt2": by_command(f"{examples.gpt2.__file__}:make"),
    "gpt2_training": by_command("--train", f"{examples.gpt2.__file__}:make"),
    "broken": by_command(f"{PROGRAMS}:make_broken"),
    "recompiled": of_recompiled,
    "resnet50_gpu": of_resnet,
}


@pytest.fixture(scope="module", params=PAGES)
def page(
    request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Browser, Document]:
    """Each page, opened in time and small enough."""
    name = request.param
    file = tmp_path_factory.mktemp("pages") / f"{name}.html"
    data = PAGES[name](file)
    assert file.stat().st_size <= MOST_BYTES
    assert browser.open(file) < SECONDS
    folder = os.environ.get("INGOT_SCREENSHOTS")
    if folder:
        for part in PARTS:
            show(browser, part)
            browser.screenshot(Path(folder) / f"{name}_{part}.png")
    return browser, data


def show(browser: Browser, part: str) -> None:
    browser.click(f"#tab-{part}")
    shown = "return [...document.querySelectorAll('[role=tabpanel]')].filter((e) => !e.hidden)"
    assert browser.run(f"{shown}.map((e) => e.id)") == [part]
    assert browser.run("return window.ingotPage.error") is None


def kernels_of(data: Document) -> list[tuple[int, int, Document]]:
    found = []
    for number, program in enumerate(data["report"]["programs"]):
        found += [(number, k, kernel) for k, kernel in enumerate(program["kernels"])]
    return found


def test_the_head(page: tuple[Browser, Document]) -> None:
    browser, data = page
    report = data["report"]
    assert browser.texts("h1") == [report["name"]]
    assert browser.value("[data-fact=graphs]") == report["graph_count"]
    assert browser.value("[data-fact=breaks]") == report["break_count"]
    assert browser.value("[data-fact=guards]") == len(report["guards"])
    if report["peak_bytes"] is not None:
        assert browser.value("[data-fact=peak]") == report["peak_bytes"]


def test_a_the_timeline(page: tuple[Browser, Document]) -> None:
    browser, data = page
    show(browser, "timeline")
    lanes = browser.run(
        "return ingotPage.flame.lanes.map((l) => [l.head, l.lane.events.length, l.rows.length])"
    )
    shown = [(t, lane) for t in data["timelines"] for lane in t["lanes"]]
    if not shown:
        assert lanes[0][1] == len(kernels_of(data))
        return
    assert [lane[:2] for lane in lanes] == [
        [f"{t['name']}: {lane['name']}", len(lane["events"])] for t, lane in shown
    ]
    sums = browser.run(
        "return [...document.querySelectorAll('#timeline-sums tbody tr')].map((row) =>"
        " [...row.querySelectorAll('.number')].map((cell) => Number(cell.dataset.value)))"
    )
    assert [row[0] for row in sums] == [t["seconds"] for t in data["timelines"]]
    number = len(lanes) - 1
    events = shown[number][1]["events"]
    longest = max(range(len(events)), key=lambda k: events[k]["seconds"])
    place = browser.run(
        "const f = ingotPage.flame, lane = f.lanes[arguments[0]];"
        "const { start, seconds } = lane.lane.events[arguments[1]];"
        "f.view(start - seconds, start + 2 * seconds);"
        "document.getElementById('timeline').scrollTop = lane.y;"
        "return f.placeOf(lane, arguments[1])",
        number,
        longest,
    )
    browser.point(place["x"], place["y"])
    (tip,) = browser.texts("#tip")
    browser.run("ingotPage.flame.view(0, ingotPage.flame.whole)")
    assert tip.startswith(events[longest]["name"])
    if events[longest]["bytes"] is not None:
        assert "share of the limit" in tip and "bytes" in tip


def test_a_the_timeline_by_keys(page: tuple[Browser, Document]) -> None:
    browser, data = page
    show(browser, "timeline")
    browser.run("ingotPage.flame.chosen = null; ingotPage.flame.canvas.focus()")
    browser.press("ArrowRight", "ArrowRight", "+")
    chosen = browser.run("return ingotPage.flame.chosen.label")
    whole, span = browser.run("const f = ingotPage.flame; return [f.whole, f.to - f.from]")
    first = browser.run(
        "return ingotPage.flame.ops(ingotPage.flame.lanes[0]).map((b) => b.label)[1]"
    )
    count = browser.run("return ingotPage.flame.ops(ingotPage.flame.lanes[0]).length")
    if count > 1:
        assert chosen == first
    assert span < whole
    browser.press("0")
    assert browser.run("const f = ingotPage.flame; return f.to - f.from") == whole


def test_b_the_kernels(page: tuple[Browser, Document]) -> None:
    browser, data = page
    show(browser, "kernels")
    kernels = kernels_of(data)
    assert browser.run("return ingotPage.kernels.length") == len(kernels)
    for position in sorted({0, len(kernels) // 2, len(kernels) - 1}):
        p, k, kernel = kernels[position]
        browser.run("openKernel(arguments[0], arguments[1])", p, k)
        assert browser.texts(".detail h2") == [kernel["name"]]
        assert browser.value("[data-fact=bytes]") == kernel["reads_bytes"] + kernel["writes_bytes"]
        if kernel["seconds"] is not None:
            assert browser.value("[data-fact=seconds]") == kernel["seconds"]
        ops = [op.split(".")[1] for op in kernel["ops"]]
        assert browser.texts("[data-fact=ops] button") == ops
        texts = browser.texts(".detail pre")
        assert texts == [text for text in (kernel["loops"], kernel["source"]) if text]


def test_b_the_kernels_by_keys(page: tuple[Browser, Document]) -> None:
    browser, data = page
    show(browser, "kernels")
    kernels = kernels_of(data)
    browser.run("ingotPage.kernelTable.element.focus()")
    browser.press("End")
    assert browser.texts(".detail h2") == [kernels[-1][2]["name"]]
    browser.press("Home")
    assert browser.texts(".detail h2") == [kernels[0][2]["name"]]
    browser.press("/")
    browser.press(*"zzz")
    assert browser.run("return ingotPage.kernelTable.items.length") == 0
    browser.run("document.querySelector('#kernels input').value = ''; ingotPage.kernelTable.show("
                "ingotPage.kernelTable.all); document.activeElement.blur()")  # fmt: skip


def test_c_the_graph(page: tuple[Browser, Document]) -> None:
    browser, data = page
    show(browser, "graph")
    forward = data["report"]["programs"][0]
    backward = [p for p in data["report"]["programs"] if p["kind"] == "backward"][:1]
    counts = browser.run("return ingotPage.graph.trees.map((tree) => tree.nodes.length)")
    assert counts == [len(p["nodes"]) for p in (forward, *backward)]
    shown = browser.run("return {...document.getElementById('kept-sums').dataset}")
    assert float(shown["bytes"]) == sum(value["total_bytes"] for value in forward["saved"])
    assert float(shown["count"]) == sum(value["count"] for value in forward["saved"])
    browser.run("ingotPage.graph.trees[0].openAll(false)")
    closed = browser.run("return ingotPage.graph.trees[0].visible.length")
    browser.run("ingotPage.graph.trees[0].openAll(true)")
    opened = browser.run(
        "return ingotPage.graph.trees[0].visible.filter((item) => item.node).length"
    )
    assert opened == len(forward["nodes"]) and closed <= len(forward["nodes"])
    node = next(n for n in forward["nodes"] if n["inputs"])
    browser.run("openNode(0, arguments[0])", node["name"])
    assert browser.run("return ingotPage.graph.trees[0].chosen.node.name") == node["name"]
    near = browser.run("return ingotPage.graph.trees[0].near.size")
    users = [n for n in forward["nodes"] if node["name"] in n["inputs"]]
    assert near == len({*node["inputs"], *(n["name"] for n in users)})


def test_c_modules_open_and_close_by_keys(page: tuple[Browser, Document]) -> None:
    browser, data = page
    show(browser, "graph")
    browser.run(
        "const t = ingotPage.graph.trees[0]; t.openAll(false); t.element.focus();"
        "t.choose(t.visible.find((item) => !item.node))"
    )
    before = browser.run("return ingotPage.graph.trees[0].visible.length")
    browser.press("ArrowRight")
    opened = browser.run("return ingotPage.graph.trees[0].visible.length")
    browser.press("ArrowLeft")
    assert browser.run("return ingotPage.graph.trees[0].visible.length") == before < opened


def test_d_the_breaks(page: tuple[Browser, Document]) -> None:
    browser, data = page
    show(browser, "breaks")
    breaks = data["report"]["breaks"]
    assert browser.texts("#breaks .reason") == [item["reason"] for item in breaks]
    for number, item in enumerate(breaks, 1):
        card = f"#breaks .break:nth-of-type({number})"
        code = browser.texts(f"{card} .code-line .t")
        assert code == [line["text"] for line in item["code"]]
        (here,) = browser.texts(f"{card} .here .n")
        assert int(here) == item["line"]
        cost = data["break_costs"][number - 1]
        shown = browser.run(
            "return [...document.querySelectorAll(arguments[0])]"
            ".map((cell) => Number(cell.dataset.value))",
            f"{card} td.number",
        )
        order = [cost["seconds"], cost["bytes"], cost["compile_seconds"]]
        assert shown == [value for value in order if value is not None]


def test_e_guards_and_history(page: tuple[Browser, Document]) -> None:
    browser, data = page
    show(browser, "history")
    history = data["report"]["history"]
    assert len(browser.texts(".history li")) == len(history)
    changed = browser.run("return [...document.querySelectorAll('.changed')].map((e) => e.title)")
    assert changed == [entry["changed"] for entry in history if entry["changed"]]
    outcomes = browser.texts(".history .chip")
    assert outcomes == [entry["outcome"] for entry in history]
    guards = [text for program in data["report"]["programs"] for text in program["guards"]]
    rows = browser.run(
        "return Number(document.getElementById('guards').getAttribute('aria-rowcount'))"
    )
    assert rows == len(guards)
    assert browser.texts("#guards .row:first-child .cell:last-child") == guards[:1]


def test_f_memory(page: tuple[Browser, Document]) -> None:
    browser, data = page
    show(browser, "memory")
    program = data["report"]["programs"][0]
    for fact, field in (("peak", "peak_bytes"), ("arena", "arena_bytes")):
        assert browser.value(f"#memory-facts [data-fact={fact}]") == program[field]
    assert browser.value("[data-fact=buffers]") == len(program["buffers"])
    blocks = browser.run(
        "return ingotPage.memory.charts.flatMap((c) => c.blocks.map((b) => b.buffer.name)).sort()"
    )
    assert blocks == sorted(buffer["name"] for buffer in program["buffers"])
    live = [0] * max(len(program["kernels"]), 1)
    for buffer in program["buffers"]:
        for k in range(buffer["first"], buffer["last"] + 1):
            live[k] += buffer["bytes"]
    assert browser.run("return [...ingotPage.memory.live]") == live


def test_g_compile_time(page: tuple[Browser, Document]) -> None:
    browser, data = page
    show(browser, "compile")
    for title, field in (("forward", "stages"), ("backward", "backward_stages")):
        stages = data["report"][field]
        shown = browser.run(
            "return [...document.querySelectorAll(arguments[0])].map((row) =>"
            " [row.cells[0].textContent, Number(row.cells[1].dataset.value)])",
            f"#compile [data-stages={title}] tbody tr",
        )
        assert shown == [list(item) for item in stages.items()]


def test_what_is_shown_is_text(page: tuple[Browser, Document]) -> None:
    """And no name of JavaScript's."""
    browser, _ = page
    for part in PARTS:
        show(browser, part)
    browser.run("ingotPage.flame.step(1); ingotPage.memory && ingotPage.memory.charts[0].choose("
                "ingotPage.memory.charts[0].blocks[0])")  # fmt: skip
    shown = browser.run("return document.getElementById('panels').textContent")
    for name in ("[object", "undefined", "NaN", "Infinity"):
        assert name not in re.sub(r"[\w.]*__\w+|inf\w*", "", shown.split("guard")[0]), name


def test_dark_and_light(page: tuple[Browser, Document]) -> None:
    browser, _ = page
    color = "return getComputedStyle(document.body).backgroundColor"
    before = browser.run(color)
    browser.run("document.activeElement.blur()")
    browser.press("t")
    after = browser.run(color)
    browser.click("#theme")
    assert before == browser.run(color) != after


def test_parts_by_keys(page: tuple[Browser, Document]) -> None:
    browser, _ = page
    browser.run("document.activeElement.blur()")
    for number, part in enumerate(PARTS, 1):
        browser.press(str(number))
        assert browser.run("return ingotPage.current.id") == part
    browser.press("ArrowRight")
    assert browser.run("return ingotPage.current.id") == PARTS[0]
    browser.press("?")
    assert browser.run("return document.getElementById('keys').open")
    browser.press("Escape")
    assert not browser.run("return document.getElementById('keys').open")


def test_ten_thousand_kernels(browser: Browser, tmp_path: Path) -> None:
    """Each part is drawn within a second, and the page in time."""
    function, arguments = make_broken()
    data = ingot.explain(function)(*arguments).to_dict()
    program = data["programs"][0]
    one, buffers, nodes = program["kernels"][0], program["buffers"], program["nodes"]
    program["kernels"] = []
    for number in range(10_000):
        kernel = copy.copy(one)
        kernel["name"], kernel["seconds"] = f"kernel_{number}", 1e-6 * (1 + number % 7)
        kernel["source"] = one["source"].replace("kernel", f"k{number}_")
        kernel["modules"] = [f"self.layers[{number // 20}].part[{number % 20}]"]
        program["kernels"].append(kernel)
        arena = {"name": f"b{number}", "value": "float32[9]", "bytes": 36, "place": "arena"}
        ends = {"offset": 36 * (number % 50), "first": number, "last": min(number + 9, 9999)}
        buffers.append(arena | ends)
        nodes.append(nodes[-1] | {"name": f"n{number}", "module": kernel["modules"][0]})
    file = tmp_path / "page.html"
    file.write_text(page_of(document(data)), "utf-8")
    assert file.stat().st_size <= MOST_BYTES
    assert browser.open(file) < SECONDS
    for part in PARTS:
        took = browser.run(
            "const t = performance.now(); openPanel(arguments[0]);"
            "document.body.offsetHeight; return performance.now() - t",
            part,
        )
        assert took < 1000, part
        assert browser.run("return document.querySelectorAll('*').length") < 8000
    took = browser.run(
        "openPanel('timeline'); const f = ingotPage.flame, t = performance.now();"
        "for (let k = 0; k < 10; k++) f.zoom(0.7, 0.4); return (performance.now() - t) / 10"
    )
    assert took < 200
    browser.run("openKernel(0, 9876)")
    assert browser.texts(".detail h2") == ["kernel_9876"]


def test_what_a_page_shows_of_hostile_names(browser: Browser, tmp_path: Path) -> None:
    name = "</script><img src=x onerror='document.title=1'> \udcff"
    plain = recompiled().to_dict()
    plain["name"] = plain["programs"][0]["kernels"][0]["name"] = name
    file = tmp_path / "page.html"
    file.write_text(page_of(document(plain)), "utf-8")
    browser.open(file)
    show(browser, "kernels")
    shown = browser.run("return document.querySelector('h1').textContent.toWellFormed()")
    assert shown.startswith("</script><img") and browser.run("return document.images.length") == 0
