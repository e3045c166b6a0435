"""Laws of acceptance without a trace: each states its τ(γ) and draws one path per request.

The mean of a law is over *rounds*, requests giving equal numbers of output tokens, because that is what engines count:
requests (or stretches of text) that accept well have fewer rounds and weigh less.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from simulator.acceptance.path import AcceptancePath, Flags, ProposalSource, drawn_proposals, overlapping
from simulator.acceptance.rates import Rates, conditional_from_survival, extended, survival_from_conditional
from simulator.acceptance.streams import UniformStream


@dataclass(frozen=True, slots=True)
class AcceptanceLaw(ABC):
    """How drafts are accepted. `note` says how the law was come by where that matters."""

    note: str = field(default="", kw_only=True)

    @abstractmethod
    def conditional_rates(self, num_speculative_tokens: int) -> Rates:
        """P(draft i accepted | proposed, and all before it accepted) for i = 1..γ, over rounds; shape (γ,)."""

    @abstractmethod
    def path(self, request_id: int, output_tokens: int, seed: int, *, prompt_tokens: int = 0) -> AcceptancePath:
        """The acceptance of one request. Same arguments, same path."""

    def proposal_share(self, num_speculative_tokens: int) -> float:  # noqa: ARG002
        """Share of rounds in which the drafter proposes anything."""
        return 1.0

    @property
    def measured_up_to(self) -> int | None:
        """The γ to which the law was measured; None where it is exact at any γ."""
        return None

    def at_context(self, context_tokens: int) -> AcceptanceLaw:  # noqa: ARG002
        """The law that holds at this context length: itself, unless it depends on the context."""
        return self

    def mean_acceptance_length(self, num_speculative_tokens: int) -> float:
        """τ over all rounds, with or without a proposal: tokens per round of one sequence, bonus included."""
        accepted = self.mean_acceptance_length_of_proposals(num_speculative_tokens) - 1
        return 1 + self.proposal_share(num_speculative_tokens) * accepted

    def mean_acceptance_length_of_proposals(self, num_speculative_tokens: int) -> float:
        """τ over rounds with a proposal: what engines print as mean acceptance length."""
        return 1 + float(survival_from_conditional(self.conditional_rates(num_speculative_tokens)).sum())

    def draft_acceptance_rate(self, num_speculative_tokens: int) -> float:
        """Accepted / drafted."""
        return (self.mean_acceptance_length_of_proposals(num_speculative_tokens) - 1) / num_speculative_tokens

    def extrapolated(self, num_speculative_tokens: int) -> str:
        """A warning where γ lies past the measured ones, else ""."""
        limit = self.measured_up_to
        if limit is None or num_speculative_tokens <= limit:
            return ""
        return f"acceptance past γ = {limit}, the largest that was measured, is extrapolated"


@dataclass(frozen=True, slots=True)
class IndependentAcceptance(AcceptanceLaw):
    """Every draft is accepted with the same probability α; `measured_at` where α was inverted from τ at that γ."""

    acceptance_rate: float
    proposal_rate: float = field(default=1.0, kw_only=True)
    measured_at: int | None = field(default=None, kw_only=True)

    def conditional_rates(self, num_speculative_tokens: int) -> Rates:
        return np.full(num_speculative_tokens, self.acceptance_rate)

    def proposal_share(self, num_speculative_tokens: int) -> float:  # noqa: ARG002
        return self.proposal_rate

    @property
    def measured_up_to(self) -> int | None:
        return self.measured_at

    def path(self, request_id: int, output_tokens: int, seed: int, *, prompt_tokens: int = 0) -> AcceptancePath:  # noqa: ARG002
        uniforms = UniformStream(seed, b"acceptance", request_id)
        rate = np.array(self.acceptance_rate)  # an array meets another of no dimensions sooner than it meets a number

        def flags(positions: int, depth: int) -> Flags:
            return uniforms.first(positions + depth) < rate

        return AcceptancePath(flags, output_tokens, _constant_proposals(seed, request_id, self.proposal_rate))


@dataclass(frozen=True, slots=True)
class PerPositionAcceptance(AcceptanceLaw):
    """Conditional rates by depth, the same at every γ; past the measured depths they are extended (`rates.extended`)."""

    conditional_acceptance_rates: tuple[float, ...]
    proposal_rate: float = field(default=1.0, kw_only=True)

    def conditional_rates(self, num_speculative_tokens: int) -> Rates:
        return extended(np.asarray(self.conditional_acceptance_rates), num_speculative_tokens)

    def proposal_share(self, num_speculative_tokens: int) -> float:  # noqa: ARG002
        return self.proposal_rate

    @property
    def measured_up_to(self) -> int | None:
        return len(self.conditional_acceptance_rates)

    def path(self, request_id: int, output_tokens: int, seed: int, *, prompt_tokens: int = 0) -> AcceptancePath:  # noqa: ARG002
        uniforms = UniformStream(seed, b"acceptance", request_id)

        def flags(positions: int, depth: int) -> Flags:
            drawn = overlapping(uniforms.first(positions + depth - 1), positions, depth)
            below: Flags = drawn < self.conditional_rates(depth)
            return below

        return AcceptancePath(flags, output_tokens, _constant_proposals(seed, request_id, self.proposal_rate))


@dataclass(frozen=True, slots=True)
class MarkovAcceptance(AcceptanceLaw):
    """Two states of the text, easy and hard, that persist from token to token.

    A draft for token t is accepted, and a round that starts at t has a proposal, with the probabilities of token t's
    state. For n-gram drafting easy is "the text copies something": proposals exist and are accepted.
    """

    easy_acceptance_rate: float
    hard_acceptance_rate: float
    easy_to_hard: float
    hard_to_easy: float
    easy_proposal_rate: float = field(default=1.0, kw_only=True)
    hard_proposal_rate: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        if self.easy_to_hard < 0 or self.hard_to_easy < 0 or not 0 < self.easy_to_hard + self.hard_to_easy <= 1:
            raise ValueError("easy_to_hard + hard_to_easy must be above 0 and at most 1: states persist from token to token")

    def conditional_rates(self, num_speculative_tokens: int) -> Rates:
        return conditional_from_survival(self._over_rounds(num_speculative_tokens)[1])

    def proposal_share(self, num_speculative_tokens: int) -> float:
        return self._over_rounds(num_speculative_tokens)[0]

    def _over_rounds(self, num_speculative_tokens: int) -> tuple[float, Rates]:
        """Exact: the state at the start of successive rounds is a Markov chain; (proposal share, survival rates).

        With P the transitions of one token, A the acceptance by state, a proposing round moves by
        Σ_n (A P)^n (1 - A) P + (A P)^γ P, the other rounds by P.
        """
        move = np.array([[1 - self.easy_to_hard, self.easy_to_hard], [self.hard_to_easy, 1 - self.hard_to_easy]])
        accept = np.diag([self.easy_acceptance_rate, self.hard_acceptance_rate])
        propose = np.array([self.easy_proposal_rate, self.hard_proposal_rate])
        reached, round_move, survival = np.eye(2), np.zeros((2, 2)), []
        for _ in range(num_speculative_tokens):
            round_move += reached @ (np.eye(2) - accept) @ move
            survival.append((reached @ accept).sum(axis=1))
            reached = reached @ accept @ move
        round_move += reached @ move
        between = propose[:, None] * round_move + (1 - propose)[:, None] * move
        start = np.array([between[1, 0], between[0, 1]]) / (between[1, 0] + between[0, 1])
        share = float(start @ propose)
        proposing = start * propose / share if share > 0 else start
        return share, np.array([float(proposing @ by_state) for by_state in survival])

    def path(self, request_id: int, output_tokens: int, seed: int, *, prompt_tokens: int = 0) -> AcceptancePath:  # noqa: ARG002
        uniforms, states = UniformStream(seed, b"acceptance", request_id), UniformStream(seed, b"acceptance-state", request_id)

        def flags(positions: int, depth: int) -> Flags:
            easy = self._easy(states.first(positions + depth))
            rates = np.where(easy, self.easy_acceptance_rate, self.hard_acceptance_rate)
            agree: Flags = uniforms.first(positions + depth) < rates
            return agree

        def proposal_rates(positions: int) -> Rates:
            return np.where(self._easy(states.first(positions)), self.easy_proposal_rate, self.hard_proposal_rate)

        always = self.easy_proposal_rate == self.hard_proposal_rate == 1
        return AcceptancePath(flags, output_tokens, None if always else drawn_proposals(seed, request_id, proposal_rates))

    def _easy(self, uniforms: Rates) -> Flags:
        """The state of each token: low uniforms make it easy, high ones hard, the others leave it as it was."""
        to_easy, to_hard = uniforms < self.hard_to_easy, uniforms >= 1 - self.easy_to_hard
        to_easy[0] = uniforms[0] < self.hard_to_easy / (self.hard_to_easy + self.easy_to_hard)
        to_hard[0] = not to_easy[0]
        last_decided = np.maximum.accumulate(np.where(to_easy | to_hard, np.arange(len(uniforms)), 0))
        easy: Flags = to_easy[last_decided]
        return easy


def _constant_proposals(seed: int, request_id: int, rate: float) -> ProposalSource | None:
    return None if rate == 1 else drawn_proposals(seed, request_id, lambda positions: np.full(positions, rate))
