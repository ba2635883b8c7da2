"""Launches of users' Triton kernels: `kernel[grid](...)` of jit, autotune and heuristics.

In goes a call of a kernel's `run`, which is what a launch amounts to; out comes one operation of
the graph, which names the arguments that the kernel writes. Functions that give a grid, or the
value of a heuristic, are captured.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.foreign import OpaqueValue
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.objects import ObjectValue
from ingot.capture.values.sequences import ListValue, SequenceValue
from ingot.capture.values.tensor import SymIntValue, TensorValue, is_none
from ingot.graph.kernel_writes import Effects, effects_of
from ingot.loops.launches import Choice, Grid, Launch, Made, Operand, launch, number_of
from ingot.sequences import map_leaves
from ingot.wrapped import is_wrapped

if TYPE_CHECKING:
    from ingot.capture.session import Session

_CONSTANTS = frozenset({"dtype", "pointer_type", "block_type", "constexpr"})
"""Classes of Triton's whose instances a kernel is compiled for."""

_PARTS = ("base", "shape", "strides", "block_shape", "padding")
"""The fields of a TensorDescriptor."""

_JIT = frozenset({"JITFunction", "InterpretedFunction"})


@means(
    "triton.runtime.jit.JITFunction.run",
    "triton.runtime.interpreter.InterpretedFunction.run",
    how=How.UNREALIZED,
)
def _run(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    kernel, args, kwargs = _kernel(session, args), args[1:], dict(kwargs)
    if not _is_jit(kernel):
        raise _refused(session, f"a {type(kernel).__name__} is launched")
    return _Call(session, kernel, args, kwargs).launch()


@means(
    "triton.runtime.autotuner.Autotuner.run",
    "triton.runtime.autotuner.Heuristics.run",
    how=How.UNREALIZED,
)
def _run_tuned(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    kernel = _kernel(session, args)
    if type(kernel).__name__ == "Heuristics":
        return session.inline(_outside(session, type(kernel).run), args, kwargs)
    if type(kernel).__name__ != "Autotuner" or not _is_jit(_innermost(kernel)):
        raise _refused(session, f"a {type(kernel).__name__} is launched")
    return _Call(session, kernel, args[1:], dict(kwargs)).launch()


@means("torch.library.wrap_triton", how=How.UNREALIZED)
def _wrap_triton(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    kernel = session.realize(args[0])
    if len(args) != 1 or kwargs or not _is_kernel(getattr(kernel, "object", None)):
        raise _refused(session, "wrap_triton() of what is no kernel")
    return kernel


@means("triton.tools.tensor_descriptor.TensorDescriptor.__post_init__", how=How.UNREALIZED)
def _check_descriptor(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """The checks of a TensorDescriptor, which asks where the tensor lies: they are made when one is
    made for a launch."""
    return NONE


@means("triton.runtime._allocation.set_allocator", how=How.UNREALIZED)
def _set_allocator(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    raise _refused(session, "triton.set_allocator() is called, which later launches rely on")


@means(
    "torch._higher_order_ops.triton_kernel_wrap.TraceableTritonKernelWrapper.__getitem__",
    how=How.UNREALIZED,
)
def _item_of_wrapped(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """`wrapper[grid]` of what wrap_triton() gave outside: that of its kernel."""
    kernel = session.realize(session.realize(args[0]).get_attribute(session, "kernel"))
    return session.call(kernel.get_attribute(session, "__getitem__"), args[1:], kwargs)


def _outside(session: Session, function: Any) -> FunctionValue:
    return FunctionValue.outside(session, function, ConstSource(function))


def _refused(session: Session, sentence: str) -> Exception:
    return session.unsupported("triton-kernel", sentence)


def _kernel(session: Session, args: Arguments) -> Any:
    """The kernel that is launched, which is guarded."""
    value = session.realize(args[0])
    if not isinstance(value, ObjectValue) or value.object is None:
        raise _refused(session, "a kernel is launched that the function makes")
    session.guard(value.source, Kind.IDENTITY, value.object)
    return value.object


def _is_jit(kernel: Any) -> bool:
    return type(kernel).__name__ in _JIT


def _is_kernel(kernel: Any) -> bool:
    return _is_jit(kernel) or type(kernel).__name__ in ("Autotuner", "Heuristics")


def _innermost(kernel: Any) -> Any:
    """The kernel that is tuned."""
    while not _is_jit(kernel) and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


class LaunchedBinary(OpaqueValue):
    """What a launch gives: the binary that Triton chose, of which nothing is known."""

    __slots__ = ()

    def describe(self) -> str:
        return "the binary that a launch gives"

    def python_type(self) -> type:
        from triton.compiler import CompiledKernel

        cls: type = CompiledKernel
        return cls

    def get_attribute(self, session: Session, name: str) -> Value:
        raise _refused(session, f"{name} of {self.describe()}")

    def truth(self, session: Session) -> bool:
        raise _refused(session, f"the truth of {self.describe()}")


class _Slot:
    """The place of an argument among the operands of its kind."""

    def __init__(self, operands: list[Value], value: Value) -> None:
        self.operands, self.number = operands, len(operands)
        operands.append(value)


class _Call:
    """A call of a kernel's `run` that becomes an operation."""

    def __init__(self, session: Session, kernel: Any, args: Arguments, kwargs: Keywords) -> None:
        self.session, self.kernel = session, kernel
        self.jit = _innermost(kernel)
        self.grid = session.realize(kwargs.pop("grid", NONE))
        if session.truth(kwargs.pop("warmup", ConstantValue(False))):
            raise _refused(session, "a kernel is compiled, not launched")
        self.args, self.kwargs = list(args), kwargs
        self.signature = inspect.signature(self.jit.fn)
        self.written: list[Value] = []
        self.read: list[Value] = []
        self.floats: list[Value] = []
        self.sizes: list[Value] = []

    def launch(self) -> Value:
        session = self.session
        tensors = frozenset(self.names_of_tensors())
        effects = effects_of(self.jit)
        if not tensors or not effects.only_follow(tensors.union(self.names_of_none())):
            raise _refused(
                session, f"{self.jit.fn.__name__} follows addresses that are no tensor arguments"
            )
        written = self.written_names(effects, tensors)
        grids = self.grids()
        args: list[Any] = []
        for value, name in zip(self.args, self.positional_names()):
            args.append(self.slot(name, value, name in written))
        kwargs: dict[str, Any] = {}
        for name, value in self.kwargs.items():
            kwargs[name] = self.slot(name, value, name in written)
        grids = map_leaves(self.size, grids)
        numbered = partial(map_leaves, self.operand)
        template = Launch(
            self.kernel,
            tuple(numbered(args)),
            numbered(kwargs),
            self.choices(numbered(grids)),
            len(self.written) + len(self.read),
            len(self.floats),
        )
        operands: list[Value] = []
        for values in (self.written, self.read, self.floats, self.sizes):
            operands.append(ListValue(values, list))
        number = session.wrap_constant(number_of(template))
        nothing = session.call_function(launch, number, *operands)
        if type(self.jit).__name__ == "InterpretedFunction":
            return nothing
        return LaunchedBinary()

    # -- arguments --

    def positional_names(self) -> Iterator[str]:
        """The parameter of each positional argument."""
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                while True:
                    yield name
            yield name
        raise _refused(self.session, f"{self.jit.fn.__name__} is given too many arguments")

    def named(self) -> Iterator[tuple[str, Value]]:
        """Each argument with its parameter's name, or that of an option."""
        for value, name in zip(self.args, self.positional_names()):
            yield name, value
        yield from self.kwargs.items()

    def names_of_tensors(self) -> Iterator[str]:
        for name, value in self.named():
            if _holds_tensors(self.session, value):
                yield name

    def names_of_none(self) -> Iterator[str]:
        """The parameters that have no value: what a kernel does with these is left out of it."""
        given = dict(self.named())
        for name, parameter in self.signature.parameters.items():
            if name in given:
                if is_none(self.session.realize(given[name])):
                    yield name
            elif parameter.default is None:
                yield name

    def written_names(self, effects: Effects, tensors: frozenset[str]) -> frozenset[str]:
        """The arguments that are written, by the kernel or by functions that are called with it."""
        names = effects.written
        kernel = self.kernel
        while True:
            if getattr(kernel, "pre_run_hooks", None):
                return tensors
            if type(kernel).__name__ == "Autotuner":
                if kernel.user_defined_pre_hook or kernel.user_defined_post_hook:
                    return tensors
                for config in kernel.configs:
                    if config.pre_hook is not None:
                        return tensors
                names = names.union(kernel.reset_to_zero, kernel.restore_value)
            if _is_jit(kernel):
                return names
            kernel = kernel.fn

    def slot(self, name: str, value: Value, is_written: bool) -> Any:
        """An argument of the kernel: a constant, its place among the operands, or of such parts."""
        session = self.session
        value = session.deep(value)
        if isinstance(value, TensorValue):
            if is_wrapped(value.fake):
                raise _refused(session, "a kernel is given a tensor of a transform")
            return _Slot(self.written if is_written else self.read, value)
        if isinstance(value, SequenceValue):
            items = []
            for item in value.items:
                items.append(self.slot(name, item, is_written))
            if value.cls not in (list, tuple):
                raise _refused(session, f"a kernel is given a {value.cls.__name__}")
            return value.cls(items)
        if isinstance(value, SymIntValue) and not self.is_constant(name):
            return _Slot(self.sizes, value)
        if isinstance(value, NumberValue) and value.cls is float and not self.is_constant(name):
            return _Slot(self.floats, value.tensor)
        if _is_descriptor(value):
            return self.descriptor(name, value, is_written)
        return self.constant(value)

    def descriptor(self, name: str, value: Value, is_written: bool) -> Made:
        """A TensorDescriptor, which is made of its parts at each launch."""
        session, parts = self.session, []
        for part in _PARTS:
            held = session.deep(value.get_attribute(session, part))
            if isinstance(held, SequenceValue):
                held = ListValue(held.items, list)
            parts.append(self.slot(name, held, is_written))
        return Made(value.python_type(), tuple(parts))

    def is_constant(self, name: str) -> bool:
        """Whether a kernel is compiled for each value of an argument."""
        parameter = self.signature.parameters.get(name)
        return parameter is None or "constexpr" in str(parameter.annotation)

    def constant(self, value: Value) -> Any:
        """The object of an argument that the entry is compiled for."""
        object_ = getattr(value, "object", None)
        is_triton = type(object_).__module__.startswith("triton.")
        if is_triton and (type(object_).__name__ in _CONSTANTS or _is_jit(object_)):
            self.session.guard(value.source, Kind.IDENTITY, object_)
            return object_
        if object_ is None and value.python_type().__name__ == "constexpr":
            return value.python_type()(self.constant(value.get_attribute(self.session, "value")))
        return self.session.known(value)

    def operand(self, leaf: Any) -> Any:
        """An argument, or a number of blocks, as a launch has it: with a place among all
        operands."""
        if isinstance(leaf, Made):
            return Made(leaf.cls, map_leaves(self.operand, leaf.args))
        if not isinstance(leaf, _Slot):
            return leaf
        number = leaf.number
        for operands in (self.written, self.read, self.floats, self.sizes):
            if leaf.operands is operands:
                break
            number += len(operands)
        return Operand(number)

    # -- grids --

    def grids(self) -> list[Any]:
        """The grid, or that of each configuration of an autotuned kernel."""
        if isinstance(self.grid, SequenceValue):
            return self.blocks(self.grid)
        metas = list(self.metas(self.kernel, dict(self.named())))
        grids = []
        for meta in metas:
            grids.append(self.grid_of(meta))
        if len(grids) == 1:
            return grids[0]
        return grids

    def metas(self, kernel: Any, meta: Keywords) -> Iterator[Keywords]:
        """What a function is given for each configuration: the arguments and constants by name."""
        session = self.session
        if _is_jit(kernel):
            yield meta
        elif type(kernel).__name__ == "Heuristics":
            for name, function in kernel.values.items():
                heuristic = session.builtin(function)
                meta = {**meta, name: session.call(heuristic, [session.dict_of_values(meta)], {})}
            yield from self.metas(kernel.fn, meta)
        else:
            for config in kernel.configs:
                constants = {}
                for name, constant in config.kwargs.items():
                    constants[name] = session.wrap_constant(constant)
                yield from self.metas(kernel.fn, {**meta, **constants})

    def grid_of(self, meta: Keywords) -> list[Any]:
        """What the grid's function gives for arguments, with the defaults of those that are not
        there."""
        session, bound = self.session, {}
        for name, parameter in self.signature.parameters.items():
            if name in meta:
                bound[name] = meta[name]
            elif parameter.default is not parameter.empty:
                bound[name] = session.wrap_constant(parameter.default)
        grid = session.call(self.grid, [session.dict_of_values(bound)], {})
        return self.blocks(session.realize(grid))

    def blocks(self, grid: Value) -> list[Any]:
        """The numbers of blocks of a grid."""
        if not isinstance(grid, SequenceValue) or not 1 <= len(grid.items) <= 3:
            raise _refused(self.session, f"a grid is {grid.describe()}")
        return list(map(self.session.deep, grid.items))

    def size(self, value: Any) -> Any:
        """A number of blocks: a constant, or its place among the operands."""
        if isinstance(value, SymIntValue):
            return _Slot(self.sizes, value)
        number = self.session.known(value)
        if not isinstance(number, int):
            raise _refused(self.session, f"a grid has {number!r} blocks")
        return number

    def choices(self, grids: Any) -> Grid | tuple[Choice, ...]:
        """The grids as a launch has them."""
        if not isinstance(grids[0], list):
            return tuple(grids)
        choices = []
        for constants, grid in zip(_constants(self.kernel), grids):
            choices.append(Choice(constants, tuple(grid)))
        return tuple(choices)


def _holds_tensors(session: Session, value: Value) -> bool:
    value = session.realize(value)
    if isinstance(value, SequenceValue):
        return any(map(partial(_holds_tensors, session), value.items))
    return isinstance(value, TensorValue) or _is_descriptor(value)


def _is_descriptor(value: Value) -> bool:
    return isinstance(value, ObjectValue) and value.cls.__name__ == "TensorDescriptor"


def _constants(kernel: Any) -> list[tuple[tuple[str, Any], ...]]:
    """The constants that each configuration of an autotuned kernel sets."""
    if type(kernel).__name__ != "Autotuner":
        if _is_jit(kernel):
            return [()]
        return _constants(kernel.fn)
    results = []
    for config in kernel.configs:
        for inner in _constants(kernel.fn):
            results.append((*config.kwargs.items(), *inner))
    return results
