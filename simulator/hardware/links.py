"""Links of a device where its profile states none: PCIe to the host, and those that leave the node."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.hardware.profile import HardwareProfile
from simulator.hardware.quantity import Quantity

PCIE_GEN3_X16_BYTES_PER_S = 16e9
# NVLink bridges join two cards.
BRIDGED_DEVICES = 2
# Copies of pinned memory reach about 0.8 of the link's rate, 12, 25 and 50 GB/s over x16 of generations 3, 4 and 5. By compute
# capability from; cards of 12.0 are sold for generation 5, those of 8.x for 4.
PCIE_BYTES_PER_S: tuple[tuple[tuple[int, ...], float, str], ...] = (
    ((9, 0), 50e9, "PCIe gen 5 x16: 63 GB/s, of which copies of pinned memory reach 0.8"),
    ((8, 0), 25e9, "PCIe gen 4 x16: 31.5 GB/s, of which copies of pinned memory reach 0.8"),
    ((7, 0), 12.5e9, "PCIe gen 3 x16: 15.8 GB/s, of which copies of pinned memory reach 0.8"),
    ((0,), 25e9, "PCIe gen 4 x16 taken: 31.5 GB/s, of which copies of pinned memory reach 0.8"),
)


def pcie_bytes_per_s(profile: HardwareProfile) -> float:
    """PCIe x16 of the device's generation, one direction, as its datasheet rate: what copies reach over 0.8."""
    capability = tuple(int(part) for part in (profile.compute_capability or "0").split("."))
    return next(reached for since, reached, _ in PCIE_BYTES_PER_S if capability >= since) / 0.8


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


def bridge_note(profile: HardwareProfile, devices: int) -> list[str]:
    """That two cards are taken to be joined by a bridge, which is an accessory."""
    if profile.link_topology != "bridge" or devices != BRIDGED_DEVICES:
        return []
    return [f"two {profile.name} are taken to be joined by an NVLink bridge; link_topology: pcie of the hardware says otherwise"]
