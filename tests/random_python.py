"""A seeded writer of random Python programs around tensors: the text of a module, readable and
complete.

The module defines `program` (a function or a module), `arguments(other)`, which makes fresh
arguments (equal ones for equal `other`), and `reset()`, which puts the module's own state back.
Programs end by construction, draw no random numbers, and were run in eager before they are given
out: most of them end without an error.

`python -m tests.random_python SEED` prints one.
"""

from __future__ import annotations

import ast
import random
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests import random_python_compounds as compounds
from tests import random_python_grammar as grammar
from tests import random_python_objects as objects
from tests import random_python_parts as parts
from tests import random_python_shared as shared
from tests import random_python_statements as statements
from tests.random_python_trial import RandomPython, trial

EXPRESSIONS = grammar.EXPRESSIONS | objects.EXPRESSIONS | shared.EXPRESSIONS
PARTS = parts.PARTS | shared.PARTS
RESETS = parts.RESETS | shared.RESETS

DEPTH = 3

HOLE = re.compile(r"<([A-Za-z.][\w\[\].!= ]*)>")


def random_python(seed: int) -> RandomPython:
    """The program of a seed: the first attempt that ends in time, and with no error but for a
    few."""
    for attempt in range(100):
        rng = random.Random(f"{seed} {attempt}")
        tolerant = rng.random() < 0.5
        try:
            program = RandomPython(seed, Writer(rng).module())
            compile(program.text, program.file, "exec")
        except (NothingFits, SyntaxError):  # of an f-string with the same quotes inside
            continue
        program.error = trial(program)
        if not program.error or (tolerant and not program.error.startswith(NEVER)):
            return program
    raise AssertionError(f"no valid program for seed {seed}")


NEVER = ("TooLong", "NameError", "UnboundLocal", "ignored", "RecursionError", "MemoryError")


class NothingFits(Exception):
    """A template asks for what is not in scope."""


@dataclass
class Scope:
    """What a place in the program can see: variables it may assign to, those it may only read, by
    name."""

    local: dict[str, str]
    outer: dict[str, str] = field(default_factory=dict)
    returns: str = "result"
    kind: str = "function"
    loop: bool = False
    depth: int = 0

    def inner(self, loop: bool = False) -> Scope:
        """The scope of a block: what it defines is forgotten at its end."""
        return Scope(
            dict(self.local), self.outer, self.returns, self.kind, self.loop or loop, self.depth + 1
        )

    def names(self, type: str, assignable: bool = False) -> list[str]:
        known = self.local if assignable else {**self.outer, **self.local}
        return [name for name, has in known.items() if matches(type, has, assignable)]


def matches(type: str, has: str, assignable: bool) -> bool:
    return (
        has == type
        or not assignable
        and (type == "any" and has != "genfn" or type == "int" and has == "counter")
    )


PREFIXES = {
    "list[V]": "items",
    "list[int]": "ns",
    "list[str]": "log",
    "dict[V]": "table",
    "dict[int]": "counts",
}
PREFIXES |= {
    "int": "n",
    "float": "c",
    "bool": "flag",
    "str": "s",
    "counter": "i",
    "set": "seen",
    "deque": "queue",
}
PREFIXES |= {
    "V": "v",
    "M": "m",
    "S": "r",
    "N": "k",
    "W": "mask",
    "any": "o",
    "fn": "f",
    "genfn": "gen",
    "iter": "it",
}
PREFIXES |= shared.PREFIXES


def options(table: dict[str, str], type: str) -> list[str]:
    return [line for line in table.get(type, "").split("\n") if line]


@dataclass
class Helper:
    """A function at module level: its parameters (name, type), and how many of the last have
    defaults."""

    name: str
    parameters: list[tuple[str, str]]
    defaults: int
    returns: str


class Writer:
    """Writes one module. `breaks` is how often something is asked for that ends a graph."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.breaks = rng.choice([0.0, 0.02, 0.05, 0.12])
        self.opaque = self.breaks * 1.5
        self.shares = rng.random() < 0.5
        self.fresh: dict[str, int] = {}
        self.helpers: list[Helper] = []
        self.state: dict[str, tuple[str, str]] = {}  # global variable -> its type and first value
        self.resets: list[str] = []
        self.budget = 0

    def new(self, type: str) -> str:
        prefix = PREFIXES.get(type, type.lower())
        self.fresh[prefix] = self.fresh.get(prefix, -1) + 1
        return f"{prefix}{self.fresh[prefix]}"

    # -- expressions -------------------------------------------------------------------------------

    def expression(self, type: str, scope: Scope, depth: int = 0) -> str:
        """The text of an expression, in parentheses where it is not a name."""
        rng = self.rng
        for _ in range(12):
            names = scope.names(type)
            if names and rng.random() < (0.3, 0.6, 0.8, 1.0)[min(depth, 3)]:
                return rng.choice(names[-3:] if rng.random() < 0.5 else names)
            try:
                return f"({self.fill(self._template(type, depth), scope, depth + 1)})"
            except NothingFits:
                continue
        raise NothingFits

    def _template(self, type: str, depth: int) -> str:
        rng = self.rng
        if (
            type in grammar.ATOMS
            and rng.random() < (0.03 if type == "bool" else 0.1, 0.3, 0.6, 1.0)[min(depth, 3)]
        ):
            return rng.choice(grammar.ATOMS[type].split("|"))
        if rng.random() < self.breaks and type in grammar.DATA_DEPENDENT:
            return rng.choice(options(grammar.DATA_DEPENDENT, type))
        callable_ = [helper for helper in self.helpers if helper.returns == type]
        if callable_ and rng.random() < 0.2:
            return self._call(rng.choice(callable_))
        if type not in EXPRESSIONS:
            raise NothingFits
        return rng.choice(options(EXPRESSIONS, type))

    def _call(self, helper: Helper) -> str:
        """A template of a call: some of the defaults left out, some arguments by keyword."""
        given = len(helper.parameters) - self.rng.randint(0, helper.defaults)
        by_name = self.rng.randint(1, given)
        parts = [
            f"<{t}>" if i < by_name else f"{n}=<{t}>"
            for i, (n, t) in enumerate(helper.parameters[:given])
        ]
        return f"{helper.name}({', '.join(parts)})"

    def fill(
        self, template: str, scope: Scope, depth: int, names: dict[str, str] | None = None
    ) -> str:
        """The template with its holes filled. `names` holds what was named, and receives what is
        new."""
        names = {} if names is None else names

        def hole(match: re.Match[str]) -> str:
            text, _, name = match[1].partition(" as ")
            found = self._hole(text, scope, depth, names)
            if name:
                names["." + name] = found
            return found

        return HOLE.sub(hole, template)

    def _hole(self, text: str, scope: Scope, depth: int, names: dict[str, str]) -> str:
        if text.startswith("."):
            return names[text]
        if text.startswith("new "):
            made = self.new(text[4:])
            names[made] = text[4:]
            return made
        if text[-1] in "!=":
            return self._variable(text[:-1], scope, text[-1] == "=")
        if text == "small":
            return str(self.rng.randint(1, 3))
        if text in ("rows", "cols"):
            return self._size(text, scope)
        if text == "test":
            return self._test(scope)
        if text == "return":
            return self._result(scope)
        return self.expression(text, scope, depth)

    def _variable(self, type: str, scope: Scope, assignable: bool) -> str:
        names = scope.names(type, assignable)
        if not names:
            raise NothingFits
        return self.rng.choice(names[-4:] if self.rng.random() < 0.6 else names)

    def _size(self, which: str, scope: Scope) -> str:
        if which == "cols" and self.rng.random() < 0.6:
            name = self._variable("V", scope, False)
            return self.rng.choice(["len({})", "{}.shape[0]", "{}.numel()", "{}.size(0)"]).format(
                name
            )
        name = self._variable("M", scope, False)
        return self.rng.choice(["{}.shape[{d}]", "{}.size({d})"]).format(
            name, d=0 if which == "rows" else 1
        )

    def _test(self, scope: Scope) -> str:
        if self.rng.random() < 2 * self.breaks:
            return self.fill(self.rng.choice(statements.TENSOR_TESTS.split("\n")), scope, 1)
        return self.expression("bool", scope)

    def _result(self, scope: Scope) -> str:
        """What a return statement gives: an expression of the function's type, or any structure of
        variables."""
        if scope.returns != "result":
            return self.expression(scope.returns, scope)
        rng = self.rng
        visible = [
            n for n, t in {**scope.outer, **scope.local}.items() if t not in ("genfn", "any", "fn")
        ]
        items = [
            rng.choice(visible[-6:] if rng.random() < 0.7 else visible)
            for _ in range(rng.randint(1, 4))
        ]
        items.append(self.expression("V", scope, 1))
        rng.shuffle(items)
        forms = [
            "({0}, {rest})",
            "[{0}, {rest}]",
            "{{'out': {0}, 'rest': [{rest}]}}",
            "({0}, ({rest}), {{'first': {0}}})",
        ]
        forms += ["{0}", "[{0}, {0}, ({rest},)]", "dict(first={0}, rest=({rest},))"]
        return rng.choice(forms).format(items[0], rest=", ".join(items[1:]))

    # -- statements --------------------------------------------------------------------------------

    def statements(self, scope: Scope, count: int) -> list[str]:
        """Lines of up to `count` statements; at least one."""
        lines: list[str] = []
        for _ in range(count):
            if lines and self.budget <= 0:
                break
            for _ in range(8):
                try:
                    lines += self._statement(scope)
                    break
                except NothingFits:
                    continue
        return lines or ["pass"]

    def _statement(self, scope: Scope) -> list[str]:
        rng = self.rng
        self.budget -= 1
        chance = rng.random()
        if self.shares and rng.random() < 0.25:
            return self._shared(scope)
        if chance < 0.22 and scope.depth < DEPTH and self.budget > 0:
            return self._compound(
                rng.choice(compounds.COMPOUND_STATEMENTS.strip().split("\n\n")), scope
            )
        if chance < 0.26 and scope.depth < 2:
            return self._inner_function(scope)
        if chance < 0.30 and scope.kind == "generator":
            return [self.fill("yield <V>", scope, 0)]
        if chance < 0.34 and scope.loop:
            return self._compound(rng.choice(compounds.JUMPS.strip().split("\n\n")), scope)
        if chance < 0.355 and scope.depth and scope.kind != "generator":
            return self._compound("if <test>:\n    return <return>", scope)
        if rng.random() < self.opaque:
            return self._simple(
                rng.choice(statements.OPAQUE_STATEMENTS.strip().split("\n\n")), scope
            )
        return self._simple(rng.choice(statements.SIMPLE_STATEMENTS.strip().split("\n")), scope)

    def _shared(self, scope: Scope) -> list[str]:
        """A use of an instance of a subclass or of an iterator; a new one where there is none."""
        rng, lines = self.rng, []
        (type,) = rng.choices(list(shared.USES), [shared.WEIGHTS[type] for type in shared.USES])
        if type in EXPRESSIONS and (not scope.names(type) or rng.random() < 0.3):
            lines = self._simple(f"<new {type}> = <{type}>", scope)
        return lines + self._compound(rng.choice(shared.USES[type]), scope)

    def _simple(self, template: str, scope: Scope) -> list[str]:
        names: dict[str, str] = {}
        line = self.fill(template, scope, 0, names)
        scope.local.update({n: t for n, t in names.items() if not n.startswith(".")})
        return [line]

    def _compound(self, template: str, scope: Scope) -> list[str]:
        """Line by line. A name is visible until a line that lies further out than the one that made
        it, and until the next clause of the same statement."""
        inside, lines = scope.inner(), []
        names: dict[str, str] = {}
        made_at: dict[str, int] = {}
        for line in template.split("\n"):
            indent = len(line) - len(line.lstrip())
            clause = line.lstrip().startswith(("else", "elif", "except", "finally", "case"))
            for name in [
                n for n, at in made_at.items() if at > indent or (at == indent and clause)
            ]:
                inside.local.pop(name)
                made_at.pop(name)
            if line.lstrip().startswith("<block"):
                block = inside.inner(loop="loop" in line)
                block.depth = scope.depth + 1
                found = self.statements(block, self.rng.randint(1, 3))
            else:
                known = set(names)
                found = [self.fill(line.lstrip(), inside, 1, names)]
                new = {n: t for n, t in names.items() if n not in known and not n.startswith(".")}
                inside.local.update(new)
                made_at.update(dict.fromkeys(new, indent))
            lines += [" " * indent + text for text in found]
        return lines

    def _inner_function(self, scope: Scope) -> list[str]:
        """A nested function: of a vector, or a generator of vectors; it sees all, and may assign to
        one outer name."""
        rng = self.rng
        generator = rng.random() < 0.35
        name = self.new("genfn" if generator else "fn")
        inside = Scope(
            {},
            {**scope.outer, **scope.local},
            "V",
            "generator" if generator else "function",
            False,
            2,
        )
        head, lines = "", []
        if not generator:
            parameter = self.new("V")
            inside.local[parameter] = "V"
            head = parameter
            if rng.random() < 0.3:
                head += self.fill(f", {self.new('int')}=<int>", scope, 2)
        outer = [
            n
            for n, t in scope.local.items()
            if t in ("int", "V", "str", "list[V]") and n.isidentifier()
        ]
        outer = [n for n in outer if n not in self.state]  # those are global
        if outer and rng.random() < 0.5:
            chosen = rng.choice(outer)
            inside.local[chosen] = inside.outer.pop(chosen)
            lines.append(f"nonlocal {chosen}")
        lines += self.statements(inside, rng.randint(1, 3))
        lines.append(self.fill("yield <V>" if generator else "return <V>", inside, 0))
        scope.local[name] = "genfn" if generator else "fn"
        lines = [f"def {name}({head}):", *["    " + line for line in lines]]
        if generator and scope.depth < DEPTH and rng.random() < 0.5:
            return lines + self._compound(f"for <new V> in {name}():\n    <block loop>", scope)
        uses = [
            f"<new V> = next({name}())",
            f"<new list[V]> = [*{name}()]",
            f"<new iter> = {name}()",
        ]
        if not generator:
            uses = [
                f"<new V> = {name}(<V>)",
                f"<V=> = {name}(<V>) + <V>",
                f"<new list[V]> = [{name}(<V>), {name}(<V>)]",
            ]
        return lines + (self._simple(rng.choice(uses), scope) if rng.random() < 0.8 else [])

    # -- the module --------------------------------------------------------------------------------

    def module(self) -> str:
        rng = self.rng
        for type, first in (
            ("int", "0"),
            ("list[V]", "[]"),
            ("dict[int]", "{'n': 0}"),
            ("list[str]", "[]"),
        ):
            if rng.random() < 0.35:
                name = self.new(type).upper()
                self.state[name] = (type, first)
                self.resets.append(
                    f"global {name}; {name} = {first}" if type == "int" else _refill(name, first)
                )
        helpers = [
            self._helper(rng.choice(HELPER_KINDS)) for _ in range(rng.choice([0, 1, 1, 2, 3]))
        ]
        main = self._net() if rng.random() < 0.3 else self._program()
        variables = [f"{name} = {first}" for name, (_, first) in self.state.items()]
        body = "\n".join([*variables, *helpers, main])
        used = "\n".join(_used_parts(body))
        self.resets += [
            text for name, text in RESETS.items() if re.search(rf"\b{name}\b", used + body)
        ]
        reset = "def reset():\n" + textwrap.indent(
            "\n".join(self.resets) or "pass", "    "
        ).replace("; ", "\n    ")
        return ast.unparse(ast.parse("\n".join([parts.IMPORTS, used, body, reset]))) + "\n"

    def _globals(self, scope: Scope) -> list[str]:
        """Makes the module's variables visible; an int may become assignable."""
        lines = []
        for name, (type, _) in self.state.items():
            if type == "int" and self.rng.random() < 0.6:
                scope.local[name] = type
                lines.append(f"global {name}")
            else:
                scope.outer[name] = type
        return lines

    def _helper(self, kind: str) -> str:
        rng = self.rng
        name = f"{kind}{len(self.helpers)}"
        parameters = [(self.new("V"), "V")]
        extra = rng.sample(
            ["M", "int", "list[V]", "bool", "float", "dict[V]", "fn"], rng.randint(0, 2)
        )
        parameters += (
            [(self.new(type), type) for type in extra]
            if kind != "recurse"
            else [("depth", "counter")]
        )
        scope = Scope(dict(parameters), {}, "V", "generator" if kind == "stream" else "function")
        lines = self._globals(scope)
        self.budget = rng.randint(2, 6)
        head = [n for n, _ in parameters]
        defaults = 0
        if kind == "helper" and rng.random() < 0.5:
            head += [
                rng.choice(
                    ["*, scale=0.5", "shift=1", "*rest, shift=1", "seen=[]", "*rest, **named"]
                )
            ]
            lines += _use_of_extra(head[-1], parameters[0][0])
            if head[-1] == "seen=[]":
                self.resets.append(f"{name}.__defaults__[-1].clear()")
        if kind == "recurse":
            lines += [f"if depth <= 0:\n        return {parameters[0][0]}"]
        lines += self.statements(scope, rng.randint(2, 4))
        if kind == "stream":
            lines += self._compound(
                "for <new counter> in range(<small>):\n    <block loop>\n    yield <V>", scope
            )
        elif kind == "recurse":
            lines.append(self.fill(f"return {name}(<V>, depth - 1) + <V>", scope, 0))
        else:
            lines.append(self.fill("return <V>", scope, 0))
        if kind == "recurse":
            parameters = [parameters[0], ("depth", "small")]
        returns = "iter" if kind == "stream" else "V"
        self.helpers.append(Helper(name, parameters, defaults, returns))
        text = f"def {name}({', '.join(head)}):\n" + "".join(f"    {line}\n" for line in lines)
        if kind == "counted":
            text = "@counted\n" + text
        return text

    def _parameters(self) -> tuple[list[tuple[str, str]], list[str]]:
        """Parameters of the program, and the lines that make their arguments."""
        rng = self.rng
        types = ["M", "V"] + rng.choices(list(ARGUMENTS), k=rng.randint(1, 4))
        parameters = [(self.new(type), type) for type in types]
        made: dict[str, str] = {}
        lines = []
        for name, type in parameters:
            text = rng.choice(ARGUMENTS[type].split("|"))
            before = [n for n, t in made.items() if t == "V"]
            text = text.replace("?V", rng.choice([*before, DRAW_V]) if before else DRAW_V)
            lines.append(f"{name} = {text.replace('?M', DRAW_M)}")
            made[name] = type
        return parameters, lines

    def _arguments(self, parameters: list[tuple[str, str]], lines: list[str], head: str) -> str:
        """The text of `arguments`, for a program whose parameters are `head`."""
        rng = self.rng
        rows, cols = rng.randint(1, 3), 3
        change = (
            rng.choice(["rows", "cols", "both", "none"])
            if "nn.Module" not in head
            else rng.choice(["rows", "none"])
        )
        sizes = [f"a = {rows} + other" if change in ("rows", "both") else f"a = {rows}"]
        sizes += [f"b = {cols} + 2 * other" if change in ("cols", "both") else f"b = {cols}"]
        names = [n for n, _ in parameters]
        keyword = rng.randint(2, len(names))
        args = ", ".join(names[:keyword]) + ","
        kwargs = ", ".join(f"{n!r}: {n}" for n in names[keyword:])
        start = f"g = torch.Generator().manual_seed({rng.randint(1, 99)} + other)"
        body = "\n    ".join([*sizes, start, *lines, f"return ({args}), {{{kwargs}}}"])
        return f"def arguments(other):\n    {body}\n"

    def _body(self, scope: Scope, lines: list[str]) -> str:
        self.budget = self.rng.randint(8, 24)
        calls = [self._call(helper) for helper in self.helpers]
        loops = ["for <new V> in {}:\n    <block loop>", "<new list[V]> = [*{}]", "<new iter> = {}"]
        for helper, call in zip(self.helpers, calls):
            use = self.rng.choice(loops) if helper.returns == "iter" else "<new V> = {}"
            lines += self.statements(scope, self.rng.randint(1, 3))
            lines += (
                self._compound(use.format(call), scope)
                if "block" in use
                else self._simple(use.format(call), scope)
            )
        lines += self.statements(scope, self.rng.randint(4, 9))
        lines.append(f"return {self._result(scope)}")
        return textwrap.indent("\n".join(lines), "    ")

    def _program(self) -> str:
        parameters, made = self._parameters()
        scope = Scope(dict(parameters))
        lines = self._globals(scope)
        head = ", ".join(n for n, _ in parameters)
        return f"def program({head}):\n{self._body(scope, lines)}\n" + self._arguments(
            parameters, made, head
        )

    def _net(self) -> str:
        """A module with parameters, a buffer, submodules and plain attributes."""
        rng = self.rng
        parameters, made = self._parameters()
        scope = Scope(dict(parameters))
        lines = self._globals(scope)
        members = rng.sample(list(MEMBERS), rng.randint(2, 6))
        scope.outer["self"] = "Net"
        self.resets.append("program.train()")
        if "scale" in members:  # a parameter, which must not be assigned to the buffer
            members = [m for m in members if m != "state"]
        init = ["super().__init__()"]
        for member in members:
            type, assignable, first, reset = MEMBERS[member]
            init.append(first)
            if type:
                (scope.local if assignable else scope.outer)[f"self.{member}"] = type
            if reset:
                self.resets.append(f"program.{reset}")
        head = ", ".join(["self", *(n for n, _ in parameters)])
        forward = textwrap.indent(f"def forward({head}):\n{self._body(scope, lines)}", "    ")
        text = (
            "class Net(torch.nn.Module):\n    def __init__(self):\n"
            f"{textwrap.indent(chr(10).join(init), ' ' * 8)}\n"
        )
        return f"{text}\n{forward}\n\ntorch.manual_seed(0)\nprogram = Net()\n\n" + self._arguments(
            parameters, made, "nn.Module"
        )


HELPER_KINDS = ["helper", "helper", "helper", "recurse", "stream", "counted"]

DRAW_V, DRAW_M = "torch.randn(b, generator=g)", "torch.randn(a, b, generator=g)"
ARGUMENTS = {
    "M": (
        "?M|?M|?M.double()|torch.randn(b, a, generator=g).mT|"
        "torch.randn(a + 1, b, generator=g)[1:]|?M.round()"
    ),
    "V": "?V|?V|torch.randn(2 * b, generator=g)[::2]|torch.arange(b) * 0.5 - 1|?V.double()",
    "S": "torch.randn((), generator=g)",
    "N": "torch.arange(b)|torch.randint(0, 4, (b,), generator=g)",
    "int": "2|3 + other|1 - other|other",
    "float": "0.5|1.5 + other|0.25",
    "bool": "True|not other|other",
    "str": "'a'|'left'|'b' if other else 'n'",
    "list[V]": "[?V, ?V]|[?V]|[?V] * 2|[?V, ?V, ?V][other:]",
    "list[int]": "[1, 2, 3]|[0, 5]|[2] * (1 + other)",
    "list[str]": "['s']|[]",
    "dict[V]": (
        "{'a': ?V, 'b': ?V}|{'a': ?V}|collections.OrderedDict(a=?V)|{'b' if other else 'a': ?V}"
    ),
    "dict[int]": "{'a': 1, 'n': 2}|{}|{'n': 1 + other}|collections.defaultdict(int)",
    "set": "{1, 2}|{0, 3 + other}",
    "deque": "collections.deque([?V, ?V])|collections.deque([?V], maxlen=2)",
    "fn": "torch.sin|torch.cos if other else torch.sin|(lambda v: v * 2)|Config(0.5).apply",
    "Vec": "Vec(?V)|Named(?V)|Named(?V, 'w') if other else Vec(?V)",
    "Stack": "Stack([?V, ?V])|Stack([?V])",
    "Pair": "Pair(?V, 1)|Pair(?V, 0 + other)",
    "Config": "Config(0.5)|Config(2.0, parts=[?V])|Config(0.5, shift=other)",
    "Meter": "Meter()|Meter(?V)",
    "Mode": "Mode.LOUD|Mode(int(other))|Mode.QUIET",
    "Table": "Table(a=?V)|Table({'a': ?V, 'b': ?V})",
    "Items": "Items([?V, ?V])|Items([?V])",
    "Out": "Out(last=?V)|Out(last=?V, hidden=?V)",
    "Node": "Node(?V)|Node(?V, Node(?V))",
    "Tower": "Tower(?V, torch.sin)|Tower(?V)",
    "Gauge": "Gauge(?V)|Gauge(?V, 1 + other)",
    "array": "np.arange(b, dtype=np.float32)|np.ones(b, dtype=np.float32)",
    "iter": "iter([?V, ?V])|(t for t in [?V, ?V])|yielding(?V)",
}

# Attribute -> its type ("" for one that expressions do not use), whether programs may assign to it,
# how it is made, and how it is put back.
MEMBERS = {
    "linear": ("fn", False, "self.linear = torch.nn.Linear(3, 3)", ""),
    "stack": ("fn", False,
        "self.stack = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())", ""),
    "scale": ("V", False, "self.scale = torch.nn.Parameter(torch.rand(3))",
        "scale.data.fill_(0.5)"),
    "state": ("V", True, "self.register_buffer('state', torch.zeros(3))", "state = torch.zeros(3)"),
    "calls": ("int", True, "self.calls = 0", "calls = 0"),
    "history": ("list[V]", True, "self.history = []", "history = []"),
    "cache": ("dict[V]", True, "self.cache = {}", "cache = {}"),
    "layers": ("ModuleList", False,
        "self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)])", ""),
    "hooked": ("fn", False, "self.hooked = with_hooks(torch.nn.Linear(3, 3))", ""),
    "late": ("", False, "pass", "__dict__.pop('late', None); program._buffers.pop('late', None)"),
    "meter": ("Meter", False, "self.meter = Meter()", "meter.__init__()"),
    "activation": ("fn", False, "self.activation = torch.tanh", "activation = torch.tanh"),
    "norm": ("fn", False, "self.norm = torch.nn.LayerNorm(3)", ""),
}  # fmt: skip


def _refill(name: str, first: str) -> str:
    return f"{name}.clear()" + (f"; {name}.update({first})" if first.startswith("{'") else "")


def _use_of_extra(head: str, v: str) -> list[str]:
    """Statements that use the last parameters of a helper."""
    return {
        "*, scale=0.5": [f"{v} = {v} * scale"],
        "shift=1": [f"{v} = {v} + shift"],
        "*rest, shift=1": [f"for other in rest:\n        {v} = {v} - shift"],
        "seen=[]": [f"seen.append({v}.dim())", f"{v} = {v} + len(seen)"],
        "*rest, **named": [f"{v} = {v} * (1 + len(rest) + named.get('k', 0))"],
    }[head]


def _used_parts(body: str) -> Iterator[str]:
    """The classes and functions of the grammar that a text uses, in their order."""
    used: set[str] = set()
    texts = [body]
    while texts:
        words = set(re.findall(r"\w+", texts.pop()))
        new = [name for name in PARTS if name in words and name not in used]
        used.update(new)
        texts += [PARTS[name] for name in new]
    return (PARTS[name] for name in PARTS if name in used)


if __name__ == "__main__":
    print(random_python(int(sys.argv[1])).text)
