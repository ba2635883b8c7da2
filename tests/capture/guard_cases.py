"""Every kind of fact: how it is stated, and changes that must be noticed. The Python oracle and the
native walk run the same table."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ingot.capture.guard_set import GuardSet
from ingot.capture.guards import MISSING, Kind, Quantity
from ingot.capture.sources import (
    ArgSource,
    AttrSource,
    CellSource,
    ClassAttrSource,
    DerivedSource,
    DictKeysSource,
    FunctionFieldSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    Source,
    TypeSource,
)
from ingot.loops.expr import as_expr, size_symbol

X, Y = ArgSource(0, "x"), ArgSource(1, "y")
Slots = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """Facts of `make()`'s slots; `change` gives the slots of a later call, or alters what they
    hold, and `text` is in the report."""

    name: str
    make: Callable[[], Slots]
    state: Callable[[GuardSet, Slots], None]
    change: Callable[[Slots], Slots | None]
    text: str = ""
    holds: bool = False  # whether the facts still hold after the change


class Thing:
    """A class of the user's."""

    __slots__ = ("__dict__", "slot")
    kind = "thing"

    def __init__(self, **attributes: Any) -> None:
        self.slot = None
        self.__dict__.update(attributes)


class Sub(Thing):
    pass


def fact(kind: Kind, data: Any = None, source: Source = X) -> Callable[[GuardSet, Slots], None]:
    """States one fact; `data` may be a function of the slots."""

    def state(guards: GuardSet, slots: Slots) -> None:
        guards.add(source, kind, data(slots) if isinstance(data, Given) else data, "model.py:12")

    return state


class Given:
    """Data that is computed from the slots."""

    def __init__(self, compute: Callable[[Slots], Any]) -> None:
        self.compute = compute

    def __call__(self, slots: Slots) -> Any:
        return self.compute(slots)


FIRST = Given(lambda slots: slots[0])


def one(value: Any) -> Callable[..., Slots]:
    """Slots with a new value of this kind: `value` is a value, or a function that makes one."""
    return lambda *_: (value() if callable(value) and not isinstance(value, type) else value,)


def state_tensor(guards: GuardSet, slots: Slots) -> None:
    guards.add_tensor(X, slots[0], "model.py:12")


def tensor_case(
    name: str,
    make: Callable[[], Any],
    other: Callable[[], Any],
    text: str = "",
    holds: bool = False,
) -> Case:
    return Case(f"tensor {name}", one(make), state_tensor, one(other), text, holds)


def state_symbolic(guards: GuardSet, slots: Slots) -> None:
    s0, s1 = size_symbol("s0", 2), size_symbol("s1", 2, 100)
    guards.add_tensor(X, slots[0], "model.py:12", sizes=(s0, s1, 3), strides=(3 * s1, 3, 1))
    guards.add_shape(s0 * 2, "<=", s1 * s1 + 4)


def state_int_symbol(guards: GuardSet, slots: Slots) -> None:
    n = size_symbol("n", 0)
    guards.bind(n, Quantity(X, "value"))
    guards.add_shape(n % 4, "==", as_expr(0), "model.py:12")


def state_around(guards: GuardSet, slots: Slots) -> None:
    guards.add_global_state("model.py:12")


def mutate(action: Callable[[Any], Any]) -> Callable[[Slots], None]:
    """Alters what the first slot holds."""

    def change(slots: Slots) -> None:
        action(slots[0])

    return change


def closure(value: Any) -> Callable[[], Any]:
    def inner() -> Any:
        return value

    return inner


def set_cell(function: Any, value: Any) -> None:
    function.__closure__[0].cell_contents = value


def cell_of(function: Any) -> Any:
    return function.__closure__[0]


def empty_cell(function: Any) -> None:
    del function.__closure__[0].cell_contents


def _derived(thing: Thing) -> int:
    if thing.error is not None:
        raise thing.error
    return 1


def module() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())


def weight_source() -> Source:
    first = ItemSource(AttrSource(X, "_modules"), "0")
    return ItemSource(AttrSource(first, "_parameters"), "weight")


def state_weight(guards: GuardSet, slots: Slots) -> None:
    guards.add_tensor(weight_source(), slots[0][0].weight, "model.py:12")


def new_class() -> type:
    return type("Model", (Thing,), {"forward": closure(1)})


def fresh_dict() -> dict[Any, Any]:
    return {"a": 1, 2: 3}


def base() -> torch.Tensor:
    return torch.zeros(16)


NAMESPACE: dict[str, Any] = {"limit": 3}
NAN = float("nan")

CASES = [
    Case("type", one(3), fact(Kind.TYPE, int), one(True), "type(x) was int, is bool (model.py:12)"),
    Case("type of subclass", one(Thing), fact(Kind.TYPE, type), one(3), "type(x) was type, is int"),
    Case(
        "identity",
        lambda: (Thing,),
        fact(Kind.IDENTITY, FIRST),
        lambda _: (Sub,),
        "x was Thing, is Sub",
    ),
    Case("int", one(3), fact(Kind.EQUALS, FIRST), one(4), "x was 3, is 4 (model.py:12)"),
    Case("int and bool", one(1), fact(Kind.EQUALS, FIRST), one(True), "x was 1, is True"),
    Case("int and float", one(1), fact(Kind.EQUALS, FIRST), one(1.0)),
    Case("large int", lambda: (10**30,), fact(Kind.EQUALS, FIRST), lambda _: (10**30 + 1,)),
    Case(
        "equal int",
        lambda: (10**30,),
        fact(Kind.EQUALS, FIRST),
        lambda _: (10**29 * 10,),
        holds=True,
    ),
    Case("zero's sign", one(0.0), fact(Kind.EQUALS, FIRST), one(-0.0), "x was 0.0, is -0.0"),
    Case("not a number", one(NAN), fact(Kind.EQUALS, FIRST), lambda _: (float("nan"),), holds=True),
    Case("complex", one(1j), fact(Kind.EQUALS, FIRST), one(complex(-0.0, 1.0))),
    Case("string", one("mean"), fact(Kind.EQUALS, FIRST), one("sum"), "x was 'mean', is 'sum'"),
    Case(
        "equal string",
        one("mean"),
        fact(Kind.EQUALS, FIRST),
        lambda _: ("".join(["me", "an"]),),
        holds=True,
    ),
    Case("bytes", one(b"a"), fact(Kind.EQUALS, FIRST), one(b"b")),
    Case("dtype", one(torch.float32), fact(Kind.EQUALS, FIRST), one(torch.float64)),
    Case("device", one(torch.device("cpu")), fact(Kind.EQUALS, FIRST), one(torch.device("meta"))),
    Case(
        "equal device",
        one(torch.device("cpu")),
        fact(Kind.EQUALS, FIRST),
        one(torch.device("cpu")),
        holds=True,
    ),
    Case("tuple", one((1, (2, "a"))), fact(Kind.EQUALS, FIRST), one((1, (2, "b")))),
    Case("torch.Size", one(torch.Size((2, 3))), fact(Kind.EQUALS, FIRST), one((2, 3)), "is (2, 3)"),
    Case("none", one(None), fact(Kind.IS_NONE, True), one(0), "x is None was True, is False"),
    Case("not none", one(0), fact(Kind.IS_NONE, False), one(None)),
    Case("truth", one(3), fact(Kind.TRUTH, True), one(0), "bool(x) was True, is False"),
    Case("same truth", one(3), fact(Kind.TRUTH, True), one("text"), holds=True),
    Case("truth of a list", lambda: ([1],), fact(Kind.TRUTH, True), mutate(list.clear)),
    Case("truth of an object", one(3), fact(Kind.TRUTH, True), lambda _: (Thing(),)),
    Case(
        "length",
        lambda: ([1, 2],),
        fact(Kind.LENGTH, 2),
        mutate(lambda x: x.append(3)),
        "len(x) was 2, is 3",
    ),
    Case("length of a range", lambda: (range(3),), fact(Kind.LENGTH, 3), lambda _: (range(4),)),
    Case(
        "keys",
        lambda: (fresh_dict(),),
        fact(Kind.DICT_KEYS, ("a", 2)),
        mutate(lambda x: x.update(b=1)),
        "tuple(x) was",
    ),
    Case(
        "order of keys",
        lambda: (fresh_dict(),),
        fact(Kind.DICT_KEYS, ("a", 2)),
        lambda _: ({2: 3, "a": 1},),
    ),
    Case(
        "order of an OrderedDict",
        lambda: (OrderedDict(a=1, b=2),),
        fact(Kind.DICT_KEYS, ("a", "b")),
        mutate(lambda x: x.move_to_end("a")),
    ),
    Case(
        "OrderedDict",
        lambda: (OrderedDict(a=1, b=2),),
        fact(Kind.DICT_KEYS, ("a", "b")),
        mutate(lambda x: x.update(a=3)),
        holds=True,
    ),
    Case("key's type", lambda: ({1: 2},), fact(Kind.DICT_KEYS, (1,)), lambda _: ({True: 2},)),
    Case(
        "absent key",
        lambda: ({},),
        fact(Kind.ABSENT_KEY, "k"),
        mutate(lambda x: x.update(k=1)),
        "'k' in x was False, is True",
    ),
    Case(
        "member of a set",
        lambda: ({1, 2},),
        fact(Kind.MEMBER, (2, True)),
        mutate(lambda x: x.remove(2)),
        "2 in x was True, is False",
    ),
    Case(
        "other members of a set",
        lambda: ({1, 2},),
        fact(Kind.MEMBER, (3, False)),
        mutate(lambda x: x.remove(2)),
        holds=True,
    ),
    Case(
        "empty dict",
        lambda: ({},),
        fact(Kind.DICT_EMPTY),
        mutate(lambda x: x.update(k=1)),
        "len(x) was 0, is 1",
    ),
    Case(
        "keys as a value",
        lambda: (fresh_dict(),),
        fact(Kind.EQUALS, ("a", 2), DictKeysSource(X)),
        mutate(dict.clear),
    ),
    # paths
    Case(
        "attribute",
        lambda: (Thing(a=1),),
        fact(Kind.EQUALS, 1, AttrSource(X, "a")),
        mutate(lambda x: setattr(x, "a", 2)),
        "x.a was 1, is 2",
    ),
    Case(
        "lost attribute",
        lambda: (Thing(a=1),),
        fact(Kind.EQUALS, 1, AttrSource(X, "a")),
        mutate(lambda x: delattr(x, "a")),
        "x.a cannot be read",
    ),
    Case(
        "instance dict",
        lambda: (Thing(),),
        fact(Kind.ABSENT_KEY, "a", InstanceDictSource(X)),
        mutate(lambda x: setattr(x, "a", 2)),
    ),
    Case(
        "slot",
        lambda: (Thing(),),
        fact(Kind.IS_NONE, True, AttrSource(X, "slot", "slot")),
        mutate(lambda x: setattr(x, "slot", 1)),
    ),
    Case(
        "partial",
        lambda: (functools.partial(max, 1),),
        fact(Kind.IDENTITY, max, AttrSource(X, "func", "slot")),
        lambda _: (functools.partial(min, 1),),
    ),
    Case(
        "list item",
        lambda: ([1, 2],),
        fact(Kind.EQUALS, 2, ItemSource(X, 1)),
        mutate(lambda x: x.__setitem__(1, 5)),
        "x[1] was 2, is 5",
    ),
    Case(
        "negative index",
        lambda: ([1, 2],),
        fact(Kind.EQUALS, 2, ItemSource(X, -1)),
        mutate(lambda x: x.append(5)),
    ),
    Case(
        "lost item",
        lambda: ([1, 2],),
        fact(Kind.EQUALS, 2, ItemSource(X, 1)),
        mutate(list.pop),
        "x[1] cannot be read",
    ),
    Case("tuple item", lambda: ((1, 2),), fact(Kind.EQUALS, 2, ItemSource(X, 1)), one((1, 3))),
    Case(
        "dict item",
        lambda: (fresh_dict(),),
        fact(Kind.EQUALS, 3, ItemSource(X, 2)),
        mutate(lambda x: x.update({2: 4})),
        "x[2] was 3, is 4",
    ),
    Case("no container", lambda: ([1],), fact(Kind.EQUALS, 1, ItemSource(X, 0)), one(3)),
    Case(
        "cell",
        lambda: (closure(1),),
        fact(Kind.EQUALS, 1, CellSource(X, 0, "value")),
        mutate(lambda x: set_cell(x, 2)),
        "value was 1, is 2",
    ),
    Case(
        "empty cell",
        lambda: (closure(1),),
        fact(Kind.EQUALS, 1, CellSource(X, 0, "value")),
        mutate(empty_cell),
        "value cannot be read",
    ),
    Case(
        "empty cell by itself",
        lambda: (cell_of(closure(1)),),
        fact(Kind.EQUALS, 1, AttrSource(X, "cell_contents", "slot")),
        mutate(lambda cell: delattr(cell, "cell_contents")),
        "x.cell_contents cannot be read",
    ),
    *(
        Case(
            f"a derived place that raises {error.__name__}",
            lambda: (Thing(error=None),),
            fact(Kind.EQUALS, 1, DerivedSource(X, _derived)),
            mutate(lambda x, error=error: setattr(x, "error", error)),
            "derived(x) cannot be read",
        )
        for error in (
            ValueError,
            RuntimeError,
            ZeroDivisionError,
            ReferenceError,
            OSError,
            MemoryError,
            RecursionError,
        )
    ),
    Case(
        "code",
        lambda: (closure(1),),
        fact(Kind.IDENTITY, closure(0).__code__, FunctionFieldSource(X, "__code__")),
        lambda _: (module,),
    ),
    Case(
        "defaults",
        lambda: (lambda a=1: a,),
        fact(Kind.EQUALS, (1,), FunctionFieldSource(X, "__defaults__")),
        mutate(lambda x: setattr(x, "__defaults__", (2,))),
    ),
    Case(
        "global",
        one(0),
        fact(Kind.EQUALS, 3, GlobalSource(NAMESPACE, "limit")),
        lambda _: NAMESPACE.update(limit=4),
        "limit was 3, is 4",
    ),
    Case(
        "type of",
        lambda: (Thing(),),
        fact(Kind.IDENTITY, Thing, TypeSource(X)),
        lambda _: (Sub(),),
        "type(x) was Thing, is Sub",
    ),
    Case(
        "class attribute as a value",
        lambda: (new_class(),),
        fact(Kind.EQUALS, "thing", ClassAttrSource(X, "kind")),
        mutate(lambda x: setattr(x, "kind", "other")),
    ),
    # classes
    Case(
        "method",
        lambda: (new_class(),),
        fact(Kind.CLASS_ATTRIBUTE, Given(lambda s: ("forward", s[0].__dict__["forward"]))),
        mutate(lambda x: setattr(x, "forward", closure(2))),
        "x.forward was",
    ),
    Case(
        "method absent",
        lambda: (new_class(),),
        fact(Kind.CLASS_ATTRIBUTE, ("extra", MISSING)),
        mutate(lambda x: setattr(x, "extra", 1)),
        "x.extra was nothing, is 1",
    ),
    Case(
        "method shadowed",
        lambda: (new_class(),),
        fact(Kind.CLASS_ATTRIBUTE, ("kind", "thing")),
        mutate(lambda x: setattr(x, "kind", "mine")),
    ),
    Case(
        "unrelated method",
        lambda: (new_class(),),
        fact(Kind.CLASS_ATTRIBUTE, ("kind", "thing")),
        mutate(lambda x: setattr(x, "other", 1)),
        holds=True,
    ),
    Case("no class", lambda: (new_class(),), fact(Kind.CLASS_ATTRIBUTE, ("kind", "thing")), one(3)),
    # tensors
    tensor_case("unchanged", lambda: torch.ones(2, 3), lambda: torch.zeros(2, 3), holds=True),
    tensor_case(
        "size",
        lambda: torch.zeros(4),
        lambda: torch.zeros(8),
        "x.shape[0] was 4, is 8 (model.py:12)",
    ),
    tensor_case("rank", lambda: torch.zeros(4), lambda: torch.zeros(4, 1), "x.ndim was 1, is 2"),
    tensor_case(
        "stride",
        lambda: torch.zeros(4, 4),
        lambda: torch.zeros(4, 4).t(),
        "x.stride(0) was 4, is 1",
    ),
    tensor_case(
        "seven dimensions",
        lambda: torch.zeros(1, 2, 1, 2, 1, 2, 1),
        lambda: torch.zeros(1, 2, 1, 2, 1, 2, 2),
        "x.shape[6]",
    ),
    tensor_case(
        "dtype",
        lambda: torch.zeros(4),
        lambda: torch.zeros(4, dtype=torch.int32),
        "x.dtype was torch.float32",
    ),
    tensor_case(
        "device",
        lambda: torch.zeros(4),
        lambda: torch.zeros(4, device="meta"),
        "x.device was cpu, is meta",
    ),
    tensor_case(
        "requires_grad",
        lambda: torch.zeros(4),
        lambda: torch.zeros(4, requires_grad=True),
        "x.requires_grad was False",
    ),
    tensor_case(
        "leaf",
        lambda: torch.zeros(4, requires_grad=True),
        lambda: torch.zeros(4, requires_grad=True) * 2,
        "x.is_leaf was True",
    ),
    tensor_case(
        "conjugate",
        lambda: torch.zeros(4, dtype=torch.complex64),
        lambda: torch.zeros(4, dtype=torch.complex64).conj(),
        "x.dispatch_keys",
    ),
    tensor_case("layout", lambda: torch.zeros(4, 4), lambda: torch.zeros(4, 4).to_sparse()),
    tensor_case(
        "inference",
        lambda: torch.zeros(4),
        lambda: torch.inference_mode()(torch.zeros)(4),
        "x.dispatch_keys",
    ),
    tensor_case(
        "parameter",
        lambda: torch.zeros(4),
        lambda: torch.nn.Parameter(torch.zeros(4), requires_grad=False),
        "type(x) was Tensor, is Parameter",
    ),
    tensor_case("no tensor", lambda: torch.zeros(4), lambda: 4, "type(x) was Tensor, is int"),
    Case(
        "tensor resized",
        lambda: (torch.zeros(4),),
        state_tensor,
        mutate(lambda x: x.resize_(2, 2)),
        "x.ndim was 1, is 2",
    ),
    Case(
        "tensor data replaced",
        lambda: (torch.zeros(4),),
        state_tensor,
        mutate(lambda x: setattr(x, "data", torch.zeros(5))),
        "x.shape[0] was 4, is 5",
    ),
    Case(
        "offset",
        lambda: (base()[2:6],),
        fact(Kind.TENSOR_OFFSET, 2),
        lambda _: (base()[3:7],),
        "x.storage_offset() was 2, is 3",
    ),
    Case(
        "memory",
        lambda: (base()[2:6],),
        fact(Kind.TENSOR_MEMORY, base().nbytes),
        lambda _: (torch.cat([base(), base()])[2:6],),
        f"x.untyped_storage().nbytes() was {base().nbytes}, is {2 * base().nbytes}",
    ),
    Case(
        "alignment",
        lambda: (base()[4:8],),
        fact(Kind.TENSOR_ALIGNED, 16),
        lambda _: (base()[5:9],),
        "x.data_ptr() % 16 was 0, is 4",
    ),
    Case(
        "symbolic sizes",
        lambda: (torch.zeros(4, 8, 3),),
        state_symbolic,
        lambda _: (torch.zeros(7, 5, 3),),
        holds=True,
    ),
    Case(
        "symbol's bound",
        lambda: (torch.zeros(4, 8, 3),),
        state_symbolic,
        lambda _: (torch.zeros(1, 8, 3),),
        "s0 >= 2 no longer holds: x.shape[0] is 1",
    ),
    Case(
        "symbol's upper bound",
        lambda: (torch.zeros(4, 8, 3),),
        state_symbolic,
        lambda _: (torch.zeros(4, 101, 3),),
        "s1 <= 100",
    ),
    Case(
        "fixed size beside symbols",
        lambda: (torch.zeros(4, 8, 3),),
        state_symbolic,
        lambda _: (torch.zeros(4, 8, 4),),
        "x.shape[2]",
    ),
    Case(
        "symbolic stride",
        lambda: (torch.zeros(4, 8, 3),),
        state_symbolic,
        lambda _: (torch.zeros(4, 16, 3)[:, ::2],),
        "x.stride(1)",
    ),
    Case(
        "symbolic outer stride",
        lambda: (torch.zeros(4, 8, 3),),
        state_symbolic,
        lambda _: (torch.zeros(4, 9, 3)[:, :8],),
        "x.stride(0)",
    ),
    Case(
        "relation of sizes",
        lambda: (torch.zeros(4, 8, 3),),
        state_symbolic,
        lambda _: (torch.zeros(9, 3, 3),),
        "no longer holds",
    ),
    Case(
        "symbolic int",
        one(8),
        state_int_symbol,
        one(9),
        "n%4 == 0 no longer holds: x is 9 (model.py:12)",
    ),
    Case("another int", one(8), state_int_symbol, one(12), holds=True),
    Case("int became float", one(8), state_int_symbol, one(8.0)),
    Case("huge int", one(8), state_int_symbol, one(-(2**70))),
]


class FunctionMode(torch.overrides.TorchFunctionMode):
    """Does nothing, but is there."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


class Restore:
    """A context that calls `set` with the other value, and back."""

    def __init__(self, set: Callable[[Any], Any], other: Any, usual: Any) -> None:
        self.set, self.other, self.usual = set, other, usual

    def __enter__(self) -> None:
        self.set(self.other)

    def __exit__(self, *_: object) -> None:
        self.set(self.usual)


# Contexts under which the state around the call differs, and what the report says.
STATES: list[tuple[str, Callable[[], Any], str]] = [
    ("no_grad", torch.no_grad, "grad_mode was True, is False"),
    ("inference_mode", torch.inference_mode, "_mode was"),
    ("autocast", lambda: torch.autocast("cpu", dtype=torch.bfloat16), "autocast was"),
    (
        "autocast cache",
        lambda: Restore(torch.set_autocast_cache_enabled, False, True),
        "autocast_cache was",
    ),
    (
        "default dtype",
        lambda: Restore(torch.set_default_dtype, torch.float64, torch.float32),
        "default_dtype was",
    ),
    (
        "default device",
        lambda: Restore(torch.set_default_device, "meta", None),
        "function_modes was",
    ),
    (
        "attention",
        lambda: Restore(torch.backends.cuda.enable_flash_sdp, False, True),
        "attention was",
    ),
    (
        "attention order",
        lambda: Restore(torch._C._set_sdp_priority_order, [2, 1, 0, 3, 4], [1, 2, 0, 3, 4]),
        "attention was",
    ),
    (
        "deterministic",
        lambda: Restore(torch.use_deterministic_algorithms, True, False),
        "deterministic was",
    ),
    (
        "matmul precision",
        lambda: Restore(torch.set_float32_matmul_precision, "high", "highest"),
        "matmul_precision was",
    ),
    ("function mode", FunctionMode, "function_modes was"),
    ("function overrides", torch._C.DisableTorchFunction, "function_overrides was"),
    ("dispatch mode", torch.utils._python_dispatch.TorchDispatchMode, "dispatch_modes was 0, is 1"),
]
