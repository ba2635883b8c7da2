"""`ingot.load`: the programs of a file, as a callable.

Nothing of capture, tracing or scheduling is imported here. Machine code is linked, not generated.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.artifacts import weights
from ingot.artifacts.container import Container
from ingot.artifacts.cpus import missing_features
from ingot.artifacts.gradients import Backward, Node
from ingot.artifacts.known_calls import KnownCalls
from ingot.artifacts.signature import Signature, refuse_shared_memory
from ingot.artifacts.trees import built
from ingot.errors import ArtifactError
from ingot.kept.loading import native_program
from ingot.kept.steps import CONSTANTS, STEPS


class StateTensor(NamedTuple):
    """A tensor that belongs to an artifact.

    `names` are those of a state dict, or the one by which it is found among the constants;
    `is_weight`: it is in the state dict; `has_gradient`: a gradient of it is computed."""

    names: tuple[str, ...]
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    is_weight: bool
    is_written: bool
    has_gradient: bool


class Entry(NamedTuple):
    """A program and what it takes. `inputs` are ("argument", leaf) and ("state", number),
    `arguments` the (position, leaf) of the former, and `written` the positions of those that are
    written. It `decides` where data decide numbers in it, which it checks."""

    calls: KnownCalls
    program: Any
    inputs: tuple[tuple[str, int], ...]
    arguments: tuple[tuple[int, int], ...]
    written: tuple[int, ...]
    calls_library: bool
    decides: bool
    backward: Backward | None


class Artifact:
    """What `ingot.load` gives: called as what was exported, it returns what that would.

    A call records gradients if it was exported with `training=True`. It raises ArtifactError for
    arguments whose facts differ from those that it was exported for, and TypeError for arguments
    that there are not. Tensors of the state that a program writes (buffers of a BatchNorm in
    training, caches) keep what was written, here and not in the file. Calls that write must not run
    at the same time.
    """

    def __init__(self, container: Container, parts: Sequence[Any], check: bool) -> None:
        states, entries, unused, facts = parts
        self.facts: dict[str, str] = dict(facts)
        self._states: list[StateTensor] = []
        for row in states:
            self._states.append(StateTensor(*row))
        self._tensors: list[Tensor | None] = [None] * len(self._states)
        self._unused = frozenset(unused)
        # the inputs of programs, without the arguments
        self._templates: dict[int, list[Any]] = {}
        constants = weights.windows(container.section("constants"), container.path)
        self._entries = list(map(_entry_of, entries, [constants] * len(entries)))
        self._fill(constants, False)
        self._has_weights = "weights" in container
        if self._has_weights:
            self._fill(weights.windows(container.section("weights", check), container.path), True)

    def _fill(self, tensors: Mapping[str, Tensor], are_weights: bool) -> None:
        for k, state in enumerate(self._states):
            if state.is_weight is are_weights:
                self._tensors[k] = _own(state, tensors[state.names[0]])

    @property
    def signatures(self) -> list[str]:
        """What each entry takes, as text."""
        return [str(entry.calls.signature) for entry in self._entries]

    @property
    def signature(self) -> str:
        """What it takes, as text, a line for each entry."""
        return "\n".join(self.signatures)

    def __repr__(self) -> str:
        return f"<Artifact {self.facts.get('name', '')}{' | '.join(self.signatures)}>"

    # -- state -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers by their names in the module that was exported, as far as the
        programs use them. They are the artifact's own: what is written to them is used.

        Raises ArtifactError where there are none yet.
        """
        tensors: dict[str, Tensor] = {}
        for state, tensor in zip(self._states, self._all_tensors()):
            if state.is_weight:
                tensors |= dict.fromkeys(state.names, tensor)
        return tensors

    def parameters(self) -> list[Tensor]:
        """The tensors of the state whose gradients calls record, for an optimizer: there are some
        where it was exported with `training=True`. Raises ArtifactError as `state_dict` does."""
        tensors = zip(self._states, self._all_tensors())
        return [tensor for state, tensor in tensors if state.has_gradient]

    def load_weights(
        self, source: str | os.PathLike[str] | Mapping[str, Tensor], strict: bool = True
    ) -> None:
        """Takes parameters and buffers from a state dict, or from a file of safetensors, by their
        names; a file is mapped into memory.

        strict: raise ArtifactError where one is missing, or one is of no module that was exported.
        Raises it in any case for another dtype or shape, and then takes nothing.
        """
        if isinstance(source, (str, os.PathLike)):
            where = os.fspath(source)
            tensors = _tensors_of(where)
        else:
            where, tensors = "the weights", dict(source)
        found: dict[int, Tensor] = {}
        known = set(self._unused)
        for k, state in enumerate(self._states):
            if not state.is_weight:
                continue
            known.update(state.names)
            for name in state.names:
                if name in tensors:
                    found[k] = _fitting(state, name, tensors[name], where)
                    break
            else:
                if strict:
                    raise ArtifactError(f"{where}: there is no {state.names[0]!r}")
        further = sorted(tensors.keys() - known)
        if strict and further:
            raise ArtifactError(f"{where}: nothing is called {further[0]!r} in what was exported")
        for k, tensor in found.items():
            self._tensors[k] = tensor
        self._templates.clear()

    def _all_tensors(self) -> list[Tensor]:
        for state, tensor in zip(self._states, self._tensors):
            if tensor is None:
                raise ArtifactError(
                    f"the artifact was exported without weights, and {state.names[0]!r} has not "
                    "been loaded: call load_weights first"
                )
        return self._tensors  # type: ignore[return-value]

    # -- calls -------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        entry, (arguments, leaves) = self._entry_for(args, kwargs)
        inputs = self._inputs_of(entry, leaves)
        if entry.written:
            refuse_shared_memory(self._spans(entry, inputs))
        if entry.decides:
            outputs = _run_checked(entry, inputs)
        elif entry.calls_library and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                outputs = _run(entry, inputs)
        else:
            outputs = _run(entry, inputs)
        result = entry.calls.signature.result
        if result == _FIRST_OUTPUT:
            return outputs[0]
        return built(result, outputs, arguments, self._all_tensors())

    def _inputs_of(self, entry: Entry, leaves: Sequence[Any]) -> list[Any]:
        """The inputs of an entry's program in a call."""
        template = self._templates.get(id(entry.program))
        if template is None:
            state, template = self._all_tensors(), []
            for kind, number in entry.inputs:
                template.append(state[number] if kind == "state" else None)
            self._templates[id(entry.program)] = template
        inputs = template.copy()
        for position, number in entry.arguments:
            inputs[position] = leaves[number]
        return inputs

    def _spans(self, entry: Entry, inputs: Sequence[Any]) -> Iterator[tuple[str, Tensor, bool]]:
        """The tensors that a program is given, with their names, and whether it writes them."""
        for position, (tensor, (kind, number)) in enumerate(zip(inputs, entry.inputs)):
            if kind == "state":
                name = repr(self._states[number].names[0])
            else:
                leaf = entry.calls.signature.leaves[number]
                if leaf is None:
                    continue
                name = f"argument {leaf.name!r}"
            yield name, tensor, position in entry.written

    def _entry_for(
        self, args: Any, kwargs: Any
    ) -> tuple[Entry, tuple[Sequence[Any], Sequence[Any]]]:
        """The first entry all of whose facts hold, and what its signature gives for the call."""
        reasons = []
        for entry in self._entries:
            try:
                return entry, entry.calls.bound(args, kwargs)
            except (ArtifactError, TypeError) as reason:
                if len(self._entries) == 1:
                    raise
                reasons.append(f"  {entry.calls.signature}: {reason}")
        raise ArtifactError(
            "no entry of the artifact takes these arguments:\n" + "\n".join(reasons)
        )


_PLAIN_CALL = 6
"""The entries of a step that calls something and binds no numbers."""

_CHECKED = ("the data decide", "does not hold")
"""In the texts of errors about numbers that the data decide."""

_FIRST_OUTPUT = (("output", 0),)
"""A result that is the one output."""


def _run(entry: Entry, inputs: Sequence[Any]) -> Sequence[Any]:
    """The outputs of an entry's program, with a history where gradients are wanted."""
    if not torch.is_grad_enabled():
        return entry.program(*inputs)  # type: ignore[no-any-return]
    if entry.backward is not None:
        return Node.apply(entry.program, entry.backward, *inputs)  # type: ignore[no-any-return]
    with torch.no_grad():
        return entry.program(*inputs)  # type: ignore[no-any-return]


def _run_checked(entry: Entry, inputs: Sequence[Any]) -> Sequence[Any]:
    """The same where data decide numbers that the export has assumed something of."""
    try:
        with torch.autocast("cpu", enabled=False):
            return _run(entry, inputs)
    except RuntimeError as error:
        if any(text in str(error) for text in _CHECKED):
            raise ArtifactError(
                f"the artifact is not for these data: {error}; the original may well take them"
            ) from None
        raise


def load(path: str | os.PathLike[str], *, check_weights: bool = True) -> Artifact:
    """The programs that `ingot.export` wrote to a file, as a callable.

    The weights in it are mapped into memory. check_weights: compare them with their checksum, for
    which they are read once; all else is compared in any case. An artifact has machine code in it:
    load those that you trust.

    Raises ArtifactError for a file that is no artifact, is damaged, is of another format, or is for
    a processor that has more than this one, and OSError where it cannot be read.
    """
    container = Container(path)
    parts = container.unpacked(bytes(container.section("programs")))
    machine, features, *rest = parts
    lacks = missing_features(machine, features)
    if lacks:
        raise container.refused(
            f"it is for a processor with {', '.join(lacks)}, which this one lacks: export it with "
            "cpu= one that both have, such as 'x86-64-v3'"
        )
    return Artifact(container, rest, check_weights)


def _entry_of(row: Sequence[Any], tensors: Mapping[str, Tensor]) -> Entry:
    signature, parts, inputs, written, backward = row
    program, calls_library, decides = _program_of(parts, tensors)
    part = None
    if backward is not None:
        behind, calls, _ = _program_of(backward[0], tensors)
        part, calls_library = Backward(behind, *backward[1:]), calls_library or calls
    arguments = []
    for position, (kind, number) in enumerate(inputs):
        if kind == "argument":
            arguments.append((position, number))
    known = KnownCalls(Signature.of(signature))
    return Entry(known, program, inputs, tuple(arguments), written, calls_library, decides, part)


def _program_of(row: Sequence[Any], tensors: Mapping[str, Tensor]) -> tuple[Any, bool, bool]:
    """A native program, whether it calls anything of torch, and whether data decide numbers in
    it."""
    description, constants, names, images = row
    parts = list(description)
    parts[CONSTANTS] = tuple(map(tensors.__getitem__, constants))
    lengths = [len(step) for step in parts[STEPS] if step[0] == "call"]
    decides = any(length > _PLAIN_CALL for length in lengths)
    return native_program(parts, (names, images, ())), bool(lengths), decides


def _own(state: StateTensor, tensor: Tensor) -> Tensor:
    """A tensor of the state, with the strides that the programs rely on."""
    if tensor.stride() != state.strides:
        laid = torch.empty_strided(state.sizes, state.strides, dtype=state.dtype)
        tensor = laid.copy_(tensor)
    return tensor.requires_grad_() if state.has_gradient else tensor


def _fitting(state: StateTensor, name: str, tensor: Tensor, where: str) -> Tensor:
    tensor = tensor.detach()
    if tensor.dtype is not state.dtype or tuple(tensor.shape) != state.sizes:
        raise ArtifactError(
            f"{where}: {name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}, expected "
            f"{state.dtype} of shape {state.sizes}"
        )
    tensor = tensor.cpu()
    if state.is_written or state.has_gradient:  # what is done to it is not the caller's to see
        tensor = tensor.clone()
    return _own(state, tensor)


def _tensors_of(path: str) -> dict[str, Tensor]:
    import mmap

    with open(path, "rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError:
            raise ArtifactError(f"{path}: it is empty") from None
    return weights.windows(memoryview(mapped), path)
