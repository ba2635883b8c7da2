"""Sparse tensors that a program makes or is given break the graph where they are used, once for all
sizes; what lies between is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.errors import GraphBreakError
from tests.capture.language import compilations, since
from tests.oracle import assert_near

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

INDICES = torch.tensor([[0, 1, 1], [1, 2, 2]])
VALUES = torch.tensor([1.0, 2.0, 3.0])


def coo(values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(INDICES, values, (4, 4))


def csr(values: Tensor) -> Tensor:
    rows, columns = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2])
    return torch.sparse_csr_tensor(rows, columns, values, (3, 3))


PROGRAMS: dict[str, Any] = {
    "layout": lambda v: (coo(v).layout, v + 1),
    "is_sparse": lambda v: (coo(v).is_sparse, v + 1),
    "values": lambda v: coo(v).coalesce().values() + 1,
    "dense": lambda v: (coo(v) * 2).to_dense(),
    "transposed": lambda v: coo(v).t().to_dense() + v.sum(),
    "product": lambda v: coo(v) @ torch.ones(4, 2) + 1,
    "sum": lambda v: torch.sparse.sum(coo(v)) + v,
    "compressed": lambda v: (csr(v) @ torch.ones(3, 2) + 1, csr(v).layout),
    "from dense": lambda v: (torch.diag(v).to_sparse() @ v[:, None], torch.diag(v).to_sparse_csr()),
}


def dense(result: Any) -> Any:
    if isinstance(result, tuple):
        return [*map(dense, result)]
    if isinstance(result, Tensor) and result.layout is not torch.strided:
        return result.to_dense()
    return result


@pytest.mark.parametrize("name", PROGRAMS)
def test_results(name: str) -> None:
    function = PROGRAMS[name]
    compiled = ingot.compile(function)
    for wants_gradients in (False, True):
        for _ in range(2):
            found = []
            for run in (function, compiled):
                values = VALUES.clone().requires_grad_(wants_gradients)
                result = dense(run(values))
                first = result[0] if isinstance(result, list) else result
                if isinstance(first, Tensor) and first.requires_grad:
                    first.sum().backward()
                found.append((result, values.grad))
            assert_near(found[1], found[0])
    with pytest.raises(GraphBreakError, match="makes a tensor that is not strided|to_sparse"):
        ingot.compile(function, fullgraph=True)(VALUES)


def test_sizes_that_vary() -> None:
    """A product that cannot be captured is not tried again at each call."""

    def fn(indices: Tensor, values: Tensor, x: Tensor) -> Tensor:
        size = x.shape[0]
        matrix = torch.sparse_coo_tensor(indices, values * 2, (size, size))
        return torch.sparse.mm(matrix, x.relu()) + 1

    compiled = ingot.compile(fn)
    counts = []
    for size in range(3, 12):
        before = compilations()
        arguments = torch.randint(0, size, (2, size)), torch.ones(size), torch.randn(size, 2)
        torch.testing.assert_close(compiled(*arguments), fn(*arguments))
        counts.append(since(before))
    assert counts[2:] == [0] * 7


def test_matrices_that_are_given() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("adjacency", torch.eye(4).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(torch.sparse.mm(self.adjacency, self.linear(x)))

    layer = Layer()
    compiled = ingot.compile(layer)
    counts = []
    for _ in range(4):
        before, x = compilations(), torch.randn(4, 3, requires_grad=True)
        torch.testing.assert_close(compiled(x), layer(x))
        counts.append(since(before))
    assert counts[1:] == [0, 0, 0]


def test_sparse_gradients_are_results_of_the_backward_alone() -> None:
    embedding = nn.Embedding(10, 3, sparse=True)
    compiled = ingot.compile(lambda i: embedding(i).sin().sum(), fullgraph=True)
    gradients = []
    for run in (lambda i: embedding(i).sin().sum(), compiled, compiled):
        embedding.weight.grad = None
        run(torch.tensor([1, 2, 1])).backward()
        assert embedding.weight.grad.layout is torch.sparse_coo  # type: ignore[union-attr]
        gradients.append(embedding.weight.grad.to_dense())  # type: ignore[union-attr]
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])
