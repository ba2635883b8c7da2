"""The rules of tests/house_counts.py, on sources small enough to count by hand."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap

from tests.house_counts import (
    Rule,
    Source,
    Tree,
    branched_functions,
    conditional_expressions,
    constructor_parameters,
    count_branches,
    count_tokens,
    dense_statements,
    files_naming_session,
    first_sentence,
    is_long,
    registries,
    tables_of_ops,
)


def tree(**files: str) -> Tree:
    """Files of capture/ by name."""
    sources = [Source(f"capture/{name}.py", textwrap.dedent(text)) for name, text in files.items()]
    return Tree(sources, [])


def places(rule: Rule, text: str) -> list[int]:
    """The lines that a figure counts."""
    found = [place.partition(" ")[0] for place, _ in rule(tree(one=text))]
    return [int(place.partition(":")[2]) for place in found]


def test_tokens_are_without_comments_docstrings_and_layout():
    assert count_tokens('"""Text."""\n\nx = 1  # one\n"""What x is."""\n') == 3
    assert count_tokens("def f(a):\n    'text'\n    return a\n") == 8
    assert count_tokens("x = f'{a} {b + 1}' 'c'\n") == 4


def test_long_lines_are_those_of_ruff():
    words = "word " * 20
    assert is_long(words + "x")
    assert not is_long(words.rstrip() + "  # noqa")
    assert not is_long("x" * 200)
    assert not is_long("see https://" + "x" * 200)
    assert is_long("# " + "-" * 99)


def test_expressions_belong_to_the_innermost_statement():
    text = """\
        if (a if b else c) and any(x for x in y):
            z = [d if e else f for g in h]
        w = [a if b else c for d in e if (f if g else h)]
        """
    assert sorted(places(conditional_expressions, text)) == [1, 2, 3, 3]
    assert places(dense_statements, text) == [3]


def test_first_sentences():
    assert first_sentence("As torch.add, e.g. of two. More.") == "As torch.add, e.g. of two."
    assert first_sentence("A title\n\nAnd the rest.") == "A title"
    assert first_sentence("`f(a.b)` is called. `g` too.") == "`f(a.b)` is called."


def test_branches():
    text = """\
        def f(a, b):
            for x in a:
                if x and b or a:
                    return [y for y in b if y] if a else 0
                elif b:
                    pass
            try:
                pass
            except E:
                def g():
                    while a:
                        pass
        """
    function = ast.parse(textwrap.dedent(text)).body[0]
    assert count_branches(function) == len("for if and or comprehension else elif except".split())
    assert places(branched_functions, text) == []


def test_parameters_of_constructors():
    classes = """\
        class A:
            def __init__(self, a, /, b, *c, d, **e): ...
        @dataclass(frozen=True)
        class B(A):
            a: int
            b: int = field(init=False)
            c: ClassVar[int] = 0
        class C(NamedTuple):
            a: int
        class D:
            a: int
        """
    found = [constructor_parameters(cls) for cls in ast.parse(textwrap.dedent(classes)).body]
    assert found == [5, 1, 1, 0]


def test_tables_of_ops():
    text = """\
        TABLE = frozenset("add mul_ sub.Tensor div exp other".split())
        FEW = {"add": 1, "mul": 2}
        METHODS = "append add rjust index sort sum extend abs clear exp insert remove pop".split()
        def f():
            return "add mul sub div exp"
        """
    assert places(tables_of_ops, text) == [1]


def test_registries_are_filled_from_elsewhere():
    found = registries(
        tree(
            base="""\
                RULES = {}
                SLOTS = {}
                OWN = {}
                CACHE = {}
                for name in "a", "b":
                    OWN[name] = 1
                def rule(name):
                    def register(f):
                        SLOTS[name] = f
                        return f
                    return register
                """,
            other="""\
                from ingot.capture import base
                from ingot.capture.base import CACHE, RULES
                RULES[1] = RULES[2] = f
                base.RULES.update({})
                @base.rule("a")
                def f():
                    CACHE[1] = 2
                """,
        )
    )
    assert sorted(found) == [("capture/base.py RULES", 3), ("capture/base.py SLOTS", 1)]


def test_files_that_name_session():
    files = tree(
        a="# Session\n'Session'\n",
        b="def f(s: Session): ...\n",
        c="x = base.Session()\n",
        d="Sessions = 1\n",
    )
    assert files_naming_session(files) == [("capture/b.py", 1), ("capture/c.py", 1)]


def test_the_command_prints_every_figure(tmp_path):
    package = tmp_path / "ingot"
    package.mkdir()
    (package / "a.py").write_text("x = 1 if y else 2\n")
    (package / "a.c").write_text("int x;\n\n")
    command = [sys.executable, "-m", "tests.house_counts", str(tmp_path), "--json"]
    counts = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert counts["python_lines"] == 1
    assert counts["native_lines"] == 2
    assert counts["tokens"] == 7
    assert counts["conditional_expressions"] == 1
