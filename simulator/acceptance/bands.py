"""AcceptanceBand: the lowest and the highest acceptance that anybody measured for a method."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.acceptance.laws import AcceptanceLaw
from simulator.acceptance.profiles import each_shipped
from simulator.draft_tree import Tree


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
    for profile_id, profile in each_shipped():
        if profile.spec.method == method and tree in profile.trees():
            for domain, law in profile.tree_table(tree).items():
                name = f"{profile_id} ({domain})" if domain else profile_id
                yield law.mean_acceptance_length(tree.depth), name, "", law


def _measured_chains(method: str, num_speculative_tokens: int) -> Iterator[_Measurement]:
    for profile_id, profile in each_shipped():
        if profile.spec.method != method or not profile.of_chains:
            continue
        for domain, law in (profile.table() or {"": profile.law()}).items():
            shortest = law.at_context(min(profile.spec.contexts.mean_acceptance_length)) if profile.spec.contexts else law
            name = f"{profile_id} ({domain})" if domain else profile_id
            length, warning = shortest.mean_acceptance_length(num_speculative_tokens), law.extrapolated(num_speculative_tokens)
            yield length, name, warning, shortest
