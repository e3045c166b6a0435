"""What moves the verdict: one thing changed at a time, at one operating point; and what a better draft would be worth.

Decode only, as `explain`: speedup = τ / R. Where acceptance is open, what moves is R, the acceptance length that is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from simulator.cost.deployment import Deployment
from simulator.cost.spread import Estimate, Spread
from simulator.draft_tree import Tree
from simulator.hardware import Hardware, Quantity
from simulator.prediction import verdict
from simulator.questions.priced_point import PricedPoint, point_of_scenario
from simulator.questions.switches import (
    Switched,
    covering_graphs,
    draft_on_one_device,
    half_the_vocabulary,
    one_node,
    split_kv,
    with_overheads,
)
from simulator.scenario import Scenario

SHARE = 0.1


@dataclass(frozen=True)
class Change:
    """One change and what it leads to. effect: of the speedup (of R where acceptance is open), as a fraction. verdict: "" where
    acceptance is open."""

    change: str
    r: float
    mean_acceptance_length: float | None
    speedup: float | None
    verdict: str
    effect: float


@dataclass(frozen=True)
class Lever:
    """One thing that can be otherwise: to both sides (a number), or in one way only (a switch)."""

    name: str
    changes: tuple[Change, ...]

    @property
    def reach(self) -> float:
        """The largest effect to either side, as a positive fraction."""
        return max(abs(change.effect) for change in self.changes)


@dataclass(frozen=True)
class BetterDraft:
    """per_token: d speedup / d τ at the point, the draft's cost unchanged. most: τ and speedup where every draft is accepted.
    needed: τ that breaks even."""

    per_token: float
    most_tokens: float
    most_speedup: float
    needed_tokens: float


@dataclass(frozen=True)
class Sensitivity:
    """The answer at one operating point; levers with the longest reach first."""

    deployment: Deployment
    shape: Tree
    batch: int
    context_tokens: float
    r: Estimate
    mean_acceptance_length: float | None
    speedup: Estimate | None
    verdict: str
    levers: tuple[Lever, ...]
    better_draft: BetterDraft | None

    @property
    def flips(self) -> tuple[Change, ...]:
        """Changes after which the speedup is on the other side of 1."""
        if self.speedup is None:
            return ()
        wins = self.speedup.value > 1
        changes = (change for lever in self.levers for change in lever.changes)
        return tuple(change for change in changes if change.speedup is not None and (change.speedup > 1) != wins)


def sensitivity(
    scenario: Scenario,
    gamma: int | None = None,
    batch: int | None = None,
    context: int | None = None,
    tree: Tree | None = None,
) -> Sensitivity:
    """At the scenario's own operating point unless given, as `explain`. Raises ValueError without speculation."""
    return sensitivity_at(point_of_scenario(scenario, gamma, batch, context, tree))


def sensitivity_at(point: PricedPoint) -> Sensitivity:
    """The same at a point that is resolved."""
    spread = point.spread(point.pricer())
    r, tau = point.round().r, point.mean_acceptance_length()
    speedup = None if tau is None else Estimate.lognormal(tau / r, spread.inverse())
    levers = [
        Lever(name, tuple(_changed(words, other, point, r, spread) for words, other in changes))
        for name, changes in _levers(point)
        if changes
    ]
    return Sensitivity(
        deployment=point.deployment,
        shape=point.shape,
        batch=point.batch,
        context_tokens=point.context,
        r=Estimate.lognormal(r, spread),
        mean_acceptance_length=tau,
        speedup=speedup,
        verdict="" if speedup is None else verdict(speedup.low, speedup.high),
        levers=tuple(sorted((lever for lever in levers if lever.reach > 0), key=lambda lever: -lever.reach)),
        better_draft=None if tau is None else _better_draft(point, r, tau),
    )


def _changed(words: str, other: PricedPoint, point: PricedPoint, base_r: float, spread: Spread) -> Change:
    r, tau = other.round().r, other.mean_acceptance_length()
    base = point.mean_acceptance_length()
    if tau is None or base is None:
        return Change(words, r, None, None, "", r / base_r - 1)
    speedup = tau / r
    return Change(words, r, tau, speedup, verdict(speedup / spread.high, speedup / spread.low), speedup / (base / base_r) - 1)


def _better_draft(point: PricedPoint, r: float, tau: float) -> BetterDraft:
    """R moves a little with acceptance where full acceptance widens the next draft pass, so the slope is a difference."""
    better, worse = (replace(point, acceptance_factor=factor) for factor in (1.02, 0.98))
    rise = (better.mean_acceptance_length() or tau) - (worse.mean_acceptance_length() or tau)
    gain = (better.speedup() or 0.0) - (worse.speedup() or 0.0)
    perfect = replace(point, acceptance_factor=math.inf)
    most = perfect.mean_acceptance_length() or tau
    return BetterDraft(gain / rise if rise > 0 else 1 / r, most, perfect.speedup() or 0.0, r)


# ---------------------------------------------------------------------------------------------------------------- levers

Changes = list[Switched]


def _levers(point: PricedPoint) -> Iterator[tuple[str, Changes]]:
    """(name, changed points) of everything that can be otherwise here."""
    percent = f"{100 * SHARE:.0f} %"
    if point.law() is not None:
        yield (
            "acceptance rate",
            [
                (f"acceptance rate {sign}{percent}", replace(point, acceptance_factor=factor))
                for sign, factor in (("-", 1 - SHARE), ("+", 1 + SHARE))
            ],
        )
    for name, scaled in (("memory bandwidth", _with_bandwidth), ("arithmetic", _with_flops)):
        yield (
            name,
            [(f"{name} {sign}{percent}", _on(point, scaled, factor)) for sign, factor in (("-", 1 - SHARE), ("+", 1 + SHARE))],
        )
    halves = [("batch halved", replace(point, batch=max(point.batch // 2, 1)))] if point.batch > 1 else []
    yield "batch", [*halves, ("batch doubled", replace(point, batch=2 * point.batch))]
    yield (
        "context",
        [(f"context {word}", replace(point, context=point.context * by)) for word, by in (("halved", 0.5), ("doubled", 2))],
    )
    yield (
        "engine overhead per round and draft step",
        [
            (
                f"engine overhead per round and draft step {word}",
                with_overheads(point, by),
            )
            for word, by in (("halved", 0.5), ("doubled", 2.0))
        ],
    )
    yield "γ", _other_gammas(point)
    for switch in (draft_on_one_device, half_the_vocabulary, split_kv, covering_graphs, one_node):
        found = switch(point)
        if found is not None:
            yield found[0], [found]


def _other_gammas(point: PricedPoint) -> Changes:
    """One draft fewer and one more; of a tree no other acceptance is known, and a block or a head has a length of its own."""
    if point.deployment.tree is not None or point.deployment.method in ("block", "medusa", "hydra"):
        return []
    gammas = [gamma for gamma in (point.gamma - 1, point.gamma + 1) if gamma >= 1]
    return [(f"γ = {gamma} instead of {point.gamma}", replace(point, gamma=gamma)) for gamma in gammas]


def _on(point: PricedPoint, scaled: Callable[[Hardware, float], Hardware], factor: float) -> PricedPoint:
    """On other devices: a draft's own too where they are of the same kind."""
    deployment = point.deployment
    hardware, remote = scaled(deployment.hardware, factor), deployment.remote_draft
    if remote is not None and remote.hardware.profile_id == hardware.profile_id:
        remote = replace(remote, hardware=scaled(remote.hardware, factor))
    return replace(point, deployment=replace(deployment, hardware=hardware, remote_draft=remote))


def _with_bandwidth(hardware: Hardware, factor: float) -> Hardware:
    profile = hardware.profile
    changed = {"memory_bandwidth_bytes_per_s": _times(profile.memory_bandwidth_bytes_per_s, factor)}
    return replace(hardware, profile=profile.model_copy(update=changed))


def _with_flops(hardware: Hardware, factor: float) -> Hardware:
    profile = hardware.profile
    peaks = {name: _times(quantity, factor) for name, quantity in profile.peak_flops_per_s.items()}
    return replace(hardware, profile=profile.model_copy(update={"peak_flops_per_s": peaks}))


def _times(quantity: Quantity, factor: float) -> Quantity:
    return quantity.model_copy(update={"value": factor * quantity.value})
