"""ExchangeCost: what devices exchange during one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.architecture import ModelArchitecture
from simulator.cost.collectives import all_reduce, all_to_all_s, stage_transfer_s
from simulator.cost.parallelism import Parallelism
from simulator.cost.terms import CostTerm, terms_at
from simulator.hardware import Hardware
from simulator.serving_engine import ServingEngine

# Where heads lie on several devices, a norm over all of them needs the squares of the others: one sum of queries and one of keys
# for each row, in 32 bit, together (vllm-project/vllm#31493, sgl-project/sglang#14416: MiniMax-M2).
NORM_SUMS, _FP32_BYTES = 2, 4


@dataclass(frozen=True)
class ExchangeCost:
    """mixers, mlps: how many each need an all-reduce; moe_layers: MLPs that are experts, of which a token chooses `top_k`."""

    architecture: ModelArchitecture
    hardware: Hardware
    engine: ServingEngine
    tensor_parallel_size: int
    parallelism: Parallelism
    weights: str
    mixers: int
    mlps: int
    moe_layers: int
    top_k: int
    _by_rows: dict[int, list[CostTerm]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def terms(self, rows: float, prompt_rows: float, load: float) -> Sequence[CostTerm]:
        """Of a pass of `rows` rows, `prompt_rows` of them of prompts. Unless ranks share experts it depends on the number of rows
        alone. load: tokens of the mean rank over those of this one."""
        if self.moe_layers and self.parallelism.data_parallel_size > 1:
            return self._exchanged(rows, prompt_rows, load)

        def by_rows(rows: int) -> list[CostTerm]:
            found = self._by_rows.get(rows)
            return found if found is not None else self._by_rows.setdefault(rows, self._exchanged(rows, 0, load))

        return terms_at(by_rows, rows)

    def _exchanged(self, rows: float, prompt_rows: float, load: float) -> list[CostTerm]:
        """One all-reduce after each mixer and each MLP, one of sums within mixers that norm queries and keys over all heads;
        exchanges around experts of all ranks; transfers between stages."""
        tensor, beyond = self.tensor_parallel_size, self.parallelism
        message = 2.0 * rows * self.architecture.hidden_size
        shared = self.moe_layers > 0 and beyond.data_parallel_size > 1
        found = []
        if tensor > 1:
            sliced = self.moe_layers if shared and not beyond.expert_parallel else 0
            found += self._all_reduces(
                "all_reduce", self.mixers + self.mlps - sliced, message, tensor, beyond.tensor_nodes(tensor)
            )
            if self.architecture.qk_norm == "full":
                sums = NORM_SUMS * _FP32_BYTES * rows
                found += self._all_reduces("qk_norm_reduce", self.mixers, sums, tensor, beyond.tensor_nodes(tensor))
        if shared:
            devices, nodes = beyond.expert_devices(tensor), beyond.expert_nodes(tensor)
            if beyond.expert_parallel:
                exchange_s = self._dispatch_and_combine_s(rows - prompt_rows, prompt_rows, devices, nodes)
                found.append(CostTerm("all_to_all", self.moe_layers * exchange_s, "network"))
            else:
                # All-gather before and reduce-scatter after: together the traffic of an all-reduce of every rank's rows.
                every_rank = message * beyond.data_parallel_size * load
                found += self._all_reduces("gather_scatter", self.moe_layers, every_rank, devices, nodes)
        if beyond.pipeline_parallel_size > 1:
            found.append(CostTerm("pipeline_transfer", self._transfers_s(rows), "network"))
        return found

    def _all_reduces(self, name: str, count: int, message: float, devices: int, nodes: int) -> list[CostTerm]:
        inside_s, between_s = all_reduce(message, devices, nodes, self.hardware, self.engine)
        found = [CostTerm(name, count * inside_s, "network")]
        return found + ([CostTerm(f"inter_node_{name}", count * between_s, "network")] if nodes > 1 else [])

    def _dispatch_and_combine_s(self, rows: float, prompt_rows: float, devices: int, nodes: int) -> float:
        """Rows go out in 8 bit where the weights are, with a scale for every 128 numbers, and come back in 16."""
        width = (self.architecture.moe_latent_size or self.architecture.hidden_size) / self.tensor_parallel_size
        out = 1 + 4 / 128 if self.weights == "fp8" else 2.0
        return sum(
            all_to_all_s(count * width * size, self.top_k, devices, nodes, self.hardware, once_a_node)
            for count, once_a_node in ((rows, False), (prompt_rows, True))
            for size in (out, 2.0)
            if count
        )

    def _transfers_s(self, rows: float) -> float:
        """Hidden state and residual of each row over every boundary, a slice per device; sampled tokens back to the first."""
        tensor, beyond = self.tensor_parallel_size, self.parallelism
        message = 2 * 2.0 * rows * self.architecture.hidden_size / tensor
        far = beyond.inter_node_boundaries(tensor)
        near = beyond.pipeline_parallel_size - 1 - far
        seconds = far * stage_transfer_s(message, True, self.hardware, self.engine) if far else 0.0
        seconds += near * stage_transfer_s(message, False, self.hardware, self.engine) if near else 0.0
        return seconds + stage_transfer_s(4.0 * rows, far > 0, self.hardware, self.engine)
