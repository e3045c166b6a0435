"""ProfileSpec: what a file of `acceptance_profiles/` may hold; and the keys that it shares with a scenario."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from simulator.acceptance.laws import AcceptanceLaw, IndependentAcceptance, MarkovAcceptance, PerPositionAcceptance
from simulator.acceptance.population import ContextAcceptance
from simulator.acceptance.rates import check_curve, conditional_from_survival, survival_from_curve
from simulator.acceptance.trees import MeasuredRates, Rate, TreeRatesSpec
from simulator.spec import Spec
from simulator.speculation import DraftingMethod
from simulator.theory import acceptance_rate_for

CURVE_NOISE = 0.1  # τ of neighbouring γ in the published curves scatters so much (80 prompts a point)


class RatesSpec(Spec):
    """The keys that profiles and scenarios share: acceptance as plain rates."""

    acceptance_rate: Rate | None = Field(None, description="α: a draft is accepted, given all before it were")
    conditional_acceptance_rates: MeasuredRates | None = Field(
        None, description="α by depth, each given all before were accepted"
    )
    acceptance_rates_per_position: MeasuredRates | None = Field(
        None, description="unconditional, as vLLM prints them: never rising"
    )
    proposal_rate: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="share of rounds with a proposal")

    @field_validator("acceptance_rates_per_position")
    @classmethod
    def _never_rise(cls, rates: tuple[float, ...] | None) -> tuple[float, ...] | None:
        for index, (before, rate) in enumerate(zip(rates or (), (rates or ())[1:], strict=False), start=1):
            if rate > before:
                raise ValueError(
                    f"must never rise: position {index} ({rate:g}) counts rounds that passed position {index - 1} ({before:g});"
                    " rates given that all before were accepted are conditional_acceptance_rates"
                )
        return rates

    def exactly_one_of(self, *keys: str) -> None:
        """Raises ValueError unless exactly one of the keys is given."""
        given = [key for key in keys if getattr(self, key) is not None]
        if len(given) != 1:
            raise ValueError(f"must have exactly one of {', '.join(keys)} (got {' and '.join(given) or 'none'})")

    def plain_law(self) -> IndependentAcceptance | PerPositionAcceptance:
        """The law of the plain rates. Raises ValueError where none is given."""
        proposal_rate = 1.0 if self.proposal_rate is None else self.proposal_rate
        if self.acceptance_rate is not None:
            return IndependentAcceptance(self.acceptance_rate, proposal_rate=proposal_rate)
        if self.conditional_acceptance_rates is not None:
            return PerPositionAcceptance(self.conditional_acceptance_rates, proposal_rate=proposal_rate)
        if self.acceptance_rates_per_position is None:
            raise ValueError("must have rates")
        rates = conditional_from_survival(self.acceptance_rates_per_position)
        return PerPositionAcceptance(tuple(rates.tolist()), proposal_rate=proposal_rate)


class StretchesSpec(Spec):
    """Easy and hard stretches of text: `MarkovAcceptance`. Transition probabilities are per emitted token."""

    easy_acceptance_rate: Rate
    hard_acceptance_rate: Rate
    easy_to_hard: Rate
    hard_to_easy: Rate
    easy_proposal_rate: Rate = 1.0
    hard_proposal_rate: Rate = 1.0

    @model_validator(mode="after")
    def _persistent(self) -> Self:
        MarkovAcceptance(**self.model_dump())
        return self


class RowSpec(RatesSpec):
    """One measured law of chains: τ by γ, or plain rates, or stretches; and what was measured with trees, beside it or alone.
    `weight`: share of the output tokens, within a table."""

    mean_acceptance_lengths: Annotated[dict[int, float], Field(min_length=1)] | None = Field(
        None, description="τ by γ, bonus included, each γ fixed in its own run"
    )
    stretches: StretchesSpec | None = None
    trees: Annotated[tuple[TreeRatesSpec, ...], Field(min_length=1)] | None = Field(None, description="measured with trees")
    weight: Annotated[float, Field(gt=0)] = 1.0

    @field_validator("mean_acceptance_lengths")
    @classmethod
    def _possible(cls, curve: dict[int, float] | None) -> dict[int, float] | None:
        if curve is not None:
            check_curve(curve)
        return curve

    @model_validator(mode="after")
    def _one_law(self) -> Self:
        if self.trees is None or self.of_chains:
            self.exactly_one_of(*self._laws())
        if self.stretches is not None and self.proposal_rate is not None:
            raise ValueError("must have no proposal_rate beside stretches, which state their own")
        return self

    def _laws(self) -> tuple[str, ...]:
        return (
            "acceptance_rate",
            "conditional_acceptance_rates",
            "acceptance_rates_per_position",
            "mean_acceptance_lengths",
            "stretches",
        )

    @property
    def of_chains(self) -> bool:
        """Whether anything was measured with chains."""
        return any(getattr(self, key) is not None for key in self._laws())

    def row_law(self) -> AcceptanceLaw:
        if self.stretches is not None:
            return MarkovAcceptance(**self.stretches.model_dump())
        if self.mean_acceptance_lengths is None:
            return self.plain_law()
        rates = conditional_from_survival(survival_from_curve(self.mean_acceptance_lengths))
        return PerPositionAcceptance(
            tuple(rates.tolist()), proposal_rate=1.0 if self.proposal_rate is None else self.proposal_rate
        )

    def deviations(self, law: AcceptanceLaw, num_speculative_tokens: int) -> list[str]:
        """Where the law, whose increments never rise, leaves a measured τ by more than its noise."""
        curve = self.mean_acceptance_lengths or {}
        found = []
        for count in sorted(curve):
            length = law.mean_acceptance_length_of_proposals(count)
            if count <= num_speculative_tokens and abs(length - curve[count]) > CURVE_NOISE:
                found.append(
                    f"at {count} speculative tokens the profile measured τ {curve[count]:g}, its smoothed law gives {length:.2f}"
                )
        return found


class ContextsSpec(Spec):
    """τ by context length at one γ."""

    num_speculative_tokens: Annotated[int, Field(ge=1)]
    mean_acceptance_length: Annotated[dict[int, float], Field(min_length=2)] = Field(
        description="τ by context tokens, bonus included"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if min(self.mean_acceptance_length) < 1:
            raise ValueError("must have contexts of at least 1 token")
        for length in self.mean_acceptance_length.values():
            acceptance_rate_for(length, self.num_speculative_tokens)
        return self

    def law(self) -> ContextAcceptance:
        rates = {
            tokens: acceptance_rate_for(length, self.num_speculative_tokens)
            for tokens, length in self.mean_acceptance_length.items()
        }
        return ContextAcceptance(tuple(sorted(rates.items())), measured_at=self.num_speculative_tokens)


class SourceSpec(Spec):
    citation: str
    url: str
    confidence: Literal["read-in-source", "user-report", "own-measurement"]
    licence: str = ""


class ProfileSpec(RowSpec):
    """A file of `acceptance_profiles/`: what was measured, how, and one law, a table of laws, or a trace."""

    schema_version: Literal[1]
    description: str
    method: DraftingMethod
    target: str
    drafter: str
    sampler: str
    prompts: str
    unit: str
    source: SourceSpec
    notes: str = ""
    domains: Annotated[dict[str, RowSpec], Field(min_length=1)] | None = None
    contexts: ContextsSpec | None = None
    trace: str | None = None

    def _laws(self) -> tuple[str, ...]:
        return (*super()._laws(), "domains", "contexts", "trace")

    @model_validator(mode="after")
    def _whole_rounds(self) -> Self:
        if self.proposal_rate is not None and (self.domains or self.contexts or self.trace):
            raise ValueError("must have no proposal_rate beside domains, contexts or a trace")
        if self.trees and self.domains:
            raise ValueError("must have no trees beside domains, each of which states its own")
        return self

    def source_text(self) -> str:
        return f"{self.source.citation} ({self.target} with {self.drafter}; {self.prompts}; {self.sampler}; {self.unit})"
