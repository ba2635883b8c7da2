"""Functions in forks of a process that has imported what they need."""

from __future__ import annotations

import os
import sys
import time

import pytest

from tests.forks import run_forked

MODULES = ("tests.test_forks",)


def tell(*arguments: str) -> int:
    print(*arguments, os.environ["TOLD"], flush=True)
    print("also", file=sys.stderr)
    return len(arguments)


def fail() -> int:
    raise KeyError("gone")


def set_variable() -> int:
    os.environ["TOLD"] = "changed"
    return 0


def wait() -> int:
    print("waiting", flush=True)
    time.sleep(60)
    return 0


def test_status_and_output() -> None:
    for _ in range(2):
        done = run_forked("tests.test_forks:tell", "a", "b", modules=MODULES, TOLD="c")
        assert done.status == 2 and done.output == "a b c\nalso\n"
        assert run_forked("tests.test_forks:set_variable", modules=MODULES, TOLD="c").status == 0


def test_an_error_is_status_one_with_its_traceback() -> None:
    done = run_forked("tests.test_forks:fail", modules=MODULES, TOLD="c")
    assert done.status == 1 and "KeyError: 'gone'" in done.output


def test_what_takes_too_long_is_killed() -> None:
    with pytest.raises(TimeoutError, match="waiting"):
        run_forked("tests.test_forks:wait", modules=MODULES, seconds=5, TOLD="c")
    assert run_forked("tests.test_forks:tell", modules=MODULES, TOLD="c").status == 0
