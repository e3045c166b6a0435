"""CostTerm and PassCost: named parts of a cost, each with its bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from simulator.cost.roofline import Bound
from simulator.cost.tape import added, all_looked_up, known


class CostTerm(NamedTuple):
    """A named part of a cost, in seconds, and what bounds it."""

    name: str
    seconds: float
    bound: Bound


class PassCost(NamedTuple):
    """One forward pass: `terms` sum to `seconds`."""

    terms: tuple[CostTerm, ...]

    @property
    def seconds(self) -> float:
        return added([term.seconds for term in self.terms])

    @property
    def bound(self) -> Bound:
        """The bound that holds most of the time."""
        return dominant_bound(self.terms)


def dominant_bound(terms: Iterable[CostTerm]) -> Bound:
    """The bound under which most seconds are spent."""
    by_bound: dict[Bound, float] = {}
    for term in terms:
        by_bound[term.bound] = by_bound.get(term.bound, 0.0) + known(term.seconds)
    return max(by_bound, key=lambda bound: by_bound[bound])


def terms_at(terms: Callable[[Any], Sequence[CostTerm]], number: float) -> Sequence[CostTerm]:
    """terms(number); where the number is not known yet, their seconds are looked up as it is."""
    found = terms(known(number))
    if known(number) is number:
        return found
    seconds = all_looked_up(lambda number: [term.seconds for term in terms(number)], number, len(found))
    return [term._replace(seconds=each) for term, each in zip(found, seconds, strict=True)]
