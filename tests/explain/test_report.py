"""The report: its fields, that it fits a screen, and the stage dumps and the debug ladder beside
it."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
import torch

from ingot.compilation import Compilation, Log
from ingot.errors import Evidence, Unsupported
from ingot.explain import debug as ladder
from ingot.explain.report import Break, KernelReport, Report, place_text, short_places, size_text
from ingot.explain.stages import STAGES, stage_text
from ingot.loops.expr import integer, loop_symbol, size_symbol, value_symbol
from ingot.loops.ir import Body, Buffer, Instruction, Library, LoopGraph, Origin, View
from ingot.loops.spaces import contiguous_strides
from ingot.reasons import reason_of
from ingot.schedule.kernel import Kernel, Parameter, Row, Stage, Store
from ingot.schedule.plan import KernelStep, LibraryStep, Place, Plan

HERE = f"{__file__}:1"
BATCH = size_symbol("s0", 2)


class Captured:
    def __init__(self, batch=4):
        self.ops = 1
        self.guards = ["x is a float32[4, 8]"]
        self.context = SimpleNamespace(shapes=SimpleNamespace(hints={BATCH: batch}))
        self.graph_module = torch.fx.symbolic_trace(lambda x: torch.relu(x))
        for node in self.graph_module.graph.nodes:
            node.meta["where"] = "mine.py:7"


class Compiled:
    def ir(self, kernel):
        return f"define i32 @{kernel.name}()"

    def module_text(self, kernels):
        return "\n".join(map(self.ir, kernels))

    def assembly(self):
        return "ret"


def buffer(name, *sizes, role="temporary"):
    sizes = tuple(integer(s) if isinstance(s, int) else s for s in sizes)
    return Buffer(name, torch.float32, sizes, contiguous_strides(sizes), role)


def plan():
    """y = table[ids] + x (fused; y is s0 x 8), then z = mm(y, w)."""
    buffers = [buffer("x", BATCH, 8, role="input"), buffer("table", 100, 8, role="input")]
    buffers += [buffer("y", BATCH, 8), buffer("w", 8, 8, role="input"), buffer("z", BATCH, 8)]
    graph = LoopGraph(
        {b.name: b for b in buffers}, inputs=["x", "table", "w"], symbols=[(BATCH, 0, "size", 0)]
    )
    i, j, v = loop_symbol("i", BATCH), loop_symbol("j", 8), value_symbol("v", 100)
    loads = (("a", i * 8 + j), ("b", v * 8 + j), ("row", j))
    body = Body(tuple(Instruction("load", (), torch.float32, load) for load in loads), (0,))
    stage = Stage((j,), body, (Store("c", i * 8 + j, 0), Store("row", j, 0)))
    parameters = (
        Parameter("a", torch.float32, True, False),
        Parameter("b", torch.float32, True, False),
    )
    parameters += (Parameter("c", torch.float32, False, True),)
    origin = Origin(("aten.embedding.default", "aten.add.Tensor", "aten.add.Tensor"), HERE)
    kernel = Kernel(
        "fused_embedding_add",
        origin,
        (i,),
        (stage,),
        parameters,
        (Row("row", torch.float32, integer(8)),),
    )
    views = [View(b.name, b.sizes, b.strides, integer(0), b.dtype) for b in buffers]
    multiply = Library(
        "mm",
        Origin(("aten.mm.default",), HERE),
        torch.mm,
        (views[2], views[3]),
        {},
        ("z",),
        out="out",
    )
    steps = [KernelStep(kernel, ("x", "table", "y"), BATCH, 1.0), LibraryStep(multiply)]
    places = {"x": Place("input", 0), "y": Place("arena", offset=integer(0)), "z": Place("output")}
    return Plan(graph, steps, places, {1: ("y",)}, BATCH * 32, BATCH * 32, BATCH * 64)


def compilation(**changes):
    made = plan()
    log = Log(plan=made, loops=made.graph, code=Compiled())
    log.seconds |= {"capture": 0.01, "schedule": 0.002}
    fields = dict(captured=Captured(), name="f", where=HERE, log=log)
    return Compilation(**{**fields, **changes})


def test_fields_of_a_compiled_function():
    report = Report.from_compilations([compilation(first_call=0.25)])
    assert (report.graph_count, report.break_count, report.fused_count) == (1, 0, 1)
    fused, extern = report.kernels
    assert (fused.kind, extern.kind) == ("fused", "extern")
    # x is read once; of the table at most a row per row of x; the row in scratch memory is no
    # traffic.
    assert (fused.reads_bytes, fused.writes_bytes) == (4 * 8 * 4 * 2, 4 * 8 * 4)
    assert (extern.reads_bytes, extern.writes_bytes) == (4 * 8 * 4 + 8 * 8 * 4, 4 * 8 * 4)
    assert (report.peak_bytes, report.arena_bytes, report.first_call) == (256, 128, 0.25)
    assert report.guards == ["x is a float32[4, 8]"] and "@fused_embedding_add" in fused.source
    assert report.stages == {"capture": 0.01, "schedule": 0.002}
    text = str(report)
    assert "2 kernels (1 fused, 1 extern)" in text and "embedding, add x2" in text
    assert "test_report.py:1" in text and '"""The report: its fields' in text


def test_indirect_reads_never_exceed_the_buffer():
    report = Report.from_compilations([compilation(captured=Captured(1000))])
    assert report.kernels[0].reads_bytes == 1000 * 8 * 4 + 100 * 8 * 4


def test_a_skipped_call_is_a_break():
    reason = Unsupported("a list is torn", HERE, "return it instead")
    reason.evidence = Evidence(["n == 3"])
    report = Report.from_compilations([Compilation("f", skipped=reason)])
    assert report.breaks == [
        Break("a list is torn", __file__, 1, "return it instead", "f", eager=True)
    ]
    assert report.graph_count == 0 and report.kernels == [] and report.guards == ["n == 3"]
    text = str(report)
    assert "in eager from explain/test_report.py:1 in f: a list is torn" in text.replace(
        "tests/", ""
    )
    assert '"""The report: its fields' in text and "hint: return it instead" in text


class TestBreaks:
    """A function whose graph breaks once, in a helper, and what follows the break."""

    def regions(self):
        why = Unsupported(reason_of("data-branch", "a branch on the values of y", HERE, "helper"))
        first = compilation(break_=why, first_call=0.25)
        then = compilation(name="helper", where="m.py:9", region="there", first_call=0.5)
        return first, then

    def test_the_report_is_of_all_regions(self):
        first, then = self.regions()
        report = Report.from_compilations([first, then])
        assert (report.name, report.where, report.graph_count, report.break_count) == (
            "f",
            HERE,
            2,
            1,
        )
        assert len(report.kernels) == 4 and report.stages["capture"] == 0.02
        assert report.guards == first.guards == then.guards  # each once
        assert (report.peak_bytes, report.arena_bytes, report.first_call) == (256, 256, 0.75)
        [found] = report.breaks
        assert (found.function, found.file, found.line, found.eager) == (
            "helper",
            __file__,
            1,
            False,
        )
        assert "torch.where" in found.hint
        text = str(report)
        assert (
            "2 graphs, 1 break, 4 kernels" in text
            and "in helper: a branch on the values of y" in text
        )

    def test_a_break_that_is_met_again_counts_once(self):
        first, then = self.regions()
        again, then_again = self.regions()
        again.recompiled, then_again.recompiled = "x was 3, is 4", "y was 5, is 6"
        report = Report.from_compilations([first, then, again, then_again])
        assert (report.graph_count, report.break_count, len(report.kernels)) == (4, 1, 4)
        assert report.recompiles == [
            "x was 3, is 4",
            "y was 5, is 6, in helper, continued at m.py:9",
        ]

    def test_kernels_are_of_what_was_compiled_last(self):
        """A loop that is broken twice, whose second round is another variant; then all of it for
        another shape."""
        first, then = self.regions()
        _, second_round = self.regions()
        assert len(Report.from_compilations([first, then, second_round]).kernels) == 6
        again, then_again = self.regions()
        elsewhere = compilation(region="elsewhere")
        report = Report.from_compilations([first, then, second_round, elsewhere, again, then_again])
        assert len(report.kernels) == 6  # again, then again, and elsewhere, which still stands

    def test_many_breaks_are_one_line_each(self):
        breaks = [Break("why", __file__, n + 1, "a hint", "f") for n in range(7)]
        text = str(Report("f", breaks=breaks))
        assert text.count("break at ") == 7 and "hint" not in text
        assert "hint: a hint" in str(Report("f", breaks=breaks[:3]))

    def test_a_region_without_tensor_work_has_no_graph(self):
        first, then = self.regions()
        then.captured.ops, then.log.plan = 0, None
        report = Report.from_compilations([first, then])
        assert (report.graph_count, len(report.kernels)) == (1, 2)
        assert "no tensor work here" in stage_text(then, "schedule")

    def test_the_debug_line_names_the_break(self, monkeypatch):
        monkeypatch.setenv("INGOT_DEBUG", "1")
        out = io.StringIO()
        for each in self.regions():
            ladder.debug(each, out)
        broken, continued = out.getvalue().splitlines()
        assert (
            "ingot: f compiled in" in broken
            and "graph break: a branch on the values of y at " in broken
        )
        assert (
            "ingot: helper, continued at m.py:9 compiled in" in continued
            and "break" not in continued
        )


def test_recompiles_and_the_last_compiled_entry():
    second = compilation(recompiled="shape[0] was 4, is 8", captured=Captured(8))
    skipped = Compilation("f", skipped=Unsupported("no"))
    report = Report.from_compilations([compilation(), second, skipped])
    assert report.recompiles == ["shape[0] was 4, is 8"] and report.peak_bytes == 512
    assert (report.graph_count, report.break_count) == (2, 1)
    assert "shape[0] was 4, is 8" in str(report)


def test_no_compilation_is_an_error():
    with pytest.raises(ValueError, match="nothing was compiled"):
        Report.from_compilations([])


@pytest.mark.parametrize("count", [0, 1, 12, 300])
def test_text_fits_one_screen(count):
    ops = [(f"aten.op{n}.default",) * 2 + ("aten.mul.Tensor",) * 40 for n in range(count)]
    kernels = [
        KernelReport(f"fused_{'x' * 60}_{n}", "fused", ops[n], n, n, "", HERE) for n in range(count)
    ]
    report = Report(
        "f",
        HERE,
        breaks=[Break("reason " * 40, __file__, n + 1, "hint " * 40) for n in range(count)],
        kernels=kernels,
        guards=[f"guard {n} " * 30 for n in range(count)],
        stages={f"stage{n}": 0.1 for n in range(12)},
        recompiles=["why " * 60] * count,
        peak_bytes=10**10,
    )
    lines = str(report).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 120
    if count == 300:
        for noun in ("breaks", "reasons", "kernels", "guards"):
            assert re.search(rf"\.\.\. and \d+ more {noun}", str(report)), noun


def test_equal_kernels_are_one_row_with_a_count():
    kernel = KernelReport("fused_add", "fused", ("aten.add.Tensor",), 8, 8, "", HERE)
    text = str(Report("f", kernels=[kernel] * 12))
    assert "x12" in text and text.count("fused_add") == 1


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1024, "1 KiB"), (12 << 20, "12 MiB"), (1000 << 20, "0.977 GiB")],
)
def test_sizes_for_people(count, text):
    assert size_text(count) == text


def test_places_are_short(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert place_text(f"{tmp_path}/a/b.py:3") == "a/b.py:3"
    assert place_text("/elsewhere/deep/er/b.py:3") == "er/b.py:3"
    assert short_places(f"n == 3  ({tmp_path}/a/b.py:3)") == "n == 3  (a/b.py:3)"
    assert place_text(f"{tmp_path}/..a/b.py:3") == "..a/b.py:3"
    assert place_text("") == "" and place_text("<string>") == "<string>"


def test_places_without_a_working_directory(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert place_text("/elsewhere/deep/er/b.py:3") == "er/b.py:3"


# -- stages and the ladder -------------------------------------------------------------------------


def test_captured_graph_prints_as_python_that_runs():
    text = stage_text(compilation(), "capture")
    assert text.startswith("# == capture of f (10.0 ms)")
    names = {"torch": torch}
    exec(text, names)
    assert torch.equal(names["graph"](torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
    assert "relu(x);  x = None  # mine.py:7" in text


def test_schedule_llvm_and_assembly_print():
    made = compilation()
    text = stage_text(made, "schedule")
    assert "launch fused_embedding_add(x, table, y)" in text and "mm" in text and "free y" in text
    assert "y: arena at 0" in text and "arena 32*s0 bytes" in text
    assert "define i32 @fused_embedding_add()" in stage_text(made, "llvm")
    assert "ret" in stage_text(made, "assembly")


def test_stages_that_were_not_reached_say_so():
    skipped = Compilation("f", skipped=Unsupported("no such op", "a.py:3"))
    for name in STAGES:
        assert "not reached: no such op at a.py:3" in stage_text(skipped, name)
    with pytest.raises(ValueError, match="no stage is called 'nope'; the stages are capture"):
        stage_text(skipped, "nope")


@pytest.mark.parametrize(
    ("level", "has", "has_not"),
    [
        ("0", "", "ingot: f"),
        ("1", "ingot: f compiled in 0.012 s, 2 kernels (1 fused)", "schedule  "),
        ("2", "capture          10.00 ms", "merged a and b"),
        ("3", "merged a and b", "define i32"),
        ("4", "define i32 @fused_embedding_add()", "launch"),
    ],
)
def test_each_rung_of_the_ladder_adds_to_the_last(level, has, has_not, monkeypatch):
    monkeypatch.setenv("INGOT_DEBUG", level)
    out = io.StringIO()
    made = compilation()
    made.log.decisions.append("merged a and b")
    made.log.rewrites.append("x * 1 -> x")
    ladder.debug(made, out)
    assert has in out.getvalue() and has_not not in out.getvalue()


def test_the_whole_ladder_stands_for_a_skipped_call(monkeypatch):
    monkeypatch.setenv("INGOT_DEBUG", "7")
    out = io.StringIO()
    ladder.debug(Compilation("f", skipped=Unsupported("no")), out)
    assert (
        out.getvalue().startswith("ingot: f runs in eager: no")
        and "# == assembly of f" in out.getvalue()
    )


@pytest.mark.parametrize("text", ["8", "-1", "yes"])
def test_a_level_that_is_none_is_an_error(text, monkeypatch):
    monkeypatch.setenv("INGOT_DEBUG", text)
    with pytest.raises(ValueError, match="it may be 0 .nothing. to 7"):
        ladder.level()
