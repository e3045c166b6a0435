"""All-reduce of a device whose profile has no table: by how its links join devices, and over PCIe as measured on another card.

- Ring over the faster link: each byte crosses 2·(N-1)/N times; 10 µs for each doubling of devices, as NCCL takes.
- Mesh: the same over the links to the others of the group alone, (N-1)/7 of all links of eight devices.
- Over PCIe: NCCL and the engines' own kernel on RTX PRO 6000 of generation 5, at a bandwidth that falls with the link's. Without
  direct access between cards data goes through the host's memory, and a small message takes three times as long.
"""

from __future__ import annotations

from simulator.hardware.all_reduce import AllReduceCost, AllReduceKind, AllReduceTable
from simulator.hardware.links import BRIDGED_DEVICES, PCIE_GEN3_X16_BYTES_PER_S, pcie_bytes_per_s
from simulator.hardware.profile import HardwareProfile

MESH_DEVICES = 8
_SIZES = tuple(2**power for power in range(1, 7))
_GEN5_X16_BYTES_PER_S = 6.3e10
# NCCL 2.29 over PCIe of generation 5, and vLLM's own kernel over two devices (tables of the RTX PRO 6000, aiconfigurator-core
# 0.12.0): start, bandwidth up to 1 MiB and beyond. More devices than eight: as eight.
_NCCL = {2: (6.42e-6, 2.29e10, 3.74e10), 4: (1.29e-5, 1.06e10, 1.72e10), 8: (2.44e-5, 5.3e9, 1.40e10)}
_CUSTOM = {2: (4.32e-6, 3.87e10, 3.63e10)}
# The engines' own kernel over two devices with NVLink: 4.3 to 6.8 µs on an A100, H100, H200 and B200 of the same source.
_CUSTOM_OVER_NVLINK_S = 5e-6
# An earlier collection on the same card (vLLM 0.19, SGLang 0.5.10, TensorRT-LLM 1.3.0rc10, all alike) took 19.6 µs for 4 KB over
# two devices and 91.5 µs for 1 MB: through the host, as those times are taken here.
_THROUGH_HOST = {2: (1.96e-5, 1.46e10, 1.52e10), 4: (3.9e-5, 1.06e10, 1.52e10), 8: (7.3e-5, 5.3e9, 1.40e10)}


def assumed_all_reduce(profile: HardwareProfile) -> dict[AllReduceKind, AllReduceTable]:
    """Tables by kind for a profile, as its links and their topology say."""
    link, topology = profile.link_bandwidth_bytes_per_s, profile.link_topology
    if topology == "pcie":
        return _over_pcie(profile)
    bandwidth = link.value if link else PCIE_GEN3_X16_BYTES_PER_S
    costs = {size: _ring(size, bandwidth * _share(topology, size)) for size in _SIZES}
    if topology != "bridge":
        return {"nccl": _table(costs, "no table of this device: a ring over its link", 0.3)}
    beyond = _over_pcie(profile)["nccl"].by_devices
    costs = {size: costs[size] if size <= BRIDGED_DEVICES else beyond[size] for size in _SIZES}
    note = "no table of this device: a bridge joins two, more are joined by PCIe"
    own = {**costs, 2: costs[2].model_copy(update={"alpha_s": _CUSTOM_OVER_NVLINK_S})}
    return {"nccl": _table(costs, note, 0.5), "custom": _table(own, note, 0.5)}


def _share(topology: str, devices: int) -> float:
    """Share of a device's links that lead to the others of its group."""
    return min((devices - 1) / (MESH_DEVICES - 1), 1.0) if topology == "mesh" else 1.0


def _ring(devices: int, bandwidth: float) -> AllReduceCost:
    doublings = devices.bit_length() - 1
    return AllReduceCost(alpha_s=10e-6 * doublings, bandwidth_bytes_per_s=bandwidth * devices / (2 * (devices - 1)))


def _over_pcie(profile: HardwareProfile) -> dict[AllReduceKind, AllReduceTable]:
    """NCCL, and the engines' own kernel where cards reach each other: that runs on two only (vllm-project/vllm#56128)."""
    link = profile.link_bandwidth_bytes_per_s
    own = link.value if link and profile.link_topology == "pcie" else pcie_bytes_per_s(profile)
    scale = own / _GEN5_X16_BYTES_PER_S
    note = "no table of this device: as on the RTX PRO 6000, at this link's share of PCIe gen 5 x16"
    if not profile.peer_to_peer:
        return {"nccl": _table(_scaled(_THROUGH_HOST, scale), f"{note}, through host memory", 0.5)}
    nccl = _scaled(_NCCL, scale)
    return {"nccl": _table(nccl, note, 0.5), "pcie": _table(nccl | _scaled(_CUSTOM, scale, (2,)), note, 0.5)}


def _scaled(
    measured: dict[int, tuple[float, float, float]], scale: float, sizes: tuple[int, ...] = _SIZES
) -> dict[int, AllReduceCost]:
    found = {}
    for size in sizes:
        alpha_s, small, large = measured[min(size, 8)]
        found[size] = AllReduceCost(
            alpha_s=alpha_s, bandwidth_bytes_per_s=small * scale, large_message_bandwidth_bytes_per_s=large * scale
        )
    return found


def _table(costs: dict[int, AllReduceCost], note: str, doubt: float) -> AllReduceTable:
    return AllReduceTable(source="assumed", note=note, relative_std=doubt, by_devices=costs)
