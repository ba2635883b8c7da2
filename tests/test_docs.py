"""Pages of docs/ whose examples run: all Python blocks of a page, in order, as one program."""

from __future__ import annotations

import linecache
import re
from pathlib import Path

import pytest
import torch

import ingot
from ingot import backends
from ingot.codegen.store import store_in

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch, tmp_path):
    """What a page may change for the whole process, a folder for its files, and a cache of its
    own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INGOT_CACHE_DIR", str(tmp_path / "cache"))
    store_in.cache_clear()
    monkeypatch.setattr(backends, "_registry", dict(backends._registry))
    # Ingot is not installed, or was before it had the entry point
    if "ingot" not in torch._dynamo.list_backends():
        torch._dynamo.register_backend(backends.torch_backend, name="ingot")
    grad = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(grad)
    ingot.set_stance("default")
    ingot.uninstall()
    store_in.cache_clear()


PAGES = [
    "artifacts.md",
    "control.md",
    "debugging.md",
    "distributed.md",
    "events.md",
    "page.md",
    "profiling.md",
    "report.md",
    "torch_compiler.md",
    "training.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_run(page, capsys):
    names = {"__name__": "example"}
    blocks = re.findall(
        r"^```python\n(.*?)^```",
        (DOCS / page).read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert blocks
    for number, block in enumerate(blocks):
        file = f"<{page} block {number}>"
        linecache.cache[file] = (len(block), None, block.splitlines(keepends=True), file)
        exec(compile(block, file, "exec"), names)
    assert capsys.readouterr().out
