"""Poisson arrivals whose rate changes with time: those of a steady unit rate, with time stretched (Çinlar 1975, chapter 4.7).

After t seconds as many are expected as the rate sums up to, so an arrival of the unit process at s comes at the t that solves
that sum for s. The same draws serve every rate.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.workload.quantities import Floats

# The bracket of a solution is halved so often: from a whole turn to the last bit.
_HALVINGS = 56


def ramp_times_s(unit_times: Floats, rate_per_s: float, end_rate_per_s: float, ramp_s: float) -> Floats:
    """Under a rate that goes evenly from one to another in `ramp_s` seconds, and stays there.

    >>> ramp_times_s(np.array([1.0, 4.0, 8.0]), 1.0, 3.0, 2.0).round(3).tolist()
    [0.732, 2.0, 3.333]
    """
    during = (rate_per_s + end_rate_per_s) / 2 * ramp_s
    within = np.minimum(unit_times, during)
    squared = rate_per_s**2 + 2 * (end_rate_per_s - rate_per_s) / ramp_s * within
    # What is left of a far greater rate may round to less than the last one, or than nothing.
    slowest, fastest = sorted((rate_per_s, end_rate_per_s))
    rate_then = np.sqrt(np.clip(squared, slowest**2, fastest**2))
    times_s: Floats = 2 * within / (rate_per_s + rate_then) + (unit_times - within) / end_rate_per_s
    return times_s


def diurnal_times_s(unit_times: Floats, rate_per_s: float, peak_rate_per_s: float, period_s: float) -> Floats:
    """Under a rate that swings about its mean as a cosine does, from its lowest at the start to its peak half a period later.

    The expected count is Kepler's equation, E - e·sin(E) = M.

    >>> diurnal_times_s(np.array([50.0, 100.0]), 1.0, 1.8, 100.0).round(3).tolist()
    [50.0, 100.0]
    """
    swing = peak_rate_per_s / rate_per_s - 1
    mean_anomaly = 2 * math.pi / (rate_per_s * period_s) * unit_times
    low, high = mean_anomaly - swing, mean_anomaly + swing
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        early = middle - swing * np.sin(middle) < mean_anomaly
        low, high = np.where(early, middle, low), np.where(early, high, middle)
    times_s: Floats = period_s / (2 * math.pi) * high
    return np.maximum.accumulate(times_s)
