"""What is made of the programs of the corpus, as text: for each target its loop IR, its plan and
its code.

`python -m tests.corpus.texts` compares with the hashes in the tree, and `--update` writes them.
`--write FOLDER` writes the texts, one file for each program, way and stage: `diff -r` of two
folders, made before and after, shows a change. Nothing depends on the machine: targets are named,
and programs run to be captured alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton

import ingot
from ingot import pipeline
from ingot.codegen.llvm.module import emit_kernels
from ingot.codegen.llvm.target import named
from ingot.codegen.triton import supported, write_kernel
from ingot.codegen.triton.forms import forms_of
from ingot.explain.stages import place_text, step_text
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.passes.pipeline import LIBRARY_PASSES, run_passes
from ingot.loops import ops
from ingot.loops.ir import LoopGraph
from ingot.loops.lowering import cost
from ingot.loops.lowering.lower import lower
from ingot.loops.show import show
from ingot.loops.target import CPU, GPU, Target
from ingot.schedule import schedule
from ingot.schedule.kernel import Kernel
from ingot.schedule.plan import KernelStep, Plan
from tests.corpus.programs import PROGRAMS, Program

HASHES = Path(__file__).with_name("hashes.json")
PROCESSORS = {"intel": ("avx512", "GenuineIntel"), "amd": ("zen4", "AuthenticAMD")}
"""The target of the code, and whose measured times lowering goes by."""

MADE_WITH = {"torch": torch.__version__.partition("+")[0], "triton": triton.__version__}

Texts = dict[str, str]


def graphs_of(program: Program, mode: str) -> list[AtenGraph]:
    """The ATen graphs that a call compiles, with its backward if it is for training, in order."""
    graphs: list[AtenGraph] = []
    building = pipeline.Building

    def recorded(aten: AtenGraph, *args: Any, **kwargs: Any) -> Any:
        graphs.append(aten)
        return building(aten, *args, **kwargs)

    torch.manual_seed(0)
    compiled = ingot.compile(program.function)
    with (
        mock.patch.object(pipeline, "Building", recorded),
        torch.set_grad_enabled(mode == "training"),
    ):
        arguments = list(program.make(_first_size(program)))
        if mode == "training":
            arguments[0].requires_grad_()
        result = compiled(*arguments)
        if mode == "symbolic":
            graphs.clear()
            compiled(*program.make(_first_size(program) + 3))
        if mode == "training":
            results = result if isinstance(result, (tuple, list)) else [result]
            sum(r.sum() for r in results if r.requires_grad).backward()
    return graphs


def _first_size(program: Program) -> int:
    return 2 if program.make(2)[0].dim() > 2 else 48


def texts_of(program: Program, mode: str) -> Texts:
    """The text of each stage, of all graphs one behind the other."""
    texts: Texts = {}

    def add(stage: str, text: str) -> None:
        texts[stage] = texts.get(stage, "") + re.sub(r" *# .*", "", text) + "\n"

    for graph in graphs_of(program, mode):
        add("aten", graph.code())
        for name, (target, vendor) in PROCESSORS.items():
            with mock.patch.object(cost, "FUNCTIONS", cost.TABLES[vendor]):
                loops, plan = _planned(graph, ops.supported, CPU)
            add(f"{name} loops", show(loops))
            add(f"{name} plan", plan_text(plan))
            add(f"{name} llvm", "\n".join(_llvm(plan, target)))
        run_passes(graph, LIBRARY_PASSES)
        loops, plan = _planned(graph, supported, GPU)
        add("gpu loops", show(loops))
        add("gpu plan", plan_text(plan))
        add("triton", "\n".join(_triton(plan)))
    return texts


def _planned(graph: AtenGraph, has_code: Any, target: Target) -> tuple[LoopGraph, Plan]:
    loops = lower(graph, has_code, target=target)
    return loops, schedule(loops, frugal=True, target=target)


def plan_text(plan: Plan) -> str:
    """Kernels and library calls in order, where buffers lie, and how many bytes there are."""
    lines = [
        f"{len(plan.kernels)} kernels, arena {plan.arena_bytes} bytes, peak {plan.peak_bytes} bytes"
    ]
    lines += [step_text(step) for step in plan.steps]
    lines += [f"{name}: {place_text(plan, place)}" for name, place in plan.places.items()]
    return "\n".join(lines)


def _llvm(plan: Plan, name: str) -> Iterator[str]:
    kernels = [step.kernel for step in plan.steps if isinstance(step, KernelStep)]
    emitted = emit_kernels(
        kernels, [symbol for symbol, *_ in plan.graph.symbols], named(name), check_bounds=False
    )
    yield from dict.fromkeys(map(emitted.ir, kernels))


def _triton(plan: Plan) -> Iterator[str]:
    kernels = [
        step.kernel for step in plan.steps if isinstance(step, KernelStep) and not step.on_host
    ]
    for kernel in dict.fromkeys(k for k in kernels if isinstance(k, Kernel)):
        for form in forms_of(kernel):
            written = write_kernel(kernel, form)
            yield f"{written.source}\n{written.constants} {written.warps} warps"


def everything(names: list[str]) -> Iterator[tuple[str, Texts]]:
    """The texts of each program in each of its ways, by "program, way"."""
    for name in names:
        for mode in PROGRAMS[name].modes:
            yield f"{name}, {mode}", texts_of(PROGRAMS[name], mode)
            ingot.reset()


def hashes_of(texts: Texts) -> dict[str, str]:
    return {stage: hashlib.sha256(text.encode()).hexdigest()[:12] for stage, text in texts.items()}


def stored() -> dict[str, Any]:
    return json.loads(HASHES.read_text())  # type: ignore[no-any-return]


def main() -> int:
    os.environ["INGOT_CACHE_DIR"] = ""  # what is found is not made
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="programs; all of them if none is named")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--write", type=Path, metavar="FOLDER")
    asked = parser.parse_args()
    found: dict[str, dict[str, str]] = {}
    for name, texts in everything(asked.names or list(PROGRAMS)):
        found[name] = hashes_of(texts)
        for stage, text in texts.items() if asked.write else ():
            asked.write.mkdir(parents=True, exist_ok=True)
            (asked.write / f"{name}, {stage}.txt".replace(", ", "-").replace(" ", "_")).write_text(
                text
            )
    if asked.update:
        known = {} if not asked.names else stored()["programs"]
        HASHES.write_text(json.dumps({**MADE_WITH, "programs": known | found}, indent=1) + "\n")
        return 0
    known, changed = stored()["programs"], 0
    for name, hashes in found.items():
        before = known.get(name, {})
        stages = [stage for stage in before | hashes if hashes.get(stage) != before.get(stage)]
        changed += bool(stages)
        print(f"{name}: {', '.join(stages)}" if stages else "", end="\n" if stages else "")
    print(f"{len(found)} programs, {changed} changed")
    return changed > 0


if __name__ == "__main__":
    sys.exit(main())
