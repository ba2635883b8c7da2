"""A compiled graph that records gradients: two programs, and the autograd node that joins them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph

Backward = Callable[[list[Tensor]], Sequence[Any]]
"""Takes the saved tensors and the tangents out of a list, which it empties so that each may die with its last use."""


@dataclass(frozen=True)
class Window:
    """An output that shares the memory of an input or of another output, `base` ("input" | "output", position): a
    window on it, `offset` elements from its first, with a history if `tracked`."""

    output: int
    base: tuple[str, int]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    tracked: bool

    def on(self, inputs: Sequence[Tensor], outputs: Sequence[Any]) -> Tensor:
        """The output, from the inputs and the other outputs of the call."""
        kind, position = self.base
        base = (inputs if kind == "input" else outputs)[position]
        if not self.tracked:
            base = base.detach()
        elif kind == "output" and self.offset == 0 and base.shape == self.sizes and base.stride() == self.strides:
            return base
        if base.dtype.is_complex and not self.dtype.is_complex:
            base = torch.view_as_real(base)
        elif self.dtype.is_complex and not base.dtype.is_complex:
            pairs, steps = (*self.sizes, 2), (*(2 * stride for stride in self.strides), 1)
            return torch.view_as_complex(base.as_strided(pairs, steps, base.storage_offset() + 2 * self.offset))
        elif base.dtype != self.dtype:
            base = base.view(self.dtype)
        return base.as_strided(self.sizes, self.strides, base.storage_offset() + self.offset)


@dataclass(frozen=True)
class Tangent:
    """The gradient that comes in for an output, in the layout that the backward expects."""

    output: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def laid_out(self, given: Tensor | None) -> Tensor:
        """`given` in that layout; zeros where nothing came in."""
        if given is None:
            return torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device=self.device).zero_()
        if given.layout is not torch.strided:
            given = given.to_dense()
        plain = not (given.is_conj() or given.is_neg() or given._is_zerotensor())
        if plain and given.stride() == self.strides:
            return given
        return torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device=self.device).copy_(given)


class WithLeaves:
    """Makes leaves of the inputs at some positions, and runs a program on all of them."""

    def __init__(self, run: Callable[..., Sequence[Any]], leaves: Sequence[int]) -> None:
        self.run, self.leaves = run, tuple(leaves)

    def __call__(self, *inputs: Tensor) -> Sequence[Any]:
        for position in self.leaves:
            inputs[position].requires_grad_()
        return self.run(*inputs)


class WithWindows:
    """Runs a program and makes the outputs that are windows, whose place it leaves empty; `count` outputs in all."""

    def __init__(self, run: Callable[..., Sequence[Any]], windows: Sequence[Window], count: int) -> None:
        self.run, self.windows, self.count = run, tuple(windows), count

    def __call__(self, *inputs: Tensor) -> tuple[Any, ...]:
        outputs = list(self.run(*inputs))
        for window in self.windows:
            outputs[window.output] = window.on(inputs, outputs)
        return tuple(outputs[: self.count])


class Original:
    """The program before it was compiled, which is differentiated again when somebody differentiates the gradients.

    `compile_vjp` says for each tangent whether it requires a gradient, and returns what takes the inputs and the
    tangents, and gives the gradients with their history. `written` are the inputs that the program writes; `draws` says
    that it draws random numbers.
    """

    def __init__(
        self,
        compile_vjp: Callable[[tuple[bool, ...]], Callable[..., Sequence[Any]]],
        written: Sequence[int],
        draws: bool,
    ) -> None:
        self.compile_vjp, self.written, self.draws = compile_vjp, tuple(written), draws
        self._programs: dict[tuple[bool, ...], Callable[..., Sequence[Any]]] = {}
        self._lock = threading.Lock()

    def before(self, inputs: Sequence[Tensor]) -> State:
        """What is needed to run it again, taken before it runs."""
        if not self.written and not self.draws:
            return UNCHANGED
        kept = {k: inputs[k].clone() for k in self.written}
        return State(kept, torch.get_rng_state() if self.draws else None)

    def gradients(self, inputs: Sequence[Tensor], state: State, tangents: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The gradients of the inputs (as they were) that have one, with their history."""
        kind = tuple(t.requires_grad for t in tangents)
        with self._lock:
            run = self._programs.get(kind)
        if run is None:  # not under the lock: compiling may wait for a thread that is here
            run = self.compile_vjp(kind)
            with self._lock:
                run = self._programs.setdefault(kind, run)
        if state.random is None:
            return run(*inputs, *tangents)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state.random)
            return run(*inputs, *tangents)


class State(NamedTuple):
    """What a call changed, as it was before: inputs by their position, with their history, and the state of the random
    numbers."""

    written: dict[int, Tensor]
    random: Tensor | None


UNCHANGED = State({}, None)


class TrainingProgram:
    """Runs the forward program on the inputs, and makes the backward program their outputs' history.

    `forward` returns the `outputs`, then what the backward needs besides. Inputs that become results of the program,
    as it writes them, are `written`, with the positions of the outputs, the last ones, that stand for them. `saved`
    says where the backward's first arguments are found: ("input" | "output" | "kept", position). `compile_backward` is
    called when the first gradient comes in; what it returns takes the saved tensors and then the tangents, and returns
    the gradients of the inputs `wanted`. `original` is what second derivatives are taken of. `spent` are outputs that
    have a history which autograd refuses to go through, and its error. `hidden`: outputs have a history, but no input
    has a gradient. `apart` are inputs that may require a gradient and have none: the outputs' history does not lead to
    theirs.
    """

    def __init__(
        self,
        forward: Callable[..., Sequence[Any]],
        compile_backward: Callable[[], Backward],
        original: Original,
        *,
        inputs: int,
        outputs: int,
        written: Mapping[int, int],
        tangents: Sequence[Tangent],
        wanted: Sequence[int],
        saved: Sequence[tuple[str, int]],
        spent: Mapping[int, Exception],
        hidden: bool,
        apart: Sequence[int],
    ) -> None:
        self.forward, self.compile_backward, self.original = forward, compile_backward, original
        self.inputs, self.outputs, self.tangents = inputs, outputs, tuple(tangents)
        self.written = dict(written)
        self.wanted = tuple(wanted)
        first = {"input": 0, "output": inputs, "kept": inputs + outputs}
        self.saved = tuple(first[kind] + position for kind, position in saved)  # among the inputs and all results
        tracked = {t.output for t in tangents}.union(spent)
        self.untracked = tuple(k for k in range(outputs) if k not in tracked)
        self.spent, self.apart = spent, frozenset(apart)
        self.leaf = torch.empty(0, requires_grad=True) if hidden else None
        self._backward: Backward | None = None
        self._lock = threading.Lock()

    def __call__(self, *inputs: Tensor) -> tuple[Any, ...]:
        """The outputs, which carry their history."""
        for position in self.written:
            _refuse_unwritable(inputs[position])
        state, given = self.original.before(inputs), inputs
        if self.apart:
            given = tuple([t.detach() if k in self.apart else t for k, t in enumerate(inputs)])
        results = _apply(self, state, self.leaf, *given)
        for position, output in self.written.items():
            _rebase(inputs[position], results[output])
        return results[: self.outputs - len(self.written)]

    def backward(self, saved: list[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of all inputs, None for those that have none. Empties `saved`."""
        self._refuse_spent(tangents)
        if not self.wanted:
            return self._by_input(())
        run = self._backward
        if run is None:
            with self._lock:
                run = self._backward = self._backward or self.compile_backward()
        saved += self._laid_out(tangents)
        return self._by_input(run(saved))

    def backward_with_history(
        self, inputs: Sequence[Tensor], state: State, tangents: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The same, from the inputs, and themselves differentiable."""
        self._refuse_spent(tangents)
        return self._by_input(self.original.gradients(inputs, state, self._laid_out(tangents)) if self.wanted else ())

    def _refuse_spent(self, tangents: Sequence[Tensor | None]) -> None:
        for output, error in self.spent.items():
            if tangents[output] is not None:
                raise type(error)(*error.args)

    def _laid_out(self, tangents: Sequence[Tensor | None]) -> list[Tensor]:
        return [t.laid_out(tangents[t.output]) for t in self.tangents]

    def _by_input(self, found: Sequence[Any]) -> list[Tensor | None]:
        gradients: list[Tensor | None] = [None] * self.inputs
        for position, gradient in zip(self.wanted, found):
            gradients[position] = gradient
        return gradients


class _Graph(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, program: TrainingProgram, state: State, leaf: Any, *inputs: Tensor
    ) -> tuple[Any, ...]:
        results = list(program.forward(*inputs))
        for position, output in program.written.items():
            results[output] = inputs[position].detach()
        ctx.set_materialize_grads(False)
        ctx.program = program
        found = (*inputs, *results)
        ctx.save_for_backward(*[found[k] for k in program.saved])
        inputs = tuple([state.written.get(k, t) for k, t in enumerate(inputs)])  # what was written leads back here
        ctx.state, ctx.inputs = state, (inputs, [t._version for t in inputs])
        if program.untracked:
            ctx.mark_non_differentiable(*[results[k] for k in program.untracked if isinstance(results[k], Tensor)])
        return tuple(results[: program.outputs])

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor | None) -> Any:  # type: ignore[override]
        program: TrainingProgram = ctx.program
        saved = list(ctx.saved_tensors)  # raises where they were let go, or were written
        if not torch.is_grad_enabled():
            ctx.maybe_clear_saved_tensors()
            if not _keeps_graph():
                ctx.inputs = ctx.state = None
            return None, None, None, *program.backward(saved, tangents)
        inputs, versions = ctx.inputs
        if [t._version for t in inputs] != versions:
            raise RuntimeError(
                "a tensor that a compiled function was given has been modified by an inplace operation, and second "
                "derivatives are wanted (hint: modify it after the backward)"
            )
        return None, None, None, *program.backward_with_history(inputs, ctx.state, tangents)


class _Rebased(torch.autograd.Function):
    """Makes a tensor that was written the result of what wrote it, of which `value` is the result in autograd's eyes.
    A view hands on what it knows to what it is a view of."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, value: Tensor) -> Tensor:  # type: ignore[override]
        ctx.mark_dirty(tensor)
        ctx.set_materialize_grads(False)
        ctx.is_view = tensor._is_view()
        return tensor

    @staticmethod
    def backward(ctx: Any, tangent: Tensor | None) -> Any:  # type: ignore[override]
        if tangent is None or not (ctx.is_view and ctx.needs_input_grad[0]):
            return None, tangent
        return torch.zeros_like(tangent), tangent  # of None, autograd would make None for the rest of the base as well


def _rebase(tensor: Tensor, value: Tensor) -> None:
    version = tensor._version  # which counts the program's write already
    _Rebased.apply(tensor, value)
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))  # type: ignore[attr-defined]


def _refuse_unwritable(tensor: Tensor) -> None:
    """Raises autograd's error for a view that must not be written where gradients are recorded."""
    if not tensor._is_view():
        return
    made = torch._C._autograd._get_creation_meta(tensor)  # type: ignore[attr-defined]
    leaf = tensor.requires_grad and tensor._base is not None and tensor._base.is_leaf
    if leaf or made != torch._C._autograd.CreationMeta.DEFAULT:  # type: ignore[attr-defined]
        tensor.as_strided((0,), (1,)).zero_()


_apply = super(torch.autograd.Function, _Graph).apply  # type: ignore[misc]
"""What `_Graph.apply` comes to where no transform of torch.func is active, which guards see to."""
