"""Deployment: a target and perhaps a drafter on devices under an engine; its prices and its memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.architecture import ModelArchitecture
from simulator.cost.drafting import Drafter, keeps_cache
from simulator.cost.forward import ForwardCost
from simulator.cost.parallelism import ONE_GROUP, Parallelism
from simulator.cost.pricer import StepPricer
from simulator.cost.remote_draft import RemoteDraft
from simulator.draft_tree import Tree
from simulator.hardware import Hardware
from simulator.number_format import FORMATS
from simulator.serving_engine import ServingEngine
from simulator.speculation import METHOD_NAMES, SELF_METHODS


@dataclass(frozen=True)
class Deployment:
    """Models, types and parallelism, with every name resolved. `drafter` is None for n-gram and for no speculation.

    remote_draft: devices of the draft alone; its tensor parallelism is then theirs, not `draft_tensor_parallel_size`.
    """

    hardware: Hardware
    engine: ServingEngine
    target: ModelArchitecture
    weights: str = "bf16"
    kv_cache: str = "bf16"
    tensor_parallel_size: int = 1
    method: str = "none"
    drafter: ModelArchitecture | None = None
    drafter_weights: str = "bf16"
    draft_tensor_parallel_size: int = 1
    draft_kv_tokens: int | None = None
    tree: Tree | None = None
    parallelism: Parallelism = ONE_GROUP
    remote_draft: RemoteDraft | None = None

    @property
    def separate_drafter(self) -> ModelArchitecture | None:
        """The drafter where it has weights and a cache of its own; a target that drafts for itself has not."""
        return None if self.method in SELF_METHODS else self.drafter

    @property
    def keeps_draft_cache(self) -> bool:
        """Whether the drafter has a KV cache of its own."""
        drafter = self.separate_drafter
        return drafter is not None and keeps_cache(self.method, drafter)

    @property
    def devices(self) -> int:
        """Devices that hold the target."""
        return self.parallelism.devices(self.tensor_parallel_size)

    @property
    def drafter_beside(self) -> ModelArchitecture | None:
        """The separate drafter where it shares the target's devices."""
        return None if self.remote_draft is not None else self.separate_drafter

    @property
    def speculative(self) -> bool:
        return self.method != "none"

    @property
    def method_name(self) -> str:
        """The method in the field's spelling, a draft model by its name."""
        if self.method == "draft_model" and self.drafter is not None:
            return f"draft model {self.drafter.name.rsplit('/', 1)[-1]}"
        return METHOD_NAMES.get(self.method, self.method)

    @property
    def independent_replicas(self) -> int:
        """Data-parallel ranks that know nothing of each other: those of a model without experts."""
        return 1 if self.target.is_moe else self.parallelism.data_parallel_size

    def replica(self) -> Deployment:
        """One of the independent replicas."""
        if self.independent_replicas == 1:
            return self
        nodes = max(self.parallelism.nodes // self.parallelism.data_parallel_size, 1)
        return replace(self, parallelism=replace(self.parallelism, data_parallel_size=1, nodes=nodes))

    def plain(self) -> Deployment:
        """The same without speculation."""
        return replace(
            self,
            method="none",
            drafter=None,
            drafter_weights="bf16",
            draft_tensor_parallel_size=1,
            draft_kv_tokens=None,
            tree=None,
            remote_draft=None,
        )

    def target_cost(self) -> ForwardCost:
        return ForwardCost(
            self.target, self._run_by_engine(self.hardware), self.engine, self.tensor_parallel_size, self.weights, self.kv_cache,
            self.parallelism,
        )  # fmt: skip

    def _run_by_engine(self, hardware: Hardware) -> Hardware:
        return hardware if self.engine.graphs is None else hardware.replaying

    def draft_cost(self) -> ForwardCost | None:
        """Passes of the drafter: on its own device, or beside the target, where it runs whole in the last pipeline stage."""
        if self.drafter is None:
            return None
        if self.remote_draft is not None:
            where = self.remote_draft
            return ForwardCost(
                self.drafter, self._run_by_engine(where.hardware), self.engine, where.tensor_parallel_size, self.drafter_weights,
                self.kv_cache,
            )  # fmt: skip
        size = self.draft_tensor_parallel_size
        return ForwardCost(
            self.drafter, self._run_by_engine(self.hardware), self.engine, size, self.drafter_weights, self.kv_cache,
            self._draft_parallelism(),
            captured=self.method not in self.engine.uncaptured_draft_methods and not self.engine.rounds_in_pieces(self.hardware),
        )  # fmt: skip

    def _draft_parallelism(self) -> Parallelism:
        """Every rank drafts for its own sequences, in one stage; experts of both models lie on the devices of all ranks."""
        beyond, drafter = self.parallelism, self.drafter
        if self.method in SELF_METHODS or drafter is None:
            return beyond
        if self.target.is_moe and drafter.is_moe and (beyond.expert_parallel or beyond.data_parallel_size > 1):
            return replace(beyond, pipeline_parallel_size=1, nodes=beyond.expert_nodes(self.tensor_parallel_size))
        own = self.draft_tensor_parallel_size // beyond.devices_per_node(self.tensor_parallel_size)
        return Parallelism(nodes=max(own, 1))

    def pricer(self, full_acceptance_rate: float = 0.5) -> StepPricer:
        """Prices of steps and rounds; `full_acceptance_rate` as in `cost.drafting.Drafter`."""
        if not self.speculative:
            return StepPricer(self.target_cost())
        drafter = Drafter(
            self.method, self.engine, self.draft_cost(), full_acceptance_rate, self.draft_kv_tokens, self.tree, self.remote_draft,
            self.hardware.coefficients.host_time_factor.value,
        )  # fmt: skip
        return StepPricer(self.target_cost(), drafter)

    # ---------------------------------------------------------------------------------------------------------- memory

    def kv_bytes_per_token(self) -> float:
        """Cached bytes per token on the fullest device: the target's and the draft's.

        >>> from simulator.architecture import eagle_head, find_model
        >>> from simulator.hardware import find_hardware
        >>> from simulator.serving_engine import find_engine
        >>> target = find_model("meta-llama/Llama-3.1-8B")
        >>> head = eagle_head(target, "eagle")
        >>> Deployment(find_hardware("h100_sxm"), find_engine("vllm"), target, method="eagle", drafter=head).kv_bytes_per_token()
        135168.0
        """
        return max(kv_bytes for _, kv_bytes in self._stages())

    def weight_bytes(self) -> float:
        """Weights on the fullest device."""
        return max(weights for weights, _ in self._stages())

    def kv_cache_bytes(self, memory_utilization: float) -> float:
        """Bytes left for the KV cache on the fullest device; negative where the models do not fit."""
        return self._room(self.hardware, memory_utilization, self.weight_bytes())

    def kv_blocks(self, memory_utilization: float) -> int:
        """Whole blocks of `engine.block_tokens` tokens in the pool of one data-parallel rank.

        A token needs its place in every pipeline stage, and in a draft device's own cache.
        """
        return min([self._target_kv_blocks(memory_utilization), *self._remote_kv_blocks(memory_utilization)])

    def kv_tokens(self, memory_utilization: float) -> int:
        """Tokens that all data-parallel ranks hold together."""
        return self.kv_blocks(memory_utilization) * self.engine.block_tokens * self.parallelism.data_parallel_size

    def state_blocks(self, drafts: int) -> int:
        """Blocks that a sequence holds beside those of its tokens: recurrent states, of which verification keeps one for every
        draft to go back to, and windows beside a compressed cache."""
        size, target, beside = self.tensor_parallel_size, self.target, self.drafter_beside
        state_bytes = target.state_bytes(self.kv_cache, size, 1 + drafts)
        kv_bytes = target.kv_bytes_per_token(self.kv_cache, size)
        if beside is not None and self.parallelism.pipeline_parallel_size == 1:
            kv_bytes += beside.kv_bytes_per_token(self.kv_cache, self.draft_tensor_parallel_size)
        return math.ceil(state_bytes / (self.engine.block_tokens * kv_bytes)) if state_bytes else 0

    def held_tokens(self, context: float, drafts: int) -> float:
        """Tokens whose room a sequence of `context` tokens takes, its states included."""
        return context + self.state_blocks(drafts) * self.engine.block_tokens

    def host_blocks(self, swap_space_bytes: float) -> int:
        """Blocks of one data-parallel rank for which the host keeps so many bytes for each device."""
        return int(swap_space_bytes // (self.engine.block_tokens * self.kv_bytes_per_token()))

    def host_block_s(self) -> float:
        """Seconds to move a block between the devices and the host: each device moves its part over its own link."""
        return self.engine.block_tokens * self.kv_bytes_per_token() / self.hardware.host_link.value

    def draft_device_binds(self, memory_utilization: float) -> bool:
        """Whether a draft's own device holds fewer tokens than the target's devices."""
        return any(blocks < self._target_kv_blocks(memory_utilization) for blocks in self._remote_kv_blocks(memory_utilization))

    def _target_kv_blocks(self, memory_utilization: float) -> int:
        return min(
            self._blocks(self._room(self.hardware, memory_utilization, weights), kv_bytes)
            for weights, kv_bytes in self._stages()
            if kv_bytes > 0
        )

    def _remote_kv_blocks(self, memory_utilization: float) -> Iterator[int]:
        """The pool of a draft device; nothing where there is none."""
        where, drafter = self.remote_draft, self.separate_drafter
        if where is None or drafter is None:
            return
        weights = drafter.weight_bytes(self.drafter_weights) / where.tensor_parallel_size
        room = self._room(where.hardware, memory_utilization, weights)
        yield self._blocks(room, drafter.kv_bytes_per_token(self.kv_cache, where.tensor_parallel_size))

    def _room(self, hardware: Hardware, memory_utilization: float, weights: float) -> float:
        return hardware.memory_bytes * memory_utilization - weights - self.engine.reserved_bytes.value

    def _blocks(self, room: float, kv_bytes: float) -> int:
        return max(int(room // (self.engine.block_tokens * kv_bytes)), 0)

    def _stages(self) -> list[tuple[float, float]]:
        """(weights, cached bytes per token) of one device in the first and in the last pipeline stage.

        The first holds the embedding, the last the LM head and the drafter; those between hold no more than the first.
        """
        target, size, stages = self.target, self.tensor_parallel_size, self.parallelism.pipeline_parallel_size
        weights = self._device_bytes(target, self.weights, size)
        kv_bytes = target.kv_bytes_per_token(self.kv_cache, size)
        beside = self.drafter_beside
        draft_weights = draft_kv = 0.0
        if beside is not None:
            draft_weights = self._device_bytes(beside, self.drafter_weights, self.draft_tensor_parallel_size)
            draft_kv = beside.kv_bytes_per_token(self.kv_cache, self.draft_tensor_parallel_size)
        if stages == 1:
            return [(weights + draft_weights, kv_bytes + draft_kv)]
        kept = FORMATS[self.weights]
        vocabulary = target.lm_head_parameters * max(kept.head_bytes, kept.bytes) / size
        layers = weights - vocabulary * (1 if target.tie_word_embeddings else 2)
        most = math.ceil(target.num_hidden_layers / stages) / target.num_hidden_layers
        least = target.num_hidden_layers // stages / target.num_hidden_layers
        return [
            (layers * most + vocabulary, kv_bytes * most),
            (layers * least + vocabulary + draft_weights, kv_bytes * least + draft_kv),
        ]

    def _device_bytes(self, model: ModelArchitecture, weights: str, size: int) -> float:
        """Weights of a model on one device: experts are shared by the devices of all data-parallel ranks."""
        total, ranks = model.weight_bytes(weights), self.parallelism.data_parallel_size
        if ranks == 1 or not (model.is_moe and self.target.is_moe):
            return total / size
        experts = model.expert_bytes(weights)
        return (total - experts) / size + experts / (size * ranks)
