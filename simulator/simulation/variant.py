"""Variant: one way to serve the workload, and what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.cost.deployment import Deployment
from simulator.draft_policy import FIXED, PolicySpec
from simulator.draft_tree import Tree
from simulator.scenario import Scenario
from simulator.serving import Load, ServingResult, Summary, summarise
from simulator.simulation.progress import Progress, counter
from simulator.simulation.saturation import Saturation, saturation_of
from simulator.simulation.server import Server
from simulator.spec import SpecError
from simulator.workload import Request


@dataclass(frozen=True)
class Variant:
    """One way to serve the workload. scenario: of its method; gamma: the most drafts that a round accepts, 0 = no speculation.
    method: the name that the methods compared are told apart by."""

    scenario: Scenario
    label: str
    gamma: int
    deployment: Deployment
    kv_blocks: int
    result: ServingResult
    summary: Summary
    saturation: Saturation
    policy: PolicySpec = FIXED
    method: str = ""

    @property
    def shape(self) -> Tree:
        """What a round drafts: a tree, or a chain of γ."""
        return self.deployment.tree or Tree.chain(self.gamma)

    @property
    def drafting(self) -> tuple[str, Tree, PolicySpec]:
        """The method, the shape and the policy that drafts it: what two runs at the ends of an acceptance band have in
        common."""
        return self.method, self.shape, self.policy

    @property
    def graph_share(self) -> float | None:
        """Share of the steps that decode which run as captured graphs; None for an engine without."""
        ladder, steps = self.deployment.engine.graphs, self.result.steps
        decode = steps.column("decode_sequences")
        if ladder is None or not decode.any():
            return None
        counted = decode if ladder.counts == "sequences" else steps.column("rows") + steps.column("prefill_tokens")
        alone = steps.column("prefill_tokens") == 0 if ladder.counts == "sequences" else True
        return float(((counted <= ladder.sizes[-1]) & alone)[decode > 0].mean())

    @property
    def offered_share(self) -> float:
        """Arriving requests against what saturated replicas finish; infinite where all arrive at once."""
        records = self.result.records
        span_s = records[-1].arrival_s - records[0].arrival_s
        return (len(records) - 1) / span_s / self.saturation.per_s if span_s > 0 else math.inf

    @property
    def off_share(self) -> float | None:
        """Share of the steps that decode in which nothing is drafted; None where none does."""
        steps = self.result.steps
        drafted = steps.column("drafted")[steps.column("decode_sequences") > 0]
        return float((drafted == 0).mean()) if drafted.size else None


def served_variant(server: Server, label: str, requests: tuple[Request, ...], progress: Progress | None) -> Variant:
    result = server.run(requests, counter(progress, label, len(requests)))
    summary = summarise(result, server.scenario.file.service_level)
    require_served(server.scenario, summary)

    def advance(done: int, total: int) -> None:
        if progress is not None:
            progress(f"capacity, {label}", done, total)

    saturation = saturation_of(server, requests, advance)
    blocks = server.rules.total_blocks
    return Variant(
        server.scenario, label, server.shape.depth, server.deployment, blocks, result, summary, saturation, server.policy,
        server.method,
    )  # fmt: skip


def require_served(scenario: Scenario, summary: Summary) -> None:
    """Raises `SpecError` where no request finished, and says why."""
    if summary.finished:
        return
    why = ", ".join(f"{count} {reason}" for reason, count in summary.rejected.items())
    gone = f"{summary.cancelled} given up by their clients" if summary.cancelled else ""
    why = ", ".join(part for part in (why, gone) if part) or "none arrived"
    raise SpecError([scenario.document.problem(("workload",), f"must hold requests that can be served: {why}")])


def plain_load(scenario: Scenario) -> Load:
    """How busy the server is without speculation: mean batch and context of the scenario's own requests."""
    requests = scenario.requests()
    summary = summarise(Server.of(scenario).run(requests))
    require_served(scenario, summary)
    return summary.load
