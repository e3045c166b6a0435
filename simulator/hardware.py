"""HardwareProfile: datasheet peaks and efficiency coefficients of one device, each with its source and its doubt.

Effective rates are peak × fraction. A coefficient that a profile leaves out takes the default of its kind of device
(`DEFAULTS`), which is marked *assumed* and widens the interval accordingly. So does a peak that the profile doubts.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from simulator import resources
from simulator.number_format import FORMATS
from simulator.spec import Document, Location, Problem, Spec, SpecError, check, load_yaml, nearest

Source = Literal["datasheet", "fitted", "measured", "published", "assumed", "override"]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
# One standard deviation of ln(value) where a profile states none: fits of kernel tables repeat to about 5 % between
# stacks on one GPU; what was never measured on the device is known to a fifth.
RELATIVE_STD: Mapping[Source, float] = {
    "datasheet": 0.0, "fitted": 0.05, "measured": 0.05, "published": 0.08, "assumed": 0.20, "override": 0.0,
}  # fmt: skip


class Quantity(Spec):
    """A number with its source. `relative_std`: one standard deviation of its logarithm."""

    value: NonNegative
    source: Source
    note: str = ""
    relative_std: Annotated[float, Field(ge=0, le=1)] | None = None

    @property
    def doubt(self) -> float:
        """One standard deviation of ln(value)."""
        return RELATIVE_STD[self.source] if self.relative_std is None else self.relative_std


class AllReduceCost(Spec):
    """``alpha_s + message_bytes / bandwidth_bytes_per_s`` for one kind and one number of devices."""

    alpha_s: NonNegative
    bandwidth_bytes_per_s: Positive
    large_message_bandwidth_bytes_per_s: Positive | None = None

    def slower(self, factor: float) -> AllReduceCost:
        """The same taking `factor` times as long."""
        large = self.large_message_bandwidth_bytes_per_s
        return AllReduceCost(
            alpha_s=self.alpha_s * factor,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s / factor,
            large_message_bandwidth_bytes_per_s=None if large is None else large / factor,
        )


class AllReduceTable(Spec):
    """All-reduce of one kind by number of devices; `source`, `note` and `relative_std` (of the whole time) as in `Quantity`."""

    source: Source
    note: str = ""
    relative_std: Annotated[float, Field(ge=0, le=1)] | None = None
    by_devices: dict[int, AllReduceCost]

    @property
    def doubt(self) -> float:
        """One standard deviation of ln(time); fits of all-reduce err by up to 15 % (docs/model.md)."""
        if self.relative_std is not None:
            return self.relative_std
        return 0.10 if self.source in ("fitted", "measured") else RELATIVE_STD[self.source]


AllReduceKind = Literal["custom", "nccl", "pcie"]


class RowFactors(Spec):
    """What the GEMM law misses, by rows: factors on a GEMM's busy time, interpolated in log rows, held beyond the ends.

    {1: 0.55, 2: 1.0} is a level of its own for one row (a matrix-vector kernel); two neighbouring rows that differ are a step
    (a tile's edge). `source`, `note` and `relative_std` (of the step from one row to several) as in `Quantity`.
    """

    source: Source
    note: str = ""
    relative_std: Annotated[float, Field(ge=0, le=1)] | None = None
    by_rows: dict[int, Positive]

    @property
    def doubt(self) -> float:
        """One standard deviation of ln(factor)."""
        return RELATIVE_STD[self.source] if self.relative_std is None else self.relative_std

    def at(self, rows: float) -> float:
        """The factor for `rows`.

        >>> round(RowFactors(source="measured", by_rows={1: 0.5, 4: 2.0}).at(2), 6)
        1.0
        """
        knots = sorted(self.by_rows)
        if rows <= knots[0] or rows >= knots[-1]:
            return self.by_rows[knots[0] if rows <= knots[0] else knots[-1]]
        above = bisect.bisect_right(knots, rows)
        low, high = knots[above - 1], knots[above]
        share = math.log(rows / low) / math.log(high / low)
        return float(self.by_rows[low] ** (1 - share) * self.by_rows[high] ** share)

    def raised_above_one_row(self, factor: float) -> RowFactors:
        """The same with every factor but that of one row multiplied."""
        return self.model_copy(
            update={"by_rows": {rows: value * (factor if rows > 1 else 1.0) for rows, value in self.by_rows.items()}}
        )


class Coefficients(Spec):
    """Efficiency coefficients: fractions of datasheet peaks, and fixed times in seconds.

    gemm_overhead_s: per GEMM in a captured graph. gemm_smoothness: p of the smooth maximum. gemm_tile_rows: T, to which
    rows are rounded for arithmetic. *_by_type: the same for GEMMs that compute in one type (fp8 kernels differ from the 16-bit
    ones that the plain coefficients speak of). attention_tile_rows: to which query rows × heads of one KV head are rounded for
    arithmetic. attention_wave_s: time of one wave of sequence × KV-head blocks over the compute units. gemm_wave_power: how
    much of a last, partly empty wave of a GEMM's blocks is waited for (0: none, 1: all of it). walk_*: the kernel
    without split-KV: its overhead, and one block's serial walk over the KV cache (seconds per cached token at head
    dimension 128, what each query row adds to that, and fixed); walk_copy_*: where that kernel is given copies of the cache, one
    for every query head (PyTorch with a mask), seconds per copied byte beyond those that the caches hold.
    elementwise_overhead_s: one small kernel (norm, rotary embedding, activation, KV write). sampling_bandwidth_fraction: of
    passes over logits; absent: as for weights.

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
    gemm_wave_power: Quantity
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
    gemm_wave_power_by_type: dict[str, Quantity] = Field(default_factory=dict)
    sampling_bandwidth_fraction: Quantity | None = None


# Coefficients that are a mapping by compute type.
BY_TYPE = tuple(name for name in Coefficients.model_fields if name == "flops_fraction" or name.endswith("_by_type"))


class GemmRates(NamedTuple):
    """The GEMM law of one device and compute type, fractions multiplied out."""

    bandwidth_bytes_per_s: float
    flops_per_s: float
    overhead_s: float
    smoothness: float
    tile_rows: float
    wave_power: float
    row_factors: RowFactors | None


Kind = Literal["gpu", "unified", "cpu", "accelerator"]


class HardwareProfile(Spec):
    """One device. Bytes, bytes/s, FLOP/s (dense), seconds, watts.

    kind `unified`: a GPU that shares memory with its CPU; `accelerator`: few large cores that run a compiled program.
    memory_bytes_options: other capacities it is sold with; a name that ends in one of them ("M3 Ultra 96GB") means it.
    host_link_bandwidth_bytes_per_s: between its memory and the host's, one direction, as reached; a default by generation
    (`Hardware.host_link`) where left out.
    link_bandwidth_bytes_per_s: to the other devices, one direction, all links together. inter_node_*: to devices of other nodes,
    one direction and per device, and of one exchange; all_to_all_latency_s: of one expert dispatch or combine; all three take the
    default of `INTER_NODE` where left out. gemm_row_factors: by compute type. doubtful: keys of quantities that sources disagree
    on; each states its `relative_std`.
    """

    schema_version: Literal[1]
    name: str
    aliases: tuple[str, ...] = ()
    vendor: str
    kind: Kind
    compute_capability: str | None = None
    memory_bytes: Quantity
    memory_bytes_options: tuple[Positive, ...] = ()
    memory_bandwidth_bytes_per_s: Quantity
    peak_flops_per_s: dict[str, Quantity]
    compute_units: Annotated[int, Field(ge=1)]
    tdp_w: Positive | None = None
    link_bandwidth_bytes_per_s: Quantity | None = None
    host_link_bandwidth_bytes_per_s: Quantity | None = None
    inter_node_bandwidth_bytes_per_s: Quantity | None = None
    inter_node_latency_s: Quantity | None = None
    all_to_all_latency_s: Quantity | None = None
    coefficients: dict[str, Quantity | dict[str, Quantity]] = Field(default_factory=dict)
    gemm_row_factors: dict[str, RowFactors] = Field(default_factory=dict)
    all_reduce: dict[AllReduceKind, AllReduceTable] = Field(default_factory=dict)
    doubtful: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def architecture(self) -> str:
        """Devices of one architecture run the same kernels: the compute capability, or vendor and kind."""
        return self.compute_capability or f"{self.vendor} {self.kind}"


_PCIE_GEN3_X16_BYTES_PER_S = 16e9
# Copies of pinned memory reach about 0.8 of the link's rate, 12, 25 and 50 GB/s over x16 of generations 3, 4 and 5. By compute
# capability from; cards of 12.0 are sold for generation 5, those of 8.x for 4.
_PCIE_BYTES_PER_S: tuple[tuple[tuple[int, ...], float, str], ...] = (
    ((9, 0), 50e9, "PCIe gen 5 x16: 63 GB/s, of which copies of pinned memory reach 0.8"),
    ((8, 0), 25e9, "PCIe gen 4 x16: 31.5 GB/s, of which copies of pinned memory reach 0.8"),
    ((7, 0), 12.5e9, "PCIe gen 3 x16: 15.8 GB/s, of which copies of pinned memory reach 0.8"),
    ((0,), 25e9, "PCIe gen 4 x16 taken: 31.5 GB/s, of which copies of pinned memory reach 0.8"),
)
# 0.031 µs per token at 2.52 GHz, 0.022 at 2.6 GHz; boost clocks: about 2.5 GHz from compute capability 8.9 on, 1.4 to 1.7 before.
_WALK_CYCLES_PER_TOKEN = 68.0
_CLOCK_HZ_FROM_8_9 = 2.5e9
_CLOCK_HZ = 1.5e9
# Links that leave the node, where a profile states none.
INTER_NODE: Mapping[str, Quantity] = {
    "inter_node_bandwidth_bytes_per_s": Quantity(
        value=12.5e9, source="assumed", relative_std=0.8,
        note="100 Gb/s per device; servers have from 10 Gb/s for all to 400 Gb/s (InfiniBand NDR) for each",
    ),
    "inter_node_latency_s": Quantity(
        value=2.2e-5, source="published", relative_std=0.4,
        note="a small NCCL all-reduce between H100 nodes took 62 µs (NVIDIA/nccl#1453), 17 of them in the node: 22 an exchange",
    ),
    "all_to_all_latency_s": Quantity(
        value=3.4e-5, source="fitted", relative_std=0.15,
        note="low-latency kernels of DeepEP on H800 with 400 Gb/s InfiniBand, 8 to 256 devices: within 12 %",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KindDefaults:
    """What a profile of one kind of device leaves out, why it is so, and how sure: one standard deviation of ln(value)."""

    values: Mapping[str, float]
    note: str
    fraction_std: float = RELATIVE_STD["assumed"]
    time_std: float = RELATIVE_STD["assumed"]

    def quantity(self, name: str) -> Quantity:
        std = self.time_std if name.endswith("_s") else self.fraction_std
        if name == "attention_tile_rows":
            std = 0.0  # how kernels are built, not how fast they run
        return Quantity(value=self.values[name], source="assumed", note=self.note, relative_std=std)


# Without any calibration (docs/model.md): 20 µs a layer over about seven kernels, 0.80 of bandwidth, 0.65 of FLOP/s, p = 3.
_GPU: dict[str, float] = {
    "memory_bandwidth_fraction": 0.80, "flops_fraction": 0.65, "gemm_overhead_s": 3e-6, "gemm_smoothness": 3.0,
    "gemm_tile_rows": 64.0, "gemm_wave_power": 0.0, "attention_overhead_s": 10e-6, "attention_bandwidth_fraction": 0.75,
    "attention_flops_fraction": 0.5, "attention_wave_s": 2.7e-6, "attention_tile_rows": 64.0,
    "walk_overhead_s": 3e-6, "walk_row_s_per_token": 0.0, "walk_fixed_s": 4.5e-6, "walk_copy_s_per_byte": 0.0,
    "walk_copy_free_bytes": 0.0, "elementwise_overhead_s": 2.5e-6,
}  # fmt: skip
DEFAULTS: Mapping[Kind, KindDefaults] = {
    "gpu": KindDefaults(_GPU, "no measurement of this device: class default"),
    # Weights read per token × tokens/s over datasheet bandwidth, batch 1: GB10 0.60-0.69 (FP8), M3 Ultra 0.62-0.81 (mlx-lm,
    # 4 bit), M5 Pro 0.81 (vllm-metal, bf16), Strix Halo 0.76-0.81 (llama.cpp, Q4_K_M): docs/model.md. Command buffers of Metal
    # and Vulkan are no captured graphs.
    "unified": KindDefaults(
        _GPU | {"memory_bandwidth_fraction": 0.75, "attention_bandwidth_fraction": 0.70, "gemm_overhead_s": 5e-6},
        "class default of unified memory: published batch-1 decode of four devices reaches 0.60 to 0.81 of the bandwidth",
        time_std=0.4,
    ),
    # One Zen 3 core: GEMM at 0.46-0.60 of peak; a sum of bytes and arithmetic fits its forward times better than their maximum.
    # Two Zen 5 sockets under llama.cpp, 16 bit, read 0.41-0.74 of their bandwidth. An operator costs from 5 µs (barrier of a
    # thread pool) to 60 µs (eager PyTorch: 0.65 ms a layer over eleven). Rows and copies of a walk: PyTorch on one Zen 5 core.
    "cpu": KindDefaults(
        _GPU
        | {
            "memory_bandwidth_fraction": 0.65, "flops_fraction": 0.5, "gemm_overhead_s": 20e-6, "gemm_smoothness": 1.0,
            "gemm_tile_rows": 16.0, "attention_overhead_s": 20e-6, "attention_bandwidth_fraction": 0.55,
            "attention_flops_fraction": 0.3, "attention_tile_rows": 1.0, "walk_overhead_s": 20e-6,
            "walk_row_s_per_token": 8e-9, "walk_copy_s_per_byte": 8e-11, "walk_copy_free_bytes": 6e6,
            "elementwise_overhead_s": 20e-6,
        },
        "class default of CPUs: one measured core, published decode of two sockets; operators between C++ and eager PyTorch",
        fraction_std=0.25,
        time_std=0.7,
    ),
    # A compiled program has no launches; tiles are those of a 128-row systolic array; blocks queue on few large cores, so that a
    # wave is a hundredth of a GPU's.
    "accelerator": KindDefaults(
        _GPU
        | {
            "memory_bandwidth_fraction": 0.75, "flops_fraction": 0.55, "gemm_overhead_s": 2e-6, "gemm_tile_rows": 128.0,
            "attention_wave_s": 3e-8, "walk_fixed_s": 5e-8, "elementwise_overhead_s": 1e-6,
        },
        "class default of accelerators: no public kernel table; a compiled program of 128-row tiles",
        fraction_std=0.25,
        time_std=0.7,
    ),
}  # fmt: skip
# Experts and recurrent states: the same on every device where its profile says nothing else (published_cases/layer_kinds.yaml).
LAYER_KINDS = (
    "expert_bandwidth_fraction", "expert_overhead_s", "expert_row_correlation", "expert_popularity_shape",
    "grouped_routing_correlation", "state_overhead_s", "state_row_s",
)  # fmt: skip


@dataclass(frozen=True)
class Hardware:
    """A device ready for the cost model: the profile, and every coefficient filled in with its provenance."""

    profile_id: str
    profile: HardwareProfile
    coefficients: Coefficients

    @property
    def name(self) -> str:
        return self.profile.name

    @property
    def memory_bytes(self) -> float:
        return self.profile.memory_bytes.value

    @cached_property
    def bandwidth_bytes_per_s(self) -> float:
        """Effective memory bandwidth of a GEMM's weights."""
        return self.profile.memory_bandwidth_bytes_per_s.value * self.coefficients.memory_bandwidth_fraction.value

    @cached_property
    def sampling_bandwidth_bytes_per_s(self) -> float:
        """Effective memory bandwidth of a pass over logits."""
        own = self.coefficients.sampling_bandwidth_fraction
        return self.profile.memory_bandwidth_bytes_per_s.value * own.value if own else self.bandwidth_bytes_per_s

    @cached_property
    def attention_bandwidth_bytes_per_s(self) -> float:
        """Effective memory bandwidth of the KV cache."""
        return self.profile.memory_bandwidth_bytes_per_s.value * self.coefficients.attention_bandwidth_fraction.value

    def flops_per_s(self, dtype: str) -> float:
        """Effective dense FLOP/s of a GEMM computing in `dtype`."""
        return self.profile.peak_flops_per_s[dtype].value * self.coefficients.flops_fraction[dtype].value

    @cached_property
    def _gemm_rates(self) -> dict[str, GemmRates]:
        return {}

    def gemm_rates(self, dtype: str) -> GemmRates:
        """The GEMM law computing in `dtype`: the type's own coefficients where the profile has them."""
        found = self._gemm_rates.get(dtype)
        return found if found is not None else self._gemm_rates.setdefault(dtype, self._gemm_law(dtype))

    def _gemm_law(self, dtype: str) -> GemmRates:
        c = self.coefficients
        bandwidth = c.memory_bandwidth_fraction_by_type.get(dtype, c.memory_bandwidth_fraction).value
        return GemmRates(
            self.profile.memory_bandwidth_bytes_per_s.value * bandwidth,
            self.flops_per_s(dtype),
            c.gemm_overhead_s_by_type.get(dtype, c.gemm_overhead_s).value,
            c.gemm_smoothness_by_type.get(dtype, c.gemm_smoothness).value,
            c.gemm_tile_rows_by_type.get(dtype, c.gemm_tile_rows).value,
            c.gemm_wave_power_by_type.get(dtype, c.gemm_wave_power).value,
            self.profile.gemm_row_factors.get(dtype),
        )

    def attention_flops_per_s(self) -> float:
        """Effective FLOP/s of attention, which computes in 16 bit (32 bit where the device has no 16-bit rate)."""
        return self.profile.peak_flops_per_s[self.wide_dtype].value * self.coefficients.attention_flops_fraction.value

    @cached_property
    def wide_dtype(self) -> str:
        """The 16-bit type that weight-only quantized layers and attention compute in."""
        return next(dtype for dtype in ("bf16", "fp16", "fp32") if dtype in self.profile.peak_flops_per_s)

    def compute_dtype(self, weights: str) -> str:
        """The type in which a GEMM over `weights` computes: the format's own where the device has it, else 16 bit."""
        native = FORMATS[weights].computes_in
        return next((dtype for dtype in native if dtype in self.profile.peak_flops_per_s), self.wide_dtype)

    @property
    def link_bandwidth_bytes_per_s(self) -> float:
        """To the other devices of the node, one direction; PCIe where there is no faster link."""
        link = self.profile.link_bandwidth_bytes_per_s
        return link.value if link else _PCIE_GEN3_X16_BYTES_PER_S

    @property
    def inter_node_bandwidth_bytes_per_s(self) -> float:
        return self.link("inter_node_bandwidth_bytes_per_s").value

    @property
    def inter_node_latency_s(self) -> float:
        return self.link("inter_node_latency_s").value

    @property
    def all_to_all_latency_s(self) -> float:
        return self.link("all_to_all_latency_s").value

    def link(self, name: str) -> Quantity:
        """A key of `INTER_NODE`: as the profile states it, else the default."""
        stated: Quantity | None = getattr(self.profile, name)
        return stated or INTER_NODE[name]

    @property
    def host_link(self) -> Quantity:
        """`host_link_bandwidth_bytes_per_s`: as the profile states it, else PCIe x16 of the device's generation.

        Where device and host share one memory, a copy within it.
        """
        stated, profile = self.profile.host_link_bandwidth_bytes_per_s, self.profile
        if stated is not None:
            return stated
        if profile.kind in ("cpu", "unified"):
            value, note = self.bandwidth_bytes_per_s / 2, "a copy within one memory reads and writes every byte"
        else:
            capability = tuple(int(part) for part in (profile.compute_capability or "0").split("."))
            value, note = next((value, note) for since, value, note in _PCIE_BYTES_PER_S if capability >= since)
        return Quantity(value=value, source="assumed", note=note, relative_std=0.3)

    def all_reduce(self, kind: AllReduceKind, devices: int) -> AllReduceCost:
        """The table's entry; between and beyond its sizes the next larger size, else the largest, is taken."""
        tables = self.profile.all_reduce
        table = tables.get(kind) or tables.get("nccl") or tables["pcie"]
        sizes = sorted(table.by_devices)
        return table.by_devices[next((size for size in sizes if size >= devices), sizes[-1])]


class HardwareOverride(Spec):
    """``hardware: {base: h100_sxm, memory_bandwidth_fraction: 0.7}``: a profile with coefficients replaced."""

    base: str
    memory_bytes: Annotated[float, Field(ge=1e6, le=1e16)] | None = None
    memory_bandwidth_bytes_per_s: Annotated[float, Field(ge=1e6, le=1e18)] | None = None
    compute_units: Annotated[int, Field(ge=1, le=10**6)] | None = None
    memory_bandwidth_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    flops_fraction: Annotated[float, Field(gt=0, le=1)] | dict[str, Annotated[float, Field(gt=0, le=1)]] | None = None
    gemm_overhead_s: Annotated[float, Field(ge=0, le=10)] | None = None
    gemm_smoothness: Annotated[float, Field(ge=1, le=16)] | None = None
    gemm_tile_rows: Annotated[float, Field(ge=1, le=512)] | None = None
    gemm_wave_power: Annotated[float, Field(ge=0, le=1)] | None = None
    attention_overhead_s: Annotated[float, Field(ge=0, le=10)] | None = None
    attention_bandwidth_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    attention_flops_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    attention_wave_s: Annotated[float, Field(ge=0, le=10)] | None = None
    attention_tile_rows: Annotated[float, Field(ge=1, le=512)] | None = None
    walk_overhead_s: Annotated[float, Field(ge=0, le=10)] | None = None
    walk_s_per_token: Annotated[float, Field(ge=0, le=10)] | None = None
    walk_row_s_per_token: Annotated[float, Field(ge=0, le=10)] | None = None
    walk_fixed_s: Annotated[float, Field(ge=0, le=10)] | None = None
    walk_copy_s_per_byte: Annotated[float, Field(ge=0, le=10)] | None = None
    walk_copy_free_bytes: Annotated[float, Field(ge=0, le=1e16)] | None = None
    elementwise_overhead_s: Annotated[float, Field(ge=0, le=10)] | None = None
    sampling_bandwidth_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    expert_bandwidth_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    expert_overhead_s: Annotated[float, Field(ge=0, le=10)] | None = None
    expert_row_correlation: Annotated[float, Field(ge=0, le=1)] | None = None
    expert_popularity_shape: Annotated[float, Field(gt=0, le=1e6)] | None = None
    grouped_routing_correlation: Annotated[float, Field(gt=0, le=1)] | None = None
    state_overhead_s: Annotated[float, Field(ge=0, le=10)] | None = None
    state_row_s: Annotated[float, Field(ge=0, le=10)] | None = None
    host_link_bandwidth_bytes_per_s: Annotated[float, Field(ge=1e6, le=1e16)] | None = None
    inter_node_bandwidth_bytes_per_s: Annotated[float, Field(ge=1e6, le=1e16)] | None = None
    inter_node_latency_s: Annotated[float, Field(ge=0, le=10)] | None = None
    all_to_all_latency_s: Annotated[float, Field(ge=0, le=10)] | None = None


@cache
def names() -> dict[str, str]:
    """Every accepted spelling (id, name, alias; normalised) → profile id."""
    found: dict[str, str] = {}
    for profile_id in resources.ids("hardware"):
        data = load_yaml(resources.folder("hardware") / f"{profile_id}.yaml").data
        for name in (profile_id, data["name"], *(data.get("aliases") or ())):
            found.setdefault(_key(name), profile_id)
    return found


_BRANDS = re.compile(r"\b(nvidia|geforce|tesla|amd|instinct|radeon|intel|apple|google|aws)\b")
_MEMORY = re.compile(r"(.+)-(\d+)-?gb")


def _key(name: str) -> str:
    """A name as it is compared: no case, remarks in brackets, brands, spaces nor hyphens."""
    return _BRANDS.sub("", resources.normalised(name)).replace("-", "")


def find_hardware(name: str, where: str = "", key: str = "hardware") -> Hardware:
    """A device by id, path, name or alias, or one of these and its memory. Raises `SpecError` naming the nearest known one."""
    path = resources.file_of("hardware", name)
    if path is not None:
        return _load(str(path))
    if _key(name) in names():
        return _shipped(names()[_key(name)])
    found = _with_memory(name)
    if found is None:
        raise resources.unknown(where, key, "hardware profile", name, resources.ids("hardware"))
    return found


def _shipped(profile_id: str) -> Hardware:
    return _load(str(resources.folder("hardware") / f"{profile_id}.yaml"))


def _with_memory(name: str) -> Hardware | None:
    """The device of a name like ``M3 Ultra 96GB``, with that memory; None for a device or a capacity that does not exist."""
    split = _MEMORY.fullmatch(resources.normalised(name))
    if split is None or _key(split[1]) not in names():
        return None
    hardware = _shipped(names()[_key(split[1])])
    profile = hardware.profile
    asked = int(split[2]) * 2**30
    # Vendors count GB or GiB, and a driver may report less: 8 % apart at most.
    fits = [size for size in (profile.memory_bytes.value, *profile.memory_bytes_options) if abs(size / asked - 1) < 0.08]
    if not fits:
        return None
    memory = profile.memory_bytes.model_copy(update={"value": fits[0]})
    return replace(hardware, profile=profile.model_copy(update={"memory_bytes": memory}))


@cache
def _load(path: str) -> Hardware:
    document = load_yaml(path)
    profile: HardwareProfile = check(HardwareProfile, document)
    problems = list(_profile_problems(profile, document))
    if problems:
        raise SpecError(problems)
    return filled(profile, path.rsplit("/", 1)[-1].removesuffix(".yaml"))


def filled(profile: HardwareProfile, profile_id: str) -> Hardware:
    """The profile with every coefficient that it leaves out assumed."""
    if not profile.all_reduce:
        profile = profile.model_copy(update={"all_reduce": {"nccl": _assumed_all_reduce(profile)}})
    return Hardware(profile_id, profile, _complete(profile))


def _assumed_all_reduce(profile: HardwareProfile) -> AllReduceTable:
    """Ring over the device's link: each byte crosses 2·(N-1)/N times; 10 µs for each doubling of devices, as NCCL takes."""
    link = profile.link_bandwidth_bytes_per_s
    bandwidth = link.value if link else _PCIE_GEN3_X16_BYTES_PER_S
    costs = {
        2**power: AllReduceCost(alpha_s=10e-6 * power, bandwidth_bytes_per_s=bandwidth * 2**power / (2 * (2**power - 1)))
        for power in range(1, 7)
    }
    return AllReduceTable(
        source="assumed", note="no table of this device: a ring over its link", relative_std=0.3, by_devices=costs
    )


def _range_problems(profile: HardwareProfile, document: Document) -> list[Problem]:
    """Numbers that the cost model divides by, and versions it compares."""
    found = []
    for name in (
        "memory_bytes", "memory_bandwidth_bytes_per_s", "inter_node_bandwidth_bytes_per_s", "host_link_bandwidth_bytes_per_s",
    ):  # fmt: skip
        stated = getattr(profile, name)
        if stated is not None and stated.value < 1e6:
            found.append(document.problem((name, "value"), "must be at least 1e6", getattr(profile, name).value))
    for dtype, peak in profile.peak_flops_per_s.items():
        if peak.value < 1e6:
            found.append(document.problem(("peak_flops_per_s", dtype, "value"), "must be at least 1e6", peak.value))
    if profile.compute_capability is not None and not re.fullmatch(r"[0-9]+(\.[0-9]+)*", profile.compute_capability):
        must = 'must be a version such as "9.0"'
        found.append(document.problem(("compute_capability",), must, profile.compute_capability))
    for kind, table in profile.all_reduce.items():
        if not table.by_devices or min(table.by_devices) < 2:
            found.append(document.problem(("all_reduce", kind, "by_devices"), "must hold numbers of devices from 2 up"))
    return found


def _profile_problems(profile: HardwareProfile, document: Document) -> list[Problem]:
    found = []
    known = set(Coefficients.model_fields)
    for name, quantity in profile.coefficients.items():
        location: Location = ("coefficients", name)
        if name not in known:
            found.append(Problem(document.where(location), f"coefficients.{name}", "unknown key", "", nearest(name, known)))
        elif (name in BY_TYPE) != isinstance(quantity, dict):
            form = "a mapping by type" if name in BY_TYPE else "one number with its source"
            found.append(Problem(document.where(location), f"coefficients.{name}", f"must be {form}"))
        else:
            found += _coefficient_problems(name, quantity, profile, document)
    for dtype, factors in profile.gemm_row_factors.items():
        if dtype not in profile.peak_flops_per_s:
            found.append(_unknown_type(("gemm_row_factors", dtype), profile, document))
        if not factors.by_rows or min(factors.by_rows) < 1:
            must = "must hold factors by rows, from 1 up"
            found.append(document.problem(("gemm_row_factors", dtype, "by_rows"), must))
    for index, name in enumerate(profile.doubtful):
        if not _doubt(profile, name):
            found.append(document.problem(("doubtful", index), "must name a quantity that states its relative_std", name))
    found += _range_problems(profile, document)
    if not profile.peak_flops_per_s.keys() & {"bf16", "fp16", "fp32"}:
        found.append(Problem(document.where(("peak_flops_per_s",)), "peak_flops_per_s", "must hold bf16, fp16 or fp32"))
    return found


def _doubt(profile: HardwareProfile, name: str) -> float:
    """The doubt of the quantity that a dotted name means; 0 where there is none."""
    outer, _, inner = name.partition(".")
    value = getattr(profile, outer, None)
    if isinstance(value, dict):
        value = value.get(inner)
    return value.doubt if isinstance(value, Quantity) else 0.0


def _unknown_type(location: Location, profile: HardwareProfile, document: Document) -> Problem:
    known = profile.peak_flops_per_s
    return document.problem(location, f"must be a type with a peak: {', '.join(known)}", location[-1], known)


def _coefficient_problems(
    name: str, quantity: Quantity | dict[str, Quantity], profile: HardwareProfile, document: Document
) -> Iterator[Problem]:
    """Types without a peak, fractions above 1, and shapes of the GEMM law below 1."""
    values = quantity if isinstance(quantity, dict) else {"": quantity}
    plain = name.removesuffix("_by_type")
    for dtype, item in values.items():
        location: Location = ("coefficients", name, *([dtype] if dtype else []))
        if dtype and dtype not in profile.peak_flops_per_s:
            yield _unknown_type(location, profile, document)
        if (plain.endswith("_fraction") or plain == "gemm_wave_power") and item.value > 1:
            yield document.problem((*location, "value"), "must be at most 1", item.value)
        if plain in ("gemm_smoothness", "gemm_tile_rows", "attention_tile_rows") and item.value < 1:
            yield document.problem((*location, "value"), "must be at least 1", item.value)


def _complete(profile: HardwareProfile) -> Coefficients:
    given = profile.coefficients
    defaults = DEFAULTS[profile.kind]
    flops = given.get("flops_fraction", {})
    assert isinstance(flops, dict)
    filled: dict[str, object] = {name: defaults.quantity(name) for name in defaults.values}
    filled |= _layer_kinds()
    filled |= {"walk_s_per_token": _assumed_walk(profile), **given}
    filled["flops_fraction"] = {
        dtype: flops.get(dtype) or defaults.quantity("flops_fraction") for dtype in profile.peak_flops_per_s
    }
    return Coefficients.model_validate(filled)


@cache
def _layer_kinds() -> dict[str, Quantity]:
    """Coefficients of routed experts and recurrent layers, as fitted on published runs."""
    found: dict[str, Quantity] = check(dict[str, Quantity], load_yaml(resources.folder("published_cases") / "layer_kinds.yaml"))
    return {name: found[name] for name in LAYER_KINDS}


def _assumed_walk(profile: HardwareProfile) -> Quantity:
    """A lone block waits for its loads: 57 to 78 cycles per cached token on the two devices measured (RTX PRO 6000, RTX 4090)."""
    capability = tuple(int(part) for part in (profile.compute_capability or "0").split("."))
    clock_hz = _CLOCK_HZ_FROM_8_9 if capability >= (8, 9) else _CLOCK_HZ
    return Quantity(
        value=_WALK_CYCLES_PER_TOKEN / clock_hz,
        source="assumed",
        note="cycles per token of the measured devices at the usual clock of this generation",
        relative_std=0.25,
    )


def override(hardware: Hardware, change: HardwareOverride, document: Document, location: Location = ("hardware",)) -> Hardware:
    """`hardware` with the coefficients that `change` names replaced. Raises `SpecError` for a type the device lacks."""
    given = {name: value for name, value in change.model_dump(exclude_none=True).items() if name != "base"}
    profile: dict[str, object] = {}
    coefficients: dict[str, object] = {}
    for name, value in given.items():
        if name == "flops_fraction":
            coefficients[name] = _override_flops(hardware, value, document, (*location, name))
        elif name == "compute_units":
            profile[name] = value
        else:
            changed = profile if name in HardwareProfile.model_fields else coefficients
            changed[name] = Quantity(value=value, source="override", note="set in the scenario")
            if f"{name}_by_type" in BY_TYPE:
                # The scenario's number is for every type.
                coefficients[f"{name}_by_type"] = {}
    return Hardware(
        hardware.profile_id, hardware.profile.model_copy(update=profile), hardware.coefficients.model_copy(update=coefficients)
    )


def _override_flops(
    hardware: Hardware, value: float | dict[str, float], document: Document, location: Location
) -> dict[str, Quantity]:
    known = hardware.coefficients.flops_fraction
    wanted = dict.fromkeys(known, value) if isinstance(value, float) else value
    unknown = [dtype for dtype in wanted if dtype not in known]
    if unknown:
        raise SpecError(
            document.problem((*location, dtype), f"must be a type this device computes in: {', '.join(known)}", dtype, known)
            for dtype in unknown
        )
    return known | {d: Quantity(value=v, source="override", note="set in the scenario") for d, v in wanted.items()}
