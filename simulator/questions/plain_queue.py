"""PlainQueue: requests for few slots as a queue whose law is known, to weigh simulated requests by.

The queue has the workload's gaps between arrivals, and services that depend on what a request is and not on whom it meets: one
after the other in each slot, in order of arrival. Its law, for lengths as the workload states them and not only for those that
were simulated, is that of one server (`waiting_time`), or comes from a long run of its recursion, which costs thousands of times
less than one of steps. What was simulated has certain latencies in that queue, and requests weigh so much that these are as
frequent as the law says (post-stratification: Cochran, Sampling Techniques, 1977, section 5A.9). Repetitions that happen to hold
too few or too many long queues or long answers, or that began with an empty queue, are corrected for that; all else is the
simulation's: how long whom of each stratum took is what was simulated. Weights are never negative and know nothing of any limit,
so that a tighter limit can never seem to be exceeded less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.draft_policy import FIXED
from simulator.serving import RequestRecords
from simulator.simulation import Server
from simulator.waiting_time import Floats, WaitLaw, waiting_time, waits, waits_in_line
from simulator.workload import RequestTrace, lengths_by_law

Integers = NDArray[np.int64]
# The share of all requests that takes at most so many seconds.
Law = Callable[[Floats], Floats]
# Requests that have one weight: this part of those that take longer, at most so many.
OF_LONGER, MOST = 0.02, 25
# From this load on a queue settles too slowly to be weighted by; a slot must serve so many requests in a run.
HIGHEST_LOAD, IN_EACH_SLOT = 0.995, 8
# Where times are so near to what lengths say, they are taken to be that.
LENGTHS_TELL = 0.02
# Times that differ by less are equal; parts of the law that are left out in turn; requests whose answers are about as long.
EQUAL, PARTS, ALIKE = 1e-6, 8, 20
# Lengths drawn for the law, and requests of a long run through several slots, of which the first begin with an empty queue.
DRAWN, LONG_RUN, BEGIN = 120_000, 120_000, 6_000


@dataclass(frozen=True)
class Strata:
    """Requests of one weight each. of_each: the stratum of every request, by run; weights: of a request, by stratum; longest: the
    share of all requests that the last stands for, which take as long as the longest that were seen, or longer; without: the
    weights by all but one part of what the law is made of, for each of `PARTS`; none where it is exact."""

    of_each: tuple[Integers, ...]
    weights: Floats
    longest: float
    without: tuple[Floats, ...] = ()

    @classmethod
    def of(cls, runs: Sequence[Floats], law: Law, without: Sequence[Law]) -> Strata:
        """By what each request takes in the plain queue, and the law of that."""
        ends = _ends(np.sort(np.concatenate(runs)))
        of_each = tuple(np.searchsorted(ends, run_s) for run_s in runs)
        counts = np.bincount(np.concatenate(of_each), minlength=len(ends) + 1)

        def weights(of: Law) -> Floats:
            shares = np.diff(of(ends), prepend=0.0, append=1.0)
            found: Floats = np.maximum(shares, 0.0) * (counts.sum() / counts)
            return found

        known = weights(law)
        return cls(of_each, known, float(known[-1] * counts[-1] / counts.sum()), tuple(map(weights, without)))


@dataclass(frozen=True)
class PlainQueue:
    """`lines` that requests are dealt to in turn, of so many `slots` each. gap_variation: squared coefficient of variation of the
    gaps between arrivals, which are independent. prompts, outputs: tokens of requests by the law of the workload.

    alone: nothing else is served beside a request, so that its service is what it took.
    """

    lines: int
    slots: int
    gap_variation: float
    prompts: Integers = field(repr=False)
    outputs: Integers = field(repr=False)
    alone: bool = True

    def strata(self, runs: Sequence[RequestRecords], measured: Sequence[int], rate_per_s: float) -> Mapping[str, Strata]:
        """Of the last so many `measured` requests of each run, by metric; none where the queue would settle too slowly, or never.

        runs: all requests in order of arrival, each served to its end.
        """
        if min(map(len, runs)) < IN_EACH_SLOT * self.slots * self.lines:
            return {}
        own_s, drawn_s, paces = self._times(runs, "finish_s")
        if not rate_per_s * float(drawn_s.mean()) / (self.slots * self.lines) < HIGHEST_LOAD:
            return {}
        waited = [self._waits(run.column("arrival_s"), each_s) for run, each_s in zip(runs, own_s, strict=True)]
        waits_s, law, without = self._law(drawn_s, paces, rate_per_s)

        def of(own: Sequence[Floats] = (), drawn: Floats | None = None) -> Strata:
            """Of the wait, and what comes after it."""
            if drawn is None or _equal(drawn):
                return Strata.of(_last(waited, measured), law, without)
            together = [wait_s + each_s for wait_s, each_s in zip(waited, own, strict=True)]
            return Strata.of(_last(together, measured), *_law_of(waits_s + drawn[: len(waits_s)]))

        found = {"tpot": of(), "ttft": of(*self._times(runs, "first_token_s")[:2]), "e2e": of(own_s, drawn_s)}
        return found | {"good": found["e2e"]}

    def _law(self, drawn_s: Floats, paces: Sequence[float], rate_per_s: float) -> tuple[Floats, Law, Sequence[Law]]:
        """Waits before the first of the drawn services; their law, and the same without each part of what it is made of."""
        if self.slots > 1:
            # In a line of its own: every so many gaps of the process are one.
            arrival_s = np.cumsum(self._gaps) * self.lines / rate_per_s
            waits_s = waits_in_line(arrival_s, drawn_s[:LONG_RUN], self.slots)[BEGIN:]
            return waits_s, *_law_of(waits_s)

        most = HIGHEST_LOAD * self.lines / rate_per_s / float(drawn_s.mean())  # longer, and they would never settle

        def exact(factor: float) -> WaitLaw:
            return waiting_time(drawn_s * min(factor, most), 1 / rate_per_s, self.gap_variation, self.lines)

        law = exact(1.0)
        return law.drawn(self._shares), law.within, [exact(factor).within for factor in paces]

    def _waits(self, arrival_s: Floats, service_s: Floats) -> Floats:
        if self.slots == 1:
            return waits(arrival_s, service_s, self.lines)
        found = np.empty(len(arrival_s))
        for line in range(self.lines):
            found[line :: self.lines] = waits_in_line(arrival_s[line :: self.lines], service_s[line :: self.lines], self.slots)
        return found

    def _times(self, runs: Sequence[RequestRecords], until: str) -> tuple[list[Floats], Floats, list[float]]:
        """Seconds from the first step on, of each request and of those drawn, from what a request is and not from whom it met: as
        long as its like take in the mean, or as it was where nothing is beside it. Then by how much the latter would be longer
        without each part of the requests, where lengths alone do not tell."""
        names = (until, "first_scheduled_s", "prompt_tokens", "output_tokens", "rounds")
        ended_s, began_s, prompts, outputs, rounds = (np.concatenate([run.column(name) for run in runs]) for name in names)
        lengths, own_s = self._inputs(prompts, outputs), ended_s - began_s
        if not self.alone:
            own_s = _fit(own_s, (*lengths, rounds))((*lengths, rounds))
        by_length = _fit(own_s, lengths)
        drawn_s, pace = by_length(self._inputs(self.prompts, self.outputs)), own_s / by_length(lengths)
        paces: list[float] = []
        if float(np.ptp(pace)) < LENGTHS_TELL:
            own_s = by_length(lengths)
        else:
            drawn_s = drawn_s * pace[self._alike(outputs)]
            paces = [float(np.delete(pace, part).mean() / pace.mean()) for part in np.array_split(np.arange(len(pace)), PARTS)]
        return np.split(own_s, np.cumsum([len(run) for run in runs])[:-1]), drawn_s, paces

    def _inputs(self, prompts: Integers, outputs: Integers) -> tuple[Floats, ...]:
        """What the time of a request is made of: attention grows with both lengths; among others it is about even."""
        prompt, output = prompts.astype(np.float64), outputs.astype(np.float64)
        return (prompt, output, prompt**2, prompt * output, output**2) if self.alone else (prompt, output)

    def _alike(self, outputs: Integers) -> Integers:
        """For each drawn request the place of one whose answer is about as long."""
        order, rng = np.argsort(outputs, kind="stable"), np.random.default_rng([0, *b"alike"])
        first, last = (np.searchsorted(outputs[order], self.outputs, side) for side in ("left", "right"))
        spread = rng.random(len(first))
        places = first - ALIKE + np.floor(spread * (last - first + 2 * ALIKE)).astype(np.int64)
        found: Integers = order[np.clip(places, 0, len(order) - 1)]
        return found

    @cached_property
    def _gaps(self) -> Floats:
        """Between arrivals at one line, of mean 1."""
        shape = self.lines / self.gap_variation
        return np.random.default_rng([0, *b"gaps"]).gamma(shape, 1 / shape, LONG_RUN)

    @cached_property
    def _shares(self) -> Floats:
        """Evenly spread over all waits, in an order that has nothing to do with services."""
        return (np.random.default_rng([0, *b"waits"]).permutation(DRAWN) + 0.5) / DRAWN


def plain_queue(server: Server) -> PlainQueue | None:
    """The queue for the slots of all replicas, whatever room the KV cache leaves them; None where the law of arrivals or of
    services is not known: replicas that differ, prompts elsewhere, sessions, a trace, drafts that depend on the load."""
    scenario, slots = server.scenario, server.rules.max_num_seqs
    workload, router = scenario.file.workload, scenario.file.parallel.router
    variation = {"poisson": 1.0, "gamma": workload.arrivals.burstiness}.get(workload.arrivals.process)
    ((_, replicas), *others) = server.kinds
    recorded, policed = isinstance(scenario.source, RequestTrace), server.policy != FIXED
    if variation is None or others or server.prefill or workload.sessions or recorded or policed:
        return None
    lines, each = (replicas, slots) if router in (None, "round_robin") else (1, replicas * slots)
    prompts, outputs = lengths_by_law(workload, DRAWN, scenario.source)
    return PlainQueue(lines, each, variation, prompts, outputs, slots == 1)


def _last(runs: Sequence[Floats], counts: Sequence[int]) -> list[Floats]:
    return [run[-count:] for run, count in zip(runs, counts, strict=True)]


def _equal(values: Floats) -> bool:
    return float(np.ptp(values)) <= EQUAL * float(values.mean())


def _law_of(seen_s: Floats) -> tuple[Law, Sequence[Law]]:
    """The law of a long run, and that of all but one of its parts in turn."""
    parts = [np.sort(part) for part in np.array_split(seen_s, PARTS)]

    def law(kept: Sequence[Floats]) -> Law:
        count = sum(map(len, kept))
        return lambda ends: np.sum([np.searchsorted(part, ends, "right") for part in kept], axis=0) / count

    return law(parts), [law(parts[:left] + parts[left + 1 :]) for left in range(PARTS)]


def _fit(seconds: Floats, inputs: Sequence[Floats]) -> Callable[[Sequence[Floats]], Floats]:
    """Seconds as a sum of inputs, by least squares; never less than the least that was seen."""
    scales = [max(float(values.max()), 1.0) for values in inputs]

    def table(values: Sequence[Floats]) -> Floats:
        return np.column_stack([np.ones(len(values[0])), *(each / scale for each, scale in zip(values, scales, strict=True))])

    slopes, least_s = np.linalg.lstsq(table(inputs), seconds, rcond=None)[0], float(seconds.min())
    return lambda values: np.maximum(table(values) @ slopes, least_s)


def _ends(seconds: Floats) -> Floats:
    """Where strata end, of rising seconds: after those that are 0, then between fewer and fewer requests, never between equal
    ones; the last holds all that is longer."""
    count = len(seconds)
    firsts: list[int] = []
    idle = int(np.searchsorted(seconds, 0.0, "right"))
    first = count - 1
    while first > idle:
        firsts.append(first)
        first -= min(max(round(OF_LONGER * (count - first)), 1), MOST)
    places = np.array(firsts, dtype=np.int64)
    before, after = seconds[places - 1], seconds[places]
    between = (before + after)[after - before > EQUAL * after] / 2
    return np.unique(np.concatenate([np.zeros(1 if 0 < idle < count else 0), between]))
