"""Who compiles a captured graph: Ingot itself, a function the user gives or registers, or nobody.

A backend is `backend(gm, example_inputs) -> callable`, as torch.compile's are: it gets a
`torch.fx.GraphModule` over torch functions and one tensor per placeholder, and returns a callable
that takes the same inputs and returns a tuple or list of the graph's outputs. A mode other than
"default", and options, reach it as the keywords `mode` and `options`. The graph is to be run on
real tensors: where gradients are wanted, autograd records it as it would in eager. A backend that
cannot take a graph may raise `ingot.Unsupported`: the call then runs in eager, and the report has
the reason.

What torch.compile's backends find, they find here: `stack_trace`, `nn_module_stack` and
`example_value` in the nodes' meta, and a `TracingContext` with its fake mode. Fake tensors are made
when one is asked for, since torch imports torch.compile for them.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch.fx import GraphModule, Interpreter, Node

from ingot.errors import BackendError, Unsupported, unsupported
from ingot.graph.ambient import SWITCHES, snapshot
from ingot.graph.nodes import placeholders_of
from ingot.options import NATIVE, Options, shown, unknown
from ingot.reasons import SKIP
from ingot.serial import call_users
from ingot.torch_private import tree_map_only

Backend = Callable[..., Callable[..., Any]]

log = logging.getLogger("ingot")


# -- backends that come with Ingot -----------------------------------------------------------------


def eager(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None
) -> Callable[..., Any]:
    """Run the captured graph as it is, op by op: tells a fault of capture from one of
    compilation."""
    return gm.forward


def aot_eager(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: str | None = None
) -> Callable[..., Any]:
    """Trace the captured graph with torch's AOTAutograd, and run what that makes of it op by op."""
    from torch._dynamo.backends.debugging import aot_eager

    return aot_eager(gm, list(example_inputs))


def inductor(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile the captured graph with torch's Inductor; `options` are settings of
    `torch._inductor.config`."""
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    settings = {**(list_mode_options(mode) if mode else {}), **(options or {})}
    return compile_fx(gm, list(example_inputs), config_patches=settings)  # type: ignore[return-value]


_STATIC = frozenset({"aot_eager", "inductor"})
"""Backends that compile for the sizes of their example inputs alone: sizes are not made symbols for
them."""

_registry: dict[str, Backend] = {"eager": eager, "aot_eager": aot_eager, "inductor": inductor}


def torch_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend "ingot" of torch.compile.

    The graph is compiled as any function is, at its first call and under guards of Ingot's own:
    torch.compile's do not cover all that Ingot's code relies on, such as alignment and memory that
    inputs share. Sizes that are symbols there are symbols here, but an integer among the inputs is
    compiled for its value. Calls that want gradients run the graph in eager. Raises ValueError for
    the option `donate`: a graph has other arguments than the function that it is of.
    """
    if options and "donate" in options:
        raise ValueError(
            "torch.compile: backend 'ingot' takes no option donate; ingot.compile does"
        )
    from ingot.api import compile

    # torch.compile's graph modules have no forward of their own until their code is asked for
    _ = gm.code
    symbolic = any(isinstance(example, torch.SymInt) for example in example_inputs)
    return compile(gm.forward, dynamic=symbolic or None, mode=mode, options=options)


# -- the registry ----------------------------------------------------------------------------------


def register_backend(backend: Backend | None = None, *, name: str | None = None) -> Any:
    """Register a backend under `name` (its own name if none is given); also a decorator. Returns
    the backend.

    Raises TypeError for what is no callable, ValueError if the name is taken.
    """
    if backend is None:
        return lambda b: register_backend(b, name=name)
    if not callable(backend):
        raise TypeError(
            "ingot.register_backend: expected a callable (gm, example_inputs), not "
            f"{shown(backend)}"
        )
    key: Any = name or getattr(backend, "__name__", "")
    is_name = isinstance(key, str) and key not in ("", NATIVE)
    if not is_name or _registry.get(key, backend) is not backend:
        raise ValueError(
            f"ingot.register_backend: the name {key!r} cannot be used; taken are "
            f"{', '.join(list_backends())}"
        )
    _registry[key] = backend
    return backend


def list_backends() -> list[str]:
    """Names that `ingot.compile(backend=...)` accepts."""
    return [NATIVE, *sorted(_registry)]


def find_backend(backend: str | Backend) -> Backend | None:
    """The backend function, or None for Ingot's own; raises ValueError for an unknown name."""
    if callable(backend):
        return backend
    if backend == NATIVE:
        return None
    if backend not in _registry:
        raise ValueError(f"ingot.compile: unknown backend {unknown(backend, list_backends())}")
    return _registry[backend]


def of_torch(name: str) -> Backend:
    """The backend that torch.compile knows by a name, which is imported for it. What it raises for
    an unknown name is raised."""
    from torch._dynamo import lookup_backend

    backend: Backend = lookup_backend(name)
    return backend


def default_of_torch() -> str | Backend:
    """The backend that torch.compile takes where none is named."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "get_default_backend"):
        return "inductor"
    chosen: str | Backend = torch.compiler.get_default_backend()
    return chosen


def backend_name(backend: str | Backend) -> str:
    """The name of a backend in messages."""
    if isinstance(backend, str):
        return backend
    return getattr(backend, "__name__", type(backend).__name__)


# -- what they find beside the graph ---------------------------------------------------------------


class _Context(TracingContext):
    """The tracing context of one call of a backend, and the values of the graph's nodes on fake
    tensors. Both are made when they are asked for, and not once the call is `over`."""

    def __init__(self, gm: GraphModule, inputs: Sequence[Any]) -> None:
        self._mode: Any = None
        self.over = False
        super().__init__(None)
        self._gm, self._inputs = gm, inputs
        self._values: dict[Node, Any] | None = None
        for node in gm.graph.nodes:
            node.meta = _Meta(node.meta, node, self)

    @property
    def fake_mode(self) -> Any:
        if self._mode is None and not self.over:
            from torch._subclasses.fake_tensor import FakeTensorMode

            self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        return self._mode

    @fake_mode.setter
    def fake_mode(self, mode: Any) -> None:
        self._mode = mode

    @property
    def is_asked(self) -> bool:
        """Whether the backend has seen fake tensors, whose sizes are those of the call."""
        return self._mode is not None

    @property
    def values(self) -> dict[Node, Any]:
        """What each node gives on fake tensors; of an operation that fails on them, and of those
        behind it, nothing is known."""
        if self._values is None:
            self._values = {}
            if not self.over:
                self._run()
        return self._values

    def _run(self) -> None:
        mode, values = self.fake_mode, self._values
        restore = snapshot()

        class Noting(Interpreter):
            def run_node(self, n: Node) -> Any:
                result = values[n] = super().run_node(n)  # type: ignore[index]
                return result

        inputs = tree_map_only(torch.Tensor, mode.from_tensor, list(self._inputs))
        try:
            with mode:
                Noting(self._gm).run(*inputs)
        except Exception as error:
            log.debug("no example values behind a node: %s", error)
        finally:
            restore()

    def end(self) -> None:
        """Lets go of the tensors of the call."""
        self.over, self._inputs = True, ()


class _Meta(dict[str, Any]):
    """The meta of a node, with its `example_value`."""

    def __init__(self, known: Mapping[str, Any], node: Node, context: _Context) -> None:
        super().__init__(known)
        self._node, self._context = node, context

    def __missing__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self._context.values[self._node]

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return True
        return key == "example_value" and self._node in self._context.values

    def get(self, key: str, default: Any = None) -> Any:
        if key in self:
            return self[key]
        return default


def _call(
    backend: Backend, gm: GraphModule, inputs: Sequence[Any], keywords: dict[str, Any]
) -> Callable[..., Any]:
    """Calls a backend as torch.compile does.

    Raises Unsupported where it may have compiled for the sizes of this call, and some are symbols.
    """
    context = _Context(gm, inputs)
    with tracing(context):
        try:
            compiled: Callable[..., Any] = backend(gm, inputs, **keywords)
        finally:
            context.end()
    if context.is_asked and any(map(_has_symbols, placeholders_of(gm.graph))):
        raise unsupported("static-backend", f"the backend {backend_name(backend)!r} traces sizes")
    return compiled


def _call_static(
    backend: Backend, gm: GraphModule, inputs: Sequence[Any], keywords: dict[str, Any]
) -> Callable[..., Any]:
    """Calls one of `_STATIC`. Loops need symbols for what they give, though all sizes are known."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
    with tracing(TracingContext(mode)):
        return backend(gm, inputs, **keywords)


def _has_symbols(placeholder: Node) -> bool:
    value = placeholder.meta["val"]
    return isinstance(value, torch.SymInt) or torch.SymInt in map(type, value.shape)


# -- their use -------------------------------------------------------------------------------------


def fitted(options: Options) -> Options:
    """The options as their backend can serve them.

    Raises ValueError where there is no such backend, TypeError where it does not take the mode or
    options given.
    """
    backend = find_backend(options.backend)
    keywords = _keywords(options)
    if backend is not None and keywords:
        try:
            inspect.signature(backend).bind(None, None, **keywords)
        except TypeError:
            name = backend_name(options.backend)
            raise TypeError(
                f"ingot.compile: backend {name!r} takes no {' and no '.join(keywords)}"
            ) from None
        except ValueError:  # it has no signature that can be asked for
            pass
    if options.backend in _STATIC:
        return dataclasses.replace(options, dynamic=False)
    return options


def _keywords(options: Options) -> dict[str, Any]:
    """The arguments of a backend beside the graph and the example inputs."""
    keywords: dict[str, Any] = {}
    if options.mode != "default":
        keywords["mode"] = options.mode
    if options.backend_options:
        keywords["options"] = dict(options.backend_options)
    return keywords


def compile_with_backend(
    options: Options, gm: GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """The callable that the backend of `options` makes of a graph.

    Raises BackendError, from the backend's own error, where that fails; Unsupported where it
    refuses the graph.
    """
    backend, name = find_backend(options.backend), backend_name(options.backend)
    assert backend is not None
    try:
        if options.backend in _STATIC:
            compiled = call_users(_call_static, backend, gm, example_inputs, _keywords(options))
        else:
            compiled = call_users(_call, backend, gm, example_inputs, _keywords(options))
    except Unsupported as refusal:
        refusal.why = replace(refusal.why, action=SKIP)
        raise
    except Exception as error:
        raise BackendError(
            f"the backend {name!r} failed: {type(error).__name__}: {error}"
        ) from error
    if not callable(compiled):
        raise BackendError(
            f"the backend {name!r} returned {shown(compiled)} where a callable is expected"
        )
    for node in gm.graph.nodes:
        if node.target in SWITCHES:
            return _with_modes_restored(compiled)
    return compiled


def check_outputs(options: Options, outputs: Any, count: int) -> None:
    """TypeError where what a backend's callable returned cannot be the outputs of a graph that has
    `count`."""
    maker = f"the backend {backend_name(options.backend)!r} made a callable that returned"
    if not isinstance(outputs, (tuple, list)):
        raise TypeError(f"{maker} a {type(outputs).__name__}, no tuple or list of outputs")
    if len(outputs) != count:
        raise TypeError(f"{maker} {len(outputs)} outputs for a graph of {count}")


def _with_modes_restored(run: Callable[..., Any]) -> Callable[..., Any]:
    """A graph that switches modes, and leaves them as they were where an operation in between
    raises."""

    def restoring(*inputs: Any) -> Any:
        restore = snapshot()
        try:
            return run(*inputs)
        except BaseException:
            restore()
            raise

    return restoring
