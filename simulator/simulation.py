"""simulate: a scenario served without and with speculation on the same random streams, and what that says.

The composition root: requests, acceptance paths, prices and batching rules meet here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, cycle
from typing import Literal

import numpy as np

from simulator import theory
from simulator.acceptance import AcceptanceLaw, band_for
from simulator.cost.deployment import Deployment
from simulator.cost.parallelism import share
from simulator.cost.round import RoundCost, StepPricer
from simulator.cost.uncertainty import Z80, Estimate, UncertainPricer
from simulator.draft_policy import FIXED, ByContext, Fixed, GoodputOptimal, PolicySpec, tokens_in
from simulator.draft_tree import Tree
from simulator.scenario import Scenario
from simulator.serving import (
    AcceptancePath,
    BatchingRules,
    Engine,
    Load,
    PairedRatio,
    ServingResult,
    Summary,
    no_lookahead,
    paired_ratio,
    serve,
    serve_on_replicas,
    summarise,
)
from simulator.serving.metrics import Value, Window, is_good, load_in
from simulator.serving.policies import DraftPolicy, live_policy, table_of
from simulator.spec import SpecError
from simulator.speculation import READS_STATES
from simulator.validity import doubts_at
from simulator.workload import Request, again, by_turns, mean_context_tokens, requests_of

# The fewest requests of the run that measures how many a second the replica can finish when work never runs out.
SATURATION_REQUESTS = 400
SATURATION_SPANS = 10
LONG_OUTPUT = 2000
# Requests come so much faster than they are roughly expected to be served, and again so much if that was not fast enough.
OVERLOAD = 1.5
LEAST_OVERLOAD_SHARE = 0.9
# Gains this close are taken as equal, and the smaller γ is preferred: it takes less memory and fewer rows.
TIE = 0.03
LEAST_EFFECT = 0.005
# Acceptance paths of this many requests are kept from run to run, some 3 kB each.
KEPT_PATHS = 5_000
# From fewer requests than this no interval is made: the gain is "close", whatever it is.
FEWEST_REQUESTS = 20
# What R's doubt does to the gains is seen on the first requests: the same ones in every run, so few are enough while hardly any
# waits. Nearer saturation a slower round lengthens the queue for as long as requests come, and many are served. In a closed loop
# all of them, as each user sends them in turn.
PROBE_REQUESTS = 150
MOST_PROBE_REQUESTS = 1000
LIGHT_LOAD = 0.5
Verdict = Literal["win", "lose", "close"]
Progress = Callable[[str, int, int], None]  # (which run, done of it, in all)


@dataclass(frozen=True, slots=True)
class Saturation:
    """Replicas that never run out of work: requests finished per second, one standard deviation of its logarithm by spans of
    time, and the share of busy time that prompts take."""

    per_s: float
    log_std: float
    prefill_share: float


@dataclass(frozen=True)
class Variant:
    """One way to serve the workload. gamma: the most drafts that a round accepts, 0 = no speculation."""

    label: str
    gamma: int
    deployment: Deployment
    kv_blocks: int
    result: ServingResult
    summary: Summary
    saturation: Saturation
    policy: PolicySpec = FIXED

    @property
    def shape(self) -> Tree:
        """What a round drafts: a tree, or a chain of γ."""
        return self.deployment.tree or Tree.chain(self.gamma)

    @property
    def drafting(self) -> tuple[Tree, PolicySpec]:
        """The shape and the policy that drafts it: what two runs at the ends of an acceptance band have in common."""
        return self.shape, self.policy

    @property
    def graph_share(self) -> float | None:
        """Share of the steps that decode which run as captured graphs; None for an engine without."""
        ladder, steps = self.deployment.engine.graphs, self.result.steps
        decode = steps.column("decode_sequences")
        if ladder is None or not decode.any():
            return None
        counted = decode if ladder.counts == "sequences" else steps.column("rows") + steps.column("prefill_tokens")
        alone = steps.column("prefill_tokens") == 0 if ladder.counts == "sequences" else True
        return float(((counted <= ladder.sizes()[-1]) & alone)[decode > 0].mean())

    @property
    def offered_share(self) -> float:
        """Arriving requests against what saturated replicas finish; infinite where all arrive at once."""
        records = self.result.records
        span_s = records[-1].arrival_s - records[0].arrival_s
        return (len(records) - 1) / span_s / self.saturation.per_s if span_s > 0 else math.inf

    @property
    def off_share(self) -> float:
        """Share of the steps that decode in which nothing is drafted."""
        steps = self.result.steps
        return float((steps.column("drafted")[steps.column("decode_sequences") > 0] == 0).mean())


@dataclass(frozen=True)
class Comparison:
    """A speculative variant against none, on the same requests. Ratios above 1 are gains; each with its 80 % interval.

    batch, context: means of a replica in the plain run, at which `round`, R and its doubt are taken; of a schedule by batch at
    the γ that it drafts there, and `remark` says so. mean_acceptance_length: as simulated, without the steps in which a policy is
    off. metric: what the verdict is about.
    """

    variant: Variant
    metric: str
    gain: Estimate
    verdict: Verdict
    tpot: Estimate | None
    e2e: Estimate
    goodput: float | None
    output_tokens: float
    capacity: Estimate
    batch: int
    context: float
    round: RoundCost
    r: Estimate
    mean_acceptance_length: float
    break_even_acceptance_rate: float | None
    textbook_speedup: float
    causes: tuple[str, ...]
    remark: str = ""

    @property
    def shape(self) -> Tree:
        """What the round of `round`, R and α* drafts."""
        return self.variant.deployment.tree or Tree.chain(self.round.num_speculative_tokens)


@dataclass(frozen=True)
class SimulationResult:
    """Everything that `run` says. `comparisons` is empty for a scenario without speculation."""

    scenario: Scenario
    requests: tuple[Request, ...]
    plain: Variant
    comparisons: tuple[Comparison, ...]
    warnings: tuple[str, ...]

    @property
    def best(self) -> Comparison | None:
        """The shape with the largest gain; among gains within 3 % the one that verifies fewest rows.

        Where acceptance is open, each shape counts by the end of the measured band at which it gains less.
        """
        worst: dict[tuple[Tree, PolicySpec], Comparison] = {}
        for comparison in self.comparisons:
            kept = worst.setdefault(comparison.variant.drafting, comparison)
            if comparison.gain.value < kept.gain.value:
                worst[comparison.variant.drafting] = comparison
        if not worst:
            return None
        top = max(comparison.gain.value for comparison in worst.values())
        return min((c for c in worst.values() if c.gain.value >= (1 - TIE) * top), key=lambda c: c.variant.shape.nodes)


def simulate(scenario: Scenario, progress: Progress | None = None, readable: bool = False) -> SimulationResult:
    """Serves the scenario's requests without speculation and with each chain and tree asked for.

    `readable`: by the serving engine of one event a step, slower and with the same records (`serving.serve`).

    Where acceptance is left open, each of them runs at the low and the high end of a sourced band for the method.
    """
    requests = requests_of(scenario.file.workload, scenario.file.seed, scenario.source)
    warnings = list(scenario.warnings)
    plain = _variant(replace(Server.of(scenario), readable=readable), "no speculation", requests, progress)
    warnings += _too_short(scenario, requests)
    comparisons = [
        _compare(server, plain, _variant(server, label, requests, progress), requests, progress)
        for label, server in speculative_servers(scenario, warnings, readable)
    ]
    warnings += [doubt for comparison in comparisons for doubt in _doubts(scenario, comparison)]
    return SimulationResult(scenario, requests, plain, tuple(comparisons), tuple(dict.fromkeys(warnings)))


def _doubts(scenario: Scenario, comparison: Comparison) -> list[str]:
    """What is doubtful about a variant where it ran; of a schedule by batch nothing is, at one batch."""
    if scenario.file.speculation is None or scenario.file.speculation.by_batch is not None:
        return []
    load, tau = comparison.variant.summary.load, comparison.mean_acceptance_length
    running = load.mean_decode_sequences or 1.0
    deployment = comparison.variant.deployment.replica()
    stated = None if scenario.file.acceptance is None else tau
    if not comparison.variant.summary.acceptance.rounds:
        return ["no answer is longer than one token: nothing is decoded, and what is said of a round is what it would be"]
    return [*doubts_at(deployment, comparison.shape, running, comparison.context, stated)]


# Turns of each user below which a closed loop is mostly its start and its drain.
FEWEST_TURNS = 5


def _too_short(scenario: Scenario, requests: tuple[Request, ...]) -> list[str]:
    users = scenario.file.workload.arrivals.users
    if users is None or len(requests) >= FEWEST_TURNS * users:
        return []
    return [
        f"{len(requests)} requests are fewer than {FEWEST_TURNS} for each of {users} users: all start together and few are left "
        "at the end, so that output (tokens/s) and the mean batch are those of a short run; the output rate per user, from mean "
        "turns, is less distorted"
    ]


def plain_load(scenario: Scenario) -> Load:
    """How busy the server is without speculation: mean batch and context of the scenario's own requests."""
    requests = requests_of(scenario.file.workload, scenario.file.seed, scenario.source)
    summary = summarise(Server.of(scenario).run(requests))
    require_served(scenario, summary)
    return summary.load


def speculative_servers(scenario: Scenario, warnings: list[str], readable: bool = False) -> list[tuple[str, Server]]:
    """(label, server) of every way of drafting that the scenario compares; where acceptance is open, one for each end of a
    sourced band, which `warnings` then say."""
    return [
        (label, Server(scenario, scenario.deployed(shape), shape, law, readable, policy))
        for shape, policy in scenario.variants
        for label, law in _laws(scenario, shape, policy, warnings)
    ]


def _laws(scenario: Scenario, shape: Tree, policy: PolicySpec, warnings: list[str]) -> list[tuple[str, AcceptanceLaw]]:
    """(label, acceptance law) of each run of this shape under this policy."""
    speculation = scenario.file.speculation
    assert speculation is not None
    name = policy.label(shape.steps) if shape.is_chain else shape.name
    resolved = scenario.acceptance(shape.steps, shape)
    if resolved is not None:
        return [(name, resolved.law)]
    band = band_for(speculation.method, shape.steps, None if shape.is_chain else shape)
    if band is None:
        what = f"method {speculation.method}" if shape.is_chain else f"{shape.name} with method {speculation.method}"
        must = f"must be given: no measured acceptance of {what} is shipped"
        raise SpecError([scenario.document.problem(("acceptance",), must)])
    warnings.append(
        f"acceptance is left open: {name} runs at the lowest and highest τ measured for {speculation.method}, "
        f"{band.low:.2f} ({band.low_source}) and {band.high:.2f} ({band.high_source})"
    )
    ends = (("low", band.low, band.low_law), ("high", band.high, band.high_law))
    return [(f"{name}, τ = {tau:.2f} ({end} end)", law) for end, tau, law in ends]


def batching_rules(scenario: Scenario, deployment: Deployment) -> BatchingRules:
    """The scenario's limits for one replica of this deployment, whose drafter takes memory from the KV pool.

    Limits are those of each data-parallel rank; ranks that step together are one scheduler with the room of all. A step that
    passes every pipeline stage holds the batches of all of them.
    """
    deployment = deployment.replica()
    engine, limits, beyond = deployment.engine, scenario.limits, deployment.parallelism
    ranks = beyond.data_parallel_size
    batches = ranks * beyond.microbatches(beyond.pipeline_parallel_size, engine)
    extra = engine.lookahead_extra_slots
    lookahead = no_lookahead if deployment.drafter is None else lambda gamma: gamma + extra if gamma else 0
    return BatchingRules(
        max_num_seqs=limits.max_num_seqs * ranks,
        max_num_batched_tokens=limits.max_num_batched_tokens * batches,
        max_model_len=limits.max_model_len,
        total_blocks=deployment.kv_blocks(limits.gpu_memory_utilization) * ranks,
        block_tokens=engine.block_tokens,
        lookahead_slots=lookahead,
        prefill_first=engine.prefill_first,
        chunked_prefill=engine.chunked_prefill,
        admission=engine.admission,
        prefix_caching=limits.prefix_caching,
        recomputed_blocks=engine.prefix_recomputed_blocks if deployment.method in READS_STATES else 0,
        recomputes_draft=deployment.keeps_draft_cache and not engine.prefix_cache_covers_draft,
        host_blocks=deployment.host_blocks(limits.swap_space_bytes) * ranks if limits.swap_space_bytes else 0,
        host_block_s=deployment.host_block_s() if limits.swap_space_bytes else 0.0,
    )


class _NoDrafts:
    """The acceptance path of a run without speculation."""

    def accepted(self, position: int, drafted: int, /) -> int:  # noqa: ARG002
        return 0

    def proposed(self, position: int, num_speculative_tokens: int, /) -> int:  # noqa: ARG002
        return 0


_NO_DRAFTS = _NoDrafts()


@dataclass(frozen=True)
class Server:
    """Serves the scenario's requests under one deployment, shape of draft and acceptance law (None = no speculation)."""

    scenario: Scenario
    deployment: Deployment
    shape: Tree
    law: AcceptanceLaw | None
    readable: bool = False
    policy: PolicySpec = FIXED
    # Each γ is run several times on the same requests.
    _paths: dict[tuple[int, int, int], AcceptancePath] = field(default_factory=dict, init=False, repr=False, compare=False)
    _round_s: dict[tuple[int, int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, scenario: Scenario, shape: Tree | None = None) -> Server:
        """The server at one chain or tree of a scenario whose acceptance is given; None is no speculation."""
        resolved = scenario.acceptance(shape.steps, shape) if shape is not None else None
        if shape is None or resolved is None:
            return cls(scenario, scenario.deployment.plain(), Tree.chain(0), None)
        return cls(scenario, scenario.deployed(shape), shape, resolved.law)

    @cached_property
    def rules(self) -> BatchingRules:
        return batching_rules(self.scenario, self.deployment)

    @cached_property
    def pricer(self) -> StepPricer:
        full = float(self.law.conditional_rates(self.shape.depth).prod()) if self.law is not None else 0.0
        # While a policy that looks is off, text is searched all the same: it may be on again any moment.
        return replace(self.deployment.replica().pricer(full), drafts_at=None if self.policy.looks else self.drafts)

    def path(self, request: Request) -> AcceptancePath:
        if self.law is None:
            return _NO_DRAFTS
        key = (request.request_id, request.prompt_tokens, request.output_tokens)
        path = self._paths.get(key)
        if path is None:
            path = self.law.path(
                request.request_id, request.output_tokens, self.scenario.file.seed, prompt_tokens=request.prompt_tokens
            )
            if len(self._paths) < KEPT_PATHS:
                self._paths[key] = path
        return path

    def live_policy(self) -> DraftPolicy:
        """The policy at work, fresh: nothing seen yet."""
        if self.law is None:
            return DraftPolicy(lambda _: 0)
        return live_policy(self.policy, self.shape.nodes - 1, self._of_rank, self.round_s)

    def _of_rank(self, running: int) -> int:
        return share(running, self.deployment.replica().parallelism.data_parallel_size)

    def round_s(self, drafts: int, running: int, context_tokens: float) -> float:
        """Seconds of a round of `running` sequences at equal context, or of a step without drafts beside a resting drafter."""
        key = (drafts, running, round(context_tokens))
        found = self._round_s.get(key)
        if found is None:
            found = self._round_s[key] = self.pricer.price([(key[2], drafts)] * running, (), 0).seconds
        return found

    def drafts(self, running: int) -> int:
        """γ while so many sequences run: of a policy that looks, what it comes to at the law's acceptance and the workload's
        mean context."""
        law = self.law
        if law is None:
            return 0
        if isinstance(self.policy, ByContext):
            return tokens_in(self.policy.table, round(self.mean_context_tokens))
        if isinstance(self.policy, GoodputOptimal):
            context = float(f"{self.mean_context_tokens:.1e}")
            return max(
                range(self.shape.steps + 1),
                key=lambda drafts: self.mean_acceptance_length(drafts) / self.round_s(drafts, running, context),
            )
        return table_of(self.policy, self.shape.nodes - 1, self._of_rank)(running)

    @cached_property
    def mean_context_tokens(self) -> float:
        """Of the scenario's own requests while they decode."""
        return mean_context_tokens(requests_of(self.scenario.file.workload, self.scenario.file.seed, self.scenario.source))

    def mean_acceptance_length(self, drafts: int) -> float:
        """τ of a round of so many drafts a sequence, by the law; 1 of a plain step."""
        if self.law is None or drafts == 0:
            return 1.0
        return self.law.mean_acceptance_length(drafts if self.shape.is_chain else self.shape.depth)

    def run(
        self, requests: tuple[Request, ...], begun: Callable[[], None] | None = None, round_scale: float = 1.0
    ) -> ServingResult:
        """Every request to its end, as the scenario's arrivals say. `begun` is called as each request arrives."""
        arrivals = self.scenario.file.workload.arrivals

        def path(request: Request) -> AcceptancePath:
            if begun is not None:
                begun()
            return self.path(request)

        file = self.scenario.file
        return serve_on_replicas(
            requests, [kind.engine(round_scale) for kind, count in self.kinds for _ in range(count)], path,
            router=file.parallel.router or "round_robin", users=arrivals.users if arrivals.process == "closed_loop" else None,
            think_time_s=arrivals.think_time_s or 0.0, time_out_s=file.workload.time_out_s, readable=self.readable,
        )  # fmt: skip

    def engine(self, round_scale: float = 1.0) -> Engine:
        """One replica, with a policy of its own."""
        pricer = self.pricer if round_scale == 1 else replace(self.pricer, round_scale=round_scale)
        return Engine(self.rules, pricer, self.live_policy())

    @cached_property
    def kinds(self) -> tuple[tuple[Server, int], ...]:
        """(server of one kind of devices, its replicas)."""
        one = self.deployment.replica()
        further = [(replace(self, deployment=replace(one, hardware=other)), n) for other, n in self.scenario.further_hardware]
        return ((self, self.deployment.independent_replicas), *further)

    def saturated(self, requests: tuple[Request, ...], begun: Callable[[int, int], None] | None = None) -> Saturation:
        """How fast the deployment finishes requests while more always wait: all its replicas together, each of them full."""
        found = [(kind._saturated_replica(requests, begun), count) for kind, count in self.kinds]
        per_s = sum(count * one.per_s for one, count in found)
        shares = [count * one.per_s / per_s for one, count in found]
        return Saturation(
            per_s,
            math.hypot(*(share * one.log_std for share, (one, _) in zip(shares, found, strict=True))),
            sum(share * one.prefill_share for share, (one, _) in zip(shares, found, strict=True)),
        )

    def _saturated_replica(self, requests: tuple[Request, ...], begun: Callable[[int, int], None] | None = None) -> Saturation:
        """One replica that never runs out of work.

        The workload's requests, over and over, arriving evenly and faster than they can be served, so that no two start in
        step: requests that are all there from the start and equally long would end together too. Nobody gives up. Turns of
        sessions come in the order in which they would if answers took no time. Measured from the end of the first half to the
        admission of the last. `begun` is called with (requests begun, requests in all).
        """
        requests = tuple(r for r in by_turns(requests) if not self.rules.refusal(r.prompt_tokens, r.output_tokens))
        at_once = min(self.rules.max_num_seqs, self._most_at_once(requests))
        mean_output = sum(request.output_tokens for request in requests) / len(requests)
        # Long answers give as many steps from fewer requests; enough are kept to fill the replica several times.
        total = max(2 * min(SATURATION_REQUESTS, round(SATURATION_REQUESTS * LONG_OUTPUT / mean_output)), 6 * at_once)
        done = 0

        def path(request: Request) -> AcceptancePath:
            nonlocal done
            done += 1
            if begun is not None and done <= total:
                begun(done, total)
            return self.path(request)

        rate_per_s = OVERLOAD * self._rough_capacity(requests, at_once)
        found = self._overloaded(requests, total, rate_per_s, path)
        while found.per_s > LEAST_OVERLOAD_SHARE * rate_per_s:
            rate_per_s *= OVERLOAD
            found = self._overloaded(requests, total, rate_per_s, path)
        return found

    def _rough_capacity(self, requests: tuple[Request, ...], at_once: int) -> float:
        """Requests a second of a full replica, roughly: its rounds, and prompts in steps of their own, for mean lengths."""
        prompt = sum(request.prompt_tokens for request in requests) / len(requests)
        output = sum(request.output_tokens for request in requests) / len(requests)
        drafts = self.drafts(at_once)
        round_s = self.pricer.price([(round(prompt + output / 2), drafts)] * at_once, (), 0).seconds
        together = max(self.rules.max_num_batched_tokens // max(round(prompt), 1), 1)
        prompts_s = self.pricer.prefill_s(round(prompt) * together, self.rules.max_num_batched_tokens) / together
        rounds_s = output / self.mean_acceptance_length(drafts) * round_s / at_once
        return 1 / (prompts_s + rounds_s)

    def _most_at_once(self, requests: tuple[Request, ...]) -> int:
        """About how many requests the KV cache holds."""
        tokens = sum(request.prompt_tokens + request.output_tokens for request in requests) / len(requests)
        return int(self.rules.total_blocks * self.rules.block_tokens / tokens) + 1

    def _overloaded(
        self, requests: tuple[Request, ...], number: int, rate_per_s: float, path: Callable[[Request], AcceptancePath]
    ) -> Saturation:
        """How one replica does under this rate."""
        arriving = tuple(
            again(r, i, i // len(requests), i / rate_per_s) for i, r in zip(range(number), cycle(requests), strict=False)
        )
        result = serve(arriving, self.rules, self.pricer, path, self.live_policy(), readable=self.readable)
        ends = np.sort(result.records.column("finish_s"))
        start_s, end_s = float(ends[len(ends) // 2]), float(result.records.column("first_scheduled_s").max())
        if ((start_s < ends) & (ends <= end_s)).sum() < len(ends) / 5:
            start_s, end_s = 0.0, float(ends[-1])
        spans = np.histogram(ends, np.linspace(start_s, end_s, SATURATION_SPANS + 1))[0]
        share = load_in(result, Window(start_s, end_s, result.records[:0], "")).prefill_share
        log_std = float(spans.std(ddof=1) / spans.mean() / math.sqrt(SATURATION_SPANS))
        return Saturation(float(spans.sum()) / (end_s - start_s), log_std, share)


def _variant(server: Server, label: str, requests: tuple[Request, ...], progress: Progress | None) -> Variant:
    result = server.run(requests, _counter(progress, label, len(requests)))
    summary = summarise(result, server.scenario.file.service_level)
    require_served(server.scenario, summary)

    def advance(done: int, total: int) -> None:
        if progress is not None:
            progress(f"capacity, {label}", done, total)

    saturation = server.saturated(requests, advance)
    blocks = server.rules.total_blocks
    return Variant(label, server.shape.depth, server.deployment, blocks, result, summary, saturation, server.policy)


def _counter(progress: Progress | None, label: str, total: int) -> Callable[[], None]:
    """Reports one more request begun whenever it is called."""
    done = count(1)
    return (lambda: None) if progress is None else (lambda: progress(label, next(done), total))


@dataclass(frozen=True)
class _Runs:
    """The plain run, the speculative one, and the first requests of the latter alone: had R been at the high end of its 80 %
    interval, as it is, and at the low end."""

    plain: ServingResult
    speculative: ServingResult
    slow_rounds: ServingResult
    some_rounds: ServingResult
    fast_rounds: ServingResult

    def gain(self, value: Value, invert: bool = False) -> Estimate | None:
        """Plain over speculative (or the inverse, for what should rise), with the doubt of requests and of R together.

        None where no request has a positive value in both runs.
        """

        def ratio(result: ServingResult) -> PairedRatio:
            pair = (result, self.plain) if invert else (self.plain, result)
            return paired_ratio(pair[0].records, pair[1].records, value)

        try:
            middle = ratio(self.speculative)
        except ValueError:
            return None
        few = middle.requests < FEWEST_REQUESTS or not math.isfinite(middle.high)
        sampling = math.inf if few else math.log(middle.high / middle.ratio)
        try:
            low, some, high = (ratio(run).ratio for run in (self.slow_rounds, self.some_rounds, self.fast_rounds))
        except ValueError:
            low, some, high = 0.0, 1.0, math.inf
        below = math.hypot(sampling, max(math.log(some / low), 0.0) if low > 0 else math.inf)
        above = math.hypot(sampling, max(math.log(high / some), 0.0))
        return Estimate(middle.ratio, middle.ratio * math.exp(-below), middle.ratio * math.exp(min(above, 50.0)))


def _compare(
    server: Server, plain: Variant, variant: Variant, requests: tuple[Request, ...], progress: Progress | None
) -> Comparison:
    """What speculation changed, with the doubt of requests and of coefficients together."""
    load, law = plain.summary.load, server.law
    assert law is not None
    batch = max(round(load.mean_decode_sequences or 1), 1)
    gamma, remark = drafted_at(server, batch)
    context = load.mean_context_tokens or 1.0
    proposal_rate, tau = _as_drafted(server, variant.summary, gamma)
    pricer = UncertainPricer(variant.deployment.replica(), float(law.conditional_rates(gamma).prod()))
    cost = pricer.base.round(gamma, batch, context, proposal_rate)
    log_std = pricer.log_std(gamma, batch, context, proposal_rate)
    spread = math.exp(Z80 * log_std)
    some = _first_of(requests, server.scenario, variant)
    slow, middle, fast = (
        variant.result
        if scale == 1 and len(some) == len(requests)
        else server.run(some, _counter(progress, f"{variant.label}, {where} of R", len(some)), round_scale=scale)
        for where, scale in (("high end", spread), ("middle", 1.0), ("low end", 1 / spread))
    )
    runs = _Runs(plain.result, variant.result, slow, middle, fast)
    e2e = runs.gain(lambda records: records.e2e_latency_s)
    if e2e is None:
        must = "must let some requests finish both with and without speculation, or there is nothing to compare"
        raise SpecError([server.scenario.document.problem(("workload", "time_out_s"), must)])
    metric, judged = _judged(server.scenario, runs)
    verdict: Verdict = "close" if judged is None else verdict_of(judged)
    if judged is None:
        metric, verdict = _unjudged(metric, plain.summary, variant.summary, e2e)
    tokens = variant.summary.output_tokens_per_s / plain.summary.output_tokens_per_s
    goodput = None
    if plain.summary.goodput_per_s and variant.summary.goodput_per_s is not None:
        goodput = variant.summary.goodput_per_s / plain.summary.goodput_per_s
    # Only the decoding part of a saturated replica's time depends on R.
    full, empty = variant.saturation, plain.saturation
    doubt = math.hypot(log_std * (1 - full.prefill_share), full.log_std, empty.log_std)
    capacity = Estimate.lognormal(full.per_s / empty.per_s, doubt)
    return Comparison(
        variant=variant, metric=metric, gain=judged or e2e, verdict=verdict,
        tpot=runs.gain(lambda records: records.tpot_s), e2e=e2e, goodput=goodput, output_tokens=tokens, capacity=capacity,
        batch=batch, context=context, round=cost, r=Estimate.lognormal(cost.r, log_std), mean_acceptance_length=tau,
        break_even_acceptance_rate=(
            None if variant.deployment.tree else pricer.base.break_even_rate(gamma, batch, context, proposal_rate)
        ),
        textbook_speedup=theory.textbook_speedup(tau, gamma, cost.cost_coefficient), causes=_causes(plain, variant, cost),
        remark=remark,
    )  # fmt: skip


def _first_of(requests: tuple[Request, ...], scenario: Scenario, variant: Variant) -> tuple[Request, ...]:
    """The requests on which the doubt of R is seen."""
    if scenario.file.workload.arrivals.users:
        return requests
    return requests[: PROBE_REQUESTS if variant.offered_share < LIGHT_LOAD else MOST_PROBE_REQUESTS]


def drafted_at(server: Server, batch: int) -> tuple[int, str]:
    """(γ of the round that is priced, remark): of a policy what it drafts at this batch, else its largest."""
    if isinstance(server.policy, Fixed):
        return server.shape.depth, ""
    gamma = server.drafts(batch)
    if gamma == 0:
        return server.shape.steps, (
            f"the policy drafts nothing at the mean batch of {batch}: R is that of γ = {server.shape.steps}, its largest"
        )
    return gamma, f"R is that of γ = {gamma}, which the policy drafts at the mean batch of {batch}"


def _as_drafted(server: Server, summary: Summary, gamma: int) -> tuple[float, float]:
    """(share of rounds in which anything is proposed, τ) as simulated. Steps in which a policy is off say nothing of what a round
    costs or yields; where no round was drafted, the law says both."""
    law, counts = server.law, summary.acceptance
    assert law is not None
    if isinstance(server.policy, Fixed) and counts.mean_acceptance_length is not None:
        return proposal_share(summary), counts.mean_acceptance_length
    share_proposed, drafted = law.proposal_share(gamma), counts.mean_acceptance_length_with_drafts
    return share_proposed, server.mean_acceptance_length(gamma) if drafted is None else 1 + share_proposed * (drafted - 1)


def _judged(scenario: Scenario, runs: _Runs) -> tuple[str, Estimate | None]:
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


def _unjudged(metric: str, plain: Summary, speculative: Summary, e2e: Estimate) -> tuple[str, Verdict]:
    """(what is shown instead, verdict) where one of the two runs has nothing of the metric."""
    latency = "mean end-to-end latency"
    before, after = plain.goodput_per_s or 0.0, speculative.goodput_per_s or 0.0
    if metric != "goodput":
        return f"{latency} (no {metric} to compare)", verdict_of(e2e)
    if before == after == 0:
        return f"{latency} (no request of either run meets the service level)", "close"
    change = f"rises from none to {after:.3g}" if after > 0 else f"falls from {before:.3g} to none"
    return f"{latency} (goodput {change} requests per second)", "win" if after > 0 else "lose"


def _product(first: Estimate | None, second: Estimate | None) -> Estimate | None:
    """The product of two gains whose doubts are taken as independent."""
    if first is None or second is None:
        return None
    value = first.value * second.value
    below = math.hypot(math.log(first.value / first.low), math.log(second.value / second.low))
    above = math.hypot(math.log(first.high / first.value), math.log(second.high / second.value))
    return Estimate(value, value * math.exp(-below), value * math.exp(above))


def require_served(scenario: Scenario, summary: Summary) -> None:
    """Raises `SpecError` where no request finished, and says why."""
    if summary.finished:
        return
    why = ", ".join(f"{count} {reason}" for reason, count in summary.rejected.items())
    gone = f"{summary.cancelled} given up by their clients" if summary.cancelled else ""
    why = ", ".join(part for part in (why, gone) if part) or "none arrived"
    raise SpecError([scenario.document.problem(("workload",), f"must hold requests that can be served: {why}")])


def verdict_of(gain: Estimate) -> Verdict:
    """Certain, and of at least half a per cent."""
    return "win" if gain.low > 1 + LEAST_EFFECT else "lose" if gain.high < 1 - LEAST_EFFECT else "close"


def proposal_share(summary: Summary) -> float:
    """Share of sequence-rounds in which the drafter proposed anything."""
    counts = summary.acceptance
    return counts.draft_rounds / counts.rounds if counts.rounds else 1.0


def _cause(name: str) -> str:
    """A term of R - 1 in words: ``draft: later_passes`` → ``later draft passes``."""
    side, _, term = name.partition(": ")
    words = term.replace("_", " ")
    if side == "verify":
        return words if "overhead" in words else f"{words} in verification"
    return {
        "first pass": "the first draft pass", "later passes": "later draft passes", "launches": "launches of draft passes",
        "lookup": "n-gram look-up",
    }.get(words, f"drafting ({words})")  # fmt: skip


def _causes(plain: Variant, variant: Variant, cost: RoundCost) -> tuple[str, ...]:
    """The two largest terms of R - 1, and what load adds: queueing, preemption, memory, prefill."""
    causes = [f"{_cause(name)} {share:+.2f} plain steps per round" for name, share in cost.causes()[:2]]
    before, after = plain.summary, variant.summary
    if before.queueing_s and after.queueing_s and before.e2e_latency_s:
        change_s = after.queueing_s.mean - before.queueing_s.mean
        if abs(change_s) > 0.05 * before.e2e_latency_s.mean:
            causes.append(f"queueing {change_s:+.3g} s per request")
    if after.preemptions != before.preemptions:
        causes.append(f"preemptions {before.preemptions} → {after.preemptions}")
    if after.cancelled != before.cancelled:
        causes.append(f"requests given up by clients {before.cancelled} → {after.cancelled}")
    taken = 1 - variant.kv_blocks / plain.kv_blocks
    if taken > 0.05:
        causes.append(f"the drafter takes {100 * taken:.0f} % of the KV cache")
    if before.load.prefill_share > 0.2:
        causes.append(f"{100 * before.load.prefill_share:.0f} % of busy time is prefill, which speculation cannot shorten")
    return tuple(causes)
