"""The loops of pointwise kernels, chosen from the strides of their accesses: results, and what the
code is made of."""

from __future__ import annotations

import pytest
import torch

import ingot
from ingot.explain.report import KernelReport
from ingot.schedule import schedule
from tests.schedule.programs import Draft

F = torch.nn.functional
CHANNELS_LAST = torch.channels_last


def only_kernel(fn, *args) -> KernelReport:
    """The one kernel of `fn`, whose result is eager's."""
    with torch.no_grad():
        compiled = ingot.compile(fn, fullgraph=True)
        torch.testing.assert_close(compiled(*args), fn(*args), rtol=1e-6, atol=1e-6)
        (kernel,) = ingot.explain(compiled)(*args).kernels
    return kernel


@pytest.mark.parametrize(
    "fn, shapes",
    [
        (lambda x, y: x.t() + y, [(65, 33), (33, 65)]),
        (lambda x, y: x + y.t() * x, [(40, 40), (40, 40)]),
        (lambda x: x.t().contiguous() * 2, [(100, 7)]),
        (lambda x: x.permute(0, 2, 3, 1).contiguous() * 2, [(2, 37, 5, 9)]),
        (lambda x: x.permute(2, 1, 0).contiguous() * 2, [(19, 6, 21)]),
        (lambda x, y: x.to(memory_format=CHANNELS_LAST)
         + y.permute(0, 2, 3, 1)[..., 0:1].permute(0, 3, 1, 2),
         [(2, 8, 6, 5), (2, 8, 6, 5)]),
        (lambda x, y: F.gelu(x[1:, 2:].t() + y), [(40, 50), (48, 39)]),
    ],
)  # fmt: skip
def test_what_lies_apart_is_transposed_not_gathered(fn, shapes):
    source = only_kernel(fn, *(torch.randn(shape) for shape in shapes)).source
    assert "@ingot.transpose" in source and "gather" not in source


def test_what_is_transposed_is_no_row_beside_what_completes_its_buffer():
    """Images that become channels-last, with margins around them: the margins are written apart."""
    x, weight = torch.randn(2, 64, 56, 56), torch.randn(64, 64, 3, 3) / 24
    with torch.no_grad():
        compiled = ingot.compile(lambda x, w: F.conv2d(x, w, padding=1))
        torch.testing.assert_close(
            compiled(x, weight), F.conv2d(x, weight, padding=1), rtol=1e-4, atol=1e-5
        )
        kernels = ingot.explain(compiled)(x, weight).kernels
    assert "@ingot.transpose" in kernels[0].source and "gather" not in kernels[0].source


def test_contiguous_work_has_no_blocks():
    for fn in (lambda x, y: x + y, lambda x, y: x + y[0], lambda x, y: x.t() * y.t()):
        assert "transpose" not in only_kernel(fn, torch.randn(33, 65), torch.randn(33, 65)).source


def test_a_broadcast_is_not_transposed():
    source = only_kernel(lambda x, y: x + y, torch.randn(33, 65), torch.randn(33, 1)).source
    assert "transpose" not in source and "gather" not in source


def test_symbolic_sizes():
    fn = lambda x, y: x.t() + y  # noqa: E731
    compiled = ingot.compile(fn, dynamic=True)
    with torch.no_grad():
        (kernel,) = ingot.explain(compiled)(torch.randn(40, 50), torch.randn(50, 40)).kernels
        assert "transpose" in kernel.source
        for rows, columns in ((40, 50), (3, 70), (129, 64), (2, 9)):
            x, y = torch.randn(rows, columns), torch.randn(columns, rows)
            assert torch.equal(compiled(x, y), fn(x, y))


def test_accumulating_stores_keep_their_order():
    """The order of additions to one place is eager's, whatever the strides."""
    where, values = torch.randint(0, 3, (50, 40)), torch.randn(50, 40)

    def fn(where, values):
        return torch.zeros(40, 3).scatter_add(1, where.t(), values.t())

    with torch.no_grad():
        assert torch.equal(ingot.compile(fn)(where, values), fn(where, values))


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_a_short_last_loop_is_written_out(channels):
    """The vectors then run along the loop before it."""
    to_last = only_kernel(
        lambda x: x.permute(0, 2, 3, 1).contiguous() * 2, torch.randn(2, channels, 8, 16)
    )
    from_last = only_kernel(
        lambda x: x.permute(0, 3, 1, 2).contiguous() * 2, torch.randn(2, 8, 16, channels)
    )
    weighted = only_kernel(lambda x, y: x * y, torch.randn(128, channels), torch.randn(channels))
    for kernel in (to_last, from_last, weighted):
        assert (
            "<16 x float>" in kernel.source
            or "<8 x float>" in kernel.source
            or "<4 x float>" in kernel.source
        )
        assert "shufflevector" in kernel.source
    assert "gather" not in to_last.source and "scatter" not in from_last.source


def test_pieces_side_by_side_are_one_stage():
    source = only_kernel(
        lambda x, y: torch.stack((x + y, x - y), -1), torch.randn(160), torch.randn(160)
    ).source
    assert source.count("fadd") == source.count("fsub") and "masked.store" not in source


def test_threads_share_few_long_rows():
    """Both the loop over rows and the vector loop are divided among them; of many rows only the
    first is."""
    d = Draft()
    d.pointwise("few", "add", d.input("x", 3, 5000), d.input("y", 1, 5000))
    d.pointwise("many", "add", d.input("v", 300, 5000), d.input("w", 1, 5000))
    few, many = schedule(d.returns("few", "many")).steps
    assert (few.kernel.parallel, few.extent.constant) == (2, 15000)
    assert (many.kernel.parallel, many.extent.constant) == (1, 300)
    only_kernel(lambda x, y: (x * y).sin() + y, torch.randn(3, 50_001), torch.randn(50_001))
    only_kernel(lambda x: x.sum(1), torch.randn(2, 9, 4099))
