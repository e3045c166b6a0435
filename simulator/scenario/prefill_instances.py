"""PrefillInstances: instances that compute prompts for those that decode, and the link between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.cost.collectives import LINK_FRACTION
from simulator.cost.deployment import Deployment
from simulator.cost.parallelism import Parallelism
from simulator.hardware import Hardware, find_hardware
from simulator.scenario.file import DisaggregatedPrefill, Link
from simulator.scenario.limits import Limits
from simulator.scenario.reading import Reading
from simulator.serving import KVTransfer, RouterName
from simulator.serving_engine import KVTransferKind
from simulator.spec import Problem

KEY = ("parallel", "disaggregated_prefill")


@dataclass(frozen=True)
class PrefillInstances:
    """So many of them. The link's bandwidth is of each device, one direction."""

    instances: int
    hardware: Hardware
    tensor_parallel_size: int
    max_num_batched_tokens: int
    router: RouterName
    kv_transfer: KVTransferKind
    link_bandwidth_bytes_per_s: float
    link_latency_s: float

    def deployment(self, decode: Deployment) -> Deployment:
        """One instance, with the models of those that decode."""
        one, size = decode.replica(), self.tensor_parallel_size
        draft = size if one.draft_tensor_parallel_size == one.tensor_parallel_size else min(one.draft_tensor_parallel_size, size)
        beyond = Parallelism(expert_parallel=one.parallelism.expert_parallel and size > 1)
        return replace(
            one, hardware=self.hardware, tensor_parallel_size=size, draft_tensor_parallel_size=draft, parallelism=beyond
        )

    @property
    def devices(self) -> int:
        return self.instances * self.tensor_parallel_size

    def transfer(self, decode: Deployment) -> KVTransfer:
        """How the caches of an instance go to an instance of `decode`.

        Every device sends or takes its part over its own link, so that the side with more of a token on each sets the pace.
        """
        sides = self.deployment(decode), decode.replica()
        bandwidth, kept = self.link_bandwidth_bytes_per_s, decode.kv_cache
        return KVTransfer(
            self.kv_transfer,
            token_s=max(side.kv_bytes_per_token() for side in sides) / bandwidth,
            sequence_s=max(side.target.state_bytes(kept, side.tensor_parallel_size) for side in sides) / bandwidth,
            latency_s=self.link_latency_s,
            layers=decode.target.num_hidden_layers,
            makes_first_token=decode.engine.prefill_makes_first_token,
            decode_links=sides[1].parallelism.data_parallel_size,
        )


def find_prefill_instances(reading: Reading, decode: Deployment, limits: Limits) -> PrefillInstances | None:
    """Those of a scenario, where it has any. Raises `SpecError` for an unknown device."""
    spec: DisaggregatedPrefill | None = reading.sections["parallel"].disaggregated_prefill
    if spec is None:
        return None
    hardware = decode.hardware
    if spec.hardware is not None:
        where = reading.document.where((*KEY, "hardware"))
        hardware = find_hardware(reading.document.beside(spec.hardware), where, "parallel.disaggregated_prefill.hardware")
    bandwidth, latency_s = _link(spec, hardware, decode.hardware)
    return PrefillInstances(
        spec.instances,
        hardware,
        spec.tensor_parallel_size or decode.tensor_parallel_size,
        spec.max_num_batched_tokens or limits.max_num_batched_tokens,
        spec.router or "round_robin",
        spec.kv_transfer or decode.engine.kv_transfer or "after_prompt",
        bandwidth,
        latency_s,
    )


def _link(spec: DisaggregatedPrefill, *ends: Hardware) -> tuple[float, float]:
    """(bytes a second of each device, seconds from the last byte to its use): of the slower end."""
    if isinstance(spec.link, Link):
        return spec.link.bandwidth_bytes_per_s, spec.link.latency_s
    if spec.link == "inter_node":
        return min(end.inter_node_bandwidth_bytes_per_s for end in ends), max(end.inter_node_latency_s for end in ends)
    bandwidth = min(LINK_FRACTION * end.link_bandwidth_bytes_per_s() for end in ends)
    return bandwidth, max(end.all_reduce("nccl", 2).alpha_s for end in ends)


def prefill_problems(reading: Reading, decode: Deployment, limits: Limits, prefill: PrefillInstances | None) -> Iterator[Problem]:
    """The engine must serve so, an instance must hold its models and a cache, and nothing may be stated that binds nothing."""
    spec: DisaggregatedPrefill | None = reading.sections["parallel"].disaggregated_prefill
    if spec is None or prefill is None:
        return
    document, target, engine = reading.document, decode.target, decode.engine
    if engine.kv_transfer is None:
        yield document.problem(KEY, f"must be left out: {engine.name} has no instances that only compute prompts")
    if decode.remote_draft is not None:
        must = "must be left out: no engine serves so with the draft on a device of its own"
        yield document.problem(("speculation", "draft_device"), must)
    size = prefill.tensor_parallel_size
    if (target.num_attention_heads or 0) % size:
        must = f"must divide the {target.num_attention_heads} attention heads of {target.name}"
        yield document.problem((*KEY, "tensor_parallel_size"), must, size)
        return
    if decode.parallelism.expert_parallel and (target.num_experts or 0) % size:
        must = f"must share {target.num_experts} experts evenly"
        yield document.problem((*KEY, "tensor_parallel_size"), must, size)
    if prefill.deployment(decode).kv_blocks(limits.gpu_memory_utilization) < 1:
        must = f"must hold {target.name} and a KV cache on {size} × {prefill.hardware.name}"
        yield document.problem(KEY, must)
    if spec.router is not None and spec.instances == 1:
        yield document.problem((*KEY, "router"), "must be left out: there is one instance", spec.router)
    elif spec.router == "prefix_aware" and not limits.prefix_caching:
        must = "must be another router: no instance keeps prefixes (limits.prefix_caching, and prompts that begin alike)"
        yield document.problem((*KEY, "router"), must, spec.router)
