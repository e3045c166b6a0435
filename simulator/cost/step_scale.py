"""StepScale: engine steps as they would be at an end of an interval, for runs that show what a doubt does under load.

What R says is of rounds. A step in which nobody drafts is a plain one and what a resting drafter takes of it, so that the doubt
of rounds leaves it alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from simulator.cost.doubts import UPKEEP_DEARER_STD
from simulator.cost.spread import Z80, Spread

NamedSeconds = list[tuple[str, Any]]
UPKEEP = "draft_cache_upkeep"
# What steps of an engine with a drafter hold and plain ones do not, beside `UPKEEP` and the passes and searches of drafting.
UNOVERLAPPED = "unoverlapped_host"


class StepScale(NamedTuple):
    """Factors of the decoding part of engine steps: `round` of steps in which anybody drafts, as if R were so much larger, and of
    what searches and unoverlapped host work add to others; `upkeep` of what a resting drafter's cache takes."""

    round: float = 1.0
    upkeep: float = 1.0

    def scaled(self, named: Sequence[tuple[str, Any]], drafting: bool) -> NamedSeconds:
        """The terms of a step's decoding part; drafting: whether anybody verifies drafts."""
        if self.round == self.upkeep == 1:
            return list(named)
        return [(name, seconds * self._factor(name, drafting)) for name, seconds in named]

    def _factor(self, name: str, drafting: bool) -> float:
        if name == UPKEEP:
            return self.upkeep
        return self.round if drafting or name == UNOVERLAPPED or name.startswith("draft") else 1.0


AS_PRICED = StepScale()


def ends(spread: Spread) -> tuple[StepScale, StepScale]:
    """(dear, cheap) ends of 80 % intervals, with so much doubt of R."""
    return StepScale(spread.high, upkeep_high()), StepScale(spread.low)


def upkeep_high() -> float:
    return math.exp(Z80 * UPKEEP_DEARER_STD)
