"""A `Case`: a graph of torch calls as Python text, one statement for each.

In: a captured graph, or the text of a function. Out: a function to be compiled, an interpreter that
runs it op by op, and the parts of it. The statements carry the user's places as comments, so that
they survive being written to a file and read again.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import keyword
import linecache
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from ingot.debugging.naming import NotWritable, Writer

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Statement:
    """`name = text`, an expression of the names that it `reads`; `where` is the user's line."""

    name: str
    text: str
    reads: tuple[str, ...]
    where: str = ""

    @property
    def callee(self) -> str:
        """What is called, for people: "torch.relu", ".sum"."""
        tree = ast.parse(self.text, mode="eval").body
        if not isinstance(tree, ast.Call):
            return self.text
        callee = tree.func
        if isinstance(callee, ast.Attribute) and isinstance(callee.value, ast.Name):
            if callee.value.id in self.reads:
                return f".{callee.attr}"
        return ast.unparse(callee)

    @property
    def writes(self) -> bool:
        """Whether it writes one of its arguments in place, by the custom of names."""
        last = self.callee.rpartition(".")[2]
        return last.endswith("_") and not last.endswith("__") or last == "setitem"

    @property
    def is_unset(self) -> bool:
        """Whether its value is memory that nobody has written."""
        last = self.callee.rpartition(".")[2]
        return last.startswith(("empty", "new_empty", "resize", "_empty"))

    def evaluate(self, scope: dict[str, Any], values: Mapping[str, Any]) -> Any:
        """Its value."""
        return eval(_compiled(self.text), scope, values)

    def renamed(self, name: str, names: Mapping[str, str]) -> Statement:
        """The same statement of other names."""
        tree = ast.parse(self.text, mode="eval")
        for each in ast.walk(tree):
            if isinstance(each, ast.Name):
                each.id = names.get(each.id, each.id)
        reads = tuple([names.get(read, read) for read in self.reads])
        return Statement(name, ast.unparse(tree), reads, self.where)

    def __str__(self) -> str:
        line = f"{self.name} = {self.text}"
        if self.where:
            line += f"  # {self.where}"
        return line


@dataclass(frozen=True)
class Case:
    """Takes `parameters`, runs the statements in order, and gives the tuple of `results`. `modules`
    are what its text needs imported."""

    parameters: tuple[str, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    modules: frozenset[str] = frozenset({"torch"})

    # -- as text and function ----------------------------------------------------------------------

    def source(self, name: str = "graph") -> str:
        """The text of a function of that name."""
        lines = [f"def {name}({', '.join(self.parameters)}):"]
        for statement in self.statements:
            lines.append(f"    {statement}")
        comma = "," if len(self.results) == 1 else ""
        lines.append(f"    return ({', '.join(self.results)}{comma})")
        return "\n".join(lines) + "\n"

    @property
    def imports(self) -> list[str]:
        """Lines that import what the text needs."""
        return [f"import {module}" for module in sorted(self.modules)]

    def globals(self) -> dict[str, Any]:
        """The scope of its text."""
        scope: dict[str, Any] = {}
        for module in self.modules:
            importlib.import_module(module)
            root = module.partition(".")[0]
            scope[root] = importlib.import_module(root)
        return scope

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """The function, whose lines tracebacks show."""
        file, text = f"<ingot case {next(_numbers)}>", self.source()
        scope: dict[str, Any] = {**self.globals(), "__name__": file}
        exec(compile(text, file, "exec"), scope)
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        return scope["graph"]  # type: ignore[no-any-return]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Runs it in eager."""
        return self.run(inputs)

    def run(
        self,
        inputs: Sequence[Any],
        seen: Callable[[Statement, Any], None] = lambda statement, value: None,
    ) -> tuple[Any, ...]:
        """Runs the statements in eager, one by one; `seen` is told each with its value."""
        scope = self.globals()
        values = dict(zip(self.parameters, inputs))
        for statement in self.statements:
            value = values[statement.name] = statement.evaluate(scope, values)
            seen(statement, value)
        return tuple(map(values.__getitem__, self.results))

    # -- parts -------------------------------------------------------------------------------------

    def users(self) -> dict[str, list[str]]:
        """The statements that read each name; those of a result end with ""."""
        users: dict[str, list[str]] = {}
        for statement in self.statements:
            for name in statement.reads:
                users.setdefault(name, []).append(statement.name)
        for name in self.results:
            users.setdefault(name, []).append("")
        return users

    def with_results(self, results: Iterable[str]) -> Case:
        return replace(self, results=tuple(results))

    def part(self, kept: Collection[str], tensors: Collection[str] | None = None) -> Case:
        """The statements of these names alone. What they read of others are parameters. Its results
        are those of the case, and what nobody in the part reads; only `tensors` can be results."""
        statements = tuple([s for s in self.statements if s.name in kept])
        made = {s.name for s in statements}
        read = set(itertools.chain.from_iterable(s.reads for s in statements))
        order = [*self.parameters, *(s.name for s in self.statements)]
        parameters = tuple([name for name in order if name in read - made])
        results = []
        for s in statements:
            is_result = s.name in self.results or s.name not in read
            if is_result and (tensors is None or s.name in tensors):
                results.append(s.name)
        return replace(self, parameters=parameters, statements=statements, results=tuple(results))

    def prefix(self, count: int, tensors: Collection[str]) -> Case:
        """The first statements, with what later ones read of them as results too."""
        kept = [s.name for s in self.statements[:count]]
        users, results = self.users(), []
        for name in kept:
            later = set(users.get(name, [""])) - set(kept)
            if later and name in tensors:
                results.append(name)
        return self.part(kept).with_results(results)

    def without_dead(self) -> Case:
        """Without what no result needs. A statement that writes stays if what it writes is read."""
        needed, kept = set(self.results), []
        for statement in reversed(self.statements):
            writes = statement.writes and needed.intersection(statement.reads[:1])
            if statement.name in needed or writes or not statement.reads:
                kept.append(statement)
                needed.update(statement.reads)
        parameters = tuple([name for name in self.parameters if name in needed])
        return replace(self, parameters=parameters, statements=tuple(reversed(kept)))

    def exposing(self, names: Iterable[str]) -> Case:
        """With copies of these values, made where they are computed, as its only results."""
        wanted, statements, results = set(names), [], []
        for statement in self.statements:
            statements.append(statement)
            if statement.name in wanted:
                seen = f"{statement.name}_seen"
                copy = Statement(seen, f"torch.clone({statement.name})", (statement.name,))
                statements.append(copy)
                results.append(seen)
        return replace(self, statements=tuple(statements), results=tuple(results))


_texts: dict[str, Any] = {}


def _compiled(text: str) -> Any:
    """The code of an expression."""
    if text not in _texts:
        if len(_texts) > 10_000:
            _texts.clear()
        _texts[text] = compile(text, "<ingot case>", "eval")
    return _texts[text]


# -- from a captured graph -------------------------------------------------------------------------


def case_of(graph: Graph) -> Case:
    """The case of a captured graph. Raises NotWritable for what has no text: a graph inside, a
    function that cannot be imported."""
    names: dict[Node, str] = {}
    writer = Writer(names)
    parameters, statements = [], []
    results: tuple[str, ...] = ()
    for node in graph.nodes:
        if node.op == "output":
            results = tuple(map(writer.argument, _leaves(node.args[0])))
            if not set(results) <= set(names.values()):
                raise NotWritable("a result of the graph is a constant")
            continue
        names[node] = _safe(node.name, names.values())
        if node.op == "placeholder":
            parameters.append(names[node])
            continue
        call = ast.parse(_call(node, writer), mode="eval").body
        statements.append(_statement(names[node], call, names.values(), node.meta.get("where", "")))
    return Case(tuple(parameters), tuple(statements), results, frozenset(writer.modules))


def _safe(name: str, taken: Iterable[str]) -> str:
    """A name that hides no module and no builtin."""
    hides = keyword.iskeyword(name) or name in _RESERVED or name in set(taken)
    return f"{name}_v" if hides else name


_RESERVED = {
    *("torch", "operator", "math", "builtins", "ingot", "graph", "inputs", "tensor"),
    *("float", "complex", "slice", "int", "bool", "getattr", "tuple", "list"),
}


def _call(node: Node, writer: Writer) -> str:
    """The text of a node's call."""
    arguments = list(map(writer.argument, node.args))
    for name, value in node.kwargs.items():
        arguments.append(f"{name}={writer.argument(value)}")
    if node.op == "call_function":
        return f"{writer.target(node.target)}({', '.join(arguments)})"
    if node.op == "call_method":
        return f"{arguments[0]}.{node.target}({', '.join(arguments[1:])})"
    raise NotWritable(f"the node {node.name} is a {node.op}")


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _leaves(item)
    else:
        yield tree


# -- from text -------------------------------------------------------------------------------------


def case_from(text: str, name: str = "graph") -> Case:
    """The case that a function in the text of a file is. Raises ValueError where it is no sequence
    of assignments and a return of a tuple."""
    lines, modules = text.splitlines(), {"torch"}
    case: Case | None = None
    for top in ast.parse(text).body:
        if isinstance(top, ast.Import):
            modules.update(alias.name for alias in top.names)
        elif isinstance(top, ast.FunctionDef) and top.name == name:
            case = _case_in(top, lines)
    if case is None:
        raise ValueError(f"there is no function {name}")
    return replace(case, modules=frozenset(modules))


def _case_in(definition: ast.FunctionDef, lines: Sequence[str]) -> Case:
    parameters = tuple([a.arg for a in definition.args.args])
    known, statements = set(parameters), []
    results: tuple[str, ...] = ()
    for line in definition.body:
        if isinstance(line, ast.Return) and isinstance(line.value, ast.Tuple):
            results = tuple([e.id for e in line.value.elts if isinstance(e, ast.Name)])
            continue
        if not isinstance(line, ast.Assign) or not isinstance(line.targets[0], ast.Name):
            raise ValueError(f"line {line.lineno} is no assignment of a call to a name")
        _, _, comment = lines[(line.end_lineno or line.lineno) - 1].partition("  # ")
        target = line.targets[0].id
        statements.append(_statement(target, line.value, known, comment.strip()))
        known.add(target)
    return Case(parameters, tuple(statements), results)


def _statement(name: str, call: ast.expr, known: Collection[str], where: str) -> Statement:
    reads = []
    for each in ast.walk(call):
        if isinstance(each, ast.Name) and each.id in known and each.id not in reads:
            reads.append(each.id)
    return Statement(name, ast.unparse(call), tuple(reads), where)


def tensor_names(values: Mapping[str, Any]) -> set[str]:
    """The names of tensors."""
    return {name for name, value in values.items() if isinstance(value, torch.Tensor)}
