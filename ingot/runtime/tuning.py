"""Choosing by measurement (`mode="max-autotune"`): which matrix products become kernels of ours.

Such a kernel has the product's epilogue, and the tiles that were measured to be best; other
products are calls of the library. The times are kept on disk.
"""

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
from ingot.sequences import at, present

MOST_TRIED = 14  # of a product
MOST_OF_OTHERS = 4  # of a form beside the one that does most at once
_FORMAT = 2  # of what is kept

Measure = Callable[[Sequence[Plan], frozenset[str]], Sequence[float | None]]
"""Microseconds of plans that do the same, None for those that do not run. Of their inputs, those
that are named are not in a cache when they are read."""


class Tuner:
    """Chooses for a program, as `schedule.templates.Choose`; `notes` has a line for each site.

    A kernel is chosen if it takes at most `margin` of the library's time.
    """

    def __init__(
        self,
        chip: Chip,
        measure: Measure,
        precisions: Sequence[str] = ("ieee",),
        store: Store | None = None,
        margin: float = 0.97,
    ):
        self.chip, self.precisions, self._measure = chip, tuple(precisions), measure
        self.margin = margin
        if store is None:
            store = store_in("tuned")
        self._store = store
        self.notes: list[str] = []
        # of this program: most of its sites are alike
        self._known: dict[object, Sequence[float | None]] = {}

    def __call__(self, sites: Sequence[Site], plan: Callable[[Site, Choice], Plan]) -> list[Choice]:
        return [self._choose(site, plan) for site in sites]

    def candidates(self, site: Site) -> list[tuple[Form, Tiling]]:
        """The best guesses for each form, and of these those that are best of all."""
        guesses: list[tuple[float, int, Form, Tiling]] = []
        for number, form in enumerate(site.forms):
            more = after_parts(form.sizes, form.parts)
            of_form = tilings(form.sizes, site.dtype, self.chip, self.precisions, form.work)
            if number:
                of_form = of_form[:MOST_OF_OTHERS]
            guesses += [(time + more, number, form, tiling) for time, tiling in of_form]
        guesses.sort(key=lambda guess: guess[:2])
        return [(form, tiling) for *_, form, tiling in guesses[:MOST_TRIED]]

    def _choose(self, site: Site, plan: Callable[[Site, Choice], Plan]) -> Choice:
        tried = self.candidates(site)
        if not tried:
            return None
        unchanged = plan(site, None)
        shapes = tuple([(form.parts, len(form.positions), tiling) for form, tiling in tried])
        alike = _text(unchanged, site.outside), shapes
        measured_before = alike in self._known
        if not measured_before:
            plans = [unchanged, *(plan(site, choice) for choice in tried)]
            times, measured_before = self._times(site, plans, [tiling for _, tiling in tried])
            if times[0] is None:
                self.notes.append(f"{_title(site)}: could not be measured")
                return None
            self._known[alike] = times
        library, *of_kernels = self._known[alike]
        assert library is not None
        ran = [(t, k) for k, t in enumerate(of_kernels) if t is not None]
        chosen, timing, what = None, "", "the library"
        if ran:
            best, number = min(ran)
            tiling = _described(*tried[number])
            timing = f"; of {len(ran)} tilings the best, {tiling}, takes {best:.1f} us,"
            if best <= self.margin * library:
                chosen, what = tried[number], "a kernel"
        note = f"{_title(site)}: {what}{timing} the library {library:.1f} us"
        self.notes.append(f"{note} (measured before)" if measured_before else note)
        return chosen

    def _times(
        self, site: Site, plans: Sequence[Plan], tilings: Sequence[Tiling]
    ) -> tuple[Sequence[float | None], bool]:
        """The times of plans, and whether the store had them."""
        key = self._key(site, plans, tilings)
        times = _read(self._store.get(key), len(plans))
        if times is not None:
            return times, True
        measured = self._measure(plans, site.outside)
        if measured[0] is not None:
            self._store.put(key, json.dumps(list(measured)).encode())
        return measured, False

    def _key(self, site: Site, plans: Sequence[Plan], tried: Sequence[Tiling]) -> str:
        """A digest of what decides the times: device, compiler, libraries, computation."""
        facts = (
            _FORMAT, self.chip, compiler_digest(), torch.__version__, torch.version.cuda,
            site.sizes, site.dtype, self.precisions, [_text(p, site.outside) for p in plans],
            list(map(tuple, tried)),
        )  # fmt: skip
        return hashlib.sha256(repr(facts).encode()).hexdigest()


def _title(site: Site) -> str:
    if site.where:
        return f"{site.title} at {site.where}"
    return site.title


def _described(form: Form, tiling: Tiling) -> str:
    if form.parts > 1:
        return f"{tiling}, sums in {form.parts} parts"
    return str(tiling)


def _read(content: bytes | None, count: int) -> list[float | None] | None:
    """The times that were stored; None if that is not what is there."""
    try:
        times = json.loads(content or b"")
    except ValueError:
        return None
    if not isinstance(times, list) or len(times) != count or not isinstance(times[0], float):
        return None
    if all(isinstance(t, float) for t in present(times)):
        return times
    return None


def _text(plan: Plan, outside: frozenset[str]) -> str:
    """What a plan computes, without names that differ from program to program."""
    names: dict[str, str] = {}
    lines: list[str] = []
    for step in plan.steps:
        if isinstance(step, KernelStep):
            assert isinstance(step.kernel, Kernel)
            touched = list(step.arguments)
            body = write_kernel(step.kernel).source.splitlines()[2:]
            lines += [line for line in body if not line.lstrip().startswith("#")]
        else:
            assert isinstance(step, LibraryStep)
            touched, geometry = [], []
            for v in step.node.args:
                if isinstance(v, View):
                    touched.append(v.buffer)
                    geometry.append((v.sizes, v.strides, v.offset))
            touched += present(step.node.targets)
            lines.append(f"{step.node.function.__name__}{geometry}")
        for name in touched:
            names.setdefault(name, f"b{len(names)}")
        lines.append(str(at(names, touched)))
    for name in names:
        b = plan.graph.buffers[name]
        lines.append(f"{b.dtype} {b.sizes} {b.strides} {b.role} {name in outside}")
    return "\n".join(lines)
