"""Parallelism: how a model lies on more devices than one tensor-parallel group, and what the busiest of them does.

Sizes multiply: tensor × pipeline × data devices in all, spread evenly over nodes, tensor-parallel neighbours nearest, then
pipeline stages, then data-parallel ranks, as engines number them. Meanings are vLLM's (its "Data Parallel Deployment"):

- dense models: data-parallel ranks are independent replicas;
- mixtures: ranks attend to sequences of their own and step together, since experts lie on all devices of all ranks: cut into
  slices, or whole with `expert_parallel` (``--enable-expert-parallel``; SGLang's ``--enable-dp-attention`` with ``--ep-size``,
  whose ``--tp`` is tensor × data here).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.architecture import ModelArchitecture
from simulator.serving_engine import ServingEngine

Chunk = tuple[int, int]  # (new tokens, tokens cached before)
Fault = tuple[str, str, object]  # key of the parallel section, what it must be, what it is


@dataclass(frozen=True, slots=True)
class Parallelism:
    """What goes beyond one tensor-parallel group. Methods take the size of that group."""

    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel: bool = False
    nodes: int = 1

    def devices(self, tensor: int) -> int:
        return tensor * self.pipeline_parallel_size * self.data_parallel_size

    def devices_per_node(self, tensor: int) -> int:
        return max(self.devices(tensor) // self.nodes, 1)

    def tensor_nodes(self, tensor: int) -> int:
        """Nodes that one tensor-parallel group lies on."""
        return max(tensor // self.devices_per_node(tensor), 1)

    def expert_devices(self, tensor: int) -> int:
        """Devices that share the experts of a layer."""
        return tensor * self.data_parallel_size

    def expert_nodes(self, tensor: int) -> int:
        """Nodes that those devices lie on."""
        if tensor * self.pipeline_parallel_size >= self.devices_per_node(tensor):
            return self.tensor_nodes(tensor) * self.data_parallel_size
        return self.nodes

    def inter_node_boundaries(self, tensor: int) -> int:
        """Boundaries between pipeline stages of one replica that lie between nodes.

        >>> Parallelism(pipeline_parallel_size=4, nodes=2).inter_node_boundaries(4)
        1
        """
        stages_per_node = max(self.devices_per_node(tensor) // tensor, 1)
        return math.ceil(self.pipeline_parallel_size / stages_per_node) - 1

    def microbatches(self, sequences: int, engine: ServingEngine) -> int:
        """Batches in flight: one a stage, as far as there are sequences, where the engine keeps its pipeline full."""
        return min(self.pipeline_parallel_size, max(sequences, 1)) if engine.pipeline_in_flight else 1


ONE_GROUP = Parallelism()


def share(sequences: int, ways: int) -> int:
    """Sequences of the fullest of `ways` equal parts."""
    return -(-sequences // ways)


def busiest(count: float, ranks: int, places: float = math.inf) -> float:
    """Expected load of the fullest of `ranks` when `count` things fall on them at random: mean + σ·√(2 ln ranks).

    The bound on the maximum of that many normal variables, never above what there is. places: of all ranks together, one thing
    each (experts), which leaves less to chance the more of them are taken (hypergeometric σ).

    >>> busiest(8.0, 1), round(busiest(8.0, 16), 1), busiest(256.0, 16, 256)
    (8.0, 2.1, 16.0)
    """
    mean = count / ranks
    left = 1.0 if math.isinf(places) else max(places - count, 0.0) / max(places - 1, 1)
    spread = math.sqrt(mean * (1 - 1 / ranks) * left) * math.sqrt(2 * math.log(ranks))
    return min(mean + spread, count, places / ranks)


def fullest_prompts(prefill: Sequence[Chunk], ways: int, most_tokens: int) -> tuple[Chunk, ...]:
    """The prompt chunks of the fullest of `ways` parts: longest first, each to the emptiest part; none beyond `most_tokens`."""
    pieces = [(min(most_tokens, new - done), before + done) for new, before in prefill for done in range(0, new, most_tokens)]
    parts: list[list[Chunk]] = [[] for _ in range(ways)]
    tokens = [0] * ways
    for piece in sorted(pieces, key=lambda piece: (-piece[0], -piece[1])):
        emptiest = tokens.index(min(tokens))
        parts[emptiest].append(piece)
        tokens[emptiest] += piece[0]
    return tuple(parts[tokens.index(max(tokens))])


def parallel_faults(
    parallelism: Parallelism,
    tensor: int,
    draft_tensor: int | None,
    target: ModelArchitecture,
    drafter: ModelArchitecture | None,
    engine: ServingEngine,
    method: str,
) -> Iterator[Fault]:
    """Everything that cannot be, by key of the `parallel` section. draft_tensor: None where the draft has devices of its own."""
    stages, nodes = parallelism.pipeline_parallel_size, parallelism.nodes
    if stages > target.num_hidden_layers:
        yield "pipeline_parallel_size", f"must be at most {target.num_hidden_layers}, the layers of {target.name}", stages
    supported = engine.pipeline_methods
    if stages > 1 and method != "none" and supported is not None and method not in supported:
        runs = f"only {', '.join(supported)}" if supported else "no method"
        yield "pipeline_parallel_size", f"must be 1: {engine.name} runs {runs} of speculation over pipeline stages", stages
    if draft_tensor is not None and drafter is not None and draft_tensor > tensor:
        must = f"must be at most tensor_parallel_size, {tensor}: the drafter lies on the target's devices"
        yield "draft_tensor_parallel_size", must, draft_tensor
    yield from _expert_faults(parallelism, tensor, draft_tensor, target, drafter)
    if parallelism.devices(tensor) % nodes:
        yield "nodes", f"must divide the {parallelism.devices(tensor)} devices (tensor × pipeline × data)", nodes
        return
    per_node = parallelism.devices_per_node(tensor)
    for size, what in ((tensor, "tensor-parallel group"), (tensor * stages, "replica")):
        if size % per_node and per_node % size:
            must = f"must spread whole {what}s evenly: {per_node} devices a node, {size} a {what}"
            yield "nodes", must, nodes
            return


def _expert_faults(
    parallelism: Parallelism, tensor: int, draft_tensor: int | None, target: ModelArchitecture, drafter: ModelArchitecture | None
) -> Iterator[Fault]:
    devices = parallelism.expert_devices(tensor)
    if parallelism.expert_parallel:
        if not target.is_moe:
            yield "expert_parallel", f"must be false: {target.name} has no experts", True
        elif devices == 1:
            yield "expert_parallel", "must be false on one device: all experts are there", True
        elif (target.num_experts or 0) % devices:
            yield "expert_parallel", f"must share {target.num_experts} experts evenly over {devices} devices", devices
    spread = parallelism.expert_parallel or parallelism.data_parallel_size > 1
    if spread and target.is_moe and drafter is not None and drafter.is_moe and draft_tensor not in (None, tensor):
        must = f"must equal tensor_parallel_size {tensor}: the drafter's experts lie where the target's do"
        yield "draft_tensor_parallel_size", must, draft_tensor
