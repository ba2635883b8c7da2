"""The errors of Ingot.

Each is a user's mistake or a named reason: what was met, the user's line, and what to change. A
program's own errors are never wrapped: they are raised as eager would raise them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from ingot.reasons import BREAK, EAGER_REFUSES, REFUSED, SKIP, Action, Reason, reason_of
from ingot.spots import stack_lines

AnyError = TypeVar("AnyError", bound=Exception)


def without_frames(error: AnyError) -> AnyError:
    """The error without its traceback and causes, for whoever keeps it: their frames hold the
    tensors of the call, and may hold the error."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


class IngotError(Exception):
    """Base of every error that Ingot raises on its own account."""

    def __reduce__(self) -> Any:
        """Pickled as its text and attributes, so that it may cross processes."""
        attributes = {}
        for name, value in vars(self).items():
            if name != "evidence":
                attributes[name] = value
        return _rebuilt, (type(self), self.args, attributes)


def _rebuilt(
    cls: type[IngotError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> IngotError:
    error = cls.__new__(cls, *args)
    vars(error).update(attributes)
    return error


class Evidence(NamedTuple):
    """What capture knew when it met a reason.

    `guards` led there: the decision holds for as long as they do. The graph can be broken before
    the instruction number `step`, unless it is `in_one_piece`. `asked_compiling`: the program has
    asked whether it is compiled. `break_is_error`: it has asked for an error where its graph
    breaks. `gathers`: the graph does there what hooks of FSDP do.
    """

    guards: Any = None
    step: int | None = None
    in_one_piece: bool = False
    asked_compiling: bool = False
    break_is_error: bool = False
    gathers: bool = False


class Unsupported(IngotError):
    """Something cannot be compiled (yet): the call runs in eager and the reason is kept for the
    report.

    A backend raises it with a sentence, the user's "file:line" and a hint; `skip` says that no
    graph break can help. Ingot itself raises what `unsupported` makes. `why` is the whole reason,
    and capture adds its `evidence`.
    """

    evidence = Evidence()

    def __init__(
        self, reason: str | Reason, where: str = "", hint: str = "", *, skip: bool = False
    ) -> None:
        if isinstance(reason, str):
            reason = Reason(REFUSED, reason, where, "", hint, SKIP if skip else BREAK)
        super().__init__(reason.sentence)
        self.why = reason

    @property
    def reason(self) -> str:
        return self.why.sentence

    @property
    def wrote(self) -> str:
        """What is to blame, as the user wrote it; "" if that is not known."""
        return self.why.wrote

    @property
    def where(self) -> str:
        return self.why.where

    @property
    def function(self) -> str:
        return self.why.function

    @property
    def hint(self) -> str:
        return self.why.hint

    @property
    def skips(self) -> bool:
        """Whether no graph break can help."""
        return self.evidence.in_one_piece or not self.why.may_break

    def __str__(self) -> str:
        return str(self.why)


class EagerRaises(Unsupported):
    """The program itself is about to raise an error here. The call runs in eager, under `fullgraph`
    too, so that it is raised as eager raises it."""

    def __init__(self, sentence: str, where: str = "", *, id: str = EAGER_REFUSES) -> None:
        super().__init__(reason_of(id, sentence, where))

    def as_break(self) -> Unsupported:
        """The same where eager is known to raise nothing."""
        error = Unsupported(replace(self.why, action=BREAK))
        error.evidence = self.evidence
        return error


def unsupported(
    id: str,
    sentence: str,
    where: str = "",
    *,
    action: Action | None = None,
    step: int | None = None,
) -> Unsupported:
    """The error of a reason, whose id is a row of `ingot.reasons.FAMILIES`."""
    return Unsupported(reason_of(id, sentence, where, action=action, step=step))


class GraphBreakError(IngotError, RuntimeError):
    """Raised under `fullgraph=True` where the graph would have been broken or the call run in
    eager. What the user wrote there, reason, place and hint are in the text and attributes; so are
    the function of the place, and the calls that led there."""

    def __init__(self, why: Unsupported) -> None:
        advice = "move it out of the compiled function, or allow graph breaks with fullgraph=False"
        if why.hint:
            reason = why.why
        else:
            reason = replace(why.why, hint=advice)
        super().__init__("\n".join([str(reason), *stack_lines(reason.stack)]))
        self.reason, self.where, self.hint = reason.sentence, reason.where, reason.hint
        self.function, self.wrote, self.stack = reason.function, reason.wrote, reason.stack
        self.why = why.why


class RecompileError(IngotError, RuntimeError):
    """Raised under the stance "fail_on_recompile" where a call would have to be compiled; the text
    says what differed from the entry that is closest."""


class CacheError(IngotError, ValueError):
    """A file that `ingot.load_cache` was given is damaged, of another version, or none of Ingot's;
    or the folder of the cache cannot be used. Nothing of such a file is in the cache."""


class BackendError(IngotError):
    """A backend or `guard_filter_fn` that the user named failed, or broke its contract; its own
    error is `__cause__`. The graph that it was given has not been run."""


class ExportError(IngotError, RuntimeError):
    """`ingot.export` cannot put a call into an artifact. The text says what of it, at which line,
    and what to change. No file has been written."""


class ArtifactError(IngotError, RuntimeError):
    """A file is no artifact that can be used here, or is called with arguments that it is not for.
    The text says which fact differs. Nothing has been run, unless it is about numbers that the data
    decide."""


class ReproError(IngotError, RuntimeError):
    """A script that shows a failure cannot be written, or a file is none: the text says why."""


class DifferenceWarning(RuntimeWarning):
    """A compiled program gave what eager does not, under `options={"verify": n}`.

    The text says which op differs first, where, both values and the largest difference. `op` is
    what is called there and `where` its "file:line", "" if no op was found. The call has eager's
    results. To have an error instead: `warnings.simplefilter("error", ingot.DifferenceWarning)`.
    """

    op = ""
    where = ""


class OutOfBounds(BaseException):
    """Compiled code was about to touch memory outside of a buffer, under INGOT_CHECK_BOUNDS=1. Not
    an `Exception`: no program is meant to handle it, and nothing is run again in eager for it."""


def of_hooks(error: BaseException) -> bool:
    """Whether the user's hooks on saved tensors raised it: eager is not asked to raise it again."""
    return hasattr(error, _OF_HOOKS)


def mark_of_hooks(error: BaseException) -> None:
    """Marks it as raised by such hooks."""
    setattr(error, _OF_HOOKS, True)


# `native/dispatch.c` looks for it, `native/recorder_forward.c` sets it
_OF_HOOKS = "__of_ingots_hooks__"


class DonationError(IngotError, RuntimeError):
    """A tensor was used whose memory a compiled call had taken, by `options={"donate": ...}`.

    Names the argument, and the user's line of that call."""


class CompilerBug(IngotError):
    """An invariant of Ingot's own does not hold. Names the stage, the node and the user's line."""

    def __init__(self, stage: str, problem: str, node: str = "", where: str = "") -> None:
        clauses = [f"{stage}: {problem}"]
        if node:
            clauses.append(f"node {node}")
        if where:
            clauses.append(f"from {where}")
        super().__init__("; ".join(clauses))
        self.stage, self.problem, self.node, self.where = stage, problem, node, where
