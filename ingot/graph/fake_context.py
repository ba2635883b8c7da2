"""`FakeContext`: the fakes of one capture, made of the real tensors that it meets.

Tensors go in, fakes come out: one for each tensor, sharing memory where the tensors do.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ingot.errors import unsupported
from ingot.graph import foreign
from ingot.graph.dispatch_mode import Mode
from ingot.graph.fake_ops import run_fake
from ingot.graph.fakes import (
    NUMBERS_OF,
    FakeTensor,
    holds_real,
    is_followed,
    is_leaf,
    numbers_of,
    storage_key,
)
from ingot.graph.schemas import is_composite, is_mutable, is_random, makes_sparse, run_composite
from ingot.graph.shape_context import ANY_SIZE, Bounds, ShapeContext
from ingot.graph.wrappers import dispatched, wrapper_classes
from ingot.loops.side_effects import acts, acts_alone, is_foreign
from ingot.torch_private import (
    ADDRESSING,
    DisableTorchDispatch,
    OpOverload,
    aten,
)
from ingot.wrapped import is_transformed, is_wrapped, untransformed

_NUMBER = aten._local_scalar_dense.default


class FakeContext(Mode):
    """Makes the fakes of one capture. Every op on fakes runs under `with context:`, where calls
    without tensors give fakes too.

    `shapes` holds the size symbols and the guards on them; `data_dependent_sizes` allows unbacked
    ones. While `outside_is_refused`, an op on a tensor that is no fake is an error, unless the
    program spells that tensor out.
    """

    def __init__(self, data_dependent_sizes: bool = False) -> None:
        super().__init__()
        self.shapes = ShapeContext()
        self.shapes.unbacked.enabled = data_dependent_sizes
        self.outside_is_refused = False
        # whether the tensors of the call are taken to be of inference mode
        self.in_inference = torch.is_inference_mode_enabled()
        self._dispatching = 0  # how many classes of wrappers are carrying out an op
        self.draws = 0  # how many ops have drawn random numbers
        self.effects = 0  # how many effectful ops have run
        self.effects_alone = 0  # how many of these are there for what they do
        self.written: list[int] = []  # the storage keys of what foreign ops have written
        # by id of a fake, its data: see known_tensors.py
        self.known: dict[int, tuple[FakeTensor, Tensor]] = {}
        # those of them whose number the present operation has asked for
        self.read: list[tuple[FakeTensor, Any]] = []
        self._fakes: dict[int, tuple[Tensor, FakeTensor]] = {}
        # address of a real storage -> a meta tensor of as many bytes
        self._storages: dict[int, Tensor] = {}
        self._symbolic_storages: set[int] = set()
        self._symbolic_keys: set[int] = set()  # the storage keys of symbolic fakes
        self.addressed: set[int] = set()  # those of fakes addressed from their storage's beginning

    def __torch_dispatch__(
        self, op: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if (answer := self.aside(op, args, kwargs)) is not None:
            return answer
        kwargs = kwargs or {}
        if classes := wrapper_classes(types):
            self._dispatching += 1
            try:
                return dispatched(self, op, classes, args, kwargs)
            finally:
                self._dispatching -= 1
        if self.outside_is_refused and op is not aten.lift_fresh.default:
            if holds_real((args, kwargs)):
                raise unsupported(
                    "outside-tensor",
                    f"{op} is given a tensor that is no argument of the function it is called in",
                )
        if op in ADDRESSING:
            self.address(args[0])
        self.draws += is_random(op)
        undecomposed = torch.is_inference_mode_enabled() or self._dispatching
        if undecomposed and is_composite(op):
            with self:  # it comes here undecomposed, and its result may be an argument or its view
                return run_composite(op, args, kwargs)
        if op in NUMBERS_OF:
            return numbers_of(op, args[0])
        if op is _NUMBER and id(args[0]) in self.known:
            self.read.append((args[0], self.known[id(args[0])][1].item()))
            return self.read[-1][1]
        if makes_sparse(op):  # a fake would pass for one that is strided
            raise unsupported("tensor-layout", f"{op} makes a tensor that is not strided")
        if is_foreign(op):
            self.effects += 1
            self.effects_alone += acts_alone(op)
            self.written += map(storage_key, foreign.written_by(op, args, kwargs))
        elif acts(op) and not is_mutable(op):
            self.effects += 1
            self.effects_alone += 1
        return self.predicted(op, args, kwargs)

    def predicted(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an op."""
        if is_foreign(op):
            return foreign.result_of(self, op, args, kwargs)
        return run_fake(op, args, kwargs, self.shapes)

    def address(self, fake: Tensor) -> None:
        """Note that the program relies on where a fake begins in its storage, and on the storage's
        size."""
        key = storage_key(fake)
        if key in self._symbolic_keys:
            raise unsupported(
                "symbolic-memory",
                "the memory of a tensor with symbolic sizes is addressed from its beginning",
            )
        self.addressed.add(key)

    def fake(
        self,
        tensor: Tensor,
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
        in_inference = self.in_inference or tensor.is_inference()
        if torch.is_inference_mode_enabled() != in_inference:
            with torch.inference_mode(in_inference):
                return self.fake(tensor, dynamic_dims, name, bounds)
        _refuse_exotic(tensor)
        dims: dict[int, Bounds | None] = {}
        for d in dynamic_dims:
            if self.shapes.within(tensor.shape[d], bounds.get(d, ANY_SIZE)):
                dims[d] = bounds.get(d)
        with DisableTorchDispatch():
            inner = self._meta(tensor, dims, name)
        fake = FakeTensor(inner, tensor.device, tensor.requires_grad)
        if tensor.requires_grad and not is_leaf(tensor):
            fake = self._with_history(fake)
        fake.is_outside, fake.required_grad = True, tensor.requires_grad
        fake.is_followed = tensor.requires_grad and is_followed(tensor)
        # the real one is kept, so that its id stays its own
        self._fakes[id(tensor)] = (tensor, fake)
        return fake

    def storage_of(self, address: int) -> int | None:
        """The key of the storage that stands for the real one at an address; None where there is
        none yet."""
        flat = self._storages.get(address)
        if flat is None:
            return None
        return flat.untyped_storage()._cdata

    def _with_history(self, leaf: FakeTensor) -> FakeTensor:
        """A fake in the same memory that is the result of an operation."""
        with torch.enable_grad(), self:
            fake: FakeTensor = leaf.clone()  # type: ignore[assignment]
        fake.meta, fake.memory, fake.origin = leaf.meta, None, fake.grad_fn
        fake.look = None  # that of the clone, which may lie otherwise
        return fake

    def release(self) -> None:
        """Let go of the real tensors, once there are fakes of all: a compilation keeps no tensor of
        the user's alive."""
        self._fakes.clear()
        self._storages.clear()
        self._symbolic_storages.clear()
        self._symbolic_keys.clear()
        self.addressed.clear()
        self.known.clear()
        self.read.clear()

    def _meta(self, tensor: Tensor, dims: Mapping[int, Bounds | None], name: str) -> Tensor:
        """The meta tensor of a real one, in the meta storage that stands for its storage."""
        storage = tensor.untyped_storage()
        address, dtype = storage._cdata, tensor.dtype
        flat = self._storages.get(address)
        if address in self._symbolic_storages or (dims and flat is not None):
            raise unsupported(
                "symbolic-memory", "tensors that share memory cannot have symbolic sizes"
            )
        if dims:
            self._symbolic_storages.add(address)
            sizes, strides = self.shapes.symbolic_geometry(tensor, dims, name)
            symbolic = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
            self._symbolic_keys.add(symbolic.untyped_storage()._cdata)
            return symbolic
        shape, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        if flat is None:
            is_whole = tensor.numel() * tensor.itemsize == storage.nbytes() and not offset
            if is_whole and tensor.is_contiguous():
                flat = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
                self._storages[address] = flat
                return flat
            flat = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")
            self._storages[address] = flat
        view = torch.empty(0, dtype=dtype, device="meta")
        return view.set_(flat.untyped_storage(), offset, shape, stride)  # type: ignore[call-overload]


def _refuse_exotic(tensor: Tensor) -> None:
    """Raise Unsupported for what is not a plain strided tensor."""
    id, problem = _exotic(tensor)
    if problem:
        raise unsupported(id, f"a tensor cannot be traced: {problem}")


def _exotic(tensor: Tensor) -> tuple[str, str]:
    """The id and the sentence of why a tensor cannot be traced; ("", "") for one that can be."""
    if type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
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
