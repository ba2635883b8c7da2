"""A cache with files of each kind, made without compiling anything."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ingot.codegen.store import Store
from ingot.codegen.triton.module import Binary
from ingot.kept.contents import contents_of
from ingot.kept.format import packed

PROGRAM = ((), ((), (), ()), ())


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


SAMPLES: dict[str, list[bytes]] = {
    "programs": [contents_of("f", "model.py:3", 0, PROGRAM), contents_of("g", "", 0, PROGRAM)],
    "llvm": [b"\x7fELF\x02\x01" + bytes(58)],
    "cpp": [b"\x7fELF\x02\x01" + bytes(58)],
    "triton": [Binary(b"image", "assembly", "kernel", 64, 128, 0).packed()],
    "tuned": [json.dumps([1.5, None]).encode()],
    "package": [bytes(32)],
    "varied": [packed((("n", "x.shape[0]"), ()))],
}
"""What files of each kind may hold."""

COUNT = sum(map(len, SAMPLES.values()))


def fill(root: Path) -> None:
    """Put all samples into the cache in this folder."""
    for kind, contents in SAMPLES.items():
        for number, content in enumerate(contents):
            assert Store(root / kind).put(digest(f"{kind} {number}"), content)


def held(root: Path) -> dict[str, bytes]:
    """The bytes of all files in a folder, by their paths in it."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(root))] = path.read_bytes()
    return found
