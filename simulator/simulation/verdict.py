"""Verdict: whether a gain is certain, and what it is a gain of."""

from __future__ import annotations

import math
from typing import Literal

from simulator.cost.spread import Estimate
from simulator.printed_numbers import significant
from simulator.scenario import Scenario
from simulator.serving import Summary
from simulator.serving.metrics import is_good
from simulator.simulation.gains import Runs

LEAST_EFFECT = 0.005
Verdict = Literal["win", "lose", "close"]


def verdict_of(gain: Estimate) -> Verdict:
    """Certain, and of at least half a per cent."""
    return "win" if gain.low > 1 + LEAST_EFFECT else "lose" if gain.high < 1 - LEAST_EFFECT else "close"


def judged_gain(scenario: Scenario, runs: Runs) -> tuple[str, Estimate | None]:
    """What the verdict is about, and its gain: goodput under a service level, else each user's rate of output (the inverse of
    a mean turn, end to end and thinking, which neither the start of a run nor its drain distorts) or time per token."""
    level, arrivals = scenario.file.service_level, scenario.file.workload.arrivals
    turns = runs.gain(lambda records: records.e2e_latency_s + (arrivals.think_time_s or 0.0)) if arrivals.users else None
    if level is not None:
        good = runs.gain(lambda records: is_good(records, level).astype(float), invert=True)
        return "goodput", _product(good, turns) if arrivals.users else good
    if arrivals.users:
        return "output rate per user", turns
    return "mean time per output token", runs.gain(lambda records: records.tpot_s)


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


def _product(first: Estimate | None, second: Estimate | None) -> Estimate | None:
    """The product of two gains whose doubts are taken as independent."""
    if first is None or second is None:
        return None
    value = first.value * second.value
    below = math.hypot(math.log(first.value / first.low), math.log(second.value / second.low))
    above = math.hypot(math.log(first.high / first.value), math.log(second.high / second.value))
    return Estimate(value, value * math.exp(-below), value * math.exp(above))
