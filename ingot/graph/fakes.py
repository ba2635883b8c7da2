"""Fake tensors: shape, strides, dtype, device and aliasing of a tensor, without its data.

A `FakeTensor` wraps a meta tensor, on which ops run, and reports the real device. Two fakes share
memory exactly when their meta tensors share a storage (`storage_key`). Autograd runs above the
dispatch, so `requires_grad` of a result answers as eager's would.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import torch
from torch.fx import Node

from ingot.errors import CompilerBug, EagerRaises, Unsupported, unsupported
from ingot.graph import data_dependent, geometry, meta
from ingot.graph.checks import check
from ingot.graph.foreign import by_python_fake, gives_nothing, has_python_fake
from ingot.graph.schemas import (
    arguments_of,
    functional_form,
    is_composite,
    is_mutable,
    is_random,
    run_composite,
    written,
)
from ingot.graph.shape_context import ANY_SIZE, Bounds, ShapeContext
from ingot.graph.symbolic_views import is_symbolic
from ingot.graph.symbols import to_expr
from ingot.loops.side_effects import acts
from ingot.reasons import SKIP
from ingot.torch_private import (
    ADDRESSING,
    DisableTorchDispatch,
    OpOverload,
    TorchDispatchMode,
    aten,
    disabled_torch_function_impl,
    dispatch_has_kernel,
    pop_torch_dispatch_stack,
    push_on_torch_dispatch_stack,
)
from ingot.wrapped import is_transformed, is_wrapped, untransformed

_CPU, _META = torch.device("cpu"), torch.device("meta")
_NUMBER = aten._local_scalar_dense.default


class FakeTensor(torch.Tensor):
    """A tensor without data: `meta` carries geometry and storage identity, the wrapper reports the
    real device."""

    meta: torch.Tensor
    is_outside = False  # whether it stands for a tensor that existed before the call
    is_wanted = False  # whether that one required a gradient then
    # whether more than its `grad` follows from that gradient: it has a history, or hooks
    is_followed = False
    origin: Any = None  # its history then
    look: int | None = None  # what `look_of` has said
    memory: int | None = None  # what `storage_key` has said
    # whether it is what `data` gives: autograd does not count writes to it as its tensor's
    counts_alone = False
    # whether inference mode has made this view of a tensor that is none of its own
    shown_in_inference = False

    @staticmethod
    def __new__(
        cls, meta: torch.Tensor, device: torch.device, requires_grad: bool = False
    ) -> FakeTensor:
        fake = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            layout=meta.layout,
            device=device,
            requires_grad=requires_grad,
        )
        fake.meta = meta
        return fake

    __torch_function__ = disabled_torch_function_impl  # type: ignore[assignment]

    def __init__(
        self, meta: torch.Tensor, device: torch.device, requires_grad: bool = False
    ) -> None:
        pass

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore
        # Without a mode torch has by now imported torch.distributed.tensor, and sympy, to ask
        # whether this is a DTensor
        raise CompilerBug("fakes", f"{op} was called on fakes outside of `with context:`")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        sizes = ", ".join(map(str, self.shape))
        return f"FakeTensor([{sizes}], {str(self.dtype).removeprefix('torch.')}, {self.device})"


def fake_like(meta: torch.Tensor, like: torch.Tensor, requires_grad: bool = False) -> FakeTensor:
    """A fake of what `meta` is, on the device of another tensor, and one of inference mode's if
    that is."""
    if like.is_inference() == torch.is_inference_mode_enabled():
        return FakeTensor(meta, like.device, requires_grad)
    with torch.inference_mode(like.is_inference()):
        return FakeTensor(meta, like.device, requires_grad)


def data_of(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor.data`, as a node of a graph: it shares memory, and autograd counts writes to it by
    themselves."""
    data = tensor.data
    if isinstance(data, FakeTensor):
        data.counts_alone = True
    return data


def holds_real(tree: Any) -> bool:
    """Whether there is a tensor that is no fake in nested lists, tuples and dicts."""
    if isinstance(tree, torch.Tensor):
        return not isinstance(tree, FakeTensor)
    if isinstance(tree, (list, tuple)):
        return any(map(holds_real, tree))
    return isinstance(tree, dict) and any(map(holds_real, tree.values()))


def storage_key(fake: torch.Tensor) -> int:
    """Identity of the memory behind a fake: equal for two fakes exactly when they alias."""
    assert isinstance(fake, FakeTensor)
    if fake.memory is None:
        fake.memory = fake.meta.untyped_storage()._cdata
    return fake.memory


def shows_the_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two fakes surely show the same elements of the same memory."""
    assert isinstance(a, FakeTensor) and isinstance(b, FakeTensor)
    return a is b or (storage_key(a) == storage_key(b) and look_of(a) == look_of(b))


# -- calls that are alike --------------------------------------------------------------------------

_looks: dict[Any, int] = {}
_numbers = itertools.count()
_MOST_KEPT = 1 << 14
_PLAIN = frozenset((int, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format))


def look_of(fake: FakeTensor) -> int:
    """A number that fakes have in common whose sizes, strides, offset, dtype and device are equal:
    of those with symbolic ones, within one capture."""
    if fake.look is None:
        t = fake.meta
        known = _looks
        place: tuple[Any, ...] = t.shape, t.stride(), t.storage_offset()
        shapes = _context_of(t)
        if shapes is not None:
            known, place = (
                shapes.looks,
                (*map(to_expr, (*t.shape, *t.stride(), t.storage_offset())),),
            )
        if len(known) >= _MOST_KEPT:
            known.clear()
        look = known.setdefault(
            (place, t.dtype, fake.device, t.is_conj(), t.is_neg()), next(_numbers)
        )
        if shapes is not None and shapes.supposes:
            return look
        fake.look = look
    return fake.look


def _context_of(t: torch.Tensor) -> ShapeContext | None:
    """Where the symbols are from that tell how a tensor lies, if there are any."""
    numbers = (*t.shape, *t.stride(), t.storage_offset())
    return next((n.node.context for n in numbers if isinstance(n, torch.SymInt)), None)


def tell_apart(values: Iterable[Any], key: list[Any], fakes: list[Any]) -> bool:
    """Adds to `key` what tells a call with these arguments from any whose tensors lie otherwise or
    whose other arguments differ, and its tensors (or the nodes that stand for them) to `fakes`.
    False where that cannot be said."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            look = value.look
            key.append(look_of(value) if look is None else look)
            fakes.append(value)
            continue
        key.append(kind)
        if kind is Node:
            fakes.append(value)
            continue
        if kind in _PLAIN:
            key.append(value)
        elif kind is float:
            key.append(value.hex())  # which tells zeros apart
        elif kind is tuple or kind is list or kind is torch.Size:
            key.append(len(value))
            if not tell_apart(value, key, fakes):
                return False
        elif kind is torch.device and (value.type == "cpu" or value.index is not None):
            key.append(value)
        else:
            return False
    return True


class Made(NamedTuple):
    """What a fake with memory of its own is like."""

    sizes: tuple[int | torch.SymInt, ...]
    strides: tuple[int | torch.SymInt, ...]
    dtype: torch.dtype
    device: torch.device
    look: int

    @classmethod
    def like(cls, fake: Any, given: Iterable[FakeTensor]) -> Self | None:
        """Of a result; None for what is no fake, wants gradients, or lies in memory that was
        given."""
        if type(fake) is not FakeTensor:
            return None
        t = fake.meta
        if (
            not isinstance(t.storage_offset(), int)
            or t.storage_offset()
            or t.is_conj()
            or t.is_neg()
        ):
            return None
        if storage_key(fake) in map(storage_key, given):
            return None
        if fake.requires_grad:
            return None
        return cls(tuple(t.shape), t.stride(), t.dtype, fake.device, look_of(fake))

    def another(self) -> FakeTensor:
        t = torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device=_META)
        fake: FakeTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            FakeTensor, self.sizes, self.strides, 0, dtype=self.dtype, device=self.device
        )
        fake.meta, fake.look = t, self.look
        return fake


_results: dict[Any, Made] = {}  # of ops whose results are decided by what their arguments look like


def run_fake(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: ShapeContext | None = None,
) -> Any:
    """The result of an ATen op on fakes. In-place and out= forms return the very fakes they write.
    `shapes` makes the sizes that depend on data.

    Raises Unsupported for results that depend on data, for changes of a tensor's own geometry, and
    for what eager would refuse.
    """
    fakes: list[FakeTensor] = []
    described: list[Any] = [op, len(args)]
    key = None
    if (
        tell_apart(args, described, fakes)
        and (not kwargs or tell_apart(_flat(kwargs), described, fakes))
        and fakes
    ):
        key = torch.get_default_dtype(), *described
        known = _results.get(key) or (shapes.results.get(key) if shapes is not None else None)
        if known is not None and (shapes is None or not shapes.unbacked.roots):
            return known.another()
    asked = shapes.questions if shapes is not None else ()
    seen: list[torch.Tensor] = []
    inner = tuple([_unwrap(a, seen) for a in args])
    inner_kwargs = {k: _unwrap(v, seen) for k, v in kwargs.items()} if kwargs else kwargs
    if is_mutable(op):
        return _run_mutating(op, args, kwargs, inner, inner_kwargs)
    if not seen:
        inner = numbers_as_tensors(op, inner)
    device = _result_device(seen, kwargs)
    if "device" in inner_kwargs:
        inner_kwargs["device"] = torch.device("meta")
    try:
        check(op, inner, inner_kwargs)
        if shapes is not None and shapes.unbacked.roots:
            data_dependent.expect_elements(op, seen)
        of_data = shapes is not None and shapes.unbacked.enabled and device.type == "cpu"
        rule = data_dependent.rule_for(op, inner) if of_data else None
        if rule is not None and shapes is not None:
            before = len(shapes.unbacked.made)
            result = rule(shapes, *inner, **inner_kwargs)
            data_dependent.note_counts(shapes.unbacked, op, seen, shapes.unbacked.made[before:])
        else:
            by_look = meta.rule_for(op, device.type)
            result = by_look(op, inner, inner_kwargs)
    except Unsupported:
        raise
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        # what is taken to be as usual may not be so
        certain = shapes is None or not data_dependent.any_decided(seen)
        sentence = f"{op} refuses these arguments: {meta.first_line(error)}"
        if certain and dispatch_has_kernel(op.name()):
            raise EagerRaises(sentence) from error
        raise unsupported("op-fails", sentence) from error
    inside = torch.is_inference_mode_enabled()
    fakes = fakes if key is not None else [t for t in seen if isinstance(t, FakeTensor)]
    if inside or any(t.is_inference() or t.shown_in_inference for t in fakes):
        if not inside and torch.is_grad_enabled() and any(t.shown_in_inference for t in fakes):
            raise unsupported(
                "inference-mode", "a view made in inference mode is used outside of it"
            )
        result = _wrap_views(result, device, fakes, inside)
    else:
        result = _wrap(result, device)
    if (
        key is not None
        and rule is None
        and by_look in meta.BY_LOOK
        and (made := Made.like(result, fakes)) is not None
    ):
        known_here = _results
        if any(_context_of(fake.meta) is not None for fake in fakes):
            if shapes is None or shapes.questions != asked:
                return result
            known_here = shapes.results
        if len(known_here) >= _MOST_KEPT:
            known_here.clear()
        known_here[key] = made
    return result


def numbers_as_tensors(op: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an op that is given numbers alone in the places of tensors, as `torch.div(7,
    2)`."""
    numbers = dict(numbers_in_place_of_tensors(op, args))
    return tuple([
        torch.empty((), dtype=numbers[k], device="meta") if k in numbers else a
        for k, a in enumerate(args)
    ])  # fmt: skip


def numbers_in_place_of_tensors(
    op: OpOverload, args: tuple[Any, ...]
) -> Iterator[tuple[int, torch.dtype]]:
    """Which arguments are numbers though the op takes tensors there, and the types of these."""
    for k, (argument, value) in enumerate(zip(op._schema.arguments, args)):
        if isinstance(argument.type, torch.TensorType) and type(value) in NUMBERS:
            yield k, _DTYPES.get(type(value)) or _default_dtype(type(value))


_DTYPES = {bool: torch.bool, int: torch.int64, torch.SymInt: torch.int64}
NUMBERS = frozenset({*_DTYPES, float, complex})


def _default_dtype(kind: type) -> torch.dtype:
    dtype = torch.get_default_dtype()
    return dtype.to_complex() if kind is complex else dtype


def _flat(kwargs: Mapping[str, Any]) -> Iterable[Any]:
    return itertools.chain.from_iterable(kwargs.items())


def _run_mutating(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inner: tuple[Any, ...],
    inner_kwargs: dict[str, Any],
) -> Any:
    if torch.Tag.inplace_view in op.tags:
        return _restride(op, args, inner)
    form = functional_form(op)
    if form is None:
        raise unsupported(
            "op-writes", f"{op} writes its arguments in a way that is not understood yet"
        )
    names = [name for _, name in written(op)]
    form_kwargs = {k: v for k, v in inner_kwargs.items() if k not in names or k == "self"}
    check(form, inner, form_kwargs)
    results = meta.rule_for(form)(form, inner, form_kwargs)
    bound = {name: v for (name, _), v in zip(arguments_of(op), args)} | kwargs
    targets = [bound[name] for name in names]
    if (
        any(target.shown_in_inference for target in targets)
        and not torch.is_inference_mode_enabled()
    ):
        raise unsupported("inference-mode", f"{op} writes a view that was made in inference mode")
    read = [t for t in meta.tensors_in((inner, inner_kwargs)) if t.device.type == "meta"]
    for target in targets:  # most ops refuse these in eager
        if geometry.is_expanded(target):
            raise unsupported("op-writes", f"{op} writes a tensor whose elements share memory")
        if any(_overlaps_partly(target.meta, other) for other in read):
            raise unsupported("op-writes", f"{op} writes memory that it reads at other places")
    for target, result in zip(targets, results if isinstance(results, tuple) else (results,)):
        if not geometry.same_sizes(target.shape, result.shape):
            raise unsupported("op-writes", f"{op} would change the size of the tensor it writes")
        if not torch.can_cast(result.dtype, target.dtype):
            raise unsupported("op-writes", f"{op} cannot write {result.dtype} into {target.dtype}")
    return targets[0] if len(targets) == 1 else tuple(targets)


def _overlaps_partly(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors without gaps share memory, but are not the same elements in the same
    order."""
    if (
        a is b
        or a.untyped_storage()._cdata != b.untyped_storage()._cdata
        or is_symbolic(a)
        or is_symbolic(b)
    ):
        return False
    spans = [
        range(t.storage_offset() * t.itemsize, (t.storage_offset() + t.numel()) * t.itemsize)
        for t in (a, b)
    ]
    apart = spans[0].stop <= spans[1].start or spans[1].stop <= spans[0].start
    if apart or not all(geometry.is_dense(t.shape, t.stride()) for t in (a, b)):
        return False
    return spans[0] != spans[1] or a.stride() != b.stride()


def _restride(op: OpOverload, args: tuple[Any, ...], inner: tuple[Any, ...]) -> Any:
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


def _unwrap(value: Any, seen: list[torch.Tensor]) -> Any:
    if isinstance(value, FakeTensor):
        seen.append(value)
        return value.meta
    if isinstance(value, (list, tuple)):
        return [_unwrap(v, seen) for v in value]
    # a literal such as torch.tensor(3.0): its value is the recorder's affair
    if isinstance(value, torch.Tensor):
        seen.append(value)
        return value.to("meta")
    return value


def _wrap(result: Any, device: torch.device) -> Any:
    if isinstance(result, torch.Tensor):
        return FakeTensor(result, device)
    if isinstance(result, (list, tuple)):
        return type(result)([_wrap(r, device) for r in result])
    return result


def _wrap_views(result: Any, device: torch.device, given: list[FakeTensor], inside: bool) -> Any:
    """The same where tensors of inference mode are about: what shows the memory of another is of
    its kind."""
    if isinstance(result, (list, tuple)):
        return type(result)([_wrap_views(r, device, given, inside) for r in result])
    if not isinstance(result, torch.Tensor):
        return result
    memory = result.untyped_storage()._cdata
    shown = next((t for t in given if storage_key(t) == memory), None)
    if shown is None:
        return FakeTensor(result, device)
    made = fake_like(result, shown)
    made.shown_in_inference = shown.shown_in_inference or inside and not shown.is_inference()
    return made


def _result_device(tensors: list[torch.Tensor], kwargs: dict[str, Any]) -> torch.device:
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


class Mode(TorchDispatchMode):
    """A dispatch mode of one thread: torch's own way in and out sets flags of the whole process as
    well, for torch.compile."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the handler so that its first call imports torch._dynamo

    def __enter__(self) -> Self:
        push_on_torch_dispatch_stack(self)
        return self

    def __exit__(self, *raised: Any) -> None:
        pop_torch_dispatch_stack(None)


class FakeContext(Mode):
    """Makes the fakes of one capture. Every op on fakes runs under `with context:`, where calls
    without tensors give fakes too.

    `shapes` holds the size symbols and the guards on them; `data_dependent_sizes` allows such that
    data decide. While `outside_is_refused`, an op on a tensor that is no fake is an error, unless
    the program spells that tensor out.
    """

    def __init__(self, data_dependent_sizes: bool = False) -> None:
        super().__init__()
        self.shapes = ShapeContext()
        self.shapes.unbacked.enabled = data_dependent_sizes
        self.outside_is_refused = False
        # then what is given is taken to be of its kind
        self.in_inference = torch.is_inference_mode_enabled()
        self.draws = 0  # how many ops have drawn random numbers
        self.effects = 0  # how many may have done something else beside their results
        # by id of a fake: see known_tensors.py
        self.known: dict[int, tuple[FakeTensor, torch.Tensor]] = {}
        # of these, what the operation that runs has asked for its number
        self.read: list[tuple[FakeTensor, Any]] = []
        self._fakes: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        # address of a real storage -> a meta tensor of as many bytes
        self._storages: dict[int, torch.Tensor] = {}
        self._symbolic_storages: set[int] = set()
        self._symbolic_keys: set[int] = set()  # the keys of symbolic fakes' memory
        self.addressed: set[int] = set()  # the keys of memory that was addressed from its beginning

    def __torch_dispatch__(
        self, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.outside_is_refused and op is not aten.lift_fresh.default:
            if holds_real((args, kwargs)):
                raise unsupported(
                    "outside-tensor",
                    f"{op} is given a tensor that is no argument of the function it is called in",
                )
        if op in ADDRESSING:
            self.address(args[0])
        self.draws += is_random(op)
        if torch.is_inference_mode_enabled() and is_composite(op):
            with self:  # it comes here whole, and may be, or show the memory of, what it is given
                return run_composite(op, args, kwargs)
        if op is _NUMBER and id(args[0]) in self.known:
            self.read.append((args[0], self.known[id(args[0])][1].item()))
            return self.read[-1][1]
        self.effects += acts(op) and not is_mutable(op)
        return self.predicted(op, args, kwargs)

    def predicted(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What an op gives."""
        if gives_nothing(op):
            return None
        if has_python_fake(op):
            return by_python_fake(self, op, args, kwargs)
        return run_fake(op, args, kwargs, self.shapes)

    def address(self, fake: torch.Tensor) -> None:
        """Notes that places in the whole memory behind a fake are relied on: where the tensor
        begins in it, and how much there is."""
        key = storage_key(fake)
        if key in self._symbolic_keys:
            raise unsupported(
                "symbolic-memory",
                "the memory of a tensor with symbolic sizes is addressed from its beginning",
            )
        self.addressed.add(key)

    def fake(
        self,
        tensor: torch.Tensor,
        dynamic_dims: frozenset[int] = frozenset(),
        name: str = "",
        bounds: Mapping[int, Bounds] = MappingProxyType({}),
    ) -> FakeTensor:
        """The fake of a real tensor, the same one at every call; tensors that share memory get
        fakes that do.

        Sizes of `dynamic_dims` become symbols, unless they are 0 or not within `bounds`; `name` is
        what the shape guards call the tensor. Raises Unsupported for what is not a plain strided
        tensor.
        """
        known = self._fakes.get(id(tensor))
        if known is not None:
            return known[1]
        if isinstance(tensor, FakeTensor):
            return tensor
        if is_transformed():  # its level would make the fake its own
            with untransformed():
                return self.fake(tensor, dynamic_dims, name, bounds)
        kind = self.in_inference or tensor.is_inference()
        if torch.is_inference_mode_enabled() != kind:
            with torch.inference_mode(kind):
                return self.fake(tensor, dynamic_dims, name, bounds)
        _refuse_exotic(tensor)
        dims = {
            d: bounds.get(d)
            for d in dynamic_dims
            if self.shapes.within(tensor.shape[d], bounds.get(d, ANY_SIZE))
        }
        with DisableTorchDispatch():
            inner = self._meta(tensor, dims, name)
        wrapped = FakeTensor(inner, tensor.device, tensor.requires_grad)
        wrapped.is_outside, wrapped.is_wanted = True, tensor.requires_grad
        wrapped.is_followed = tensor.requires_grad and is_followed(tensor)
        if tensor.requires_grad and not is_leaf(tensor):
            with torch.enable_grad(), self:
                wrapped = wrapped.clone()  # type: ignore[assignment]
            wrapped.meta, wrapped.memory, wrapped.is_outside, wrapped.is_wanted = (
                inner,
                None,
                True,
                True,
            )
            wrapped.is_followed = True
            wrapped.origin = wrapped.grad_fn
        # the real one is kept, so that its id stays its own
        self._fakes[id(tensor)] = (tensor, wrapped)
        return wrapped

    def release(self) -> None:
        """Lets go of the real tensors, once there are fakes of all: what a compilation leaves
        behind keeps no tensor of the user's alive."""
        self._fakes.clear()
        self._storages.clear()
        self._symbolic_storages.clear()
        self._symbolic_keys.clear()
        self.addressed.clear()
        self.known.clear()
        self.read.clear()

    def _meta(
        self, tensor: torch.Tensor, dims: Mapping[int, Bounds | None], name: str
    ) -> torch.Tensor:
        storage = tensor.untyped_storage()
        flat = self._storages.get(storage._cdata)
        if storage._cdata in self._symbolic_storages or (dims and flat is not None):
            raise unsupported(
                "symbolic-memory", "tensors that share memory cannot have symbolic sizes"
            )
        if dims:
            self._symbolic_storages.add(storage._cdata)
            sizes, strides = self.shapes.symbolic_geometry(tensor, dims, name)
            made = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")
            self._symbolic_keys.add(made.untyped_storage()._cdata)
            return made
        if flat is None:
            whole = (
                tensor.numel() * tensor.itemsize == storage.nbytes() and not tensor.storage_offset()
            )
            if whole and tensor.is_contiguous():
                flat = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META
                )
                self._storages[storage._cdata] = flat
                return flat
            flat = torch.empty(storage.nbytes(), dtype=torch.uint8, device=_META)
            self._storages[storage._cdata] = flat
        result = torch.empty(0, dtype=tensor.dtype, device="meta")
        return result.set_(
            flat.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
        )  # type: ignore[call-overload]


def requires_grad(fake: torch.Tensor) -> bool:
    """What `requires_grad` says. Raises Unsupported where torch refuses to say."""
    return _asked(fake, "requires_grad")


def has_history(fake: torch.Tensor) -> bool:
    """Whether there is a `grad_fn`. Raises Unsupported where torch refuses to say."""
    return _asked(fake, "grad_fn") is not None


def is_rebased(fake: FakeTensor) -> bool:
    """Whether an input has become the result of an operation that wrote it."""
    return requires_grad(fake) and fake.grad_fn is not fake.origin


def _asked(fake: torch.Tensor, name: str) -> Any:
    try:
        return getattr(fake, name)
    except RuntimeError:  # a view under no_grad that was written
        why = "a view of a tensor that wants gradients was made without them, and written"
        raise unsupported("tensor-kind", why, action=SKIP) from None


def is_followed(tensor: torch.Tensor) -> bool:
    """Whether autograd's engine would do more with a gradient of a tensor than to add it to its
    `grad`."""
    return not is_leaf(tensor) or bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # torch refuses to say, for a view under no_grad that was written
        why = "a tensor cannot be traced: it is a view of one that wants gradients, and was written"
        raise unsupported("tensor-kind", why) from None


def _refuse_exotic(tensor: torch.Tensor) -> None:
    id, problem = _exotic(tensor)
    if problem:
        raise unsupported(id, f"a tensor cannot be traced: {problem}")


def _exotic(tensor: torch.Tensor) -> tuple[str, str]:
    """The id and the sentence of why a tensor cannot be traced; ("", "") for one that can be."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return "tensor-kind", f"its type is {type(tensor).__name__}"
    if is_wrapped(tensor):
        return "tensor-kind", "a transform of torch.func has wrapped it"
    if tensor.layout is not torch.strided:
        return "tensor-layout", f"its layout is {tensor.layout}"
    if tensor.is_conj() or tensor.is_neg():
        return "tensor-layout", "it is a conjugate or negative view"
    if tensor._is_zerotensor():
        return "tensor-kind", "it is zero without memory"
    if tensor.is_quantized:
        return "tensor-layout", "it is quantized"
    if tensor.is_nested:
        return "tensor-layout", "it is nested"
    return "", ""
