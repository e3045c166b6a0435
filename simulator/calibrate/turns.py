"""Whose turn it is: the cells that decide get their share of the time, the others go round by round.

Every round visits every cell of its group once, in an order of its own, so that a disturbance of the machine spreads over all
cells instead of bending one. The first round of the others goes by importance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from calibration.measurement import MeasurementFile
from simulator.calibrate.plan import FIRST_RANK_SHARE, Planned


class Turns:
    """Deals out visits. before: what earlier parts of the run measured. refused: keys of cells that give nothing."""

    def __init__(self, cells: Sequence[Planned], seed: int, before: MeasurementFile | None, refused: set[str]):
        self._shares = (FIRST_RANK_SHARE, 1 - FIRST_RANK_SHARE)
        groups = [[each for each in cells if (each.rank == 0) == first] for first in (True, False)]
        self._rounds = [
            _rounds(group, seed, before, lambda planned: planned.cell.key in refused) if group else iter(()) for group in groups
        ]
        self._spent_s = [0.0, 0.0]
        self._last = 0

    def next(self) -> tuple[int, Planned] | None:
        """(round of its group, cell) of the group that is furthest behind its share; None where no cell is left."""
        order = sorted((0, 1), key=lambda group: self._spent_s[group] / self._shares[group])
        for self._last in order:
            found = next(self._rounds[self._last], None)
            if found is not None:
                return found
        return None

    def took(self, seconds: float) -> None:
        """What the last visit took."""
        self._spent_s[self._last] += seconds


def _rounds(
    cells: Sequence[Planned], seed: int, before: MeasurementFile | None, refused: Callable[[Planned], bool]
) -> Iterator[tuple[int, Planned]]:
    """(round, cell), from where earlier parts left off, while any cell is not refused."""
    keys = {planned.cell.key for planned in cells}
    measured = [each for each in before.measurements if each.key in keys] if before else []
    first = number = max((max(each.rounds) for each in measured if each.rounds), default=0)
    done = {each.key for each in measured if first in each.rounds}
    while not all(map(refused, cells)):
        order = list(cells)
        if number:
            np.random.default_rng([seed, number, *b"order"]).shuffle(order)
        for planned in order:
            if not refused(planned) and not (number == first and planned.cell.key in done):
                yield number, planned
        number += 1
