"""Sample: what the requests of several repetitions say together, and how sure that is.

Where requests wait for one of few slots, and the law of their arrivals is known, so is the law of the waits in a plain queue: the
same gaps, one service after the other in each slot, slots that take turns. Requests are then weighted so that the waits in that
queue, computed on the very arrivals that were simulated, are as frequent as its law says (post-stratification: Cochran, Sampling
Techniques, 1977, section 5A.9). Repetitions that happen to hold too few or too many long queues, or that began with an empty one,
are corrected for that; all else is the simulation's: how long whom of each wait took is what was simulated. Weights are never
negative and know nothing of any limit, so that a tighter limit can never seem to be exceeded less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.draft_policy import FIXED
from simulator.serving import Distribution, RequestRecords
from simulator.simulation import Server
from simulator.waiting_time import Floats, waiting_time, waits
from simulator.workload import RequestTrace

Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]

# Batches of consecutive requests in each repetition.
BATCHES = 10
# A run whose batches are more alike than this says nothing at all of its own error.
MOST_ALIKE = 0.9
# Requests that have one weight: this part of those that wait longer, at most so many; and strata that the error is taken in.
OF_LONGER, MOST, TOGETHER = 0.02, 25, 4
# From this load on a queue settles too slowly to be weighted by; a slot must serve so many requests in a run.
HIGHEST_LOAD, IN_EACH_SLOT = 0.995, 20
# Services that differ by less are equal; parts of the requests that are left out in turn where they are not.
EQUAL, PARTS = 1e-6, 8


@dataclass(frozen=True)
class Strata:
    """Requests of one weight each. of_each: the stratum of every request, by run; weights: of a request, by stratum; longest: the
    share of all requests that the last stands for, whose waits are as long as the longest that were seen, or longer; without: the
    weights by the services of all but one part of the requests, for each of `PARTS`; none where services are equal."""

    of_each: tuple[Integers, ...]
    weights: Floats
    longest: float
    without: tuple[Floats, ...] = ()


@dataclass(frozen=True)
class PlainQueue:
    """Slots that take turns, and the squared coefficient of variation of the gaps between arrivals, which are independent.

    alone: nothing else is served beside a request, so that its service is what it took.
    """

    slots: int
    gap_variation: float
    alone: bool = True

    def strata(self, runs: Sequence[RequestRecords], measured: Sequence[int], rate_per_s: float) -> Strata | None:
        """Of the last so many `measured` requests of each run; None where the queue would settle too slowly, or never.

        runs: all requests in order of arrival, each served to its end.
        """
        if min(map(len, runs)) < IN_EACH_SLOT * self.slots:
            return None
        services = self._services(runs)
        service_s = np.concatenate(services)
        load = rate_per_s * float(service_s.mean()) / self.slots
        if not load < HIGHEST_LOAD:
            return None
        waited = [
            waits(run.column("arrival_s"), each_s, self.slots)[-count:]
            for run, each_s, count in zip(runs, services, measured, strict=True)
        ]
        ends = _ends(np.sort(np.concatenate(waited)))
        # Of equal waits some strata may be left without any.
        ends = np.unique(ends[np.searchsorted(ends, np.concatenate(waited))])
        of_each = tuple(np.searchsorted(ends, wait_s) for wait_s in waited)
        counts = np.bincount(np.concatenate(of_each))

        def weights(services_s: Floats) -> Floats:
            law = waiting_time(services_s, 1 / rate_per_s, self.gap_variation, self.slots)
            up_to = np.append(law.within(ends[:-1]), 1.0)
            found: Floats = np.maximum(np.diff(up_to, prepend=0.0), 0.0) * (counts.sum() / counts)
            return found

        known, without = weights(service_s), []
        if float(np.ptp(service_s)) > EQUAL * float(service_s.mean()):
            for part in np.array_split(np.arange(len(service_s)), PARTS):
                others_s = np.delete(service_s, part)
                # Of fewer services the load must not come to 1.
                without.append(weights(others_s * min(1.0, HIGHEST_LOAD * self.slots / rate_per_s / float(others_s.mean()))))
        return Strata(of_each, known, float(known[-1] * counts[-1] / counts.sum()), tuple(without))

    def _services(self, runs: Sequence[RequestRecords]) -> list[Floats]:
        """Of each request, from what it is and not from whom it met: as it was, or as long as its like take in the mean."""
        taken = [run.column("finish_s") - run.column("first_scheduled_s") for run in runs]
        if self.alone:
            return taken
        kinds = [[run.column(name) for name in ("prompt_tokens", "output_tokens", "rounds")] for run in runs]
        table = np.vstack([np.column_stack([np.ones(len(seconds)), *kind]) for kind, seconds in zip(kinds, taken, strict=True)])
        table /= table.max(axis=0, initial=1.0)
        seconds = np.concatenate(taken)
        fitted = table @ np.linalg.lstsq(table, seconds, rcond=None)[0]
        return np.split(np.maximum(fitted, seconds.min()), np.cumsum([len(each) for each in taken])[:-1])


def plain_queue(server: Server) -> PlainQueue | None:
    """The queue for the slots of all replicas, whatever room the KV cache leaves them; None where the law of arrivals or of
    services is not known: replicas that differ, prompts elsewhere, sessions, a trace, drafts that depend on the load."""
    workload, slots = server.scenario.file.workload, server.rules.max_num_seqs
    variation = {"poisson": 1.0, "gamma": workload.arrivals.burstiness}.get(workload.arrivals.process)
    ((_, replicas), *others) = server.kinds
    recorded, policed = isinstance(server.scenario.source, RequestTrace), server.policy != FIXED
    if variation is None or others or server.prefill or workload.sessions or recorded or policed:
        return None
    return PlainQueue(replicas * slots, variation, slots == 1)


def _ends(waits_s: Floats) -> Floats:
    """Where strata end, of rising waits: after those that do not wait at all, then between fewer and fewer requests; the last
    holds all that is longer."""
    count, firsts = len(waits_s), []
    idle = int(np.searchsorted(waits_s, 0.0, "right"))
    first = count - 1
    while first > idle:
        firsts.append(first)
        first -= min(max(round(OF_LONGER * (count - first)), 1), MOST)
    between = (waits_s[np.array(firsts, dtype=np.int64) - 1] + waits_s[firsts]) / 2
    return np.unique(np.concatenate([np.zeros(1 if 0 < idle < count else 0), between, waits_s[-1:]]))


@dataclass(frozen=True)
class Sample:
    """The measured requests of all repetitions. strata: None where all weigh the same."""

    runs: tuple[RequestRecords, ...]
    strata: Strata | None = None

    def share(self, flags: Callable[[RequestRecords], Flags]) -> tuple[float, float, int]:
        """(share of the requests that are flagged or given up, its standard error by batch means, requests)."""
        found = [(flags(run) | ~np.isnan(run.column("cancelled_s"))).astype(np.float64) for run in self.runs]
        count, strata = sum(map(len, found)), self.strata
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
        # The law is that of the services that were seen: a jackknife says how much hangs on which they were.
        services = math.sqrt((PARTS - 1) * float(np.var(without))) if without else 0.0
        return share, math.hypot(mean_of(left)[1], services), count

    def distribution(self, value: Callable[[RequestRecords], Floats]) -> Distribution | None:
        """Mean and percentiles of what requests have of something; None if none has any."""
        values = np.concatenate([value(run) for run in self.runs])
        present = ~np.isnan(values)
        if self.strata is None:
            return Distribution.of(values[present])
        weights = self.strata.weights[np.concatenate(self.strata.of_each)]
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
