"""Spread: how far a quantity may be off to either side, as standard deviations of its logarithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

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

    def widened(self, log_std: float) -> Spread:
        """With an independent doubt added to both sides."""
        return Spread(math.hypot(self.down, log_std), math.hypot(self.up, log_std))

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
