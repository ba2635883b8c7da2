"""Every op of torch.testing's database, compiled and in eager: the same results, whatever the dtype
and layout.

`python -m tests.op_database` runs all of it on the CPU and prints a table. `--ops add sum` (or a
category) and `--dtypes float32` run a part, `--samples N` at most N samples of each op and dtype,
`--jobs N` in N processes, `--shard 2/5` the second fifth of the ops. `--save FILE` keeps the counts
of each op as it is done, and `--sum FILE ...` prints the table of several such runs together. Each
sample is run as the database gives it, and again with its tensors transposed, in channels-last or
with gaps between their elements.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import sys
import time
import traceback
import types
import unittest
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import ingot
from ingot.codegen.llvm.module import CompiledKernels
from tests.op_outcome import Call, Different, Made, Ran, compare, made, text
from tests.oracle import ignore_warnings

os.environ["INGOT_CACHE_DIR"] = ""  # code that is not optimized is for nobody else

# -- the database ----------------------------------------------------------------------------------

VIEWS = frozenset(
    """
    contiguous clone to resolve_conj resolve_neg view_as_real view_as_complex broadcast_to
    broadcast_tensors expand expand_as expand_copy chunk unsafe_chunk diag_embed diagonal
    diagonal_copy linalg.diagonal alias_copy flip fliplr flipud meshgrid.variadic_tensors
    meshgrid.list_of_tensors as_strided as_strided.partial_views as_strided_copy narrow narrow_copy
    view_copy permute permute_copy roll rot90 split split.list_args unsafe_split split_with_sizes
    split_with_sizes_copy select slice tensor_split hsplit vsplit dsplit ravel reshape reshape_as
    view view_as atleast_1d atleast_2d atleast_3d flatten unflatten unbind unbind_copy unfold
    unfold_copy movedim squeeze squeeze.multiple squeeze_copy unsqueeze unsqueeze_copy transpose
    transpose_copy T H mH mT t t_copy repeat tile cat stack hstack vstack dstack column_stack
    _chunk_cat block_diag constant_pad_nd nn.functional.pad.constant nn.functional.pad.reflect
    nn.functional.pad.replicate nn.functional.pad.replicate_negative nn.functional.pad.circular
    nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.channel_shuffle
    fft.fftshift fft.ifftshift sum_to_size real imag
    """.split()
)
INDEXING = frozenset(
    """
    masked_fill masked_scatter masked_select gather index_fill index_copy index_select index_add
    index_reduce.mean index_reduce.prod index_reduce.amin index_reduce.amax _unsafe_masked_index
    _unsafe_masked_index_put_accumulate __getitem__ index_put put take take_along_dim scatter
    scatter_add scatter_reduce.sum scatter_reduce.prod scatter_reduce.mean scatter_reduce.amin
    scatter_reduce.amax select_scatter slice_scatter diagonal_scatter as_strided_scatter where
    nonzero nonzero_static argwhere bucketize searchsorted diag diagflat tril triu
    nn.functional.one_hot nn.functional.embedding nn.functional.embedding_bag repeat_interleave
    """.split()
)
POINTWISE = frozenset(
    """
    addcmul addcdiv clamp lerp logaddexp2 cross linalg.cross isin nn.functional.hardswish
    nn.functional.leaky_relu nn.functional.glu nn.functional.gelu masked.logaddexp zero_
    """.split()
)
REDUCTIONS = frozenset(
    """
    max.reduction_with_dim max.reduction_no_dim min.reduction_with_dim min.reduction_no_dim median
    nanmedian mode var_mean var_mean.unbiased std_mean std_mean.unbiased aminmax logsumexp norm
    norm.fro norm.inf norm.nuc trace linalg.norm linalg.norm.subgradients_at_zero linalg.vecdot
    equal quantile nanquantile masked.median
    """.split()
)
CATEGORIES = ("pointwise", "reduction", "view", "indexing", "other")

# What these hold is not defined, or not the same twice.
UNDEFINED = frozenset(
    (
        "empty empty_like new_empty empty_strided new_empty_strided empty_permuted resize_ "
        "resize_as_"
    ).split()
)
# Of 0.0 and -0.0 eager's own kernels choose now one, now the other.
EITHER_ZERO = frozenset(("fmax", "fmin"))
# The ends of a window may be the rounding of a sum that cancels: errors count against its peak.
PEAK_OF_WINDOWS = 1.0
# What cannot be run at the edges of the types.
NO_EDGES = {"lcm": "eager divides the least integer by -1, which ends the process"}
# What eager itself gets wrong in other layouts, by torch 2.15: its results differ from float64.
ONLY_AS_GIVEN = {
    (
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu"
    ): "results with gaps in their last dimension"
}


def op_infos() -> dict[str, Any]:
    """The database by name. torch's test utilities import a package that the database does not
    need, and seed the generator within ops that draw: here that is left to who runs them, as a seed
    breaks the graph."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        absent = sys.modules["expecttest"] = types.ModuleType("expecttest")
        absent.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    from torch.testing._internal import common_methods_invocations as database

    seeded, database.wrapper_set_seed = database.wrapper_set_seed, unseeded
    for info in database.op_db:
        if info.gradcheck_wrapper is seeded:
            info.gradcheck_wrapper = unseeded
    return {f"{info.name}.{info.variant_test_name}".rstrip("."): info for info in database.op_db}


def unseeded(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)


def category(name: str, info: Any) -> str:
    if name in VIEWS:
        return "view"
    if name in INDEXING:
        return "indexing"
    kind = type(info).__name__
    if kind in ("UnaryUfuncInfo", "BinaryUfuncInfo") or name in POINTWISE:
        return "pointwise"
    return "reduction" if kind == "ReductionOpInfo" or name in REDUCTIONS else "other"


def dtypes_of(info: Any) -> list[torch.dtype]:
    return sorted(info.supported_dtypes("cpu"), key=str)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# -- samples and their layouts ---------------------------------------------------------------------


def _relaid(call: Call, change: Callable[[torch.Tensor], torch.Tensor]) -> Call | None:
    """The call with each tensor's values in other memory; None where that changes nothing."""
    changed = False

    def one(t: Any) -> Any:
        nonlocal changed
        if (
            not isinstance(t, torch.Tensor)
            or t.layout is not torch.strided
            or t.is_conj()
            or t.is_neg()
        ):
            return t
        with torch.no_grad():
            laid = change(t.detach())
        changed = changed or (laid.shape, laid.stride()) != (t.shape, t.stride())
        return laid

    result = tree_map(one, call)
    return result if changed else None


def transposed(t: torch.Tensor) -> torch.Tensor:
    order = tuple(reversed(range(t.dim())))
    return t.permute(order).contiguous().permute(order)


def channels_last(t: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


def stepped(t: torch.Tensor) -> torch.Tensor:
    """Every other element of a row twice as long."""
    if not t.dim():
        return t
    wide = torch.zeros((*t.shape[:-1], 2 * t.shape[-1] + 1), dtype=t.dtype)
    return wide[..., 1::2].copy_(t)


def emptied(t: torch.Tensor) -> torch.Tensor:
    return t[:0] if t.dim() else t


def scalar(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(-1)[0].clone() if t.numel() else t


def edges(dtype: torch.dtype) -> torch.Tensor:
    """Numbers at the edges of a type, those that are none, and a few in between."""
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        values = [0.0, -0.0, 1.0, -1.0, 2.5, -0.5, 7.0, math.nan, math.inf, -math.inf]
        values += [limits.max, -limits.max, limits.tiny, -limits.tiny, limits.tiny / 8]
    elif dtype is torch.bool:
        values = [0, 1]
    else:
        values = [0, 1, 2, 7, torch.iinfo(dtype).max, torch.iinfo(dtype).min]
    return (
        torch.tensor(values).to(dtype)
        if dtype.is_floating_point
        else torch.tensor(values, dtype=dtype)
    )


def at_the_edges(call: Call) -> Call | None:
    """The call with tensors of all combinations of such numbers; None where there are too many, or
    complex ones."""
    tensors = [t for t in tree_flatten(call)[0] if isinstance(t, torch.Tensor)]
    if not 0 < len(tensors) <= 3 or any(
        t.is_complex() or t.layout is not torch.strided for t in tensors
    ):
        return None
    values = torch.meshgrid([edges(t.dtype) for t in tensors], indexing="ij")
    new = iter(values)
    return tree_map(lambda t: next(new).clone() if isinstance(t, torch.Tensor) else t, call)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": transposed, "channels-last": channels_last, "stepped": stepped,
}  # fmt: skip
SIZES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"empty": emptied, "0-d": scalar}
ALL_LAYOUTS = 3  # samples of an op and dtype that are run in all layouts; later ones take turns


def samples(info: Any, dtype: torch.dtype, most: int | None) -> list[Call]:
    """The database's samples, or `most` of them, evenly spread."""
    torch.manual_seed(0)
    listed = [
        (s.input, tuple(s.args), dict(s.kwargs))
        for s in info.sample_inputs("cpu", dtype, requires_grad=False)
    ]
    if most is not None and len(listed) > most:
        listed = [listed[k * (len(listed) - 1) // max(most - 1, 1)] for k in range(most)]
    return listed


def variants(
    calls: list[Call], kind: str, with_edges: bool = True, relaid_too: bool = True
) -> Iterator[tuple[str, Call]]:
    """Each call as it is and in other layouts; the first of a pointwise op or a reduction also with
    no elements and without dimensions."""
    for k, call in enumerate(calls):
        yield f"sample {k}", call
        names = list(LAYOUTS) if relaid_too else []
        for name in names if k < ALL_LAYOUTS else names[k % len(LAYOUTS) :][:1]:
            relaid = _relaid(call, LAYOUTS[name])
            if relaid is not None:
                yield f"sample {k}, {name}", relaid
        if k == 0 and kind in ("pointwise", "reduction"):
            for name, change in SIZES.items():
                resized = _relaid(call, change)
                if resized is not None:
                    yield f"sample {k}, {name}", resized
            edge = at_the_edges(call) if kind == "pointwise" and with_edges else None
            if edge is not None:
                yield f"sample {k}, edges", edge


# -- running ---------------------------------------------------------------------------------------


@dataclass
class Row:
    """What was found of one op: counts of calls, and the failures as text."""

    name: str
    category: str
    calls: int = 0
    equal: int = 0
    native: int = 0
    aten: int = 0
    eager: int = 0
    seconds: float = 0.0
    by_dtype: dict[str, Counter[str]] = field(default_factory=dict)  # "native", "aten" and "eager"
    called: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def ran(self, what: Made, dtype: str) -> None:
        """Count a call that did not raise."""
        kind = what.kind.lower()
        setattr(self, kind, getattr(self, kind) + 1)
        self.by_dtype.setdefault(dtype, Counter())[kind] += 1
        self.called.update(set(what.called))
        self.left.update(set(what.left))

    def __str__(self) -> str:
        """One line of the table."""
        notes = [
            f"{name.removeprefix('aten.')} x{count}" for name, count in self.called.most_common(3)
        ]
        notes += [f"{why} x{count}" for why, count in self.left.most_common(2)]
        wrong = self.calls - self.equal
        return (
            f"{self.name:<44.44} {self.category:<9} {self.calls:>6} "
            f"{f'{wrong} WRONG' if wrong else 'equal':>10} "
            f"{self.native:>6} native {self.aten:>6} ATen {self.eager:>6} eager "
            f"{self.seconds:>6.1f} s  "
            f"{'; '.join(notes)}"
        )

    @staticmethod
    def saved(line: str) -> Row:
        """The row that a line of a saved run holds."""
        row = Row(**json.loads(line))
        row.by_dtype = {dtype: Counter(kinds) for dtype, kinds in row.by_dtype.items()}
        row.called, row.left = Counter(row.called), Counter(row.left)
        return row

    @property
    def native_dtypes(self) -> list[bool]:
        """For each dtype that is not complex, whether all calls of it were lowered natively."""
        real = [kinds for dtype, kinds in self.by_dtype.items() if "complex" not in dtype]
        return [set(kinds) == {"native"} for kinds in real]


def run_op(name: str, info: Any, options: argparse.Namespace) -> Row:
    """All calls of an op."""
    row = Row(name, category(name, info))
    dtypes = [d for d in dtypes_of(info) if not options.dtypes or short(d) in options.dtypes]
    start = time.perf_counter()
    with warnings.catch_warnings(), torch.no_grad():
        ignore_warnings()
        for dtype in dtypes:
            _run_samples(row, info, dtype, options.samples)
    row.seconds = time.perf_counter() - start
    return row


def _run_samples(row: Row, info: Any, dtype: torch.dtype, most: int | None) -> None:
    try:
        calls = samples(info, dtype, most)
    except Exception as error:  # the database's own, for what this build of torch lacks
        row.left[f"the database has no samples: {type(error).__name__}"] += 1
        return
    compiled: dict[str, Any] = {}
    relaid_too = row.name not in ONLY_AS_GIVEN
    for k, (label, call) in enumerate(
        variants(calls, row.category, row.name not in NO_EDGES, relaid_too)
    ):
        where = f"{row.name} {short(dtype)} {label}"
        with _QuickCode(k > 0):
            _run_call(row, info.op, call, where, compiled)


def _run_call(row: Row, op: Any, call: Call, where: str, compiled: dict[str, Any]) -> None:
    def eager(input: Any, args: Any, kwargs: Any) -> Any:
        return op(input, *args, **kwargs)

    row.calls += 1
    expected = Ran.of(eager, call)
    key = facts(call)
    function = compiled[key] = compiled.get(key) or ingot.compile(eager)
    actual = Ran.of(function, call)
    what = made(function)
    if expected.error is None:
        row.ran(what, where.split()[1])
    try:
        compare(
            actual, expected, eager, call,
            values=row.name not in UNDEFINED, zeros=row.name not in EITHER_ZERO,
            elementwise=row.category == "pointwise",
            peak=PEAK_OF_WINDOWS if row.name.startswith("signal.windows") else 0.0,
        )  # fmt: skip
        if any("internal error" in why for why in what.left):
            raise Different(what.left[0])
    except Different as difference:
        row.failures.append(f"{where} {text(call)}: {difference}")
    else:
        row.equal += 1


def facts(call: Call) -> str:
    """Equal for calls that one compilation serves."""

    def fact(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            is_strided = value.layout is torch.strided
            place = value.stride() if is_strided else id(value)
            return f"{value.dtype}{tuple(value.shape)}{place}"
        if isinstance(value, (list, tuple)):
            return f"{type(value).__name__}({','.join(map(fact, value))})"
        if isinstance(value, dict):
            return f"{{{','.join(f'{k}={fact(v)}' for k, v in value.items())}}}"
        return repr(value)

    return fact(call)


class _QuickCode:
    """Within, LLVM generates code without optimizing it, which takes half the time, and equal code
    once: what is computed does not depend on it."""

    _objects: dict[int, list[bytes]] = {}

    def __init__(self, quick: bool) -> None:
        self.quick = quick

    def __enter__(self) -> None:
        if not self.quick:
            return
        from llvmlite.binding import Target

        self._target, self._create, self._compile = (
            Target,
            Target.create_target_machine,
            CompiledKernels._compile,
        )
        create, compile, objects = self._create, self._compile, self._objects

        def create_quick(target: Any, *args: Any, **kwargs: Any) -> Any:
            return create(target, *args, **(kwargs | {"opt": 0}))

        def compile_once(kernels: Any) -> None:
            text = "".join(kernels._texts)
            key = zlib.crc32(text.encode()) << 32 | len(text)
            if key not in objects:
                compile(kernels)
                objects[key] = kernels.objects
            kernels.objects = objects[key]

        Target.create_target_machine = create_quick  # type: ignore[method-assign]
        CompiledKernels._compile = compile_once  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        if self.quick:
            self._target.create_target_machine = self._create
            CompiledKernels._compile = self._compile  # type: ignore[method-assign]


# -- the command -----------------------------------------------------------------------------------


def work(
    names: Connection, infos: dict[str, Any], options: argparse.Namespace, run: Any, row_of: Any
) -> None:
    """A worker: runs the ops that are named to it, one after the other, and answers with each
    row."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch warns of much
    torch.set_num_threads(1)
    while True:
        name = names.recv()
        if name is None:
            return
        try:
            row = run(name, infos[name], options)
        except Exception:
            row = row_of(name, calls=1, failures=[f"{name}: {traceback.format_exc()}"])
        names.send(row)


class Worker:
    """A process that runs one op after the other; it is started again where an op ends it."""

    def __init__(self, *given: Any) -> None:
        self.given, self.row_of = given, given[-1]
        self.start()

    def start(self) -> None:
        processes = multiprocessing.get_context("fork")  # the database takes seconds to import
        self.names, other = multiprocessing.Pipe()
        self.process = processes.Process(target=work, args=(other, *self.given), daemon=True)
        self.process.start()
        other.close()

    def run(self, name: str) -> Any:
        self.names.send(name)
        try:
            return self.names.recv()
        except EOFError:
            self.process.join()
        status = self.process.exitcode
        self.start()
        return self.row_of(
            name, calls=1, failures=[f"{name}: the process ended with status {status}"]
        )

    def close(self) -> None:
        self.names.send(None)
        self.process.join()


def run_all(
    names: list[str], infos: dict[str, Any], options: argparse.Namespace, run: Any, row_of: Any,
    done: Callable[[Any], None] = lambda row: None,
) -> list[Any]:  # fmt: skip
    """The rows that `run` makes of the ops; `row_of(name, calls=, failures=)` is that of one that
    it cannot. `done` is called with each."""
    workers: SimpleQueue[Worker] = SimpleQueue()
    for _ in range(options.jobs):
        workers.put(Worker(infos, options, run, row_of))

    def one(name: str) -> Any:
        worker = workers.get()
        try:
            return worker.run(name)
        finally:
            workers.put(worker)

    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(one, names):
            rows.append(row)
            done(row)
            print(row, flush=True)
            for failure in row.failures[: options.failures]:
                print(f"    {failure}", flush=True)
    for _ in range(options.jobs):
        workers.get().close()
    return rows


LOOPS = CATEGORIES[:-1]  # what loops are for


def summary(rows: list[Row]) -> str:
    """Counts by category. An op is lowered natively in part where all of its calls of some dtype
    are, and a pair of op and dtype where all of its calls are; complex dtypes count among the calls
    only. An op counts as called in ATen where a program of any of its calls, those of complex
    dtypes too, calls a function of ATen."""
    head = (
        f"{'category':<14} {'ops':>4} {'native':>11} {'in part':>8} {'ATen':>5} "
        f"{'op and dtype':>13} {'native':>11}"
    )
    lines = [f"\n{head}   calls: native, ATen, eager, wrong"]
    kinds = {kind: (kind,) for kind in CATEGORIES} | {"all but other": LOOPS, "all": CATEGORIES}
    for title, members in kinds.items():
        of_kind = [r for r in rows if r.by_dtype and r.category in members]
        native = [r.native_dtypes for r in of_kind if r.native_dtypes]
        whole, part = sum(map(all, native)), sum(any(pairs) and not all(pairs) for pairs in native)
        pairs, lowered = sum(map(len, native)), sum(map(sum, native))
        calls = [sum(getattr(r, name) for r in of_kind) for name in ("native", "aten", "eager")]
        wrong = sum(r.calls - r.equal for r in rows if r.category in members)
        share = f"{whole} ({whole / max(len(native), 1):.0%})"
        lines.append(
            f"{title:<14} {len(native):>4} {share:>11} {part:>8} "
            f"{sum(r.aten > 0 for r in of_kind):>5} {pairs:>13} "
            f"{f'{lowered} ({lowered / max(pairs, 1):.0%})':>11}   "
            f"{', '.join(map(str, [*calls, wrong]))}"
        )
    return "\n".join(lines)


def summed(files: list[Path], infos: dict[str, Any]) -> list[Row]:
    """The rows of saved runs. The last row of an op that was run again counts; ops that no run
    holds are told."""
    rows = {
        row.name: row for file in files for row in map(Row.saved, file.read_text().splitlines())
    }
    for name in infos:
        if name not in rows:
            print(f"not run: {name}")
    for row in rows.values():
        for failure in row.failures:
            print(failure)
    return list(rows.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ops", nargs="*", help="names as in the table; a category runs all of it")
    parser.add_argument(
        "--dtypes", nargs="*", help="float32 int64 ...; all that the op takes by default"
    )
    parser.add_argument("--samples", type=int, help="at most so many samples of each op and dtype")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--shard", help="k/n: the k-th of n parts of the ops, from 1")
    parser.add_argument(
        "--failures", type=int, default=4, help="failures of an op that are printed"
    )
    parser.add_argument("--save", type=Path, help="a file to which the counts of each op are added")
    parser.add_argument(
        "--sum", nargs="+", type=Path, help="run nothing, but print what such files hold"
    )
    options = parser.parse_args()
    infos = op_infos()
    if options.sum:
        rows = summed(options.sum, infos)
        print(summary(rows))
        return int(any(row.failures for row in rows))
    wanted = options.ops or list(infos)
    names = [
        n
        for n in infos
        if n in wanted or category(n, infos[n]) in wanted or infos[n].name in wanted
    ]
    if options.shard:
        part, parts = map(int, options.shard.split("/"))
        names = list(itertools.islice(names, part - 1, None, parts))

    def row_of(name: str, **found: Any) -> Row:
        return Row(name, category(name, infos[name]), **found)

    def save(row: Row) -> None:
        if options.save:
            with options.save.open("a") as file:
                file.write(json.dumps(vars(row)) + "\n")

    rows = run_all(names, infos, options, run_op, row_of, save)
    print(summary(rows))
    return int(any(row.failures for row in rows))


if __name__ == "__main__":
    sys.exit(main())
