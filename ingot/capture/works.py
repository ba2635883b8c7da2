"""What asynchronous collectives give: `Pending` takes the place of torch.distributed's `Work`, in
the graph as well as outside of it.

A collective in the graph makes a new tensor. What it is to write keeps its values until the program
waits, which copies them there: at no time are half of them the new ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.meanings import means
from ingot.capture.values.base import Value
from ingot.capture.values.constant import NONE
from ingot.torch_private import Work, collectives

if TYPE_CHECKING:
    from ingot.capture.session import Session


class Pending:
    """A collective that has begun: a `Work` of torch.distributed's.

    `written` are the tensors that it writes. `begun` are those in which the new values will be, or
    one without meaning where nothing is written; None once they have been waited for.
    """

    def __init__(self, written: list[Any], begun: list[Any]) -> None:
        self.written = written
        self.begun: list[Any] | None = begun
        self.beside: _Beside | None = None  # what waits for them beside the program
        _begins(self, written, begun)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance() of it is that of what it stands for
        return Work

    def wait(self, timeout: Any = None) -> bool:
        """Waits until the tensors have the new values.

        Raises RuntimeError if the collective fails, or takes longer than the timedelta `timeout`.
        """
        if self.begun is not None:
            if timeout is not None or self.beside is not None:
                wait_beside(self, timeout)
            else:
                _take(self.written, self.begun)
                self.begun = None
                _ends(self)
        return True

    synchronize = block_current_stream = wait

    def result(self) -> list[Any]:
        """The tensors that are written."""
        return self.written

    def is_completed(self) -> bool:
        """Whether the tensors have the new values. Never waits."""
        return self.begun is None or has_ended(self)

    def is_success(self) -> bool:
        """Whether the collective has ended without an error. Never waits."""
        return self.begun is None or has_ended(self) and error_of(self) is None

    def exception(self) -> BaseException | None:
        """The error that has ended the collective; None before."""
        return error_of(self)

    def get_future(self) -> Any:
        """A future of the tensors that are written."""
        return future_of(self)


# -- outside of the graph: a thread waits, where the program does not ----------------------------


class _Beside:
    """A thread that waits for a collective."""

    def __init__(self, work: Pending) -> None:
        self.work = work
        self.error: Exception | None = None
        self.done, self.lock = threading.Event(), threading.Lock()
        self.futures: list[Any] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            _take(self.work.written, self.work.begun or [])
        except Exception as error:
            self.error = error
        with self.lock:
            self.done.set()
        for future in self.futures:
            self._fill(future)

    def fill(self, future: Any) -> None:
        """Fills a future once the collective has ended."""
        with self.lock:
            is_early = not self.done.is_set()
            if is_early:
                self.futures.append(future)
        if not is_early:
            self._fill(future)

    def _fill(self, future: Any) -> None:
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.work.written)


def _beside(work: Pending) -> _Beside:
    """The thread that waits for a collective, for what was not waited for by the program."""
    if work.beside is None:
        work.beside = _Beside(work)
    return work.beside


def wait_beside(work: Pending, timeout: Any) -> None:
    """Waits for a collective within a time limit, or for what another thread waits for."""
    seconds = None
    if timeout is not None and timeout.total_seconds() > 0:
        seconds = timeout.total_seconds()
    beside = _beside(work)
    if not beside.done.wait(seconds):
        raise RuntimeError(f"the collective has not ended within {timeout}")
    if beside.error is not None:
        raise beside.error
    work.begun = None


def has_ended(work: Pending) -> bool:
    """Whether a collective has ended."""
    has_ended = _beside(work).done.is_set()
    if has_ended and error_of(work) is None:
        work.begun = None
    return has_ended


def error_of(work: Pending) -> BaseException | None:
    """The error that has ended a collective."""
    if work.beside is None:
        return None
    return work.beside.error


def future_of(work: Pending) -> Any:
    """A future of the tensors that a collective writes."""
    future: Any = torch.futures.Future()
    if work.begun is None:
        future.set_result(work.written)
    else:
        _beside(work).fill(future)
    return future


def _is_outside(function: Any, why: str) -> None:
    @means(function)
    def rule(session: Session, *args: Value) -> Value:
        raise session.unsupported("whole-function", f"a collective {why}")


_is_outside(wait_beside, "is waited for with a time limit")
_is_outside(has_ended, "is asked whether it has ended")
_is_outside(error_of, "is asked for its error")
_is_outside(future_of, "is asked for a future")


# -- in the graph ----------------------------------------------------------------------------------


def _take(written: list[Any], begun: list[Any]) -> None:
    """Waits for the new values, and writes them."""
    begun = list(map(collectives.wait_tensor, begun))
    if 1 == len(begun) < len(written):  # all of them, one after the other
        begun = begun[0].reshape(len(written), *plain(written[0]).shape)
    for target, tensor in zip(written, begun):
        plain(target).copy_(tensor)


def plain(tensor: Any) -> Any:
    """The memory of a tensor as collectives see it: real numbers, without gradients.

    They have the order in which they lie there, if there are no gaps between them."""
    data = tensor.data
    if tensor.is_complex():
        data = torch.view_as_real(data)
    if not data.is_contiguous():
        data = data.permute(sorted(range(data.ndim), key=data.stride, reverse=True))
    return data


# -- works that nobody waits for -------------------------------------------------------------------


class _Open:
    """The works of a capture that have not been waited for: by id, each with its tensors."""

    def __init__(self) -> None:
        self.works: dict[int, tuple[Value, Value, Value]] = {}


def _begins(work: Any, written: list[Any], begun: list[Any]) -> None:
    """A work is made."""


def _ends(work: Any) -> None:
    """A work has been waited for."""


@means(_begins)
def _begins_here(session: Session, work: Value, written: Value, begun: Value) -> Value:
    session.state(_Open).works[id(work)] = work, written, begun
    return NONE


@means(_ends)
def _ends_here(session: Session, work: Value) -> Value:
    session.state(_Open).works.pop(id(work), None)
    return NONE


def wait_for_dropped(session: Session, is_kept: Callable[[Value], bool]) -> None:
    """Has the graph wait, at its end, for works that the program drops before it has waited.

    In eager, too, they are carried out."""
    for work, written, begun in session.state(_Open).works.values():
        if not is_kept(work):
            session.call(session.builtin(_take), [written, begun], {})
