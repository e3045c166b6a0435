"""Comparison: a speculative variant against none, on the same requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator import theory
from simulator.cost.round import RoundCost
from simulator.cost.spread import Estimate
from simulator.cost.step_scale import AS_PRICED, ends
from simulator.cost.uncertainty import UncertainPricer
from simulator.draft_policy import Fixed
from simulator.draft_tree import Tree
from simulator.scenario import Scenario
from simulator.serving import Summary
from simulator.simulation.causes import causes_of
from simulator.simulation.gains import Runs
from simulator.simulation.progress import Progress, counter
from simulator.simulation.server import Server
from simulator.simulation.variant import Variant
from simulator.simulation.verdict import Verdict, judged_gain, nothing_to_gain, requests_to_tell, unjudged, verdict_of, worth_of
from simulator.spec import SpecError
from simulator.workload import Request

# What R's doubt does to the gains is seen on the first requests: the same ones in every run, so few are enough while hardly any
# waits. Nearer saturation a slower round lengthens the queue for as long as requests come, and many are served. In a closed loop
# all of them, as each user sends them in turn.
PROBE_REQUESTS = 150
MOST_PROBE_REQUESTS = 1000
LIGHT_LOAD = 0.5


@dataclass(frozen=True)
class Comparison:
    """A speculative variant against none, on the same requests. Ratios above 1 are gains; each with its 80 % interval.

    batch, context: means of a replica in the plain run, at which `round`, R and its doubt are taken; of a schedule by batch at
    the γ that it drafts there, and `remark` says so. mean_acceptance_length: as simulated, without the steps in which a policy is
    off. metric: what the verdict is about.
    requests_to_tell: how many would, where those served are too few for a verdict. nothing_to_gain: in goodput, as nearly all
    requests are within the service level without speculation.
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
    requests_to_tell: int | None = None
    nothing_to_gain: bool = False

    @property
    def worth(self) -> float:
        """By which ways to draft are ranked, as `verdict.worth_of` says."""
        return worth_of(self.gain.value, (self.tpot or self.e2e).value, self.nothing_to_gain)

    @property
    def shape(self) -> Tree:
        """What the round of `round`, R and α* drafts."""
        return self.variant.deployment.tree or Tree.chain(self.round.num_speculative_tokens)


def compare(
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
    spread = pricer.spread(gamma, batch, context, proposal_rate)
    # Of rounds with proposals: in a run those without are steps of their own.
    drafting = spread if proposal_rate == 1 else pricer.spread(gamma, batch, context)
    dear, cheap = ends(drafting)
    some = _first_of(requests, server.scenario, variant)
    slow, middle, fast = (
        variant.result
        if scale == AS_PRICED and len(some) == len(requests)
        else server.run(some, counter(progress, f"{variant.label}, {where} of R", len(some)), scale=scale)
        for where, scale in (("high end", dear), ("middle", AS_PRICED), ("low end", cheap))
    )
    runs = Runs(plain.result, variant.result, slow, middle, fast)
    e2e = runs.gain(lambda records: records.e2e_latency_s)
    if e2e is None:
        must = "must let some requests finish both with and without speculation, or there is nothing to compare"
        raise SpecError([server.scenario.document.problem(("workload", "time_out_s"), must)])
    metric, judged = judged_gain(server.scenario, runs)
    gain = e2e if judged is None else judged.estimate
    verdict: Verdict = "close" if judged is None else verdict_of(gain)
    if judged is None:
        metric, verdict = unjudged(metric, plain.summary, variant.summary, e2e)
    tokens = variant.summary.output_tokens_per_s / plain.summary.output_tokens_per_s
    goodput = None
    if plain.summary.goodput_per_s and variant.summary.goodput_per_s is not None:
        goodput = variant.summary.goodput_per_s / plain.summary.goodput_per_s
    # Only the part of a saturated replica's time depends on R in which it decodes and drafts.
    full, empty = variant.saturation, plain.saturation
    doubt = drafting.scaled(full.drafting_share).inverse().widened(math.hypot(full.log_std, empty.log_std))
    capacity = Estimate.lognormal(full.per_s / empty.per_s, doubt)
    return Comparison(
        variant=variant, metric=metric, gain=gain, verdict=verdict,
        tpot=runs.gain(lambda records: records.tpot_s), e2e=e2e, goodput=goodput, output_tokens=tokens, capacity=capacity,
        batch=batch, context=context, round=cost, r=Estimate.lognormal(cost.r, spread), mean_acceptance_length=tau,
        break_even_acceptance_rate=(
            None if variant.deployment.tree else pricer.base.break_even_rate(gamma, batch, context, proposal_rate)
        ),
        textbook_speedup=theory.textbook_speedup(tau, gamma, cost.cost_coefficient), causes=causes_of(plain, variant, cost),
        remark=remark, requests_to_tell=None if judged is None else requests_to_tell(len(requests), judged),
        nothing_to_gain=nothing_to_gain(server.scenario, plain.result),
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


def proposal_share(summary: Summary) -> float:
    """Share of sequence-rounds in which the drafter proposed anything."""
    counts = summary.acceptance
    return counts.draft_rounds / counts.rounds if counts.rounds else 1.0
