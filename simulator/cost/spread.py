"""Spread: how far a quantity may be off to either side, as standard deviations of its logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

# Of a Gaussian, on either side of its middle: 80 % between them.
Z80 = 1.2816


@dataclass(frozen=True, slots=True)
class Spread:
    """down, up: as if the quantity were log-normal with this standard deviation on that side, which is how wide an 80 % interval
    reaches there."""

    down: float
    up: float

    @classmethod
    def even(cls, log_std: float) -> Spread:
        return cls(log_std, log_std)

    @classmethod
    def of_added(cls, log_std: float, r: float) -> Spread:
        """Of R, where R - 1, what a round takes beside a plain step, is log-normal."""
        down, up = added_stds(log_std, r)
        return cls(float(down), float(up))

    def widened(self, log_std: float) -> Spread:
        """With an independent doubt added to both sides."""
        return self.with_other(Spread.even(log_std))

    def with_other(self, other: Spread) -> Spread:
        """With an independent doubt of its own two sides."""
        return Spread(math.hypot(self.down, other.down), math.hypot(self.up, other.up))

    def not_below(self, share: float) -> Spread:
        """Of a quantity that cannot be less than so large a share of the middle, at most 1."""
        return Spread(min(self.down, -math.log(min(share, 1.0)) / Z80), self.up)

    def scaled(self, share: float) -> Spread:
        """Of a quantity that follows only in part."""
        return Spread(self.down * share, self.up * share)

    def inverse(self) -> Spread:
        """Of one over the quantity."""
        return Spread(self.up, self.down)

    @property
    def low(self) -> float:
        """Lower end of the 80 % interval over the middle."""
        return math.exp(-Z80 * self.down)

    @property
    def high(self) -> float:
        return math.exp(Z80 * self.up)


# A round takes at least this share of a plain step more, for a doubt of what it adds to mean anything.
_LEAST_ADDED = 0.02


def added_stds(log_std: Any, r: Any) -> tuple[Any, Any]:
    """(down, up) of `Spread.of_added`, of numbers or arrays."""
    added = np.maximum(np.asarray(r) - 1, _LEAST_ADDED)
    ends = [np.log((1 + added * np.exp(sign * Z80 * np.asarray(log_std))) / (1 + added)) / Z80 for sign in (-1, 1)]
    return -ends[0], ends[1]


@dataclass(frozen=True, slots=True)
class RoundDoubt:
    """R and the doubt of its logarithm: of what its terms are made of and of repetition, and of parts that were never measured,
    whose prompts nobody timed either."""

    r: float
    of_terms: Spread
    unmeasured: Spread

    @property
    def terms(self) -> Spread:
        """Of the terms alone, down to R = 1: a round holds a plain step of the same batch, with more rows, and so is never the
        cheaper of the two. None of the published runs measured less."""
        return self._bounded(self.of_terms)

    @property
    def spread(self) -> Spread:
        """All of it, down to R = 1."""
        return self._bounded(self.of_terms.with_other(self.unmeasured))

    def _bounded(self, spread: Spread) -> Spread:
        return spread.not_below(1 / max(self.r, 1.0))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A positive number with an 80 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def lognormal(cls, value: float, spread: Spread | float) -> Estimate:
        even = spread if isinstance(spread, Spread) else Spread.even(spread)
        return cls(value, value * even.low, value * even.high)
