"""What a policy drafts at one batch and context, and what that gains: the operating point of a scenario whose γ varies."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.acceptance import AcceptanceLaw
from simulator.cost.known_pricers import uncertain_pricer
from simulator.cost.parallelism import share
from simulator.cost.spread import Estimate, RoundDoubt
from simulator.cost.step_scale import AS_PRICED, ends
from simulator.draft_policy import PolicySpec
from simulator.draft_tree import Tree
from simulator.scenario import Scenario
from simulator.simulation import Server
from simulator.spec import SpecError


@dataclass(frozen=True)
class PolicyChoice:
    """γ at (batch of the whole deployment, context), 0 where the policy is off. speedup: τ/R there; where it is off a plain step
    over a step without drafts beside the resting drafter. speedup_low, speedup_high: the ends of its 80 % interval."""

    label: str
    batch: int
    context_tokens: int
    num_speculative_tokens: int
    speedup: float
    speedup_low: float
    speedup_high: float


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
        gain = self._drafting(batch, context_tokens, drafts) if drafts else self._resting(batch, running, context_tokens)
        return PolicyChoice(self._label, batch, context_tokens, drafts, gain.value, gain.low, gain.high)

    def _drafting(self, batch: int, context_tokens: int, drafts: int) -> Estimate:
        law, r = self._law.at_context(context_tokens), self._r(batch, context_tokens, drafts)
        return Estimate.lognormal(law.mean_acceptance_length(drafts) / r.r, r.spread.inverse())

    def _resting(self, batch: int, running: int, context_tokens: int) -> Estimate:
        """Of a step without drafts: its upkeep is in doubt, and what host work it keeps of rounds by as much as these."""
        plain_s = self._plain.round_s(0, running, context_tokens)
        dear, cheap = ends(self._r(batch, context_tokens, self._server.shape.steps).spread)
        asked = [(context_tokens, 0)] * running
        low, middle, high = (
            plain_s / replace(self._server.pricer, scale=scale).price(asked, (), 0).seconds for scale in (dear, AS_PRICED, cheap)
        )
        return Estimate(middle, low, high)

    def _r(self, batch: int, context_tokens: int, drafts: int) -> RoundDoubt:
        law = self._law.at_context(context_tokens)
        pricer = uncertain_pricer(self._server.deployment, float(law.conditional_rates(drafts).prod()))
        return pricer.doubt(drafts, batch, context_tokens, law.proposal_share(drafts))

    @property
    def _law(self) -> AcceptanceLaw:
        assert self._server.law is not None
        return self._server.law
