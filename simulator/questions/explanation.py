"""explain: why. One plain step beside one round, term by term; R against τ; what is unsure; what would flip the sign."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator import theory
from simulator.cost.deployment import Deployment
from simulator.cost.roofline import Bound
from simulator.cost.round import RoundCost
from simulator.cost.spread import Estimate
from simulator.cost.uncertainty import UncertainPricer, quantities
from simulator.draft_tree import Tree
from simulator.hardware import Quantity
from simulator.prediction import MEMORY_UTILIZATION, OperatingPoint, cannot_be_served, verdict
from simulator.questions.break_even import GAMMAS
from simulator.questions.priced_point import PricedPoint, point_of_flags, point_of_scenario
from simulator.questions.sensitivity import Sensitivity, sensitivity_at
from simulator.questions.switches import Switched, draft_on_one_device, no_overheads, one_node, split_kv
from simulator.scenario import Scenario
from simulator.simulation import Progress
from simulator.spec import Document
from simulator.speculation import drafts_at_once
from simulator.validity import doubts_at

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 512, 2048, 8192, 32768, 131072)


@dataclass(frozen=True)
class TermRow:
    """One term in seconds, without and with speculation; `share` of the round; the bound under which it runs."""

    name: str
    plain_s: float
    round_s: float
    share: float
    bound: Bound


@dataclass(frozen=True)
class Doubt:
    """A coefficient, by how much one standard deviation of it moves R (a fraction), and where it comes from.

    quantity: None for tables (all-reduce, row factors), which are shifted as a whole.
    """

    name: str
    quantity: Quantity | None
    moves_r: float


@dataclass(frozen=True)
class Flip:
    """A change that turns a win into a loss or back, and the speedup after it."""

    change: str
    speedup: float


@dataclass(frozen=True)
class Explanation:
    """The answer at one operating point. speedup, verdict and flips need an acceptance; None, "" and () without one.

    among, taken: as of `PricedPoint`.
    """

    deployment: Deployment
    num_speculative_tokens: int
    batch: int
    context_tokens: float
    cost: RoundCost
    r: Estimate
    mean_acceptance_length: float | None
    speedup: Estimate | None
    verdict: str
    break_even_acceptance_rate: float | None
    textbook_speedup: float | None
    rows: tuple[TermRow, ...]
    doubts: tuple[Doubt, ...]
    flips: tuple[Flip, ...]
    sensitivity: Sensitivity
    warnings: tuple[str, ...]
    among: tuple[str, ...] = ()
    taken: str = ""

    @property
    def shape(self) -> Tree:
        """What the round drafts: a tree, or a chain of γ."""
        return self.deployment.tree or Tree.chain(self.num_speculative_tokens)


def explain(
    scenario: Scenario,
    gamma: int | None = None,
    batch: int | None = None,
    context: float | None = None,
    tree: Tree | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """Why the scenario comes out as it does, at its own mean batch and context unless given; of several γ and trees for the one
    that the verdict of its run names.

    The mean batch is that of its requests served without speculation. Raises ValueError without speculation.
    """
    point = point_of_scenario(scenario, gamma, batch, context, tree, progress)
    utilization = scenario.limits.gpu_memory_utilization
    asked = batch is not None or context is not None
    warnings = (*scenario.warnings, *([point.remark] if point.remark else []))
    return _explain(point, warnings, utilization, may_be_too_much=asked)


def explain_point(point: OperatingPoint, document: Document) -> Explanation:
    """The same at an operating point from flags. Raises `SpecError` and `prediction.UnsupportedError`."""
    return _explain(*point_of_flags(point, document), MEMORY_UTILIZATION, may_be_too_much=True)


def _explain(point: PricedPoint, warnings: tuple[str, ...], utilization: float, *, may_be_too_much: bool) -> Explanation:
    """may_be_too_much: the batch and context were said, not simulated, so that the memory may not hold them."""
    pricer, proposals = point.pricer(), point.proposals()
    cost = pricer.base.round(point.gamma, point.batch, point.context, proposals)
    spread, tau = point.spread(pricer), point.mean_acceptance_length()
    speedup = None if tau is None else Estimate.lognormal(tau / cost.r, spread.inverse())
    unserved = _unserved(point, utilization) if may_be_too_much else ""
    return Explanation(
        deployment=point.deployment,
        num_speculative_tokens=point.gamma,
        batch=point.batch,
        context_tokens=point.context,
        cost=cost,
        r=Estimate.lognormal(cost.r, spread),
        mean_acceptance_length=tau,
        speedup=speedup,
        verdict="" if speedup is None or unserved else verdict(speedup.low, speedup.high),
        break_even_acceptance_rate=(
            None if point.deployment.tree else pricer.base.break_even_rate(point.gamma, point.batch, point.context, proposals)
        ),
        textbook_speedup=None if tau is None else theory.textbook_speedup(tau, point.gamma, cost.cost_coefficient),
        rows=tuple(_rows(cost)),
        doubts=tuple(_doubts(pricer, point, proposals)),
        flips=tuple(_flips(point, utilization)),
        sensitivity=sensitivity_at(point),
        warnings=(
            *warnings,
            *([unserved] if unserved else []),
            *doubts_at(point.deployment, point.shape, point.batch, point.context, tau),
        ),
        among=point.among,
        taken=point.taken,
    )


def _rows(cost: RoundCost) -> Iterator[TermRow]:
    """Drafting first, then the target's terms, each beside its own part of a plain step."""
    plain = {term.name: term.seconds for term in cost.plain}
    for term in cost.draft:
        name = f"draft: {term.name.removeprefix('draft_').replace('_', ' ')}"
        yield TermRow(name, 0.0, term.seconds, term.seconds / cost.round_s, term.bound)
    for term in cost.verify:
        before = plain.get(term.name, 0.0)
        yield TermRow(term.name.replace("_", " "), before, term.seconds, term.seconds / cost.round_s, term.bound)


def _doubts(pricer: UncertainPricer, point: PricedPoint, proposals: float) -> list[Doubt]:
    """The coefficients whose doubt moves R most, largest first."""
    ratio, _ = pricer.sensitivities(point.gamma, point.batch, point.context, proposals)
    known = quantities(point.deployment)
    found = [
        Doubt(name, known.get(name), float(moved))
        for (name, _), moved in zip(pricer.shifted, ratio, strict=True)
        if abs(moved) >= 0.001
    ]
    return sorted(found, key=lambda doubt: -abs(doubt.moves_r))[:8]


def _flips(point: PricedPoint, utilization: float) -> Iterator[Flip]:
    """Changes of one thing at a time after which the speedup is on the other side of 1; the nearest of each kind that can be."""
    base = point.speedup()
    if base is None:
        return
    for kind in (_other_batches, _other_contexts, _other_gammas, _other_engines):
        for change, changed in kind(point):
            speedup = changed.speedup() if _can_be(changed, utilization) else None
            if speedup is not None and (speedup > 1) != (base > 1):
                yield Flip(change, speedup)
                break


def _can_be(point: PricedPoint, utilization: float) -> bool:
    """Whether the models know so many positions and drafts, and the devices hold so many tokens."""
    target, drafter = point.deployment.target, point.deployment.drafter
    limit = None if drafter is None else drafts_at_once(drafter)[0]
    if point.context > (target.max_position_embeddings or math.inf) or point.gamma > (limit or math.inf):
        return False
    return not _unserved(point, utilization)


def _unserved(point: PricedPoint, utilization: float) -> str:
    return cannot_be_served(point.deployment, point.batch, point.context, point.shape.nodes - 1, utilization)


def _nearest(values: tuple[int, ...], own: float) -> list[int]:
    return sorted((value for value in values if value != own), key=lambda value: abs(math.log(value / own)))


def _other_batches(point: PricedPoint) -> Iterator[Switched]:
    for batch in _nearest(BATCHES, point.batch):
        yield f"batch {batch} instead of {point.batch}", replace(point, batch=batch)


def _other_contexts(point: PricedPoint) -> Iterator[Switched]:
    for context in _nearest(CONTEXTS, point.context):
        yield f"context {context:,} instead of {point.context:,.0f} tokens", replace(point, context=float(context))


def _other_gammas(point: PricedPoint) -> Iterator[Switched]:
    if point.deployment.tree is not None:  # of other trees, and of chains, no acceptance is known
        return
    for gamma in sorted((gamma for gamma in GAMMAS if gamma != point.gamma), key=lambda gamma: abs(gamma - point.gamma)):
        yield f"γ = {gamma} instead of {point.gamma}", replace(point, gamma=gamma)


def _other_engines(point: PricedPoint) -> Iterator[Switched]:
    """Split-KV verification where it is missing, no overhead per round and draft step, one node, and the draft on one device."""
    yield from filter(None, (split_kv(point), no_overheads(point), one_node(point), draft_on_one_device(point)))
