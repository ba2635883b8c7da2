"""The memory of results and of what is kept for gradients: held for further ones, and never given
out twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.explain.measure import peak_bytes
from ingot.native import _native
from tests.native.test_program import F32, call, program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="results are malloc's elsewhere")

MB = 1 << 20


@pytest.fixture(autouse=True)
def keeps() -> Any:
    """A program's end would give back what others have left."""
    _native.trim_heap()
    used, held = _native.heap_use()
    assert used == held
    yield
    _native.trim_heap()


class Held:
    """What is used and held since this was made."""

    def __init__(self) -> None:
        self.start = _native.heap_use()

    def __call__(self) -> tuple[float, float]:
        """In MB, rounded."""
        used, held = (now - before for now, before in zip(_native.heap_use(), self.start))
        return round(used / MB, 1), round(held / MB, 1)


def makers(*megabytes: float) -> list[Any]:
    """Programs, which are to live as long as memory is to be held."""
    return [
        program(
            [("output", F32, (0,), (1,), 0)],
            [("allocate", 0)],
            [("buffer", 0)],
            inputs=0,
            expressions=((("const", int(size * MB) // 4),), (("const", 1),), (("const", 0),)),
        )
        for size in megabytes
    ]


def result(size: int) -> torch.Tensor:
    """A result of so many bytes, with anything in it."""
    (made,) = makers(size / MB)
    return made()[0]


def test_memory_is_held_for_the_next_result() -> None:
    held, (make,) = Held(), makers(8)
    first = make()[0]
    address = first.data_ptr()
    assert held() == (8, 8) and address % 64 == 0
    del first
    assert held() == (0, 8)
    assert make()[0].data_ptr() == address
    assert held() == (0, 8)


def test_neighbours_that_die_are_one_piece() -> None:
    held, (one, two, three, six) = Held(), makers(1, 2, 3, 6)
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)):
        parts = [one()[0], two()[0], three()[0]]
        assert held() == (6, 6)
        for k in order:
            parts[k] = None
        whole = six()
        assert held() == (6, 6)
        del whole


def test_the_smallest_piece_that_fits_is_taken() -> None:
    held, (one, two, four) = Held(), makers(1, 2, 4)
    large, between, small, end = four()[0], one()[0], two()[0], one()[0]
    place = small.data_ptr()
    del large, small
    again = two()[0]
    assert again.data_ptr() == place and held() == (4, 8)
    del between, end


def test_no_more_is_held_than_was_used_at_once() -> None:
    """Gaps between what lives go back to the system."""
    draw, held = random.Random(0), Held()
    programs, alive, most = makers(*(k / 8 for k in range(2, 25))), [], 0.0
    for _ in range(3000):
        while len(alive) > draw.randrange(12, 40):
            alive.pop(draw.randrange(len(alive)))
        alive.append(draw.choice(programs)())
        most = max(most, held()[0])
        assert held()[1] <= most
    alive.clear()
    assert held()[0] == 0


def test_what_goes_back_is_whole_huge_pages() -> None:
    """A part of one would split it."""
    held, (one, two, eight, nine) = Held(), makers(1, 2, 8, 9)
    before = lazily_freed()  # of what other tests left
    alive = [one()[0].fill_(1) for _ in range(4)]
    del alive[1]
    alive.append(two()[0].fill_(1))
    assert held() == (5, 5) and lazily_freed() <= before
    large = eight()[0].fill_(1)
    alive.append(two()[0].fill_(1))
    del large
    alive.append(nine()[0].fill_(1))
    assert held() == (16, 16) and lazily_freed() > before + 2 * 2048


def lazily_freed() -> int:
    """KB that the system may take when it needs them."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("LazyFree:"))


def test_results_do_not_overlap() -> None:
    draw, programs, alive = random.Random(1), makers(*(k / 16 for k in range(4, 21))), {}
    for number in range(600):
        if len(alive) > 20:
            key = draw.choice(list(alive))
            assert (alive.pop(key) == key).all()
        alive[number] = draw.choice(programs)()[0].fill_(number)
    assert all((tensor == number).all() for number, tensor in alive.items())


def test_a_program_that_dies_gives_memory_back() -> None:
    held, made = Held(), makers(4, 16)
    kept = made[0]()[0].fill_(3)
    made[1]()
    assert held() == (4, 20)
    made.clear()
    assert held() == (4, 4) and (kept == 3).all()


def test_reset_gives_memory_back() -> None:
    held, (make,) = Held(), makers(32)
    kept = make()[0].fill_(5)
    make()
    assert held() == (32, 64)
    ingot.reset()
    assert held() == (32, 32) and (kept == 5).all()
    assert (make()[0].fill_(1) == 1).all() and (kept == 5).all()


def test_what_is_not_needed_for_long_goes_back() -> None:
    held, (small, large) = Held(), makers(1, 40)
    large()
    for _ in range(4000):
        small()
    assert held()[1] >= 40
    for _ in range(2 * 4096):
        small()
    assert held() == (0, 1)


def test_small_results_are_left_to_torch() -> None:
    held = Held()
    kept = [result(size) for size in (4, 1024, 31 * 1024)]
    assert held.start == _native.heap_use() and len(kept) == 3


def test_little_of_which_the_data_decide_a_part_is_left_to_torch() -> None:
    chosen = ingot.compile(lambda x: x[x > 0] * 2, fullgraph=True)
    before = _native.heap_use()
    results = [chosen(torch.ones(40_000)) for _ in range(3)]  # of 160 KB each
    assert _native.heap_use() == before and len(results) == 3


def test_a_backward_of_little_of_which_the_data_decide_a_part_is_left_to_torch() -> None:
    chosen = ingot.compile(lambda x: (x[x > 0] * 2).sin().sum(), fullgraph=True)
    x, before = torch.ones(40_000, requires_grad=True), _native.heap_use()
    gradients = [torch.autograd.grad(chosen(x), x)[0] for _ in range(3)]
    assert _native.heap_use() == before and len(gradients) == 3


def test_sizes_that_vary_decide_by_the_call() -> None:
    grown = ingot.compile(lambda x: x + 1, dynamic=True)
    before = _native.heap_use()
    little = [grown(torch.ones(size)) for size in (40_000, 50_000)]
    assert _native.heap_use() == before
    much = [grown(torch.ones(size)) for size in (4 << 20, 3 << 20)]
    assert _native.heap_use()[0] >= before[0] + (28 << 20) and len(little) == len(much)


@pytest.mark.parametrize("size", [32 << 10, 3 * MB])
def test_a_result_is_an_ordinary_tensor(size: int) -> None:
    held = Held()
    y = result(size)
    assert _native.heap_use()[0] > held.start[0]
    assert y.untyped_storage().nbytes() == size and y.untyped_storage().resizable()
    y.fill_(2)
    y.resize_(size)  # four times as many bytes
    assert (y[: size // 4] == 2).all() and y.fill_(1).sum() == size
    y.untyped_storage().resize_(0)
    assert held()[0] == 0
    y.untyped_storage().resize_(4 * size)
    assert y.fill_(3).sum() == 3 * size
    copy = torch._lazy_clone(y)
    copy.add_(1)
    assert (copy == 4).all() and (y == 3).all()
    assert (y.share_memory_() == 3).all() and y.is_shared()


def test_a_library_call_writes_into_it() -> None:
    expressions = ((("const", MB),), (("const", 1),), (("const", 0),))
    vector = lambda place: (place, F32, (0,), (1,), 0)  # noqa: E731
    run = program(
        [vector("input"), vector("output")],
        [
            ("allocate", 1),
            call(torch.neg, ("buffer", 0), ("buffer", 1), keywords=("out",), written=(1,)),
        ],
        [("buffer", 1)],
        expressions=expressions,
    )
    x = torch.rand(MB)
    assert torch.equal(run(x)[0], -x)


def test_threads_give_back_what_others_took() -> None:
    programs, wrong, shared = makers(0.5, 1, 1.5), [], []
    lock = threading.Lock()

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(200):
            value = draw.randrange(1000)
            tensor = draw.choice(programs)()[0].fill_(value)
            with lock:
                shared.append((value, tensor))
                value, tensor = (
                    shared.pop(draw.randrange(len(shared))) if len(shared) > 8 else (value, tensor)
                )
            if not bool((tensor == value).all()):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and all((tensor == value).all() for value, tensor in shared)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_heap_of_its_own() -> None:
    (make,) = makers(1 / 4)
    first = slice(1000)  # torch's threads are not there in a child
    kept = make()[0][first].fill_(1)
    make()
    child = os.fork()
    if child == 0:
        mine = [make()[0][first].fill_(7) for _ in range(3)]
        os._exit(0 if (kept == 1).all() and all((t == 7).all() for t in mine) else 1)
    mine = make()[0][first].fill_(2)
    assert os.waitpid(child, 0)[1] == 0
    assert (kept == 1).all() and (mine == 2).all()


def test_limited_addresses_are_left_to_others() -> None:
    in_a_process(
        """
y = result(1 << 20).fill_(3)
assert _native.heap_use() == (0, 0) and (y == 3).all(), _native.heap_use()
""",
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 45, resource.RLIM_INFINITY))",
    )


def in_a_process(check: str, first: str = "") -> None:
    """Runs lines in a process whose heap is empty; `first` is run before Ingot is imported."""
    imports = "from ingot.native import _native\nfrom tests.native.test_heap import *"
    lines, root = "\n".join(["import resource", first, imports, check]), Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def huge_pages_in(tensor: torch.Tensor) -> float:
    """MB of a tensor's memory in which the system was asked for huge pages."""
    start, found, overlap = tensor.data_ptr(), 0, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        field = line.split()
        if "-" in field[0]:
            begin, end = (int(address, 16) for address in field[0].split("-"))
            overlap = max(0, min(end, start + tensor.nbytes) - max(begin, start))
        elif field[0] == "VmFlags:" and "hg" in field:
            found += overlap
    return found / MB


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="needs huge pages"
)
def test_huge_pages_are_asked_for_where_the_first_one_is_fast() -> None:
    """Else the system may make them later."""
    in_a_process("""
_native._slow_huge_page_from(1 << 62)
fast = result(50 * MB)
of_training = ingot.compile(torch.exp)(torch.zeros(3000, 3000, requires_grad=True))
_native._slow_huge_page_from(0)
slow = result(50 * MB)
assert huge_pages_in(fast) > 47 and huge_pages_in(of_training) > 32
assert huge_pages_in(slow) < 5
(small,) = makers(1 / 16)
for _ in range(4096):
    small()
assert huge_pages_in(slow) == 50
""")


def test_a_profile_counts_what_is_held() -> None:
    (make,) = makers(8)
    assert peak_bytes(make, (), torch.device("cpu")) == pytest.approx(8 * MB, rel=0.01)
    calls = iter([lambda: [make(), make(), make()], make])
    assert peak_bytes(lambda: next(calls)(), (), torch.device("cpu"), before=1) == pytest.approx(
        24 * MB, rel=0.01
    )


class TestTraining:
    def step(self, model: nn.Module, call: Any, x: torch.Tensor) -> None:
        model.zero_grad()
        call(x).square().mean().backward()

    def model(self) -> tuple[nn.Module, torch.Tensor]:
        layers = (part for _ in range(4) for part in (nn.Linear(512, 512), nn.GELU()))
        return nn.Sequential(*layers), torch.randn(2048, 512)

    def test_steps_take_no_new_memory(self) -> None:
        model, x = self.model()
        compiled = ingot.compile(model, fullgraph=True)
        held = Held()
        for _ in range(3):
            self.step(model, compiled, x)
        steady = held()
        for _ in range(5):
            self.step(model, compiled, x)
            assert held() == steady
        gradients = sum(p.nbytes for p in model.parameters() if p.nbytes >= 32 << 10) / MB
        assert steady[0] == pytest.approx(gradients, abs=0.1)
        del compiled
        ingot.reset()
        assert held()[1] == pytest.approx(gradients, abs=0.2)

    def test_gradients_that_are_kept_stay_as_they_are(self) -> None:
        model, x = self.model()
        compiled = ingot.compile(model, fullgraph=True)
        self.step(model, compiled, x)
        kept = [p.grad for p in model.parameters()]
        copies = [g.clone() for g in kept]
        for k in range(3):
            self.step(model, compiled, x * k)
        assert all(torch.equal(g, c) for g, c in zip(kept, copies))

    def test_a_forward_whose_backward_never_comes_lets_go(self) -> None:
        model, x = self.model()
        compiled = ingot.compile(model, fullgraph=True)
        self.step(model, compiled, x)
        held = Held()
        loss = compiled(x)
        assert held()[0] > 2
        del loss
        assert held()[0] == 0


def test_a_step_of_many_sizes_is_held_once() -> None:
    """Small batches take the memory that large ones left."""
    model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
    compiled = ingot.compile(model, dynamic=True)
    held = Held()
    step = partial(TestTraining.step, TestTraining(), model, compiled)
    step(torch.randn(2048, 128))
    step(torch.randn(2048, 128))
    most = held()[1]
    for batch in (1024, 1400, 2000, 777, 2048):
        step(torch.randn(batch, 128))
        assert held()[1] <= most
