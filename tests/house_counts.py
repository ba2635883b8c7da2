"""The counts that say how plain ingot/ is, of this tree or of another.

`python -m tests.house_counts [TREE] [--json] [--places NAME]` reads ingot/ of a tree, as source
text alone, and prints one figure a line; `--places` lists what a figure counts. Each function
below states the rule of one figure, and gives its places: a figure is the number of its places,
or their largest number where it is a maximum.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

MAX_COLUMNS = 100
MAX_FILE = 700
MAX_WORDS = 25
MAX_NESTED = 2
MAX_BRANCHES = 20
MIN_OPS = 5
MOST_BRANCHED = 10

Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NESTED = (*COMPREHENSIONS, ast.IfExp)


@dataclass(frozen=True)
class Source:
    """One file of ingot/, by its path from there."""

    name: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    def place(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.name}:{node.lineno}"


@dataclass(frozen=True)
class Tree:
    """ingot/ of a tree. `native` are its C files, headers and the stub of the extension."""

    python: list[Source]
    native: list[Source]

    @classmethod
    def read(cls, root: Path) -> Tree:
        package = root / "ingot"

        def sources(*suffixes: str) -> list[Source]:
            paths = [path for path in sorted(package.rglob("*.*")) if path.suffix in suffixes]
            return [Source(str(p.relative_to(package)), p.read_text("utf-8")) for p in paths]

        return cls(sources(".py"), sources(".c", ".h", ".pyi"))


Place = tuple[str, int]
"""Where something is, and how often or how much."""

Rule = Callable[[Tree], list[Place]]


# -- size ------------------------------------------------------------------------------------------


def python_lines(tree: Tree) -> list[Place]:
    """Lines of each Python file, blank ones and comments too."""
    return [(source.name, len(source.lines)) for source in tree.python]


def native_lines(tree: Tree) -> list[Place]:
    """Lines of each C file and header, and of the stub."""
    return [(source.name, len(source.lines)) for source in tree.native]


_LAYOUT = frozenset(
    (
        tokenize.ENCODING,
        tokenize.ENDMARKER,
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
    )
)
_FSTRING_START = getattr(tokenize, "FSTRING_START", -1)
_FSTRING_END = getattr(tokenize, "FSTRING_END", -1)


def count_tokens(text: str) -> int:
    """Tokens of a Python file, without comments, layout, and statements that are a string alone.
    An f-string is one token, as it is up to Python 3.11."""
    total = 0
    statement: list[int] = []
    depth = 0  # of f-strings
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            is_docstring = set(statement) == {tokenize.STRING}
            total += 0 if is_docstring else len(statement)
            statement.clear()
        if token.type == _FSTRING_END:
            depth -= 1
        elif depth == 0 and token.type not in _LAYOUT:
            statement.append(token.type)
        if token.type == _FSTRING_START:
            depth += 1
    return total + len(statement)


def tokens(tree: Tree) -> list[Place]:
    """Tokens of each Python file: see `count_tokens`."""
    return [(source.name, count_tokens(source.text)) for source in tree.python]


def long_files(tree: Tree) -> list[Place]:
    """Files of more than 700 lines, in Python and C."""
    files = [(source.name, len(source.lines)) for source in (*tree.python, *tree.native)]
    return [(name, lines) for name, lines in files if lines > MAX_FILE]


_PRAGMA = re.compile(r"\s*#\s*(noqa|type:|pyright:|pylint:|flake8:|ruff:|mypy:|nosec|isort:)")


def is_long(line: str) -> bool:
    """As ruff's E501: a pragma comment at the end is free, and so is a line of one word, or one
    that ends in a URL which begins in time."""
    pragma = _PRAGMA.search(line)
    line = line[: pragma.start()] if pragma else line.rstrip("\n")
    if len(line) <= MAX_COLUMNS:
        return False
    words = line.split()
    if len(words) <= 1:
        return False
    is_url = "://" in words[-1] and len(line) - len(words[-1]) <= MAX_COLUMNS
    return not is_url


def long_lines(tree: Tree) -> list[Place]:
    """Lines above 100 columns, in Python and C."""
    return [
        (f"{source.name}:{number}", 1)
        for source in (*tree.python, *tree.native)
        for number, line in enumerate(source.lines, 1)
        if is_long(line)
    ]


# -- statements ------------------------------------------------------------------------------------


def _nodes(tree: Tree, *kinds: type[ast.expr]) -> list[Place]:
    return [
        (source.place(node), 1)
        for source in tree.python
        for node in ast.walk(source.tree)
        if isinstance(node, kinds)
    ]


def comprehensions(tree: Tree) -> list[Place]:
    """Comprehensions and generator expressions."""
    return _nodes(tree, *COMPREHENSIONS)


def conditional_expressions(tree: Tree) -> list[Place]:
    """Expressions `a if c else b`."""
    return _nodes(tree, ast.IfExp)


def own_expressions(statement: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement that are in no statement inside it: the head of an `if`."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            continue
        yield child
        yield from own_expressions(child)


def dense_statements(tree: Tree) -> list[Place]:
    """Statements of more than two comprehensions and conditional expressions together. The body of
    a compound statement is not counted with its head."""
    found = []
    for source in tree.python:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.stmt):
                nested = [n for n in own_expressions(node) if isinstance(n, NESTED)]
                if len(nested) > MAX_NESTED:
                    found.append((source.place(node), len(nested)))
    return found


_SENTENCE_END = re.compile(r"[.?!:]?\s*\n\s*\n|[.?!][\"')\]]*(?=\s+[^a-z\s]|\s*$)")


def first_sentence(text: str) -> str:
    """Up to a full stop that no lower-case word follows, or a blank line."""
    text = text.strip()
    end = _SENTENCE_END.search(text)
    return text[: end.end()].rstrip() if end else text


def long_first_sentences(tree: Tree) -> list[Place]:
    """Docstrings whose first sentence has more than 25 words. Every statement that is a string
    alone is a docstring, also one behind a constant; words are what white space divides."""
    found = []
    for source in tree.python:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                if isinstance(node.value.value, str):
                    words = len(first_sentence(node.value.value).split())
                    if words > MAX_WORDS:
                        found.append((source.place(node), words))
    return found


# -- functions -------------------------------------------------------------------------------------


def functions_of(source: Source) -> Iterator[tuple[str, Function]]:
    """Each function with its qualified name."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield prefix + child.name, child
            is_scope = isinstance(child, (ast.ClassDef, Function))
            yield from walk(child, f"{prefix}{child.name}." if is_scope else prefix)

    return walk(source.tree, "")


def count_branches(node: ast.AST) -> int:
    """Ways in which a function may turn: `if` and `elif`, `for`, `while`, `except`, `match` cases,
    conditional expressions, the `if`s of comprehensions, and operands of `and` and `or` beyond the
    first. A function inside is not counted with the one around it; a lambda is."""
    total = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, Function)):
            continue
        if isinstance(child, (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While)):
            total += 1
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
            total += 1
        elif isinstance(child, ast.BoolOp):
            total += len(child.values) - 1
        elif isinstance(child, ast.comprehension):
            total += len(child.ifs)
        total += count_branches(child)
    return total


def _branches(tree: Tree) -> list[Place]:
    found = [
        (f"{source.name}:{function.lineno} {name}", count_branches(function))
        for source in tree.python
        for name, function in functions_of(source)
    ]
    return sorted(found, key=lambda place: -place[1])


def most_branches(tree: Tree) -> list[Place]:
    """Branches of the ten functions that have most: see `count_branches`."""
    return _branches(tree)[:MOST_BRANCHED]


def branched_functions(tree: Tree) -> list[Place]:
    """Functions of more than 20 branches."""
    return [place for place in _branches(tree) if place[1] > MAX_BRANCHES]


def longest_constructor(tree: Tree) -> list[Place]:
    """Parameters of each `__init__` but self, and fields of each data class or named tuple that
    writes none, without those that it inherits or that `init=False` leaves out."""
    found = []
    for source in tree.python:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                found.append((f"{source.place(node)} {node.name}", constructor_parameters(node)))
    return sorted(found, key=lambda place: -place[1])[:MOST_BRANCHED]


def constructor_parameters(cls: ast.ClassDef) -> int:
    for statement in cls.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            a = statement.args
            extra = (a.vararg is not None) + (a.kwarg is not None)
            return len(a.posonlyargs) + len(a.args) + len(a.kwonlyargs) + extra - 1
    heads = [ast.unparse(node) for node in (*cls.decorator_list, *cls.bases)]
    if not any("dataclass" in head or "NamedTuple" in head for head in heads):
        return 0
    fields = [node for node in cls.body if isinstance(node, ast.AnnAssign)]
    return sum(is_parameter(node) for node in fields)


def is_parameter(field: ast.AnnAssign) -> bool:
    is_constant = ast.unparse(field.annotation).startswith("ClassVar")
    default = ast.unparse(field.value) if field.value else ""
    return not is_constant and "init=False" not in default


# -- tables ----------------------------------------------------------------------------------------


@cache
def op_names() -> frozenset[str]:
    """Names of ATen's ops, without overloads and the `_` of in-place forms, and without those for
    TorchScript's lists, dicts and strings."""
    import torch

    names = torch._C._dispatch_get_all_op_names()
    aten = [name.removeprefix("aten::") for name in names if name.startswith("aten::")]
    of_python = {name for cls in (dict, list, set, str) for name in dir(cls)}
    of_torch_script = of_python - set(dir(torch.Tensor))
    found = {name.partition(".")[0].rstrip("_") for name in aten}
    return frozenset(found - of_torch_script)


def names_op(text: str) -> bool:
    """Of `add`, `add_`, `add.Tensor`, `aten.add`, `aten::add.out`."""
    name = re.sub(r"^aten(\.|::)", "", text).partition(".")[0]
    return name.isidentifier() and name.rstrip("_") in op_names()


def strings_of(node: ast.AST) -> Iterator[str]:
    """The strings of a statement, where `"a b c"` counts as three."""
    for child in ast.walk(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield from child.value.split()


def tables_of_ops(tree: Tree) -> list[Place]:
    """Statements at module level, but for functions, classes and docstrings, that hold five or more
    strings which name an ATen op, and these are at least half of their strings. A string of several
    words counts as so many strings. The half leaves out most tables of Python's own methods. A
    table of loop IR's scalar ops counts, since they have ATen's names; `aten.add` without quotes
    does not."""
    found = []
    for source in tree.python:
        for statement in source.tree.body:
            if isinstance(statement, (ast.ClassDef, Function)):
                continue
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            strings = set(strings_of(statement))
            ops = [text for text in strings if names_op(text)]
            if len(ops) >= MIN_OPS and 2 * len(ops) >= len(strings):
                found.append((source.place(statement), len(ops)))
    return found


def files_naming_session(tree: Tree) -> list[Place]:
    """Files of which a name, an attribute, an import or an annotation is `Session`."""
    pattern = re.compile(r"\bSession\b")
    found = []
    for source in tree.python:
        stream = tokenize.generate_tokens(io.StringIO(source.text).readline)
        uses = [t for t in stream if t.type == tokenize.NAME and pattern.fullmatch(t.string)]
        if uses:
            found.append((source.name, len(uses)))
    return found


# -- registries ------------------------------------------------------------------------------------

Container = tuple[str, str]
"""A module-level name: its file and itself."""

_FILLING = frozenset(("add", "append", "extend", "insert", "setdefault", "update"))
_MAKERS = frozenset(("Counter", "OrderedDict", "WeakKeyDictionary", "defaultdict", "deque"))
_MAKERS_OF_PYTHON = frozenset(("dict", "list", "set"))


def is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).rpartition(".")[2]
        return name in _MAKERS | _MAKERS_OF_PYTHON
    return isinstance(value, (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp))


def containers_of(source: Source) -> Iterator[str]:
    for statement in source.tree.body:
        if isinstance(statement, ast.AnnAssign):
            targets: list[ast.expr] = [statement.target]
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        else:
            continue
        if is_container(statement.value):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def file_of(module: str) -> str:
    """`capture/values/base.py` of `ingot.capture.values.base`."""
    return "/".join(module.split(".")[1:]) + ".py"


def imported_names(source: Source) -> dict[str, Container]:
    """What names of a file stand for in others: `RULES`, and modules as `builtins.`."""
    found: dict[str, Container] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ingot"):
            for alias in node.names:
                own = alias.asname or alias.name
                found[own] = file_of(node.module or ""), alias.name
                found[f"{own}."] = file_of(f"{node.module}.{alias.name}"), ""
    return found


def filled(node: ast.AST) -> ast.expr | None:
    """What a statement or a call fills: `X` of `X[k] = v`, `X.update(...)`, `X |= ...`."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return node.value
    if isinstance(node, ast.AugAssign):
        return node.target
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _FILLING:
            return node.func.value
    return None


def stores(node: ast.AST, at_import: bool) -> Iterator[ast.expr]:
    """All that a node fills; `at_import` leaves out what only its functions do."""
    for child in ast.iter_child_nodes(node):
        if at_import and isinstance(child, (ast.Lambda, Function)):
            continue
        target = filled(child)
        if target is not None:
            yield target
        yield from stores(child, at_import)


def decorators_of(tree: Tree) -> set[str]:
    """The names of all functions that are used as decorators, or make one."""
    found = {"__init_subclass__"}
    for source in tree.python:
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.ClassDef, Function)):
                for decorator in node.decorator_list:
                    if isinstance(decorator, ast.Call):
                        decorator = decorator.func
                    found.add(ast.unparse(decorator).rpartition(".")[2])
    return found


def registries(tree: Tree) -> list[Place]:
    """Dicts, lists and sets that a module of capture/ holds, and that other code fills: at import
    of another file, or in a decorator or `__init_subclass__`. The number is that of places that do.
    A table that its own file alone completes, by a loop at module level, is no registry."""
    decorators = decorators_of(tree)
    known = {
        (source.name, name)
        for source in tree.python
        if source.name.startswith("capture/")
        for name in containers_of(source)
    }
    filled_at: Counter[Container] = Counter()
    for source in tree.python:
        imported = imported_names(source)

        def container(target: ast.expr, imported=imported, source=source) -> Container:
            if isinstance(target, ast.Name):
                return imported.get(target.id, (source.name, target.id))
            if isinstance(target, ast.Attribute):
                module = imported.get(f"{ast.unparse(target.value)}.", ("", ""))
                return module[0], target.attr
            return "", ""

        at_import = [container(target) for target in stores(source.tree, at_import=True)]
        filled_at.update(place for place in at_import if place[0] != source.name)
        for name, function in functions_of(source):
            if name.rpartition(".")[2] in decorators:
                filled_at.update(container(target) for target in stores(function, at_import=False))
    return [(f"{file} {name}", n) for (file, name), n in filled_at.items() if (file, name) in known]


# -- the figures -----------------------------------------------------------------------------------

SUMS: tuple[Rule, ...] = (python_lines, native_lines, tokens)
MAXIMA: tuple[Rule, ...] = (longest_constructor, most_branches)
NUMBERS: tuple[Rule, ...] = (
    tables_of_ops,
    files_naming_session,
    registries,
    branched_functions,
    long_lines,
    comprehensions,
    conditional_expressions,
    dense_statements,
    long_files,
    long_first_sentences,
)


def figures(tree: Tree) -> dict[str, int | dict[str, int]]:
    """Each figure by its name; of the ten most branched functions and the longest constructors, the
    figure of each."""
    counts: dict[str, int | dict[str, int]] = {}
    for rule in SUMS:
        counts[rule.__name__] = sum(n for _, n in rule(tree))
    for rule in NUMBERS:
        counts[rule.__name__] = len(rule(tree))
    for rule in MAXIMA:
        counts[rule.__name__] = dict(rule(tree))
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tree", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--places", metavar="FIGURE", help="list what a figure counts")
    options = parser.parse_args()
    tree = Tree.read(options.tree)
    if options.places:
        rules = {rule.__name__: rule for rule in (*SUMS, *MAXIMA, *NUMBERS)}
        if options.places not in rules:
            parser.error(f"the figures are {', '.join(rules)}")
        for place, n in rules[options.places](tree):
            print(f"{n:6}  {place}")
        return
    counts = figures(tree)
    if options.json:
        json.dump(counts, sys.stdout, indent=2)
        print()
        return
    for name, count in counts.items():
        if isinstance(count, int):
            print(f"{name:26}{count:8,}")
            continue
        print(f"{name:26}{max(count.values()):8,}")
        for place, n in count.items():
            print(f"{'':28}{n:6}  {place}")


if __name__ == "__main__":
    main()
