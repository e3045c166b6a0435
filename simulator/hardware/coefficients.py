"""Coefficients: how much of its datasheet a device reaches, and what takes fixed time."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from simulator.hardware.quantity import Quantity
from simulator.hardware.row_factors import RowFactors
from simulator.spec import Spec


class Coefficients(Spec):
    """Efficiency coefficients: fractions of datasheet peaks, and fixed times in seconds.

    gemm_overhead_s: per GEMM in a captured graph. gemm_smoothness: p of the smooth maximum. gemm_tile_rows: T, to which
    rows are rounded for arithmetic; gemm_least_tile_rows: down to which tiles are halved where blocks of T rows would leave more
    than half of the units idle (0: never). gemm_fill_k: what starting and ending a block takes, in elements of the inner
    dimension. *_by_type: the same for GEMMs that compute in one type (fp8 kernels differ from the 16-bit
    ones that the plain coefficients speak of). attention_tile_rows: to which query rows × heads of one KV head are rounded for
    arithmetic. attention_wave_s: time of one wave of sequence × KV-head blocks over the compute units. gemm_wave_power: how
    much of a last, partly empty wave of a GEMM's blocks is waited for (0: none, 1: all of it). gemm_walk_s_per_k: what one block
    of a GEMM takes for each element of its inner dimension, however small the matrix; gemm_walk_longest_s: the most it takes,
    since longer walks are split over blocks. walk_*: the kernel
    without split-KV: its overhead, and one block's serial walk over the KV cache (seconds per cached token at head
    dimension 128, what each query row adds to that, and fixed); walk_copy_*: where that kernel is given copies of the cache, one
    for every query head (PyTorch with a mask), seconds per copied byte beyond those that the caches hold.
    elementwise_overhead_s: one small kernel (norm, rotary embedding, activation, KV write). host_time_factor: how long the
    host beside it takes for the same launches and the same Python, over the hosts that engines' constants were measured on.
    sampling_bandwidth_fraction: of passes over logits; absent: as for weights. replay_gap_s: what passes between the kernels of a
    graph that is replayed beyond all this; absent: nothing.

    expert_*: grouped kernels of routed experts: bandwidth as a fraction of the dense one's, time per layer beside it, how much of
    a new choice every further row of one sequence makes (grouped_routing_correlation: a factor on all where routing picks groups
    of experts first), how evenly popular experts are (popularity_shape: first parameter of a Beta distribution, large is even).
    state_*: recurrent layers: floor, and what every further row of a sequence adds, times the square root of the batch.
    """

    memory_bandwidth_fraction: Quantity
    flops_fraction: dict[str, Quantity]
    gemm_overhead_s: Quantity
    gemm_smoothness: Quantity
    gemm_tile_rows: Quantity
    gemm_least_tile_rows: Quantity
    gemm_fill_k: Quantity
    gemm_wave_power: Quantity
    gemm_walk_s_per_k: Quantity
    gemm_walk_longest_s: Quantity
    attention_overhead_s: Quantity
    attention_bandwidth_fraction: Quantity
    attention_flops_fraction: Quantity
    attention_wave_s: Quantity
    attention_tile_rows: Quantity
    walk_overhead_s: Quantity
    walk_s_per_token: Quantity
    walk_row_s_per_token: Quantity
    walk_fixed_s: Quantity
    walk_copy_s_per_byte: Quantity
    walk_copy_free_bytes: Quantity
    elementwise_overhead_s: Quantity
    host_time_factor: Quantity
    expert_bandwidth_fraction: Quantity
    expert_overhead_s: Quantity
    expert_row_correlation: Quantity
    expert_popularity_shape: Quantity
    grouped_routing_correlation: Quantity
    state_overhead_s: Quantity
    state_row_s: Quantity
    memory_bandwidth_fraction_by_type: dict[str, Quantity] = Field(default_factory=dict)
    gemm_overhead_s_by_type: dict[str, Quantity] = Field(default_factory=dict)
    gemm_smoothness_by_type: dict[str, Quantity] = Field(default_factory=dict)
    gemm_tile_rows_by_type: dict[str, Quantity] = Field(default_factory=dict)
    gemm_least_tile_rows_by_type: dict[str, Quantity] = Field(default_factory=dict)
    gemm_fill_k_by_type: dict[str, Quantity] = Field(default_factory=dict)
    gemm_wave_power_by_type: dict[str, Quantity] = Field(default_factory=dict)
    gemm_walk_s_per_k_by_type: dict[str, Quantity] = Field(default_factory=dict)
    gemm_walk_longest_s_by_type: dict[str, Quantity] = Field(default_factory=dict)
    sampling_bandwidth_fraction: Quantity | None = None
    replay_gap_s: Quantity | None = None


# Coefficients that are a mapping by compute type.
BY_TYPE = tuple(name for name in Coefficients.model_fields if name == "flops_fraction" or name.endswith("_by_type"))


class GemmRates(NamedTuple):
    """The GEMM law of one device and compute type, fractions multiplied out. whole_tiles: few rows are computed as a tile too."""

    bandwidth_bytes_per_s: float
    flops_per_s: float
    overhead_s: float
    smoothness: float
    tile_rows: float
    least_tile_rows: float
    fill_k: float
    wave_power: float
    walk_s_per_k: float
    walk_longest_s: float
    row_factors: RowFactors | None
    whole_tiles: bool = False
