"""Processes that compile into one folder and are killed while they do.

`python -m tests.kept.killed KILLS SEED` prints what is left, as JSON. The processes are forked from
one that has imported and compiled before, so that each takes milliseconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable

import torch

import ingot
from ingot.codegen.store import KINDS, store_in
from ingot.compiler import Compiler

FUNCTIONS = 6


def made(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of its own, with a kernel that no other one has."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * (number + 2), 1) + number

    return function


def compile_all(order: list[int]) -> list[str]:
    """Compiles the functions; of each, in their order, whether it was found, or what is wrong."""
    x, kept = torch.linspace(-1, 1, 12).view(3, 4), [""] * FUNCTIONS
    for number in order:
        function = made(number)
        compiled = ingot.compile(function)
        if not torch.allclose(compiled(x), function(x)):
            kept[number] = "wrong"
            continue
        compiler = Compiler.of(compiled)
        assert compiler is not None
        kept[number] = compiler.compilations[0].log.kept or "made"
    return kept


def in_child(act: Callable[[], object]) -> tuple[int, int]:
    """A forked process that does this, and writes what that returns; its number, and a pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        os.write(writing, json.dumps(act()).encode())
    finally:
        os._exit(0)


def finished(child: int, reading: int) -> object:
    """What a child wrote, when it has ended."""
    with open(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text or b"null")


def main(kills: int, seed: int) -> dict[str, object]:
    numbers = random.Random(seed)
    ingot.compile(torch.nn.Softmax(0))(torch.ones(5))  # all that compiling needs is imported
    start = time.perf_counter()
    finished(*in_child(lambda: compile_all(list(range(FUNCTIONS)))))
    whole = time.perf_counter() - start
    for kind in KINDS:
        store = store_in(kind)
        store.remove(store.listing().entries)
    while_working = 0
    for _ in range(kills):
        order = numbers.sample(range(FUNCTIONS), FUNCTIONS)
        for kind in ("programs", "llvm"):  # so that there is something to write
            entries = store_in(kind).listing().entries
            store_in(kind).remove(numbers.sample(entries, (len(entries) + 1) // 2))
        child, reading = in_child(lambda order=order: compile_all(order))
        time.sleep(numbers.random() * whole)
        os.kill(child, signal.SIGKILL)
        while_working += finished(child, reading) is None
    partial = sum(len(store_in(kind).listing().partial) for kind in KINDS)
    turns = []
    for _ in range(2):
        turns.append(finished(*in_child(lambda: compile_all(list(range(FUNCTIONS))))))
    return {"while working": while_working, "partial": partial, "turns": turns}


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
