"""str.format with values in place of objects."""

from __future__ import annotations

import _string  # what string.Formatter itself is made with
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ingot.capture.values.base import Arguments, Value
from ingot.capture.values.constant import ConstantValue

if TYPE_CHECKING:
    from ingot.capture.session import Session

_CONVERSIONS: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}


def format_template(session: Session, template: str, args: Arguments | None, named: Value) -> str:
    """`template.format(*args, **named)`, or `template.format_map(named)` where `args` is None."""
    return _Formatting(session, args, named).text(template, 2)


class _Formatting:
    """One call of str.format."""

    def __init__(self, session: Session, args: Arguments | None, named: Value) -> None:
        self.session, self.args, self.named = session, args, named
        # of the next automatic field; None once fields are numbered by hand
        self.position: int | None = 0

    def text(self, template: str, depth: int) -> str:
        """The text of a template, which may be the specification of a field of another one."""
        session = self.session
        if depth < 1:
            raise session.raised(ValueError, "Max string recursion exceeded")
        texts = []
        for literal, name, spec, conversion in session.python(
            lambda: list(_string.formatter_parser(template))
        ):
            texts.append(literal)
            if name is None:
                continue
            value = self._field(name)
            if spec:
                spec = self.text(spec, depth - 1)
            else:
                spec = ""
            if conversion is not None:
                if conversion not in _CONVERSIONS:
                    raise session.unsupported(
                        "text", f"the conversion {conversion!r} of a format string"
                    )
                value = ConstantValue(session.text_of(value, _CONVERSIONS[conversion]))
            texts.append(session.format_of(value, spec))
        return "".join(texts)

    def _field(self, name: str) -> Value:
        session = self.session
        first, rest = session.python(_string.formatter_field_name_split, name)
        value = session.realize(self._argument(first))
        for is_attribute, key in rest:
            if is_attribute:
                value = session.realize(value.get_attribute(session, key))
            else:
                value = session.realize(session.get_item(value, ConstantValue(key)))
        return value

    def _argument(self, key: int | str) -> Value:
        session = self.session
        if self.args is None and (key == "" or isinstance(key, int)):
            raise session.raised(ValueError, "Format string contains positional fields")
        if key == "":
            if self.position is None:
                message = (
                    "cannot switch from manual field specification to automatic field numbering"
                )
                raise session.raised(ValueError, message)
            key, self.position = self.position, self.position + 1
        elif isinstance(key, int):
            if self.position:
                message = (
                    "cannot switch from automatic field numbering to manual field specification"
                )
                raise session.raised(ValueError, message)
            self.position = None
        if isinstance(key, str):
            return session.get_item(self.named, ConstantValue(key))
        assert self.args is not None
        if key >= len(self.args):
            message = f"Replacement index {key} out of range for positional args tuple"
            raise session.raised(IndexError, message)
        return self.args[key]
