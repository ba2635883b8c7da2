"""Choosing by measurement (`mode="max-autotune"`): which matrix products of a GPU's program are
kernels of ours, with what comes next in them, and in which tiles, rather than calls of the library.
What was chosen is kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

import torch

from ingot.codegen.store import Store, store_in
from ingot.codegen.triton import write_kernel
from ingot.codegen.triton.module import compiler_digest
from ingot.loops.ir import View
from ingot.schedule.kernel import Kernel, Tiling
from ingot.schedule.plan import KernelStep, LibraryStep, Plan
from ingot.schedule.templates import Choice, Form, Site
from ingot.schedule.tilings import Chip, after_parts, tilings

MARGIN = 0.97  # of the library's time, that a kernel must not exceed to be chosen
MOST_TRIED = 14  # of a product
MOST_OF_OTHERS = 4  # of a form beside the one that does most at once
_FORMAT = 2  # of what is kept

Measure = Callable[[Sequence[Plan], frozenset[str]], Sequence[float | None]]
"""Microseconds of plans that do the same, None for those that do not run; of their inputs, those
that are named are not in a cache when they are read."""


class Tuner:
    """Chooses for a program, as `schedule.templates.Choose`. `notes` are what it has to say, a line
    for each site."""

    def __init__(
        self,
        chip: Chip,
        measure: Measure,
        precisions: Sequence[str] = ("ieee",),
        store: Store | None = None,
    ):
        self.chip, self.precisions, self._measure = chip, tuple(precisions), measure
        self._store = store_in("tuned") if store is None else store
        self.notes: list[str] = []
        # of this program: most of its sites are alike
        self._known: dict[object, Sequence[float | None]] = {}

    def __call__(self, sites: Sequence[Site], plan: Callable[[Site, Choice], Plan]) -> list[Choice]:
        return [self._choose(site, plan) for site in sites]

    def candidates(self, site: Site) -> list[tuple[Form, Tiling]]:
        """What is tried: the best guesses for each form, and of these those that are best of
        all."""
        found: list[tuple[float, int, Form, Tiling]] = []
        for number, form in enumerate(site.forms):
            more = after_parts(form.sizes, form.parts)
            guessed = tilings(form.sizes, site.dtype, self.chip, self.precisions, form.work)
            guessed = guessed[:MOST_OF_OTHERS] if number else guessed
            found += [(time + more, number, form, tiling) for time, tiling in guessed]
        return [
            (form, tiling) for *_, form, tiling in sorted(found, key=lambda f: f[:2])[:MOST_TRIED]
        ]

    def _choose(self, site: Site, plan: Callable[[Site, Choice], Plan]) -> Choice:
        tried = self.candidates(site)
        if not tried:
            return None
        as_it_is = plan(site, None)
        alike = (
            _text(as_it_is, site.given),
            tuple((form.parts, len(form.positions), tiling) for form, tiling in tried),
        )
        again = alike in self._known
        if not again:
            plans = [as_it_is, *(plan(site, choice) for choice in tried)]
            found, again = self._times(site, plans, [tiling for _, tiling in tried])
            if found[0] is None:
                self.notes.append(f"{_title(site)}: could not be measured")
                return None
            self._known[alike] = found
        library, *times = self._known[alike]
        assert library is not None
        ran = sorted((t, k) for k, t in enumerate(times) if t is not None)
        chosen = bool(ran) and ran[0][0] <= MARGIN * library
        text = f"{_title(site)}: {'a kernel' if chosen else 'the library'}"
        if ran:
            text += f"; of {len(ran)} tilings the best, {_described(*tried[ran[0][1]])}, takes {ran[0][0]:.1f} us,"
        self.notes.append(
            f"{text} the library {library:.1f} us{' (measured before)' if again else ''}"
        )
        return tried[ran[0][1]] if chosen else None

    def _times(
        self, site: Site, plans: Sequence[Plan], tilings: Sequence[Tiling]
    ) -> tuple[Sequence[float | None], bool]:
        """What plans take, and whether that was known from before."""
        key = self._key(site, plans, tilings)
        kept = self._store.get(key)
        found = None if kept is None else _read(kept, len(plans))
        if found is not None:
            return found, True
        measured = self._measure(plans, site.given)
        if measured[0] is not None:
            self._store.put(key, json.dumps(list(measured)).encode())
        return measured, False

    def _key(self, site: Site, plans: Sequence[Plan], tried: Sequence[Tiling]) -> str:
        """A digest of what decides the times: the device, the compiler, the libraries, and what is
        computed."""
        facts = (
            _FORMAT, self.chip, compiler_digest(), torch.__version__, torch.version.cuda,
            site.sizes, site.dtype, self.precisions, [_text(p, site.given) for p in plans],
            [tuple(t) for t in tried],
        )  # fmt: skip
        return hashlib.sha256(repr(facts).encode()).hexdigest()


def _title(site: Site) -> str:
    return f"{site.title}{f' at {site.where}' if site.where else ''}"


def _described(form: Form, tiling: Tiling) -> str:
    return f"{tiling}{f', sums in {form.parts} parts' if form.parts > 1 else ''}"


def _read(kept: bytes, count: int) -> list[float | None] | None:
    try:
        found = json.loads(kept)
    except ValueError:
        return None
    good = isinstance(found, list) and len(found) == count and isinstance(found[0], float)
    return found if good and all(t is None or isinstance(t, float) for t in found) else None


def _text(plan: Plan, given: frozenset[str]) -> str:
    """What a plan computes, without names that differ from program to program."""
    names: dict[str, str] = {}
    lines: list[str] = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            assert isinstance(step.kernel, Kernel)
            touched = list(step.arguments)
            written = write_kernel(step.kernel)
            lines += [
                line
                for line in written.source.splitlines()[2:]
                if not line.lstrip().startswith("#")
            ]
        else:
            assert isinstance(step, LibraryStep)
            views = [v for v in step.node.args if isinstance(v, View)]
            touched = [*(v.buffer for v in views), *(t for t in step.node.targets if t is not None)]
            lines.append(
                f"{step.node.function.__name__}{[(v.sizes, v.strides, v.offset) for v in views]}"
            )
        for name in touched:
            names.setdefault(name, f"b{len(names)}")
        lines.append(str([names[name] for name in touched]))
    buffers = [(plan.graph.buffers[name], name in given) for name in names]
    lines += [f"{b.dtype} {b.sizes} {b.strides} {b.role} {is_given}" for b, is_given in buffers]
    return "\n".join(lines)
