"""The `acceptance:` section of a scenario, and what it resolves to."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from simulator import resources
from simulator.acceptance.laws import AcceptanceLaw, IndependentAcceptance, PerPositionAcceptance
from simulator.acceptance.population import BetaAcceptance, spread_over_requests
from simulator.acceptance.profile_spec import RatesSpec
from simulator.acceptance.profiles import Profile, read_profile
from simulator.acceptance.structured import StructuredOutputSpec, structured
from simulator.acceptance.trace_files import SUFFIXES, read_trace_file
from simulator.acceptance.traces import TraceAcceptance
from simulator.acceptance.trees import NOT_A_CHAIN, TreeRatesSpec, names, tree_law
from simulator.draft_tree import Tree
from simulator.spec import Document, Location, SpecError, dotted
from simulator.theory import acceptance_rate_for

_LAWS = (
    "profile",
    "acceptance_rate",
    "conditional_acceptance_rates",
    "acceptance_rates_per_position",
    "mean_acceptance_length",
    "trace",
)


class AcceptanceSpec(RatesSpec):
    """How drafts are accepted: exactly one way of saying it, refined by `domain`, `proposal_rate`, `request_spread`,
    `structured_output`."""

    profile: str | None = Field(None, description="id or path of an acceptance profile")
    mean_acceptance_length: Annotated[float, Field(ge=1)] | None = Field(
        None, description="τ with the bonus, over rounds with a proposal, at the scenario's largest num_speculative_tokens"
    )
    trace: str | None = Field(None, description="path of an acceptance trace (.npz or .parquet)")
    domain: str | None = Field(None, description="row of the profile's table, or category of the trace")
    trees: Annotated[tuple[TreeRatesSpec, ...], Field(min_length=1)] | None = Field(
        None, description="acceptance measured with trees, where several shapes are compared"
    )
    request_spread: Annotated[float, Field(ge=0.001, lt=0.5)] | None = Field(
        None, description="sd between requests of the rate at which their first draft is accepted"
    )

    structured_output: StructuredOutputSpec | None = Field(None, description="positions whose token a grammar forces")

    @model_validator(mode="after")
    def _one_law(self) -> Self:
        if self.trees is None or self.law_key != "trees":
            self.exactly_one_of(*_LAWS)
        chosen = self.law_key
        if self.proposal_rate is not None and chosen in ("profile", "trace"):
            raise ValueError(f"must have no proposal_rate beside {chosen}, which states its own")
        shapes = [entry.shape for entry in self.trees or ()]
        if len(set(shapes)) < len(shapes):
            raise ValueError("must state each tree once in trees")
        if self.domain is not None and chosen not in ("profile", "trace"):
            raise ValueError(f"must have no domain beside {chosen}: only profiles and traces tell kinds of text apart")
        if self.request_spread is not None and chosen == "trace":
            raise ValueError("must have no request_spread beside trace, whose prompts differ already")
        return self

    @property
    def law_key(self) -> str:
        """The one key that states a law; "trees" where nothing stands beside them."""
        return next((key for key in _LAWS if getattr(self, key) is not None), "trees")


@dataclass(frozen=True, slots=True)
class ResolvedAcceptance:
    """A law, where its numbers come from, and what a reader of the result must be told."""

    law: AcceptanceLaw
    source: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the section stands, for messages."""

    document: Document
    location: Location

    def error(self, key: str, must: str, got: object = "", names: tuple[str, ...] = ()) -> SpecError:
        return SpecError([self.document.problem((*self.location, key), must, got, names)])

    def beside(self, name: str) -> Path | None:
        """The file `name` means, next to the document or in the working folder."""
        paths = (Path(self.document.source).parent / name, Path(name))
        try:
            return next((path for path in paths if resources.is_file(path)), None)
        except OSError:  # such as a name longer than the file system takes
            return None


def resolve_acceptance(
    spec: AcceptanceSpec, document: Document, num_speculative_tokens: int, location: Location = ("acceptance",)
) -> ResolvedAcceptance:
    """The law a section states, for runs with up to `num_speculative_tokens` drafts per round.

    `document` and `location` say where the section came from: messages name it, relative paths start there. Raises
    `SpecError` for what cannot be found or cannot be.
    """
    place = _Place(document, location)
    if spec.law_key == "trees":
        raise place.error("trees", "must stand beside the acceptance of chains, which the scenario compares with them")
    if spec.profile is not None:
        resolved = _from_profile(spec, place, num_speculative_tokens)
    elif spec.trace is not None:
        resolved = _from_trace(spec, place, num_speculative_tokens)
    else:
        law = _stated_law(spec, place, num_speculative_tokens)
        warning = law.extrapolated(num_speculative_tokens)
        resolved = ResolvedAcceptance(law, "stated in the scenario", (warning,) if warning else ())
    return _with_forced(spec, resolved if spec.request_spread is None else _spread(spec, place, resolved))


def resolve_tree_acceptance(
    spec: AcceptanceSpec, document: Document, tree: Tree, alone: bool, location: Location = ("acceptance",)
) -> ResolvedAcceptance:
    """The law a section states for a tree: an entry of `trees`, a profile measured with it, or, where the tree is all that is
    asked for (`alone`), the section's own τ or rates by depth. Raises `SpecError` for a chain's acceptance, which says nothing
    of a tree.
    """
    place = _Place(document, location)
    entry = next((entry for entry in spec.trees or () if entry.shape == tree), None)
    if entry is not None:
        resolved = ResolvedAcceptance(entry.law(), f"stated in the scenario for {tree.name}")
    elif spec.profile is not None:
        resolved = _tree_from_profile(spec, place, tree)
    else:
        resolved = ResolvedAcceptance(_stated_tree_law(spec, place, tree, alone), "stated in the scenario")
    return _with_forced(spec, resolved if spec.request_spread is None else _spread(spec, place, resolved))


def _with_forced(spec: AcceptanceSpec, resolved: ResolvedAcceptance) -> ResolvedAcceptance:
    output = spec.structured_output
    if output is None:
        return resolved
    return dataclasses.replace(resolved, law=structured(resolved.law, output), source=f"{resolved.source}; {output.sentence()}")


def _stated_tree_law(spec: AcceptanceSpec, place: _Place, tree: Tree, alone: bool) -> AcceptanceLaw:
    key = spec.law_key
    if key in ("acceptance_rate", "trace"):
        must = f"must not stand for {tree.name}: it is of a chain, and {NOT_A_CHAIN}; give mean_acceptance_length of the tree"
        raise place.error(key, must)
    if key == "trees" or not alone:
        raise place.error("trees", f"must hold {tree.name}, with the acceptance measured with it")
    try:
        return tree_law(tree, spec.mean_acceptance_length, spec.acceptance_rates_per_position, spec.conditional_acceptance_rates)
    except ValueError as error:
        raise place.error(key, str(error)) from None


def _tree_from_profile(spec: AcceptanceSpec, place: _Place, tree: Tree) -> ResolvedAcceptance:
    profile = _found_profile(spec.profile or "", place)
    if tree not in profile.trees():
        must = (
            f"must be a profile measured with {tree.name} ({profile.profile_id} holds trees: {names(profile.trees())}); "
            f"a chain's acceptance is not taken: {NOT_A_CHAIN}"
        )
        raise place.error("profile", must)
    law = profile.tree_law(tree)
    if spec.domain is not None:
        law = _row({**profile.tree_table(tree)}, spec.domain, f"profile {profile.profile_id}", place)
    domain = f", {spec.domain}" if spec.domain else ""
    return ResolvedAcceptance(law, f"profile {profile.profile_id}, {tree.name}{domain}: {profile.spec.source_text()}")


def _stated_law(spec: AcceptanceSpec, place: _Place, num_speculative_tokens: int) -> AcceptanceLaw:
    length = spec.mean_acceptance_length
    if length is None:
        return spec.plain_law()
    top = num_speculative_tokens + 1
    if num_speculative_tokens < 1 or length > top:
        must = f"must be between 1 and {top}: no more tokens leave a round of {num_speculative_tokens} drafts, bonus included"
        raise place.error("mean_acceptance_length", must, length)
    rate = acceptance_rate_for(length, num_speculative_tokens)
    return IndependentAcceptance(
        rate,
        proposal_rate=1.0 if spec.proposal_rate is None else spec.proposal_rate,
        measured_at=num_speculative_tokens,
        note=f"independent acceptance: α = {rate:.3f} is inverted from τ = {length:g} at γ = {num_speculative_tokens};"
        " real conditional rates change with depth",
    )


def _from_profile(spec: AcceptanceSpec, place: _Place, num_speculative_tokens: int) -> ResolvedAcceptance:
    profile = _found_profile(spec.profile or "", place)
    if not profile.of_chains:
        raise place.error("profile", f"must be measured with chains: {profile.profile_id} holds {names(profile.trees())} only")
    law = profile.law() if spec.domain is None else _row(profile.table(), spec.domain, f"profile {profile.profile_id}", place)
    _check_depth(law, num_speculative_tokens, place, "profile")
    warnings = profile.warnings(law, spec.domain, num_speculative_tokens)
    domain = f", {spec.domain}" if spec.domain else ""
    source = f"profile {profile.profile_id}{domain}: {profile.spec.source_text()}"
    return ResolvedAcceptance(law, source, tuple(warnings))


def _found_profile(name: str, place: _Place) -> Profile:
    path = place.beside(name) if name.endswith((".yaml", ".yml")) else None
    path = path or resources.file_of("acceptance", name)
    if path is None:
        where = place.document.where((*place.location, "profile"))
        key = dotted((*place.location, "profile")) if place.document.source else ""
        raise resources.unknown(where, key, "acceptance profile", name, resources.ids("acceptance"))
    return read_profile(path)


def _from_trace(spec: AcceptanceSpec, place: _Place, num_speculative_tokens: int) -> ResolvedAcceptance:
    path = place.beside(spec.trace or "")
    if path is None:
        raise place.error("trace", f"must be the path of a trace file ({' or '.join(SUFFIXES)})", spec.trace)
    content = read_trace_file(path)
    law: AcceptanceLaw = content.trace
    if spec.domain is not None:
        table: dict[str, AcceptanceLaw] = {name: content.trace.of_category(name) for name in content.trace.category_names()}
        law = _row(table, spec.domain, f"trace {path}", place)
    _check_depth(law, num_speculative_tokens, place, "trace")
    origin = content.source_text()
    return ResolvedAcceptance(law, f"trace {path.name}: {origin}" if origin else f"trace {path.name}")


def _row(table: dict[str, AcceptanceLaw], domain: str, holder: str, place: _Place) -> AcceptanceLaw:
    if not table:
        raise place.error("domain", f"must be left out: {holder} tells no kinds of text apart", domain)
    if domain not in table:
        raise place.error("domain", f"must be one of {', '.join(table)} ({holder})", domain, tuple(table))
    return table[domain]


def _check_depth(law: AcceptanceLaw, num_speculative_tokens: int, place: _Place, key: str) -> None:
    """A trace with a depth axis cannot be replayed deeper than it was recorded."""
    if isinstance(law, TraceAcceptance) and law.extrapolated(num_speculative_tokens):
        must = f"must be recorded to {num_speculative_tokens} speculative tokens, not to {law.measured_up_to}"
        raise place.error(key, must)


def _spread(spec: AcceptanceSpec, place: _Place, resolved: ResolvedAcceptance) -> ResolvedAcceptance:
    spread = spec.request_spread or 0.0
    try:
        return dataclasses.replace(resolved, law=_spread_law(resolved.law, spread))
    except ValueError as error:
        raise place.error("request_spread", str(error), spread) from None


def _spread_law(law: AcceptanceLaw, spread: float) -> AcceptanceLaw:
    """A plain α becomes its mean over requests; laws measured as τ, or by depth, keep their τ over all rounds.

    Raises ValueError where the spread is too wide or the law cannot be spread.
    """
    if isinstance(law, PerPositionAcceptance):
        return spread_over_requests(law, spread)
    if not isinstance(law, IndependentAcceptance):
        raise ValueError("must be left out: under this profile requests differ already, or acceptance is not by depth")
    rate = law.acceptance_rate
    if law.measured_at is not None:
        by_depth = PerPositionAcceptance((rate,) * law.measured_at, proposal_rate=law.proposal_rate, note=law.note)
        return spread_over_requests(by_depth, spread)
    if spread**2 >= rate * (1 - rate):
        raise ValueError(f"must be below {(rate * (1 - rate)) ** 0.5:.3g}, the widest spread about {rate:g}")
    return BetaAcceptance(rate, rate * (1 - rate) / spread**2 - 1, proposal_rate=law.proposal_rate)
