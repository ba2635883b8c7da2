"""Text generation of transformers' models beside eager: `python -m benchmarks.generation [MODEL
...] [--peers ...]`.

Each model (a tiny configuration, random weights) has its forward compiled and generates greedily
with a growing cache, for prompts of several lengths and batches. The figures are the compilations
in all, those after the third prompt length, whether all tokens are eager's, and the time of a last
generation beside eager's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks import model_zoo

MODELS = {"gpt2": "GPT-2", "llama": "Llama", "t5": "T5"}
LENGTHS, BATCHES = (7, 12, 5, 20, 9), (1, 2, 3, 4)


def compiled_by(
    peer: str, forward: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[[], int]]:
    """The forward as a peer compiles it, and how many compilations there were."""
    if peer == "ingot":
        import ingot
        from ingot.compiler import Compiler

        made = ingot.compile(forward)
        return made, lambda: len(Compiler.of(made).compilations)  # type: ignore[union-attr]
    count = 0

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        nonlocal count
        count += 1
        return torch._inductor.compile(gm, inputs)  # type: ignore[attr-defined]

    return torch.compile(forward, backend=backend), lambda: count


def generated(
    model: Any, forward: Callable[..., Any], tokens: torch.Tensor, new: int
) -> tuple[torch.Tensor, float]:
    """The tokens that a model goes on with, and the seconds that it takes."""
    model.forward = forward
    start = time.perf_counter()
    found = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        min_new_tokens=new,
        max_new_tokens=new,
    )
    return found, time.perf_counter() - start


def measure(name: str, peer: str, new: int) -> str:
    """A line of the figures of one model."""
    model: Any = model_zoo.make(MODELS[name])[0]
    eager = model.forward
    forward, count = compiled_by(peer, eager)
    equal, third, ratio = True, 0, 0.0
    for position, length in enumerate(LENGTHS):
        for batch in BATCHES:
            tokens = torch.randint(5, 99, (batch, length))
            expected, of_eager = generated(model, eager, tokens, new)
            found, taken = generated(model, forward, tokens, new)
            equal &= torch.equal(found, expected)
            ratio = of_eager / taken
        third = count() if position == 2 else third
    after = count() - third
    same = "equal" if equal else "OTHER TOKENS"
    return (
        f"{name:8} {peer:9} {count():3} compilations, {after} after the third length, {same}, "
        f"{ratio:.2f}x eager"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generation", description=__doc__)
    parser.add_argument(
        "models", nargs="*", choices=[[], *MODELS], help="all of them if none is named"
    )
    parser.add_argument("--peers", nargs="*", choices=["ingot", "inductor"], default=["ingot"])
    about = "to generate (%(default)s): the models have 96 positions"
    parser.add_argument("--tokens", type=int, default=64, help=about)
    given = parser.parse_args(argv)
    for name in given.models or MODELS:
        for peer in given.peers:
            print(measure(name, peer, given.tokens), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
