"""Deployment: a target and perhaps a drafter on devices under an engine; its prices and its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.architecture import ModelArchitecture
from simulator.cost.drafting import Drafter
from simulator.cost.forward import ForwardCost
from simulator.cost.round import StepPricer
from simulator.draft_tree import Tree
from simulator.hardware import Hardware
from simulator.serving_engine import ServingEngine
from simulator.speculation import SELF_METHODS


@dataclass(frozen=True)
class Deployment:
    """Models, types and parallelism, with every name resolved. `drafter` is None for n-gram and for no speculation."""

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

    @property
    def separate_drafter(self) -> ModelArchitecture | None:
        """The drafter where it has weights and a cache of its own; a target that drafts for itself has not."""
        return None if self.method in SELF_METHODS else self.drafter

    @property
    def speculative(self) -> bool:
        return self.method != "none"

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
        )

    def target_cost(self) -> ForwardCost:
        return ForwardCost(self.target, self.hardware, self.engine, self.tensor_parallel_size, self.weights, self.kv_cache)

    def pricer(self, full_acceptance_rate: float = 0.5) -> StepPricer:
        """Prices of steps and rounds; `full_acceptance_rate` as in `cost.drafting.Drafter`."""
        if not self.speculative:
            return StepPricer(self.target_cost())
        passes = None
        if self.drafter is not None:
            passes = ForwardCost(
                self.drafter, self.hardware, self.engine, self.draft_tensor_parallel_size, self.drafter_weights, self.kv_cache
            )
        return StepPricer(
            self.target_cost(), Drafter(self.method, self.engine, passes, full_acceptance_rate, self.draft_kv_tokens, self.tree)
        )

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
        total = self.target.kv_bytes_per_token(self.kv_cache, self.tensor_parallel_size)
        if self.separate_drafter is not None:
            total += self.separate_drafter.kv_bytes_per_token(self.kv_cache, self.draft_tensor_parallel_size)
        return total

    def weight_bytes(self) -> float:
        """Weights on the fullest device."""
        total = self.target.weight_bytes(self.weights) / self.tensor_parallel_size
        if self.separate_drafter is not None:
            total += self.separate_drafter.weight_bytes(self.drafter_weights) / self.draft_tensor_parallel_size
        return total

    def kv_cache_bytes(self, memory_utilization: float) -> float:
        """Bytes left for the KV cache on one device; negative where the models do not fit."""
        return self.hardware.memory_bytes * memory_utilization - self.weight_bytes() - self.engine.reserved_bytes.value

    def kv_blocks(self, memory_utilization: float) -> int:
        """Whole blocks of `engine.block_tokens` tokens in the pool."""
        block_bytes = self.engine.block_tokens * self.kv_bytes_per_token()
        return max(int(self.kv_cache_bytes(memory_utilization) // block_bytes), 0)
