"""docs/cpu.md: what is measured again, what the page shows, and that it says what it lacks."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict

import pytest

from benchmarks import cpu_page, page_text
from benchmarks.cpu_page import FUNCTIONS, MODELS, PIECES, chosen
from benchmarks.runner import Row
from benchmarks.workloads import ALL

ABOUT = {"machine": "a machine", "threads": 2, "python": "3.11.7", "versions": {"torch": "2.13.0"}}


def found(*rows, code="c0de"):
    return {"code": code, "about": ABOUT, "rounds": 3, "rows": [asdict(row) for row in rows]}


def peers(workload, **seconds):
    """A row for each compiler with constant times, and the ratios that follow from them."""
    rows = []
    for compiler, each in seconds.items():
        over = {
            peer: (seconds[peer] / each,) * 3 for peer in ("eager", "inductor") if peer in seconds
        }
        rows.append(
            Row(
                workload,
                compiler,
                [each],
                [each] * 3,
                over.get("eager"),
                over.get("inductor"),
                1e-7,
                1,
            )
        )
    return rows


@pytest.fixture
def figures():
    """Every piece; Ingot is slower than eager in one kernel and twice as fast elsewhere."""
    all_pieces = {}
    for piece in PIECES:
        part, _, name = piece.partition("/")
        ours = 2.0 if piece == "micro/layouts" else 0.5
        all_pieces[piece] = found(
            *peers(name, eager=1.0, inductor=0.8, ingot=ours, onnxruntime=0.4)
        )
    return json.loads(json.dumps(all_pieces))


def page(figures, tmp_path):
    page_text.write(figures, PIECES, "c0de", tmp_path / "cpu.md")
    return (tmp_path / "cpu.md").read_text()


def test_a_whole_page(figures, tmp_path):
    text = page(figures, tmp_path)
    assert "Not whole" not in text and "Not of one version" not in text
    assert (
        "a machine, 2 threads; Python 3.11.7, torch 2.13.0; the content of ingot/ is c0de." in text
    )
    assert "| tanh_gelu | 1000 |" in text and "0.80 (0.80-0.80) ONNX Runtime, slower |" in text
    ratios = "1.25 (1.25-1.25) | 2.00 (2.00-2.00) | 2.50 (2.50-2.50)"
    assert f"| mobilenet_v2 | 1000 | {ratios} | 4.0 missed | 1/1 | 1.00 |" in text
    assert f"| gpt | 1000 | {ratios} | 2.0 met | 1/1 | 1.00 |" in text
    assert (
        "5 kernels, 1 slower than eager; geometric mean 1.52 x eager and 1.21 x torch.compile."
        in text
    )
    assert "96 layers of the GPT take 1.0 times as long as 12." in text


def test_what_lacks_is_said_first(figures, tmp_path):
    del figures["models/vit"]
    figures["micro/pointwise"]["code"] = "01d"
    text = page(figures, tmp_path)
    assert "**Not whole.** Not measured: models/vit.\n" in text
    assert (
        "**Not of one version.** Measured with other code than this page's: micro/pointwise.\n"
        in text
    )
    assert text.index("Not whole") < text.index("## Small functions")
    assert "micro/pointwise: a machine" in text  # the conditions are told apart


def test_problems_are_said(figures, tmp_path):
    figures["models/unet"] = found(
        *peers("unet", eager=1.0, ingot=0.5), Row("unet", "openvino", problem="no such op")
    )
    text = page(figures, tmp_path)
    assert "- OpenVINO, unet: no such op\n" in text and "–" in text


def test_only_what_is_missing_or_old_is_measured(monkeypatch, tmp_path):
    measured = []

    def measure(piece, rounds):
        measured.append(piece)
        return found(*peers(piece.partition("/")[2], eager=1.0, ingot=0.5))

    monkeypatch.setattr(cpu_page, "measure", measure)
    monkeypatch.setattr(cpu_page, "code", lambda: "c0de")
    files = ["--figures", str(tmp_path / "figures.json"), "--page", str(tmp_path / "cpu.md")]
    assert cpu_page.main(["first", *files]) == 0
    assert measured == [piece for piece in PIECES if piece.startswith("first/")]
    cpu_page.main(["first/vit", "models/vit", *files])
    assert measured[-1] == "models/vit" and measured.count("first/vit") == 1
    monkeypatch.setattr(cpu_page, "code", lambda: "other")
    cpu_page.main(["first/vit", *files])
    assert measured.count("first/vit") == 2
    cpu_page.main(["--no-measure", *files])
    assert len(measured) == 7
    assert "Not whole" in (tmp_path / "cpu.md").read_text()


def test_a_piece_that_fails_leaves_the_others(monkeypatch, tmp_path):
    def measure(piece, rounds):
        if piece == "first/vit":
            raise subprocess.TimeoutExpired("benchmarks.micro", 900)
        return found(*peers(piece.partition("/")[2], eager=1.0, ingot=0.5))

    monkeypatch.setattr(cpu_page, "measure", measure)
    monkeypatch.setattr(cpu_page, "code", lambda: "c0de")
    files = ["--figures", str(tmp_path / "figures.json"), "--page", str(tmp_path / "cpu.md")]
    assert cpu_page.main(["first", *files]) == 1
    kept = json.loads((tmp_path / "figures.json").read_text())
    assert set(kept) == {piece for piece in PIECES if piece.startswith("first/")} - {"first/vit"}
    assert "first/vit" in (tmp_path / "cpu.md").read_text()


def test_names():
    assert chosen([]) == PIECES
    assert chosen(["models/vit", "functions"]) == [
        "models/vit",
        *(f"functions/{name}" for name in FUNCTIONS),
    ]
    assert (
        set(FUNCTIONS) | set(MODELS) <= set(ALL)
        and len(FUNCTIONS) == 6
        and set(MODELS) == set(page_text.AIMS)
    )
    with pytest.raises(SystemExit, match="no part or piece 'gpus'"):
        chosen(["gpus"])
