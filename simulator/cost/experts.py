"""ExpertCost: the routed experts of one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from simulator.architecture import Experts, ModelArchitecture
from simulator.cost.forward_pass import ForwardPass, routed_tokens
from simulator.cost.parallelism import Parallelism, busiest
from simulator.cost.roofline import Bound, Operation, experts_touched, grouped_gemm
from simulator.cost.terms import CostTerm
from simulator.hardware import Hardware
from simulator.row_law import RowLaw


@dataclass(frozen=True)
class ExpertCost:
    """weight_bytes: of one parameter. tile_rows: to which the engine's grouped kernels round the rows of an expert.
    row_law: of its kernels for few rows.
    """

    architecture: ModelArchitecture
    hardware: Hardware
    tensor_parallel_size: int
    parallelism: Parallelism
    weight_bytes: float
    compute_dtype: str
    tile_rows: int
    row_law: RowLaw | None

    @cached_property
    def layers(self) -> list[tuple[int, Experts]]:
        """(how many, their experts) of equal layers."""
        return _layers_with_experts(self.architecture, self.tensor_parallel_size)

    @cached_property
    def parameters(self) -> float:
        """Weights of one expert on one device: a slice, over the devices of all ranks, or the whole of it."""
        tensor, beyond = self.tensor_parallel_size, self.parallelism
        slices = 1 if beyond.expert_parallel else beyond.expert_devices(tensor)
        return _layers_with_experts(self.architecture, slices)[0][1].parameters_per_expert

    def term(self, asked: ForwardPass, new_tokens: int) -> CostTerm:
        """The union that all tokens touch is read, every token's own experts are computed."""
        routed = routed_tokens(asked, self.hardware.coefficients.expert_row_correlation.value)
        others = self.parallelism.data_parallel_size * asked.load
        seconds, by_bound = 0.0, dict[Bound, float]()
        for count, experts in self.layers:
            operation = self._layer(experts, routed * others, new_tokens * others)
            seconds += count * operation.seconds
            by_bound[operation.bound] = by_bound.get(operation.bound, 0.0) + count * operation.seconds
        return CostTerm("experts", seconds, max(by_bound, key=lambda bound: by_bound[bound]))

    def _layer(self, experts: Experts, routed: float, tokens: float) -> Operation:
        """One layer and the rows of all ranks. Whole experts fall unevenly on devices, and the busiest is waited for."""
        beyond, coefficients = self.parallelism, self.hardware.coefficients
        correlation = coefficients.grouped_routing_correlation.value if experts.grouped else 1.0
        tokens_alike = max(routed * correlation, 1.0)
        touched = experts_touched(
            experts.num_experts, experts.top_k, tokens_alike, coefficients.expert_popularity_shape.value or math.inf
        )
        rows = tokens * experts.top_k
        if beyond.expert_parallel:
            devices = beyond.expert_devices(self.tensor_parallel_size)
            touched = busiest(touched, devices, experts.num_experts)
            rows = busiest(rows, devices)
        reads = self.row_law.expert_reads(tokens, rows / touched) if self.row_law is not None else 1.0
        weight_bytes = self.weight_bytes * reads
        return grouped_gemm(rows, touched, self.parameters, weight_bytes, self.hardware, self.compute_dtype, self.tile_rows)


def _layers_with_experts(architecture: ModelArchitecture, slices: int) -> list[tuple[int, Experts]]:
    return [(group.count, group.experts) for group in architecture.layer_groups(slices) if group.experts is not None]
