"""Programs that record gradients, as they are kept: a forward with its contract, and each backward
when it has first been asked for.

What no file has is made of the graph once more: backwards of other tangents, and gradients of
gradients.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ingot import events
from ingot.built import Built
from ingot.codegen.store import store_in
from ingot.compilation import Compilation
from ingot.errors import CompilerBug
from ingot.kept.contents import contents_of, count_of, found
from ingot.kept.contracts import told, understood
from ingot.kept.format import packed
from ingot.kept.loading import form_of, native_program
from ingot.kept.names import NotKept
from ingot.kept.sizes import Sizes
from ingot.loops.training_contract import TrainingContract
from ingot.runtime.higher_order import CompiledGradients, HigherOrderProgram, Inputs, Kinds
from ingot.runtime.tangents import (
    BackwardGraph,
    CompiledBackward,
    Demand,
    lazy_keys,
    tangents_by_sizes,
)
from ingot.runtime.training import TrainingProgram, training_program_of
from ingot.serial import serial


class Whole(NamedTuple):
    """The program of a graph that was compiled in this process, and its `backwards`, which compile
    gradients (`gradients.backwards.Backwards`)."""

    program: TrainingProgram
    backwards: Any
    compilation: Compilation

    @staticmethod
    def of(run: Any, compilation: Compilation) -> Whole:
        """Of what runs the graph."""
        program = training_program_of(run)
        assert program is not None
        return Whole(program, program.backwards, compilation)

    def require_like(self, content: Any, sizes: Sizes) -> None:
        """Raises CompilerBug unless this is a program of which `told_training` gives just this."""
        if told_training(self.program, sizes) != content:
            raise CompilerBug("kept", "a graph that is compiled again saves other values")


# -- the forward -----------------------------------------------------------------------------------


def told_training(program: TrainingProgram, sizes: Sizes) -> Any:
    """What a file has of a program that records gradients, beside its forward."""
    contract, backwards = program.contract, program.backwards
    if contract.refused_outputs:
        raise NotKept("autograd refuses to go back through results")
    reads = []
    for k in range(len(contract.tangents)):
        reads.append(tuple(sorted(backwards.saved_for([k]))))
    higher_order = program.higher_order
    return (
        told(contract, sizes),
        (backwards.recomputes, backwards.has_effects, tuple(reads)),
        (higher_order.draws, higher_order.hooked),
    )


def training_program(
    forward: Callable[..., Any],
    content: Any,
    sizes: Sizes,
    key: str,
    whole: Callable[[], Whole],
    compilation: Compilation,
) -> TrainingProgram:
    """The program of a forward that was kept under this key, of what `told_training` gave; `whole`
    compiles the graph once more."""
    contract, about_backwards, about_gradients = content
    contract = understood(contract, sizes)

    def compile_vjp(kinds: Kinds, inputs: Inputs) -> CompiledGradients:
        return whole().program.higher_order.compile_vjp(kinds, inputs)

    backwards = KeptBackwards(key, contract, about_backwards, whole)
    backwards.forward = compilation
    return TrainingProgram(
        forward,
        contract,
        backwards,
        HigherOrderProgram(compile_vjp, contract, *about_gradients),
    )


# -- the backwards ---------------------------------------------------------------------------------


class KeptBackwards:
    """The backwards of one forward: those that are kept, and others, which are compiled and kept.

    `whole` gives the programs that the graph was compiled to.
    """

    def __init__(
        self, key: str, contract: TrainingContract, about: Any, whole: Callable[[], Whole]
    ) -> None:
        self.recomputes, self.has_effects, self._reads = about
        self.tangents = tangents_by_sizes(contract)
        self._key, self._whole = key, whole
        self.native: Any = None  # what runs the backward of all tangents, if it was found
        self.forward: Compilation | None = None  # if that was found

    def saved_for(self, tangents: Sequence[int]) -> frozenset[int]:
        """Which of the saved values the backward of these tangents may read."""
        needed = frozenset[int]()
        for k in tangents:
            needed = needed.union(self._reads[k])
        return needed

    @serial
    def compile(self, demand: Demand) -> CompiledBackward:
        """The program, and which gradients it computes."""
        store, key = store_in("programs"), self._key_of(demand)
        form = form_of(lambda: self._again(demand))
        known = found(store, key, functools.partial(_restored, form))
        if known is not None:
            if demand.is_whole:
                self.native = known.native
            self._note_found()
            return known.compiled
        whole = self._whole()
        compiled: CompiledBackward = whole.backwards.compile(demand)
        built = whole.backwards.built_of(compiled)
        if built is not None:
            try:
                store.put(key, _content(compiled, built, whole.compilation))
            except NotKept as reason:
                store.counts.add_not_kept(str(reason))
        return compiled

    def _again(self, demand: Demand) -> Built:
        """A backward that was kept, compiled once more."""
        backwards = self._whole().backwards
        built: Built | None = backwards.built_of(backwards.compile(demand))
        assert built is not None  # it has launched a kernel
        return built

    def _note_found(self) -> None:
        forward = self.forward
        if forward is not None:
            title = f"{forward.title}, backward"
            events.note(events.FOUND, title, forward.where, forward.event)

    def graph(self, demand: Demand, sizes: tuple[int, ...] | None) -> BackwardGraph | None:
        """The same as a graph."""
        graph: BackwardGraph | None = self._whole().backwards.graph(demand, sizes)
        return graph

    def _key_of(self, demand: Demand) -> str:
        present = tuple(demand.present)
        return hashlib.sha256(packed((self._key, present, demand.inputs))).hexdigest()


class Keeping(KeptBackwards):
    """Those of a forward that was compiled in this process."""

    def __init__(self, key: str, contract: TrainingContract, whole: Whole) -> None:
        self.own = whole.backwards
        about = self.own.recomputes, self.own.has_effects, ()
        super().__init__(key, contract, about, lambda: whole)
        self.forward = whole.compilation

    def saved_for(self, tangents: Sequence[int]) -> frozenset[int]:
        saved: frozenset[int] = self.own.saved_for(tangents)
        return saved


def _content(compiled: CompiledBackward, built: Built, compilation: Compilation) -> bytes:
    """What a file has of a backward."""
    from ingot.kept.description import packable

    description, code = packable(built.plan, built.code, built.program.device)
    program = description, code, tuple(compiled.gradient_inputs)
    name = f"{compilation.name}, backward"
    return contents_of(name, compilation.where, count_of(code), program)


class _Restored(NamedTuple):
    """A backward that was found, and the native program that runs it."""

    compiled: CompiledBackward
    native: Any


def _restored(form: Callable[[int, int], Any], program: Any) -> _Restored:
    description, code, gradient_inputs = program
    native = native_program(description, code, form)
    native.lays_out = lazy_keys()  # a hook may have replaced what was saved
    return _Restored(CompiledBackward(native.consume, gradient_inputs), native)
