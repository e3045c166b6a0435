"""capacity: the highest request rate within the service level, without speculation and with each way of drafting; and the fleet
that a demand then needs.

Every variant is estimated by means first (`mean_load`); the most promising ones are simulated (`sustained`). Both are shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

import numpy as np

from simulator.cost.spread import Z80, Estimate
from simulator.cost.uncertainty import UncertainPricer
from simulator.cost.unmeasured import unmeasured_note
from simulator.planning import Copy, Fleet, PlanningSpec
from simulator.printed_numbers import significant
from simulator.questions.mean_load import MeanLoad, mean_load
from simulator.questions.plain_queue import DRAWN, plain_queue
from simulator.questions.sustained import RateSearch, Sustained, unit_stream
from simulator.scenario import Scenario
from simulator.simulation import (
    Progress,
    Server,
    Verdict,
    at_worse_end,
    chosen,
    saturation_of,
    speculative_servers,
    verdict_of,
)
from simulator.spec import SpecError
from simulator.workload import Request, RequestTrace, lengths_by_law, requests_of

# Repetitions: no fewer, no more, and between them as many as take so many rounds at one rate.
FEWEST_REPETITIONS, MOST_REPETITIONS, ROUNDS_OF_ALL = 4, 16, 2_000_000
# Ways of drafting that are simulated, beside none; others within this share of the best estimate are not left out.
FINALISTS = 4
NEAR = 0.95
# About as many rates as a search looks at.
EVALUATIONS = 18
# Requests with short answers are quick to simulate, and more are drawn than the scenario states: rounds that one run may take,
# and rounds that are as much work as all the rest of a request. So are requests that few slots serve, however long they are:
# their rounds are simulated many at a time.
ROUNDS, REST_ROUNDS, FEW_SLOTS, OF_FEW_SLOTS = 25_000, 5, 64, 2_000
# Requests that stand for all, and choices of them that are tried.
TYPICAL, TRIED = 400, 1_000
# Fewer requests of differing lengths are no sample of a workload.
FEWEST_REQUESTS = 50
PLAIN = "no speculation"


@dataclass(frozen=True)
class CapacityRow:
    """One variant. analytic: by means, None where not even one sequence at a time meets the level. sustained: by simulation, None
    where the estimate left it out. gain: sustained rate over that without speculation. fleet: None where nothing is sustained."""

    label: str
    server: Server = field(compare=False, repr=False)
    devices: int
    analytic: MeanLoad | None
    saturation: Estimate | None
    sustained: Sustained | None
    gain: Estimate | None = None
    verdict: Verdict | None = None
    fleet: Fleet | None = None

    @property
    def rate_per_s(self) -> float | None:
        """The sustained rate, where one was found."""
        return None if self.sustained is None or self.sustained.rate is None else self.sustained.rate.value


@dataclass(frozen=True)
class CapacityAnswer:
    """The answer. rows: no speculation first. own_rate_per_s: of the scenario's own arrivals.

    mean_prompt_tokens, mean_output_tokens: of its requests. requests, repetitions: of each simulated rate. planning: with flags
    applied.
    """

    scenario: Scenario
    planning: PlanningSpec
    rows: tuple[CapacityRow, ...]
    own_rate_per_s: float
    demand_per_s: float
    mean_prompt_tokens: float
    mean_output_tokens: float
    requests: int
    repetitions: int
    warnings: tuple[str, ...]

    @property
    def plain(self) -> CapacityRow:
        return self.rows[0]

    @property
    def drafting(self) -> CapacityRow | None:
        """The way to draft to take: of those within 3 % of the most the one of fewest rows, as `simulation.chosen` has it; of one
        with open acceptance the end of the band that carries less counts. None where none sustains any rate."""
        simulated = [row for row in self.rows[1:] if row.sustained is not None]
        worst = at_worse_end(simulated, lambda row: row.server.drafting, lambda row: row.rate_per_s or 0.0)
        found, plain = [row for row in worst if row.rate_per_s is not None], self.plain.rate_per_s
        return chosen(found, lambda row: (row.rate_per_s or 0.0) / (plain or 1e-9), lambda row: row.server.shape.nodes)

    @property
    def best(self) -> CapacityRow | None:
        """The row with the highest sustained rate; None where no rate is sustained."""
        found = [row for row in (self.plain, self.drafting) if row is not None and row.rate_per_s is not None]
        return max(found, key=lambda row: row.rate_per_s or 0.0, default=None)


def capacity(
    scenario: Scenario,
    planning: PlanningSpec | None = None,
    *,
    repetitions: int | None = None,
    finalists: int = FINALISTS,
    progress: Progress | None = None,
) -> CapacityAnswer:
    """The sustainable rates and fleets of a scenario, whose `planning` section `planning` replaces.

    repetitions: independent runs at a rate, at most; left out, as many as are quick. What four decide has no more.

    Raises `SpecError` for a closed loop, requests that arrive at one time, or a good share without a service level.
    """
    planning = planning or scenario.file.planning
    _check(scenario, planning)
    own = scenario.requests()
    streams = _streams(scenario, repetitions, own)
    typical = _typical(scenario, own, streams)
    own_rate = (len(own) - 1) / (own[-1].arrival_s - own[0].arrival_s)
    warnings = [*scenario.remarks, *_too_few(typical), *_of_kinds(scenario, planning)]
    variants = [(PLAIN, Server.of(scenario)), *speculative_servers(scenario, warnings)]
    warnings += [note for _, server in variants for note in unmeasured_note(server.deployment)]
    analytic = [_by_means(server, typical) for _, server in variants]
    warnings += _refused([server for _, server in variants], typical)
    chosen = _finalists(analytic, [server for _, server in variants], finalists)
    rows: list[CapacityRow] = []
    for index, (label, server) in enumerate(variants):
        row = CapacityRow(label, server, _devices(server), analytic[index], None, None)
        if index in chosen:
            row = _simulated(row, server, streams, planning, rows[0] if rows else None, typical, progress)
        rows.append(row)
    prompt, output = (
        sum(getattr(r, name) for stream in streams for r in stream) / sum(map(len, streams))
        for name in ("prompt_tokens", "output_tokens")
    )
    demand = planning.demand(own_rate)
    planned = tuple(_with_fleet(row, server, planning, demand, output) for row, (_, server) in zip(rows, variants, strict=True))
    return CapacityAnswer(
        scenario,
        planning,
        planned,
        own_rate,
        demand,
        prompt,
        output,
        len(streams[0]),
        len(streams),
        tuple(dict.fromkeys(warnings)),
    )


def _check(scenario: Scenario, planning: PlanningSpec) -> None:
    document, workload = scenario.document, scenario.file.workload
    if workload.arrivals.process == "closed_loop":
        must = "must be an open loop: users who wait for their answers set the rate themselves"
        raise SpecError([document.problem(("workload", "arrivals", "process"), must, "closed_loop")])
    if planning.good_share is not None and scenario.file.service_level is None:
        raise SpecError([document.problem(("service_level",), "must be given beside planning.good_share: it says what is good")])
    own = scenario.requests()
    if own[-1].arrival_s <= own[0].arrival_s:
        raise SpecError([document.problem(("workload", "arrivals"), "must spread over time: all requests arrive at once")])


def _too_few(requests: Sequence[Request]) -> Iterator[str]:
    """A saturated server serves the workload's requests over and over: its interval holds no doubt of their lengths."""
    if len(requests) < FEWEST_REQUESTS and len({(r.prompt_tokens, r.output_tokens) for r in requests}) > 1:
        yield f"too short to tell: {len(requests)} request{'s' if len(requests) > 1 else ''} say little of the lengths to come"


def _of_kinds(scenario: Scenario, planning: PlanningSpec) -> Iterator[str]:
    """What is taken as equal of devices that are not."""
    kinds = {hardware.profile_id for hardware, _ in scenario.hardware_counts(scenario.deployment)}
    if planning.price_per_gpu_hour is not None and len(kinds) > 1:
        yield "price_per_gpu_hour is taken for every device, whatever its kind: give their mean"
    if scenario.prefill is not None:
        yield "J/token takes devices that compute prompts to be as busy as those that decode"


def _streams(scenario: Scenario, repetitions: int | None, own: Sequence[Request]) -> list[tuple[Request, ...]]:
    """Independent repetitions of the workload at unit rate, of as many requests as it states and more where they are quick:
    waits of an almost saturated server, or of its slowest hundredth, need many. A recorded trace is one, as it is: again it
    would be the same requests, and agreement with itself no sign of certainty. Where the rate changes with time, more requests
    would be another course of it: more of what comes after a ramp, or more days."""
    workload, seed = scenario.file.workload, scenario.file.seed
    if isinstance(scenario.source, RequestTrace):
        return [unit_stream(requests_of(workload, seed, scenario.source), 0)]
    rounds = REST_ROUNDS + sum(request.output_tokens for request in own) / len(own)
    queue = plain_queue(Server.of(scenario))
    few = queue is not None and queue.lines * queue.slots <= FEW_SLOTS
    affordable = OF_FEW_SLOTS if few else int(ROUNDS / rounds)
    number = len(own) if workload.arrivals.changes else max(len(own), affordable)
    if repetitions is None:
        repetitions = min(max(int(ROUNDS_OF_ALL / (rounds * number)), FEWEST_REPETITIONS), MOST_REPETITIONS)
    workload = workload.model_copy(update={"num_requests": number})
    drawn = [requests_of(workload, (seed + index) % 2**32, scenario.source) for index in range(repetitions)]
    return [unit_stream(requests, index * number) for index, requests in enumerate(drawn)]


def _typical(scenario: Scenario, own: tuple[Request, ...], streams: Sequence[tuple[Request, ...]]) -> tuple[Request, ...]:
    """Requests for a saturated server to serve over and over: of all that were drawn some whose mean lengths are those of the
    workload's law, however heavy its tails. The scenario's own where that has no law, or sessions."""
    workload = scenario.file.workload
    if isinstance(scenario.source, RequestTrace) or workload.sessions is not None:
        return own
    prompts, outputs = lengths_by_law(workload, DRAWN, scenario.source)
    means = np.array([prompts.mean(), outputs.mean()])
    drawn = list(chain(*streams))
    lengths = np.array([(request.prompt_tokens, request.output_tokens) for request in drawn])
    rng = np.random.default_rng([scenario.file.seed, *b"typical"])
    tried = rng.integers(len(drawn), size=(TRIED, min(TYPICAL, len(drawn))))
    off = np.abs(lengths[tried].mean(axis=1) / means - 1).max(axis=1)
    return tuple(drawn[place] for place in tried[off.argmin()])


def _by_means(server: Server, requests: Sequence[Request]) -> MeanLoad | None:
    refusals = [server.refusal(request) for request in requests]
    served = [request for request, reason in zip(requests, refusals, strict=True) if not reason]
    if not served:
        why = ", ".join(f"{number} {reason}" for reason, number in Counter(refusals).items())
        raise SpecError([server.scenario.document.problem(("workload",), f"must hold requests that can be served: {why}")])
    load = mean_load(server, served)
    return None if load is None else replace(load, rate_per_s=load.rate_per_s / _served_share(server, requests))


def _served_share(server: Server, requests: Sequence[Request]) -> float:
    """The share of requests that are not refused on arrival: a rate counts all that ask."""
    return sum(not server.refusal(request) for request in requests) / len(requests)


def _refused(servers: Sequence[Server], requests: Sequence[Request]) -> Iterator[str]:
    """That a rate counts requests which no replica can ever serve."""
    by_server = [[server.refusal(request) for request in requests] for server in servers]
    refusals = max(by_server, key=lambda each: sum(map(bool, each)))
    reasons = Counter(reason for reason in refusals if reason)
    if reasons:
        share, why = 100 * reasons.total() / len(requests), ", ".join(reasons)
        yield f"{significant(share, 2)} % of the requests are refused on arrival ({why}): rates and demand count them too"


def _finalists(analytic: Sequence[MeanLoad | None], servers: Sequence[Server], finalists: int) -> set[int]:
    """No speculation, the best estimates, all that come near the best, and the best of each method; where acceptance is open,
    both ends of its band."""
    rates = {index: load.rate_per_s if load is not None else 0.0 for index, load in enumerate(analytic) if index > 0}
    ranked = sorted(rates, key=lambda index: -rates[index])
    near = [index for index in ranked if rates[index] >= NEAR * rates[ranked[0]] > 0]
    first = {servers[index].method: index for index in reversed(ranked)}
    chosen = {*ranked[:finalists], *near[: 2 * finalists], *first.values()}
    drafted = [server.drafting for server in servers]
    return {0} | {index for index in rates if drafted[index] in {drafted[other] for other in chosen}}


def _simulated(
    row: CapacityRow,
    server: Server,
    streams: Sequence[tuple[Request, ...]],
    planning: PlanningSpec,
    plain: CapacityRow | None,
    typical: tuple[Request, ...],
    progress: Progress | None,
) -> CapacityRow:
    saturation = saturation_of(server, typical)
    saturation = replace(saturation, per_s=saturation.per_s / _served_share(server, typical))
    done = count(1)

    def advance() -> None:
        if progress is not None:
            progress(row.label, next(done), EVALUATIONS)

    search = RateSearch(
        server.run,
        streams,
        server.scenario.file.service_level,
        planning.good_share,
        saturation.per_s,
        saturation.log_std,
        plain_queue(server),
        advance,
    )
    sustained = search.run()
    gain = verdict = None
    if plain is not None and plain.sustained is not None and plain.sustained.rate is not None and sustained.rate is not None:
        gain = _gain(server, sustained, plain.sustained.rate)
        verdict = verdict_of(gain)
    saturated = Estimate.lognormal(saturation.per_s, saturation.log_std)
    return replace(row, saturation=saturated, sustained=sustained, gain=gain, verdict=verdict)


def _gain(server: Server, sustained: Sustained, plain: Estimate) -> Estimate:
    """The ratio of two sustained rates, with the doubt of both and of R as far as rounds take the server's time."""
    rate, point = sustained.rate, sustained.at_rate
    assert rate is not None
    assert point is not None
    assert server.law is not None
    batch, context = max(round(point.mean_batch), 1), max(point.mean_context_tokens, 1.0)
    gamma = server.drafts(batch) or server.shape.depth
    pricer = UncertainPricer(server.deployment.replica(), float(server.law.conditional_rates(gamma).prod()))
    spread = pricer.spread(gamma, batch, context).scaled(point.drafting_share)
    value = rate.value / plain.value
    below = math.hypot(math.log(rate.value / rate.low), math.log(plain.high / plain.value), Z80 * spread.up)
    above = math.hypot(math.log(rate.high / rate.value), math.log(plain.value / plain.low), Z80 * spread.down)
    return Estimate(value, value * math.exp(-below), value * math.exp(above))


def _devices(server: Server) -> int:
    """Devices of one copy of the deployment: those of a draft, of further replicas and of prompts alone included."""
    return sum(count for _, count in server.scenario.hardware_counts(server.deployment))


def _with_fleet(
    row: CapacityRow, server: Server, planning: PlanningSpec, demand_per_s: float, output_tokens: float
) -> CapacityRow:
    point = None if row.sustained is None else row.sustained.at_rate
    if point is None:
        return row
    copy = Copy(point.rate_per_s, point.output_tokens_per_s, row.devices, point.busy_fraction, _tdp_w(server))
    return replace(row, fleet=copy.fleet(demand_per_s, output_tokens, planning))


def _tdp_w(server: Server) -> float | None:
    """TDP of all devices of a copy; None where a profile states none."""
    known = [(hardware.profile.tdp_w, count) for hardware, count in server.scenario.hardware_counts(server.deployment)]
    return None if any(tdp_w is None for tdp_w, _ in known) else sum((tdp_w or 0.0) * count for tdp_w, count in known)
