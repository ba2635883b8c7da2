"""The programs of captured graphs that are kept: for CPUs, of sizes that are known, without
gradients.

In: a captured graph. Out: its program, which an earlier process has planned and compiled, or which
is compiled now, and kept. Capture has run in any case, so the guards and what is done to Python's
objects are made anew. A file has the program's description (see `runtime/description.py`), with the
names of kernels and functions in it, the kernels' object files, and the risks; in front of them
the name of the function, for people (see `contents.py`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ingot.built import Built, CompiledGraph, Risks
from ingot.capture.inner_calls import unwatched
from ingot.codegen.store import Store, store_in
from ingot.compilation import Compilation, Log
from ingot.graph.ambient import Modes, preserved, undisturbed
from ingot.kept.contents import contents_of, read_contents
from ingot.kept.digest import key_of
from ingot.kept.format import unpacked
from ingot.kept.names import NotKept
from ingot.kept.steps import OWNER, STEPS, with_addresses
from ingot.native import _native
from ingot.serial import serial

if TYPE_CHECKING:
    from ingot.capture import Captured
    from ingot.options import Options

logger = logging.getLogger("ingot")

FOUND = "found among the programs that are kept"


class KeptProgram(NamedTuple):
    """A program that an earlier process kept."""

    native: Any
    risks: Risks


def found_or_compiled(
    captured: Captured,
    compilation: Compilation,
    options: Options,
    frozen: Mapping[int, Any],
    import_pipeline: Callable[[], Callable[..., CompiledGraph]],
) -> tuple[Callable[..., Any], Risks]:
    """What runs a captured graph, and its risks. The arguments are those of `compile_graph`, which
    `import_pipeline` gives where nothing is found. Raises Unsupported for what cannot be
    compiled."""
    log, store = compilation.log, store_in("programs")
    key: str | None = None
    if store.is_open:
        try:
            with log.stage("look up"):
                _require_plain(captured)
                key = key_of(captured, options)
                known = _found(store, key)
        except NotKept as reason:
            _not_kept(log, reason)
            key = None
        else:
            if known is not None:
                log.kept = FOUND
                log.compile_again = functools.partial(
                    _compile_again, captured, log, options, known, Modes.now(), import_pipeline
                )
                return known.native, known.risks
    run, built = import_pipeline()(captured, compilation, options, frozen)
    risks = built.risks
    if key is not None:
        try:
            program = _program(run, built, risks)
            kernels = len(program[1][0])
            store.put(key, contents_of(compilation.name, compilation.where, kernels, program))
        except NotKept as reason:
            _not_kept(log, reason)
    return run, risks


def _not_kept(log: Log, reason: NotKept) -> None:
    log.kept = f"not kept: {reason}"
    store_in("programs").counts.add_not_kept(str(reason))


def _require_plain(captured: Captured) -> None:
    """Raises NotKept for graphs of other devices, and those of which gradients may be wanted."""
    followed = torch.is_grad_enabled()
    for each in captured.inputs:
        fake = each.fake
        if not isinstance(fake, torch.Tensor):
            raise NotKept("sizes vary")
        if fake.device.type != "cpu":
            raise NotKept(f"it computes on the device {fake.device.type!r}")
        if followed and fake.requires_grad:
            raise NotKept("gradients are wanted")
    for node in captured.graph_module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise NotKept(f"it computes on the device {value.device.type!r}")
        if node.op != "placeholder" and isinstance(value, torch.Tensor) and value.requires_grad:
            raise NotKept("gradients are wanted")


def _program(run: Any, built: Built, risks: Risks) -> tuple[Any, ...]:
    """What is kept of a program, to be packed."""
    from ingot.kept.description import NamedDescription

    if run is not built.program.native:
        raise NotKept("it is run in parts")
    if risks.checks or risks.binds or risks.is_replayed:
        raise NotKept("sizes depend on the data")
    description = list(NamedDescription(built.plan, built.code, torch.device("cpu")).build())
    description[OWNER] = None
    code = tuple(built.code.names), tuple(built.code.objects)  # type: ignore[union-attr]
    known = risks.fails_at, risks.draws, risks.leaves_traces, risks.fails_first
    return tuple(description), code, known


def _found(store: Store, key: str) -> KeptProgram | None:
    """What was kept under a key. Where it is sound and yet of no use, it is made again."""
    content = store.get(key)
    if content is None:
        return None
    try:
        return _restored(content)
    except Exception as problem:  # of any kind: a program that is kept may fail to be linked
        logger.warning("a program that was kept cannot be used, and is made again: %s", problem)
    return None


def _restored(content: bytes) -> KeptProgram:
    description, (names, images), known = unpacked(read_contents(content).program)
    fails_at, draws, leaves_traces, fails_first = known
    addresses: Any = {}
    if names:
        from ingot.codegen.llvm.library import link

        addresses = link(images, names)
    steps = []
    for step in description[STEPS]:
        steps.append(with_addresses(step, addresses))
    parts = list(description)
    parts[STEPS], parts[OWNER] = tuple(steps), addresses
    generators = (torch.default_generator,) if draws and fails_at is not None else ()
    risks = Risks(fails_at, False, False, draws, generators, leaves_traces, fails_first, False)
    return KeptProgram(_native.Program(tuple(parts)), risks)


@serial
def _compile_again(
    captured: Captured,
    log: Log,
    options: Options,
    known: KeptProgram,
    modes: Modes,
    import_pipeline: Callable[[], Callable[..., CompiledGraph]],
) -> None:
    """Fills in the log of a program that was found."""
    again = Compilation("")
    with unwatched(), undisturbed(), preserved():
        modes.set()
        import_pipeline()(captured, again, options, {})
    log.fill(again.log, known.native)
