"""Files that are damaged, foreign or of another version are refused; weights come from them."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

import ingot
from ingot.artifacts import container, gradients, loading, signature, trees, weights
from ingot.kept import format as packing
from ingot.runtime import description

X = torch.linspace(-2, 2, 24).view(4, 6)


def write(path: Path, **options: bool) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).eval()
    ingot.export(module, (X,), path=path, dynamic={"input": {0: "batch"}}, **options)
    return module


def test_damaged_files(tmp_path):
    """Whatever byte is another one, and wherever a file ends: one error, and no crash."""
    path, broken = tmp_path / "it.ingot", tmp_path / "broken.ingot"
    module = write(path)
    whole, choose = path.read_bytes(), random.Random(0)
    places = [*range(64), *(choose.randrange(len(whole)) for _ in range(150))]
    unharmed = 0
    for place in places:
        content = bytearray(whole)
        content[place] ^= 1 << choose.randrange(8)
        broken.write_bytes(content)
        try:
            artifact = ingot.load(broken)
        except ingot.ArtifactError as error:
            assert str(broken) in str(error)
        else:  # the byte lies between sections
            unharmed += 1
            torch.testing.assert_close(artifact(X), module(X).detach())
    assert unharmed < 20
    for length in [*range(0, 200, 7), *(choose.randrange(len(whole)) for _ in range(30))]:
        broken.write_bytes(whole[:length])
        with pytest.raises(ingot.ArtifactError, match="broken.ingot"):
            ingot.load(broken)


def test_foreign_files(tmp_path):
    path = tmp_path / "it.ingot"
    path.write_bytes(b"PK\x03\x04 a zip file")
    with pytest.raises(ingot.ArtifactError, match="no artifact that ingot.export has written"):
        ingot.load(path)
    write(path)
    content = bytearray(path.read_bytes())
    content[8:12] = struct.pack("<I", container.FORMAT + 1)
    path.write_bytes(content)
    with pytest.raises(
        ingot.ArtifactError, match=r"it has format 3, and this Ingot reads format 2"
    ):
        ingot.load(path)
    with pytest.raises(FileNotFoundError):
        ingot.load(tmp_path / "none.ingot")


def test_the_format_is_that_of_the_description():
    """A description of programs that changes is another format: files of before would be
    misread."""
    rows = signature.Signature, signature.Parameter, signature.TensorLeaf, signature.Number
    rows += signature.Condition, gradients.Backward, loading.StateTensor
    fields = [row._fields for row in rows]
    reading = inspect.getsource(loading._entry_of), inspect.getsource(loading._program_of)
    text = f"{description.__doc__}{inspect.getsource(packing)}{fields}{reading}{trees.__doc__}"
    known = {2: "3347e442550302e0"}
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert known.get(container.FORMAT) == digest, (
        "what a file holds, or how values are packed, has changed: if a file of before "
        "would be misread, raise container.FORMAT; put the digest here in any case"
    )


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "it.ingot"
    module = write(path)
    artifact = ingot.load(path)
    write(path, weights=False)
    torch.testing.assert_close(artifact(X), module(X).detach())
    assert [each.name for each in tmp_path.iterdir()] == ["it.ingot"]


def test_weights_from_elsewhere(tmp_path):
    path, tensors = tmp_path / "it.ingot", tmp_path / "weights.safetensors"
    module = write(path, weights=False)
    artifact = ingot.load(path)
    with pytest.raises(ingot.ArtifactError, match="call load_weights first"):
        artifact(X)
    tensors.write_bytes(b"".join(weights.dumped(module.state_dict())))
    artifact.load_weights(tensors)
    torch.testing.assert_close(artifact(X), module(X).detach())
    with pytest.raises(ingot.ArtifactError, match=r"there is no '0.weight'"):
        artifact.load_weights({})
    with pytest.raises(ingot.ArtifactError, match="nothing is called 'z'"):
        artifact.load_weights({**module.state_dict(), "z": X})
    with pytest.raises(ingot.ArtifactError, match=r"of shape \(6,\), expected"):
        artifact.load_weights({**module.state_dict(), "0.bias": torch.ones(6)})
    artifact.load_weights({"0.bias": torch.zeros(5)}, strict=False)
    with torch.no_grad():
        module[0].bias.zero_()
    torch.testing.assert_close(artifact(X), module(X).detach())


def test_the_layout_is_that_of_safetensors():
    tensors = {
        "odd": torch.arange(3, dtype=torch.uint8),
        "matrix": X.T,
        "half": X.bfloat16(),
        "none": torch.empty(0, 3),
        "number": torch.tensor(1.5),
    }
    whole = b"".join(weights.dumped(tensors))
    (length,) = struct.unpack_from("<Q", whole)
    header = json.loads(whole[8 : 8 + length])
    ends = sorted(row["data_offsets"] for row in header.values())
    assert [begin for begin, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert 8 + length + ends[-1][1] == len(whole) and header["matrix"]["dtype"] == "F32"
    read = weights.windows(memoryview(bytearray(whole)), "it")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(read[name], tensor) and read[name].dtype is tensor.dtype
    reader = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    for name, tensor in reader.load(whole).items():
        assert torch.equal(tensor, tensors[name])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 16,
        b"\x02\0\0\0\0\0\0\0{}",
        b"\x02\0\0\0\0\0\0\0[]",
        b"\x04\0\0\0\0\0\0\0null",
    ],
)
def test_weights_that_are_none(tmp_path, content):
    path = tmp_path / "weights.safetensors"
    write(tmp_path / "it.ingot")
    path.write_bytes(content)
    with pytest.raises(ingot.ArtifactError, match="weights.safetensors"):
        ingot.load(tmp_path / "it.ingot").load_weights(path)


def test_no_place_of_weights_lies_outside():
    header = {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    for row in ({"shape": [5]}, {"data_offsets": [16, 32]}, {"shape": [-4]}, {"dtype": "F31"}):
        text = json.dumps({"w": {**header["w"], **row}}).encode()
        content = bytearray(struct.pack("<Q", len(text)) + text + bytes(16))
        with pytest.raises(ingot.ArtifactError, match="it: the weights cannot be read"):
            weights.windows(memoryview(content), "it")
