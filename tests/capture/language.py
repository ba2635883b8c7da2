"""Tables of small programs, each run in eager and compiled: results, identity, mutation, exceptions
and printed output are compared, and then an unchanged call has to compile nothing.

A program is a function of two (3, 4) float tensors, and of what `make` gives where it has a `make`.
`whole` says that it is captured in one graph (`fullgraph=True` accepts it), `broken` that it is
not, for the stated reason.
"""

from __future__ import annotations

import contextlib
import enum
import io
import sys
import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import ingot
from ingot.compiler import Compiler
from ingot.errors import GraphBreakError


class Program(NamedTuple):
    """A row of a table. `fresh`: the program changes what `make` gives, so each call gets new
    objects."""

    function: Callable[..., Any]
    reason: str | None  # why it is not captured whole; None if it is
    make: Callable[[], tuple[Any, ...]] | None
    fresh: bool


class Table(dict[str, Program]):
    """The programs of one theme, in order."""

    def whole(self, function: Any = None, *, make: Any = None, fresh: bool = False) -> Any:
        """Registers a program that is captured in one graph."""
        return self._add(function, None, make, fresh)

    def broken(self, reason: str, *, make: Any = None, fresh: bool = False) -> Any:
        """Registers a program that is not captured whole; `reason` is part of what `fullgraph` says
        about it."""
        return self._add(None, reason, make, fresh)

    def _add(self, function: Any, reason: str | None, make: Any, fresh: bool) -> Any:
        def register(fn: Any) -> Any:
            assert fn.__name__ not in self, fn.__name__
            self[fn.__name__] = Program(fn, reason, make, fresh)
            return fn

        return register if function is None else register(function)

    def test(self) -> Callable[[str], None]:
        """The test function of a module: every program of the table."""

        @pytest.mark.parametrize("name", list(self))
        def test_program(name: str) -> None:
            check(self[name])

        return test_program

    @property
    def coverage(self) -> tuple[int, int]:
        """How many programs are captured whole, and how many there are."""
        return sum(program.reason is None for program in self.values()), len(self)


class Outcome(NamedTuple):
    """What a call does: a result or an exception, the output, the warnings, and its arguments
    afterwards."""

    result: Any
    raised: BaseException | None
    output: str
    warned: list[tuple[type, str]]
    arguments: tuple[Any, ...]


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Outcome:
    output, result, raised = io.StringIO(), None, None
    with (
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(output),
        torch.no_grad(),
    ):
        warnings.simplefilter("always")
        try:
            result = function(*arguments)
        except GraphBreakError:
            raise
        except Exception as error:
            raised = error
    warned = [(w.category, str(w.message)) for w in caught]
    return Outcome(result, raised, output.getvalue(), warned, arguments)


def arguments_of(program: Program) -> tuple[Any, ...]:
    torch.manual_seed(0)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    return (x, y, *(program.make() if program.make is not None else ()))


def compilations() -> list[Any]:
    """All compilations so far of what is still alive, continuations included."""
    return [compilation for compiler in Compiler.alive for compilation in compiler.compilations]


def since(before: list[Any]) -> int:
    """How many compilations there were since then."""
    known = set(map(id, before))
    return sum(id(compilation) not in known for compilation in compilations())


_TURNS = 2 if sys.version_info < (3, 13) else 3
"""CPython 3.13 keeps the `__init__` of a class from the frame hook where it specialized a call of
the class: what that calls is compiled a call later."""


def check(program: Program) -> None:
    """Both ways of running a program agree, each time, and the last call compiles nothing."""
    compiled = ingot.compile(program.function, backend="eager")
    eager_arguments, arguments = arguments_of(program), arguments_of(program)
    for turn in range(_TURNS):
        if program.fresh:
            eager_arguments, arguments = arguments_of(program), arguments_of(program)
        state = torch.get_rng_state()
        expected = outcome(program.function, eager_arguments)
        torch.set_rng_state(state)
        before = compilations()
        found = outcome(compiled, arguments)
        assert repr(found.raised) == repr(expected.raised)
        assert_same(found, expected)
        assert turn < _TURNS - 1 or not since(before), "an unchanged call compiles again"
    strict = ingot.compile(program.function, backend="eager", fullgraph=True)
    if program.reason is None:
        assert_same(
            outcome(strict, arguments_of(program)), outcome(program.function, arguments_of(program))
        )
    else:
        with pytest.raises(GraphBreakError) as refused:
            outcome(strict, arguments_of(program))
        assert program.reason in str(refused.value)


# -- comparison ------------------------------------------------------------------------------------


def assert_same(a: Any, b: Any) -> None:
    """Same types, values and structure, and the same objects at the same places."""
    _Comparison().compare(a, b, "outcome")


_ATOMS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    type(NotImplemented),
    range,
    slice,
    torch.dtype,
)


class _Comparison:
    """One comparison: which object of the one side stands for which of the other."""

    def __init__(self) -> None:
        self.partners: dict[int, tuple[Any, Any]] = {}
        self.reverse: dict[int, Any] = {}

    def compare(self, a: Any, b: Any, path: str) -> None:
        assert type(a) is type(b), f"{path}: {a!r} is a {type(a)}, {b!r} a {type(b)}"
        bound = not isinstance(getattr(a, "__self__", None), (types.ModuleType, type, type(None)))
        if (
            type(a) in _ATOMS
            or isinstance(a, (type, types.ModuleType))
            or type(a) is type(len)
            and not bound
        ):
            assert a == b or (a != a and b != b), f"{path}: {a!r} is not {b!r}"
            assert str(a) == str(b), f"{path}: {a!r} is not {b!r}"  # -0.0, True
            return
        immutable = isinstance(a, (tuple, frozenset))  # constants may be one object or two
        if id(a) in self.partners and (not immutable or self.partners[id(a)][1] is b):
            assert self.partners[id(a)][1] is b, f"{path}: one object stands for two"
            return
        if a is not b:
            assert id(b) not in self.reverse or immutable, f"{path}: two objects stand for one"
        self.partners[id(a)], self.reverse[id(b)] = (a, b), b
        for kind, compare in _COMPARISONS:
            if isinstance(a, kind):
                compare(self, a, b, path)
                break
        else:
            told_apart = type(a).__eq__ is object.__eq__  # by identity alone
            assert (
                a is b
                or hasattr(a, "__dict__")
                or hasattr(type(a), "__slots__")
                or told_apart
                or a == b
            ), path
        self._attributes(a, b, path)

    def _attributes(self, a: Any, b: Any, path: str) -> None:
        if isinstance(a, (torch.nn.Module, types.FunctionType)) or a is b:
            return
        if hasattr(a, "__dict__"):
            self.compare(dict(vars(a)), dict(vars(b)), f"vars({path})")
        for cls in type(a).__mro__:
            names = vars(cls).get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if name not in ("__dict__", "__weakref__"):
                    missing = object()
                    left, right = getattr(a, name, missing), getattr(b, name, missing)
                    assert (left is missing) == (right is missing), (
                        f"{path}.{name} is set on one side"
                    )
                    if left is not missing:
                        self.compare(left, right, f"{path}.{name}")

    def tensors(self, a: torch.Tensor, b: torch.Tensor, path: str) -> None:
        assert (a.dtype, a.shape, a.stride(), a.requires_grad) == (
            b.dtype,
            b.shape,
            b.stride(),
            b.requires_grad,
        ), path
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)), f"{path}: values differ"

    def arrays(self, a: Any, b: Any, path: str) -> None:
        assert (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides), path
        assert np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"), f"{path}: values differ"

    def held(self, a: Any, b: Any, path: str) -> None:
        assert a is b, f"{path}: {a!r} is not {b!r}"

    def sequences(self, a: Any, b: Any, path: str) -> None:
        assert len(a) == len(b), f"{path}: {len(a)} and {len(b)} items"
        for i, (left, right) in enumerate(zip(a, b)):
            self.compare(left, right, f"{path}[{i}]")

    def mappings(self, a: Any, b: Any, path: str) -> None:
        # the former has an order of its own
        kind: Any = OrderedDict if isinstance(a, OrderedDict) else dict
        self.sequences(list(kind.keys(a)), list(kind.keys(b)), f"keys of {path}")
        for i, (left, right) in enumerate(zip(kind.values(a), kind.values(b))):
            self.compare(left, right, f"{path}, value {i}")

    def sets(self, a: Any, b: Any, path: str) -> None:
        assert len(a) == len(b), f"{path}: {a!r} is not {b!r}"
        if not any(
            isinstance(item, torch.Tensor) or type(item).__hash__ is object.__hash__ for item in a
        ):
            assert a == b, f"{path}: {a!r} is not {b!r}"

    def exceptions(self, a: BaseException, b: BaseException, path: str) -> None:
        self.compare(a.args, b.args, f"{path}.args")
        assert str(a) == str(b), f"{path}: {a!r} is not {b!r}"
        for name in ("__cause__", "__context__", "__suppress_context__"):
            self.compare(getattr(a, name), getattr(b, name), f"{path}.{name}")

    def iterators(self, a: Any, b: Any, path: str) -> None:
        """They are used up by this: the next hundred elements are compared."""
        for i in range(100):
            left, right = next(a, _END), next(b, _END)
            self.compare(left, right, f"element {i} of {path}")
            if left is _END:
                return

    def functions(self, a: types.FunctionType, b: types.FunctionType, path: str) -> None:
        for name in (
            "__name__",
            "__qualname__",
            "__doc__",
            "__module__",
            "__annotations__",
            "__dict__",
        ):
            self.compare(getattr(a, name), getattr(b, name), f"{path}.{name}")
        assert a.__code__ is b.__code__, f"{path}: {a} is not {b}"
        self.compare(a.__defaults__, b.__defaults__, f"{path}.__defaults__")
        self.compare(a.__kwdefaults__, b.__kwdefaults__, f"{path}.__kwdefaults__")
        self.compare(a.__closure__, b.__closure__, f"{path}.__closure__")

    def cells(self, a: Any, b: Any, path: str) -> None:
        contents = []
        for cell in (a, b):
            try:
                contents.append((cell.cell_contents,))
            except ValueError:
                contents.append(())
        self.compare(*contents, path)

    def fields(*names: str) -> Any:
        def compare(self: _Comparison, a: Any, b: Any, path: str) -> None:
            for name in names:
                self.compare(getattr(a, name), getattr(b, name), f"{path}.{name}")

        return compare

    methods, partials, descriptors = (
        fields("__func__", "__self__"),
        fields("func", "args", "keywords"),
        fields("fget"),
    )
    bound = fields("__name__", "__self__")


_END = type("End", (), {})
_COMPARISONS: list[tuple[Any, Any]] = [
    (torch.Tensor, _Comparison.tensors),
    (enum.Enum, _Comparison.held),
    ((np.ndarray, np.generic), _Comparison.arrays),
    ((list, tuple, deque), _Comparison.sequences),
    (dict, _Comparison.mappings),
    ((set, frozenset), _Comparison.sets),
    (BaseException, _Comparison.exceptions),
    (types.FunctionType, _Comparison.functions),
    (types.MethodType, _Comparison.methods),
    (types.CellType, _Comparison.cells),
    (type(sys.call_tracing), _Comparison.bound),
    (__import__("functools").partial, _Comparison.partials),
    (property, _Comparison.descriptors),
    (
        (type({}.keys()), type({}.values()), type({}.items())),
        lambda s, a, b, path: s.sequences(list(a), list(b), path),
    ),
    (types.MappingProxyType, lambda s, a, b, path: s.mappings(dict(a), dict(b), path)),
    (Iterator, _Comparison.iterators),
    ((str, int, float), lambda s, a, b, path: s.compare(*(_plain(v) for v in (a, b)), path)),
]


def _plain(value: Any) -> Any:
    """The built-in value of an instance of a subclass of str, int or float."""
    return next(base(show(value)) for base, show in _SHOWN.items() if isinstance(value, base))


_SHOWN: dict[type, Any] = {str: str.__str__, int: int.__repr__, float: float.__repr__}
