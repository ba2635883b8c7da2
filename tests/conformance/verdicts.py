"""What torch.compile does with each program: recorded, since asking it takes minutes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from tests.conformance.program import Program

FILE = Path(__file__).with_name("verdicts.json")
WHOLE, FAILS = "whole", "fails"
"""It takes the program as one graph, or not at all. Otherwise: how many graphs it makes of it."""

Verdicts = dict[str, str]


def recorded() -> Verdicts:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def record(programs: Iterable[Program], found: Verdicts) -> None:
    """Asks torch.compile about the programs, and keeps what was found of others."""
    for program in programs:
        found[program.key] = verdict(program)
    keep(found)


def keep(found: Verdicts) -> None:
    FILE.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def verdict(program: Program) -> str:
    expected = error_of(program, program.function)
    error, graphs = _compiled(program, fullgraph=True)
    if error == expected and graphs <= 1:
        return WHOLE
    error, graphs = _compiled(program, fullgraph=False)
    return str(graphs) if error == expected else FAILS


def error_of(program: Program, function: Any) -> str:
    """The type of the exception that a call raises; empty if none."""
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"):
        try:
            function(*program.arguments())
        except Exception as error:
            return type(error).__name__
    return ""


def _compiled(program: Program, fullgraph: bool) -> tuple[str, int]:
    """The error of a call that torch.compile has compiled, and the number of its graphs."""
    graphs = []

    def count(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(program.function, backend=count, fullgraph=fullgraph)
    return error_of(program, compiled), len(graphs)
