"""The highest rate that a server sustains within a service level: bisection on paired streams, with an interval.

Arrivals are one stream at a mean rate of one a second, compressed to the rate in question; lengths and acceptance belong to the
request. Every rate and every variant thus sees the same requests in the same order, so that differences are not chance. Rates
lie on one grid (steps of 0.5 %). A rate is sustained where, over all repetitions together, the share of requests above each
limit is at most what its percentile allows; how sure that share is, means of consecutive requests say (batch means, and how
alike neighbours among them are). A rate above what the saturated server finishes is never sustained, however short the run. Near
saturation queues settle slowly, and a run that starts empty sees too little of them: no rate is surely sustained at which a run
lasts too few relaxation times of its queue, unless requests are weighted by a law that knows what was not seen (`sample`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from simulator.cost.spread import Z80, Estimate
from simulator.printed_numbers import significant
from simulator.questions.plain_queue import PlainQueue, Strata
from simulator.questions.sample import BATCHES, Flags, Sample
from simulator.serving import Distribution, RequestRecords, ServingResult
from simulator.serving.metrics import WARM_UP_FRACTION, Window, above, is_good, load_in, window_of
from simulator.theory import student_t_quantile
from simulator.workload import Request, ServiceLevel

STEP = 1.005
# The bracket below saturation is this wide; where nothing in it is sustained, the next ones are tried.
BRACKET, BRACKETS = 4.0, 4
# Fewest requests above a percentile on which the percentile may rest, and fewest mean latencies that a run must last.
FEWEST_ABOVE, FEWEST_LATENCIES = 10, 5
# Of the share that a limit allows, so small a part may wait longer than any request that was seen: one over this.
FEWEST_UNSEEN = 2
# Fewest relaxation times of the queue that a repetition must last.
FEWEST_RELAXATIONS = 10
# Repetitions that every rate sees. More see it only where these leave in doubt whether it is sustained, as some share is within
# so many standard errors of what is allowed.
FIRST, DECIDED = 4, 4.5
# Least standard errors of a share, in those of independent requests.
SURE, SURE_WEIGHTED = 2.0, 0.3
# Widest interval, high over low end, of a rate that counts as known.
WIDEST_RATE = 1.2
# Ends of the interval are searched no farther than this factor from the rate, and to within so many steps of the grid.
WIDEST_END, END_STEPS = 1.25, 4

Serve = Callable[[tuple[Request, ...]], ServingResult]

# Metrics that count the wait for a slot.
WAITING = ("ttft", "e2e")
_RECORDED = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_latency_s"}
_WRITTEN = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end"}


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `allowed` of the requests may exceed it. metric: ``ttft``, ``tpot``, ``e2e``, or ``good``: requests that meet every
    limit. name: ``TTFT p99``, or ``good requests``."""

    metric: str
    name: str
    allowed: float
    exceeds: Callable[[RequestRecords], Flags] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Exceeded:
    """The share of requests above a limit, and its standard error by batch means."""

    limit: Limit
    share: float
    standard_error: float
    requests: int

    def within(self, z: float) -> bool:
        """Whether the share, raised by z standard errors, is allowed."""
        return self.share + z * self.standard_error <= self.limit.allowed

    def far(self, side: int, weighted: bool) -> bool:
        """Whether the share is `DECIDED` standard errors above what is allowed (side 1), or below it (-1). A sample in which few
        exceed says little of its error, as queues come together: it is not taken as less than that of fewer requests that are
        independent, or of more where they are weighted."""
        allowed = self.limit.allowed
        least = (SURE_WEIGHTED if weighted else SURE) * math.sqrt(allowed * (1 - allowed) / max(self.requests, 1))
        return side * (self.share - allowed) > DECIDED * max(self.standard_error, least)


@dataclass(frozen=True)
class LoadPoint:
    """One rate, so many repetitions together. Latencies of measured requests; busy_fraction, batch, context: of one replica.
    prefill_share, drafting_share: as in `serving.metrics.Load`.

    window_s: the mean span over which a repetition was measured. unseen_waits: the share of requests, once queues have settled,
    that wait as long as the longest that were seen or longer; 1 where that is not known.
    """

    rate_per_s: float
    sustained: bool
    exceeded: tuple[Exceeded, ...]
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    e2e_latency_s: Distribution | None
    good_share: float | None
    output_tokens_per_s: float
    busy_fraction: float
    prefill_share: float
    drafting_share: float
    mean_batch: float
    mean_context_tokens: float
    preemptions: int
    window_s: float
    repetitions: int
    unseen_waits: float = 1.0

    def surely(self, z: float) -> bool:
        """Whether the service level is met with every share raised by z standard errors."""
        return all(each.within(z) for each in self.exceeded)

    @property
    def decided(self) -> bool:
        """Whether more repetitions could not change what is sustained: all shares are far within, or one is far beyond."""
        weighted = self.weighted
        if weighted and not self.settled:
            return False
        return all(each.far(-1, weighted) for each in self.exceeded) or any(each.far(1, weighted) for each in self.exceeded)

    @property
    def weighted(self) -> bool:
        """Whether requests are weighted by the law of their waits."""
        return self.unseen_waits < 1

    @property
    def settled(self) -> bool:
        """Whether waits as long as they are once queues have settled were seen, as far as any limit asks."""
        return all(FEWEST_UNSEEN * self.unseen_waits <= each.limit.allowed for each in self.exceeded)

    @property
    def binding(self) -> str:
        """The limit that is nearest to being exceeded, or exceeded most."""
        worst = max(self.exceeded, key=lambda each: each.share / each.limit.allowed, default=None)
        return "" if worst is None else worst.limit.name


@dataclass(frozen=True)
class Sustained:
    """The answer for one variant: None where no rate is sustained. limited_by: a limit's name, or ``saturation``.

    points: every rate that was simulated, rising. doubts: why the run may be too short to tell.
    """

    rate: Estimate | None
    limited_by: str
    points: tuple[LoadPoint, ...]
    doubts: tuple[str, ...]

    @property
    def at_rate(self) -> LoadPoint | None:
        """The point of the answer."""
        return None if self.rate is None else next((p for p in self.points if p.rate_per_s == self.rate.value), None)


def unit_stream(requests: Sequence[Request], first_id: int) -> tuple[Request, ...]:
    """The same requests from time 0 at a mean rate of one a second, with ids from `first_id` on. Needs two arrival times."""
    ids = {request.request_id: first_id + index for index, request in enumerate(requests)}
    start_s, span_s = requests[0].arrival_s, requests[-1].arrival_s - requests[0].arrival_s
    scale = (len(requests) - 1) / span_s
    return tuple(
        replace(
            request,
            request_id=ids[request.request_id],
            arrival_s=(request.arrival_s - start_s) * scale,
            follows=None if request.follows is None else ids[request.follows],
        )
        for request in requests
    )


def at_rate(stream: Sequence[Request], rate_per_s: float) -> tuple[Request, ...]:
    """A unit-rate stream compressed to a rate."""
    return tuple(replace(request, arrival_s=request.arrival_s / rate_per_s) for request in stream)


def limits_of(level: ServiceLevel | None, good_share: float | None) -> tuple[Limit, ...]:
    """Everything that a sustained rate must meet; a good share needs a level."""
    if level is None:
        return ()

    def exceeds(metric: str, limit_s: float) -> Callable[[RequestRecords], Flags]:
        return lambda records: above(getattr(records, _RECORDED[metric]), limit_s)

    found = [
        Limit(name, f"{_WRITTEN[name]} p{p:.0f}", 1 - p / 100, exceeds(name, limit_s)) for name, p, limit_s in level.limits()
    ]
    if good_share is not None:
        found.append(Limit("good", "good requests", 1 - good_share, lambda records: ~is_good(records, level)))
    return tuple(found)


@dataclass
class RateSearch:
    """The search for one variant. serve: every request of a stream to its end; streams: the repetitions, at unit rate."""

    serve: Serve
    streams: Sequence[tuple[Request, ...]]
    level: ServiceLevel | None
    good_share: float | None
    saturation_per_s: float
    saturation_log_std: float = 0.0
    queue: PlainQueue | None = None
    advance: Callable[[], None] = lambda: None
    _points: dict[int, LoadPoint] = field(default_factory=dict, init=False)

    def run(self) -> Sustained:
        """The largest sustained rate of the grid with its 80 % interval."""
        top = math.floor(math.log(self.saturation_per_s) / math.log(STEP))
        found, limited_by = self._largest(top), "saturation"
        if found is None:
            point = self._points[min(self._points)]
            return Sustained(None, point.binding, self._rising(), ())
        if found < top:
            limited_by = self._point(found + 1).binding
        rate = self._interval(found, top)
        doubts = tuple(self._doubts(self._points[found], rate)) if self.limits else ()
        return Sustained(rate, limited_by, self._rising(), doubts)

    # ---------------------------------------------------------------------------------------------------------- search

    def _largest(self, top: int) -> int | None:
        """The largest sustained place on the grid up to `top`, by bisection in brackets that do not depend on the limits: so a
        tighter service level cannot find a higher rate."""
        if self._point(top).sustained:
            return top
        width = math.ceil(math.log(BRACKET) / math.log(STEP))
        high = top
        for _ in range(BRACKETS):
            low = high - width
            if self._point(low).sustained:
                return self._bisect(low, high, lambda point: point.sustained, 1)
            high = low
        return None

    def _bisect(self, low: int, high: int, holds: Callable[[LoadPoint], bool], resolution: int) -> int:
        """The largest place where it holds, which it does at `low` and does not at `high`."""
        while high - low > resolution:
            middle = (low + high) // 2
            if holds(self._point(middle)):
                low = middle
            else:
                high = middle
        return low

    def _interval(self, found: int, top: int) -> Estimate:
        """From where the level is met surely to where it may still be met, each with 90 %, to within 2 %; saturation has its own
        doubt."""
        z = student_t_quantile(0.9, max(BATCHES * len(self.streams) - 1, 1))
        width = math.ceil(math.log(WIDEST_END) / math.log(STEP))
        low, high = found - width, min(found + width, top)
        if self._point(found).surely(z):
            low = found - 1
        elif self._point(low).surely(z):
            low = self._bisect(low, found, lambda point: point.surely(z), END_STEPS)
        if high > found and not self._point(high).surely(-z):
            high = min(self._bisect(found, high, lambda point: point.surely(-z), END_STEPS) + END_STEPS, high)
        if not self._points[found].settled:
            low = min(low, math.floor(math.log(self.settled_per_s) / math.log(STEP)))
        spread = math.exp(Z80 * self.saturation_log_std) if high == top else 1.0
        return Estimate(STEP**found, STEP ** min(low, found) / (spread if found == top else 1.0), STEP**high * spread)

    # ------------------------------------------------------------------------------------------------------------ runs

    @cached_property
    def settled_per_s(self) -> float:
        """The highest rate at which a repetition is long enough for its queue: `FEWEST_RELAXATIONS` relaxation times, each of
        2 (ρ / (1 - ρ))² c² requests for a load of ρ and gaps between arrivals of squared coefficient of variation c² (reflected
        Brownian motion, Abate and Whitt 1987, service taken as even)."""
        gaps = np.concatenate([np.diff([request.arrival_s for request in stream]) for stream in self.streams])
        longest = min(map(len, self.streams)) / FEWEST_RELAXATIONS
        return self.saturation_per_s / (1 + math.sqrt(2 * float(np.var(gaps) / np.mean(gaps) ** 2) / longest))

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        return limits_of(self.level, self.good_share)

    def _rising(self) -> tuple[LoadPoint, ...]:
        return tuple(self._points[place] for place in sorted(self._points))

    def _point(self, place: int) -> LoadPoint:
        """The run at a place of the grid, made once."""
        found = self._points.get(place)
        if found is None:
            found = self._points[place] = self.simulated(STEP**place)
            self.advance()
        return found

    def simulated(self, rate_per_s: float) -> LoadPoint:
        """Repetitions at one rate, on the grid or not: the first ones, and all where these leave in doubt what is sustained."""
        results = [self.serve(at_rate(stream, rate_per_s)) for stream in self.streams[:FIRST]]
        point = self._measured(results, rate_per_s)
        if point.decided or len(results) == len(self.streams):
            return point
        results += [self.serve(at_rate(stream, rate_per_s)) for stream in self.streams[FIRST:]]
        return self._measured(results, rate_per_s)

    def _measured(self, results: Sequence[ServingResult], rate_per_s: float) -> LoadPoint:
        """What these repetitions say together."""
        windows = [window_of(result.records) for result in results]
        strata = self._strata(results, windows, rate_per_s)
        measured = Sample(tuple(window.measured for window in windows), strata or {})
        asked = replace(measured, runs=tuple(map(_with_given_up, results, measured.runs)))
        exceeded = tuple(Exceeded(limit, *asked.share(limit.metric, limit.exceeds)) for limit in self.limits)
        if strata is None:  # a short run sees little of a line that grows and grows: all will wait too long
            counted = any(limit.metric in WAITING for limit in self.limits)
            waits = (*WAITING, "good") if counted else WAITING
            exceeded = tuple(replace(each, share=1.0) if each.limit.metric in waits else each for each in exceeded)
        loads = [load_in(result, window) for result, window in zip(results, windows, strict=True)]
        level = self.level
        good = None if level is None else 1 - asked.share("good", lambda records: ~is_good(records, level))[0]
        tokens = sum(int(window.measured.column("output_tokens").sum()) for window in windows)
        seconds = sum(window.seconds for window in windows)
        refused = sum(len(result.records.rejections()) for result in results) / sum(len(result.records) for result in results)

        def mean(values: Sequence[float | None]) -> float:
            return float(np.mean([value or 0.0 for value in values]))

        return LoadPoint(
            rate_per_s=rate_per_s,
            sustained=all(each.within(0.0) for each in exceeded),
            exceeded=exceeded,
            ttft_s=measured.distribution("ttft", lambda records: records.ttft_s),
            tpot_s=measured.distribution("tpot", lambda records: records.tpot_s),
            e2e_latency_s=measured.distribution("e2e", lambda records: records.e2e_latency_s),
            good_share=good,
            output_tokens_per_s=(1 - refused) * rate_per_s * tokens / max(sum(map(len, measured.runs)), 1),
            busy_fraction=mean([load.busy_fraction for load in loads]),
            prefill_share=mean([load.prefill_share for load in loads]),
            drafting_share=mean([load.drafting_share for load in loads]),
            mean_batch=mean([load.mean_decode_sequences for load in loads]),
            mean_context_tokens=mean([load.mean_context_tokens for load in loads]),
            preemptions=sum(int(result.records.column("preemptions").sum()) for result in results),
            window_s=seconds / len(windows),
            repetitions=len(results),
            unseen_waits=max((strata.longest for strata in measured.strata.values()), default=1.0),
        )

    def _strata(
        self, results: Sequence[ServingResult], windows: Sequence[Window], rate_per_s: float
    ) -> Mapping[str, Strata] | None:
        """Of the measured requests; none without a plain queue, or where not every request was served to its end; None where that
        queue would hardly settle."""
        served = [result.records.served_by_arrival() for result in results]
        if self.queue is None or any(len(each) < len(result.records) for each, result in zip(served, results, strict=True)):
            return {}
        return self.queue.strata(served, [len(window.measured) for window in windows], rate_per_s)

    def _doubts(self, point: LoadPoint, rate: Estimate) -> Sequence[str]:
        """Why the runs are too short to tell, if they are."""
        found = []
        for each in point.exceeded:
            above = each.limit.allowed * each.requests
            if above < FEWEST_ABOVE:
                found.append(
                    f"too short to tell: {each.limit.name} of {each.requests} measured requests rests on the slowest {above:.3g}"
                )
        latency_s = point.e2e_latency_s.mean if point.e2e_latency_s is not None else 0.0
        if point.window_s < FEWEST_LATENCIES * latency_s:
            found.append(
                f"too short to tell: a run of {significant(point.window_s)} s is less than {FEWEST_LATENCIES} mean end-to-end "
                f"latencies of {significant(latency_s)} s, so that queues have not settled"
            )
        if rate.value > self.settled_per_s and not point.settled:
            load = point.rate_per_s / self.saturation_per_s
            found.append(
                f"too short to tell: at {100 * load:.0f} % of saturation a queue settles over more requests than the "
                f"{min(map(len, self.streams)):,} of a run; below {significant(self.settled_per_s)} requests per second it does"
            )
        if rate.high > WIDEST_RATE * rate.low:
            found.append(f"too short to tell closely: the interval spans more than a factor of {WIDEST_RATE:g}")
        return found


def _with_given_up(result: ServingResult, measured: RequestRecords) -> RequestRecords:
    """The measured requests, and those that their clients gave up meanwhile: they met no limit."""
    given_up = ~np.isnan(result.records.column("cancelled_s"))
    if not given_up.any():
        return measured
    ended = np.flatnonzero(given_up | ~np.isnan(result.records.column("finish_s")))
    by_arrival = ended[np.argsort(result.records.column("arrival_s")[ended], kind="stable")]
    return result.records.take(by_arrival[int(WARM_UP_FRACTION * len(by_arrival)) :])
