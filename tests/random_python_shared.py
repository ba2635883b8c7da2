"""Statements of random Python programs with subclasses of built-in types that override a method,
and with iterators that several constructs read.

What they find goes to `NOTES`, a list of the program's module.
"""

from __future__ import annotations

import itertools
import re

# Subclasses
# --------------------------------------------------------------------------------------------------

# Method -> its parameters and what it returns: nothing that agrees with the content.
OVERRIDES = {
    "__len__": ("", "1"),
    "__iter__": ("", "iter([7, 8, 9])"),
    "__getitem__": (", k", "9"),
    "__contains__": (", k", "True"),
    "__bool__": ("", "False"),
    "__eq__": (", other", "True"),
    "__lt__": (", other", "True"),
    "__hash__": ("", "7"),
    "__add__": (", other", "21"),
    "__radd__": (", other", "22"),
    "__mul__": (", other", "23"),
    "__rmul__": (", other", "24"),
    "__or__": (", other", "'or'"),
    "__iadd__": (", other", "self"),
    "__index__": ("", "1"),
    "__int__": ("", "4"),
    "__float__": ("", "1.25"),
    "__neg__": ("", "-6"),
    "__abs__": ("", "6"),
    "__str__": ("", "'text'"),
    "__missing__": (", k", "61"),
    "__setitem__": (", k, value", "None"),
    "__reversed__": ("", "iter([5])"),
    "keys": ("", "['a']"),
    "items": ("", "[('z', 1)]"),
    "values": ("", "[26]"),
    "append": (", item", "None"),
    "extend": (", items", "None"),
    "update": (", *others", "None"),
    "add": (", item", "None"),
}
_SEQUENCE = "__len__ __iter__ __getitem__ __contains__ __bool__ __eq__ __add__ __mul__"
_NUMBER = (
    "__eq__ __lt__ __bool__ __hash__ __add__ __radd__ __mul__ __rmul__ __neg__ __abs__ __int__ "
    "__str__"
)
METHODS = {
    "list": f"{_SEQUENCE} __iadd__ __setitem__ __reversed__ append extend",
    "tuple": f"{_SEQUENCE} __radd__ __hash__ __lt__",
    "dict": (
        "__len__ __iter__ __getitem__ __contains__ keys items values __missing__ __setitem__ "
        "update __or__"
    ),
    "set": "__len__ __iter__ __contains__ __or__ add update __eq__ __bool__",
    "int": f"{_NUMBER} __index__ __float__",
    "float": f"{_NUMBER} __float__",
    "str": f"{_SEQUENCE} __str__ __hash__",
}
CONTENTS = {
    "list": ("[1, 2]", "[<int>, 2, 3]"),
    "tuple": ("(1, 2)", "(<int>, 2, 3)"),
    "dict": ("{'a': 1, 'b': 2}", "{'a': <int>, 'n': 3}"),
    "set": ("{1, 2}", "{<int>, 2}"),
    "int": ("3", "<int> % 5"),
    "float": ("2.5", "<float>"),
    "str": ("'ab'", "<str>"),
}


def _class(base: str, methods: tuple[str, ...]) -> tuple[str, str]:
    """The name of a subclass and its text."""
    name = base.title() + "".join(m.strip("_").title() for m in methods)
    lines = [f"class {name}({base}):"]
    for method in methods:
        parameters, result = OVERRIDES[method]
        body = [f"NOTES.append({method!r})", f"return {result}"]
        lines += [f"    def {method}(self{parameters}):", *(f"        {line}" for line in body)]
    if (
        "__eq__" in methods
        and "__hash__" not in methods
        and base in ("tuple", "int", "float", "str")
    ):
        lines.append(f"    __hash__ = {base}.__hash__")
    return name, "\n" + "\n".join(lines) + "\n"


def _classes() -> dict[str, dict[str, str]]:
    """Base -> the classes of one overridden method, and of two neighbours in the table."""
    found = {}
    for base, text in METHODS.items():
        methods = text.split()
        found[base] = dict(
            _class(base, chosen) for chosen in [*zip(methods), *itertools.pairwise(methods)]
        )
    return found


CLASSES = _classes()

_OF_ALL = """
len(<s>)|bool(<s>)|not <s>|list(<s>)|[*<s>]|tuple(<s>)|set(<s>)|sorted(<s>)|sum(<s>)|max(<s>)
1 in <s>|'a' in <s>|<s>[0]|<s>[-1]|<s>[0:1]|[<s>] == [2]|<s> == 3|2 < <s>|<s> < 2|int(<s>)
float(<s>)|str(<s>)|list(zip(<s>, <s>))|dict(<s>)|{**<s>}|(lambda *a: a)(*<s>)
(lambda **k: k)(**<s>)|list(enumerate(<s>))|list(map(str, <s>))|<s> + <s>|<s> * 2|2 * <s>|<s> | <s>
-<s>|abs(<s>)|list(range(<s>))|[1, 2, 3, 4][<s>]|{1: 'one'}.get(<s>)|f'{<s>}'|(1,) + <s>|[1] + <s>
{1, 5}.union(<s>)|{1, 5}.issuperset(<s>)|{1}.isdisjoint(<s>)|next(iter(<s>))|list(reversed(<s>))
hash(<s>) == hash(<s>)|math.sqrt(<s>)|any(<s>)|all(<s>)|collections.deque(<s>)
list(itertools.chain(<s>, [5]))|{1, 2} == {1, <s>}
' '.join(<s>)|round(<s>)|dict.fromkeys(<s>)|isinstance(<s>, int)|type(<s>).__name__|[k for k in <s>]
{k: 1 for k in <s>}|<s>.copy()|1 + <s>|torch.full((2,), <s>).tolist()|torch.zeros(3)[<s>].shape
operator.index(<s>)|<s>['a']|<s>['q']|list(<s>.items())
"""
_CHANGES = {
    "list": "<s>.append(4)|<s>.extend([4])|<s>[0] = 5|<s> += [6]|<s>[0:1] = [7]|del <s>[0]",
    "dict": "<s>['a'] = 5|<s>.update(q=4)|<s>.setdefault('q', 2)|<s> |= {'r': 1}|del <s>['a']",
    "set": "<s>.add(4)|<s>.update([4])|<s> |= {6}|<s> -= {1}|<s>.discard(2)",
    "tuple": "<s> += (1,)|a, b = <s>|a, *b = <s>",
    "int": "<s> += 1|<s> *= 2",
    "float": "<s> += 1|<s> /= 2",
    "str": "<s> += 'c'|<s> *= 2",
}
_OF_OTHERS = (
    "found.extend(<s>)|found += <s>|found[0:0] = <s>|found[:] = <s>|a, b = <s>|"
    "for k in <s>: found.append(k)"
)
_OF_TENSORS = """
found.append(<V> + <s> * <V>)|found.append(<V> * <s>)|found.append(<s> * <V>)
found.append(<V>[:len(<s>)])
"""


def _named(template: str, mark: str, type: str) -> str:
    """The template with its mark filled by one variable of a type: chosen where it comes first,
    then repeated."""
    return template.replace(mark, f"<{type}! as it>", 1).replace(mark, "<.it>")


def _guarded(lines: list[str]) -> str:
    """A compound statement that notes the error of its lines."""
    body = "\n".join(f"    {line}" for line in lines)
    handler = "except Exception as <new any as e>:\n    NOTES.append(type(<.e>).__name__)"
    return f"found = []\ntry:\n{body}\n{handler}\nNOTES.append(found)"


def _lines(table: str) -> list[str]:
    """The entries of a table, which `|` sets apart where no space stands beside it."""
    return [text for line in table.strip().split("\n") for text in re.split(r"(?<! )\|(?! )", line)]


def _of_subclass(base: str) -> list[str]:
    of_all = [f"found.append({text})" for text in _lines(_OF_ALL)]
    uses = of_all + _lines(_CHANGES[base]) * 3 + _lines(_OF_OTHERS) + _lines(_OF_TENSORS)
    return [_guarded([_named(text, "<s>", f"Sub {base}")]) for text in uses]


# Shared iterators
# --------------------------------------------------------------------------------------------------

_SOURCES = """
iter(<list[int]!>)
iter([3, 0, 2, 1])
iter(range(4))
(k + 1 for k in <list[int]!>)
(k * 2 for k in range(4) if k != 1)
map(lambda k: k + 1, <list[int]!>)
map(operator.add, <list[int]!>, range(5))
filter(None, [0, 1, 0, 2, 3])
reversed([1, 2, 3])
itertools.chain(<list[int]!>, [8, 9])
itertools.islice(itertools.count(<int>), 4)
itertools.accumulate([1, 2, 3])
itertools.takewhile(lambda k: k < 3, [1, 2, 3, 1])
iter({1: 'a', 2: 'b'})
(a + b for a, b in zip([1, 2, 3], range(3)))
(k for k, _ in enumerate('abcd'))
telling(<small>)
Countdown(<small>)
"""
_FAILING = """
failing(<small>)
(6 // (k - 2) for k in range(4))
map(lambda k: 6 // (k - 1), [3, 2, 1, 0])
itertools.chain([1, 2], failing(1))
zip_of_failing(<small>)
Countdown(<small>, True)
(k + 1 for k in failing(2))
"""
_READS = """
next(<i>, None)|next(<i>, None)|[*<i>]|(*<i>, 1)|list(<i>)|tuple(<i>)|<int> in <i>|1 in <i>
sum(<i>)|sum(itertools.islice(<i>, 2))|list(zip(<i>, <i>))|list(zip(<i>, range(2)))
list(zip(range(2), <i>))|[a - b for a, b in zip(<i>, <i>)]|max(<i>, default=0)
any(k > 1 for k in <i>)|all(k < 2 for k in <i>)|any(<i>)|all(<i>)|sorted(<i>)|set(<i>)
dict.fromkeys(<i>)|[next(<i>, 0) for _ in range(2)]|{k: next(<i>, 0) for k in <i>}
{1, 2}.isdisjoint(<i>)|{1, 2}.issuperset(<i>)|{1, 2}.union(<i>)|{1, 2, 3}.difference(<i>)
collections.deque(<i>, maxlen=1)|functools.reduce(operator.add, <i>, 0)|' '.join(map(str, <i>))
(lambda *ks: ks)(*<i>)|list(map(operator.add, <i>, <i>))|list(enumerate(<i>))
list(itertools.takewhile(lambda k: k < 3, <i>))|list(itertools.pairwise(<i>))
list(itertools.islice(<i>, 1, 3))|[(k, list(g)) for k, g in itertools.groupby(<i>)]
list(itertools.chain(<i>, [9], <i>))|list(itertools.zip_longest(<i>, <i>))
operator.countOf(<i>, 1)|operator.contains(<i>, 2)|list(filter(None, <i>))|iter(<i>) is <i>
dict(zip(<i>, <i>))|(next(<i>), next(<i>))|operator.length_hint(<i>)|len([*<i>, *<i>])|min(<i>)
{*<i>}|[k for k in <i> if k > 1][:1]
"""
_FILLS = """
found.extend(<i>)
found += <i>
found[0:0] = <i>
found[:] = <i>
a, b = <i>
a, *found = <i>
*found, a = <i>
found.extend(k + len(found) for k in <i>)
found.extend(map(lambda k: k + len(found), <i>))
found += (k for k in <i> if k not in found)
found += [next(<i>), *<i>]
found.append(next(<i>))
found.extend(<V> * k for k in <i>)
found.append(sum((<V> * k for k in <i>), <V>))
found.append(torch.stack([<V> * k for k in <i>]))
"""
_LOOPS = """
for <new counter as c> in <iter[int]! as i>:
    NOTES.append(<.c>)
    if <.c> > 1 or <test>:
        break
NOTES.append(next(<.i>, None))

for <new counter as c> in <iter[int]! as i>:
    NOTES.append((<.c>, next(<.i>, None)))
    <block loop>
else:
    <block>

for <new counter as c>, <new counter as d> in zip(<iter[int]! as i>, <.i>):
    NOTES.append((<.c>, <.d>))
    <block loop>

for <new counter as c> in itertools.islice(<iter[int]!>, 2):
    NOTES.append(<.c>)
    <block loop>

found = [1, 2, 3]
for <new counter as c> in found:
    NOTES.append(<.c>)
    if len(found) < 6:
        found.append(<.c> + <int>)
NOTES.append(found)

found = [1, 2, 3, 4]
for <new counter as c> in found:
    NOTES.append(<.c>)
    if <.c> % 2:
        found.remove(<.c>)
    <block loop>
NOTES.append(found)

found = {'a': 1, 'b': 2}
try:
    for <new str as c> in found:
        NOTES.append(<.c>)
        if <test>:
            found[<.c> * 2] = 3
except RuntimeError as <new any as e>:
    NOTES.append(str(<.e>))
NOTES.append(found)

found = [1, 2, 3]
it = iter(found)
NOTES.append(next(it))
found[<small>:] = [<int>, <int>]
NOTES.append([*it])
found.append(5)
NOTES.append(next(it, None))

found = collections.deque([1, 2, 3])
try:
    for <new counter as c> in found:
        NOTES.append(<.c>)
        if <test>:
            found.append(4)
except RuntimeError as <new any as e>:
    NOTES.append(str(<.e>))

for <new counter as c> in <source!>:
    NOTES.append(<.c>)
    <block loop>
    if <test>:
        break

try:
    for <new counter as c> in <source! as i>:
        NOTES.append(<.c>)
        <block loop>
except (Oops, ZeroDivisionError) as <new any as e>:
    NOTES.append(repr(<.e>))
    NOTES.append([*<.i>])
"""


def _of_iterator(type: str) -> list[str]:
    reads = [f"found.append({text})" for text in _lines(_READS)] + _lines(_FILLS)
    found = [
        _guarded([_named(text, "<i>", type)]) + "\nNOTES.append(next(<.it>, 'end'))"
        for text in reads
    ]
    return found + [loop for loop in _LOOPS.strip().split("\n\n") if f"<{type}!" in loop] * 4


EXPRESSIONS = {"iter[int]": _SOURCES, "source": _FAILING}
for _base, _found in CLASSES.items():
    EXPRESSIONS[f"Sub {_base}"] = "\n".join(
        f"{name}({c})" for name, c in itertools.product(_found, CONTENTS[_base])
    )

# Type -> statements that use a variable of it.
USES = {
    "iter[int]": _of_iterator("iter[int]"),
    "source": _of_iterator("source"),
    "lists that change": [
        loop for loop in _LOOPS.strip().split("\n\n") if loop.startswith("found")
    ],
}
USES |= {f"Sub {base}": _of_subclass(base) for base in CLASSES}
WEIGHTS = {"iter[int]": 4, "source": 2, "lists that change": 1} | {
    f"Sub {base}": 1 for base in CLASSES
}
PREFIXES = {"iter[int]": "numbers", "source": "source"} | {
    f"Sub {base}": f"sub_{base}" for base in CLASSES
}

PARTS = {
    "NOTES": "NOTES = []",
    "telling": """
def telling(n):
    for k in range(n + 1):
        NOTES.append(('told', k))
        yield k
    NOTES.append('the end')
""",
    "failing": """
def failing(n):
    for k in range(n):
        NOTES.append(('gives', k))
        yield k
    raise Oops(n)
""",
    "zip_of_failing": """
def zip_of_failing(n):
    return map(operator.add, failing(n), itertools.count(1))
""",
    "Countdown": """
class Countdown:
    def __init__(self, n, fails=False):
        self.n, self.fails = n, fails

    def __iter__(self):
        return self

    def __next__(self):
        NOTES.append(('count', self.n))
        self.n -= 1
        if self.n < 0:
            raise Oops(self.n) if self.fails else StopIteration
        return self.n
""",
    **{name: text for found in CLASSES.values() for name, text in found.items()},
}
RESETS = {"NOTES": "NOTES.clear()"}
