"""Eager is the oracle: how a test says that Ingot does what eager does.

Two calls go in, or what they gave; out comes an AssertionError that says what differs, and where.
Structure, types, dtypes, sizes, strides, devices, `requires_grad`, aliasing, writes to arguments
and exceptions are always compared, unless an option leaves one out. Only about numbers a test has
a choice, and states it: `Exact`, within rounding (`Close`, `Norm`), or `AgainstFloat64`.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import io
import sys
import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from ingot.capture import Captured, Request, argument_slots, capture_call
from ingot.errors import GraphBreakError
from ingot.options import Options

# -- numbers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exact:
    """The same bits. One NaN is like another, and, unless `zeros`, so are the two zeros."""

    zeros: bool = False
    needs_float64: ClassVar[bool] = False

    def difference(self, actual: Tensor, expected: Tensor) -> str:
        """What is wrong with the numbers of `actual`; empty if nothing is."""
        actual, expected = widened_float8(actual.detach()), widened_float8(expected.detach())
        both_nan = (actual != actual) & (expected != expected)
        if not ((actual == expected) | both_nan).all():
            return f"{actual}, in eager {expected}"
        is_unlike = self.zeros and not expected.is_complex()
        if is_unlike and ((actual.signbit() != expected.signbit()) & ~both_nan).any():
            return f"zeros of another sign: {actual}, in eager {expected}"
        return ""


@dataclass(frozen=True)
class Close:
    """Each element within `atol + rtol * |expected|`; without them torch.testing's tolerances for
    the dtype. `half` is both of a float of 16 bits. Integers are equal."""

    rtol: float | None = None
    atol: float | None = None
    half: float | None = None
    needs_float64: ClassVar[bool] = False

    def difference(self, actual: Tensor, expected: Tensor) -> str:
        """What is wrong with the numbers of `actual`; empty if nothing is."""
        if not (expected.is_floating_point() or expected.is_complex()):
            return Exact().difference(actual, expected)
        rtol, atol = self.rtol, self.atol
        if self.half is not None and expected.dtype.itemsize == 2:
            rtol = atol = self.half
        try:
            torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return str(error)
        return ""


@dataclass(frozen=True)
class Norm:
    """An error of at most `tolerance`, in the L2 norm of all elements and relative to that of
    eager's. NaN and infinities are at the same places, and integers are equal."""

    tolerance: float
    needs_float64: ClassVar[bool] = False

    def difference(self, actual: Tensor, expected: Tensor) -> str:
        """What is wrong with the numbers of `actual`; empty if nothing is."""
        if not expected.is_floating_point():
            return Exact().difference(actual, expected)
        if not same_places(torch.isnan, actual, expected):
            return "NaN at other places"
        for infinite in (torch.isposinf, torch.isneginf):
            if not same_places(infinite, actual, expected):
                return "infinite at other places"
        scale = expected.double().norm().item() if expected.isfinite().all() else 1.0
        wrong = (actual.double() - expected.double()).nan_to_num(0, 0, 0).norm().item()
        error = wrong / max(scale, 1e-30)
        return "" if error <= self.tolerance else f"an error of {error}"


@dataclass(frozen=True)
class AgainstFloat64:
    """No further from the result in float64 than eager is.

    The relative L2 error of each side is measured. Ingot's is at most `ratio` times that of eager,
    or so many `epsilons` of the dtype. NaN is at the same places, and integers are equal. With
    `together`, the error is that of all tensors of a call taken as one.
    """

    ratio: float = 1.1
    epsilons: float = 4
    together: bool = False
    needs_float64: ClassVar[bool] = True

    def difference_of(
        self, actual: Sequence[Tensor], expected: Sequence[Tensor], exact: Sequence[Tensor]
    ) -> str:
        """What is wrong with the numbers of `actual`; empty if nothing is."""
        for a, e in zip(actual, expected, strict=True):
            if not e.is_floating_point():
                if difference := Exact().difference(a, e):
                    return difference
            elif not same_places(torch.isnan, a, e):
                return f"NaN at other places: {a}, in eager {e}"
        if self.together:
            return self._errors(actual, expected, exact)
        for a, e, truth in zip(actual, expected, exact, strict=True):
            if difference := self._errors([a], [e], [truth]):
                return difference
        return ""

    def _errors(
        self, actual: Sequence[Tensor], expected: Sequence[Tensor], exact: Sequence[Tensor]
    ) -> str:
        epsilons = [torch.finfo(e.dtype).eps for e in expected if e.is_floating_point()]
        own, eagers = relative_error(actual, exact), relative_error(expected, exact)
        allowed = max(self.ratio * eagers, self.epsilons * max(epsilons, default=0.0))
        return "" if own <= allowed else f"an error of {own}, eager's is {eagers}"


Numbers = Exact | Close | Norm | AgainstFloat64
EXACT = Exact()
CLOSE = Close()
AGAINST_FLOAT64 = AgainstFloat64()


def widened_float8(t: Tensor) -> Tensor:
    """float32 in place of a float of 8 bits, which cannot be compared."""
    return t.float() if t.is_floating_point() and t.dtype.itemsize == 1 else t


def same_places(what: Callable[[Tensor], Tensor], a: Tensor, b: Tensor) -> bool:
    return torch.equal(what(a), what(b))


def relative_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The L2 error of all floating tensors together, relative to the norm of what is exact, or
    absolute where that is 0. What is not finite counts nothing."""
    total = wrong = 0.0
    for a, b in zip(found, exact):
        if a.is_floating_point():
            a, b = a.detach(), b.detach()
            total += float(b.double().nan_to_num(0, 0, 0).square().sum())
            wrong += float((a.double() - b.double()).nan_to_num(0, 0, 0).square().sum())
    return (wrong / total) ** 0.5 if total else wrong**0.5


def doubled(tree: Any) -> Any:
    """Floating tensors as leaves of float64, with their `requires_grad`."""

    def double(t: Any) -> Any:
        if isinstance(t, Tensor) and t.is_floating_point():
            return t.detach().double().requires_grad_(t.requires_grad)
        return t

    return tree_map(double, tree)


# -- tensors ---------------------------------------------------------------------------------------

Strides = Literal["all", "of elements", "of sizes above 1", "that matter", "none"]
"""Which strides are compared. "of elements" are all of a tensor that has elements; "that matter",
those of them of sizes above 1."""


def assert_tensors(
    actual: Tensor,
    expected: Tensor,
    numbers: Exact | Close | Norm = EXACT,
    *,
    strides: Strides = "all",
    path: str = "result",
) -> None:
    """Two tensors are alike, in all but where they lie."""
    assert_like(actual, expected, strides=strides, path=path)
    difference = numbers.difference(actual, expected)
    assert not difference, f"{path}: {difference}"


def assert_like(
    actual: Tensor, expected: Tensor, *, strides: Strides = "all", path: str = "result"
) -> None:
    """Two tensors are alike, whatever their numbers are."""
    assert type(actual) is type(expected), f"{path}: {type(actual)}, in eager {type(expected)}"
    for name in ("dtype", "shape", "device", "layout", "requires_grad"):
        a, e = getattr(actual, name), getattr(expected, name)
        assert a == e, f"{path}.{name} is {a}, in eager {e}"
    if strides == "none" or expected.layout is not torch.strided:
        return
    if strides in ("of elements", "that matter") and not expected.numel():
        return
    only_large = strides in ("of sizes above 1", "that matter")
    for size, a, e in zip(expected.shape, actual.stride(), expected.stride()):
        is_free = size <= 1 and only_large
        assert is_free or a == e, f"{path}: strides {actual.stride()}, eager {expected.stride()}"


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def sharing(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """For each tensor: the first one of the same storage, and the distance of their first elements
    in bytes. One without elements shares nothing."""
    first: dict[int, tuple[int, Tensor]] = {}
    pattern = []
    for i, t in enumerate(tensors):
        if not t.numel():
            pattern.append((i, 0))
            continue
        j, other = first.setdefault(t.untyped_storage().data_ptr(), (i, t))
        pattern.append((j, t.data_ptr() - other.data_ptr()))
    return pattern


def copies(args: Sequence[Any]) -> list[Any]:
    """The arguments, or trees of them, in memory of their own: with their strides, offsets and
    `requires_grad`. Tensors that share a storage share it again."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copied(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        own = t.untyped_storage()
        storage = storages.setdefault(own.data_ptr(), own.clone())
        whole = torch.empty(0, dtype=t.dtype, device=t.device)
        alike = whole.set_(storage, t.storage_offset(), t.shape, t.stride())
        return alike.requires_grad_(t.requires_grad)

    return tree_map(copied, list(args))


# -- calls -----------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a call does: a result or an exception, the output, the warnings, and its arguments
    afterwards."""

    result: Any
    raised: BaseException | None
    output: str
    warned: list[tuple[type, str]]
    arguments: tuple[Any, ...]


def outcome(function: Callable[..., Any], *arguments: Any) -> Outcome:
    """What a call does. Its output goes on to where it went; that `fullgraph=True` refuses a graph
    break is no outcome."""
    output, result, raised = io.StringIO(), None, None
    with (
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(output),
    ):
        warnings.simplefilter("always")
        try:
            result = function(*arguments)
        except GraphBreakError:
            raise
        except Exception as error:
            raised = error
    print(end=output.getvalue())
    warned = [(w.category, str(w.message)) for w in caught]
    return Outcome(result, raised, output.getvalue(), warned, arguments)


def assert_call(
    run: Callable[..., Any],
    eager: Callable[..., Any],
    *args: Any,
    numbers: Numbers = EXACT,
    strides: Strides = "all",
    structure: bool = True,
    gradients: bool = False,
) -> None:
    """`run(*args)` does what `eager(*args)` does to copies of the arguments: it gives the same
    results, in the same `structure` or as a flat list, writes the same to its arguments, and its
    results alias them and each other as eager's do. With `gradients`, those of all results with
    respect to all leaves are compared too. Both draw from the same random numbers."""
    own_args, eager_args = copies(args), copies(args)
    expected = called(eager, eager_args, gradients)
    actual = called(run, own_args, gradients)
    if not structure:
        expected, actual = tree_leaves(expected), tree_leaves(actual)
    assert_results(
        actual,
        expected,
        numbers,
        strides=strides,
        exact=lambda: called(eager, doubled(copies(args)), gradients),
    )


def called(function: Callable[..., Any], args: list[Any], gradients: bool = False) -> Any:
    """The result of a call, what it leaves of its arguments, and the gradients if asked for."""
    torch.manual_seed(0)
    result = function(*args)
    return result, args, gradients_of(result, args) if gradients else ()


def gradients_of(results: Any, inputs: Any) -> tuple[Tensor | None, ...]:
    """Of all results that have any, with respect to all inputs that require them. Each element has
    a tangent of its own, so that none stands for another."""
    heads = [t for t in tensors_in(results) if t.requires_grad]
    leaves = [t for t in tensors_in(inputs) if t.requires_grad]
    tangents = [torch.linspace(-1, 1, t.numel(), dtype=torch.float64).view(t.shape) for t in heads]
    typed = [tangent.to(t.device, t.dtype) for tangent, t in zip(tangents, heads)]
    return torch.autograd.grad(heads, leaves, typed, allow_unused=True)


def assert_results(
    actual: Any,
    expected: Any,
    numbers: Numbers = EXACT,
    *,
    strides: Strides = "all",
    aliasing: bool = True,
    exact: Callable[[], Any] | None = None,
) -> None:
    """Two trees of results are alike, and so, with `aliasing`, is what their tensors share. `exact`
    gives the same tree in float64."""
    assert tree_structure(actual) == tree_structure(expected)
    leaves, expected_leaves = tree_leaves(actual), tree_leaves(expected)
    for k, (a, e) in enumerate(zip(leaves, expected_leaves, strict=True)):
        if isinstance(e, Tensor):
            assert_like(a, e, strides=strides, path=f"tensor {k}")
        else:
            assert type(a) is type(e), f"{k}: {a!r}, in eager {e!r}"
            assert a == e or a != a and e != e, f"{k}: {a!r}, in eager {e!r}"
    own, eagers = tensors_in(actual), tensors_in(expected)
    if aliasing:
        assert sharing(own) == sharing(eagers), f"{sharing(own)}, in eager {sharing(eagers)}"
    if isinstance(numbers, AgainstFloat64):
        assert exact is not None
        difference = numbers.difference_of(own, eagers, tensors_in(exact()))
        assert not difference, difference
        return
    for k, (a, e) in enumerate(zip(own, eagers, strict=True)):
        difference = numbers.difference(a, e)
        assert not difference, f"tensor {k}: {difference}"


def assert_near(actual: Any, expected: Any, rtol: float = 2e-5, atol: float = 1e-5) -> None:
    """Two trees of results are alike, their numbers to rounding; not the strides of tensors without
    elements."""
    assert_results(actual, expected, Close(rtol, atol), strides="of elements")


def alike(actual: Any, expected: Any) -> bool:
    """Whether nested lists are alike: the sizes and numbers (in float64) of tensors, the types of
    exceptions, and all else by ==."""
    if isinstance(actual, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(actual) == len(expected) and all(map(alike, actual, expected))
    if isinstance(actual, Tensor) and isinstance(expected, Tensor):
        return actual.shape == expected.shape and torch.allclose(actual, expected, rtol=1e-10)
    if isinstance(actual, Exception) or isinstance(expected, Exception):
        return type(actual) is type(expected)
    return type(actual) is type(expected) and bool(actual == expected)


def ignore_warnings() -> None:
    """Ignores warnings in a `with warnings.catch_warnings()`, but for what says that Ingot was at
    fault."""
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", "a compiled graph raised", RuntimeWarning)


# -- captured calls --------------------------------------------------------------------------------


def run_captured(
    fn: Callable[..., Any], *args: Any, dynamic: bool | None = None, **kwargs: Any
) -> tuple[Any, Captured]:
    """The result of a captured call, by the graph module as it is, and what was captured."""
    # as the compiler does: some of torch's first uses draw random numbers
    with torch.random.fork_rng(devices=()):
        captured = capture_call(fn, args, kwargs, Request(Options(dynamic=dynamic)))
    return rerun(captured, fn, *args, **kwargs), captured


def rerun(captured: Captured, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of another call that the guards admit."""
    slots = argument_slots(fn, args, kwargs)
    failed = captured.guards.check_python(slots)
    assert failed is None, f"guard fails: {failed.text}"
    outputs = captured.graph_module(*[entry.source.load(slots) for entry in captured.inputs])
    return captured.residual.build(outputs, slots)


def assert_captured(
    fn: Callable[..., Any], *args: Any, dynamic: bool | None = None, **kwargs: Any
) -> Captured:
    """`fn` captured, without a backend, does what it does in eager: its result, and what it leaves
    in its arguments. No gradients."""
    grad_mode = torch.is_grad_enabled()
    eager_fn, eager_args, eager_kwargs = copy.deepcopy((fn, args, kwargs))
    with torch.no_grad():
        state = torch.get_rng_state()
        expected = eager_fn(*eager_args, **eager_kwargs)
        torch.set_rng_state(state)
        result, captured = run_captured(fn, *args, dynamic=dynamic, **kwargs)
    assert_same((result, args, kwargs), (expected, eager_args, eager_kwargs))
    assert torch.is_grad_enabled() == grad_mode
    return captured


# -- objects ---------------------------------------------------------------------------------------


def assert_same(actual: Any, expected: Any, path: str = "result") -> None:
    """Two objects have the same types, values and structure, and the same objects at the same
    places; tensors in them are alike and hold the same bits."""
    _Comparison().compare(actual, expected, path)


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

    def tensors(self, a: Tensor, b: Tensor, path: str) -> None:
        assert_tensors(a, b, path=path)

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
            isinstance(item, Tensor) or type(item).__hash__ is object.__hash__ for item in a
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
    (Tensor, _Comparison.tensors),
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
    (functools.partial, _Comparison.partials),
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
