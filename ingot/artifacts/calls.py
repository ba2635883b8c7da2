"""One call becomes a program that can be put into an artifact.

In: a function and the arguments of a call. Out: its program, its signature, and where each of its
inputs comes from. The call is captured as one graph. What is relied on of its arguments becomes
part of the signature; what cannot be checked later is an ExportError. All else is frozen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from ingot.artifacts import cpus
from ingot.artifacts.arguments import Arguments, bounds_of, of_size_one, usual
from ingot.artifacts.facts import check_guards, signature_of
from ingot.artifacts.results import refuse_effects, result_of
from ingot.artifacts.signature import Signature
from ingot.artifacts.state import State
from ingot.artifacts.training import BackwardPart, training_programs
from ingot.built import Built
from ingot.capture import Captured, Request, capture_call
from ingot.capture.inner_calls import unwatched
from ingot.capture.size_marks import marked
from ingot.codegen.llvm.module import CompiledKernels, compile_kernels
from ingot.codegen.llvm.target import Target, initialize_all
from ingot.collection import paused_collection
from ingot.compilation import Compilation
from ingot.errors import ExportError, GraphBreakError, Unsupported
from ingot.explain.stages import step_text
from ingot.graph.ambient import undisturbed
from ingot.options import Options
from ingot.pipeline import compile_graph
from ingot.rules import hand_over
from ingot.schedule.plan import LibraryStep
from ingot.serial import serial

_OPTIONS = Options(fullgraph=True)
MOST_NAMES = 2
"""Of sizes that are 1 together in programs of their own."""


class How(NamedTuple):
    """What is asked of programs: that they record gradients; and of those that are extra, that they
    call nothing of torch."""

    training: bool
    without_calls: bool


class Program(NamedTuple):
    """A call, compiled.

    `inputs` says where each input comes from: ("argument", leaf) or ("state", number); `written`
    are the positions of those that it writes. `backward` is there where gradients are wanted."""

    signature: Signature
    built: Built
    inputs: tuple[tuple[str, int], ...]
    written: tuple[int, ...]
    backward: BackwardPart | None


def compiled_call(
    fn: Any, args: Any, kwargs: Any, dynamic: Any, state: State, how: How
) -> Iterator[Program]:
    """The program of one call; tensors that it reads and that are no arguments go to `state`.

    Others follow for sizes of 1, where sizes vary that the first takes for anything else, if the
    user has not said so.

    Raises ExportError, and TypeError for arguments that `fn` does not take.
    """
    args, kwargs = usual(args), usual(kwargs)
    arguments = Arguments(fn, args, kwargs, dynamic)
    program = _compiled(fn, args, kwargs, arguments, state, how.training)
    yield program
    ones = set()
    for leaf in arguments.leaves:
        for said in leaf.dims.values():
            if said.least == 1 and said.name in program.signature.sizes_above_one():
                ones.add(said.name)
    for chosen in _subsets(sorted(ones)):
        of_ones = of_size_one(arguments, chosen, args), of_size_one(arguments, chosen, kwargs)
        try:
            arguments_of_ones = Arguments(fn, *of_ones, dynamic, chosen)
            more = _compiled(fn, *of_ones, arguments_of_ones, state, how.training)
        except ExportError:  # the signature of the first says that they are not 1
            continue
        if not (how.without_calls and library_calls(more)):
            yield more


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The sets of names that get programs of their own: all, or each alone where they are many."""
    most = len(names) if len(names) <= MOST_NAMES else 1
    for count in range(1, most + 1):
        yield from itertools.combinations(names, count)


def _compiled(
    fn: Any, args: Any, kwargs: Any, arguments: Arguments, state: State, training: bool
) -> Program:
    with torch.set_grad_enabled(training):
        captured, built, backward = _built(fn, args, kwargs, arguments)
    for line in captured.fixed_marks():
        raise ExportError(
            f"ingot.export: {line}: leave it out of dynamic, or change what needs its value"
        )
    check_guards(captured, arguments)
    inputs, written, written_leaves = [], built.program.written_inputs, set[int]()
    for position, each in enumerate(captured.inputs):
        leaf = arguments.leaf_of(each.source)
        if leaf is None:
            if arguments.is_under(each.source):
                raise ExportError(
                    f"ingot.export: {each.source.name} is read, which is no argument by itself: "
                    "make it one"
                )
            number = state.number_of(each.source, arguments.slots, position in written)
            if backward is not None and position in backward.gradients:
                state.want_gradient(number)
            inputs.append(("state", number))
            continue
        inputs.append(("argument", leaf))
        if position in written:
            written_leaves.add(leaf)
    result = result_of(captured.residual, arguments, state)
    followed = set()
    if backward is not None:
        for k, argument in enumerate(arguments.leaves):
            if isinstance(argument.value, Tensor) and argument.value.requires_grad:
                followed.add(k)
    signature = signature_of(captured, arguments, written_leaves, followed, result)
    return Program(signature, built, tuple(inputs), tuple(sorted(written)), backward)


def code_for(built: Built, cpu: str | None, prefix: str = "kernel") -> CompiledKernels:
    """The machine code of a program for a processor that is named, or for this one. `prefix` is
    that of the names of functions."""
    if cpu is None:
        code: Any = built.code
        return code  # type: ignore[no-any-return]
    plan = built.plan
    symbols = [symbol for symbol, *_ in plan.graph.symbols]
    return compile_kernels(plan.kernels, symbols, target_of(cpu), load=False, prefix=prefix)


def library_calls(program: Program) -> list[str]:
    """The steps of a program that call torch, as texts with the user's lines."""
    texts = []
    plans = [program.built.plan]
    if program.backward is not None:
        plans.append(program.backward.built.plan)
    for step in itertools.chain(*(plan.steps for plan in plans)):
        if isinstance(step, LibraryStep):
            texts.append(step_text(step))
    return texts


def _refuse_devices(graph: fx.Graph) -> None:
    """Raises ExportError where a graph computes elsewhere than on the CPU."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.device.type != "cpu":
            where = node.meta.get("where", "")
            raise ExportError(
                f"ingot.export: the call computes on {value.device} at {where}, and artifacts are "
                "for CPUs"
            )


def target_of(cpu: str) -> Target:
    """What LLVM is told of a processor that is named."""
    initialize_all()
    triple, name, width, _ = cpus.NAMED[cpu]
    return Target(triple, name, "-prefer-256-bit" if width == 64 else "", width)


@serial
def _built(
    fn: Any, args: Any, kwargs: Any, arguments: Arguments
) -> tuple[Captured, Built, BackwardPart | None]:
    """What was captured of a call, its program, and under grad mode its backward."""
    backward = None
    hand_over()
    marks = []
    for leaf in arguments.leaves:
        if isinstance(leaf.value, Tensor) and leaf.dims:
            marks.append((leaf.value, bounds_of(leaf)))
    varying = arguments.integers()
    request = Request(
        _OPTIONS, symbols=varying, observed=varying, data_dependent_sizes=True, expects_errors=False
    )
    try:
        with unwatched(), undisturbed(), paused_collection(), marked(marks):
            captured = capture_call(fn, args, kwargs, request)
            refuse_effects(captured, fn)
            if not captured.ops:
                raise ExportError("ingot.export: the call does no tensor work")
            _refuse_devices(captured.graph_module.graph)
            if torch.is_grad_enabled():
                built, backward = training_programs(captured, _OPTIONS)
                run: Any = built.program.native
            else:
                run, built = compile_graph(captured, Compilation(""), _OPTIONS, {})
            captured.collect_shape_guards()
            captured.context.shapes.closed = True
    except (Unsupported, GraphBreakError) as reason:
        raise ExportError(f"ingot.export: the call is not one graph: {reason}") from None
    if run is not built.program.native:
        raise ExportError(
            "ingot.export: the call returns views of tensors that require gradients: detach them, "
            "or return copies"
        )
    return captured, built, backward
