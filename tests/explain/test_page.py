"""The page of a report: its data are the report's, it is one file that asks for no other, and it
stays small."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.explain.cli import main
from ingot.explain.page import document as pages
from ingot.explain.page.document import LEFT_OUT, document, page_of, unpacked
from ingot.explain.page.flops import op_flops, program_flops
from ingot.explain.page.recording import dispatched, document_of, layer_path
from ingot.explain.page.timeline import CALL, Note, Span, Step, described_by, described_by_steps
from ingot.explain.page.timeline import timeline as timeline_of
from ingot.explain.report import Report
from tests.explain.page_programs import make_broken, recompiled

HOSTILE = "</script><script>alert(1)</script><!--data--> \udcff ' \" & é"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(torch.relu(self.inner(x)))


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """The document of a small model that is trained, with both timelines."""
    model, x = nn.Sequential(Block(), Block()), torch.rand(8, 16)
    compiled = ingot.compile(model)
    compiled(x).sum().backward()
    report = ingot.explain(compiled)(x)
    return document_of(report, lambda: compiled(x).sum().backward(), lambda: eager(model, x))


def eager(model: nn.Module, x: Tensor) -> None:
    model(x).sum().backward()


@pytest.fixture(scope="module")
def broken() -> Report:
    function, arguments = make_broken()
    compiled = ingot.compile(function)
    compiled(*arguments)
    report = ingot.explain(compiled)(*arguments)
    report.measure(lambda: compiled(*arguments))
    return report


class TestFile:
    def test_its_data_are_the_reports(self, broken: Report) -> None:
        shown = unpacked(page_of(document_of(broken)))
        assert shown["report"] == broken.to_dict() and shown["timelines"] == []

    def test_a_stored_document_gives_the_same_page(self, trained: dict[str, Any]) -> None:
        stored = json.loads(json.dumps(trained))
        assert page_of(stored) == page_of(trained)
        assert unpacked(page_of(stored)) == stored

    def test_it_asks_for_nothing(self, trained: dict[str, Any]) -> None:
        page = page_of(trained)
        found = set(re.findall(r"\w+://[^\s\"']*", page))
        assert found == {"http://www.w3.org/2000/svg"}  # a name of XML, which nobody looks up
        for asks in ("src=", "@import", "url(", "fetch(", "XMLHttpRequest", "import("):
            assert asks not in page
        assert "default-src 'none'" in page

    def test_its_script_keeps_to_the_house(self) -> None:
        files = sorted(pages._TEMPLATE.iterdir())
        assert {file.name for file in files} == {"page.html", "page.css", *pages._SCRIPTS}
        for file in files:
            lines = file.read_text("utf-8").splitlines()
            assert len(lines) <= 700 and max(map(len, lines)) <= 100, file.name

    def test_hostile_names_are_text(self, broken: Report) -> None:
        data = document_of(broken)
        data["report"]["name"] = data["report"]["breaks"][0]["reason"] = HOSTILE
        page = page_of(data)
        page.encode("utf-8")
        assert page.count("<script") == 2 and "alert(1)</script>" not in page
        assert unpacked(page)["report"]["name"] == HOSTILE

    def test_the_largest_texts_are_left_out_of_a_page_that_is_too_large(
        self, broken: Report
    ) -> None:
        data, numbers = document_of(broken), random.Random(0)
        kernels = data["report"]["programs"][0]["kernels"]
        kernels[0]["source"] = numbers.randbytes(200_000).hex()
        kernels[1]["source"] = "small " * 20
        page = page_of(data, most=200_000)
        assert len(page) <= 200_000 < len(page_of(data))
        shown = unpacked(page)["report"]["programs"][0]["kernels"]
        assert shown[0]["source"] == LEFT_OUT and shown[1] == kernels[1]
        assert 'data-left-out="1"' in page

    def test_a_text_is_written_once(self) -> None:
        texts = pages._Texts()
        body = texts.without({"a": ["x" * 100, "x" * 100], "b": "short"})
        assert body == {"a": [{"$": 0}, {"$": 0}], "b": "short"} and texts.items == ["x" * 100]

    def test_it_is_written(self, broken: Report, tmp_path: Path) -> None:
        broken.html(tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text("utf-8")
        assert page.startswith("<!DOCTYPE html>") and "<title>ingot: broken</title>" in page
        with pytest.raises(FileNotFoundError):
            broken.html(tmp_path / "none" / "page.html")


class TestTimelines:
    def test_eager_has_the_users_modules_and_lines(self, trained: dict[str, Any]) -> None:
        shown, _ = trained["timelines"]
        assert shown["name"] == "eager"
        events = [event for lane in shown["lanes"] for event in lane["events"]]
        forward = [event for event in events if event["phase"] == "forward"]
        linear = [event for event in forward if event["name"] == "linear"]
        assert [event["module"] for event in linear] == ["self[0].inner", "self[1].inner"]
        assert {Path(event["where"]).name.partition(":")[0] for event in linear} == {"test_page.py"}
        assert linear[0]["flops"] == 2 * 8 * 16 * 16
        assert linear[0]["bytes"] == 4 * (8 * 16 + 16 * 16 + 16 + 8 * 16)
        backward = [event for event in events if event["phase"] == "backward"]
        assert {"self[0].inner", "self[1].norm"} <= {event["module"] for event in backward}

    def test_events_of_ingot_are_the_kernels(self, trained: dict[str, Any]) -> None:
        _, shown = trained["timelines"]
        assert shown["name"] == "Ingot"
        seen = set()
        for event in shown["lanes"][0]["events"]:
            if event["kernel"] is None:
                continue
            program = trained["report"]["programs"][event["program"]]
            kernel = program["kernels"][event["kernel"]]
            seen.add((event["program"], event["kernel"]))
            assert event["name"] == kernel["name"] and event["where"] == kernel["where"]
            assert event["bytes"] == kernel["reads_bytes"] + kernel["writes_bytes"]
            assert event["phase"] == program["kind"]
        counts = [len(program["kernels"]) for program in trained["report"]["programs"]]
        assert len(seen) == sum(counts)

    def test_events_lie_inside_of_the_call_one_behind_the_other(
        self, trained: dict[str, Any]
    ) -> None:
        for shown in trained["timelines"]:
            for lane in shown["lanes"]:
                end = 0.0
                for event in lane["events"]:
                    assert event["start"] >= end - 1e-9 and event["seconds"] > 0
                    end = event["start"] + event["seconds"]
                assert end <= shown["seconds"] + 1e-9

    def test_what_a_gpu_runs_is_what_launched_it(self) -> None:
        step = Step(0, 3, False, "self.a", "f.py:1", 100, None, "fused")
        spans = [
            Span(CALL, 0, 10, "t"),
            Span("ingot::step", 1, 2, "t"),
            Span("cuLaunchKernelEx", 1.2, 1.4, "t", link=7),
            Span("triton_kernel", 3, 9, "stream", on_gpu=True, link=7),
            Span("Memcpy", 9, 9.5, "stream", on_gpu=True, link=8),
        ]
        shown = timeline_of("Ingot", spans, described_by_steps({"ingot::step": [step]}))
        cpu, gpu = shown.lanes
        assert [(lane.gpu, len(lane.events)) for lane in (cpu, gpu)] == [(False, 1), (True, 2)]
        kernel, copy = gpu.events
        assert (kernel.name, kernel.kernel, kernel.module) == ("triton_kernel", 3, "self.a")
        assert kernel.bytes == 100 and kernel.seconds == 6 and copy.kernel is None

    def test_a_gradient_is_at_the_line_of_what_it_is_the_gradient_of(self) -> None:
        around = "autograd::engine::evaluate_function: MmBackward0"
        spans = [
            Span(CALL, 0, 10, "t"),
            Span("aten::gt", 1, 2, "t", sequence=5),
            Span("aten::matmul", 2, 4, "t", sequence=5),
            Span("aten::mm", 2.5, 3.5, "t", sequence=5),
            Span("aten::add", 4, 5, "t", sequence=6),
            Span(around, 6, 9, "u", sequence=5),
            Span("aten::mm", 7, 8, "u"),
        ]
        notes = [
            Note("aten::gt", "f.py:1", "self", 1, 0),
            Note("aten::mm", "f.py:2", "self.a", 2, 10),
            Note("aten::add", "f.py:3", "self", 3, 0),
            Note("aten::mm", "", "", 4, 20),
        ]
        shown = timeline_of("eager", spans, described_by(notes))
        first, second = shown.lanes
        names = [(event.name, event.where, event.bytes) for event in first.events]
        assert names == [("gt", "f.py:1", 1), ("matmul", "f.py:2", 2), ("add", "f.py:3", 3)]
        (gradient,) = second.events
        assert (gradient.phase, gradient.where, gradient.module) == ("backward", "f.py:2", "self.a")
        assert (gradient.bytes, gradient.flops) == (4, 20)

    def test_views_move_nothing(self) -> None:
        x = torch.rand(4, 4)
        notes = dispatched(lambda: x.t().contiguous())
        assert [(note.name, note.bytes) for note in notes] == [("aten::t", 0), ("aten::clone", 128)]

    def test_layers_that_are_compiled_once_have_their_own_names(self) -> None:
        known = {"self.layers[7].a[0]", "self.layers[0].a[0]"}
        assert layer_path("self.layers[2].a[0]", 5, known) == "self.layers[7].a[0]"
        assert layer_path("self.layers[2].a[0]", 3, known) == "self.layers[*].a[*]"

    def test_each_layer_of_many_is_shown(self) -> None:
        model, x = nn.Sequential(*[Block() for _ in range(10)]), torch.rand(8, 16)
        compiled = ingot.compile(model)
        with torch.no_grad():
            compiled(x)
            report = ingot.explain(compiled)(x)
            data = document_of(report, lambda: compiled(x))
        events = data["timelines"][0]["lanes"][0]["events"]
        modules = {event["module"].partition(".")[0] for event in events}
        assert {f"self[{number}]" for number in range(10)} <= modules


class TestFigures:
    @pytest.mark.parametrize(
        ("op", "result", "inputs", "flops"),
        [
            ("aten.mm.default", (4, 8), [(4, 16), (16, 8)], 2 * 4 * 8 * 16),
            ("aten::addmm", (4, 8), [(8,), (4, 16), (16, 8)], 2 * 4 * 8 * 16),
            ("aten.bmm.default", (3, 4, 8), [(3, 4, 16), (3, 16, 8)], 2 * 3 * 4 * 8 * 16),
            (
                "aten.convolution.default",
                (2, 8, 5, 5),
                [(2, 6, 7, 7), (8, 3, 3, 3)],
                2 * 400 * 27,
            ),
            ("aten.add.Tensor", (4, 8), [(4, 8), (4, 8)], 0),
            ("aten.mm.default", (4, 8), [(4, 16), None], None),
        ],
    )
    def test_operations(
        self, op: str, result: tuple[int, ...], inputs: list[Any], flops: int | None
    ) -> None:
        assert op_flops(op, result, inputs) == flops

    def test_products_of_kernels(self, broken: Report) -> None:
        flops = [program_flops(program) for program in broken.to_dict()["programs"]]
        with_product = 2 * 128**3
        assert sorted(filter(None, sum(flops, []))) == [with_product] * 3

    def test_a_product_is_counted_once(self) -> None:
        shapes = {"x": "float32[4, 16]", "w": "float32[16, 8]", "mm": "float32[4, 8]"}
        nodes = [{"name": name, "op": "input", "inputs": [], "values": [text]}
                 for name, text in shapes.items()]  # fmt: skip
        nodes[2] |= {"op": "aten.mm.default", "inputs": ["x", "w"]}
        copied = {"kind": "fused", "ops": ["aten.mm.default"], "nodes": ["mm"], "loops": "n0"}
        called = copied | {"kind": "extern", "loops": ""}
        program = {"nodes": nodes, "buffers": [], "kernels": [called, copied]}
        assert program_flops(program) == [2 * 4 * 8 * 16, 0]

    def test_products_of_layers_that_are_compiled_once(self) -> None:
        """Their nodes are those of other layers: the shapes of buffers say what they do."""
        values = {"x": "float32[1, 128, 768]", "g": "float32[1, 128, 3072]", "b": "float32[768]"}
        values |= {"out": "float32[768, 3072]", "other": "float32[5, 7]"}
        buffers = [{"name": name, "value": value} for name, value in values.items()]
        kernel = {"kind": "fused", "ops": ["aten.mm.default"], "nodes": ["mm"], "loops": ""}
        kernel |= {"buffers_read": ["b", "x", "g"], "buffers_written": ["out"]}
        kernels = [kernel, kernel | {"buffers_written": ["other"]}, kernel | {"ops": []}]
        program = {"nodes": [], "buffers": buffers, "kernels": kernels}
        assert program_flops(program) == [2 * 768 * 3072 * 128, None, 0]

    def test_what_breaks_cost(self, broken: Report) -> None:
        data = document_of(broken)
        costs, programs = data["break_costs"], data["report"]["programs"]
        assert [cost["break"] for cost in costs] == list(range(5))
        for number, cost in enumerate(costs):
            assert (cost["before"], cost["after"]) == (number, number + 1)
            behind = next(p for p in programs if p["region"] == number + 1)
            assert cost["compile_seconds"] == sum(behind["stages"].values())
            assert cost["bytes"] >= 128 * 128 * 4
            assert cost["seconds"] is None  # no call was recorded

    def test_what_breaks_cost_in_a_call(self) -> None:
        function, arguments = make_broken()
        compiled = ingot.compile(function)
        compiled(*arguments)
        report = ingot.explain(compiled)(*arguments)
        data = document_of(report, lambda: compiled(*arguments))
        seconds = [cost["seconds"] for cost in data["break_costs"]]
        assert all(seconds) and sum(seconds) < data["timelines"][0]["seconds"]

    def test_the_limits_are_measured(self, trained: dict[str, Any]) -> None:
        limits = trained["limits"]
        assert limits["bytes_per_second"] > 1e7 and limits["flops_per_second"] > 1e7

    def test_lines_of_code(self, broken: Report) -> None:
        code = document_of(broken)["code"]
        assert "y = torch.relu(x @ w)" in code.values()


class TestNotebook:
    def test_it_has_the_figures(self, broken: Report) -> None:
        shown = broken._repr_html_()
        assert "6 graphs, 5 breaks" in shown and shown.count("<li>") == 5
        rows = shown.count("<tr>") - 1
        assert 3 <= rows <= 12 and "<th" in shown and "<script" not in shown
        assert re.findall(r"<(div|table|details|ul)", shown).count("div") == shown.count("</div>")

    def test_it_says_what_was_compiled_again(self) -> None:
        report = recompiled()
        assert len(report.recompiles) == 6
        assert "x.ndim was 1, is 2" in report._repr_html_()

    def test_hostile_names_are_text(self, broken: Report) -> None:
        before = broken.name
        try:
            broken.name = HOSTILE
            shown = broken._repr_html_()
        finally:
            broken.name = before
        shown.encode("utf-8")
        assert "<script" not in shown and "&lt;/script&gt;" in shown


PROGRAM = """
import torch

def make():
    model = torch.nn.Linear(4, 4)
    return model, (torch.rand(2, 4),)
"""


class TestCommand:
    def test_it_writes_a_page(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "program.py").write_text(PROGRAM)
        file = tmp_path / "page.html"
        command = ["explain", "--html", str(file), "--train", f"{tmp_path}/program.py:make"]
        assert main(ingot.compile, ingot.explain, command) == 0
        assert capsys.readouterr().out.startswith(f"{file}: ")
        data = unpacked(file.read_text("utf-8"))
        assert [shown["name"] for shown in data["timelines"]] == ["eager", "Ingot"]
        assert {program["kind"] for program in data["report"]["programs"]} == {
            "forward",
            "backward",
        }
        assert any(e["phase"] == "backward" for e in data["timelines"][0]["lanes"][0]["events"])

    def test_with_json_it_does_both(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "program.py").write_text(PROGRAM)
        file = tmp_path / "page.html"
        command = ["explain", "--json", "--html", str(file), f"{tmp_path}/program.py:make"]
        assert main(ingot.compile, ingot.explain, command) == 0
        printed = json.loads(capsys.readouterr().out)
        assert unpacked(file.read_text("utf-8"))["report"] == printed

    def test_a_file_that_cannot_be_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "program.py").write_text(PROGRAM)
        file = tmp_path / "none" / "page.html"
        command = ["explain", "--html", str(file), f"{tmp_path}/program.py:make"]
        assert main(ingot.compile, ingot.explain, command) != 0
        assert f"cannot write {file}: No such file" in capsys.readouterr().err


def test_a_document_of_a_report_alone(broken: Report) -> None:
    data = document(broken.to_dict())
    assert data["limits"] is None and data["version"] == 1
    assert [len(flops) for flops in data["flops"]] == [len(p.kernels) for p in broken.programs]
