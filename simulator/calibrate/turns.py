"""Whose turn it is: the cells that decide get their share of the time, the others go one by one.

Every round visits every cell of its group, in an order of its own, so that a disturbance of the machine spreads over all cells
instead of bending one. A round of the cells that decide is taken in one go: its times are compared with one another, and a
minute later other work may have taken the memory. The first round of the others goes by importance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from calibration.measurement import MeasurementFile
from simulator.calibrate.plan import FIRST_RANK_SHARE, Planned, visits_of

Turn = tuple[int, Planned]


class Turns:
    """Deals out visits: (round of its group, cell). before: what earlier parts of the run measured. refused: keys of cells that
    give nothing."""

    def __init__(self, cells: Sequence[Planned], seed: int, before: MeasurementFile | None, refused: set[str]):
        self._shares = (FIRST_RANK_SHARE, 1 - FIRST_RANK_SHARE)
        groups = [[each for each in cells if (each.rank == 0) == first] for first in (True, False)]
        self._rounds = [_rounds(group, seed, before, lambda planned: planned.cell.key in refused) for group in groups]
        self._ready: tuple[deque[Turn], deque[Turn]] = deque(), deque()
        self._spent_s = [0.0, 0.0]
        self._last = 0

    def next(self) -> Turn | None:
        """Of the group that is furthest behind its share, unless a round in one go has begun; None where no cell is left."""
        behind = sorted((0, 1), key=lambda group: self._spent_s[group] / self._shares[group])
        for group in (0, 1) if self._ready[0] else behind:
            ready = self._ready[group]
            if not ready:
                ready.extend(next(self._rounds[group], ()))
            if ready:
                self._last = group
                return ready.popleft()
        return None

    def took(self, seconds: float) -> None:
        """What the last visit took."""
        self._spent_s[self._last] += seconds


def _rounds(
    cells: Sequence[Planned], seed: int, before: MeasurementFile | None, refused: Callable[[Planned], bool]
) -> Iterator[list[Turn]]:
    """Rounds, from where earlier parts left off, while any cell is not refused."""
    keys = {planned.cell.key for planned in cells}
    measured = [each for each in before.measurements if each.key in keys] if before else []
    first = number = max((max(each.rounds) for each in measured if each.rounds), default=0)
    done = {each.key for each in measured if first in each.rounds}
    while not all(map(refused, cells)):
        order = [planned for planned in cells for _ in range(visits_of(planned))]
        if number:
            np.random.default_rng([seed, number, *b"order"]).shuffle(order)
        turns = [(number, planned) for planned in order if not (number == first and planned.cell.key in done)]
        if turns:
            yield turns
        number += 1
