"""Makes a failing random program small: statements are deleted, blocks opened and expressions
replaced by their parts for as long as the program fails in the same way.

`python -m tests.reduce_python SEED [--backend ingot] [--apart] [FILE]`; `--apart` runs each trial
in a process of its own, for crashes. With FILE the program is read from there.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import io
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tests.random_python import RandomPython, random_python, trial
from tests.test_random_python import no_log, report_of_program

Fails = Callable[[str], str]


def signature(failure: str) -> str:
    """What kind of failure it is: its text without names, numbers and values."""
    text = re.sub(r"^call \d: ", "", failure.partition("\n")[0])
    if text.startswith(("raises", "internal error")):
        return re.sub(r"\d+|'[^']*'", "#", text)[:70]
    if text.startswith("crash"):
        return "crash"
    if text.startswith("compiles again"):
        return "compiles again"
    root, _, kind = text.partition(" ")
    return re.sub(r"\W.*", "", root) + " " + re.sub(r"[^a-z ].*", "", kind)[:24]


_INVALID = ("NameError", "UnboundLocal", "AttributeError", "TypeError", "TooLong", "RecursionError")


def here(text: str, backend: str) -> str:
    """The failure of a program, "" for none; programs that are not valid in eager have none."""
    program = RandomPython(0, text)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), no_log():
            warnings.simplefilter("ignore")
            if trial(program).startswith(_INVALID):
                return ""
            if _printed(program) != _printed(program):
                return ""  # addresses, random numbers without a seed
            report = report_of_program(program, backend)
            return report.failure or report.restless
    except Exception:
        return ""


def _printed(program: RandomPython) -> str:
    """What an eager call prints and gives."""
    module = program.load()
    args, kwargs = module.arguments(False)
    with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        torch.no_grad(),
        contextlib.suppress(Exception),
    ):
        print(module.program(*args, **kwargs))
    return printed.getvalue()


def apart(text: str, backend: str) -> str:
    """`here`, in a process of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(text)
        file.flush()
        command = [
            sys.executable,
            "-m",
            "tests.reduce_python",
            "--only",
            "--backend",
            backend,
            "0",
            file.name,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return "crash" if done.returncode < 0 or done.returncode > 128 else done.stdout.strip()


def reduced(text: str, fails: Fails) -> str:
    """A small program with the failure of `text`."""
    wanted = signature(fails(text))
    assert wanted, "the program does not fail"
    progress = True
    while progress:
        progress = False
        position = 0
        while (candidate := nth(text, position)) is not None:
            if (
                candidate != text
                and len(candidate) <= len(text)
                and signature(fails(candidate)) == wanted
            ):
                text, progress = candidate, True
            else:
                position += 1
    return text


def nth(text: str, position: int) -> str | None:
    """The text after the change of this number; the text itself where that cannot be written, None
    beyond the last."""
    tree = ast.parse(text)
    for i, change in enumerate(changes(tree)):
        if i == position:
            change()
            try:
                return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
            except Exception:
                return text
    return None


def changes(tree: ast.Module) -> Iterator[Callable[[], None]]:
    """All changes that can be made to a tree, the large ones first."""
    for node in list(ast.walk(tree)):
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield from _changes_of_block(node, field, block)
    for node in list(ast.walk(tree)):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and not isinstance(node, ast.Attribute):
                yield from _changes_of_expression(node, name, value)
            elif (
                isinstance(value, list)
                and value
                and isinstance(value[0], (ast.expr, ast.arg, ast.keyword, ast.withitem))
            ):
                yield from (lambda value=value, i=i: value.pop(i) for i in range(len(value)))  # type: ignore[misc]


def _changes_of_block(node: ast.AST, field: str, block: list) -> Iterator[Callable[[], None]]:
    for i, statement in enumerate(block):
        if not isinstance(statement, ast.Pass) and not (
            isinstance(node, ast.Module) and _needed(statement)
        ):

            def delete(i: int = i) -> None:
                block[i : i + 1] = [] if len(block) > 1 or field not in ("body",) else [ast.Pass()]

            yield delete
        inner = [*getattr(statement, "body", []), *getattr(statement, "finalbody", [])]
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            yield lambda i=i, inner=inner: block.__setitem__(slice(i, i + 1), inner)  # type: ignore[misc]
            if getattr(statement, "orelse", []):
                yield lambda i=i, s=statement: block.__setitem__(slice(i, i + 1), s.orelse)  # type: ignore[misc]


def _needed(statement: ast.stmt) -> bool:
    return getattr(statement, "name", "") in ("program", "arguments", "reset") or isinstance(
        statement, ast.Import
    )


def _changes_of_expression(
    node: ast.AST, name: str, value: ast.expr
) -> Iterator[Callable[[], None]]:
    parts = [p for p in ast.walk(value) if isinstance(p, ast.expr) and p is not value]
    parts = [p for p in parts if isinstance(getattr(p, "ctx", ast.Load()), ast.Load)]
    if name in ("value", "test", "iter", "elt", "left", "right", "operand", "context_expr", "exc"):
        for part in sorted(parts, key=lambda p: len(ast.unparse(p))):
            yield lambda part=part: setattr(node, name, copy.deepcopy(part))  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--only", action="store_true")
    options = parser.parse_args()
    text = Path(options.file).read_text() if options.file else random_python(options.seed).text
    if options.only:
        print(here(text, options.backend))
        return
    run = apart if options.apart else here
    with torch.no_grad():
        small = reduced(text, lambda text: run(text, options.backend))
    print(small)
    print("#", run(small, options.backend))


if __name__ == "__main__":
    main()
