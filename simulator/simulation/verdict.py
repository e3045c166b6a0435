"""Verdict: whether a gain is certain, and what it is a gain of."""

from __future__ import annotations

import math
from typing import Literal

from simulator.cost.spread import Estimate
from simulator.printed_numbers import significant
from simulator.scenario import Scenario
from simulator.serving import ServingResult, Summary
from simulator.serving.metrics import WARM_UP_FRACTION, good_share, is_good
from simulator.serving.record import RequestRecords
from simulator.simulation.gains import Doubted, Runs

LEAST_EFFECT = 0.005
# Which of so few requests come within a service level is chance; where nearly all do, fewer that do not tell nothing apart.
FEWEST_MOVED, NEARLY_ALL = 10, 0.95
Verdict = Literal["win", "lose", "close"]


def verdict_of(gain: Estimate) -> Verdict:
    """Certain, and of at least half a per cent."""
    return "win" if gain.low > 1 + LEAST_EFFECT else "lose" if gain.high < 1 - LEAST_EFFECT else "close"


def judged_gain(scenario: Scenario, runs: Runs) -> tuple[str, Doubted | None]:
    """What the verdict is about, and its gain: goodput under a service level, else each user's rate of output (the inverse of
    a mean turn, end to end and thinking, which neither the start of a run nor its drain distorts) or time per token."""
    level, arrivals = scenario.file.service_level, scenario.file.workload.arrivals
    turns = runs.doubted(lambda records: records.e2e_latency_s + (arrivals.think_time_s or 0.0)) if arrivals.users else None
    if level is not None:
        good = runs.doubted(lambda records: is_good(records, level).astype(float), invert=True)
        if arrivals.users:
            return "goodput", None if good is None or turns is None else good.times(turns)
        return "goodput", good
    if arrivals.users:
        return "output rate per user", turns
    return "mean time per output token", runs.doubted(lambda records: records.tpot_s)


def nothing_to_gain(scenario: Scenario, plain: ServingResult) -> bool:
    """Whether all requests, or all but a few, are within the service level without speculation, so that goodput can hardly rise.
    In a closed loop it can: quicker answers bring more of them."""
    level = scenario.file.service_level
    if level is None or scenario.file.workload.arrivals.users is not None:
        return False
    records = RequestRecords.of(plain.records)
    return nearly_all(good_share(records, level), len(records))


def nearly_all(good: float, requests: int) -> bool:
    """Whether a share of so many requests leaves too few outside a service level to tell anything apart.

    >>> nearly_all(0.997, 10_000), nearly_all(0.97, 300), nearly_all(0.97, 1_000)
    (True, True, False)
    """
    outside = (1 - good) * (1 - WARM_UP_FRACTION) * requests
    return good >= 1 - LEAST_EFFECT or (outside < FEWEST_MOVED and good >= NEARLY_ALL)


def room_in_words(good: float) -> str:
    """What goodput has to gain where nearly all requests are within the service level."""
    return "nothing" if good >= 1 - LEAST_EFFECT else "too little"


def worth_of(gain: float, gain_in_time: float, nothing_to_gain: bool) -> float:
    """By which ways to draft are ranked: their gain; where goodput has hardly room, that in time of those that keep it."""
    return gain_in_time if nothing_to_gain and gain >= 1 - LEAST_EFFECT else gain


# More requests than this nobody simulates to learn of half a per cent.
MOST_ASKED = 1_000_000


def requests_to_tell(asked: int, judged: Doubted) -> int | None:
    """About how many requests would let the interval of a gain leave out 1, to two digits, where those asked for are too few.
    None where they suffice, and where more would not help."""
    if not judged.too_few and verdict_of(judged.estimate) != "close":
        return None
    needed = asked * judged.share_that_would_tell()
    if not asked < needed <= MOST_ASKED:
        return None
    unit: int = 10 ** max(math.floor(math.log10(needed)) - 1, 0)
    return unit * math.ceil(needed / unit)


def unjudged(metric: str, plain: Summary, speculative: Summary, e2e: Estimate) -> tuple[str, Verdict]:
    """(what is shown instead, verdict) where one of the two runs has nothing of the metric."""
    latency = "mean end-to-end latency"
    before, after = plain.goodput_per_s or 0.0, speculative.goodput_per_s or 0.0
    if metric != "goodput":
        return f"{latency} (no {metric} to compare)", verdict_of(e2e)
    if before == after == 0:
        return f"{latency} (no request of either run meets the service level)", "close"
    change = f"rises from none to {significant(after)}" if after > 0 else f"falls from {significant(before)} to none"
    return f"{latency} (goodput {change} requests per second)", "win" if after > 0 else "lose"
