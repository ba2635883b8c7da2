"""Attention with scores of the program's own, and its gradients, under Triton's interpreter: errors
against float64 beside eager's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ingot.codegen.triton import supported, write_kernel
from ingot.codegen.triton.module import Gpu, available, compile_kernels
from ingot.graph import AtenGraph, FakeContext
from ingot.graph.joint import trace_joint
from ingot.graph.partition import Partition, partition
from ingot.graph.passes.dead_code import remove_dead_code
from ingot.graph.passes.pipeline import SIMPLIFICATIONS, run_passes
from ingot.graph.passes.scores import recognize_scores
from ingot.loops.ir import Contraction
from ingot.loops.lowering import attention_tiles
from ingot.loops.lowering.attention_parts import parts_of
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.loops.verify import verify
from ingot.schedule import schedule
from ingot.schedule.kernel import Kernel
from ingot.schedule.plan import KernelStep, Plan
from tests.codegen.triton.interpreting import INTERPRETED, interpreted, run_interpreted
from tests.graph.tracing import graph_of
from tests.long import long
from tests.loops.test_lowering import traced

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

if not INTERPRETED:
    LARGE = ("results", "tiles_", "parts_of_the", "gradients", "second_sum", "symbolic")
    REST = " and ".join(f"not test_{name}" for name in LARGE)

    @long
    @pytest.mark.parametrize("chosen", [*(f"test_{name}" for name in LARGE), REST])
    def test_under_the_interpreter(chosen: str) -> None:
        run_interpreted(__file__, chosen)

else:
    from tests.codegen.triton.interpreter import planned_beside, run

compiled = pytest.mark.skipif(INTERPRETED, reason="compiles")
DEVICES = [Gpu("cuda", 80), Gpu("cuda", 90), Gpu("cuda", 100), Gpu("hip", "gfx942")]
MOST_SHARED = 228 << 10  # bytes of shared memory that a block of an H100 may have, or more

Function = Callable[[Tensor, Tensor, Tensor], Tensor]
Scores = Callable[[Tensor], Tensor]
SAFE = torch.ops.aten._safe_softmax.default
SLOPES = torch.tensor([0.25, -0.5])
DOCUMENTS = torch.arange(77) // 20


def attention(change: Scores, softmax: Callable[[Tensor, int], Tensor] = SAFE) -> Function:
    """As a program writes it: the scores are in float32, or in the inputs' dtype if that is
    float64."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        scores = q.to(wide) @ k.to(wide).transpose(-2, -1) * 0.125
        return softmax(change(scores), -1).to(q.dtype) @ v

    return attend


def places(s: Tensor) -> tuple[Tensor, Tensor]:
    return torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])


def masked(s: Tensor, condition: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return torch.where(condition(*places(s)), s, -math.inf)


def causal(s: Tensor) -> Tensor:
    return masked(s, lambda q, k: q >= k)


SCORES: dict[str, Scores] = {
    "plain": lambda s: s,
    "causal": causal,
    "filled": lambda s: s.masked_fill(places(s)[0] < places(s)[1], -math.inf),
    "window": lambda s: masked(s, lambda q, k: (q >= k) & (q - k <= 9)),
    "prefix": lambda s: masked(s, lambda q, k: (q >= k) | (k < 30)),
    "above": lambda s: masked(s, lambda q, k: k > q),
    "nothing seen": lambda s: masked(s, lambda q, k: (k < 5) & (q < 5)),
    "documents": lambda s: masked(
        s, lambda q, k: (DOCUMENTS[q % 77] == DOCUMENTS[k % 77]) & (q >= k)
    ),
    "alibi": lambda s: causal(s + SLOPES[:, None, None] * (places(s)[1] - places(s)[0])),
    "capped": lambda s: causal(3 * torch.tanh(s / 3)),
    "twice": lambda s: s * torch.sigmoid(s) + s,
    "divided": lambda s: s / (places(s)[1] + 1),
}
# queries, keys, the width of keys, that of values, heads of keys
SIZES = [(77, 77, 16, 16, 2), (128, 64, 48, 24, 1), (130, 200, 64, 64, 2), (1, 77, 32, 16, 2)]


def inputs(sizes: tuple[int, ...], dtype: torch.dtype = torch.float16) -> list[Tensor]:
    queries, keys, width, value_width, heads = sizes
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 2, queries, width), (2, heads, keys, width), (2, heads, keys, value_width)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def planned(graph: AtenGraph) -> Plan:
    loops = lower(graph, supported, target=GPU)
    verify(loops)
    return schedule(loops, target=GPU)


def products_of(graph: AtenGraph) -> list[KernelStep]:
    """The steps of kernels with a product."""
    steps = []
    for step in planned(graph).steps:
        if isinstance(step, KernelStep) and isinstance(step.kernel, Kernel):
            if step.kernel.product is not None:
                steps.append(step)
    return steps


def lowered(graph: AtenGraph) -> list[Contraction]:
    """The contractions of a graph."""
    nodes = lower(graph, supported, target=GPU).nodes
    return [n for n in nodes if isinstance(n, Contraction)]


def weights(graph: AtenGraph) -> int:
    """How many of these compute an operand."""
    return sum(n.weights is not None for n in lowered(graph))


def off(actual: Tensor, exact: Tensor, least: float = 1e-3) -> float:
    """The error as a part of what is exact, or of `least` if that is more."""
    return ((actual.double() - exact).norm() / exact.norm().clamp(min=least)).item()


@interpreted
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_results(name: str, sizes: tuple[int, ...]) -> None:
    function, args = attention(SCORES[name]), inputs(sizes)
    graph = traced(function, *args)
    run_passes(graph, SIMPLIFICATIONS)
    recognize_scores(graph, "cpu")
    remove_dead_code(graph)
    assert weights(graph) == 1
    (ours,) = run(planned(graph), [t.clone() for t in args])
    eager, exact = function(*args), function(*(t.double() for t in args))
    assert off(ours.reshape(eager.shape), exact) <= 2 * off(eager, exact) + 1e-4


IDS = torch.arange(300) // 37
OF_BATCH = torch.stack([IDS, (torch.arange(300) + 20) // 150])
PRESENT = torch.arange(300)[None] < torch.tensor([140, 3])[:, None]
LISTED: dict[str, Scores] = {
    "documents": lambda s: masked(s, lambda q, k: (IDS[q] == IDS[k]) & (q >= k)),
    "documents of a batch": lambda s: masked(
        s, lambda q, k: OF_BATCH[:, None, q] == OF_BATCH[:, None, k]
    ),
    "keys that are there": lambda s: masked(s, lambda q, k: PRESENT[:, None, None, k]),
    "window and first keys": lambda s: masked(s, lambda q, k: (q >= k) & ((q - k < 9) | (k < 4))),
    "every fifth": lambda s: masked(s, lambda q, k: (q - k) % 5 == 0),
    "far away": lambda s: masked(s, lambda q, k: (q - k).abs() > 150),
    "blocks": lambda s: masked(s, lambda q, k: (q // 60 == k // 60) | (k // 140 == q // 140)),
    "nothing": lambda s: masked(s, lambda q, k: IDS[q] == IDS[k] + 500),
    "all": lambda s: masked(s, lambda q, k: IDS[q] < IDS[k] + 500),
    "with a bias": lambda s: masked(
        s + SLOPES[:, None, None] * IDS[places(s)[1]], lambda q, k: IDS[q] == IDS[k]
    ),
    "low scores too": lambda s: masked(
        torch.where(s < -1, -math.inf, s), lambda q, k: IDS[q] == IDS[k]
    ),
}
LISTED_SIZES = [(300, 260, 16, 16, 2), (256, 256, 16, 32, 1)]


def lists(graph: AtenGraph) -> int:
    """The contractions of a graph that go through lists of tiles."""
    weighted = [n.weights for n in lowered(graph)]
    return sum(w is not None and w.tiles is not None for w in weighted)


@interpreted
@pytest.mark.parametrize("sizes", LISTED_SIZES, ids=str)
@pytest.mark.parametrize("name", LISTED)
def test_tiles_that_matter(
    name: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what no window describes, a list of tiles is made, for the gradients as well."""
    monkeypatch.setattr(attention_tiles, "SHARE", 1)
    function, args = attention(LISTED[name]), inputs(sizes)
    leaves = [t.clone().requires_grad_() for t in args]
    parts = trained(function, leaves)
    assert (lists(parts.forward), lists(parts.backward)) == (1, 3)
    check_training(function, args, leaves, parts)


@interpreted
@pytest.mark.parametrize("sizes", [(1, 1024, 16, 16, 2), (40, 768, 32, 16, 1)], ids=str)
@pytest.mark.parametrize("name", ["plain", "causal", "window", "nothing seen", "above", "alibi"])
@pytest.mark.parametrize("softmax", [SAFE, torch.softmax], ids=["safe", "plain"])
def test_parts_of_the_keys(
    name: str, sizes: tuple[int, ...], softmax: Callable[[Tensor, int], Tensor]
) -> None:
    """Few queries over many keys take them in parts, of which some may be masked as a whole."""
    function, args = attention(SCORES[name], softmax), inputs(sizes)
    leaves = [t.clone().requires_grad_() for t in args]
    parts = trained(function, leaves)
    (node,) = (n for n in lowered(parts.forward) if n.weights is not None)
    assert len(node.batch) == 3 and node.batch[2].extent.constant == sizes[1] // 256 // 2 * 2
    if name == "nothing seen" and softmax is torch.softmax:  # NaN
        (ours, *_), eager = run(planned(parts.forward), [t.clone() for t in args]), function(*args)
        torch.testing.assert_close(
            ours.reshape(eager.shape), eager, atol=4e-3, rtol=4e-3, equal_nan=True
        )
    else:
        check_training(function, args, leaves, parts)


@pytest.mark.parametrize(
    "batch, queries, keys, count",
    [
        (1, 1, 4096, 16), (1, 1, 1 << 16, 256), (32, 1, 4096, 8), (256, 1, 4096, 1),
        (1, 64, 4096, 16), (1, 65, 4096, 1), (1, 1, 511, 1), (1, 1, 512, 2), (4, 1, 3 << 10, 8),
    ],
)  # fmt: skip
def test_how_many_parts(batch: int, queries: int, keys: int, count: int) -> None:
    parts = parts_of(batch, queries, keys)
    assert count == (1 if parts is None else parts.part.extent.constant)


def test_few_tiles_and_dear_conditions_have_no_lists() -> None:
    for name, sizes, shared in (
        ("documents", (120, 300, 16, 16, 2), False),
        ("documents", (300, 120, 16, 16, 2), False),
        ("documents", (300, 300, 16, 16, 2), True),
    ):
        args = inputs(sizes)
        if shared:  # by nobody: the condition is as large as the scores
            args = [t[:1, :1] for t in args]
        graph = traced(attention(LISTED[name]), *args)
        run_passes(graph, SIMPLIFICATIONS)
        recognize_scores(graph, "cpu")
        remove_dead_code(graph)
        assert (weights(graph), lists(graph)) == (1, 0)


def trained(function: Function, leaves: list[Tensor], dynamic: tuple[int, ...] = ()) -> Partition:
    """The forward and the backward; sizes in the dimensions `dynamic` are symbols."""
    context = FakeContext()
    with context:
        fakes = [context.fake(t, frozenset(dynamic)) for t in leaves]
    joint = trace_joint(graph_of(function), fakes, context)
    recognize_scores(joint.aten, "cpu")
    remove_dead_code(joint.aten)
    return partition(joint)


@interpreted
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_gradients(name: str, sizes: tuple[int, ...]) -> None:
    """Each gradient is one contraction; nothing of the size of the scores is saved."""
    function, args = attention(SCORES[name]), inputs(sizes)
    leaves = [t.clone().requires_grad_() for t in args]
    parts = trained(function, leaves)
    assert (weights(parts.forward), weights(parts.backward)) == (1, 3)
    check_training(function, args, leaves, parts)


SYMBOLIC = ["plain", "causal", "window", "prefix", "above", "nothing seen", "alibi", "capped"]


@interpreted
@pytest.mark.parametrize("sizes", [SIZES[1], SIZES[2], SIZES[3]], ids=str)
@pytest.mark.parametrize("name", SYMBOLIC)
@pytest.mark.parametrize("dynamic", [(2,), (0, 2)], ids=str)
def test_symbolic_lengths(name: str, sizes: tuple[int, ...], dynamic: tuple[int, ...]) -> None:
    function, args = attention(SCORES[name]), inputs(sizes)
    leaves = [t.clone().requires_grad_() for t in args]
    parts = trained(function, leaves, dynamic if sizes[0] > 1 else dynamic[:-1])
    assert (weights(parts.forward), weights(parts.backward)) == (1, 3)
    check_training(function, args, leaves, parts)


@interpreted
@pytest.mark.parametrize("name", ["documents", "keys that are there", "with a bias", "blocks"])
def test_tiles_of_symbolic_lengths(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_tiles, "SHARE", 1)
    function, args = attention(LISTED[name]), inputs(LISTED_SIZES[0])
    leaves = [t.clone().requires_grad_() for t in args]
    parts = trained(function, leaves, (2,))
    assert (lists(parts.forward), lists(parts.backward)) == (1, 3)
    check_training(function, args, leaves, parts)


@compiled
@pytest.mark.parametrize("gpu", [DEVICES[1], pytest.param(DEVICES[3], marks=long)], ids=str)
def test_forms_of_symbolic_lengths(gpu: Gpu) -> None:
    """One has its indices in 32 bits, where these are enough."""
    leaves = [torch.randn(2, 4, 256, 64).bfloat16().requires_grad_() for _ in range(3)]
    parts = trained(attention(causal), leaves, (0, 2))
    for graph, count in ((parts.forward, 1), (parts.backward, 2)):
        steps = products_of(graph)
        assert len(steps) == count
        kernels = compile_kernels(steps, gpu)
        for step in steps:
            forms = kernels.forms(step.kernel)  # type: ignore[arg-type]
            assert [form.written.short for form in forms] == [True, False]
            for form in forms:
                assert form.binary.image[:4] == b"\x7fELF"


def check_training(
    function: Function, args: list[Tensor], leaves: list[Tensor], parts: Partition
) -> None:
    """The result and the gradients, beside eager's."""
    result, *kept = run(planned(parts.forward), [t.clone() for t in args])
    scores = args[0].shape[2], args[1].shape[2]
    assert scores[0] == 1 or all(t.shape[-2:] != scores for t in kept)
    eager, exact_result = function(*leaves), function(*(t.double() for t in args))
    ours = result.reshape(eager.shape)
    assert off(ours, exact_result) <= 2 * off(eager, exact_result) + 1e-4
    tangent = torch.randn(eager.shape, generator=torch.Generator().manual_seed(1)).half()
    at = {"input": args, "output": [result.reshape(eager.shape)], "kept": kept}
    saved = [at[s.role][s.position].clone() for s in parts.saved]
    gradients = run(planned(parts.backward), [*saved, tangent])
    wide = [t.double().requires_grad_() for t in args]
    exact = torch.autograd.grad(function(*wide), wide, tangent.double())
    eagers = torch.autograd.grad(eager, leaves, tangent)
    # What a score's gradient is the difference of is summed in float32: where one key is all that a
    # query sees, nothing but the rounding of these sums is left of it.
    summed = (tangent.double().norm() * args[2].double().norm() * 2**-24).item()
    for ours, theirs, true in zip(gradients, eagers, exact, strict=True):
        error, right = off(ours.reshape(true.shape), true, 1e3 * summed), off(theirs, true)
        assert error <= 3 * right + 1e-3


def read_beside(graph: AtenGraph) -> set[str]:
    """What kernels that write two sums read of the second one, of which a thread sees only a
    part."""
    names: set[str] = set()
    for step in planned(graph).steps:
        if isinstance(step, KernelStep) and isinstance(step.kernel, Kernel):
            product = step.kernel.product
            if product is not None and product.weights is not None and product.weights.beside:
                target = product.weights.beside.target.buffer
                for stage in step.kernel.stages:
                    names |= stage.body.reads & {target}
    return names


USES: dict[str, Function] = {
    "values scaled": lambda q, k, v: attention(causal)(q, k, v * 2.0),
    "both scaled": lambda q, k, v: attention(causal)(q, k * 2.0, v * 2.0),
    "sine of values": lambda q, k, v: attention(causal)(q, k, v.sin()),
    "values and keys": lambda q, k, v: attention(causal)(q, k + v, k + v),
}


@interpreted
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("queries", [1, 64])
@pytest.mark.parametrize("name", USES)
def test_second_sum_is_read_by_other_kernels(name: str, queries: int, batch: int) -> None:
    """The interpreter runs a block in one thread, so the texts are looked at, too."""
    shapes = [(batch, 2, n, 32) for n in (queries, 64, 64)]
    leaves = [torch.randn(s).half().requires_grad_() for s in shapes]
    assert not read_beside(trained(USES[name], leaves).backward)


def no_others(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The weights are a result too."""
    scores = q.float() @ k.float().transpose(-2, -1)
    found = torch.softmax(scores, -1)
    return found.half() @ v, found


def reshaped_softmax(scores: Tensor, dim: int) -> Tensor:
    """Over other rows than those of the product."""
    return SAFE(scores, dim).view(2, 2, 77, 77)


def two_layers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    first = attention(SCORES["capped"])
    return first(first(q, k, v), k, v)


@interpreted
def test_layers_of_one_shape() -> None:
    args = inputs(SIZES[0])
    graph = traced(two_layers, *args)
    run_passes(graph, SIMPLIFICATIONS)
    recognize_scores(graph, "cpu")
    remove_dead_code(graph)
    assert weights(graph) == 2
    parts = trained(two_layers, [t.clone().requires_grad_() for t in args])
    assert (weights(parts.forward), weights(parts.backward)) == (2, 6)


@interpreted
def test_what_has_another_use_stays_in_memory() -> None:
    args = inputs(SIZES[0])
    for function in (
        no_others,
        attention(lambda s: s.cumsum(-1)),
        attention(lambda s: s.reshape(2, 2, 7, 847).softmax(-1).view_as(s)),
        attention(lambda s: s.view(2, 2, 847, 7), reshaped_softmax),
    ):
        graph = traced(function, *args)
        run_passes(graph, SIMPLIFICATIONS)
        recognize_scores(graph, "cpu")
        assert weights(graph) == 0


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_numbers_of_the_cpu(dtype: torch.dtype) -> None:
    """A kernel is given the number itself, not where it is."""

    def function(q: Tensor, k: Tensor, v: Tensor, cap: Tensor, slope: Tensor) -> Tensor:
        change = attention(lambda s: cap * torch.tanh(s / cap) + slope.abs() * s)
        return change(q, k, v)

    numbers = [torch.tensor(3.0, dtype=dtype), torch.tensor(0.25, dtype=dtype)]
    args = [*inputs(SIZES[0]), *numbers]
    plan = planned_beside(
        function, *args, passes=(*SIMPLIFICATIONS, ("recognize scores", recognize_scores))
    )
    kernels = [s.kernel for s in plan.steps if isinstance(s, KernelStep)]
    (kernel,) = (k for k in kernels if isinstance(k, Kernel) and k.product is not None)
    assert sum(p.on_host for p in kernel.parameters) == 2
    (ours,) = run(plan, [t.clone() for t in args])
    eager, exact = function(*args), function(*(t.double() for t in args))
    assert off(ours.reshape(eager.shape), exact) <= 2 * off(eager, exact) + 1e-4


@interpreted
def test_softmax_written_out() -> None:
    """A row that sees nothing is NaN, as in eager."""
    for name in ("causal", "nothing seen"):
        function, args = attention(SCORES[name], torch.softmax), inputs(SIZES[0])
        graph = traced(function, *args)
        run_passes(graph, SIMPLIFICATIONS)
        recognize_scores(graph, "cpu")
        remove_dead_code(graph)
        assert weights(graph) == 1
        (ours,) = run(planned(graph), [t.clone() for t in args])
        eager = function(*args)
        torch.testing.assert_close(
            ours.reshape(eager.shape), eager, atol=4e-3, rtol=4e-3, equal_nan=True
        )


@compiled
@pytest.mark.parametrize(
    "gpu",
    [DEVICES[1], *(pytest.param(gpu, marks=long) for gpu in (DEVICES[3], *DEVICES[::2]))],
    ids=str,
)
@pytest.mark.parametrize("width", [64, *(pytest.param(w, marks=long) for w in (16, 128))])
def test_kernels_compile(width: int, gpu: Gpu) -> None:
    """The kernels of a forward and of its gradients, into as much shared memory as there is."""
    shape = 2, 4, 256, width
    leaves = [torch.randn(shape).bfloat16().requires_grad_() for _ in range(3)]
    parts = trained(attention(SCORES["capped"]), leaves)
    for graph, count in ((parts.forward, 1), (parts.backward, 2)):
        steps = products_of(graph)
        assert len(steps) == count
        kernels = compile_kernels(steps, gpu)
        for step in steps:
            binary = kernels.binary(step.kernel)  # type: ignore[arg-type]
            assert binary.image[:4] == b"\x7fELF" and binary.shared <= MOST_SHARED


ORDERS = {"causal": [-1, 1, -1], "prefix": [-1, 0, -1], "window": [0, 0, 0], "plain": [0, 0, 0]}


@pytest.mark.parametrize("name", ORDERS)
def test_blocks_with_many_steps_come_first(name: str) -> None:
    """Of the forward, of the gradients of keys and of those of queries: whether the rows' numbers
    fall or rise with that of the block."""
    leaves = [torch.empty(2, 6, 512, 64).bfloat16().requires_grad_() for _ in range(3)]
    parts, orders = trained(attention(SCORES[name]), leaves), []
    for graph in (parts.forward, parts.backward):
        for step in planned(graph).steps:
            assert isinstance(step, KernelStep) and isinstance(step.kernel, Kernel)
            if step.kernel.product is not None:
                orders.append(order_of(write_kernel(step.kernel).source))
    assert orders == ORDERS[name]


def order_of(source: str) -> int:
    begin = source.index("block = tl.program_id(0)")
    lines = [line.strip() for line in source[begin : source.index("    y =")].splitlines()]
    places = []
    for number in range(12 * 8):
        values: dict[str, Any] = {"block": number}
        for line in lines[1:]:
            exec(line, values)
        places.append((values["z"], values["block"]))
    assert sorted(places) == [(z, block) for z in range(12) for block in range(8)]
    numbers = [block for _, block in places]
    if places == sorted(places):
        return 0
    assert numbers in (sorted(numbers), sorted(numbers, reverse=True))
    return 1 if numbers == sorted(numbers) else -1


def test_wide_heads_stay_in_memory() -> None:
    shape = 1, 1, 64, 256
    args = [torch.randn(shape).half() for _ in range(3)]
    graph = traced(attention(SCORES["causal"]), *args)
    run_passes(graph, SIMPLIFICATIONS)
    recognize_scores(graph, "cpu")
    assert weights(graph) == 0
