"""The commands of README.md, CONTRIBUTING.md and docs/: each is run by a test, or named below with
the reason why it is not.

A command is a line of a block, or code within a sentence, that begins with one of `PROGRAMS`. There
may be variables of the environment in front.
"""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ingot
from ingot.codegen.store import store_in
from ingot.debugging import repro
from ingot.explain.cli import main
from tests.long import long

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = r"(?:[A-Z_]+=\S+ )*(?:python3?|pip|make|pytest|nsys) \S"

BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)


def commands(text: str) -> Iterator[str]:
    """The commands of a page, without comments."""
    for language, block in BLOCK.findall(text):
        for line in block.splitlines():
            line = re.sub(r"(^\$ |\s+#.*)", "", line)
            if language in ("", "sh", "bash", "console") and re.match(PROGRAMS, line):
                yield line.strip()
    for code in re.findall(r"`([^`]+)`", BLOCK.sub("", text)):
        code = " ".join(code.split())
        if re.match(PROGRAMS, code):
            yield code


NAMED = sorted({command for page in PAGES for command in commands(page.read_text("utf-8"))})

# -- what is run here, and what it prints ----------------------------------------------------------

QUICK = {
    "python -m ingot --version": "ingot ",
    "python -m ingot try program.py:make": "speed-up",
    "python -m ingot explain program.py:make": "1 graph, 0 breaks",
    "python -m ingot stages program.py:make": "def graph(",
    "python -m ingot stages FILE.py:make": "def graph(",
    "python -m ingot explain FILE.py:make --train": "backward",
    "python -m ingot explain examples/functions.py:make_layer_norm_gelu": "layer_norm_gelu",
    "python -m ingot explain --html out.html FILE.py:make": "open it in a browser",
    "python -m ingot explain program.py:make --train --json": '"schema": 1',
    "python -m ingot try program.py:make --json": '"speedup"',
    "python -m ingot stages program.py:make --json": '"stages"',
    "python -m ingot cache ls": "programs",
    "python -m ingot cache ls --json": '"files"',
    "python -m ingot cache verify": "damaged",
    "python -m ingot cache verify --folder folder": "damaged",
    "python -m ingot cache save FILE": "FILE",
    "python -m ingot cache clear": "removed",
    "INGOT_DEBUG=1 python program.py": "ingot: model compiled in",
    "INGOT_DISABLE=1 python program.py": "",
    'python -c "import ingot.torch_private as t; print(t.MISSING)"': "{",
}
"""In this process, in this order, in a folder with the files that they name."""

SLOW = {
    "python -m ingot try FILE.py:make": "speed-up",
    "python -m ingot stages FILE.py:make --emit cpp": 'extern "C" int32_t',
    "python -m ingot run train.py --epochs 3": "ingot runs 3 epochs",
    "python -m ingot run train.py": "ingot runs 1 epochs",
    "python -m ingot run -m package.train": "ingot runs 1 epochs",
    "INGOT_TRACE=trace.jsonl python train.py": "ingot runs 1 epochs",
    "python repro.py": "does what eager does",
    "python -m benchmarks --help": "usage:",
    "python -m benchmarks.picture --help": "usage:",
    "python -m benchmarks.distributed --simulate": "FSDP2 of blocks",
    "python -m tests.house_counts": "python_lines",
    "python -m tests.op_database --ops nn.functional.soft_margin_loss": "soft_margin_loss",
    "python -m pytest tests/test_smoke.py": "",
}
"""By a shell, with those of `QUICK`."""

# -- what is run elsewhere, or not -----------------------------------------------------------------

TESTED = {
    "python -m tests.ops.index": (
        "ops/test_records.py::test_the_index_has_each_family_and_its_ops"
    ),
    "python -m ingot minimize repro.py": "debugging/test_minimizing.py::test_the_command_line",
    "python -m ingot minimize repro.py -o small.py --seconds 50 --limit 30": (
        "debugging/test_minimizing.py::test_the_command_line"
    ),
    "python -m ingot bisect repro_min.py": "debugging/test_bisecting.py::test_the_command_line",
    "python -m tests.house_counts [TREE]": (
        "test_house_counts.py::test_the_command_prints_every_figure"
    ),
    "python -m benchmarks.suites --page suites.jsonl": (
        "benchmarks/test_suites.py::test_the_page_has_the_results_figures"
    ),
    "python -m tests.explain.causes_page": (
        "explain/test_causes.py::test_the_page_is_what_the_programs_say"
    ),
    "pytest tests/test_training_random.py": "test_training_random.py::test_it_is_compiled",
}
"""A test that runs the command, or is what the command runs."""

FAMILY = "names a family of commands, each of which is here"
INSTALLS = "installs packages from an index: `make test` and the release do so before any test runs"
MINUTES = "takes minutes"
GATE = "is what runs the tests"
GPU = "needs an NVIDIA GPU"
OTHER = "needs other Pythons, torches or compilers than a test has"

LEFT_OUT = {
    "python -m ingot": FAMILY,
    "python -m ingot cache": FAMILY,
    "python -m ingot try": FAMILY,
    "python -m ingot minimize": FAMILY,
    "python -m ingot bisect": FAMILY,
    "pip install": FAMILY,
    "pip install .": INSTALLS,
    "pip install ingot": "is said not to install this project",
    "pip install '.[gpu]'": INSTALLS,
    "pip install '.[bench]'": INSTALLS,
    "pip install triton": INSTALLS,
    "make demo": INSTALLS,
    "python -X perf": "is an option of Python's own",
    "make test": GATE,
    "make test-long": GATE,
    "make lint": GATE,
    'pytest -m ""': GATE,
    "INGOT_VERIFY_GUARDS=1 make test": GATE,
    "INGOT_TEST_CACHE=folder make test": GATE,
    "make test PYTHON=python3.12 VENV=.venv-3.12 TORCH=torch==2.11.0": OTHER,
    "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make test": INSTALLS,
    "make test-matrix": OTHER,
    "make wheels": OTHER,
    "make check-wheels": OTHER,
    "make sanitize": OTHER,
    "make test-gpu": GPU,
    "make sanitize-gpu": GPU,
    "make bench-gpu": GPU,
    "INGOT_NVTX=1 nsys profile python train.py": GPU,
    "python -m tests.op_database": MINUTES,
    "python -m tests.op_gradients": MINUTES,
    "python -m tests.zoo_training": MINUTES,
    "python -m tests.transformers_models": MINUTES,
    "python -m tests.codegen.sweep_math": MINUTES,
    "python -m tests.conformance": MINUTES,
    "python -m tests.corpus.texts": MINUTES,
    "python -m tests.interruptions": MINUTES,
    "python -m tests.private_names --each": MINUTES,
    "python -m tests.gpu.test_random_programs COUNT FIRST SECONDS": GPU,
    "python -m benchmarks": MINUTES,
    "python -m benchmarks --only NAMES": MINUTES,
    "python -m benchmarks.company": MINUTES,
    "python -m benchmarks.scaling": MINUTES,
    "python -m benchmarks.micro": MINUTES,
    "python -m benchmarks.cpu_page": MINUTES,
    "python -m benchmarks.cpp_kernels": MINUTES,
    "python -m benchmarks.control_flow": MINUTES,
    "python -m benchmarks.endurance": MINUTES,
    "python -m benchmarks.libraries": MINUTES,
    "python -m benchmarks.quantized": MINUTES,
    "python -m benchmarks.low_precision": MINUTES,
    "python -m benchmarks.low_precision decode --layers 1 --rounds 7 --kinds bfloat16 "
    '"int8 float32" "int4 float32" "int4 bfloat16"': MINUTES,
    "python -m benchmarks.decode --kernels": GPU,
    "python -m benchmarks.few_rows": GPU,
    "python -m benchmarks.profiled": MINUTES,
    "python -m benchmarks.training": MINUTES,
    "python -m benchmarks.distributed": MINUTES,
    "OMP_NUM_THREADS=1 python -m benchmarks.flex_attention --device cpu --dtype float32": MINUTES,
    "python -m benchmarks.flex_attention --rounds 9": GPU,
    "python -m benchmarks.gpu --rounds 9": GPU,
    "python -m benchmarks.gpu_models --jobs 14 --rounds 7": GPU,
    "python -m benchmarks.gpu_models vit bert --modes reduce-overhead max-autotune "
    "--without-compile": GPU,
    "python -m benchmarks.gpu_launches": GPU,
    "python -m benchmarks.suites": MINUTES,
    "python -m benchmarks.suites --results suites.jsonl": GPU,
    "python -m benchmarks.dynamic --device cuda --only time --rounds 20 --timed 6 "
    "--without-peer": GPU,
    "python -m benchmarks.dynamic --device cuda --only cell": GPU,
}
"""What no test runs, and why."""


def test_every_command_is_run_or_has_a_reason():
    """A new one belongs into `QUICK` or `SLOW`, with a part of what it prints."""
    listed = [*QUICK, *SLOW, *TESTED, *LEFT_OUT]
    assert sorted(listed) == NAMED
    for file, name in (test.split("::") for test in TESTED.values()):
        assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8")


@pytest.mark.parametrize("command", [c for c in LEFT_OUT if re.search(r"python -m |make ", c)])
def test_what_is_left_out_is_there(command, monkeypatch):
    """The module that is run, and the target of `make`."""
    words = shlex.split(command.partition("python -m ")[2] or command)
    if "make" in words:
        target = words[words.index("make") + 1]
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), re.M)
    else:
        assert importlib.util.find_spec(words[0]) is not None


VARIABLE = r"\bINGOT_[A-Z_]+\b"


def test_variables_of_the_environment_are_tested():
    """Each that a page names and Ingot reads is set by a test, or by how tests are run."""
    pages, tests, sources = [
        set(re.findall(pattern, "".join(path.read_text("utf-8") for path in paths)))
        for pattern, paths in (
            (VARIABLE, PAGES),
            (VARIABLE, (ROOT / "tests").rglob("*.py")),
            (rf'"({VARIABLE})"', (ROOT / "ingot").rglob("*.py")),
        )
    ]
    assert len(pages & sources) >= 10
    # which tests know by a name of its own
    assert pages & sources - tests == {repro.FOLDER}


# -- running ---------------------------------------------------------------------------------------

PROGRAM = """
import torch
import ingot


def model(x):
    return torch.softmax(x * 2, -1)


def make():
    return model, (torch.ones(4, 8, requires_grad=True),)


if __name__ == "__main__":
    ingot.compile(model)(torch.ones(4, 8))
"""

TRAIN = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
epochs = parser.parse_args().epochs
weight = torch.ones(3, requires_grad=True)


@torch.compile(backend="eager")
def loss(x):
    return (x * weight).sum()


for _ in range(epochs):
    loss(torch.ones(3)).backward()
print("ingot runs", epochs, "epochs", weight.grad.tolist())
"""

REPRO = """
import torch
import ingot

compiled = ingot.compile(lambda x: torch.tanh(x) * 2)
compiled(torch.ones(3))
ingot.save_repro("repro.py", compiled)
"""

PLACEHOLDERS = {"FILE.py:make": "program.py:make"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the commands name, and a cache of its own."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "train.py").write_text(TRAIN)
    (folder / "package").mkdir()
    (folder / "package" / "train.py").write_text(TRAIN)
    (folder / "folder").mkdir()
    for name in ("examples", "tests", "benchmarks", "ingot", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture
def at_home(folder, monkeypatch):
    """This process, in that folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("INGOT_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    store_in.cache_clear()
    grad = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(grad)
    ingot.uninstall()
    ingot.reset()
    store_in.cache_clear()


def filled(command: str) -> list[str]:
    """The words of a command, with a file for each placeholder."""
    return [PLACEHOLDERS.get(word, word) for word in shlex.split(command)]


@pytest.mark.parametrize("command", QUICK)
@pytest.mark.usefixtures("at_home")
def test_commands(command, monkeypatch, capsys):
    words = filled(command)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    assert words.pop(0) == "python"
    status: object = 0
    try:
        if words[0] == "-c":
            exec(words[1], {})
        elif words[0] == "-m":
            monkeypatch.setattr(sys, "argv", words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        status = end.code
    shown = capsys.readouterr()
    assert status in (0, None), shown.err
    assert QUICK[command] in shown.out + shown.err


@pytest.mark.usefixtures("at_home")
def test_the_report_of_the_readme_is_what_is_printed(monkeypatch, capsys):
    """But for times, and how many guards there are."""
    monkeypatch.chdir(ROOT)
    command = ["explain", "examples/functions.py:make_layer_norm_gelu"]
    assert main(ingot.compile, ingot.explain, command) == 0
    readme = PAGES[0].read_text("utf-8")
    texts = []
    for text in (
        re.search(r"^ingot: layer_norm_gelu.*?^guards$", readme, re.M | re.S)[0],
        capsys.readouterr().out.partition("\nguards\n")[0] + "\nguards",
    ):
        texts.append(re.sub(r"\d+ guards|  compiled in ms.*\n|  compiled by.*\n", "", text))
    assert texts[0] == texts[1]


@long
@pytest.mark.parametrize("command", [*QUICK, *SLOW])
def test_commands_of_a_shell(command, folder):
    where = {**os.environ, "PYTHONPATH": str(folder), "INGOT_CACHE_DIR": str(folder / "cache")}
    if command == "python repro.py":
        subprocess.run([sys.executable, "-c", REPRO], cwd=folder, env=where, check=True)
    words = filled(command)
    words[words.index("python")] = sys.executable
    line = re.sub(r"'([A-Z_]+=[^' ]*)'", r"\1", shlex.join(words))
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, env=where, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {**QUICK, **SLOW}[command] in done.stdout + done.stderr
