"""Shared libraries run from a program in C: no Python, no torch, the same results."""

from __future__ import annotations

import functools
import json
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from examples import gpt2, resnet
from ingot.artifacts.driver_tables import dtype_number
from ingot.artifacts.library import linkers
from ingot.artifacts.weights import bytes_of
from tests.artifacts.test_exporting import Cache, X, doubled, sign

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="the caller in C needs gcc"),
    pytest.mark.skipif(not list(linkers()), reason="a shared library needs a linker"),
]

HERE = Path(__file__).parent
HEADER = Path(ingot.__file__).parent / "artifacts"
DTYPES = {dtype_number(dtype): dtype for dtype in (torch.float32, torch.int64, torch.bool)}


@functools.cache
def runner(folder: Path) -> Path:
    """The compiled program in C."""
    made = folder / "run_library"
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{HEADER}", "-pthread"]
    subprocess.run(["gcc", *options, HERE / "run_library.c", "-o", made, "-ldl"], check=True)
    return made


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runner(tmp_path_factory.getbasetemp())


def packed(tensor: Tensor) -> bytes:
    numbers = (*tensor.shape, *tensor.stride())
    flat = tensor.as_strided((span(tensor),), (1,))
    head = struct.pack(f"<Ii{len(numbers)}q", dtype_number(tensor.dtype), tensor.dim(), *numbers)
    content = b"".join(map(bytes, bytes_of(flat)))
    return head + struct.pack("<q", len(content)) + content


def span(tensor: Tensor) -> int:
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))


class Reader:
    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def take(self, form: str) -> Any:
        values = struct.unpack_from(f"<{form}", self.content, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values

    def tensor(self) -> Tensor:
        number, rank = self.take("Ii")
        sizes, strides = self.take(f"{rank}q"), self.take(f"{rank}q")
        (count,) = self.take("q")
        piece = bytearray(self.content[self.at : self.at + count])
        self.at += count
        flat = torch.empty(0, dtype=DTYPES[number])
        if count:
            flat = torch.frombuffer(piece, dtype=DTYPES[number])
        return flat.as_strided(sizes, strides)

    def results(self, inputs: int, outputs: int) -> Any:
        """The outputs of a call, and its inputs behind it; or the status and the reason."""
        (status,) = self.take("i")
        if status:
            (length,) = self.take("i")
            return status, self.take(f"{length}s")[0].decode()
        return [self.tensor() for _ in range(outputs)], [self.tensor() for _ in range(inputs)]


def run(
    program: Path,
    library: Path,
    calls: Sequence[Sequence[Tensor]],
    outputs: int = 1,
    threads: int = 1,
    weights: dict[str, Tensor] | None = None,
) -> Iterator[Any]:
    """The results of calls of a library, one after the other with one model."""
    folder = library.parent
    content = []
    for inputs in calls:
        content.append(struct.pack("<ii", len(inputs), outputs))
        content += map(packed, inputs)
    (folder / "in").write_bytes(b"".join(content))
    command = [program, library, folder / "in", folder / "out", str(threads)]
    if weights is not None:
        rows = []
        for name, tensor in weights.items():
            rows += [struct.pack("<i", len(name)), name.encode(), packed(tensor)]
        (folder / "weights").write_bytes(b"".join(rows))
        command.append(folder / "weights")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    description, told = done.stdout.splitlines()
    entries = json.loads(description)["entries"]
    assert {len(each["inputs"]) for each in entries} == {len(calls[0])}
    if threads > 1:
        assert not told.startswith("0 ")
    reader = Reader((folder / "out").read_bytes())
    for inputs in calls:
        yield reader.results(len(inputs), outputs)
    assert reader.at == len(reader.content)


def close(result: Any, expected: Tensor) -> None:
    torch.testing.assert_close(result[0][0], expected.detach(), rtol=1e-4, atol=1e-5)
    assert result[0][0].stride() == expected.stride()


def test_a_transformer(program, tmp_path):
    model = gpt2.gpt2(gpt2.Config(2, 4, 64, 128, 300))
    path, tokens = tmp_path / "gpt.so", torch.randint(0, 300, (2, 9))
    dynamic = {"tokens": {0: "batch", 1: ("time", 1, 128)}}
    ingot.export(model, (tokens,), path=path, dynamic=dynamic, format="library")
    calls = [(torch.randint(0, 300, sizes),) for sizes in ((1, 3), (2, 9), (5, 70))]
    calls += [(torch.full((2, 3), 300),), (torch.zeros(2, 129, dtype=torch.int64),)]
    *results, of_data, too_long = run(program, path, calls)
    for (x,), result in zip(calls, results):
        close(result, model(x))
    assert of_data == (4, "index out of range in self")
    assert too_long == (1, "expected time <= 128")
    for (x,), result in zip(calls, run(program, path, calls[:3], threads=3)):
        close(result, model(x))


def test_images(program, tmp_path):
    model, x = resnet.resnet(resnet.BasicBlock, (1, 1), 8, 10), resnet.images(2, 64)
    path = tmp_path / "resnet.so"
    ingot.export(model, (x,), path=path, dynamic={"images": {0: "batch"}}, format="library")
    calls = [(resnet.images(batch, 64, batch),) for batch in (1, 2, 5)]
    for (x,), result in zip(calls, run(program, path, calls, threads=2)):
        close(result, model(x))


def test_a_recurrent_network(program, tmp_path):
    lstm, path = nn.LSTM(6, 8, 2, batch_first=True).eval(), tmp_path / "lstm.so"
    with pytest.raises(ingot.ExportError, match=r"(?s)call torch.*mkldnn_rnn_layer.*rnn.py:\d+"):
        ingot.export(lstm, (X[None],), path=path, format="library")
    assert not path.exists()
    with torch.backends.mkldnn.flags(enabled=False):
        x = torch.randn(3, 4, 6)
        ingot.export(lstm, (x,), path=path, dynamic=({0: "batch"},), format="library")
    calls = [(torch.randn(batch, 4, 6),) for batch in (1, 3, 7)]
    for (x,), (outputs, _) in zip(calls, run(program, path, calls, outputs=3)):
        y, (h, c) = lstm(x)
        torch.testing.assert_close(outputs, [y.detach(), h.detach(), c.detach()])


def test_weights_from_the_caller(program, tmp_path):
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).eval()
    path = tmp_path / "bare.so"
    ingot.export(module, (X,), path=path, weights=False, format="library")
    assert next(run(program, path, [(X,)])) == (3, "a weight is missing: set each of them first")
    weights = dict(module.state_dict())
    del weights["1.num_batches_tracked"]
    close(next(run(program, path, [(X,)], weights=weights)), module(X))


def test_state_and_entries(program, tmp_path):
    path, module = tmp_path / "cache.so", Cache()
    ingot.export(module, (X,), path=path, format="library")
    for result in run(program, path, [(X,), (X,), (X,)]):
        close(result, module(X))
    dynamic = {"x": {0: ("rows", 1, 8)}}
    ingot.export(sign, [(X,), (X[:2],)], path=path, dynamic=dynamic, format="library")
    calls = [(torch.ones(rows, 6),) for rows in (1, 4, 8, 9)]
    *results, refused = run(program, path, calls)
    for (x,), result in zip(calls, results):
        close(result, sign(x))
    assert refused[0] == 1


def test_arguments_that_are_written_and_views(program, tmp_path, monkeypatch):
    path = tmp_path / "written.so"
    ingot.export(doubled, (X.clone(), X + 1), path=path, format="library")
    ((y,), (x, _)) = next(run(program, path, [(X, X)]))
    assert torch.equal(y, 3 * X) and torch.equal(x, 2 * X)
    monkeypatch.setenv("SAME_MEMORY", "1")
    refused = next(run(program, path, [(X, X)]))
    assert refused == (1, "arguments share memory that is written")

    monkeypatch.delenv("SAME_MEMORY")

    def several(x: Tensor, n: int) -> Any:
        y = x * n
        return {"view": y.T, "same": y, "of": x[1:], "n": n + 1, "x": x, "bool": x > 0}

    dynamic = {"n": "n", "x": {0: "rows"}}
    ingot.export(several, (X, 3), path=path, dynamic=dynamic, format="library")
    x = torch.randn(9, 6)
    (outputs, _) = next(run(program, path, [(x, torch.tensor(5))], outputs=6))
    expected = several(x, 5)
    expected["n"] = torch.tensor(6)
    for result, tensor in zip(outputs, expected.values(), strict=True):
        assert torch.equal(result, tensor) and result.stride() == tensor.stride()


def zeros(n: int) -> Tensor:
    return torch.zeros(n) + torch.ones(2 * n)[:n]


def test_sizes_that_are_too_large(program, tmp_path):
    """An int from the caller makes no size wrap around."""
    path = tmp_path / "it.so"
    ingot.export(zeros, (3,), path=path, dynamic={"n": "n"}, format="library")
    calls = [(torch.tensor(n),) for n in (5, 1 << 61, (1 << 62) - 1, -1)]
    good, *refused = run(program, path, calls)
    assert torch.equal(good[0][0], torch.ones(5))
    assert {status for status, _ in refused} <= {1, 2}


@pytest.mark.parametrize("wrong", [X.double(), X[:, :5], X.T.contiguous().T, X[0], X[:0]], ids=str)
def test_arguments_that_are_refused(program, tmp_path, wrong):
    path = tmp_path / "it.so"
    ingot.export(sign, (X,), path=path, format="library", dynamic=({0: "rows"},))
    status, reason = next(run(program, path, [(wrong,)]))
    assert status == 1 and ("argument 'x': expected float32[rows, 6]" in reason or "rows" in reason)


def test_it_needs_nothing(tmp_path):
    """No library is named in it, and nothing but a few functions of the C library is undefined."""
    path = tmp_path / "it.so"
    ingot.export(sign, (X,), path=path, format="library")
    if shutil.which("nm") is None or shutil.which("readelf") is None:
        pytest.skip("needs nm and readelf")
    dynamic = subprocess.run(["readelf", "-dW", path], capture_output=True, text=True, check=True)
    assert "NEEDED" not in dynamic.stdout
    symbols = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True)
    names: dict[str, set[str]] = {"U": set(), "T": set()}
    for line in symbols.stdout.splitlines():
        *_, kind, name = line.split()
        names[kind].add(name.partition("@")[0])
    assert names["U"] <= {"aligned_alloc", "calloc", "free", "memcpy", "memset", "strcmp"}
    assert all(name.startswith("ingot_") for name in names["T"])


def test_the_header_is_cpp_as_well(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    source = tmp_path / "it.cpp"
    source.write_text(
        '#include "ingot_artifact.h"\nint main() { return sizeof(DLTensor) != 48; }\n'
    )
    made = tmp_path / "it"
    command = [
        "g++",
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{HEADER}",
        source,
        "-o",
        made,
    ]
    subprocess.run(command, check=True)
    subprocess.run([made], check=True)


def test_the_page_of_artifacts(tmp_path):
    """The program in C that docs/artifacts.md shows."""
    page = (HERE.parents[1] / "docs" / "artifacts.md").read_text("utf-8")
    source, made = tmp_path / "it.c", tmp_path / "it"
    source.write_text(page.partition("```c\n")[2].partition("```")[0])
    command = ["gcc", "-std=c11", "-Wall", "-Werror", f"-I{HEADER}", source, "-o", made, "-ldl"]
    subprocess.run(command, check=True)
    model = nn.Linear(8, 4)
    path = tmp_path / "model.so"
    ingot.export(model, (torch.ones(3, 8),), path=path, dynamic=({0: "n"},), format="library")
    done = subprocess.run([made], cwd=tmp_path, capture_output=True, text=True, check=True)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0])
    assert abs(float(done.stdout) - model(x)[0].item()) < 1e-4


def test_other_processors(tmp_path):
    path = tmp_path / "it.so"
    for cpu in ("x86-64-v3", "aarch64"):
        try:
            ingot.export(sign, (X,), path=path, cpu=cpu, format="library")
        except ingot.ExportError as error:
            assert re.search("needs a linker|is exported on such a machine", str(error))
        else:
            assert path.read_bytes().startswith(b"\x7fELF")
