"""Every public name of torch's newer namespaces is listed, and its programs do what eager does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest
import torch

if not torch.__version__.startswith("2.13."):
    pytest.skip("the verdicts are those of torch 2.13", allow_module_level=True)

from ingot.errors import GraphBreakError
from tests.conformance import tables, trial, verdicts
from tests.conformance.program import Program

NAMESPACES = tables.namespaces()
KNOWN = verdicts.recorded()


@pytest.mark.parametrize("table", NAMESPACES)
def test_every_public_name_is_listed(table: str) -> None:
    namespace = NAMESPACES[table]
    listed = {program.name for program in namespace.programs} | set(namespace.without)
    assert set(namespace.public) - listed == set()


@pytest.mark.parametrize("table", NAMESPACES)
def test_every_name_has_an_edge_case_and_one_with_gradients(table: str) -> None:
    cases = defaultdict(set)
    for program in NAMESPACES[table].programs:
        cases[program.name].add(program.case.partition(":")[0])
    for name, kinds in cases.items():
        assert kinds >= {"gradient"} or name in tables.WITHOUT_GRADIENTS, name


def test_there_are_many_programs_and_each_has_a_verdict() -> None:
    keys = [program.key for program in tables.every_program()]
    assert len(keys) == len(set(keys)) >= 900
    assert set(keys) == set(KNOWN)


def names() -> Iterator[tuple[str, str]]:
    for table, namespace in NAMESPACES.items():
        for name in dict.fromkeys(program.name for program in namespace.programs):
            yield table, name


def programs_of(table: str, name: str) -> Iterator[Program]:
    for program in NAMESPACES[table].programs:
        if program.name == name:
            yield program


@pytest.mark.parametrize(("table", "name"), list(names()))
def test_programs(table: str, name: str) -> None:
    for program in programs_of(table, name):
        verdict = KNOWN[program.key]
        if not trial.is_refused(program):
            trial.check(program, verdict)
            continue
        try:
            trial.check(program, verdict)
        except (GraphBreakError, AssertionError) as refused:
            assert isinstance(refused, GraphBreakError) or "torch.compile makes" in str(refused)
            trial.check(program, verdicts.FAILS)  # in parts


def test_torch_compile_takes_most_of_them_and_little_is_refused() -> None:
    whole = 0
    for verdict in KNOWN.values():
        whole += verdict == verdicts.WHOLE
    assert whole > 850 and len(trial.REFUSED) <= 8
