"""Measured acceptance as files: `acceptance_profiles/*.yaml`, each number with its source, and the laws they state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from simulator import resources
from simulator.acceptance.laws import AcceptanceLaw, IndependentAcceptance, MarkovAcceptance, PerPositionAcceptance
from simulator.acceptance.population import ContextAcceptance, MixtureAcceptance
from simulator.acceptance.rates import check_curve, conditional_from_survival, survival_from_curve
from simulator.acceptance.trace_files import load_trace
from simulator.acceptance.traces import TraceAcceptance
from simulator.acceptance.trees import TreeAcceptance, TreeRatesSpec
from simulator.draft_tree import Tree
from simulator.spec import Document, Spec, check, load_yaml
from simulator.theory import acceptance_rate_for

CURVE_NOISE = 0.1  # τ of neighbouring γ in the published curves scatters so much (80 prompts a point)

Rate = Annotated[float, Field(ge=0, le=1)]
Rates = Annotated[tuple[Rate, ...], Field(min_length=1)]
Method = Literal[
    "draft_model", "eagle", "eagle3", "medusa", "hydra", "mtp", "ngram", "suffix", "block", "layer_skip", "sparse_kv"
]


class RatesSpec(Spec):
    """The keys that profiles and scenarios share: acceptance as plain rates."""

    acceptance_rate: Rate | None = Field(None, description="α: a draft is accepted, given all before it were")
    conditional_acceptance_rates: Rates | None = Field(None, description="α by depth, each given all before were accepted")
    acceptance_rates_per_position: Rates | None = Field(None, description="unconditional, as vLLM prints them: never rising")
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
    method: Method
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


@dataclass(frozen=True, slots=True)
class Profile:
    """A checked profile: its spec, the document it came from, and its laws."""

    profile_id: str
    spec: ProfileSpec
    document: Document

    def law(self) -> AcceptanceLaw:
        """The law over all kinds of text. Raises `SpecError` where its trace cannot be read."""
        if self.spec.contexts is not None:
            return self.spec.contexts.law()
        if self.spec.trace is not None:
            return self._trace(self.spec.trace)
        if self.spec.domains is None:
            return self.spec.row_law()
        total = sum(row.weight for row in self.spec.domains.values())
        weights = tuple(row.weight / total for row in self.spec.domains.values())
        note = f"requests are spread over {', '.join(self.spec.domains)} by the profile's weights"
        return MixtureAcceptance(weights, tuple(self.table().values()), note=note)

    @property
    def of_chains(self) -> bool:
        """Whether it says anything of chains; else it was measured with trees only."""
        return all(row.of_chains for row in (self.spec.domains or {"": self.spec}).values())

    def trees(self) -> tuple[Tree, ...]:
        """The trees with which every kind of text was measured."""
        measured = [{entry.shape: None for entry in row.trees or ()} for row in self._rows().values()]
        return tuple(shape for shape in measured[0] if all(shape in other for other in measured))

    def tree_table(self, tree: Tree) -> dict[str, TreeAcceptance]:
        """The law of each kind of text under a tree of `trees()`; the key is "" where the profile tells none apart."""
        return {name: next(entry.law() for entry in row.trees or () if entry.shape == tree) for name, row in self._rows().items()}

    def tree_law(self, tree: Tree) -> AcceptanceLaw:
        """The law under a tree of `trees()` over all kinds of text, by the profile's weights."""
        table, rows = self.tree_table(tree), self._rows()
        if len(table) == 1:
            return next(iter(table.values()))
        total = sum(row.weight for row in rows.values())
        note = f"requests are spread over {', '.join(table)} by the profile's weights"
        return MixtureAcceptance(tuple(row.weight / total for row in rows.values()), tuple(table.values()), note=note)

    def _rows(self) -> Mapping[str, RowSpec]:
        return self.spec.domains or {"": self.spec}

    def table(self) -> dict[str, AcceptanceLaw]:
        """The law of each kind of text; empty where the profile tells none apart."""
        if self.spec.trace is not None:
            trace = self._trace(self.spec.trace)
            return {name: trace.of_category(name) for name in trace.category_names()}
        return {name: row.row_law() for name, row in (self.spec.domains or {}).items()}

    def _trace(self, name: str) -> TraceAcceptance:
        return load_trace(Path(self.document.source).parent / name)

    def warnings(self, law: AcceptanceLaw, domain: str | None, num_speculative_tokens: int) -> list[str]:
        """What a reader of the result must know: extrapolation, smoothing, contexts outside the measured ones."""
        row = self.spec if domain is None or self.spec.domains is None else self.spec.domains[domain]
        found = [law.extrapolated(num_speculative_tokens), *row.deviations(law, num_speculative_tokens)]
        if self.spec.contexts is not None:
            contexts = self.spec.contexts.mean_acceptance_length
            found.append(
                f"acceptance was measured at contexts of {min(contexts)} to {max(contexts)} tokens; outside, the nearest is held"
            )
        return [text for text in found if text]


@resources.once_per_file
def read_profile(path: str | Path) -> Profile:
    """Reads a profile file. Raises `SpecError` with every mistake and its line."""
    document = load_yaml(path)
    return Profile(Path(path).stem, check(ProfileSpec, document), document)


@cache
def shipped_profiles() -> Mapping[str, Profile]:
    """All shipped profiles by id."""
    return dict(_shipped())


def _shipped() -> Iterator[tuple[str, Profile]]:
    """(id, profile) of each shipped file, which is read when its turn comes."""
    for name in resources.ids("acceptance"):
        yield name, read_profile(resources.folder("acceptance") / f"{name}.yaml")


@dataclass(frozen=True, slots=True)
class AcceptanceBand:
    """The lowest and highest τ at one γ among the shipped measurements of a method, where each comes from, and its law."""

    low: float
    high: float
    low_source: str
    high_source: str
    measurements: int
    low_law: AcceptanceLaw
    high_law: AcceptanceLaw
    note: str = ""


def band_for(method: str, num_speculative_tokens: int, tree: Tree | None = None) -> AcceptanceBand | None:
    """The sourced τ band of a method, None where nothing is shipped for it. τ counts all rounds, bonus included.

    Of a tree only measurements with that tree count. Of chains measurements that reach γ count; where none does, all are
    extended and the note says so. Measurements by context enter at their shortest context.
    """
    found = list(_measured(method, num_speculative_tokens, tree))
    if not found:
        return None
    measured = [row for row in found if not row[2]] or found
    low, high = min(measured, key=lambda row: row[:2]), max(measured, key=lambda row: row[:2])
    note = f"no measurement reaches {num_speculative_tokens} speculative tokens; all are extended" if measured[0][2] else ""
    return AcceptanceBand(low[0], high[0], low[1], high[1], len(measured), low[3], high[3], note)


def measured_lengths(method: str, num_speculative_tokens: int, tree: Tree | None = None) -> Iterator[float]:
    """Each τ between the ends of the band of a method, of measurements that reach γ. Profiles are read one by one, as asked for:
    reading all takes as long as a short simulation."""
    return (length for length, _, extended_by, _ in _measured(method, num_speculative_tokens, tree) if not extended_by)


_Measurement = tuple[float, str, str, AcceptanceLaw]  # τ, where from, what to tell, law


def _measured(method: str, num_speculative_tokens: int, tree: Tree | None) -> Iterator[_Measurement]:
    return _measured_chains(method, num_speculative_tokens) if tree is None else _measured_trees(method, tree)


def _measured_trees(method: str, tree: Tree) -> Iterator[_Measurement]:
    for profile_id, profile in _shipped():
        if profile.spec.method == method and tree in profile.trees():
            for domain, law in profile.tree_table(tree).items():
                name = f"{profile_id} ({domain})" if domain else profile_id
                yield law.mean_acceptance_length(tree.depth), name, "", law


def _measured_chains(method: str, num_speculative_tokens: int) -> Iterator[_Measurement]:
    for profile_id, profile in _shipped():
        if profile.spec.method != method or not profile.of_chains:
            continue
        for domain, law in (profile.table() or {"": profile.law()}).items():
            shortest = law.at_context(min(profile.spec.contexts.mean_acceptance_length)) if profile.spec.contexts else law
            name = f"{profile_id} ({domain})" if domain else profile_id
            length, warning = shortest.mean_acceptance_length(num_speculative_tokens), law.extrapolated(num_speculative_tokens)
            yield length, name, warning, shortest
