"""Acceptance of draft trees: measured with the tree, never taken from a chain.

A tree accepts a path from its root, at most one token a depth. Some of its nodes are second choices, which help where the first
choice fails, at the cost of depth where the budget of nodes is small. Which of the two weighs more depends on how sure the
drafter is, so that no chain's acceptance tells a tree's: over 60 pairs of drafter and data set in SpecForge's SpecBundle table,
trees of 5/3/6 and 7/4/8 (steps / top-k / nodes) yield 0.64 to 1.16 times the tokens per round of chains of as many steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from simulator.acceptance.laws import PerPositionAcceptance
from simulator.acceptance.rates import Rates, conditional_from_survival
from simulator.draft_tree import Tree, TreeShape, read_tree
from simulator.spec import Spec
from simulator.theory import acceptance_rate_for

Rate = Annotated[float, Field(ge=0, le=1)]
MeasuredRates = Annotated[tuple[Rate, ...], Field(min_length=1)]
NOT_A_CHAIN = "in measured pairs a tree yields 0.64 to 1.16 times the tokens per round of a chain of as many steps"


@dataclass(frozen=True, slots=True)
class TreeAcceptance(PerPositionAcceptance):
    """Conditional rates by depth of one tree; nothing is accepted below its deepest node, however many nodes are verified."""

    def conditional_rates(self, num_speculative_tokens: int) -> Rates:
        rates = np.asarray(self.conditional_acceptance_rates[:num_speculative_tokens])
        return np.concatenate((rates, np.zeros(num_speculative_tokens - len(rates))))

    @property
    def measured_up_to(self) -> int | None:
        return None


class TreeRatesSpec(Spec):
    """Acceptance measured with one tree: its τ, or rates by depth, one for each step."""

    tree: TreeShape
    mean_acceptance_length: Annotated[float, Field(ge=1)] | None = None
    acceptance_rates_per_position: MeasuredRates | None = None
    conditional_acceptance_rates: MeasuredRates | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        tree_law(self.shape, self.mean_acceptance_length, self.acceptance_rates_per_position, self.conditional_acceptance_rates)
        return self

    @property
    def shape(self) -> Tree:
        return read_tree(self.tree)

    def law(self) -> TreeAcceptance:
        return tree_law(
            self.shape, self.mean_acceptance_length, self.acceptance_rates_per_position, self.conditional_acceptance_rates
        )


def tree_law(
    tree: Tree,
    mean_acceptance_length: float | None = None,
    acceptance_rates_per_position: tuple[float, ...] | None = None,
    conditional_acceptance_rates: tuple[float, ...] | None = None,
) -> TreeAcceptance:
    """The law of accepted depth of a tree from one of the three. A lone τ is met by equal conditional rates at every depth.

    Raises ValueError where not exactly one is given, or it cannot be.

    >>> round(tree_law(read_tree("steps=5,topk=3,draft_tokens=6"), 2.282).mean_acceptance_length(5), 3)
    2.282
    """
    given = (mean_acceptance_length, acceptance_rates_per_position, conditional_acceptance_rates)
    if sum(value is not None for value in given) != 1:
        raise ValueError(
            "must hold exactly one of mean_acceptance_length, acceptance_rates_per_position and conditional_acceptance_rates"
        )
    depth = tree.depth
    if mean_acceptance_length is not None:
        if mean_acceptance_length > depth + 1:
            raise ValueError(
                f"must be at most {depth + 1}, the depth of {tree.name} and the bonus (got {mean_acceptance_length:g})"
            )
        rate = acceptance_rate_for(mean_acceptance_length, depth)
        note = (
            f"equal conditional rates of {rate:.3f} at every depth are inverted from τ = {mean_acceptance_length:g} "
            f"of {tree.name}; real ones change with depth"
        )
        return TreeAcceptance((rate,) * depth, note=note)
    rates = acceptance_rates_per_position or conditional_acceptance_rates or ()
    if len(rates) != depth:
        raise ValueError(f"must hold {depth} rates, one for each depth of {tree.name} (got {len(rates)})")
    if acceptance_rates_per_position is not None:
        if any(after > before for before, after in pairwise(rates)):
            raise ValueError("must never rise: acceptance_rates_per_position count rounds that passed every depth before")
        rates = tuple(conditional_from_survival(rates).tolist())
    return TreeAcceptance(rates)


def names(shapes: Iterable[Tree]) -> str:
    """``tree 5/3/6, tree 7/4/8``, or "none"."""
    return ", ".join(shape.name for shape in shapes) or "none"
