"""Seeded mutations of the op tables: miscompilations that nobody thought of beforehand.

`candidates(key)` are the wrong rules that may stand in the place of a right one. Formulas
(decompositions, and the scalars of elementwise rules) are changed in their syntax tree: a constant,
a sign, the order of operands, a term or a clamp that is missing. Other lowering rules keep their
text; what they ask of `Lowering` is done wrongly: an element is negated, scaled or rounded to
bfloat16, an index is off by one, a reduction is of another kind. Rows of the code generator's table
have operands swapped or a sign, and identities of reductions are those of another kind.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ingot import sharing
from ingot.codegen.llvm import reductions, scans
from ingot.codegen.llvm import scalar as machine_code
from ingot.graph.decompositions import DECOMPOSITIONS
from ingot.loops import ops
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.pointwise import apply, constant_like, elementwise
from ingot.loops.lowering.rules import RULES
from ingot.loops.lowering.values import rounded
from ingot.ops import table as all_rows
from ingot.tables import Table

Rule = Callable[..., Any]

IDENTITIES: dict[str, Rule] = dict.fromkeys(
    ("sum", "prod", "max", "min", "any", "all"), machine_code.identity
)
"""What a reduction of each kind begins with, as a table. Those of positions are left out: a wrong
position may be one outside of memory. For that reason no integer is computed wrongly, either."""

TABLES: dict[str, dict[Any, Any]] = {
    "decompositions": DECOMPOSITIONS,
    "lowering": RULES,
    "code": machine_code.TABLE,
    "identities": IDENTITIES,
}


class Key(NamedTuple):
    """A row of one of `TABLES`."""

    table: str
    row: Any

    def __str__(self) -> str:
        return f"{self.table}[{self.row}]"


class Mutant(NamedTuple):
    """A wrong rule, and what is wrong with it."""

    key: Key
    what: str
    rule: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.what}"


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Within, the mutant stands in its table."""
    with _replaced({mutant.key: mutant.rule}):
        yield


@contextmanager
def noted(seen: set[Key]) -> Iterator[None]:
    """Within, `seen` gets the rows that are used."""
    rules = {}
    for name, table in TABLES.items():
        for row, rule in _whole(table).items():
            key = Key(name, row)
            if name == "code":
                rules[key] = rule[0], functools.partial(_noting, seen, key, rule[1])
            else:
                rules[key] = functools.partial(_noting, seen, key, rule)
    with _replaced(rules):
        yield


def _whole(table: dict[Any, Any]) -> dict[Any, Any]:
    """A table with the rows of ops that nobody has asked for yet."""
    if isinstance(table, Table):
        return all_rows(table.field)
    return table


def _noting(seen: set[Key], key: Key, rule: Rule, *args: Any, **kwargs: Any) -> Any:
    result = rule(*args, **kwargs)  # which may raise NotLowered, or refuse the call
    if result is not NotImplemented:
        seen.add(key)
    return result


@contextmanager
def _replaced(rules: dict[Key, Any]) -> Iterator[None]:
    before = {key: TABLES[key.table][key.row] for key in rules}

    def identity(kind: str, *args: Any) -> Any:
        return IDENTITIES.get(kind, machine_code.identity)(kind, *args)

    reductions.identity = scans.identity = identity
    sharing.forget()  # what was compiled with other rules
    try:
        for key, rule in rules.items():
            TABLES[key.table][key.row] = rule
        yield
    finally:
        reductions.identity = scans.identity = machine_code.identity
        for key, rule in before.items():
            TABLES[key.table][key.row] = rule
        sharing.forget()


def candidates(key: Key) -> list[Mutant]:
    """The wrong rules for a row."""
    found = _OF_TABLES[key.table](key.row, TABLES[key.table][key.row])
    return [Mutant(key, what, rule) for what, rule in found]


def named(text: str) -> Mutant:
    """The mutant of a description; in another process, too."""
    for name, table in TABLES.items():
        for row in table:
            key = Key(name, row)
            if text.startswith(f"{key}: "):
                [mutant] = [each for each in candidates(key) if str(each) == text]
                return mutant
    raise ValueError(f"no row has the mutant {text}")


Found = Iterator[tuple[str, Any]]

# -- formulas: their syntax trees ------------------------------------------------------------------


def _of_decomposition(row: Any, rule: Rule) -> Found:
    yield from _of_formula(rule)


def _of_formula(function: Rule) -> Found:
    """The function with one place of its text changed; nothing where it has no text of its own."""
    plain = inspect.unwrap(function)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(plain))).body[0]
    except (OSError, TypeError, SyntaxError):  # a lambda in the middle of a statement
        return
    if not isinstance(tree, ast.FunctionDef):
        return
    for what, changed in _changed(tree):
        yield what, _function(changed, plain)


def _function(tree: ast.FunctionDef, original: Any) -> Rule:
    """The function of a tree, in the scope of the original."""
    free = inspect.getclosurevars(original).nonlocals
    arguments = ast.arguments([], [ast.arg(name) for name in free], None, [], [], None, [])
    result = ast.Return(ast.Name(tree.name, ast.Load()))
    body: list[ast.stmt] = [tree, result]
    factory = ast.FunctionDef("factory", arguments, body, [], None)
    module = ast.fix_missing_locations(ast.Module([factory], []))
    scope: dict[str, Any] = {}
    exec(compile(module, "<mutant>", "exec"), original.__globals__, scope)
    made: Rule = scope["factory"](**free)
    return made


def _changed(tree: ast.FunctionDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Copies of a function with one expression replaced, and how."""
    count = len(list(_expressions(tree)))
    for number in range(count):
        for choice in range(len(_REPLACEMENTS)):
            copy = ast.parse(ast.unparse(tree)).body[0]
            assert isinstance(copy, ast.FunctionDef)
            node = list(_expressions(copy))[number]
            before = ast.unparse(node)
            replacement = _REPLACEMENTS[choice](node)
            if replacement is None:
                continue
            _Replace(node, replacement).visit(copy)
            yield f"{before} (place {number}) became {ast.unparse(replacement)}", copy


def _expressions(tree: ast.FunctionDef) -> Iterator[ast.expr]:
    for statement in tree.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.expr):
                yield node


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        if node is self.old:
            return self.new
        return self.generic_visit(node)


_OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult}
_RELATIONS = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
_SCALARS = {"add": "sub", "sub": "add", "mul": "add", "div": "mul", "lt": "gt", "gt": "lt"}
_SCALARS |= {"ge": "le", "le": "ge", "maximum": "minimum", "minimum": "maximum"}
_ORDERED = ("sub", "div", "where", "pow", "fmod", "copysign")


def _other_constant(node: ast.expr) -> ast.expr | None:
    if not isinstance(node, ast.Constant) or type(node.value) not in (int, float):
        return None
    if isinstance(node.value, int):
        return ast.Constant(node.value + 1)
    return ast.Constant(node.value * 1.01 or 0.01)


def _other_operator(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    if isinstance(node, ast.Compare) and [type(op) in _RELATIONS for op in node.ops] == [True]:
        return ast.Compare(node.left, [_RELATIONS[type(node.ops[0])]()], node.comparators)
    return _applied(node, _SCALARS)


def _applied(node: ast.expr, others: dict[str, str]) -> ast.expr | None:
    """`apply("other", ...)` for `apply("name", ...)`."""
    name = _scalar(node)
    if name not in others:
        return None
    assert isinstance(node, ast.Call)
    return ast.Call(node.func, [ast.Constant(others[name]), *node.args[1:]], [])


def _scalar(node: ast.expr) -> str:
    """The scalar op that a call records; "" for all else."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "apply":
        if isinstance(node.args[0], ast.Constant):
            return str(node.args[0].value)
    return ""


def _swapped(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.Div)):
        return ast.BinOp(node.right, node.op, node.left)
    if _scalar(node) in _ORDERED:
        assert isinstance(node, ast.Call)
        *front, one, other = node.args
        return ast.Call(node.func, [*front, other, one], [])
    return None


def _dropped(node: ast.expr) -> ast.expr | None:
    """A sum, product or clamp without its last part, a negation without its sign."""
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return node.left
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return node.operand
    if _scalar(node) in ("add", "sub", "mul", "div", "neg", "maximum", "minimum"):
        assert isinstance(node, ast.Call)
        return node.args[1]
    is_call = isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.clamp"
    return node.args[0] if is_call else None  # type: ignore[attr-defined]


_REPLACEMENTS = (_other_constant, _other_operator, _swapped, _dropped)

# -- lowering: what a rule asks for is done wrongly ------------------------------------------------


def _of_lowering(row: Any, rule: Rule) -> Found:
    held = inspect.getclosurevars(rule).nonlocals if inspect.isfunction(rule) else {}
    if {"scalar", "operands", "dtype"} <= set(held):  # of `elementwise`
        for what, scalar in _of_formula(held["scalar"]):
            yield what, elementwise(scalar, held["operands"], held["dtype"])
        if held["operands"] == 2:
            turned = _turned(held["scalar"])
            yield "operands are swapped", elementwise(turned, 2, held["dtype"])
    for change in _CHANGES:
        yield change.__doc__ or "", functools.partial(_asking_wrongly, change, rule)


def _turned(scalar: Rule) -> Rule:
    return lambda a, b, *rest, **named: scalar(b, a, *rest, **named)


def _asking_wrongly(
    change: Callable[..., Any], rule: Rule, lw: Lowering, *args: Any, **kw: Any
) -> Any:
    """Runs a rule while a method of its `Lowering` is another."""
    name, method = change(lw)
    setattr(lw, name, method)
    try:
        return rule(lw, *args, **kw)
    finally:
        delattr(lw, name)


def _computing(fault: Callable[[int], int]) -> Callable[[Lowering], tuple[str, Any]]:
    def change(lw: Lowering) -> tuple[str, Any]:
        right = lw.computed

        def computed(out: Any, compute: Any, *args: Any, **kwargs: Any) -> Any:
            return right(out, lambda index: fault(compute(index)), *args, **kwargs)

        return "computed", computed

    change.__doc__ = fault.__doc__
    return change


def _negated(value: int) -> int:
    """the sign is wrong"""
    dtype = ops.dtype_of(value)
    if dtype is torch.bool:
        return apply("logical_not", value)
    return apply("neg", value) if dtype in ops.FLOATS else value


def _scaled(value: int) -> int:
    """the result is 1.001 times as large"""
    if ops.dtype_of(value) not in ops.FLOATS:
        return value
    return apply("mul", value, constant_like(value, 1.001))


def _as_bfloat16(value: int) -> int:
    """the result is rounded to bfloat16"""
    dtype = ops.dtype_of(value)
    if dtype not in ops.FLOATS:
        return value
    return ops.to(rounded(value, torch.bfloat16), dtype)


def _next_index(lw: Lowering) -> tuple[str, Any]:
    """an index map is off by one"""
    right = lw.mapped

    def mapped(base: Any, out: Any, index_map: Any) -> Any:
        sizes = base.sizes

        def wrong(index: Any) -> Any:
            found = list(index_map(index))
            for dim, size in enumerate(sizes):
                if (size.constant or 0) > 1:
                    found[dim] = (found[dim] + 1) % size
                    break
            return tuple(found)

        return right(base, out, wrong)

    return "mapped", mapped


_KINDS = {"sum": "max", "max": "min", "min": "max", "prod": "sum", "any": "all", "all": "any"}
_KINDS |= {"argmax": "argmin", "argmin": "argmax"}


def _other_kind(lw: Lowering) -> tuple[str, Any]:
    """the reduction is of another kind"""
    right = lw.reduce

    def reduce(out: Any, kind: str, *args: Any, **kwargs: Any) -> Any:
        return right(out, _KINDS[kind], *args, **kwargs)

    return "reduce", reduce


def _no_element(lw: Lowering) -> tuple[str, Any]:
    """the function of each element is missing in a reduction"""
    right = lw.reduce

    def reduce(out: Any, kind: str, x: Any, dims: Any, dtype: Any, element: Any, *rest: Any) -> Any:
        return right(out, kind, x, dims, dtype, lambda value: value, *rest)

    return "reduce", reduce


_CHANGES = (
    _computing(_negated),
    _computing(_scaled),
    _computing(_as_bfloat16),
    _next_index,
    _other_kind,
    _no_element,
)

# -- machine code ----------------------------------------------------------------------------------


def _of_code(row: str, entry: tuple[Any, Rule]) -> Found:
    types, emit = entry

    def swapped(kind: str, *values: Any) -> Any:
        *front, one, other = values
        if one.type in machine_code.FLOATS:
            one, other = other, one
        return emit(kind, *front, one, other)

    def negated(kind: str, *values: Any) -> Any:
        result = emit(kind, *values)
        return -result if result.type in machine_code.FLOATS else result

    yield "operands are swapped", (types, swapped)
    yield "the sign is wrong", (types, negated)


def _of_identity(row: str, identity: Rule) -> Found:
    other = {"sum": "prod", "prod": "sum", "all": "any", "any": "all"}.get(row)
    if other is not None:
        yield f"it is that of {other}", lambda kind, *args: identity(other, *args)
        return

    yield "it is 0", lambda kind, *args: identity("sum", *args)


_OF_TABLES: dict[str, Callable[[Any, Any], Found]] = {
    "decompositions": _of_decomposition,
    "lowering": _of_lowering,
    "code": _of_code,
    "identities": _of_identity,
}
