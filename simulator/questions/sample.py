"""Sample: what the requests of several repetitions say together, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.questions.plain_queue import PARTS, Strata
from simulator.serving import Distribution, RequestRecords
from simulator.waiting_time import Floats

Flags = NDArray[np.bool_]

# Batches of consecutive requests in each repetition.
BATCHES = 10
# A run whose batches are more alike than this says nothing at all of its own error.
MOST_ALIKE = 0.9
# Neighbouring strata that the error is taken in.
TOGETHER = 4


@dataclass(frozen=True)
class Sample:
    """The measured requests of all repetitions. strata: by metric; none where all weigh the same."""

    runs: tuple[RequestRecords, ...]
    strata: Mapping[str, Strata] = field(default_factory=dict)

    def share(self, metric: str, flags: Callable[[RequestRecords], Flags]) -> tuple[float, float, int]:
        """(share of the requests that are flagged or given up, its standard error by batch means, requests)."""
        found = [(flags(run) | ~np.isnan(run.column("cancelled_s"))).astype(np.float64) for run in self.runs]
        count, strata = sum(map(len, found)), self.strata.get(metric)
        if strata is None:
            return *mean_of(found), count
        flagged = np.bincount(np.concatenate(strata.of_each), np.concatenate(found))
        share, *without = (float(weights @ flagged) / count for weights in (strata.weights, *strata.without))
        # What the shares of strata come to is certain; what is left of each request within its own and the next ones is not.
        groups = [(of_each + TOGETHER - 1) // TOGETHER for of_each in strata.of_each]
        sizes = np.bincount(np.concatenate(groups))
        within = np.bincount(np.concatenate(groups), np.concatenate(found)) / sizes
        unseen = np.sqrt(sizes / np.maximum(sizes - 1, 1))  # a mean of few is near each of them
        left = [
            strata.weights[of_each] * (each - within[group]) * unseen[group]
            for each, of_each, group in zip(found, strata.of_each, groups, strict=True)
        ]
        # A law that was drawn is known as far as that goes: a jackknife says how much hangs on what was drawn.
        drawn = math.sqrt((PARTS - 1) * float(np.var(without))) if without else 0.0
        # Of those that would take longer than any that were seen, any part may exceed of what does not seem to.
        beyond = strata.longest / 2 * (1 - flagged[-1] / np.bincount(np.concatenate(strata.of_each))[-1])
        return share, math.hypot(mean_of(left)[1], drawn, beyond), count

    def distribution(self, metric: str, value: Callable[[RequestRecords], Floats]) -> Distribution | None:
        """Mean and percentiles of what requests have of something; None if none has any."""
        values = np.concatenate([value(run) for run in self.runs])
        present = ~np.isnan(values)
        strata = self.strata.get(metric)
        if strata is None:
            return Distribution.of(values[present])
        weights = strata.weights[np.concatenate(strata.of_each)]
        return Distribution.of_weighted(values[present], weights[present])


def mean_of(runs: Sequence[Floats]) -> tuple[float, float]:
    """(mean over all runs, its standard error by batch means).

    Neighbours in a queue fare alike, in batches too: the error is that of a first-order autoregression of the batch means.
    """
    mean = sum(float(run.sum()) for run in runs) / max(sum(map(len, runs)), 1)
    batched = [np.array([batch.mean() for batch in np.array_split(run, BATCHES) if len(batch)]) for run in runs]
    means = np.concatenate(batched)
    if len(means) < 2:
        return mean, math.inf
    error = float(np.std(means, ddof=1) / math.sqrt(len(means)))
    return mean, error * math.sqrt((1 + (alike := likeness(batched))) / (1 - alike))


def likeness(runs: Sequence[Floats]) -> float:
    """First autocorrelation of the batch means of all repetitions, from 0 to `MOST_ALIKE`."""
    mean = np.concatenate(runs).mean()
    square = sum(float(((each - mean) ** 2).sum()) for each in runs)
    product = sum(float(((each[1:] - mean) * (each[:-1] - mean)).sum()) for each in runs)
    pairs = sum(max(len(each) - 1, 0) for each in runs)
    found = product / pairs / (square / sum(map(len, runs))) if square > 0 and pairs else 0.0
    return min(max(found, 0.0), MOST_ALIKE)
