"""The bubble: what full pipeline stages wait for the slowest."""

from __future__ import annotations

import math

from simulator.cost.drafting import Drafter
from simulator.cost.forward import ForwardCost
from simulator.cost.tape import added
from simulator.cost.terms import CostTerm
from simulator.speculation import SELF_METHODS

# Where a term's time is spent in a pipeline; everything else is spread over the stages with the layers.
_PLACES = {
    "lm_head": "last", "sampling": "last", "host": "host", "broadcast": "host", "round_overhead": "host",
    "pipeline_transfer": "link",
}  # fmt: skip


def bubble(
    target: ForwardCost, drafter: Drafter | None, in_flight: int, terms: list[CostTerm], draft: list[CostTerm]
) -> list[CostTerm]:
    """What full pipeline stages wait for the slowest: with p batches in flight, each passes again after
    max(all stages and transfers, p · the slowest stage). LM head, sampling and a drafter beside the target are the last
    stage's; the host plans one batch after the other.
    """
    if in_flight == 1:
        return []
    layers, stages = target.architecture.num_hidden_layers, target.parallelism.pipeline_parallel_size
    by_place = {"layers": 0.0, "last": 0.0, "host": 0.0, "link": 0.0}
    for term in terms:
        by_place[_PLACES.get(term.name, "layers")] += term.seconds
    drafting_s = added([term.seconds for term in draft])
    apart = drafter is not None and drafter.remote is not None
    if drafter is not None and drafter.method in SELF_METHODS:
        by_place["layers"], drafting_s = by_place["layers"] + drafting_s, 0.0
    slowest_s = max(
        by_place["layers"] * math.ceil(layers / stages) / layers,
        by_place["layers"] * (layers // stages) / layers + by_place["last"] + (0.0 if apart else drafting_s),
        by_place["host"],
        drafting_s,
    )
    wait_s = in_flight * slowest_s - sum(by_place.values()) - drafting_s
    return [CostTerm("pipeline_bubble", wait_s, "latency")] if wait_s > 0 else []
