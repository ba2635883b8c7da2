"""What torch's functions, classes and modes mean during capture."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture import polyfills
from ingot.capture.answers import NoTensors
from ingot.capture.bytecode import program_of
from ingot.capture.guards import Kind, Quantity
from ingot.capture.session import SPECIAL_FUNCTIONS
from ingot.capture.sources import (
    ArgSource,
    AttrSource,
    ConstSource,
    FunctionFieldSource,
    GlobalSource,
    ItemSource,
    Source,
)
from ingot.capture.values.base import Arguments, Keywords, NotConstant, Value
from ingot.capture.values.builtins import CONSTRUCTORS, POLYFILLS, PURE, BuiltinValue
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.foreign import ForeignValue
from ingot.capture.values.number_arguments import with_number
from ingot.capture.values.numbers import NumberValue, OutsideNumber
from ingot.capture.values.subclasses import refuse_overrides
from ingot.capture.values.tensor import FUNCTIONS
from ingot.capture.values.wrap import (
    WRAPPERS,
    wrap_builtin,
    wrap_function,
    wrap_held,
    wrap_literal,
    wraps,
)
from ingot.graph.shape_context import INTEGERS, too_large
from ingot.origins import trusts_function
from ingot.torch_private import (
    OpOverload,
    OpOverloadPacket,
    VariableFunctions,
    amp_foreach_non_finite_check_and_unscale_,
    amp_update_scale_,
    assert_,
    combine_input_and_mask,
    get_privateuse1_backend_name,
    get_tracing_state,
    is_autocast_available,
    is_torch_function_enabled,
    is_torch_function_mode_enabled,
    is_tracing,
    lazy_property_and_property,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    log_api_usage_once,
    native_one_hot,
    nested_tensor_from_mask_left_aligned,
    resize_output_,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session

_WHOLE_MODULES = frozenset({"torch.nn.functional", "torch.functional", "torch._C._nn"})
"""Python functions of these modules go into the graph as they are, when all they are given can."""

_INLINED = {torch.functional.broadcast_shapes, torch.nn.functional.interpolate}

_STATE_QUERIES = frozenset(
    (
        torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.is_autocast_enabled,
        torch.get_default_dtype, torch.get_autocast_dtype, torch.is_autocast_cache_enabled,
        get_tracing_state, torch.get_num_threads, torch.are_deterministic_algorithms_enabled,
        is_torch_function_enabled, torch.cuda.is_available,
        torch.cuda.device_count, torch.accelerator.current_accelerator,
        torch.get_autocast_gpu_dtype,
        len_torch_dispatch_stack, len_torch_function_stack,
        is_torch_function_mode_enabled, is_autocast_available,
        get_privateuse1_backend_name, torch.is_autocast_cpu_enabled,
        torch.get_autocast_cpu_dtype, torch.get_default_device, torch.cuda.is_bf16_supported,
        torch.cuda.amp.common.amp_definitely_not_available,
    )
)  # fmt: skip
"""Questions about the state around the call, which GLOBAL_STATE guards: asked for real."""

_CONSTANT_ANSWERS: dict[Any, Any] = {
    torch.jit.is_scripting: False,
    torch.jit.is_tracing: False,
    torch.compiler.is_compiling: True,  # where `Session.says_compiling`
    torch.compiler.is_dynamo_compiling: False,
    torch.compiler.is_exporting: False,
    get_tracing_state: None,
    is_tracing: False,  # asked by torch.nn.Module since torch 2.15
    torch.cuda.is_current_stream_capturing: False,
    log_api_usage_once: None,
}

_ANSWERS_BY_NAME = {
    # else results are waited for when read
    ("torch.distributed._functional_collectives", "_are_we_tracing"): True,
}
"""Those of modules that need not be loaded."""

_ASKS_AS_EAGER = ("torch.nn.modules.", "torch.optim.")
"""Where is_compiling() is false: torch's own modules leave out what eager does for a compiler's
sake (zeros at padded positions in `TransformerEncoder`, hooks that are called after an error), and
optimizers compute in float32 what they compute in Python's floats otherwise."""

_RANDOM_STATE = frozenset({"manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state"})


class TorchFunction(Value):
    """A function that goes into the graph as one node."""

    __slots__ = ("fallback", "object")

    def __init__(self, function: Any, source: Source, fallback: Value | None = None) -> None:
        super().__init__(source)
        self.object, self.fallback = function, fallback

    def python_type(self) -> type:
        return type(self.object)

    def describe(self) -> str:
        return f"torch function {getattr(self.object, '__name__', self.object)}"

    def constant(self) -> Any:
        return self.object

    def identity(self) -> Any:
        return self.object

    def get_attribute(self, session: Session, name: str) -> Value:
        found = session.python(getattr, self.object, name)
        return session.builtin(found)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        made = FUNCTIONS[self.object](session, args, kwargs) if self.object in FUNCTIONS else None
        made = made or with_number(session, getattr(self.object, "__name__", ""), args, kwargs)
        if made is not None:
            return made
        values, named = (
            [session.deep(a) for a in args],
            {k: session.deep(v) for k, v in kwargs.items()},
        )
        refuse_overrides(session, getattr(self.object, "__name__", ""), values, named)
        try:
            return session.graph.call(session, "call_function", self.object, values, named)
        except NotConstant as unknown:
            if self.fallback is None:
                raise session.unsupported(
                    "argument-kind", f"{self.describe()} is given {unknown.args[0].describe()}"
                ) from None
        except NoTensors:
            if self.fallback is None:
                raise
        return session.inline(self.fallback, args, kwargs)  # type: ignore[arg-type]


def _answer(session: Session, function: Any, source: Source) -> Value | None:
    """The value of a function that asks about the state around the call."""
    name = getattr(function, "__module__", None), getattr(function, "__name__", None)
    if (
        function not in _CONSTANT_ANSWERS
        and function not in _STATE_QUERIES
        and name not in _ANSWERS_BY_NAME
    ):
        return None
    session.guard(source, Kind.IDENTITY, function)
    return StateQuery(function)


class StateQuery(BuiltinValue):
    """A function that asks about the state around the call: its answer is a constant under the
    guards."""

    __slots__ = ()

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        if self.object is torch.compiler.is_compiling:
            asker = session.frames[-1].function.namespace.get("__name__", "")
            if asker.startswith(_ASKS_AS_EAGER):
                return ConstantValue(False)
            session.asked_compiling = True
            return ConstantValue(session.says_compiling)
        named = _ANSWERS_BY_NAME.get((self.object.__module__, self.object.__name__))
        if named is not None:
            return ConstantValue(named)
        if self.object in _CONSTANT_ANSWERS:
            return ConstantValue(_CONSTANT_ANSWERS[self.object])
        session.graph.asks += self.object is torch.is_grad_enabled
        known = [session.known(a) for a in args]
        return session.wrap_constant(
            session.python(self.object, *known, **{k: session.known(v) for k, v in kwargs.items()})
        )


_MAPPED = torch.vmap(torch.neg).__code__

_MACHINERY = ("torch._functorch.", "torch._higher_order_ops.")
_MACHINERY_OF_AUTOGRAD = frozenset(
    {
        "torch.autograd",
        "torch.autograd.functional",
        "torch.autograd.forward_ad",
        "torch.autograd.graph",
    }
)
_INLINED_ALL_THE_SAME = frozenset(
    {
        "torch._functorch.vmap",  # see `ingot.capture.values.transforms`
        "torch._functorch.predispatch",
        "torch._higher_order_ops.associative_scan",
    }
)
_IN_FORWARD_MODE = ("jvp", "_jvp", "jacfwd", "linearize", "functionalize", "_functionalize")
"""How functions of torch.func's begin that are not captured."""

_TRANSFORMS = frozenset(
    {
        "torch._functorch.apis",
        "torch._functorch.eager_transforms",
        "torch._functorch.functional_call",
    }
)
_TOOLS = ("torch.profiler", "torch.autograd.profiler", "torch._inductor")


def _why_whole(function: FunctionType) -> str:
    """Why a function of torch is run for real, as a whole; "" for one that is captured."""
    module = function.__globals__.get("__name__", "")
    if not (module.startswith("torch.") or function is torch.compile):
        return ""
    if function is torch.vmap or function.__code__ is _MAPPED or module in _INLINED_ALL_THE_SAME:
        return ""
    if module in _TRANSFORMS and not function.__code__.co_qualname.startswith(_IN_FORWARD_MODE):
        return ""
    # within it, tensors are not what they seem
    if module.startswith(_MACHINERY) or module in _MACHINERY_OF_AUTOGRAD:
        return "runs functions in a way that is not captured"
    if (
        function is torch.compile
        or module.startswith(_TOOLS)
        and not function.__qualname__.startswith("record_f")
    ):
        return "is called, which watches or compiles programs"
    return ""


class WholeFunction(BuiltinValue):
    """A function that is run for real, as a whole: one that transforms others (grad, cond), what
    one of these has made of a function, a profiler's."""

    __slots__ = ("why",)

    def __init__(self, function: FunctionType, why: str, source: Source) -> None:
        super().__init__(function, source)
        self.why = why

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        raise session.unsupported("whole-function", f"{self.object.__qualname__}() {self.why}")


def _wrapped_by_dynamo(function: FunctionType) -> FunctionType | None:
    """What torch.compile has wrapped, once it is loaded: some of torch's own functions, and
    `nn.Module.__init__`, where it takes note of modules for itself."""
    original = vars(function).get("_torchdynamo_orig_callable")
    if (
        function.__globals__.get("__name__") == "torch._dynamo.mutation_guard"
        and function.__closure__
    ):
        original = function.__closure__[0].cell_contents
    return original if isinstance(original, FunctionType) else None


@wraps(FunctionType)
def wrap_python_function(session: Session, object_: Any, source: Source) -> Value:
    answer = _answer(session, object_, source)
    if answer is not None:
        return answer
    original = _wrapped_by_dynamo(object_)
    if original is not None:
        session.guard(source, Kind.IDENTITY, object_)
        return session.builtin(original)
    if object_ in FUNCTIONS:
        session.guard(source, Kind.IDENTITY, object_)
        return TorchFunction(object_, source)
    why = _why_whole(object_)
    if why:
        session.guard(
            FunctionFieldSource(source, "__globals__"), Kind.IDENTITY, object_.__globals__
        )
        return WholeFunction(object_, why, source)
    made = wrap_function(session, object_, source)
    is_whole = object_.__module__ in _WHOLE_MODULES and trusts_function(object_)
    if is_whole and object_ not in _INLINED:
        session.guard(source, Kind.IDENTITY, object_)
        for namespace, name, held in _names_read(object_):
            if namespace is None:
                session.class_lookup(torch.Tensor, name)
            else:
                session.guard(GlobalSource(namespace, name), Kind.IDENTITY, held)
        return TorchFunction(object_, source, made)
    return made


_Name = tuple[dict[str, Any] | None, str, Any]


@functools.cache
def _names_read(function: FunctionType) -> list[_Name]:
    """What a function of torch's that is not inlined reads of modules' namespaces, in there and in
    the functions that it reads: namespace (None: an attribute of tensors), name, what is found."""
    found: dict[tuple[int, str], _Name] = {}
    left = [function]
    while left:
        for namespace, name, held in _names_in(left.pop()):
            if (id(namespace), name) not in found:
                found[id(namespace), name] = namespace, name, held
                left += [held] if isinstance(held, FunctionType) and _is_part(held) else []
    return list(found.values())


def _is_part(function: FunctionType) -> bool:
    """Whether a function of torch's is a part of others: what handles overrides runs with none."""
    return function.__module__ in _WHOLE_MODULES and trusts_function(function)


def _names_in(function: FunctionType) -> Iterator[_Name]:
    module: Any = None  # what the last instruction has read, where that is a module
    for instruction in program_of(function.__code__).instructions:
        if instruction.op == "PUSH_NULL_BELOW":
            continue
        is_global = instruction.op == "LOAD_GLOBAL"
        if not is_global and (module is None or instruction.op != "LOAD_ATTR"):
            if instruction.op == "LOAD_ATTR" and hasattr(torch.Tensor, instruction.arg):
                yield None, instruction.arg, None
            module = None
            continue
        namespace = function.__globals__ if is_global else vars(module)
        held = namespace.get(instruction.arg)
        module = held if isinstance(held, ModuleType) else None
        if callable(held) or module is not None:
            yield namespace, instruction.arg, held


@wraps(BuiltinFunctionType)
def wrap_c_function(session: Session, object_: Any, source: Source) -> Value:
    answer = _answer(session, object_, source)
    if answer is not None:
        return answer
    if (
        object_.__name__ not in _RANDOM_STATE
        and _owner(object_) in _OPERATION_OWNERS
        and object_ not in POLYFILLS
    ):
        session.guard(source, Kind.IDENTITY, object_)
        return TorchFunction(object_, source)
    if isinstance(vars(type(object_.__self__)).get(object_.__name__), MethodDescriptorType):
        return _bound_method(session, object_, source)
    return wrap_builtin(session, object_, source)


def _bound_method(session: Session, object_: Any, source: Source) -> Value:
    """The method of a built-in object, such as the `append` of a list. Each time it is read it is
    another object."""
    session.guard(source, Kind.TYPE, type(object_))
    session.guard(AttrSource(source, "__name__", "slot"), Kind.EQUALS, object_.__name__)
    owner = session.realize(session.wrap(object_.__self__, AttrSource(source, "__self__", "slot")))
    return owner.get_attribute(session, object_.__name__)


_OPERATION_OWNERS = frozenset(
    {
        "_VariableFunctionsClass",
        *(f"torch._C._{n}" for n in ("nn", "linalg", "special", "fft", "sparse")),
    }
)


def _owner(function: Any) -> str:
    """The class or module that a C function of torch belongs to."""
    owner = function.__self__
    return (
        owner.__name__
        if isinstance(owner, (type, ModuleType))
        else function.__qualname__.partition(".")[0]
    )


class TorchNamespace(ForeignValue):
    """The object whose attributes are torch's functions."""

    __slots__ = ()

    def get_attribute(self, session: Session, name: str) -> Value:
        found = session.python(getattr, self.object, name)
        return session.wrap(found, ConstSource(found))


@wraps(type(VariableFunctions))
def wrap_torch_namespace(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.IDENTITY, object_)
    return TorchNamespace(object_, source)


@wraps(OpOverload, OpOverloadPacket)
def wrap_operation(session: Session, object_: Any, source: Source) -> Value:
    session.guard(source, Kind.IDENTITY, object_)
    return TorchFunction(object_, source)


@wraps(torch.Tensor)
def wrap_tensor(session: Session, object_: Any, source: Source) -> Value:
    if type(object_) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise session.unsupported(
            "tensor-subclass", f"{source.name}, a {type(object_).__name__}: a tensor subclass"
        )
    return session.graph.input(session, object_, source)


@wraps(float)
def wrap_float(session: Session, object_: Any, source: Source) -> Value:
    """A float, compiled for its value unless that varies, or may well do so."""
    varies = source in session.varying
    scheduled = _is_scheduled(source) or session.is_input(object_, source)
    if type(object_) is float and (
        varies or scheduled or session.continues and isinstance(source, ArgSource)
    ):
        session.guard(source, Kind.TYPE, float)
        return OutsideNumber(session, object_, source, varies, scheduled)
    return wrap_literal(session, object_, source)


def _is_scheduled(source: Source) -> bool:
    """Whether it is the learning rate in a group of an optimizer's parameters, where schedulers
    write it."""
    if (
        not isinstance(source, ItemSource)
        or source.key != "lr"
        or not isinstance(source.base, ItemSource)
    ):
        return False
    groups = source.base.base
    return isinstance(groups, AttrSource) and groups.key == "param_groups"


@wraps(int)
def wrap_int(session: Session, object_: Any, source: Source) -> Value:
    """An int, compiled for its value unless that varies. One of a subclass may override
    comparisons."""
    if type(object_) is not int:
        return wrap_literal(session, object_, source)
    varies = Quantity(source, "value") in session.varying
    fits = INTEGERS[0] <= object_ <= INTEGERS[1]
    if varies and not fits:
        raise too_large()
    varies = varies or object_ not in (0, 1) and session.is_input(object_, source)
    if varies and fits:
        session.guard(source, Kind.TYPE, int)
        return session.graph.integer(session, object_, source)
    return wrap_literal(session, object_, source)


WRAPPERS.update(dict.fromkeys((torch.dtype, torch.layout, torch.memory_format), wrap_literal))
WRAPPERS.update(dict.fromkeys((torch.finfo, torch.iinfo), wrap_held))
PURE.update({torch.device, torch.finfo, torch.iinfo})


def _refused_class(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    raise session.unsupported("construction", f"a {cls.__qualname__} is made")


CONSTRUCTORS.update(dict.fromkeys((torch.Generator, torch.Tensor), _refused_class))

# -- functions with a meaning of their own ---------------------------------------------------------


def _assert(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    condition, message = [*args, *kwargs.values()]
    if not session.truth(condition):
        raise session.raised(AssertionError, session.realize(message))
    return NONE


def _random_state(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    raise session.unsupported(
        "random-state",
        "side effect: the random state is read or set (torch.manual_seed and its kin)",
    )


def _resized(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    raise session.unsupported(
        "tensor-object", "a tensor is resized, which changes the object itself"
    )


def _masked_input(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    return session.call(session.builtin(polyfills.masked_input), args, kwargs)


def _asks_for_nested(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """Whether a mask allows for nested tensors, which are not captured: the graph is broken before
    the call of the function that asks, so that what comes after that call is captured again."""
    raise session.unsupported(
        "nested-tensor",
        "a padding mask, whose data decides whether tensors become nested,",
        step=session.frames[-1].called_at,
    )


def _batch_norm(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    names = "input weight bias running_mean running_var training momentum eps cudnn_enabled".split()
    given = dict(zip(names, args)) | kwargs
    momentum = session.realize(given["momentum"]) if given.keys() == set(names) else None
    if type(momentum) is not NumberValue or not session.truth(given["training"]):
        return None
    values = [given[name] for name in names if name != "training"]
    return session.call(session.builtin(polyfills.batch_norm), values, {})


FUNCTIONS[torch.batch_norm] = _batch_norm
FUNCTIONS[nested_tensor_from_mask_left_aligned] = _asks_for_nested
POLYFILLS[native_one_hot] = polyfills.one_hot
POLYFILLS[amp_foreach_non_finite_check_and_unscale_] = polyfills.unscale_gradients
POLYFILLS[amp_update_scale_] = polyfills.update_scale
SPECIAL_FUNCTIONS[assert_] = _assert
SPECIAL_FUNCTIONS[combine_input_and_mask] = _masked_input
for _function in (
    torch.manual_seed,
    torch.seed,
    torch.initial_seed,
    torch.set_rng_state,
    torch.get_rng_state,
    torch.cuda.manual_seed,
):
    SPECIAL_FUNCTIONS[_function] = _random_state
FUNCTIONS.update(
    dict.fromkeys((torch.resize_as_, torch.resize_as_sparse_, resize_output_), _resized)
)


def _lazy_property(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    """What a lazy property of a distribution is in its class, which is asked for its type alone."""
    wrapped = getattr(session.realize(args[0]), "object", None) if args else None
    if not isinstance(wrapped, FunctionType) or kwargs:
        raise session.unsupported("construction", f"a {cls.__name__} is made")
    return session.wrap_constant(cls(wrapped))


CONSTRUCTORS[lazy_property_and_property] = _lazy_property
