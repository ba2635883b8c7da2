"""Statements of random programs that call ops with effects (see `effectful_ops.py`), and lines that
are printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests import (
    random_programs,  # noqa: F401  (the statements)
    random_programs_writer,
)
from tests.random_programs_writer import RandomProgram, _Writer, random_program

_HELPERS = "\nfrom tests import effectful_ops as fx\n"


def _noted(w: _Writer) -> str:
    op, x = w.rng.choice(["noted", "silent"]), w.floating()
    head = w.rng.choice(["if k >= 0", "for _ in range(k)", "if flag", "for _ in range(2)"])
    return f"{head}: fx.{op}({x})"


def _counted(w: _Writer) -> str:
    op = w.rng.choice(["counted", "counted", "kept", "defined", "composed", "unfaked"])
    return f"fx.{op}({w.floating()})"


def _repeated(w: _Writer) -> str:
    x = w.floating()
    return w.rng.choice(
        [f"fx.counted({x}) + fx.counted({x})", f"fx.scaled(fx.scaled({x}, 0.5), 0.5)"]
    )


def _several(w: _Writer) -> str:
    if w.rng.random() < 0.5:
        return f"{w.names_for(2)} = fx.pair({w.floating()})"
    x = w.floating()
    return f"{w.names_for(2)} = fx.listed([{x}, {w.floating()}], 2.0)"


def _written(w: _Writer) -> str:
    x = w.pick(lambda t: t.is_floating_point() and t.dim() > 0)
    shown = w.rng.choice(["", "", "[:1]", "[1:]", ".flatten()", ".detach()", "[..., ::2]"])
    call = w.rng.choice(["raised_by({0}, 0.5)", "raised_by({0}, 0.5)", "raised_both([{0}, {1}])"])
    return f"for _ in range(1): fx.{call.format(x + shown, w.floating())}"


def _printed(w: _Writer) -> str:
    return f"if k: print('line {w.rng.randrange(100)}', {w.pick()}.shape[:1])"


def _around_an_update(w: _Writer) -> str:
    x = w.pick(lambda t: t.is_floating_point() and not t._is_view())
    return f"for j in range(2):\n    fx.noted({x})\n    {x}.mul_(0.5)\n    fx.counted({x})"


_STATEMENTS = {
    _noted: 6,
    _counted: 6,
    _repeated: 3,
    _several: 3,
    _written: 5,
    _printed: 0.7,
    _around_an_update: 1,
}


@contextmanager
def _more_statements() -> Iterator[None]:
    statements, helpers = dict(random_programs_writer.STATEMENTS), random_programs_writer.HELPERS
    random_programs_writer.STATEMENTS.update(_STATEMENTS)
    random_programs_writer.HELPERS = helpers + _HELPERS
    try:
        yield
    finally:
        random_programs_writer.STATEMENTS.clear()
        random_programs_writer.STATEMENTS.update(statements)
        random_programs_writer.HELPERS = helpers


def effectful_program(seed: int) -> RandomProgram:
    with _more_statements():
        return random_program(seed)
