"""For every test: small tensors lend their memory as large ones do, and the garbage collector walks
what the test's own module made. An internal error fails the test, though the call runs in eager.
LLVM generates each text once, however many tests write it.
INGOT_VERIFY_GUARDS=1 has every guard shortcut compared with the whole walk; INGOT_TEST_CACHE=FOLDER
has programs kept there, and found by the next run."""

from __future__ import annotations

import functools
import gc
import logging
import os
from collections.abc import Iterator

import pytest

# two workers have twice the threads that there are processors: none is to wait by spinning
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from ingot import sharing
from ingot.codegen.llvm import objects
from ingot.codegen.llvm.target import Target
from ingot.codegen.store import store_in
from ingot.kept import varied
from ingot.native import _native
from ingot.rules import hand_over
from tests.long import leave_sweeps

# as a rule nothing is kept from one run to the next
os.environ["INGOT_CACHE_DIR"] = os.environ.get("INGOT_TEST_CACHE", "")

_native._lend_from(0)
hand_over()  # some tests trace or lower without a compiler

if "INGOT_VERIFY_GUARDS" in os.environ:
    _native._verify_shortcuts(True)


@pytest.fixture(autouse=True, scope="module")
def nothing_older_is_walked():
    """A worker of pytest holds millions of objects, and the tests of lifetimes collect thousands of
    times."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_internal_error(request: pytest.FixtureRequest) -> Iterator[None]:
    """Eager's answer hides a fault of Ingot's from a test that compares answers. The mark
    `internal_error` is for tests that make one."""
    errors = _Errors()
    log = logging.getLogger("ingot")
    log.addHandler(errors)
    try:
        yield
    finally:
        log.removeHandler(errors)
    if errors.texts and request.node.get_closest_marker("internal_error") is None:
        pytest.fail("\n".join(errors.texts), pytrace=False)


@pytest.fixture(autouse=True)
def no_text_is_generated_twice(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of the machine code would be made of texts that were seen before, and LLVM makes the
    same of each. The mark `own_objects` is for tests of LLVM itself."""
    if request.node.get_closest_marker("own_objects") is None:
        monkeypatch.setattr(objects, "_object_of", _once)


@pytest.fixture
def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests that look at what compiling leaves in this process, which finding a program does
    not."""
    with monkeypatch.context() as patch:
        patch.setenv("INGOT_CACHE_DIR", "")
        store_in.cache_clear()
        yield
    store_in.cache_clear()


@pytest.fixture(autouse=True)
def nothing_is_remembered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes a symbol is the same in a test, whatever sizes other runs saw to vary."""
    if request.module.__name__ != "tests.kept.test_varied":
        monkeypatch.setattr(varied, "recalled", lambda *_: varied.Varied())


@pytest.fixture(autouse=True)
def nothing_is_shared() -> None:
    """A test compiles for itself what others have compiled, whatever ran before it."""
    sharing.forget()


_made = objects._object_of
_known: dict[str, tuple[bytes, dict[str, float]]] = {}


@functools.wraps(_made)
def _once(text: str, target: Target, seconds: dict[str, float]) -> bytes:
    """The object file that was made of the text for the first time, and the seconds that it
    took."""
    key = objects._key(text, target)
    if key not in _known:
        own: dict[str, float] = {}
        _known[key] = _made(text, target, own), own
    image, took = _known[key]
    seconds.update(took)
    return image


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("internal error"):
            self.texts.append(logging.Formatter().format(record))


def pytest_sessionstart() -> None:
    gc.disable()  # of what is collected for the tests nothing is garbage


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    leave_sweeps(items)


def pytest_collection_finish() -> None:
    gc.enable()
