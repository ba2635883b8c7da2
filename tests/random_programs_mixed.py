"""Random tensor programs of all kinds, by turns: plain ones, ones that call ops with effects, with
or without gradients, and ones of custom autograd Functions and effects, whose gradients are
compared.

`python -m tests.random_programs_mixed COUNT [FIRST]` runs them.
"""

from __future__ import annotations

import sys

import ingot
from tests import (
    random_functions,
    random_programs,  # noqa: F401  (the statements)
    test_random_effectful_programs,
    test_random_programs,
)
from tests.random_programs_effects import effectful_program
from tests.random_programs_writer import random_program


def plain(seed: int) -> None:
    test_random_programs.check(random_program(seed))


def effectful(seed: int) -> None:
    gradients = seed // len(KINDS) % 2 == 1
    test_random_effectful_programs.check(effectful_program(seed), gradients)


def functions(seed: int) -> None:
    found = random_functions.problem(seed)
    assert not found, found


KINDS = (plain, effectful, functions)


def main(count: int, first: int = 0) -> None:
    failed = []
    for seed in range(first, first + count):
        check = KINDS[seed % len(KINDS)]
        try:
            check(seed)
        except Exception as error:
            failed.append(seed)
            print(
                f"==== seed {seed}, {check.__name__}\n{type(error).__name__}: {error}", flush=True
            )
        ingot.reset()
    print(f"{count} programs, failed: {failed}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
