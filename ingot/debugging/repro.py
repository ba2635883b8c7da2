"""Scripts that show a failure by themselves: written, loaded, and checked.

A script has the captured graph as a function of torch calls, its inputs, the options and modes, and
what it shows. Inputs are made from their facts, with seeds, or lie beside the script in a file of
`torch.save`: that keeps strides, and which tensors share memory, and is read without running code.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.capture import Captured
from ingot.capture.guards import Kind
from ingot.debugging.cases import Case, case_from, case_of
from ingot.debugging.comparing import Comparison
from ingot.debugging.inputs import RandomState, copies
from ingot.debugging.made_inputs import HELPER, Facts
from ingot.errors import GraphBreakError, ReproError
from ingot.events import encodable
from ingot.graph.symbols import to_expr
from ingot.options import Options

FOLDER = "INGOT_REPRO_DIR"
"""Names the folder for scripts of differences and internal errors."""

DIFFERENCE = "difference"
_numbers = itertools.count(1)

log = logging.getLogger("ingot")


@dataclass(frozen=True)
class Repro:
    """A graph, and how it is compiled.

    `inputs` are values, or `Facts` of tensors to be made. `options` are arguments of
    `ingot.compile`. `modes` are those around the call. `shows` is "difference" or the type of an
    exception; "" if nothing is known to be wrong.
    """

    case: Case
    inputs: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    modes: Mapping[str, Any] = field(default_factory=dict)
    shows: str = ""
    title: str = ""

    def made(self) -> list[Any]:
        """The inputs as values."""
        return [value.make() if isinstance(value, Facts) else value for value in self.inputs]

    @property
    def gradients(self) -> bool:
        return bool(self.modes.get("grad", True))


class Failure(NamedTuple):
    """What is wrong with a compiled program: `kind` is as `Repro.shows`, `what` a sentence."""

    kind: str = ""
    what: str = ""


# -- of what was compiled --------------------------------------------------------------------------


def repro_of(
    captured: Captured,
    options: Options,
    title: str,
    inputs: Sequence[Any] | None = None,
    shows: str = "",
) -> Repro:
    """The script of a captured graph, of these inputs or of such as have the facts of its own.
    Raises NotWritable for a graph that has no text."""
    case = case_of(captured.graph_module.graph)
    given: list[Any] = []
    if inputs is not None:
        given = list(inputs)
    else:
        for seed, graph_input in enumerate(captured.inputs):
            given.append(_facts_of(graph_input.fake, captured.context.shapes.hints, seed))
    arguments, modes = _compile_options(options, captured), _modes_of(captured)
    return Repro(case, tuple(given), arguments, modes, shows, title)


def _facts_of(fake: Any, hints: Mapping[Any, int], seed: int) -> Any:
    """The facts of a fake tensor, or the value of an integer, in the call that was captured."""
    if isinstance(fake, torch.SymInt):
        return to_expr(fake).evaluate(hints)
    if not isinstance(fake, Tensor):
        return fake

    def number(size: Any) -> int:
        return to_expr(size).evaluate(hints)

    shape, strides = tuple(map(number, fake.shape)), tuple(map(number, fake.stride()))
    return Facts(shape, strides, fake.dtype, seed, str(fake.device), fake.requires_grad)


def _compile_options(options: Options, captured: Captured) -> dict[str, Any]:
    """The arguments of `ingot.compile` that say the same, but for what has no text."""
    given: dict[str, Any] = {}
    if options.mode != "default":
        given["mode"] = options.mode
    if options.dynamic is not None or captured.guards.symbols:
        given["dynamic"] = options.dynamic if options.dynamic is not None else True
    rest = {}
    for name in ("numerics", "freeze", "emit", "memory_budget"):
        value = getattr(options, name)
        if value != getattr(Options(), name):
            rest[name] = value
    if rest:
        given["options"] = rest
    return given


def _modes_of(captured: Captured) -> dict[str, Any]:
    """The modes that the call was captured in, where they are not the usual ones."""
    modes: dict[str, Any] = {}
    for guard in captured.guards:
        if guard.kind is not Kind.GLOBAL_STATE:
            continue
        state = guard.data
        if not state.grad_mode:
            modes["grad"] = False
        if state.inference_mode:
            modes["inference"] = True
        for device, enabled, dtype in state.autocast:
            if enabled:
                modes["autocast"] = (device, str(dtype))
        if state.default_dtype is not torch.float32:
            modes["default_dtype"] = str(state.default_dtype)
    return modes


def in_modes(modes: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """A context in which these modes hold."""
    stack = ExitStack()
    stack.enter_context(torch.set_grad_enabled(modes.get("grad", True)))
    if modes.get("inference"):
        stack.enter_context(torch.inference_mode())
    if "autocast" in modes:
        device, dtype = modes["autocast"]
        stack.enter_context(torch.autocast(device, _dtype(dtype)))
    if "default_dtype" in modes:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(_dtype(modes["default_dtype"]))
    return stack


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return dtype


# -- as a file -------------------------------------------------------------------------------------


def write(path: str | os.PathLike[str], repro: Repro) -> Path:
    """Writes the script and, if some inputs are values of tensors, these beside it."""
    path = Path(path)
    if path.suffix != ".py":
        raise ReproError(f"a script's name ends in .py, not as {str(path)!r}")
    listed, values = list[str](), list[Any]()
    for value in repro.inputs:
        if isinstance(value, (Facts, int, float, bool, str, type(None))):
            text = str(value) if isinstance(value, Facts) else repr(value)
            listed.append(f"        {text},")
        else:
            listed.append(f"        values[{len(values)}],")
            values.append(value)
    beside = path.with_suffix(".pt")
    if values:
        torch.save(_storable(values), beside)
    text = _TEMPLATE.format(
        title=repro.title or "a graph",
        name=path.name,
        versions=_versions(),
        imports="\n".join(sorted({"import sys", *repro.case.imports})),
        options=dict(repro.options),
        modes=dict(repro.modes),
        shows=repro.shows,
        helper=HELPER,
        values=_VALUES.format(file=beside.name) if values else "",
        listed="\n".join(listed),
        graph=repro.case.source(),
    )
    path.write_text(text, encoding="utf-8")
    return path


def _storable(values: Sequence[Any]) -> list[Any]:
    """Copies without histories, and without what nobody shows of their memory."""
    stored = []
    for original, copy in zip(values, copies(values)):
        if isinstance(copy, Tensor):
            copy = copy.detach().requires_grad_(original.requires_grad)
        stored.append(copy)
    return stored


def _versions() -> str:
    ingot = sys.modules["ingot"].__version__
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return f"ingot {ingot}, torch {torch.__version__}, {system}"


_VALUES = """\
    from pathlib import Path

    values = torch.load(Path(__file__).parent / {file!r}, weights_only=True)
"""

_TEMPLATE = '''\
"""{title}, as Ingot compiled it.

python {name}                         compares it with eager; exit status 1 if something is wrong
python -m ingot minimize {name}       writes a smaller one that fails in the same way
python -m ingot bisect {name}         says which pass or kernel is at fault
"""

# {versions}

{imports}

OPTIONS = {options!r}  # of ingot.compile
MODES = {modes!r}  # around the call
SHOWS = {shows!r}  # what is wrong, if that is known


{helper}

def inputs():
{values}    return [
{listed}
    ]


{graph}

if __name__ == "__main__":
    from ingot.debugging.repro import main

    sys.exit(main(__file__))
'''


def load(path: str | os.PathLike[str]) -> Repro:
    """A script that was written. Raises ReproError for a file that is none."""
    path = Path(path)
    if not path.is_file():
        raise ReproError(f"there is no file {path}")
    try:
        case = case_from(path.read_text(encoding="utf-8"))
        spec = importlib.util.spec_from_file_location(f"_ingot_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        inputs = tuple(module.inputs())
        return Repro(case, inputs, module.OPTIONS, module.MODES, module.SHOWS, path.stem)
    except (ValueError, SyntaxError, AttributeError) as error:
        raise ReproError(f"{path} is no script of Ingot's: {error}") from error


# -- whether it fails ------------------------------------------------------------------------------


def failure(repro: Repro) -> Failure:
    """What is wrong with a script's program. Errors that eager raises as well are not."""
    compile, state = compiler_of(repro), RandomState.now()
    torch.manual_seed(0)  # it is the same whenever it is asked
    try:
        return _failure(repro, compile)
    finally:
        state.restore()


def _failure(repro: Repro, compile: Callable[..., Any]) -> Failure:
    with in_modes(repro.modes):
        comparison = Comparison(repro.case, repro.made(), repro.gradients)
        actual = comparison.outcome(lambda *inputs: _called(compile, repro.case, inputs))
        if actual.raised and type(actual.raised) is not type(comparison.expected.raised):
            return Failure(type(actual.raised).__name__, str(actual.raised))
        found = comparison.between(actual)
    if found is None:
        return Failure()
    return Failure(DIFFERENCE, str(found))


def _called(compile: Callable[..., Any], case: Case, inputs: Sequence[Any]) -> Any:
    """Compiles and runs a case. Ingot's own errors are raised as they are."""
    try:
        return compile(case.function())(*inputs)
    except GraphBreakError as error:
        raise error.__cause__ or error from None


def compiler_of(repro: Repro) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What compiles a function as the script says."""
    from ingot.compiler import Compiler

    options = Options.checked(fullgraph=True, **repro.options)

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = Compiler(function, options).dispatcher
        return compiled

    return compile


def main(path: str) -> int:
    """Runs a script; returns the exit status."""
    repro = load(path)
    found = failure(repro)
    if not found.kind:
        print(f"{repro.title}: the compiled program does what eager does")
        return 0
    print(f"{repro.title}: {found.kind}: {found.what}")
    if found.kind == DIFFERENCE:
        from ingot.debugging.locating import locate

        with in_modes(repro.modes):
            located = locate(repro.case, repro.made(), compiler_of(repro), repro.gradients)
        if located is not None:
            statement = located.statement
            print(f"first op that differs: {statement.callee}  {statement.where}\n  {located.what}")
    return 1


# -- on request ------------------------------------------------------------------------------------


def written_on_request(make: Callable[[], Repro], title: str) -> Path | None:
    """Writes a script into the folder that the environment names; None if it names none, or the
    graph cannot be written."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    name = "".join([c if c.isalnum() else "_" for c in title]).strip("_")[:60]
    path = Path(folder) / f"{name}_{os.getpid()}_{next(_numbers)}.py"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write(path, make())
    except Exception:  # what is told of the failure itself matters more
        return None


def told_of_error(error: Exception, captured: Captured, options: Options, title: str) -> None:
    """Writes the script of a graph whose compilation raised an error of Ingot's own, and has the
    log say where it is. The values of its inputs are not known."""
    kind = type(error).__name__
    file = written_on_request(lambda: repro_of(captured, options, title, shows=kind), title)
    if file is not None:
        log.error("%s: a script that shows the %s: %s", encodable(title), kind, file)
