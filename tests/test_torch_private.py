"""The private names of torch: each is there or known to be missing, and Ingot does without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ingot import torch_private
from ingot.native import _native
from ingot.torch_private import ALL, ATTRIBUTES, BACKWARDS, GRADIENTS, Missing, Unsupported
from tests.long import long
from tests.private_names import operators, optional, paths

SUPPORTED = torch.__version__ < "2.16"
GROUPS = 6


def test_all_names_are_there() -> None:
    if SUPPORTED:
        assert not torch_private.MISSING
        assert not _native.missing_symbols()


def test_names_have_what_torch_has() -> None:
    """Each is looked up under the name that it stands for, and the paths are private."""
    found = paths()
    assert len(found) > 120
    for name, (path, _) in found.items():
        assert any(part.startswith("_") for part in path.split(".")), path
        assert (
            not isinstance(getattr(torch_private, name), Missing)
            or path in optional()
            or not SUPPORTED
        )


class TestMissing:
    missing = Missing("torch._C._gone")

    def test_raises_when_it_is_used(self) -> None:
        for use in (self.missing, self.missing.part, lambda: self.missing.__enter__()):
            with pytest.raises(Unsupported, match=r"torch\._C\._gone.* is missing in torch"):
                use()

    def test_stands_for_any_kind_of_name(self) -> None:
        assert not isinstance(1, self.missing) and not isinstance(self.missing, type)  # type: ignore[arg-type]
        assert not isinstance(1, (str, self.missing))  # type: ignore[arg-type]
        assert {self.missing: 1}[self.missing] == 1

        class Derived(self.missing):  # type: ignore[misc, name-defined]
            pass

        with pytest.raises(Unsupported):
            Derived()

    def test_its_text_says_what_it_is(self) -> None:
        assert "torch._C._gone" in repr(self.missing)


def test_features_that_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_private.why_off("all that is here") is None
    monkeypatch.setitem(torch_private.MISSING, "torch._C._gone", GRADIENTS)
    assert "torch._C._gone" in str(torch_private.why_off(GRADIENTS))
    assert torch_private.why_off(BACKWARDS) is None
    with pytest.raises(Unsupported):
        torch_private.require(BACKWARDS, GRADIENTS)


# -- torch without them ----------------------------------------------------------------------------


def groups() -> Iterator[tuple[str, list[str]]]:
    """The names to be hidden at once: those without which nothing is compiled apart from others, in
    groups that have a bit of everything."""
    known = list(paths().values())
    for words, (feature, _, names) in ATTRIBUTES.items():
        known += [(f"{words}.{name}", feature) for name in names]
    needed = [path for path, feature in known if feature == ALL]
    others = [path for path, feature in known if feature != ALL]
    others += [f"torch.ops.aten.{name}" for name in operators()]
    for k in range(GROUPS // 2):
        yield "eager", needed[k :: GROUPS // 2]
    for k in range(GROUPS // 2):
        yield "compiled", others[k :: GROUPS // 2]
    yield "eager", needed + others
    yield "compiled", others


@long
def test_every_name_may_be_missing() -> None:
    """`import ingot` works, what it compiles is right, and only what needs a name is off."""
    tried = list(groups())
    lines = [
        " ".join([what, *(path.replace(" ", "~") for path in hidden)]) for what, hidden in tried
    ]
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "tests.private_names"],
        input="\n".join(lines), capture_output=True, text=True, check=False, cwd=root, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f"{len(tried)} of {len(tried)} are right"
