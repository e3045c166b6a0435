"""Switches: what of an operating point can be otherwise in one way only, each with its words and the point that it leads to.

Each takes a point and gives None where there is nothing to switch.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.architecture import ModelArchitecture
from simulator.hardware import Quantity
from simulator.questions.priced_point import PricedPoint
from simulator.serving_engine import GraphLadder, ServingEngine, captured_rows

Switched = tuple[str, PricedPoint]
_LONGEST_LADDER = 65536
_OVERHEADS = ("round_overhead_s", "feature_overhead_s", "tree_round_overhead_s", "tree_draft_step_overhead_s")


def draft_on_one_device(point: PricedPoint) -> Switched | None:
    deployment = point.deployment
    if deployment.remote_draft is not None or deployment.draft_tensor_parallel_size == 1 or deployment.separate_drafter is None:
        return None
    words = f"the draft on one device instead of {deployment.draft_tensor_parallel_size}"
    return words, replace(point, deployment=replace(deployment, draft_tensor_parallel_size=1))


def half_the_vocabulary(point: PricedPoint) -> Switched | None:
    """The draft's LM head with half its rows, which a draft often does without much loss of acceptance (FR-Spec, EAGLE-3)."""
    drafter = point.deployment.separate_drafter
    if drafter is None:
        return None
    rows = drafter.output_vocab_size // 2
    smaller: ModelArchitecture = drafter.model_copy(update={"draft_vocab_size": rows})
    words = f"half the draft's vocabulary ({rows:,} tokens)"
    return words, replace(point, deployment=replace(point.deployment, drafter=smaller))


def split_kv(point: PricedPoint) -> Switched | None:
    engine = point.deployment.engine
    if engine.attention_regime(point.deployment.hardware) == "split_kv":
        return None
    rule = engine.attention[0].model_copy(update={"from_compute_capability": "0", "regime": "split_kv"})
    return "verification attention that splits the KV cache", _with_engine(
        point, engine.model_copy(update={"attention": (rule,)})
    )


def covering_graphs(point: PricedPoint) -> Switched | None:
    """Captured graphs for the verification of the whole batch, where there is none."""
    engine, sequences = point.deployment.engine, point.batch
    rows = sequences * point.shape.nodes
    if captured_rows(engine, rows, sequences) is not None or rows > _LONGEST_LADDER:
        return None
    which = "graphs" if engine.verification_graphs is None else "verification_graphs"
    ladder = getattr(engine, which) or GraphLadder(listed=(1, 2, 4), step=8, largest=8)
    size = rows if ladder.counts == "rows" else sequences
    covering = ladder.model_copy(update={"listed": (*ladder.listed, size)})
    words = f"captured graphs that cover {point.shape.nodes} × {sequences} = {rows:,} rows"
    return words, _with_engine(point, engine.model_copy(update={which: covering}))


def one_node(point: PricedPoint) -> Switched | None:
    deployment = point.deployment
    if deployment.parallelism.nodes == 1:
        return None
    one = replace(deployment.parallelism, nodes=1)
    return "all devices in one node", replace(point, deployment=replace(deployment, parallelism=one))


def no_overheads(point: PricedPoint) -> Switched:
    return "no engine overhead per round and draft step", with_overheads(point, 0.0)


def with_overheads(point: PricedPoint, factor: float) -> PricedPoint:
    """What speculation adds to the host's work, `factor` times as long."""

    def scaled(quantity: Quantity) -> Quantity:
        return quantity.model_copy(update={"value": factor * quantity.value})

    engine = point.deployment.engine
    changed = {name: scaled(getattr(engine, name)) for name in _OVERHEADS}
    steps = {name: scaled(quantity) for name, quantity in engine.draft_step_overhead_s.items()}
    return _with_engine(point, engine.model_copy(update={**changed, "draft_step_overhead_s": steps}))


def _with_engine(point: PricedPoint, engine: ServingEngine) -> PricedPoint:
    return replace(point, deployment=replace(point.deployment, engine=engine))
