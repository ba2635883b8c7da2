"""The errors of Ingot. A program's own errors are never wrapped: they are raised as eager would
raise them."""

from __future__ import annotations

from typing import Any, TypeVar

from ingot.reasons import hint_for

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
        return _rebuilt, (type(self), self.args, {**vars(self), "guards": None})


def _rebuilt(
    cls: type[IngotError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> IngotError:
    error = cls.__new__(cls, *args)
    vars(error).update(attributes)
    return error


class Unsupported(IngotError):
    """Something cannot be compiled (yet): the call runs in eager and this reason is kept for the
    report.

    `where` is the user's "file:line", in `function`, and `hint` what to change, from the table in
    `ingot.reasons` where none is given. `skip`: no graph break can help, so the whole region runs
    in eager. `symbolic`: sizes that are no symbols may be compiled. `of_values`: the values of this
    call are to blame, not the program. `asked_compiling`: the program has asked whether it is
    compiled. `guards` are the facts that led there, set by capture, so that the decision holds for
    as long as they do. `step` is the number of the instruction that the graph can be broken before:
    the one that failed, unless set earlier.
    """

    def __init__(self, reason: str, where: str = "", hint: str = "", *, skip: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where
        self.function = ""
        self.hint = hint or self.usual_hint(reason)
        self.skip = skip
        self.symbolic = self.of_values = False
        self.asked_compiling = False
        self.guards: Any = None
        self.step: int | None = None

    @staticmethod
    def usual_hint(reason: str) -> str:
        return hint_for(reason)

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        hint = f" (hint: {self.hint})" if self.hint else ""
        return f"{self.reason}{place}{hint}"


class EagerRaises(Unsupported):
    """The program itself is about to raise an error here: the call runs in eager, under `fullgraph`
    too, so that it is raised as eager raises it."""

    @staticmethod
    def usual_hint(reason: str) -> str:
        return ""  # the program's own message stands for itself

    def as_break(self) -> Unsupported:
        """The same where eager is known to raise nothing."""
        made = Unsupported(self.reason, self.where)
        vars(made).update(vars(self), hint=made.hint)
        return made


class GraphBreakError(IngotError):
    """Raised under `fullgraph=True` where the graph would have been broken or the call run in
    eager; the text has reason, place and hint, which are attributes too, as is the function where
    the place is."""

    def __init__(self, why: Unsupported) -> None:
        hint = (
            why.hint
            or "move it out of the compiled function, or allow graph breaks with fullgraph=False"
        )
        place = f" at {why.where}" if why.where else ""
        super().__init__(f"{why.reason}{place} (hint: {hint})")
        self.reason, self.where, self.hint, self.function = (
            why.reason,
            why.where,
            hint,
            why.function,
        )


class RecompileError(IngotError):
    """Raised under the stance "fail_on_recompile" where a call would have to be compiled; the text
    says what differed from the entry that is closest."""


class BackendError(IngotError):
    """A backend that the user named failed, or broke its contract; its own error is `__cause__`.
    The graph that it was given has not been run."""


class OutOfBounds(BaseException):
    """Compiled code was about to touch memory outside of a buffer, under INGOT_CHECK_BOUNDS=1. Not
    an `Exception`: no program is meant to handle it, and nothing is run again in eager for it."""


def of_hooks(error: BaseException) -> bool:
    """Whether an error that a compiled graph raised is of the user's hooks on the tensors that it
    keeps for the backward: eager is not asked to raise it again."""
    return hasattr(error, _OF_HOOKS)


def mark_of_hooks(error: BaseException) -> None:
    """Says so of it."""
    setattr(error, _OF_HOOKS, True)


# `native/dispatch.c` looks for it, `native/recorder_forward.c` sets it
_OF_HOOKS = "__of_ingots_hooks__"


class CompilerBug(IngotError):
    """An invariant of Ingot's own does not hold. Names the stage, the node and the user's line."""

    def __init__(self, stage: str, problem: str, node: str = "", where: str = "") -> None:
        parts = [f"{stage}: {problem}"]
        if node:
            parts.append(f"node {node}")
        if where:
            parts.append(f"from {where}")
        super().__init__("; ".join(parts))
        self.stage, self.problem, self.node, self.where = stage, problem, node, where
