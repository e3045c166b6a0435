"""An operating point with everything resolved, as `explain` and `sensitivity` ask about it: its R, its τ, and both together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.acceptance import AcceptanceLaw, band_for
from simulator.acceptance.rates import Rates, survival_from_conditional
from simulator.cost.deployment import Deployment
from simulator.cost.round import RoundCost
from simulator.cost.spread import Spread
from simulator.cost.uncertainty import UncertainPricer
from simulator.draft_policy import PolicySpec
from simulator.draft_tree import Tree
from simulator.prediction import OperatingPoint, resolve
from simulator.questions.break_even import own_context
from simulator.scenario import Scenario
from simulator.serving import Load
from simulator.simulation import Progress, Server, drafted_at, leading, name_of_way, plain_load
from simulator.spec import Document


@dataclass(frozen=True)
class PricedPoint:
    """Where a question is asked. law_at: None where acceptance is open. extra_std: doubt of ln R from what was assumed.
    acceptance_factor: on every conditional acceptance rate, up to 1. remark: what a policy has to do with γ. among: the ways to
    draft of a scenario that compares several, and taken: the one of them that the verdict of its run names."""

    deployment: Deployment
    gamma: int
    batch: int
    context: float
    law_at: Callable[[int], AcceptanceLaw | None]
    extra_std: float = 0.0
    acceptance_factor: float = 1.0
    remark: str = ""
    among: tuple[str, ...] = ()
    taken: str = ""

    @property
    def shape(self) -> Tree:
        """What a round drafts: a tree, or a chain of γ."""
        return self.deployment.tree or Tree.chain(self.gamma)

    def law(self) -> AcceptanceLaw | None:
        found = self.law_at(self.gamma)
        return None if found is None else found.at_context(round(self.context))

    def proposals(self) -> float:
        law = self.law()
        return 1.0 if law is None else law.proposal_share(self.gamma)

    def mean_acceptance_length(self) -> float | None:
        """τ over all rounds, the bonus token included."""
        law = self.law()
        if law is None or self.acceptance_factor == 1:
            return None if law is None else law.mean_acceptance_length(self.gamma)
        return 1 + self.proposals() * float(survival_from_conditional(self._rates(law)).sum())

    def full_acceptance_rate(self) -> float:
        """Share of rounds in which every draft is accepted; a half where that is open."""
        law = self.law()
        return 0.5 if law is None else float(self._rates(law).prod())

    def _rates(self, law: AcceptanceLaw) -> Rates:
        return np.minimum(self.acceptance_factor * law.conditional_rates(self.gamma), 1.0)

    def pricer(self) -> UncertainPricer:
        return UncertainPricer(self.deployment, self.full_acceptance_rate())

    def spread(self, pricer: UncertainPricer) -> Spread:
        """The doubt of ln R."""
        return pricer.doubt(self.gamma, self.batch, self.context, self.proposals(), assumed_std=self.extra_std).spread

    def round(self) -> RoundCost:
        pricer = self.deployment.pricer(self.full_acceptance_rate())
        return pricer.round(self.gamma, self.batch, self.context, self.proposals())

    def speedup(self) -> float | None:
        """τ / R, None where acceptance is open."""
        tau = self.mean_acceptance_length()
        return None if tau is None else tau / self.round().r


def point_of_scenario(
    scenario: Scenario,
    gamma: int | None = None,
    batch: int | None = None,
    context: float | None = None,
    tree: Tree | None = None,
    progress: Progress | None = None,
) -> PricedPoint:
    """The scenario's own mean batch and context unless given, and of several γ, trees and policies the one that the verdict of
    its run names; of a policy what it drafts at that batch. The mean batch is that of its requests served without speculation.

    Raises ValueError without speculation.
    """
    if gamma is not None and not scenario.gammas:
        raise ValueError("the scenario drafts trees only: its acceptance says nothing of a chain")
    if not scenario.deployment.speculative:
        raise ValueError("explain needs a scenario with speculation")
    shape: Tree = scenario.variants[0][0]
    policy: PolicySpec = scenario.variants[0][1]
    among: tuple[str, ...] = ()
    remark = taken = ""
    load: Load | None = None
    if gamma is None and tree is None and len(scenario.variants) > 1 and _can_run(scenario):
        server, load = leading(scenario, progress)
        shape, policy = server.shape, server.policy
        among, taken = tuple(name_of_way(*way) for way in scenario.variants), name_of_way(shape, policy)
    if batch is None:
        replicas = scenario.deployment.independent_replicas
        load = load or plain_load(scenario)
        batch = max(round(replicas * (load.mean_decode_sequences or 1)), 1)
        # A mean over steps, of which an idle replica makes none: users in a closed loop are all there can be.
        batch = min(batch, scenario.file.workload.arrivals.users or batch)

    def law_at(tokens: int) -> AcceptanceLaw | None:
        resolved = scenario.acceptance(tokens, None if shape.is_chain else shape)
        return None if resolved is None else resolved.law

    if tree is not None or gamma is not None:
        shape = tree or Tree.chain(gamma or 1)
    elif (law := law_at(shape.steps)) is not None:
        drafted, remark = drafted_at(Server(scenario, scenario.deployed(shape), shape, law, policy=policy), batch)
        shape = shape if not remark else Tree.chain(drafted)
    context_tokens = context or own_context(scenario)
    return PricedPoint(
        scenario.deployed(shape), shape.depth, batch, context_tokens, law_at, remark=remark, among=among, taken=taken
    )


def _can_run(scenario: Scenario) -> bool:
    """Whether acceptance is stated, or known of every shape; a round can be priced without."""
    method, shapes = scenario.deployment.method, scenario.shapes
    return scenario.file.acceptance is not None or all(
        band_for(method, shape.steps, None if shape.is_chain else shape) is not None for shape in shapes
    )


def point_of_flags(point: OperatingPoint, document: Document) -> tuple[PricedPoint, tuple[str, ...]]:
    """The same of an operating point from flags, with its warnings. Raises `SpecError` and `prediction.UnsupportedError`."""
    question = resolve(point, document)
    laws = question.law(document)
    asked = PricedPoint(question.deployment, question.gamma, question.batch, question.context, laws, question.extra_std)
    return asked, question.warnings
