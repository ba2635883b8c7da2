"""What torch's functions, classes and modes mean during capture."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture import polyfills, torch_calls
from ingot.capture.answers import NoTensors
from ingot.capture.bytecode import program_of
from ingot.capture.guards import Kind, Quantity
from ingot.capture.meanings import How, meaning_of, means, means_pure
from ingot.capture.sources import (
    ArgSource,
    AttrSource,
    ConstSource,
    FunctionFieldSource,
    GlobalSource,
    ItemSource,
    Source,
)
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    KnownObject,
    NotConstant,
    Rule,
    Value,
    map_values,
)
from ingot.capture.values.builtins import BuiltinValue
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.default_devices import DefaultDevices, default_device, with_device
from ingot.capture.values.dtensors import wrapper_object
from ingot.capture.values.foreign import ForeignValue
from ingot.capture.values.function_overrides import ContentOf
from ingot.capture.values.number_arguments import with_number
from ingot.capture.values.numbers import NumberValue, OutsideNumber
from ingot.capture.values.subclasses import refuse_overrides
from ingot.capture.values.tensor import GradientQuestions
from ingot.capture.values.tensor_objects import (
    TensorObject,
    is_subclass_object,
    refuse_class,
)
from ingot.capture.values.wrap import (
    WRAPPERS,
    wrap_as_constant,
    wrap_builtin,
    wrap_function,
    wrap_literal,
    wrapper_of,
    wraps,
)
from ingot.capture.values.wrapper_objects import dispatches
from ingot.graph.shape_context import INTEGERS, too_large
from ingot.torch_private import (
    OpOverload,
    OpOverloadPacket,
    VariableFunctions,
    amp_foreach_non_finite_check_and_unscale_,
    amp_update_scale_,
    are_functorch_transforms_active,
    assert_,
    autograd_is_checkpoint_valid,
    combine_input_and_mask,
    get_privateuse1_backend_name,
    get_sdp_flags,
    get_tracing_state,
    is_any_autocast_enabled,
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

_ASKS_AS_EAGER = ("torch.nn.modules.", "torch.optim.")
"""Where is_compiling() is false. If it were true, torch's modules would leave out what eager does
(zeros at padded positions in `TransformerEncoder`, hooks after an error), and optimizers would
compute in float32 what eager computes in Python's floats."""


class TorchFunction(KnownObject):
    """A function that goes into the graph as one node."""

    __slots__ = ("fallback", "rule")

    def __init__(
        self, function: Any, source: Source, rule: Any = None, fallback: Value | None = None
    ) -> None:
        super().__init__(function, source)
        self.rule, self.fallback = rule, fallback

    def describe(self) -> str:
        return f"torch function {getattr(self.object, '__name__', self.object)}"

    def get_attribute(self, session: Session, name: str) -> Value:
        return session.builtin(session.python(getattr, self.object, name))

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        if session.is_overridden(*args, *kwargs.values()):
            return self._call_overridden(session, args, kwargs)
        return self._call(session, args, kwargs)

    def _call_overridden(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        """By `__torch_function__`, which a function in Python calls by itself."""
        asked = (*args, *kwargs.values())
        if isinstance(self.object, FunctionType) and session.asks_python(asked):
            assert self.source is not None
            function = wrap_function(session, self.object, self.source)
            return session.inline(function, args, kwargs)  # type: ignore[arg-type]

        def run(content_of: ContentOf) -> Value:
            values = list(map(content_of, args))
            return self._call(session, values, map_values(content_of, kwargs))

        return session.torch_call(self.object, args, kwargs, run)

    def _call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        result: Value | None = None
        kwargs = with_device(session, self.object, kwargs)
        if self.rule is not None:
            result = self.rule(session, args, kwargs)
        name = getattr(self.object, "__name__", "")
        result = result or with_number(session, name, args, kwargs)
        if result is not None:
            return result
        values, named = list(map(session.deep, args)), map_values(session.deep, kwargs)
        in_python = isinstance(self.object, FunctionType)
        refuse_overrides(session, name, values, named, in_python)
        try:
            return session.call_function(self.object, *values, **named)
        except NotConstant as unknown:
            if self.fallback is None:
                raise session.unsupported(
                    "argument-kind", f"{self.describe()} is given {unknown.args[0].describe()}"
                ) from None
        except NoTensors:
            if self.fallback is None:
                raise
        return session.inline(self.fallback, args, kwargs)  # type: ignore[arg-type]


# -- questions about the state ---------------------------------------------------------------------


class StateQuery(BuiltinValue):
    """A function that asks about the state around the call: its answer is a constant under the
    guards."""

    __slots__ = ("rule",)

    def __init__(self, function: Any, rule: Any) -> None:
        super().__init__(function)
        self.rule = rule

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        result: Value = self.rule(session, args, kwargs)
        return result


class CompilingAnswer:
    """What a program hears that asks whether it is compiled, and whether it has asked."""

    answer = True
    is_asked = False


@means(torch.compiler.is_compiling, how=How.STATE)
def _is_compiling(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    asker = session.frames[-1].function.namespace.get("__name__", "")
    if asker.startswith(_ASKS_AS_EAGER):
        return ConstantValue(False)
    compiling = session.state(CompilingAnswer)
    compiling.is_asked = True
    return ConstantValue(compiling.answer)


def _answers(answer: Any) -> Rule:
    return lambda session, args, kwargs: ConstantValue(answer)


means(
    torch.jit.is_scripting,
    torch.jit.is_tracing,
    torch.compiler.is_dynamo_compiling,
    torch.compiler.is_exporting,
    torch.cuda.is_current_stream_capturing,
    is_tracing,  # asked by torch.nn.Module since torch 2.15
    how=How.STATE,
)(_answers(False))
means(get_tracing_state, log_api_usage_once, how=How.STATE)(_answers(None))
# else results are waited for when read
means("torch.distributed._functional_collectives._are_we_tracing", how=How.STATE)(_answers(True))


def _asks(function: Any) -> Rule:
    """Asks for real; GLOBAL_STATE guards the answer."""

    def rule(session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return session.wrap_constant(session.python_of(function, args, kwargs))

    return rule


@means(torch.is_grad_enabled, how=How.STATE)
def _is_grad_enabled(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    session.state(GradientQuestions).count += 1
    return _asks(torch.is_grad_enabled)(session, args, kwargs)


for _function in (
    torch.is_inference_mode_enabled, torch.is_autocast_enabled,
    torch.get_default_dtype, torch.get_autocast_dtype, torch.is_autocast_cache_enabled,
    torch.get_num_threads, torch.are_deterministic_algorithms_enabled,
    is_torch_function_enabled, torch.cuda.is_available,
    torch.cuda.device_count, torch.accelerator.current_accelerator,
    torch.get_autocast_gpu_dtype,
    len_torch_dispatch_stack, is_autocast_available,
    get_privateuse1_backend_name, torch.is_autocast_cpu_enabled,
    torch.get_autocast_cpu_dtype, torch.cuda.is_bf16_supported,
    torch.cuda.amp.common.amp_definitely_not_available,
    is_any_autocast_enabled, are_functorch_transforms_active, autograd_is_checkpoint_valid,
    *get_sdp_flags,
):  # fmt: skip
    means(_function, how=How.STATE)(_asks(_function))


@means(torch.get_default_device, how=How.STATE)
def _get_default_device(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    device = default_device(session)
    if device is not None:
        return session.wrap_constant(device)
    return _asks(torch.get_default_device)(session, args, kwargs)


def _asks_for_modes(function: Any) -> Rule:
    def rule(session: Session, args: Arguments, kwargs: Keywords) -> Value:
        device = session.state(DefaultDevices).device
        if device is not None:
            raise session.unsupported("mode", f"{function.__name__}() within {device!r}")
        return _asks(function)(session, args, kwargs)

    return rule


for _function in (len_torch_function_stack, is_torch_function_mode_enabled):
    means(_function, how=How.STATE)(_asks_for_modes(_function))

# -- Python functions ------------------------------------------------------------------------------


class WholeFunction(BuiltinValue):
    """A function that is run for real, as a whole: a transform (grad, cond), what one of these has
    made of a function, a profiler's."""

    __slots__ = ("why",)

    def __init__(self, function: FunctionType, why: str, source: Source) -> None:
        super().__init__(function, source)
        self.why = why

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        raise session.unsupported("whole-function", f"{self.object.__qualname__}() {self.why}")


@wraps(FunctionType)
def wrap_python_function(session: Session, object_: Any, source: Source) -> Value:
    meaning = meaning_of(object_)
    if meaning.how is How.BREAK:
        place = FunctionFieldSource(source, "__globals__")
        session.guard(place, Kind.IDENTITY, object_.__globals__)
        return WholeFunction(object_, meaning.rule, source)
    if meaning.how not in (How.STATE, How.REPLACED, How.OPERATION):
        return wrap_function(session, object_, source)
    is_inlinable = meaning.how is How.OPERATION and meaning.rule is None
    fallback = None
    if is_inlinable:
        fallback = wrap_function(session, object_, source)
    session.guard(source, Kind.IDENTITY, object_)
    if meaning.how is How.STATE:
        return StateQuery(object_, meaning.rule)
    if meaning.how is How.REPLACED:
        return session.builtin(meaning.rule)
    if is_inlinable:
        _guard_names_read(session, object_)
    return TorchFunction(object_, source, meaning.rule, fallback)


def _guard_names_read(session: Session, function: FunctionType) -> None:
    for namespace, name, object_ in _names_read(function):
        if namespace is None:
            session.class_lookup(torch.Tensor, name)
        else:
            session.guard(GlobalSource(namespace, name), Kind.IDENTITY, object_)


_Name = tuple[dict[str, Any] | None, str, Any]


@functools.cache
def _names_read(function: FunctionType) -> list[_Name]:
    """What a torch function that is not inlined reads of modules' namespaces, directly or in the
    functions that it reads.

    Each is a namespace (None: an attribute of tensors), a name, and the object."""
    names: dict[tuple[int, str], _Name] = {}
    left = [function]
    while left:
        for namespace, name, object_ in _names_in(left.pop()):
            if (id(namespace), name) not in names:
                names[id(namespace), name] = namespace, name, object_
                if isinstance(object_, FunctionType) and torch_calls.is_part_of_whole(object_):
                    left.append(object_)
    return list(names.values())


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
        if is_global:
            namespace = function.__globals__
        else:
            namespace = vars(module)
        object_ = namespace.get(instruction.arg)
        if isinstance(object_, ModuleType):
            module = object_
        else:
            module = None
        if callable(object_) or module is not None:
            yield namespace, instruction.arg, object_


@wraps(BuiltinFunctionType)
def wrap_c_function(session: Session, object_: Any, source: Source) -> Value:
    meaning = meaning_of(object_)
    if meaning.how is How.STATE:
        session.guard(source, Kind.IDENTITY, object_)
        return StateQuery(object_, meaning.rule)
    if meaning.how is How.OPERATION:
        session.guard(source, Kind.IDENTITY, object_)
        return TorchFunction(object_, source, meaning.rule)
    if isinstance(vars(type(object_.__self__)).get(object_.__name__), MethodDescriptorType):
        return _bound_method(session, object_, source)
    return wrap_builtin(session, object_, source)


def _bound_method(session: Session, object_: Any, source: Source) -> Value:
    """The method of a built-in object, such as the `append` of a list. Each time it is read it is
    another object."""
    session.guard(source, Kind.TYPE, type(object_))
    session.guard(AttrSource(source, "__name__", "slot"), Kind.EQUALS, object_.__name__)
    owner = session.realize(session.wrap_slot(object_, source, "__self__"))
    return owner.get_attribute(session, object_.__name__)


class TorchNamespace(ForeignValue):
    """The object whose attributes are torch's functions."""

    __slots__ = ()

    def get_attribute(self, session: Session, name: str) -> Value:
        attribute = session.python(getattr, self.object, name)
        return session.wrap(attribute, ConstSource(attribute))


wraps(type(VariableFunctions), guards=Kind.IDENTITY)(wrapper_of(TorchNamespace))


wraps(OpOverload, OpOverloadPacket, guards=Kind.IDENTITY)(wrapper_of(TorchFunction))


@wraps(torch.Tensor)
def wrap_tensor(session: Session, object_: Any, source: Source) -> Value:
    if is_subclass_object(object_):
        session.guard(source, Kind.TYPE, type(object_))
        if dispatches(session, type(object_)):
            return wrapper_object(type(object_), None, source, object_)
        refuse_class(session, type(object_), source.name)
        return TensorObject(type(object_), None, source, object_)
    return session.graph.inputs.tensor(session, object_, source)


@wraps(float)
def wrap_float(session: Session, object_: Any, source: Source) -> Value:
    """A float, compiled for its value unless that varies, or may well do so."""
    varies = source in session.symbols
    scheduled = _is_scheduled(source) or session.is_input(object_, source)
    if type(object_) is float and (
        varies or scheduled or session.continues and isinstance(source, ArgSource)
    ):
        session.guard(source, Kind.TYPE, float)
        return OutsideNumber(session, object_, source, varies, scheduled)
    return wrap_literal(session, object_, source)


_SCHEDULED = frozenset({("param_groups", "lr")})
"""Attributes of objects that are lists of dicts, and keys of these: the numbers there are expected
to vary. Schedulers write the learning rate in each group of an optimizer's parameters."""


def _is_scheduled(source: Source) -> bool:
    """Whether a number stands in a place where programs write another one between calls."""
    if not isinstance(source, ItemSource) or not isinstance(source.base, ItemSource):
        return False
    table, key = source.base.base, source.key
    return isinstance(table, AttrSource) and type(key) is str and (table.key, key) in _SCHEDULED


@wraps(int)
def wrap_int(session: Session, object_: Any, source: Source) -> Value:
    """An int, compiled for its value unless that varies. One of a subclass may override
    comparisons."""
    if type(object_) is not int:
        return wrap_literal(session, object_, source)
    varies = Quantity(source, "value") in session.symbols
    fits = INTEGERS[0] <= object_ <= INTEGERS[1]
    if varies and not fits:
        raise too_large()
    varies = varies or object_ not in (0, 1) and session.is_input(object_, source)
    if varies and fits:
        session.guard(source, Kind.TYPE, int)
        return session.graph.inputs.integer(session, object_, source)
    return wrap_literal(session, object_, source)


WRAPPERS.update(dict.fromkeys((torch.dtype, torch.layout, torch.memory_format), wrap_literal))
WRAPPERS.update(dict.fromkeys((torch.finfo, torch.iinfo), wrap_as_constant))
means_pure(torch.device, torch.finfo, torch.iinfo)


@means(torch.Generator, how=How.INSTANCE)
def _refused_class(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    raise session.unsupported("construction", f"a {cls.__qualname__} is made", of=cls)


# -- functions with a meaning of their own ---------------------------------------------------------


@means(assert_, how=How.UNREALIZED)
def _assert(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    condition, message = [*args, *kwargs.values()]
    if not session.truth(condition):
        raise session.raised(AssertionError, session.realize(message))
    return NONE


@means(
    torch.manual_seed,
    torch.seed,
    torch.initial_seed,
    torch.set_rng_state,
    torch.get_rng_state,
    torch.cuda.manual_seed,
    how=How.UNREALIZED,
)
def _random_state(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    raise session.unsupported(
        "random-state",
        "side effect: the random state is read or set (torch.manual_seed and its kin)",
    )


@means(torch.resize_as_, torch.resize_as_sparse_, resize_output_, how=How.OPERATION)
def _resized(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    raise session.unsupported(
        "tensor-object", "a tensor is resized, which changes the object itself"
    )


@means(combine_input_and_mask, how=How.UNREALIZED)
def _masked_input(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    return session.call(session.builtin(polyfills.masked_input), args, kwargs)


@means(nested_tensor_from_mask_left_aligned, how=How.OPERATION)
def _asks_for_nested(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """Whether a mask allows for nested tensors, which are not captured. The graph breaks before the
    call of the function that asks, so that capture goes on behind it."""
    raise session.unsupported(
        "nested-tensor",
        "a padding mask, whose data decides whether tensors become nested,",
        step=session.frames[-1].called_at,
    )


@means(torch.batch_norm, how=How.OPERATION)
def _batch_norm(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    names = "input weight bias running_mean running_var training momentum eps cudnn_enabled".split()
    arguments = dict(zip(names, args)) | kwargs
    if (
        arguments.keys() != set(names)
        or type(session.realize(arguments["momentum"])) is not NumberValue
    ):
        return None
    if not session.truth(arguments.pop("training")):
        return None
    return session.call_builtin(polyfills.batch_norm, *filter(None, map(arguments.get, names)))


means(native_one_hot, how=How.POLYFILL)(polyfills.one_hot)
means(amp_foreach_non_finite_check_and_unscale_, how=How.POLYFILL)(polyfills.unscale_gradients)
means(amp_update_scale_, how=How.POLYFILL)(polyfills.update_scale)


@means(lazy_property_and_property, how=How.INSTANCE)
def _lazy_property(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    """What a lazy property of a distribution is in its class, which is asked for its type alone."""
    function = None
    if args:
        function = getattr(session.realize(args[0]), "object", None)
    if not isinstance(function, FunctionType) or kwargs:
        raise session.unsupported("construction", f"a {cls.__name__} is made")
    return session.wrap_constant(cls(function))
