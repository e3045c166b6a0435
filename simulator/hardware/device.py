"""Hardware: a device as the cost model asks it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from simulator.hardware.all_reduce import AllReduceCost, AllReduceKind
from simulator.hardware.coefficients import Coefficients, GemmRates
from simulator.hardware.links import BRIDGED_DEVICES, INTER_NODE, PCIE_BYTES_PER_S, PCIE_GEN3_X16_BYTES_PER_S, pcie_bytes_per_s
from simulator.hardware.profile import HardwareProfile
from simulator.hardware.quantity import Quantity
from simulator.number_format import FORMATS


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
    def replaying(self) -> Hardware:
        """The device as it runs kernels of graphs that are captured and replayed: `replay_gap_s` later each."""
        gap = self.coefficients.replay_gap_s
        if gap is None:
            return self

        def later(quantity: Quantity) -> Quantity:
            return quantity.model_copy(update={"value": quantity.value + gap.value})

        of_gemms = {dtype: later(each) for dtype, each in self.coefficients.gemm_overhead_s_by_type.items()}
        changes = {name: later(getattr(self.coefficients, name)) for name in ("gemm_overhead_s", "elementwise_overhead_s")}
        changed = self.coefficients.model_copy(update={**changes, "gemm_overhead_s_by_type": of_gemms, "replay_gap_s": None})
        return replace(self, coefficients=changed)

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
            c.gemm_least_tile_rows_by_type.get(dtype, c.gemm_least_tile_rows).value,
            c.gemm_fill_k_by_type.get(dtype, c.gemm_fill_k).value,
            c.gemm_wave_power_by_type.get(dtype, c.gemm_wave_power).value,
            c.gemm_walk_s_per_k_by_type.get(dtype, c.gemm_walk_s_per_k).value,
            c.gemm_walk_longest_s_by_type.get(dtype, c.gemm_walk_longest_s).value,
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

    def link_bandwidth_bytes_per_s(self, devices: int = 2) -> float:
        """To the other devices of a group in the node, one direction; PCIe where there is no faster link."""
        link, topology = self.profile.link_bandwidth_bytes_per_s, self.profile.link_topology
        if topology == "bridge" and devices > BRIDGED_DEVICES:
            return pcie_bytes_per_s(self.profile)
        return link.value if link else PCIE_GEN3_X16_BYTES_PER_S

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
            value, note = next((value, note) for since, value, note in PCIE_BYTES_PER_S if capability >= since)
        return Quantity(value=value, source="assumed", note=note, relative_std=0.3)

    def all_reduce(self, kind: AllReduceKind, devices: int) -> AllReduceCost:
        """The table's entry; between and beyond its sizes the next larger size, else the largest, is taken."""
        tables = self.profile.all_reduce
        table = tables.get(kind) or tables.get("nccl") or tables["pcie"]
        sizes = sorted(table.by_devices)
        return table.by_devices[next((size for size in sizes if size >= devices), sizes[-1])]
