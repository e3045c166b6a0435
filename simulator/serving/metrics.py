"""What the records mean: latencies, rates, load, acceptance, goodput, and paired comparisons. Percentiles are exact."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.printed_numbers import significant
from simulator.serving.record import Floats, RequestRecord, RequestRecords, ServingResult, StepRecords
from simulator.theory import student_t_quantile
from simulator.workload import ServiceLevel

WARM_UP_FRACTION = 0.1
PERCENTILES = (50, 90, 95, 99)
# Of a time of a run, as a share of the latencies in it.
ROUNDING = 1e-9
Value = Callable[[RequestRecords], Floats]
"""Something of every record, (records,); NaN where a record has none."""
_LATENCIES: dict[str, Value] = {
    "queueing": lambda records: records.queueing_s,
    "ttft": lambda records: records.ttft_s,
    "tpot": lambda records: records.tpot_s,
    "e2e": lambda records: records.e2e_latency_s,
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and exact percentiles (linear between order statistics) of `count` values, in their unit."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float] | NDArray[np.float64]) -> Distribution | None:
        """None for no values.

        >>> Distribution.of([1.0, 2.0, 3.0]).p50
        2.0
        """
        data = np.fromiter(values, dtype=np.float64) if not isinstance(values, np.ndarray) else values
        if not data.size:
            return None
        return cls(int(data.size), float(data.mean()), *(float(value) for value in np.percentile(data, PERCENTILES)))

    @classmethod
    def of_repeated(cls, values: Floats, times: NDArray[np.int32]) -> Distribution | None:
        """The same of `values` of which each occurs so many `times`, at least once, without writing them out.

        >>> Distribution.of_repeated(np.array([1.0, 3.0]), np.array([3, 1])) == Distribution.of([1.0, 1.0, 1.0, 3.0])
        True
        """
        if not values.size:
            return None
        order = np.argsort(values)
        values, times = values[order], times[order]
        up_to = np.cumsum(times, dtype=np.int64)
        count = int(up_to[-1])
        place = np.array(PERCENTILES) / 100 * (count - 1)
        whole = np.floor(place)
        below = values[np.searchsorted(up_to, whole, "right")]
        above = values[np.searchsorted(up_to, np.minimum(whole + 1, count - 1), "right")]
        return cls(count, _weighted_sum(values, times) / count, *(below + (place - whole) * (above - below)).tolist())

    @classmethod
    def of_weighted(cls, values: Floats, weights: Floats) -> Distribution | None:
        """The same of values that count so much each: a percentile is the least that so much of all weight does not exceed.

        >>> Distribution.of_weighted(np.array([1.0, 3.0]), np.array([0.4, 1.6])).p50
        3.0
        """
        if not values.size:
            return None
        order = np.argsort(values)
        values, up_to = values[order], np.cumsum(weights[order])
        # The rounding of a sum must not ask for a value more.
        places = np.searchsorted(up_to, (1 - 1e-12) * up_to[-1] * np.array(PERCENTILES) / 100)
        return cls(len(values), _weighted_sum(values, weights[order]) / float(up_to[-1]), *values[places].tolist())


@dataclass(frozen=True, slots=True)
class Window:
    """The span over which rates are taken, and the requests whose latencies count."""

    start_s: float
    end_s: float
    measured: RequestRecords
    note: str

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def contains(self, time_s: Floats) -> NDArray[np.bool_]:
        return (self.start_s < time_s) & (time_s <= self.end_s)


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine was in the window. Means are over busy time, of one replica; None if none ever was busy.

    `mean_context_tokens` is per decoding sequence; `busy_share` is the part of busy time of each cost term, and
    `prefill_share` that of the terms whose names start with "prefill", `drafting_share` that of the other terms of steps in which
    anybody drafts; `peak_used_blocks` is over the whole run.
    """

    busy_fraction: float
    mean_running: float | None
    mean_decode_sequences: float | None
    mean_context_tokens: float | None
    mean_waiting: float | None
    mean_used_blocks: float | None
    peak_used_blocks: int
    busy_share: dict[str, float]
    prefill_share: float
    drafting_share: float


@dataclass(frozen=True, slots=True)
class AcceptanceCounts:
    """Acceptance as engines count it, over all finished requests.

    `mean_acceptance_length` is tokens per sequence-round, bonus included and before the cut at the end of the output;
    `mean_acceptance_length_with_drafts` leaves out rounds without a draft, as vLLM's metric does.
    """

    rounds: int
    draft_rounds: int
    drafted: int
    accepted: int

    @property
    def mean_acceptance_length(self) -> float | None:
        return _ratio(self.rounds + self.accepted, self.rounds)

    @property
    def mean_acceptance_length_with_drafts(self) -> float | None:
        return _ratio(self.draft_rounds + self.accepted, self.draft_rounds)

    @property
    def draft_acceptance_rate(self) -> float | None:
        return _ratio(self.accepted, self.drafted)


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers. `note` says which requests and which span of time they are taken over.

    `goodput_per_s` counts requests that finish in the window and meet every bound of the service level, per second;
    `good_fraction` is their part of those that finish or are given up in it. Both None without a service level.
    `cancelled`: given up by their clients; latencies are those of the others. `swaps`: preemptions that moved blocks to the host.
    `load`: where answers are decoded; `prefill_load`: of replicas that only compute prompts, None without any. kv_transfer_s:
    from the end of a prompt to its cache's being where it is decoded; kv_transfer_wait_s: the part of it in which nothing was
    sent, for want of blocks there or of the link.
    `prefix_hit_rate`: share of the tokens of prompts, those computed again after a preemption too, that the prefix cache held.
    """

    requests: int
    finished: int
    rejected: dict[str, int]
    cancelled: int
    preemptions: int
    swaps: int
    prefix_hit_rate: float | None
    measured: int
    queueing_s: Distribution | None
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    e2e_latency_s: Distribution | None
    itl_s: Distribution | None
    window_s: float
    requests_per_s: float
    output_tokens_per_s: float
    goodput_per_s: float | None
    good_fraction: float | None
    load: Load
    acceptance: AcceptanceCounts
    note: str
    prefill_load: Load | None = None
    kv_transfer_s: Distribution | None = None
    kv_transfer_wait_s: Distribution | None = None


def summarise(
    result: ServingResult, service_level: ServiceLevel | None = None, warm_up_fraction: float = WARM_UP_FRACTION
) -> Summary:
    """Everything about a run; with a service level also its goodput."""
    served = result.records.served_by_arrival()
    window = window_of(result.records, warm_up_fraction)
    latency = {name: Distribution.of(_present(value(window.measured))) for name, value in _LATENCIES.items()}
    done = served.take(window.contains(served.column("finish_s")))
    cancelled_s = result.records.column("cancelled_s")
    missed = int(window.contains(cancelled_s).sum())
    cached = int(result.records.column("cached_tokens").sum())
    good = None if service_level is None else int(is_good(done, service_level).sum())
    return Summary(
        requests=len(result.records),
        finished=len(served),
        rejected=dict(sorted(Counter(result.records.rejections()).items())),
        cancelled=int((~np.isnan(cancelled_s)).sum()),
        preemptions=int(result.records.column("preemptions").sum()),
        swaps=int(result.records.column("swaps").sum()),
        prefix_hit_rate=_ratio(cached, cached + float(result.steps.column("prefill_tokens").sum())),
        measured=len(window.measured),
        queueing_s=latency["queueing"],
        ttft_s=latency["ttft"],
        tpot_s=latency["tpot"],
        e2e_latency_s=latency["e2e"],
        itl_s=Distribution.of_repeated(*window.measured.gaps_s()),
        window_s=window.seconds,
        requests_per_s=_ratio(len(done), window.seconds) or 0.0,
        output_tokens_per_s=_ratio(_emitted_in(result.steps, window), window.seconds) or 0.0,
        goodput_per_s=None if good is None else _ratio(good, window.seconds) or 0.0,
        good_fraction=None if good is None else _ratio(good, len(done) + missed),
        load=load_in(result, window),
        acceptance=acceptance_counts(served),
        note=window.note + _given_up(int((~np.isnan(cancelled_s)).sum())),
        prefill_load=load_in(result, window, prefill=True) if result.prefill_replicas else None,
        kv_transfer_s=_transfers(result, window, "landed_s"),
        kv_transfer_wait_s=_transfers(result, window, "begin_s"),
    )


def _emitted_in(steps: StepRecords, window: Window) -> float:
    """Tokens of the steps that end in the window."""
    end_s = steps.column("start_s")
    end_s += steps.column("seconds")
    return float(steps.column("emitted")[window.contains(end_s)].sum())


def _transfers(result: ServingResult, window: Window, until: str) -> Distribution | None:
    """From the end of measured prompts until their caches begin to move, or land."""
    transfers = result.transfers
    if transfers is None:
        return None
    measured = np.isin(transfers.column("request_id"), window.measured.column("request_id"))
    seconds = transfers.column(until) - transfers.column("computed_s")
    return Distribution.of(np.maximum(seconds[measured], 0.0))


def _given_up(count: int) -> str:
    many = "requests were" if count > 1 else "request was"
    return f" {count:,} {many} given up by the client; latencies are of the others." if count else ""


def window_of(records: RequestRecords, warm_up_fraction: float = WARM_UP_FRACTION) -> Window:
    """Leaves out warm-up (the first requests) and drain (after the last arrival).

    Where fewer than a tenth of the requests finish in between, as when all arrive at once, nothing is left out.
    """
    served = records.served_by_arrival()
    if not len(served):
        return Window(0.0, 0.0, served, "No request was served.")
    measured = served[int(warm_up_fraction * len(served)) :]
    arrival_s, finish_s = served.column("arrival_s"), served.column("finish_s")
    start_s, end_s = float(arrival_s[-len(measured)]), float(records.column("arrival_s").max())
    note = (
        f"Latencies leave out the first {100 * warm_up_fraction:.0f} % of the requests (warm-up); gains compare the same "
        f"requests one by one. Rates and means over time are from {significant(start_s)} s, the first arrival after these, to "
        f"{significant(end_s)} s, the last one (no drain). Acceptance is over all requests."
    )
    window = Window(start_s, end_s, measured, note)
    if window.contains(finish_s).sum() >= max(1.0, 0.1 * len(served)):
        return window
    start_s, end_s = float(arrival_s[0]), float(finish_s.max())
    note = (
        "Nothing is left out, as few requests finish before the last arrival: "
        f"{significant(start_s)} s to {significant(end_s)} s, with drain."
    )
    return Window(start_s, end_s, served, note)


def load_in(result: ServingResult, window: Window, prefill: bool = False) -> Load:
    """Means over the part of each step that lies in the window, of replicas that decode or, with `prefill`, of the others."""
    steps = result.steps
    start_s, seconds = steps.column("start_s"), steps.column("seconds")
    # In place, as there may be millions of steps.
    weight = start_s + seconds
    np.minimum(weight, window.end_s, out=weight)
    weight -= np.maximum(start_s, window.start_s, out=start_s)
    np.maximum(weight, 0.0, out=weight)
    del start_s
    used_blocks, replicas = steps.column("used_blocks"), result.replicas
    if result.prefill_replicas and result.replica_of_step is not None:
        decoding = result.replicas - result.prefill_replicas
        theirs = (result.replica_of_step >= decoding) == prefill
        weight, used_blocks = weight * theirs, used_blocks[theirs]
        replicas = result.prefill_replicas if prefill else decoding
    busy_s, decoding_s = float(weight.sum()), _weighted_sum(steps.column("decode_sequences"), weight)
    in_window = np.divide(weight, seconds, out=seconds, where=seconds > 0)
    busy_share = {name: _weighted_sum(steps.term(name), in_window) / busy_s for name in steps.term_names} if busy_s > 0 else {}
    prompts = [name for name in busy_share if name.startswith("prefill")]
    drafting = steps.column("drafted") > 0
    beside_s = math.fsum(_weighted_sum(steps.term(name), in_window * drafting) for name in prompts)

    def mean(name: str) -> float | None:
        return _ratio(_weighted_sum(steps.column(name), weight), busy_s)

    return Load(
        busy_fraction=_ratio(busy_s, window.seconds * replicas) or 0.0,
        mean_running=mean("running"),
        mean_decode_sequences=mean("decode_sequences"),
        mean_context_tokens=_ratio(_weighted_sum(steps.column("context_tokens"), weight), decoding_s),
        mean_waiting=mean("waiting"),
        mean_used_blocks=mean("used_blocks"),
        peak_used_blocks=int(used_blocks.max(initial=0)),
        busy_share=busy_share,
        prefill_share=math.fsum(busy_share[name] for name in prompts),
        drafting_share=max((float(weight[drafting].sum()) - beside_s) / busy_s, 0.0) if busy_s > 0 else 0.0,
    )


def acceptance_counts(records: RequestRecords) -> AcceptanceCounts:
    """The counters of all `records` together."""
    return AcceptanceCounts(*(int(records.column(name).sum()) for name in ("rounds", "draft_rounds", "drafted", "accepted")))


# ------------------------------------------------------------------------------------------------------- service level


def above(latency_s: Floats, limit_s: float) -> NDArray[np.bool_]:
    """Which latencies exceed a limit by more than the rounding of the times that they lie between; none where there is none."""
    exceeding: NDArray[np.bool_] = latency_s > (1 + ROUNDING) * limit_s
    return exceeding


def is_good(records: RequestRecords, service_level: ServiceLevel) -> NDArray[np.bool_]:
    """Which requests finished and themselves meet every stated limit, whatever its percentile.

    A one-token output has no TPOT, so it meets any limit on it.
    """
    good: NDArray[np.bool_] = ~np.isnan(records.column("finish_s"))
    for metric, _, limit_s in service_level.limits():
        good &= ~above(_LATENCIES[metric](records), limit_s)
    return good


def good_share(records: RequestRecords, service_level: ServiceLevel) -> float:
    """Share of the requests after warm-up that finish within the service level."""
    served = records.admitted_by_arrival()
    good = is_good(served, service_level)[int(WARM_UP_FRACTION * len(served)) :]
    return float(good.mean()) if len(good) else 0.0


def unmet_limits(summary: Summary, service_level: ServiceLevel) -> dict[str, tuple[float, float]]:
    """The limits that the run's percentiles exceed: name → (seconds reached, limit). What no request has exceeds nothing."""
    distributions = {"ttft": summary.ttft_s, "tpot": summary.tpot_s, "e2e": summary.e2e_latency_s}
    unmet = {}
    for metric, percentile, limit_s in service_level.limits():
        distribution = distributions[metric]
        reached_s = limit_s if distribution is None else float(getattr(distribution, f"p{percentile:.0f}"))
        if reached_s > limit_s:
            unmet[f"{metric}_p{percentile:.0f}_s"] = (reached_s, limit_s)
    return unmet


# ---------------------------------------------------------------------------------------------------- paired comparison


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """A ratio of means over the same requests in two runs, with an 80 % interval."""

    ratio: float
    low: float
    high: float
    requests: int


def paired_ratio(
    records_a: Iterable[RequestRecord],
    records_b: Iterable[RequestRecord],
    value: Value,
    *,
    batches: int = 25,
    warm_up_fraction: float = WARM_UP_FRACTION,
    level: float = 0.8,
) -> PairedRatio:
    """mean(value in a) / mean(value in b) over requests that have a value in both, after warm-up.

    Requests near each other in time share their queue, so they are not independent: the interval is a jackknife of the log
    ratio over `batches` runs of consecutive arrivals, with Student's t. In a closed loop the ratio of request rates is that
    of mean (end to end + think time), inverted. Raises ValueError where no request has a positive value in both.
    """
    served, others = RequestRecords.of(records_a).admitted_by_arrival(), RequestRecords.of(records_b).sorted_by_id()
    known, wanted = others.column("request_id"), served.column("request_id")
    place = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    pairs = np.full((len(served), 2), math.nan)
    if len(known):
        pairs = np.stack((value(served), np.where(known[place] == wanted, value(others)[place], math.nan)), axis=1)
    pairs = pairs[~np.isnan(pairs).any(axis=1)]
    pairs = pairs[int(warm_up_fraction * len(pairs)) :]
    total = pairs.sum(axis=0)
    if not (len(pairs) and (total > 0).all()):
        raise ValueError("no positive value in both runs to compare")
    ratio = float(total[0] / total[1])
    batches = min(batches, len(pairs))
    without = total - np.array([batch.sum(axis=0) for batch in np.array_split(pairs, batches)])
    if batches < 2 or (without <= 0).any():
        return PairedRatio(ratio, 0.0, math.inf, len(pairs))
    log_ratios = np.log(without[:, 0] / without[:, 1])
    standard_error = math.sqrt((batches - 1) * float(log_ratios.var()))
    half = student_t_quantile(0.5 + level / 2, batches - 1) * standard_error
    return PairedRatio(ratio, ratio * math.exp(-half), ratio * math.exp(half), len(pairs))


# -------------------------------------------------------------------------------------------------------------- helpers


def _present(values: Floats) -> Floats:
    return values[~np.isnan(values)]


def _weighted_sum(values: NDArray[Any], weights: NDArray[Any]) -> float:
    """Not by `@`: for long arrays that wakes a thread on every core, which spins on, and their number decides how sums round."""
    return float((values * weights).sum())


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None
