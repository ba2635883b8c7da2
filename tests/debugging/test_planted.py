"""Miscompilations that a seed chooses are found: the op and its line by `verify`, a few ops of a
large graph by `minimize`."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot.debugging import repro
from ingot.debugging.inputs import copies
from ingot.debugging.repro import Failure, Repro
from tests.debugging.calls import CALLS
from tests.debugging.mutating import candidates, planted
from tests.debugging.planting import EFFECT, Planting, _differ, planting, reached
from tests.long import long

SEED = 31
LIMIT = 60.0
"""Seconds for each."""

MISCOMPILATIONS = 20
GRAPHS = 10


def chosen(number: int, ops: int, of: int = MISCOMPILATIONS) -> Planting:
    """Every other one is of a rule that gradients alone use."""
    return planting(SEED, number, number % 2 == 1, ops, of)


def written(path: Path, graph: Repro) -> Any:
    """The function of a graph, in a file of the user's."""
    path.write_text(f"import torch\n\n\n{graph.case.source('program')}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.program


@pytest.mark.parametrize("number", range(MISCOMPILATIONS))
def test_the_op_and_its_line_are_named(number: int, tmp_path: Path) -> None:
    made = chosen(number, ops=60)
    program = written(tmp_path / "program.py", made.graph)
    lines = (tmp_path / "program.py").read_text().splitlines()
    gradients = made.graph.gradients
    with planted(made.mutant), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.monotonic()
        compiled = ingot.compile(program, options={"verify": 1})
        with torch.set_grad_enabled(gradients):
            results = compiled(*copies(made.graph.inputs))
        seconds = time.monotonic() - start
    [warning] = [w.message for w in caught if isinstance(w.message, ingot.DifferenceWarning)]
    assert warning.op.rpartition(".")[2] == made.name, made
    file, _, line = warning.where.rpartition(":")
    called = re.findall(r"\.(\w+\()", CALLS[made.name])[0]  # interpolate( makes several ops
    assert file.endswith("program.py") and called in lines[int(line) - 1], made
    assert seconds < LIMIT
    with torch.set_grad_enabled(gradients):
        expected = program(*copies(made.graph.inputs))
    assert all(map(torch.equal, results, expected))


def test_the_seed_says_all_of_it() -> None:
    assert str(chosen(2, ops=20)) == str(chosen(2, ops=20))


def test_a_mutant_without_effect_is_not_taken() -> None:
    right = torch.linspace(1, 2, 9)
    assert not _differ(right, right * (1 + 0.5 * EFFECT))
    assert _differ(right, right * (1 + 2 * EFFECT))
    assert _differ(right, right / torch.tensor(0.0))


def test_calls_reach_rows_with_mutants_of_each_kind() -> None:
    """Formulas, what lowering asks for, code, identities; and gradients' own rows."""
    tables = dict[str, int]()
    for name in ("logsumexp", "var"):
        for key in reached(CALLS[name], False):
            tables[key.table] = tables.get(key.table, 0) + len(candidates(key))
    assert set(tables) == {"decompositions", "lowering", "code", "identities"}
    assert min(tables.values()) > 1


# -- minimize --------------------------------------------------------------------------------------

_SITE = """
import os
from ingot.rules import hand_over
from tests.debugging.mutating import named, planted
hand_over()
fault = planted(named(os.environ["INGOT_TEST_PLANTED"]))
fault.__enter__()
"""
"""Plants a mutant in each process of Python, so in those of `minimize` too."""


@long
@pytest.mark.parametrize("number", range(GRAPHS))
def test_a_large_graph_is_brought_to_few_ops(number: int, tmp_path: Path) -> None:
    """In less than a minute of processor time, whatever else the machine does."""
    ops = 300 + 200 * number // (GRAPHS - 1)
    made = chosen(number, ops, of=GRAPHS)
    assert len(made.graph.case.statements) >= ops
    file = repro.write(tmp_path / "wrong.py", made.graph)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE)
    root = str(Path(ingot.__file__).parents[1])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(site), root)),
        "INGOT_TEST_PLANTED": str(made.mutant),
    }
    command = (sys.executable, "-m", "ingot", "minimize", str(file), "--seconds", "600")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert ran.returncode == 0, ran.stderr
    small = repro.load(tmp_path / "wrong_min.py")
    print(f"{made}: {len(small.case.statements)} ops of {ops}, {seconds:.0f} s")
    assert len(small.case.statements) <= 10 and seconds < LIMIT
    with planted(made.mutant):
        assert repro.failure(small).kind == small.shows == "difference"
    assert repro.failure(small) == Failure()
