"""What a policy drafts at one batch and context, and what that gains: the operating point of a scenario whose γ varies."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.cost.parallelism import share
from simulator.draft_policy import PolicySpec
from simulator.draft_tree import Tree
from simulator.scenario import Scenario
from simulator.simulation import Server
from simulator.spec import SpecError


@dataclass(frozen=True)
class PolicyChoice:
    """γ at (batch of the whole deployment, context), 0 where the policy is off. speedup: τ/R there; where it is off a plain step
    over a step without drafts beside the resting drafter."""

    label: str
    batch: int
    context_tokens: int
    num_speculative_tokens: int
    speedup: float


class PolicyChooser:
    """One policy of a scenario, asked at points. Raises `SpecError` where acceptance, on which it depends, is left open."""

    def __init__(self, scenario: Scenario, shape: Tree, policy: PolicySpec):
        resolved = scenario.acceptance(shape.steps, shape)
        if resolved is None:
            raise SpecError([scenario.document.problem(("acceptance",), "must be given: what a policy gains depends on it")])
        self._label, self._replicas = policy.label(shape.steps), scenario.deployment.independent_replicas
        self._server = Server(scenario, scenario.deployed(shape), shape, resolved.law, policy=policy)
        self._plain = Server.of(scenario)

    def at(self, batch: int, context_tokens: int) -> PolicyChoice:
        """What it comes to there, in the long run."""
        running = share(batch, self._replicas)
        drafts = self._server.drafts(running, context_tokens)
        if drafts == 0:
            steps = (server.round_s(0, running, context_tokens) for server in (self._plain, self._server))
            return PolicyChoice(self._label, batch, context_tokens, 0, next(steps) / next(steps))
        law = self._server.law
        assert law is not None
        law = law.at_context(context_tokens)
        pricer = self._server.deployment.pricer(float(law.conditional_rates(drafts).prod()))
        r = pricer.round(drafts, batch, context_tokens, law.proposal_share(drafts)).r
        return PolicyChoice(self._label, batch, context_tokens, drafts, law.mean_acceptance_length(drafts) / r)
