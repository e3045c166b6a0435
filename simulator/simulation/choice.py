"""Choice: of several ways to draft the one to take, by one rule for every question."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

# Gains this close are taken as equal, and the smaller γ is preferred: it takes less memory and fewer rows.
TIE = 0.03
Way = TypeVar("Way")


def chosen(ways: Iterable[Way], gain: Callable[[Way], float], rows: Callable[[Way], int]) -> Way | None:
    """Of those whose gain over no speculation is within 3 % of the largest the one that verifies fewest rows, and of these the
    one that gains most; none that loses where another gains. None of none.

    >>> chosen([(2, 2.30), (3, 2.45), (5, 2.50)], gain=lambda way: way[1], rows=lambda way: way[0])
    (3, 2.45)
    >>> chosen([(2, 0.99), (3, 1.01)], gain=lambda way: way[1], rows=lambda way: way[0])
    (3, 1.01)
    """
    found = list(ways)
    top = max(map(gain, found), default=0.0)
    least = max((1 - TIE) * top, min(top, 1.0))
    return min((way for way in found if gain(way) >= least), key=lambda way: (rows(way), -gain(way)), default=None)


def at_worse_end(ways: Iterable[Way], drafting: Callable[[Way], Hashable], gain: Callable[[Way], float]) -> list[Way]:
    """Each way to draft once: of one whose acceptance is open, the end of the measured band at which it gains less."""
    worst: dict[Hashable, Way] = {}
    for way in ways:
        kept = worst.setdefault(drafting(way), way)
        if gain(way) < gain(kept):
            worst[drafting(way)] = way
    return list(worst.values())
