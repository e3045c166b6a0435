"""ScenarioFile: a scenario as it is written, section by section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from simulator.acceptance import AcceptanceSpec
from simulator.cost.parallelism import Parallelism
from simulator.hardware import HardwareOverride
from simulator.kernel_switches import KernelSwitches
from simulator.number_format import BY_NAME, CacheFormat, WeightFormat
from simulator.planning import PlanningSpec
from simulator.serving import RouterName
from simulator.serving_engine import KVTransferKind
from simulator.spec import Spec
from simulator.speculation import Speculation
from simulator.workload import ServiceLevel, WorkloadSpec

# Engines keep token counts in 32 bits, and no engine runs more sequences than a policy's table may name.
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Sequences = Annotated[int, Field(ge=1, le=65536)]


class FurtherReplicas(Spec):
    """Replicas on other devices, by the name or path of their profile; alike in everything else."""

    hardware: str
    count: Annotated[int, Field(ge=1, le=256)] = 1


class Link(Spec):
    """A link between instances: bytes a second of each device, one direction, and seconds from the last byte sent to its use."""

    bandwidth_bytes_per_s: Annotated[float, Field(ge=1e6, le=1e16)]
    latency_s: Annotated[float, Field(ge=0, le=10)] = 0.0


def _kind_of_link(value: object) -> str:
    return "a kind" if isinstance(value, str) else "a bandwidth and latency" if isinstance(value, dict | Link) else "neither"


LinkChoice = Annotated[
    Annotated[Literal["intra_node", "inter_node"], Tag("a kind")] | Annotated[Link, Tag("a bandwidth and latency")],
    Discriminator(_kind_of_link),
]


class DisaggregatedPrefill(Spec):
    """Prompts are computed on instances of their own, and their KV caches go to those that decode: all replicas of the section.

    hardware, tensor_parallel_size: of each instance, as where decoding runs if left out. max_num_batched_tokens: of their steps.
    router: which of them a prompt goes to, in turn where left out. link: in one node, between nodes, or as stated.
    kv_transfer: when caches move (`serving.kv_transfer`), as the engine does where left out.
    """

    instances: Annotated[int, Field(ge=1, le=256)] = 1
    hardware: str | None = None
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] | None = None
    max_num_batched_tokens: Count | None = None
    router: RouterName | None = None
    link: LinkChoice = "inter_node"
    kv_transfer: KVTransferKind | None = None


class ParallelSpec(Spec):
    """Devices: tensor × pipeline × data of them, spread evenly over nodes (meanings: `cost.parallelism`).

    draft_tensor_parallel_size: as many as the target's where left out. data_parallel_size: replicas, each with limits of its own.
    further_replicas: beside them, on other devices. router: which of all replicas a request goes to, in turn where left out.
    expert_parallel: whole experts on each device instead of a slice of all. disaggregated_prefill: prompts elsewhere.
    """

    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    draft_tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] | None = None
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    data_parallel_size: Annotated[int, Field(ge=1, le=256)] = 1
    further_replicas: Annotated[tuple[FurtherReplicas, ...], Field(max_length=16)] = ()
    router: RouterName | None = None
    expert_parallel: bool = False
    nodes: Annotated[int, Field(ge=1, le=256)] = 1
    disaggregated_prefill: DisaggregatedPrefill | None = None

    def beyond_tensor(self) -> Parallelism:
        return Parallelism(self.pipeline_parallel_size, self.data_parallel_size, self.expert_parallel, self.nodes)


class TargetSpec(Spec):
    """The model that is served, the type of its weights and of its KV cache.

    weights: left out, what the model's config.json or name says, else as its owner publishes it: bf16 but for a few.
    """

    model: str
    weights: Annotated[WeightFormat, BY_NAME] | None = None
    kv_cache: Annotated[CacheFormat, BY_NAME] = "bf16"


class AlternativeSpec(Spec):
    """Another way to draft for the same service; draft_tensor_parallel_size as in `parallel`."""

    speculation: Speculation
    acceptance: AcceptanceSpec | None = None
    draft_tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] | None = None


class LimitsSpec(Spec):
    """The server's limits in vLLM's words; what is left out is the engine's default.

    prefix_caching: blocks of prompts that begin alike are found again. preemption: whether a sequence that loses its blocks
    computes them again later, or has them moved to the host and back. swap_space_bytes: what the host keeps for each device then;
    4 GiB where left out.
    """

    max_num_seqs: Sequences | None = None
    max_num_batched_tokens: Count | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    max_model_len: Count | None = None
    prefix_caching: bool | None = None
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_space_bytes: Annotated[float, Field(ge=1e6, le=1e15)] | None = None

    @model_validator(mode="after")
    def _swap_space_is_used(self) -> LimitsSpec:
        if self.swap_space_bytes is not None and self.preemption != "swap":
            raise ValueError("swap_space_bytes goes with preemption swap")
        return self


class SweepSpec(Spec):
    """What `specsim sweep` varies. set: key of a scenario → values, a list or a range; several keys with commas between change
    together. The other verbs answer the scenario as it stands."""

    question: str = "run"
    set: Annotated[dict[str, Any], Field(min_length=1)]


def _kind_of_hardware(value: object) -> str:
    return (
        "a name" if isinstance(value, str) else "a mapping with base" if isinstance(value, dict | HardwareOverride) else "neither"
    )


HardwareChoice = Annotated[
    Annotated[str, Tag("a name")] | Annotated[HardwareOverride, Tag("a mapping with base")], Discriminator(_kind_of_hardware)
]


class ScenarioFile(Spec):
    """A scenario as it is written. Keys carry their unit; everything is SI."""

    hardware: HardwareChoice
    parallel: ParallelSpec = ParallelSpec()
    engine: str
    kernels: KernelSwitches = KernelSwitches()
    target: TargetSpec
    speculation: Speculation | None = None
    acceptance: AcceptanceSpec | None = None
    alternatives: Annotated[tuple[AlternativeSpec, ...], Field(min_length=1, max_length=16)] | None = None
    workload: WorkloadSpec
    limits: LimitsSpec = LimitsSpec()
    service_level: ServiceLevel | None = None
    planning: PlanningSpec = PlanningSpec()
    sweep: SweepSpec | None = None
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
