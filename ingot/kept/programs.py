"""The programs of captured graphs that are kept, of sizes that are known or vary.

In: a captured graph. Out: its program, which an earlier process has planned and compiled, or which
is compiled now, and kept. Capture has run in any case, so the guards and what is done to Python's
objects are made anew. A file has the program's description (see `runtime/description.py`), with the
names of kernels and functions in it, the kernels' machine code, the risks, and the guards that
compiling left on sizes (see `sizes.py`); in front of them the name of the function, for people (see
`contents.py`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ingot import events
from ingot.built import Built, CompiledGraph, Risks, generator_of
from ingot.capture.inner_calls import unwatched
from ingot.codegen.store import Store, store_in
from ingot.compilation import Compilation, Log
from ingot.graph.ambient import Modes, preserved, undisturbed
from ingot.kept.contents import contents_of, count_of, found
from ingot.kept.digest import key_of
from ingot.kept.loading import form_of, native_program
from ingot.kept.names import NotKept
from ingot.kept.sizes import Question, Sizes
from ingot.runtime.windows import WithWindows
from ingot.serial import serial

if TYPE_CHECKING:
    from ingot.capture import Captured
    from ingot.options import Options

FOUND = "found among the programs that are kept"
OTHER_SIZES = "kept for other sizes"
MOST_VARIANTS = 8
"""Programs of one graph that are kept, each for other relations of the sizes that vary."""


class KeptProgram(NamedTuple):
    """A program that an earlier process kept: `run` takes the inputs of the graph, through the
    `native` program."""

    run: Callable[..., Any]
    native: Any
    risks: Risks


class _Compile(NamedTuple):
    """Compiles a captured graph, as often as it is called."""

    captured: Captured
    options: Options
    frozen: Mapping[int, Any]
    import_pipeline: Callable[[], Callable[..., CompiledGraph]]

    def __call__(self, compilation: Compilation) -> CompiledGraph:
        return self.import_pipeline()(self.captured, compilation, self.options, self.frozen)


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
    compile_ = _Compile(captured, options, frozen, import_pipeline)
    question = Question(captured.context.shapes)
    key: str | None = None
    if store.is_open:
        try:
            with log.stage("look up"):
                again = _Again(compile_, compilation, Modes.now(), question)
                known = _look_up(store, key_of(captured, options, question.sizes), again)
        except NotKept as reason:
            _not_kept(log, reason)
        else:
            if isinstance(known, KeptProgram):
                log.kept = FOUND
                events.note(events.FOUND, compilation.title, compilation.where)
                return known.run, known.risks
            key = known
    run, built = compile_(compilation)
    risks = built.risks
    if key is not None:
        try:
            program = _program(run, built, risks, question)
            kernels = count_of(program[1])
            store.put(key, contents_of(compilation.name, compilation.where, kernels, program))
        except NotKept as reason:
            _not_kept(log, reason)
        else:
            _keep_backwards(run, key, compilation)
    return run, risks


def is_missing(captured: Captured, options: Options) -> bool:
    """Whether the program of a captured graph may be kept, and no process has kept it."""
    store = store_in("programs")
    if not store.is_open or not captured.ops:
        return False
    try:
        return not store.has(key_of(captured, options, Sizes(captured.context.shapes)))
    except NotKept:
        return False


def _look_up(store: Store, key: str, again: _Again) -> KeptProgram | str:
    """The program, or the key to keep it under.

    Where sizes vary there may be several, each for those of which its guards hold. Of many, the
    last one is replaced."""
    variant = key
    for number in range(MOST_VARIANTS):
        if number:
            variant = hashlib.sha256(f"{key} {number}".encode()).hexdigest()
        known = found(store, variant, functools.partial(_restored, again, variant))
        if isinstance(known, KeptProgram):
            return known
        if known is None:
            break
    return variant


def _not_kept(log: Log, reason: NotKept) -> None:
    log.kept = f"not kept: {reason}"
    store_in("programs").counts.add_not_kept(str(reason))


# -- what is kept ----------------------------------------------------------------------------------


def _program(run: Any, built: Built, risks: Risks, question: Question) -> tuple[Any, ...]:
    """What is kept of a program, to be packed."""
    from ingot.kept.contracts import told_windows
    from ingot.kept.description import packable

    if risks.checks or risks.binds or question.depends_on_data:
        raise NotKept("sizes depend on the data")
    if risks.is_replayed:
        raise NotKept("it is replayed as CUDA graphs")
    windows = training = None
    if isinstance(run, WithWindows):
        windows, run = told_windows(run, question.sizes), run.run
    if run is not built.program.native:
        training = _training(run, built, question.sizes)
    generators = []
    for generator in risks.generators:
        generators.append(generator.device)
    known = risks.fails_at, risks.draws, tuple(generators), risks.leaves_traces, risks.fails_first
    parts = known, training, windows, question.answer()
    return *packable(built.plan, built.code, built.program.device), *parts


def _training(run: Any, built: Built, sizes: Sizes) -> Any:
    """What is kept of a program that records gradients, beside its forward."""
    from ingot.kept.training import told_training
    from ingot.runtime.training import TrainingProgram

    if not isinstance(run, TrainingProgram) or run.forward is not built.program.native:
        raise NotKept("it is run in parts")
    return told_training(run, sizes)


def _keep_backwards(run: Any, key: str, compilation: Compilation) -> None:
    """Has the backwards of a program kept, if it records gradients, each once it is compiled."""
    if compilation.backward is not None:
        from ingot.kept.training import Keeping, Whole

        whole = Whole.of(run, compilation)
        whole.program.backwards = Keeping(key, whole.program.contract, whole)


# -- what is found ---------------------------------------------------------------------------------


class _Again:
    """Compiles a captured graph whose program was found, when something is asked that no file
    has."""

    def __init__(
        self, compile_: _Compile, compilation: Compilation, modes: Modes, question: Question
    ) -> None:
        self._compile, self._compilation, self._modes = compile_, compilation, modes
        self.question, self.answer = question, question.answer()
        self._compiled: tuple[CompiledGraph, Compilation] | None = None

    @property
    def forward(self) -> Compilation:
        """The compilation whose program was found."""
        return self._compilation

    @serial
    def compiled(self) -> tuple[CompiledGraph, Compilation]:
        """The programs, made once, and what is known of them."""
        if self._compiled is None:
            again = Compilation(self._compilation.name, self._compilation.where)
            asked_again = self.question.asked_again(self.answer)
            with unwatched(), undisturbed(), preserved(), asked_again:
                self._modes.set()
                self._compiled = self._compile(again), again
        return self._compiled

    def built(self) -> Built:
        """What the forward's program went through."""
        return self.compiled()[0].built

    def offer(self, run: Any, native: Any) -> None:
        """Has a report compile the graph of what runs it, to show what it went through."""
        self._compilation.log.compile_again = functools.partial(self._fill, run, native)

    def _fill(self, run: Any, native: Any, log: Log) -> None:
        """Fills in the log of the program that was found, which is `native`."""
        _, again = self.compiled()
        log.fill(again.log, native)
        backward = self._compilation.backward = again.backward
        self._compilation.partial_backwards = again.partial_backwards
        if backward is not None:
            backward.log.then(functools.partial(_take_native, run))


def _take_native(run: Any, log: Log) -> None:
    """Has the log of a backward name the program that runs it, if that was found."""
    from ingot.runtime.training import training_program_of

    program = training_program_of(run)
    native = getattr(program.backwards, "native", None) if program is not None else None
    if native is not None:
        log.replace_native(native)


def _restored(again: _Again, key: str, program: Any) -> KeptProgram | str:
    """The program; `OTHER_SIZES` where its guards do not hold for those at hand."""
    description, code, known, training, windows, answer = program
    question = again.question
    if not question.is_answered_by(answer):
        return OTHER_SIZES
    again.answer = answer
    fails_at, draws, devices, leaves_traces, fails_first = known
    native = native_program(description, code, form_of(again.built))
    generators = tuple(map(generator_of, devices))
    risks = Risks(fails_at, False, False, draws, generators, leaves_traces, fails_first, False)
    run: Callable[..., Any] = native
    if training is not None:
        from ingot.kept.training import Whole, training_program

        def whole() -> Whole:
            graph, compilation = again.compiled()
            whole = Whole.of(graph.run, compilation)
            whole.require_like(training, question.sizes)
            return whole

        run = training_program(native, training, question.sizes, key, whole, again.forward)
    if windows is not None:
        from ingot.kept.contracts import with_windows

        run = with_windows(run, windows, question.sizes)
    question.take(answer)
    again.offer(run, native)
    return KeptProgram(run, native, risks)
