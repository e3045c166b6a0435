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

        def ratio(result: ServingResult) -> PairedRatio:
            pair = (result, self.plain) if invert else (self.plain, result)
            return paired_ratio(pair[0].records, pair[1].records, value)

        try:
            middle = ratio(self.speculative)
        except ValueError:
            return None
        few = middle.requests < FEWEST_REQUESTS or not math.isfinite(middle.high)
        sampling = math.inf if few else math.log(middle.high / middle.ratio)
        try:
            low, some, high = (ratio(run).ratio for run in (self.slow_rounds, self.some_rounds, self.fast_rounds))
        except ValueError:
            low, some, high = 0.0, 1.0, math.inf
        below = math.hypot(sampling, max(math.log(some / low), 0.0) if low > 0 else math.inf)
        above = math.hypot(sampling, max(math.log(high / some), 0.0))
        return Estimate(middle.ratio, middle.ratio * math.exp(-below), middle.ratio * math.exp(min(above, 50.0)))
