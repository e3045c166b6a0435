"""Structured output: at some positions a grammar leaves one token only, whatever the models would say.

A drafter that is held to the grammar too drafts that token, and the target, whose other tokens are masked, accepts it for sure.
One that knows nothing of the grammar drafts what it likes: such a draft is taken as doomed. Measured on the same kind of output,
acceptance holds this already.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from simulator.acceptance.laws import AcceptanceLaw
from simulator.acceptance.path import AcceptancePath, Flags, overlapping
from simulator.acceptance.population import MixtureAcceptance
from simulator.acceptance.rates import Rates, conditional_from_survival
from simulator.acceptance.streams import UniformStream
from simulator.spec import Spec


class StructuredOutputSpec(Spec):
    """Positions whose token a grammar forces."""

    forced_share: Annotated[float, Field(gt=0, lt=1)] = Field(description="share of the output's positions")
    forced_run_tokens: Annotated[float, Field(ge=1, le=1e4)] | None = Field(
        None, description="mean length of a run of forced positions; left out: each is forced for itself"
    )
    grammar_aware_drafter: bool = Field(description="whether drafts are held to the grammar: accepted there, else rejected")

    @model_validator(mode="after")
    def _persistent(self) -> Self:
        shortest = 1 / (1 - self.forced_share)
        if self.forced_run_tokens is not None and self.forced_run_tokens < shortest:
            raise ValueError(f"forced_run_tokens must be at least {shortest:.3g}, the mean run where each is forced for itself")
        return self

    @property
    def run_tokens(self) -> float:
        return self.forced_run_tokens or 1 / (1 - self.forced_share)

    def sentence(self) -> str:
        knows = "that the drafter keeps to" if self.grammar_aware_drafter else "that the drafter knows nothing of"
        return f"{100 * self.forced_share:.3g} % of the positions forced by a grammar {knows}"


@dataclass(frozen=True, slots=True)
class StructuredAcceptance(AcceptanceLaw):
    """A law outside of forced positions, which are accepted for sure (`aware`) or never.

    Runs of forced positions and those between them have geometric lengths. The rates are exact where the law's own do not depend
    on the position; stretches of its own are taken as independent of the forced ones.
    """

    base: AcceptanceLaw
    forced_share: float
    run_tokens: float
    aware: bool

    def conditional_rates(self, num_speculative_tokens: int) -> Rates:
        """The state of the first token of successive rounds is a Markov chain, as in `MarkovAcceptance`."""
        move, share = self._move(), self.proposal_share(num_speculative_tokens)
        reached, round_move, survival = np.eye(2), np.zeros((2, 2)), []
        for rate in self.base.conditional_rates(num_speculative_tokens):
            accept = np.diag([float(self.aware), rate])
            round_move += reached @ (np.eye(2) - accept) @ move
            survival.append((reached @ accept).sum(axis=1))
            reached = reached @ accept @ move
        round_move += reached @ move
        between = share * round_move + (1 - share) * move
        start = np.array([between[1, 0], between[0, 1]]) / (between[1, 0] + between[0, 1])
        return conditional_from_survival([float(start @ by_state) for by_state in survival])

    def proposal_share(self, num_speculative_tokens: int) -> float:
        return self.base.proposal_share(num_speculative_tokens)

    @property
    def measured_up_to(self) -> int | None:
        return self.base.measured_up_to

    def at_context(self, context_tokens: int) -> AcceptanceLaw:
        return replace(self, base=self.base.at_context(context_tokens))

    def path(self, request_id: int, output_tokens: int, seed: int, *, prompt_tokens: int = 0) -> AcceptancePath:
        uniforms = UniformStream(seed, b"acceptance-forced", request_id)

        def with_forced(flags: Flags, positions: int, depth: int) -> Flags:
            forced = self._forced(uniforms.first(positions + depth))
            if flags.ndim == 2:
                forced = overlapping(forced, positions, depth)
            return flags | forced if self.aware else flags & ~forced

        return self.base.path(request_id, output_tokens, seed, prompt_tokens=prompt_tokens).changed(with_forced)

    def _move(self) -> Rates:
        """From (forced, free) to (forced, free) of the next token."""
        leave = 1 / self.run_tokens
        enter = leave * self.forced_share / (1 - self.forced_share)
        return np.array([[1 - leave, leave], [enter, 1 - enter]])

    def _forced(self, uniforms: Rates) -> Flags:
        """Which positions are forced: low uniforms force, high ones free, the others leave it as it was before."""
        (_, leave), (enter, _) = self._move()
        force, free = uniforms < enter, uniforms >= 1 - leave
        force[0] = uniforms[0] < self.forced_share
        free[0] = not force[0]
        last_decided = np.maximum.accumulate(np.where(force | free, np.arange(len(uniforms)), 0))
        forced: Flags = force[last_decided]
        return forced


def structured(law: AcceptanceLaw, output: StructuredOutputSpec) -> AcceptanceLaw:
    """A law with forced positions; requests that differ go on to differ."""
    if isinstance(law, MixtureAcceptance):
        return replace(law, laws=tuple(structured(one, output) for one in law.laws))
    return StructuredAcceptance(law, output.forced_share, output.run_tokens, output.grammar_aware_drafter, note=law.note)
