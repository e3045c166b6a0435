"""Worth: what ways to draft gain on a scenario's own arrivals, by what the scenario is judged by.

That is the rule of `simulation.verdict`: goodput within the service level where one is stated, in a closed loop each user's rate
of output, else the time per output token. A level that tells nothing apart, as all or none meet it, leaves it to the times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.acceptance import AcceptanceLaw
from simulator.cost.spread import Estimate
from simulator.scenario import Scenario
from simulator.serving import paired_ratio, summarise
from simulator.serving.metrics import WARM_UP_FRACTION, Value, good_share, is_good
from simulator.serving.record import RequestRecords
from simulator.simulation import LEAST_EFFECT, Server, nearly_all, require_served, room_in_words
from simulator.simulation.paths import Paths
from simulator.spec import SpecError
from simulator.theory import student_t_quantile
from simulator.workload import ServiceLevel

PER_TOKEN = "mean time per output token"
END_TO_END = "mean end-to-end latency"
PER_USER = "output rate per user"
GOODPUT = "goodput"
Way = tuple[str, int | None]
"""A method and its fixed γ, None for its table; 0 = no speculation, of no method."""


@dataclass(frozen=True)
class Judge:
    """What is compared. time: of each request, of which less is better; None where each counts alike. service_level: the share of
    requests within it counts too. kept: a service level that leaves nothing to gain, and that what is chosen must not lose.
    remark: why it is not what the scenario states first."""

    scenario: Scenario
    metric: str
    time: Value | None
    service_level: ServiceLevel | None = None
    kept: ServiceLevel | None = None
    remark: str = ""

    def gain(self, better: RequestRecords, base: RequestRecords) -> float:
        """Above 1 where the first run is the better one; infinite where only it has requests within the service level.

        Raises `SpecError` where there is nothing to compare.
        """
        try:
            quicker = 1.0 if self.time is None else paired_ratio(base, better, self.time).ratio
            return quicker if self.service_level is None else quicker * self._more_good(better, base, self.service_level)
        except ValueError:
            must = "must let some requests finish at every γ and seed tried, or there is nothing to compare"
            raise SpecError([self.scenario.document.problem(("workload",), must)]) from None

    def _more_good(self, better: RequestRecords, base: RequestRecords, level: ServiceLevel) -> float:
        shares = good_share(better, level), good_share(base, level)
        if min(shares) == 0:
            return 0.0 if shares[1] > 0 else math.inf if shares[0] > 0 else 1.0
        return paired_ratio(better, base, lambda records: is_good(records, level).astype(float)).ratio

    def within(self, runs: Iterable[RequestRecords]) -> tuple[int, int]:
        """(requests within the service level, all of them) after warm-up; none where no level is judged."""
        if self.service_level is None:
            return 0, 0
        found = [is_good(run.admitted_by_arrival(), self.service_level) for run in runs]
        found = [good[int(WARM_UP_FRACTION * len(good)) :] for good in found]
        return int(sum(good.sum() for good in found)), sum(map(len, found))

    def worth(self, records: RequestRecords, plain: RequestRecords) -> float:
        """By which ways are ranked: the gain over `plain`; the share within the service level where nothing of `plain` is; of
        what leaves a level that is to be kept, how much of it."""
        gain = self.gain(records, plain)
        if self.kept is not None:
            left = good_share(records, self.kept) / good_share(plain, self.kept)
            return gain if left >= 1 - LEAST_EFFECT else min(gain, left)
        return gain if self.service_level is None or math.isfinite(gain) else good_share(records, self.service_level)


def judge_of(scenario: Scenario, plain: RequestRecords, runs: Sequence[RequestRecords]) -> Judge:
    """What the scenario states and can tell these runs apart: a service level that all requests or none meet whatever is drafted
    cannot, nor can the time per token of answers of one token."""
    arrivals, level = scenario.file.workload.arrivals, scenario.file.service_level
    think_s = arrivals.think_time_s or 0.0
    if arrivals.users is not None:
        by_time = Judge(scenario, PER_USER, lambda records: records.e2e_latency_s + think_s)
    elif np.isnan(plain.tpot_s).all():
        by_time = Judge(scenario, END_TO_END, lambda records: records.e2e_latency_s)
    else:
        by_time = Judge(scenario, PER_TOKEN, lambda records: records.tpot_s)
    if level is None:
        return by_time
    shares = [good_share(records, level) for records in (plain, *runs)]
    if max(shares) == 0:
        whole = by_time if arrivals.users is not None else Judge(scenario, END_TO_END, lambda records: records.e2e_latency_s)
        return replace(whole, remark="no request is within the service level, with any γ or without")
    if nearly_all(shares[0], len(plain)) and arrivals.users is None:
        within = f"{100 * shares[0]:.1f} % of the requests are within the service level without speculation"
        return replace(by_time, kept=level, remark=f"{within}, so that goodput has {room_in_words(shares[0])} to gain")
    return Judge(scenario, GOODPUT, by_time.time if arrivals.users is not None else None, level)


def records_of(
    servers: Mapping[Way, Server], scenario: Scenario, seed: int | None, told: Callable[[], None]
) -> dict[Way, RequestRecords]:
    """Of every way to serve, on the same requests. seed: None for the scenario's own. `told` is called after each run.

    Raises `SpecError` where the first of them serves none.
    """
    found: dict[Way, RequestRecords] = {}
    paths: dict[AcceptanceLaw, Paths] = {}  # of this seed: those that a server keeps are of its own
    for way, server in servers.items():
        file = server.scenario.file
        seeded = replace(server.scenario, file=file.model_copy(update={"seed": file.seed if seed is None else seed}))
        result = replace(server, scenario=seeded, _paths=paths).run(seeded.requests())
        if not found:
            require_served(scenario, summarise(result))
        found[way] = RequestRecords.of(result.records)
        told()
    return found


def held_out_gain(judge: Judge, pairs: Sequence[tuple[RequestRecords, RequestRecords]]) -> Estimate:
    """The first of each pair against the second: the mean over seeds, with Student's t; without bounds where a seed says nothing,
    as none of its requests is within the service level."""
    gains = [judge.gain(better, base) for better, base in pairs]
    if len(gains) < 2 or not all(0 < gain < math.inf for gain in gains):
        return Estimate(float(np.mean(gains)), 0.0, math.inf)
    logs = np.log(gains)
    mean = float(logs.mean())
    half = student_t_quantile(0.9, len(gains) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(gains))
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
