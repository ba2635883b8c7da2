"""How many threads launches have while other work is on the processors."""

from __future__ import annotations

import pytest

from ingot.native import _native

MILLISECOND = 1_000_000


class Machine:
    """Launches of a millisecond each, one after the other. In company, one that is shared by
    threads takes four more, in which it waits."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.launches: list[tuple[int, int, int]] = []
        self.now = 0

    def runs(self, milliseconds: int, free: int) -> list[int]:
        """The threads of each launch, for so long, while so many processors are free."""
        found, end = [], self.now + milliseconds * MILLISECOND
        while self.now < end:
            threads = _native._threads_in_company(
                self.most, [*self.launches, (self.now, MILLISECOND, 0)]
            )[-1]
            lost = 4 * MILLISECOND if threads > free else 0
            self.launches.append((self.now, MILLISECOND + lost, lost))
            self.now += MILLISECOND + lost
            found.append(threads)
        return found


def test_alone_all_threads_are_used() -> None:
    assert set(Machine(8).runs(300, 8)) == {8}


@pytest.mark.parametrize("most", [2, 3, 4, 16])
def test_in_company_one_works_alone(most: int) -> None:
    machine = Machine(most)
    machine.runs(200 * most.bit_length(), 1)
    found = machine.runs(1000, 1)
    assert found.count(1) > 0.8 * len(found)


def test_some_processors_are_free() -> None:
    machine = Machine(16)
    machine.runs(400, 12)
    found = machine.runs(2000, 12)
    assert found.count(12) > 0.8 * len(found)
    assert 1 not in found


def test_all_come_back() -> None:
    machine = Machine(4)
    machine.runs(2000, 1)
    machine.runs(3000, 4)
    assert set(machine.runs(500, 4)) == {4}


def test_what_is_lost_now_and_then_is_little() -> None:
    """A launch of thirty is disturbed: with fewer threads each of them would take longer."""
    machine = Machine(2)
    for _ in range(10):
        assert set(machine.runs(29, 2)) == {2}
        assert set(machine.runs(1, 1)) == {2}


def test_threads_of_unequal_speed_lose_nothing() -> None:
    lost = _native._time_lost
    assert lost(8, 8 * MILLISECOND, MILLISECOND, MILLISECOND) == 0
    assert lost(0, 0, 0, MILLISECOND // 5) == 0


def test_what_is_lost() -> None:
    """The wait beyond a piece, and a piece beyond the others."""
    lost = _native._time_lost
    assert lost(8, 8000, 1000, 3 * MILLISECOND) == 3 * MILLISECOND - 1000
    assert lost(0, 0, 0, 3 * MILLISECOND) == 3 * MILLISECOND
    assert lost(5, 4000 + 3 * MILLISECOND, 3 * MILLISECOND, 0) == 3 * MILLISECOND - 1000
