"""Layers that are alike: calls of modules that do the same. One of them is captured, the others are
written down.

In: the call of a module. Out: its result, where an earlier call was alike. It was a call of the
same class, in the same place, with arguments that lie alike; it did nothing but compute new
tensors; and all facts that capture relied on hold of this module as well. So capture would do now
what it did then: the nodes are added once more, with the tensors of this module, whose facts are
guarded.

The facts about a module are the guards whose source begins with its own. The native walk says
whether they hold of another one. What a call has to leave as it was is found by comparing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ingot.capture.learnt_calls import Call, LearntCall, NotLearnt
from ingot.capture.values.base import Arguments, Keywords, LazyValue, Value
from ingot.capture.values.constant import LITERALS, NONE, ConstantValue
from ingot.capture.values.module import ModuleValue
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.graph.fakes import FakeTensor, look_of, storage_key
from ingot.torch_private import peek_interpreter_stack

if TYPE_CHECKING:
    from ingot.capture.interpreter import InterpreterFrame
    from ingot.capture.session import Session

FEWEST_STEPS = 60
"""Instructions of a call that is worth a look: a shorter one is captured in no time."""
MOST_KINDS = 4
"""Calls of one class in one place that are learnt, where their facts differ."""


class AlikeLayers:
    """The calls of modules in one capture."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._steps: dict[type, int] = {}  # of the first call of a module of a class
        self._learnt: dict[Any, list[LearntCall | None]] = defaultdict(list)
        self._under_way: Call | None = None

    def repeated(
        self, module: ModuleValue, args: Arguments, kwargs: Keywords
    ) -> Value | Call | None:
        """The result of a call that is like an earlier one. Else the call, of which `end` is to be
        told, or None where there is nothing to be learnt."""
        session = self.session
        if module.source is None or not _may_repeat(session):
            return None
        steps = self._steps.get(type(module.object))
        if steps is None:
            return Call(module, _counts(session))
        if steps < FEWEST_STEPS:
            return None
        tensors: list[TensorValue] = []
        kind = _kind(session, module, args, kwargs, tensors)
        if kind is None:
            return None
        learnt, is_watched = self._learnt[kind], self._is_under_way()
        if is_watched and not learnt:
            return None
        state = _state(session)
        for layer in self._understood(learnt):
            result = layer.repeated(session, module, tensors, state)
            if result is not None:
                return result
        if is_watched or len(learnt) >= MOST_KINDS:
            return None
        counts, last = _counts(session), session.graph.last
        guards, depth = len(session.guards), len(session.frames)
        nodes = [tensor.fx_node for tensor in tensors]
        return Call(module, counts, kind, tensors, nodes, state, last, guards, depth)

    def _understood(self, learnt: list[LearntCall | None]) -> Iterator[LearntCall]:
        """What was learnt of the calls of a kind. The facts are found when there is another one."""
        for k, call in enumerate(learnt):
            if call is not None and not call.has_facts:
                try:
                    call.find_facts(self.session)
                except NotLearnt:
                    learnt[k] = call = None
            if call is not None:
                yield call

    def _is_under_way(self) -> bool:
        """Whether a call is captured that may be learnt; one inside is learnt with it."""
        call, frames = self._under_way, self.session.frames
        if call is not None and (len(frames) <= call.depth or frames[call.depth].layer is not call):
            self._under_way = call = None  # an exception has left it
        return call is not None

    def begin(self, call: Call, frame: InterpreterFrame) -> None:
        """Takes note of the frame of a call, which is about to run."""
        frame.layer = call
        if call.kind is not None:
            self._under_way = call

    def end(self, call: Call, result: Value) -> None:
        """Learns of a call that has been captured."""
        session = self.session
        if call.kind is None:
            steps = session.steps - call.counts[0]
            cls = type(call.module.object)
            self._steps[cls] = max(steps, self._steps.get(cls, 0))
        elif call is self._under_way:
            self._under_way = None
            learnt = self._learnt[call.kind]
            try:
                if not _may_repeat(session) or _state(session) != call.state:
                    raise NotLearnt
                learnt.append(LearntCall(session, call, result, _counts(session)))
            except NotLearnt:
                learnt += [None] * MOST_KINDS


# -- what calls have in common ---------------------------------------------------------------------


def _may_repeat(session: Session) -> bool:
    """Whether nothing is under way that makes each call another one."""
    graph = session.graph
    if graph is None or session.handled is not NONE or session.inherited is not NONE:
        return False
    inputs, shapes = graph.inputs, graph.context.shapes
    if inputs.dynamic or session.symbols or session.speculative is not None:
        return False
    if shapes.hints or shapes.unbacked.roots or not session.effects.are_none:
        return False
    return peek_interpreter_stack() is None


def _kind(
    session: Session,
    module: ModuleValue,
    args: Arguments,
    kwargs: Keywords,
    tensors: list[TensorValue],
) -> Any:
    """What alike calls have in common, but for facts about the modules; None for one that is like
    no other. The tensors among the arguments are added to `tensors`."""
    key: list[Any] = [module.cls, type(module.object), len(args), *kwargs]
    if not all([_extend(value, key, tensors) for value in (*args, *kwargs.values())]):
        return None
    known = session.graph.known
    if any(
        known.of(tensor.fake) is not None or id(tensor.fake) in known.sizes for tensor in tensors
    ):
        return None
    places: dict[int, int] = {}
    for tensor in tensors:
        key.append(places.setdefault(id(tensor), len(places)))
        key.append(places.setdefault(-storage_key(tensor.fake), len(places)))
    where: Any = session.where
    if session.graph.autograd:  # nodes say by which lines they were reached
        where = tuple([frame.where for frame in session.frames])
    modes = session.graph.modes.changes, torch.is_grad_enabled(), torch.get_default_dtype()
    return (*key, where, *modes)


def _extend(value: Value, key: list[Any], tensors: list[TensorValue]) -> bool:
    """Adds what a call depends on in an argument to `key`. False where that is not known."""
    kind = type(value)
    key.append(kind)
    if kind is TensorValue:
        return _extend_by_tensor(value, key, tensors)  # type: ignore[arg-type]
    if kind is ConstantValue:
        object_: Any = value.object  # type: ignore[attr-defined]
        key += [value.source, type(object_)]
        key.append(repr(object_) if type(object_) in LITERALS else _Same(object_))
        return True
    if kind is LazyValue:
        key += [value.source, _Same(value.object)]  # type: ignore[attr-defined]
        return True
    if kind is TupleValue and value.source is None:
        key += [value.python_type(), len(value.items)]  # type: ignore[attr-defined]
        return all([_extend(item, key, tensors) for item in value.items])  # type: ignore[attr-defined]
    return False


class _Same(NamedTuple):
    """A part of a key that is one object."""

    object: Any

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and self.object is other.object

    def __hash__(self) -> int:
        return id(self.object)


def _extend_by_tensor(tensor: TensorValue, key: list[Any], tensors: list[TensorValue]) -> bool:
    fake = tensor.fake
    if type(fake) is not FakeTensor or tensor.attributes:
        return False
    if tensor.gradient is not NONE or tensor.leaf_since is not None:
        return False
    if tensor.source is not None:
        key.append(tensor.source)  # the very same tensor
    key += [tensor.cls, look_of(fake), fake.requires_grad, fake.is_inference()]
    key += [fake.is_outside, fake.counts_alone, fake.shown_in_inference, fake._is_view()]
    if not fake.is_inference():
        key.append(fake._version)
    try:
        key += [fake.grad_fn is None, fake.retains_grad]
    except RuntimeError:  # a view that was made without gradients, and written
        return False
    tensors.append(tensor)
    return True


def _counts(session: Session) -> tuple[int, ...]:
    """What a call adds to."""
    return session.steps, session.graph.steps, session.graph.context.draws


def _state(session: Session) -> tuple[Any, ...]:
    """All that a call leaves as it was if it does nothing but compute new tensors."""
    recorder, overrides = session.graph, session.overrides
    context, inputs, modes = recorder.context, recorder.inputs, recorder.modes
    states = []
    for cls, state in session._states.items():
        states.append((cls, *_outline(state)))
    return (
        sum([generator.frame is not None for generator in session.suspended]),
        tuple(states),
        *(len(overrides.modes), len(overrides.entered)),
        *(overrides.subclasses_off, overrides.all_off),
        *(recorder.writes, recorder.writes_noted, recorder.in_one_piece, recorder._inside_opaque),
        *map(len, (recorder.budgets, recorder.objects, recorder.replaced, recorder.write_checks)),
        *(recorder.data_questions, len(recorder.known.sizes), len(context.known)),
        *(modes.changes, modes.differs, modes.depth, modes.cleared, modes.entered_at),
        *map(len, (inputs.integers, inputs.marked, inputs.speculative, inputs._numbers)),
        *(context.effects, context.effects_alone, len(context.written), len(context.addressed)),
        *context.shapes.questions,
    )


def _outline(state: Any) -> Iterator[Any]:
    """What an object of a feature's holds, as far as it can be compared."""
    for cls in type(state).__mro__:
        for name in vars(cls).get("__slots__", ()):
            yield _shallow(getattr(state, name, None))
    yield from map(_shallow, getattr(state, "__dict__", {}).values())


def _shallow(held: Any) -> Any:
    if held is None or isinstance(held, (int, str)):
        return held
    if isinstance(held, (list, tuple, dict, set)):
        return id(held), len(held)
    return id(held)
