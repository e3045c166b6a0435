"""Runs: the same requests served in both ways, and what speculation gained, with its doubt."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.cost.spread import Estimate
from simulator.serving import PairedRatio, ServingResult, paired_ratio
from simulator.serving.metrics import Value

# From fewer requests than this no interval is made: the gain is "close", whatever it is.
FEWEST_REQUESTS = 20


@dataclass(frozen=True)
class Doubted:
    """A ratio, the requests it is of, and its doubts in its logarithm: half an 80 % interval of requests (infinite of one), and
    from the middle to the ends of that of R."""

    ratio: float
    requests: int
    sampling: float
    below: float
    above: float

    @property
    def too_few(self) -> bool:
        return self.requests < FEWEST_REQUESTS or math.isinf(self.sampling)

    @property
    def estimate(self) -> Estimate:
        """With both doubts; from too few requests without bounds."""
        if self.too_few:
            return Estimate(self.ratio, 0.0, math.inf)
        below, above = math.hypot(self.sampling, self.below), math.hypot(self.sampling, self.above)
        return Estimate(self.ratio, self.ratio * math.exp(-below), self.ratio * math.exp(above))

    def times(self, other: Doubted) -> Doubted:
        """The product of two ratios whose doubts are taken as independent."""
        return Doubted(
            self.ratio * other.ratio,
            min(self.requests, other.requests),
            math.hypot(self.sampling, other.sampling),
            math.hypot(self.below, other.below),
            math.hypot(self.above, other.above),
        )

    def share_that_would_tell(self) -> float:
        """How many times the requests let the interval leave out 1, as the doubt of requests falls with their root; infinite
        where the doubt of R alone keeps it in."""
        room = math.log(self.ratio) ** 2 - (self.below if self.ratio > 1 else self.above) ** 2
        told = math.inf if room <= 0 else self.sampling**2 / room
        if self.too_few:  # an interval at all comes first
            return max(FEWEST_REQUESTS / self.requests, told if math.isfinite(told) else 0.0)
        return told


def paired_doubt(before: ServingResult, after: ServingResult, value: Value) -> Doubted | None:
    """Of the mean of a value in one run over that in the other, on the same requests; None where there is none to compare."""
    try:
        found = paired_ratio(before.records, after.records, value)
    except ValueError:
        return None
    half = math.log(found.high / found.ratio) if math.isfinite(found.high) else math.inf
    return Doubted(found.ratio, found.requests, half, 0.0, 0.0)


@dataclass(frozen=True)
class Runs:
    """The plain run, the speculative one, and the first requests of the latter alone: had R been at the high end of its 80 %
    interval, as it is, and at the low end."""

    plain: ServingResult
    speculative: ServingResult
    slow_rounds: ServingResult
    some_rounds: ServingResult
    fast_rounds: ServingResult

    def gain(self, value: Value, invert: bool = False) -> Estimate | None:
        """Plain over speculative (or the inverse, for what should rise), with the doubt of requests and of R together.

        None where no request has a positive value in both runs.
        """
        found = self.doubted(value, invert)
        return None if found is None else found.estimate

    def doubted(self, value: Value, invert: bool = False) -> Doubted | None:
        """The same with its doubts apart."""

        def ratio(result: ServingResult) -> PairedRatio:
            pair = (result, self.plain) if invert else (self.plain, result)
            return paired_ratio(pair[0].records, pair[1].records, value)

        pair = (self.speculative, self.plain) if invert else (self.plain, self.speculative)
        middle = paired_doubt(*pair, value)
        if middle is None:
            return None
        try:
            low, some, high = (ratio(run).ratio for run in (self.slow_rounds, self.some_rounds, self.fast_rounds))
        except ValueError:
            low, some, high = 0.0, 1.0, math.inf
        below = max(math.log(some / low), 0.0) if low > 0 else math.inf
        return Doubted(middle.ratio, middle.requests, middle.sampling, below, max(math.log(high / some), 0.0))
