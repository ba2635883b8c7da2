"""The command line: what it prints, how it fails, with eager in the compiler's place."""

from __future__ import annotations

import io
import json
import os
import re
import textwrap

import pytest
import torch
from rich.console import Console

import ingot
from ingot.compilation import Compilation
from ingot.errors import Unsupported
from ingot.explain import cli
from ingot.explain.cli import main
from ingot.explain.loading import UserError, run_user_code
from ingot.explain.report import Report

GOOD = """
    import torch

    def make():
        return torch.nn.Linear(4, 3), (torch.ones(2, 4),)

    def make_keywords():
        return torch.sum, (torch.ones(2, 4),), {"dim": 0}

    def make_integers():
        return (lambda x: {"i": x.long(), "n": 3}), (torch.ones(2),)

    def make_raises():
        raise KeyError("weights")

    def make_list():
        return [1, 2]

    def make_no_tuple():
        return torch.sin, torch.ones(2)

    def make_no_function():
        return 1, ()

    def make_bad_keywords():
        return torch.sin, (torch.ones(2),), {1: 2}

    def make_bad_call():
        return torch.sin, ("text",)

    def make_interrupt():
        raise KeyboardInterrupt

    number = 3
"""


def explain(function):
    def explained(*args, **kwargs):
        function(*args, **kwargs)
        return Report.from_compilations(
            [Compilation("f", skipped=Unsupported("eager stands in", "m.py:3", "wait"))]
        )

    return explained


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(GOOD))
    return path


def run(*argv, compile=lambda f: f):
    return main(compile, explain, [str(a) for a in argv])


@pytest.mark.parametrize("make", ["make", "make_keywords", "make_integers"])
def test_try(file, make, capsys):
    assert run("try", f"{file}:{make}", "--rounds", 2) == 0
    out = capsys.readouterr().out
    for text in (
        "median call",
        "speed-up",
        "first call",
        "peak memory",
        "kernels",
        "The result is eager's",
    ):
        assert text in out
    assert "in eager from m.py:3 in f: eager stands in (hint: wait)" in out


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda f: lambda *a: f(*a) + 0.001, "relative error"),
        (lambda f: lambda *a: f(*a).double(), "dtype torch.float64, eager's is torch.float32"),
        (lambda f: lambda *a: f(*a).t().contiguous().t(), "strides (1, 2), eager's is (3, 1)"),
        (lambda f: lambda *a: (f(*a),), "is built as"),
        (
            lambda f: lambda x: f(x.add_(0) * 1) if x.mul_(2) is None else f(x * 0.5),
            "args[0] holds other values",
        ),
    ],
)
def test_try_finds_what_differs_from_eager(file, wrong, says, capsys):
    assert run("try", file, "--rounds", 1, compile=wrong) == 1
    assert says in capsys.readouterr().out


def test_sizes_are_symbols_where_that_is_asked(file, capsys):
    asked = []

    def compile(function, **options):
        asked.append(options)
        return function

    for command in ("try", "explain"):
        assert run(command, file, "--dynamic", compile=compile) == 0
    assert run("explain", file, "--train", compile=compile) == 0
    assert asked == [{"dynamic": True}, {"dynamic": True}, {}]


@pytest.fixture
def others(monkeypatch):
    """Compilers beside Ingot: one does nothing, one fails, one is wrong."""

    def compile(function, backend, dynamic):
        def wrong(*args, **kwargs):
            return function(*args, **kwargs) + 1

        def failing(*args, **kwargs):
            raise RuntimeError("it fails\nand says more")

        return {"nothing": function, "wrong": wrong, "failing": failing}[backend]

    names = ["nothing", "wrong", "failing", "eager"]
    monkeypatch.setattr(torch.compiler, "list_backends", lambda exclude_tags: names)
    monkeypatch.setattr(torch, "compile", compile)


@pytest.mark.usefixtures("others")
def test_other_compilers_are_in_the_table(file, capsys):
    names = "eager,nothing,wrong,failing"
    assert run("try", file, "--rounds", 2, "--compilers", names) == 0
    out = capsys.readouterr().out
    heading = next(line for line in out.splitlines() if "ingot" in line)
    assert re.findall(r"\w+", heading) == ["eager", "ingot", "nothing", "wrong", "failing"]
    rows = {
        line.split("│")[1].strip(): line.split("│")[2:] for line in out.splitlines() if "│" in line
    }
    first = [cell.strip() for cell in rows["first call, s"]]
    assert first[0] == "" and all(first[1:4]) and first[4] == ""
    assert "failing: RuntimeError: it fails\n" in out and "says more" not in out
    assert re.search("^wrong: relative error", out, re.M) and "The result is eager's" in out


@pytest.mark.usefixtures("others")
def test_other_compilers_as_data(file, capsys):
    assert run("try", file, "--rounds", 2, "--compilers", "nothing,failing", "--json") == 0
    peers = json.loads(capsys.readouterr().out)["peers"]
    assert len(peers["nothing"]["seconds"]) == 2 and peers["nothing"]["first_call"] > 0
    assert peers["nothing"]["comparison"]["problems"] == []
    assert peers["failing"]["failure"] == "RuntimeError: it fails"


@pytest.mark.usefixtures("others")
def test_compilers_that_are_not_there_are_named(file, capsys):
    assert run("try", file, "--compilers", "induktor") == 2
    err = capsys.readouterr().err
    assert "there is no compiler 'induktor' here; there are eager, failing, nothing, wrong" in err


@pytest.mark.parametrize("width", [60, 200])
@pytest.mark.usefixtures("others")
def test_the_table_fits_the_terminal(width, file, capsys, monkeypatch):
    narrow = Console(width=width, highlight=False)
    monkeypatch.setattr(cli, "console", lambda: narrow)
    assert run("try", file, "--rounds", 1, "--compilers", "nothing") == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line[:1] in "┏┃┡│└"]
    assert len(table) > 8 and max(map(len, table)) <= width


@pytest.mark.parametrize("asked", ["", "1"])
def test_colours_are_for_terminals_that_want_them(asked, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", asked)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, highlight=False)
    cli.print_line("break at m.py:3: [why]", console)
    console.print(cli.speedup_cell((1.1, 1.2, 1.3)))
    assert ("\x1b[33m" in shown.getvalue()) == ("\x1b[32m" in shown.getvalue()) == (not asked)
    assert "break at m.py:3: [why]" in shown.getvalue()
    plain = io.StringIO()
    cli.print_line("break at m.py:3: [why]", Console(file=plain))
    assert plain.getvalue() == "break at m.py:3: [why]\n"


def test_nothing_to_compile_is_said(tmp_path, capsys):
    path = tmp_path / "shapes.py"
    path.write_text("import torch\ndef make(): return (lambda x: x.dim()), (torch.ones(2),)\n")
    for command in ("try", "explain"):
        arguments = [command, str(path)]
        assert main(ingot.compile, ingot.explain, arguments) == 0
        assert "nothing to compile: this call does no tensor work" in capsys.readouterr().out


NORMS = """
    import torch

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

        def forward(self, x):
            return torch.nn.functional.gelu(self.up(self.norm(x)))

    def make():
        return torch.nn.Sequential(Block(), Block()), (torch.ones(16, 8),)
"""


def test_kernels_are_named_by_what_was_called_and_by_module(tmp_path, capsys):
    path = tmp_path / "norms.py"
    path.write_text(textwrap.dedent(NORMS))
    assert main(ingot.compile, ingot.explain, ["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"x2 +fused .* layer_norm\n +\S*norms.py:10  self\[\*\]\.norm  return", out)
    assert re.search(r" linear, gelu\n", out) and "rsqrt" not in out


def test_explain_and_stages(file, capsys):
    assert run("explain", file) == 0
    assert "in eager from m.py:3 in f: eager stands in" in capsys.readouterr().out
    assert run("stages", file, "--stage", "loops") == 0
    assert capsys.readouterr().out.startswith("# == loops of f\n# not reached: eager stands in")


@pytest.mark.parametrize(
    ("target", "status", "says"),
    [
        ("nowhere.py:make", 2, "there is no file nowhere.py"),
        ("{file}:nothing", 2, "has no function nothing; it has make, make_keywords"),
        ("{file}:number", 2, "is no function but an int"),
        ("program", 2, "write FILE.py:make"),
        ("{file}:make()", 2, "write FILE.py:make"),
        ("{file}:make_list", 2, "returned a list of 2; it must return"),
        ("{file}:make_no_tuple", 2, "returned a Tensor where the tuple of arguments belongs"),
        ("{file}:make_no_function", 2, "returned an int where the function or module belongs"),
        ("{file}:make_bad_keywords", 2, "where the dict of keyword arguments belongs"),
        ("{file}:make_raises", 1, "KeyError: 'weights'"),
        ("{file}:make_bad_call", 1, "the call raised an error"),
        ("{file}:make_interrupt", 130, "interrupted"),
    ],
)
@pytest.mark.parametrize("command", ["try", "explain"])
def test_mistakes_are_named(file, command, target, status, says, capsys):
    assert run(command, target.format(file=file)) == status
    err = capsys.readouterr().err
    assert says in err and "ingot/explain" not in err


def test_traceback_shows_the_users_lines(file, capsys):
    run("try", f"{file}:make_raises")
    err = capsys.readouterr().err
    assert (
        f'File "{file}"' in err and 'raise KeyError("weights")' in err and err.count("File ") == 1
    )


@pytest.mark.parametrize("folder", ["_programs", "-main", ".old"])
def test_a_folder_beside_the_package_is_the_users(folder):
    namespace = {}
    file = f"{os.path.dirname(ingot.__file__)}{folder}/mine.py"
    exec(compile("def call():\n    raise KeyError('weights')", file, "exec"), namespace)
    with pytest.raises(UserError, match="mine.py"):
        run_user_code(namespace["call"], "the call")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("def make(:", "SyntaxError"),
        ("import no_such_package", "'no_such_package'"),
        ("1 / 0", "1 / 0"),
    ],
)
def test_a_file_that_does_not_import(tmp_path, content, says, capsys):
    path = tmp_path / "broken.py"
    path.write_text(content)
    assert run("try", path) == 1
    err = capsys.readouterr().err
    assert says in err and "ingot/explain" not in err and "importlib" not in err


def test_a_file_may_import_its_neighbours_and_define_dataclasses(tmp_path, capsys):
    (tmp_path / "neighbour_of_mine.py").write_text("import torch\nx = torch.ones(3)\n")
    path = tmp_path / "uses_neighbour.py"
    path.write_text(
        "from __future__ import annotations\nimport dataclasses, torch\nfrom neighbour_of_mine "
        "import x\n"
        "@dataclasses.dataclass\nclass C:\n    x: int = 1\n"
        "def make():\n    return torch.sin, (x,)\n"
    )
    assert run("explain", path) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(file, capsys):
    assert run("try", file, "--device", "cuda") == 2
    assert "cannot use the device 'cuda'" in capsys.readouterr().err
    assert run("try", file, "--device", "toaster") == 2


@pytest.mark.parametrize("argv", [["--rounds", "0"], ["--rounds", "x"], ["--nonsense"]])
def test_bad_options(file, argv, capsys):
    with pytest.raises(SystemExit) as stop:
        run("try", file, *argv)
    assert stop.value.code == 2 and "error:" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        run("--version")
    assert stop.value.code == 0 and capsys.readouterr().out.startswith("ingot ")


def test_errors_of_ingots_own_are_one_line(tmp_path, capsys):
    path = tmp_path / "whole.py"
    path.write_text(
        "import ingot, torch\n\n"
        "def f(x):\n"
        "    return x + 1 if x.sum() > 0 else x\n\n"
        "def make():\n"
        "    return ingot.compile(f, fullgraph=True), (torch.ones(3),)\n"
    )
    assert main(ingot.compile, ingot.explain, ["explain", str(path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("ingot: the call raised GraphBreakError: `if x.sum() > 0`: a branch on")
    assert "whole.py:4 (hint: use torch.where" in line


def test_a_program_with_graph_breaks(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text(
        "import ingot, torch\n\n"
        "@ingot.disable(reason='it draws')\n"
        "def plot(x):\n"
        "    return x.max().item()\n\n"
        "def f(x):\n"
        "    y = x.sin()\n"
        "    plot(y)\n"
        "    return y.cos()\n\n"
        "def make():\n"
        "    return f, (torch.ones(3),)\n"
    )
    said = "broken.py:9 in f: `plot(y)`"
    assert main(ingot.compile, ingot.explain, ["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert "2 graphs, 1 break, 2 kernels" in out and said in out
    assert "plot() is disabled by ingot.disable: it draws\n    plot(y)\n    hint: " in out
    assert main(ingot.compile, ingot.explain, ["stages", str(path)]) == 0
    out = capsys.readouterr().out
    assert "# == capture of f (" in out and f"# == capture of f, continued at {path}:9 (" in out
    assert main(ingot.compile, ingot.explain, ["try", str(path), "--rounds", "1"]) == 0
    assert said in capsys.readouterr().out.replace("\n", " ")
