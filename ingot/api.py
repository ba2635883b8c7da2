"""The interface: `compile`, `explain`, and what controls them. (`set_stance` has a file of its
own.)"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from ingot import backward, events, sharing, torch_controls
from ingot.backends import fitted
from ingot.capture import check_donated, marks, size_marks
from ingot.compiler import Compiler
from ingot.explain.report import Report, complete_gradients
from ingot.modules import (
    compiled_data_parallel,
    compiled_module,
    disabled_module,
    is_data_parallel,
)
from ingot.native import _native
from ingot.options import NATIVE, Options, is_switched_off, shown


def compile(  # noqa: A001 - the field's name for it
    fn: Any = None,
    *,
    model: Any = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = "ingot",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
) -> Any:
    """A callable that does what `fn` does, faster: compiled at its first call, and again when a
    fact it relied on has changed.

    `fn` is a function, a method, any callable object with a Python `__call__`, or a
    `torch.nn.Module`; without it, a decorator is returned. A compiled module is still itself
    (isinstance, attributes, state_dict, pickle) and shares all state with `fn`.

    fullgraph: raise `GraphBreakError` where a call could not be compiled, instead of running it in
        eager.
    dynamic: True makes sizes and integers symbols from the first call, None those that are seen to
        vary, False none.
    model: `fn`, as torch.compile calls it.
    backend: "ingot" (as is None), a name from `list_backends()`, or
        `backend(gm, example_inputs) -> callable`; see `ingot.backends`.
    mode: "default"; on an NVIDIA GPU "reduce-overhead" replays programs as CUDA graphs,
        "max-autotune" does so and chooses how products are computed by measuring,
        "max-autotune-no-cudagraphs" does only that.
    options: {"numerics": "eager" or "fast", "freeze": False or True, "specialize": False or True,
        "emit": "llvm" or "cpp", which has the system's compiler compile CPU code as C++,
        "memory_budget": from 0 to 1, the share of the usual bytes that a forward saves,
        "verify": how many calls of each compiled program are compared with eager, which warns of
        the first op that differs (`DifferenceWarning`), "donate": names of parameters whose tensors
        you give up: results may lie in their memory, and each later use of such a tensor raises
        `DonationError`}; for another backend than Ingot's, whatever
        that takes. For any, "guard_filter_fn": a function that says which guards are checked.
    name: what reports call it, in place of its own name.
    disable: return `fn` as it is.
    recompile_limit: how often it may be compiled, for other facts each time; further calls run in
        eager, or raise `GraphBreakError` under `fullgraph`. None: 64 times, or as
        `torch._dynamo.config.recompile_limit` says where the program has set that.
    isolate_recompiles: do not share what is compiled with other calls of `compile` on functions of
        the same code.

    With INGOT_DISABLE=1 in the environment, `fn` is returned as it is.

    Raises TypeError or ValueError for an argument that is none of these. Errors of the program
    itself are raised as in eager; `BackendError` is raised where a backend, or a
    `guard_filter_fn`, that you named fails.
    """
    if not isinstance(disable, bool):
        raise TypeError(f"ingot.compile: disable must be a bool, not {shown(disable)}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"ingot.compile: name must be a str or None, not {shown(name)}")
    if fn is not None and model is not None:
        raise TypeError("ingot.compile: fn and model are the same parameter; give one of them")
    if backend is None:
        backend = NATIVE
    checked = Options.checked(
        fullgraph=fullgraph,
        dynamic=dynamic,
        backend=backend,
        mode=mode,
        options=options,
        recompile_limit=recompile_limit,
        isolate_recompiles=isolate_recompiles,
    )
    disable = disable or is_switched_off()
    decorate = functools.partial(_compile, options=fitted(checked), disable=disable, name=name)
    if fn is None and model is None:
        return decorate
    return decorate(model if fn is None else fn)


def _compile(fn: Any, *, options: Options, disable: bool, name: str | None) -> Any:
    _check_callable("compile", fn)
    if disable:
        return fn
    torch_controls.follow(reset)
    fn = original(fn)
    if is_data_parallel(fn):
        return compiled_data_parallel(fn, (options, name))
    compiler = Compiler(fn, options)
    if options.donate:
        check_donated(compiler.dispatcher.fn, options.donate)
    compiler.name = name or compiler.name
    if isinstance(fn, torch.nn.Module):
        return compiled_module(fn, compiler)
    return compiler.dispatcher


def _check_callable(what: str, fn: Any) -> None:
    """TypeError that says what `ingot.compile` or a function like it takes instead of `fn`."""
    if isinstance(fn, (staticmethod, classmethod)):
        above = f"@{type(fn).__name__}"
        raise TypeError(
            f"ingot.{what}: {what} the function inside: {above} goes above @ingot.{what}"
        )
    if isinstance(fn, type):
        raise TypeError(
            f"ingot.{what}: {fn.__name__} is a class; {what} an instance, or the methods inside"
        )
    if not callable(fn):
        raise TypeError(f"ingot.{what}: expected a function or a torch.nn.Module, not {shown(fn)}")


def original(fn: Any) -> Any:
    """What `fn` was compiled from, so that compiling it again is compiling it with other options;
    else `fn` itself."""
    compiler = Compiler.of(fn)
    if compiler is None:
        return fn
    if hasattr(type(fn), "__ingot_compiled_inside__"):
        return fn.__ingot_original__
    if isinstance(fn, MethodType):
        return MethodType(compiler.dispatcher.fn, fn.__self__)
    return compiler.fn


def explain(fn: Any) -> Callable[..., Report]:
    """`explain(fn)(*args, **kwargs)` compiles `fn` for these arguments and returns the `Report` of
    all that has been compiled for it. `fn` is run only where a graph of it is broken: what follows
    depends on it.

    `fn` may be compiled already (its own options and entries are then reported) or not. Raises what
    `fn` compiled with `fullgraph=True` would, and TypeError for arguments that `fn` does not take.
    """
    compiler, bound = compiler_for("explain", fn)

    def explained(*args: Any, **kwargs: Any) -> Report:
        compiler.prepare((*bound, *args), kwargs)
        complete_gradients(compiler.compilations)
        return Report.from_compilations(compiler.compilations)

    return explained


def compiler_for(what: str, fn: Any) -> tuple[Compiler, tuple[Any, ...]]:
    """The compiler of a function that may be compiled already, and the object that it is bound to,
    if it is a method. TypeError, which names `what` was asked, for what cannot be compiled."""
    _check_callable(what, fn)
    compiled = fn
    if Compiler.of(fn) is None:
        compiled = _compile(fn, options=Options(), disable=False, name=None)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return compiler, (compiled.__self__,) if isinstance(compiled, MethodType) else ()


def disable(fn: Any = None, *, reason: str = "") -> Any:
    """A function or module that does what `fn` does and is never compiled, nor is anything that it
    calls. Compiled functions inside run in eager as well. Also a decorator.

    A compiled function that calls it is compiled up to the call, runs it, and goes on compiled;
    `reason` is in its report. A disabled module shares all state with `fn`, as a compiled one does.
    The body of a generator function runs when it is iterated, as part of what does so.

    Raises TypeError for what cannot be called.
    """
    if not isinstance(reason, str):
        raise TypeError(f"ingot.disable: reason must be a str, not {shown(reason)}")
    if fn is None:
        return functools.partial(disable, reason=reason)
    _check_callable("disable", fn)
    fn = original(fn)
    if isinstance(fn, torch.nn.Module):
        return disabled_module(fn, reason)
    return marks.disabled(fn, reason)


def allow_in_graph(fn: Any) -> Any:
    """Have calls of a function go into the graph as one node, without a look inside; returns `fn`.
    Also a decorator, and for a list of functions.

    Its arguments are tensors, numbers, strings, None and containers of them; its results these, and
    lists and tuples of them. While a call is captured, it runs on tensors without data, which tells
    the shapes of its results. Ingot's own backend then compiles the operations that it performed;
    another one finds a node that calls it. What it does beside that (printing, say) happens while
    it is captured, and what it reads beside its arguments may be taken for constant. Say it before
    the first call: what is compiled already stays.

    Raises TypeError for anything but Python and C functions.
    """
    if isinstance(fn, (list, tuple)):
        return list(map(allow_in_graph, fn))
    function = original(fn)
    if not isinstance(function, (FunctionType, BuiltinFunctionType)):
        raise TypeError(f"ingot.allow_in_graph: expected a function, not {shown(fn)}")
    marks.allow(function)
    return fn


def mark_dynamic(
    tensor: Tensor,
    dim: int | Iterable[int],
    *,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Have a tensor's size along `dim` (or several) be a symbol in what is compiled for it, from
    the first call on. So one compilation serves all sizes from `min` (1, if None or less) to `max`
    (None: any).

    A size of 0 is compiled for, and so is a size whose value the program needs: the report says
    where. Say it before the first call with the tensor; it holds of this tensor object, not of its
    copies and views, and does nothing under `dynamic=False`.

    Raises TypeError for what is no tensor, IndexError for a dimension that it does not have, and
    ValueError where its size is not from `min` to `max`.
    """
    for name, bound in (("min", min), ("max", max)):
        if bound is not None and not isinstance(bound, int):
            raise TypeError(
                f"ingot.mark_dynamic: {name} must be an int or None, not {shown(bound)}"
            )
    low, high = size_marks.ANY_SIZE.lower if min is None else min, max
    for d in _dimensions("mark_dynamic", tensor, dim):
        size = tensor.shape[d]
        if size < (min or 0) or (high is not None and size > high):
            limits = f"from {min or 0} to {'any size' if high is None else high}"
            raise ValueError(
                f"ingot.mark_dynamic: the size along dimension {d} is {size}, which is not {limits}"
            )
        size_marks.mark(tensor, d, size_marks.Bounds(low, high))


def mark_static(tensor: Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Have a tensor's size along `dim` (or several; None: all) be compiled for, also where it is
    seen to vary, and under `dynamic=True`. Raises as `mark_dynamic` does."""
    for d in _dimensions("mark_static", tensor, dim, all_by_default=True):
        size_marks.mark(tensor, d, None)


def _dimensions(what: str, tensor: Any, dim: Any, all_by_default: bool = False) -> list[int]:
    """The dimensions that `dim` names, counted from the front."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"ingot.{what}: expected a tensor, not {shown(tensor)}")
    if dim is None and all_by_default:
        return list(range(tensor.dim()))
    is_one = isinstance(dim, (str, bytes, Tensor)) or not isinstance(dim, Iterable)
    try:
        dims = list(map(operator.index, [dim] if is_one else dim))
    except TypeError:
        raise TypeError(f"ingot.{what}: expected dimensions, not {shown(dim)}") from None
    for d in dims:
        if not -tensor.dim() <= d < tensor.dim():
            raise IndexError(
                f"ingot.{what}: a tensor of {tensor.dim()} dimensions has no dimension {d}"
            )
    return [d % tensor.dim() for d in dims]


def reset() -> None:
    """Forget everything compiled so far: each compiled callable starts over at its next call.
    Memory that was kept for further results goes back to the system, and `counters` begin anew."""
    events.reset()
    backward.reset()
    sharing.forget()
    _native.clear_code_entries()
    for compiler in list(Compiler.alive):
        compiler.reset()
    _native.trim_heap()
