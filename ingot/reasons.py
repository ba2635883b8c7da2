"""Why a graph breaks or a call runs in eager: the ids of all reasons, and what the user can do.

In: an id of `FAMILIES`, a sentence that names what was met, and the user's line. Out: a frozen
`Reason` with the family's hint and action. An id has one hint; no hint depends on a sentence.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ingot.spots import Spot, spot_of_line


class Action(enum.Enum):
    """What is done where a reason is met."""

    BREAK = "the graph is broken before the instruction"
    SKIP = "the region runs in eager, since no graph break can help"
    RAISE_IN_EAGER = "the call runs in eager, which raises the program's own error"
    STATIC = "the call is compiled for its own sizes; if they fail as well, the graph is broken"
    HOOKED = "a module's hooks run in eager, and its forward is compiled by itself"


BREAK, SKIP, RAISE_IN_EAGER, STATIC, HOOKED = Action


class Family(NamedTuple):
    """What all reasons of one id have in common."""

    hint: str = ""
    action: Action = BREAK


_NO_GRADIENTS = "call it under torch.no_grad() where no gradients are needed"
_SIZE_OF_DATA = "say what holds of the size with torch._check, or ask for it outside"
_STATIC_SIZES = "compile without dynamic=True"
_OUTSIDE_STORE = "return the new value, and store it outside the compiled function"
_PASS_IN = "use it outside the compiled function, and pass in what is needed of it"
_ARGUMENTS = "pass tensors, numbers, and containers of them"

REFUSED = "refused"
PROGRAM_RAISES = "program-raises"
EAGER_REFUSES = "eager-refuses"
LARGE_INTEGER = "large-integer"
LAZY_MODULE = "lazy-module"
INTERNAL_ERROR = "internal-error"

FAMILIES: dict[str, Family] = {
    # -- what depends on data
    "data-branch": Family("use torch.where, or move the branch out of the compiled function"),
    "mask-size": Family("use torch.where or masked_fill"),
    "data-membership": Family("use torch.isin, or keep what is searched in a Python container"),
    "data-asked": Family("compute it as a tensor and use torch.where, or ask outside"),
    "data-conversion": Family("keep it a tensor, or convert it outside the compiled function"),
    "unknown-value": Family("keep it a tensor, or compute it outside the compiled function"),
    "number-in-tensor": Family("keep it a tensor: use torch.where, torch.maximum or torch.minimum"),
    "data-decided-size": Family(_SIZE_OF_DATA),
    "size-check": Family(),
    "late-size-guard": Family(),
    "late-error": Family(action=SKIP),
    # -- what the user asked for
    "disabled": Family("remove the disable, or call it before or after the compiled function"),
    "asked-break": Family("remove the call where one graph is wanted"),
    "compilation-call": Family("call it outside the compiled function"),
    "compiled-by-torch": Family(),
    "outside-tensor": Family("pass the tensor as an argument"),
    "graph-function-result": Family("return tensors that it made, numbers, and tuples of them"),
    REFUSED: Family(),  # by a backend of the user's
    # -- the program's own errors
    PROGRAM_RAISES: Family(action=RAISE_IN_EAGER),
    EAGER_REFUSES: Family(action=RAISE_IN_EAGER),
    # -- gradients, modes, devices
    "gradients-wanted": Family(_NO_GRADIENTS, SKIP),
    "autograd-function-gradients": Family(_NO_GRADIENTS),
    "autograd-function": Family(),
    "inner-gradients": Family(),
    "backward-options": Family(_ARGUMENTS, SKIP),
    "second-derivatives": Family(action=SKIP),
    "checkpoint": Family(),
    "tensor-hook": Family("register it outside the compiled function"),
    "module-hook": Family(),
    "func-transform": Family(),
    "control-flow": Family(),
    "inference-mode": Family(),
    "mode": Family(),
    "python-random": Family("call it outside the compiled function, and pass the result in"),
    "random-state": Family("seed outside the compiled function"),
    "watched": Family("call the compiled function outside, or apply the transform inside", SKIP),
    "devices-in-op": Family("move them to one device"),
    "device": Family(action=SKIP),
    # -- backward passes of eager, within compiled_backward()
    "backward-call": Family(action=SKIP),
    "backward-function": Family(action=SKIP),
    "backward-gradient": Family(action=SKIP),
    "backward-hook": Family(action=SKIP),
    "backward-node": Family(action=SKIP),
    "backward-part": Family(action=SKIP),
    "backward-refused": Family(action=SKIP),
    "backward-sizes": Family(action=SKIP),
    "gradient-hook-arguments": Family(_ARGUMENTS),
    # -- effects
    "print": Family("print outside the compiled function"),
    "warning": Family("warn outside the compiled function"),
    "logging": Family(_OUTSIDE_STORE),
    "tensor-side-effect": Family("set it outside the compiled function"),
    "side-effect": Family(_OUTSIDE_STORE),
    "outside-identity": Family(_OUTSIDE_STORE),
    "effectful-op": Family(),
    # -- Python
    "generator-function": Family("compile what it calls for each element", SKIP),
    "coroutine": Family("await outside the compiled function"),
    "class-definition": Family("define the class outside the compiled function", SKIP),
    "module-construction": Family("make modules outside the compiled function"),
    "construction": Family("make it outside the compiled function, and pass it in"),
    "construction-rule": Family(),
    "import": Family("import it at the top of the module"),
    "c-function": Family(
        "write it with torch or plain Python, or call it outside the compiled function"
    ),
    "key": Family("use a string or a number as the key"),
    "recursion": Family("is the recursion endless?", SKIP),
    "endless-loop": Family("is the loop endless?", SKIP),
    "argument-kind": Family(_ARGUMENTS),
    "alive-at-break": Family(),
    "attribute": Family(_PASS_IN),
    "builtin-subclass": Family(),
    "call": Family("call it outside the compiled function, and pass the result in"),
    "caller-variables": Family("write the expression into the function itself", SKIP),
    "container-order": Family(),
    "exception": Family(),
    "finalizer": Family("make the object outside the compiled function, and pass it in", SKIP),
    "foreign-object": Family(_PASS_IN),
    "generator": Family("loop over a list, a tuple or a range"),
    "identity": Family(),
    "instruction": Family("move it out of the compiled function"),
    "iterator": Family("loop over a list, a tuple or a range"),
    "library-function": Family(),
    "not-a-function": Family(),
    "operator": Family("compute it outside the compiled function, and pass the result in"),
    "text": Family("make the text outside the compiled function"),
    "unbound-name": Family(),
    "unstable-capture": Family(action=SKIP),
    "whole-function": Family("call it around the compiled function"),
    "wrong-arguments": Family(),
    # -- tensors, modules, arrays
    "tensor-subclass": Family("pass a plain tensor"),
    "tensor-layout": Family("convert the tensor before the call"),
    "tensor-kind": Family(),
    "tensor-object": Family("call it outside the compiled function"),
    "nested-tensor": Family(),
    "conjugate-view": Family(),
    LAZY_MODULE: Family("call the module once before it is compiled", SKIP),
    "module-state": Family(),
    "numpy": Family(),
    # -- sizes that vary
    "no-symbolic-rule": Family(_STATIC_SIZES),
    "symbolic-memory": Family(_STATIC_SIZES),
    "symbolic-number": Family(_STATIC_SIZES),
    "static-backend": Family(_STATIC_SIZES),
    "symbolic-size-value": Family(_SIZE_OF_DATA),
    LARGE_INTEGER: Family(action=SKIP),
    "variants": Family("Report.recompiles says what varies", SKIP),
    "marked-sizes": Family(action=SKIP),
    # -- operations and code
    "custom-op-fake": Family("register a fake for it: torch.library.register_fake"),
    "custom-op-gradient": Family("register a formula for it: torch.library.register_autograd"),
    "custom-op-result": Family(),
    "triton-kernel": Family(),
    "foreach": Family(),
    "no-shape-rule": Family(),
    "no-tensor": Family(),
    "op-fails": Family(),
    "op-form": Family(),
    "op-writes": Family(),
    "no-code": Family(action=SKIP),
    "recorded-result": Family(action=SKIP),
    "compiler-missing": Family("install it, or leave out the option that needs it", SKIP),
    "torch-lacks": Family(action=SKIP),
    # -- compilations that fail
    INTERNAL_ERROR: Family("please report it, with the program that led here", SKIP),
    "out-of-memory": Family(action=SKIP),
}
"""By id, what the user can do and what is done. Where there is no hint, there is nothing to advise
beside moving the line elsewhere."""


_OF_OPERATIONS = frozenset(
    {EAGER_REFUSES, "devices-in-op", "op-fails", "op-form", "no-shape-rule", "no-symbolic-rule"}
)
"""Reasons that may be met behind capture, where of an operation the line alone is known."""


@dataclass(frozen=True)
class Reason:
    """One reason. `where` is the user's "file:line", in `function`; `hint` says what to change.

    `stack` are the user's calls that led there, the outermost first. `step` is the number of an
    instruction, where the graph has to be broken before another one than that which failed.
    """

    id: str
    sentence: str
    where: str = ""
    function: str = ""
    hint: str = ""
    action: Action = BREAK
    step: int | None = None
    stack: tuple[Spot, ...] = ()

    def __str__(self) -> str:
        place = ""
        if self.where:
            place = f" at {self.where}"
        hint = ""
        if self.hint:
            hint = f" (hint: {self.hint})"
        return f"{self.words}{place}{hint}"

    @property
    def wrote(self) -> str:
        """What is to blame, as the user wrote it; "" if that is not known."""
        if self.stack:
            return self.stack[-1].wrote
        spot = spot_of_line(self.where)
        if spot is None or self.id not in _OF_OPERATIONS:
            return ""
        return spot.wrote

    @property
    def words(self) -> str:
        """What the user wrote, and the sentence."""
        if self.wrote:
            return f"`{self.wrote}`: {self.sentence}"
        return self.sentence

    @property
    def calls(self) -> tuple[Spot, ...]:
        """The stack, or at least its innermost line; empty if that is not known."""
        spot = spot_of_line(self.where, self.function)
        if self.stack or spot is None:
            return self.stack
        return (spot,)

    @property
    def may_break(self) -> bool:
        """Whether a graph that is broken before the instruction helps."""
        return self.action is not SKIP and self.id != PROGRAM_RAISES

    @property
    def is_of_the_call(self) -> bool:
        """Whether the values of this call are to blame, and not the program."""
        return self.id == LARGE_INTEGER

    @property
    def passes(self) -> bool:
        """Whether a call in eager takes it away."""
        return self.id == LAZY_MODULE

    @property
    def is_of_hooks(self) -> bool:
        """Whether hooks around a forward run in eager, and the forward compiled."""
        return self.action is HOOKED

    def led_by(self, stack: Sequence[Spot]) -> Reason:
        """The same with the calls that led there, if it is where they end."""
        if self.stack or not stack or self.where not in ("", stack[-1].where):
            return self
        innermost = stack[-1]
        function = self.function or innermost.function
        return replace(self, where=innermost.where, function=function, stack=tuple(stack))

    def at(self, where: str) -> Reason:
        """The same at a line, unless it has one."""
        if self.where:
            return self
        return replace(self, where=where)


_ATEN = re.compile(r"\baten\.(\w+)\.\w+")
"""An ATen op, of which a sentence tells the name alone: the user wrote no overload."""


def reason_of(
    id: str,
    sentence: str,
    where: str = "",
    function: str = "",
    *,
    action: Action | None = None,
    step: int | None = None,
) -> Reason:
    """The reason of an id, with its family's hint, and its action unless another is named."""
    family, sentence = FAMILIES[id], _ATEN.sub(r"\1", sentence)
    return Reason(id, sentence, where, function, family.hint, action or family.action, step)
