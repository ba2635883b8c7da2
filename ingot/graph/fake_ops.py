"""ATen ops on fake tensors.

`run_fake` takes an op and its arguments, and gives the fakes that eager's results would be like, by
the op's meta rule. It is run once for each call key. No data is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises, Unsupported, unsupported
from ingot.graph import data_dependent, geometry, meta
from ingot.graph.call_keys import FakeSpec, extend_key
from ingot.graph.checks import check
from ingot.graph.fakes import MOST_KEPT, FakeTensor, context_of, fake_like, fakes_in, storage_key
from ingot.graph.nodes import results_of
from ingot.graph.schemas import bind, functional_form, is_mutable, written
from ingot.graph.shape_context import ShapeContext
from ingot.graph.symbolic_views import is_symbolic
from ingot.loops.side_effects import is_foreign
from ingot.sequences import Args, Kwargs, at
from ingot.torch_private import DisableTorchDispatch, OpOverload, aten, dispatch_has_kernel

_CPU, _META = torch.device("cpu"), torch.device("meta")
_DTYPES = {bool: torch.bool, int: torch.int64, torch.SymInt: torch.int64}
NUMBERS = frozenset({*_DTYPES, float, complex})

_results: dict[Any, FakeSpec] = {}
"""Of ops whose results follow from what their arguments look like, by call key."""


def run_fake(
    op: OpOverload,
    args: Args,
    kwargs: Kwargs,
    shapes: ShapeContext | None = None,
) -> Any:
    """The result of an ATen op on fakes. In-place and out= forms return the very fakes they write.
    `shapes` makes the sizes that depend on data.

    Raises Unsupported for results that depend on data, for changes of a tensor's own geometry, and
    for what eager would refuse.
    """
    key, fakes = _key_of(op, args, kwargs)
    spec = _remembered(key, shapes)
    if spec is not None:
        return spec.new()
    questions = shapes.questions if shapes is not None else ()
    tensors: list[Tensor] = []
    inner = tuple([_unwrap(a, tensors) for a in args])
    inner_kwargs = {}
    for k, v in kwargs.items():
        inner_kwargs[k] = _unwrap(v, tensors)
    if is_mutable(op) and not is_foreign(op):
        return _run_mutating(op, args, kwargs, inner, inner_kwargs)
    if not tensors:
        inner = numbers_as_tensors(op, inner)
    device = _result_device(tensors, kwargs)
    if "device" in inner_kwargs:
        inner_kwargs["device"] = _META
    try:
        result, by_look = _predicted(op, inner, inner_kwargs, tensors, device, shapes)
    except Unsupported:
        raise
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        # what is assumed of unbacked sizes may not hold
        certain = shapes is None or not list(data_dependent.decided_sizes(tensors))
        sentence = f"{op} refuses these arguments: {meta.first_line(error)}"
        if certain and dispatch_has_kernel(op.name()):
            raise EagerRaises(sentence) from error
        raise unsupported("op-fails", sentence) from error
    if key is None:  # and `fakes` may not be all of them
        fakes = fakes_in(tensors)
    result = _wrapped(result, device, fakes)
    if key is not None and by_look:
        _remember(key, result, fakes, shapes, questions)
    return result


def _predicted(
    op: OpOverload,
    args: Args,
    kwargs: Kwargs,
    tensors: Sequence[Tensor],
    device: torch.device,
    shapes: ShapeContext | None,
) -> tuple[Any, bool]:
    """The meta tensors that an op gives, and whether they follow from its arguments' looks."""
    check(op, args, kwargs)
    if shapes is not None and shapes.unbacked.roots:
        data_dependent.expect_elements(op, tensors)
    if shapes is not None and shapes.unbacked.enabled and device.type == "cpu":
        by_data = data_dependent.rule_for(op, args)
        if by_data is not None:
            before = len(shapes.unbacked.bound)
            result = by_data(shapes, *args, **kwargs)
            data_dependent.note_counts(shapes.unbacked, op, tensors, shapes.unbacked.bound[before:])
            return result, False
    rule = meta.rule_for(op, device.type)
    return rule(op, args, kwargs), rule in meta.BY_LOOK


# -- results by call key ---------------------------------------------------------------------------


def _key_of(
    op: OpOverload, args: Args, kwargs: Kwargs
) -> tuple[tuple[Any, ...] | None, list[FakeTensor]]:
    """The key of a call on fakes, and these; None where it has no fakes or no key."""
    fakes: list[FakeTensor] = []
    key: list[Any] = [torch.get_default_dtype(), op, len(args)]
    if not extend_key(args, key, fakes) or kwargs and not extend_key(_flat(kwargs), key, fakes):
        return None, fakes
    return tuple(key) if fakes else None, fakes


def _flat(kwargs: Mapping[str, Any]) -> Iterable[Any]:
    return itertools.chain.from_iterable(kwargs.items())


def _remembered(key: Any, shapes: ShapeContext | None) -> FakeSpec | None:
    if key is None:
        return None
    if shapes is None:
        return _results.get(key)
    if shapes.unbacked.roots:  # their deferred checks have to be made each time
        return None
    return _results.get(key) or shapes.results.get(key)


def _remember(
    key: Any,
    result: Any,
    fakes: Sequence[FakeTensor],
    shapes: ShapeContext | None,
    questions: tuple[int, ...],
) -> None:
    """Keep a result, unless it was decided by a question: the next such call has to ask it too."""
    spec = FakeSpec.of(result, fakes)
    if spec is None:
        return
    results = _results
    if any(context_of(fake.meta) is not None for fake in fakes):
        if shapes is None or shapes.questions != questions:
            return
        results = shapes.results
    if len(results) >= MOST_KEPT:
        results.clear()
    results[key] = spec


# -- numbers in place of tensors -------------------------------------------------------------------


def numbers_as_tensors(op: OpOverload, args: Args) -> tuple[Any, ...]:
    """The arguments of an op that is given numbers alone in the places of tensors, as `torch.div(7,
    2)`."""
    converted = list(args)
    for k, dtype in numbers_in_place_of_tensors(op, args):
        converted[k] = torch.empty((), dtype=dtype, device="meta")
    return tuple(converted)


def numbers_in_place_of_tensors(op: OpOverload, args: Args) -> Iterator[tuple[int, torch.dtype]]:
    """Which arguments are numbers though the op takes tensors there, and the types of these."""
    for k, (argument, value) in enumerate(zip(op._schema.arguments, args)):
        if isinstance(argument.type, torch.TensorType) and type(value) in NUMBERS:
            yield k, _DTYPES.get(type(value)) or _default_dtype(type(value))


def _default_dtype(kind: type) -> torch.dtype:
    dtype = torch.get_default_dtype()
    if kind is complex:
        return dtype.to_complex()
    return dtype


# -- ops that write their arguments ----------------------------------------------------------------


def _run_mutating(
    op: OpOverload,
    args: Args,
    kwargs: Kwargs,
    inner: Args,
    inner_kwargs: Kwargs,
) -> Any:
    """The tensors that an in-place or out= op writes, once its functional form may run."""
    if torch.Tag.inplace_view in op.tags:
        return _restride(op, args, inner)
    form = functional_form(op)
    if form is None:
        raise unsupported(
            "op-writes", f"{op} writes its arguments in a way that is not understood yet"
        )
    names = written(op)
    form_kwargs = {}
    for k, v in inner_kwargs.items():
        if k not in names or k == "self":
            form_kwargs[k] = v
    check(form, inner, form_kwargs)
    results = meta.rule_for(form)(form, inner, form_kwargs)
    targets = at(bind(op, args, kwargs), names)
    if not torch.is_inference_mode_enabled() and any(t.shown_in_inference for t in targets):
        raise unsupported("inference-mode", f"{op} writes a view that was made in inference mode")
    _refuse_overlaps(op, targets, meta.tensors_in((inner, inner_kwargs)))
    for target, result in zip(targets, results_of(results)):
        if not geometry.same_sizes(target.shape, result.shape):
            raise unsupported("op-writes", f"{op} would change the size of the tensor it writes")
        if not torch.can_cast(result.dtype, target.dtype):
            raise unsupported("op-writes", f"{op} cannot write {result.dtype} into {target.dtype}")
    if len(targets) == 1:
        return targets[0]
    return tuple(targets)


def _refuse_overlaps(
    op: OpOverload, targets: Sequence[FakeTensor], arguments: Sequence[Tensor]
) -> None:
    """Raise Unsupported where the result depends on the order of writes: most ops refuse it."""
    read = []
    for t in arguments:
        if t.device.type == "meta":
            read.append(t)
    for target in targets:
        if geometry.is_expanded(target):
            raise unsupported("op-writes", f"{op} writes a tensor whose elements share memory")
        if any(_overlaps_partly(target.meta, other) for other in read):
            raise unsupported("op-writes", f"{op} writes memory that it reads at other places")


def _overlaps_partly(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors without gaps share memory, but are not the same elements in the same
    order."""
    if a is b or a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    if is_symbolic(a) or is_symbolic(b):
        return False
    span, other = _span(a), _span(b)
    if span.stop <= other.start or other.stop <= span.start:
        return False
    if not (geometry.is_dense(a.shape, a.stride()) and geometry.is_dense(b.shape, b.stride())):
        return False
    return span != other or a.stride() != b.stride()


def _span(t: Tensor) -> range:
    """The bytes of a dense tensor in its storage."""
    start = t.storage_offset() * t.itemsize
    return range(start, start + t.numel() * t.itemsize)


def _restride(op: OpOverload, args: Args, inner: Args) -> Any:
    """as_strided_, unsqueeze_ and their kin, by which some of torch's own functions shape what they
    return."""
    fake, form = args[0], functional_form(op)
    if form is None or fake.is_outside or is_symbolic(fake.meta):
        raise unsupported("op-writes", f"{op} changes a tensor's own geometry")
    if op is not aten.as_strided_.default:
        view = form(*inner)
        geometry_ = (view.shape, view.stride(), view.storage_offset())
        op, args, inner = aten.as_strided_.default, (fake, *geometry_), (inner[0], *geometry_)
    with DisableTorchDispatch():
        op(*inner)
        op(*args)
    fake.look = None
    return fake


# -- fakes and what they wrap ----------------------------------------------------------------------


def _unwrap(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, FakeTensor):
        tensors.append(value)
        return value.meta
    if isinstance(value, (list, tuple)):
        return [_unwrap(v, tensors) for v in value]
    # a literal such as torch.tensor(3.0): its value is the recorder's affair
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.to("meta")
    return value


def _wrapped(result: Any, device: torch.device, fakes: Sequence[FakeTensor]) -> Any:
    """Fakes of an op's results. Where tensors of inference mode take part, a view is of the kind of
    the tensor that it shows."""
    inside = torch.is_inference_mode_enabled()
    shown = any(t.shown_in_inference for t in fakes)
    if not (inside or shown or any(t.is_inference() for t in fakes)):
        return meta.map_tensors(lambda t: FakeTensor(t, device), result)
    if shown and not inside and torch.is_grad_enabled():
        raise unsupported("inference-mode", "a view made in inference mode is used outside of it")

    def wrapped(t: Tensor) -> FakeTensor:
        memory = t.untyped_storage()._cdata
        base = next((fake for fake in fakes if storage_key(fake) == memory), None)
        if base is None:
            return FakeTensor(t, device)
        view = fake_like(t, base)
        view.shown_in_inference = base.shown_in_inference or inside and not base.is_inference()
        return view

    return meta.map_tensors(wrapped, result)


def _result_device(tensors: list[Tensor], kwargs: Kwargs) -> torch.device:
    """The device keyword, else the device of the tensors; those of rank 0 on the CPU go along with
    any other."""
    device = kwargs.get("device")
    if device is not None:
        return _with_index(torch.device(device))
    device = None
    for t in tensors:
        if device is None or t.device == device:
            device = t.device
        elif device == _CPU and all(o.dim() == 0 for o in tensors if o.device == _CPU):
            device = t.device
        elif not (t.device == _CPU and t.dim() == 0):
            raise unsupported(
                "devices-in-op", f"tensors on {device} and on {t.device} meet in one op"
            )
    return device or _with_index(torch.get_default_device())


def _with_index(device: torch.device) -> torch.device:
    """The device that eager takes: of several GPUs the current one where none is named."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
