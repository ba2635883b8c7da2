"""The records of ops, and the tables that are made of them."""

from __future__ import annotations

import inspect
import operator
import subprocess
import sys
import textwrap
from dataclasses import fields

import pytest
import torch

from ingot.graph import checks, data_dependent, decompositions, geometry, meta, schemas
from ingot.loops.lowering.rules import LIBRARY_CALLS, READS_PART, RULES
from ingot.ops import records, table
from ingot.ops.index import NAMES
from ingot.ops.op import Op
from ingot.rules import hand_over
from tests.ops import index

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
    hand_over()
    for field, handed_over in TABLES.items():
        facts = table(field)
        assert facts and {op: handed_over.get(op) for op in facts} == facts


def test_an_op_without_a_record_is_in_no_table():
    hand_over()
    for op in (torch.ops.aten.resize_.default, torch.ops.prims.add.default, operator.getitem):
        for handed_over in TABLES.values():
            assert op not in handed_over and handed_over.get(op, 3) == 3


def test_the_index_has_each_family_and_its_ops():
    """Else `python -m tests.ops.index` is to be run."""
    assert list(NAMES) == index.families()
    assert index.INDEX.read_text("utf-8") == index.text()


def test_a_family_is_imported_for_its_ops_alone():
    code = """
        import sys, torch, ingot.compiler
        from ingot.loops.lowering.rules import RULES
        from ingot.rules import hand_over
        hand_over()
        assert RULES[torch.ops.aten.relu.default]
        loaded = [name for name in sys.modules if name.startswith("ingot.ops.")]
        assert "ingot.ops.activations" in loaded and "ingot.ops.convolution" not in loaded, loaded
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_each_record_says_something():
    for record in records():
        assert any(getattr(record, field) for field in TABLES), record.overloads


def test_each_overload_has_one_record():
    overloads = [overload for record in records() for overload in record.overloads]
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
