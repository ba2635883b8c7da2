"""A whole program of the user's, run as Python itself would run it: `python -m ingot run`."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType

from ingot.explain.loading import PACKAGE, UserError


def run_program(target: str, is_module: bool, arguments: Sequence[str]) -> int:
    """Run a file, or a module by its name, as `__main__` with these arguments; returns the exit
    status. An error that the program raises is shown as Python shows it.

    Raises UserError where there is no such file. SystemExit passes through.
    """
    sys.argv = [target, *arguments]
    if not is_module and not os.path.exists(target):
        raise UserError(f"there is no file {target}")
    run: Callable[[str], object] = _run_file
    if is_module:
        run = _run_module
    elif not Path(target).is_file():  # a folder with a __main__.py
        run = _run_folder
    try:
        run(target)
    except SystemExit:
        raise
    except BaseException as error:
        shown = error.with_traceback(_theirs(error.__traceback__))
        sys.excepthook(type(shown), shown, shown.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            return 130
        return 1
    return 0


def _theirs(frames: TracebackType | None) -> TracebackType | None:
    """A traceback from the program's own first frame on."""
    rest = frames
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith((PACKAGE, "<frozen")):
        rest = rest.tb_next
    return rest or frames


def _run_file(target: str) -> None:
    # the module lives as long as the process: what it pickles is found in it
    main = ModuleType("__main__")
    vars(main).update(__file__=os.path.abspath(target), __builtins__=__builtins__)
    sys.modules["__main__"] = main
    sys.path[0] = os.path.dirname(os.path.abspath(target))
    exec(compile(Path(target).read_bytes(), target, "exec"), vars(main))


def _run_module(target: str) -> None:
    runpy.run_module(target, run_name="__main__", alter_sys=True)


def _run_folder(target: str) -> None:
    runpy.run_path(target, run_name="__main__")
