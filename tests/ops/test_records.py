"""The records of ops, and the tables that are made of them."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from ingot import ops
from ingot.graph import checks, data_dependent, decompositions, geometry, meta, schemas
from ingot.loops.lowering.rules import LIBRARY_CALLS, READS_PART, RULES
from ingot.ops import FAMILIES, RECORDS, table
from ingot.ops.op import Op

TABLES = {
    "decompose": decompositions.DECOMPOSITIONS,
    "meta": meta.RULES,
    "gpu_meta": meta.RULES_ON_GPUS,
    "refuses": checks.REFUSALS,
    "may_raise": schemas.MAY_RAISE,
    "takes_no_elements": data_dependent.TAKES_NO_ELEMENTS,
    "last_operand_first": geometry.LAST_FIRST,
    "cost": schemas.COSTS,
    "lower": RULES,
    "library": LIBRARY_CALLS,
    "reads_part": READS_PART,
}


def test_each_field_of_a_record_is_handed_over():
    assert [f.name for f in fields(Op)] == ["overloads", *TABLES]
    for field, handed_over in TABLES.items():
        assert table(field).keys() <= set(handed_over)


def test_each_file_is_a_family():
    files = {path.stem for path in Path(ops.__file__).parent.glob("*.py")}
    assert files - {"__init__", "op"} == {family.__name__.split(".")[-1] for family in FAMILIES}


def test_each_record_says_something():
    for record in RECORDS:
        assert any(getattr(record, field) for field in TABLES), record.overloads


def test_each_overload_has_one_record():
    overloads = [overload for record in RECORDS for overload in record.overloads]
    assert len(overloads) == len(set(overloads))


@pytest.mark.parametrize("name", ["refuses", "decompose"])
def test_functions_take_what_the_schema_has(name):
    for overload, function in table(name).items():
        arguments = {checks.NAMES.get(a.name, a.name): a for a in overload._schema.arguments}
        signature = inspect.signature(function)
        if name == "refuses":
            signature.bind(**arguments)
        else:
            positional = [a for a in arguments.values() if not a.kwarg_only]
            named = {key: a for key, a in arguments.items() if a.kwarg_only}
            signature.bind(*positional, **named)
