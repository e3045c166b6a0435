"""HardwareProfile: a file of `hardware_profiles`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.hardware.all_reduce import AllReduceKind, AllReduceTable
from simulator.hardware.quantity import Positive, Quantity
from simulator.hardware.row_factors import RowFactors
from simulator.spec import Spec

Kind = Literal["gpu", "unified", "cpu", "accelerator"]


LinkTopology = Literal["switch", "mesh", "bridge", "pcie"]
# Ways to be joined in which some devices, or all, reach each other over PCIe alone.
OVER_PCIE: tuple[LinkTopology, ...] = ("pcie", "bridge")


class HardwareProfile(Spec):
    """One device. Bytes, bytes/s, FLOP/s (dense), seconds, watts.

    kind `unified`: a GPU that shares memory with its CPU; `accelerator`: few large cores that run a compiled program.
    generation: of its compute units, where no compute capability tells it.
    memory_bytes_options: other capacities it is sold with; a name that ends in one of them ("M3 Ultra 96GB") means it.
    host_link_bandwidth_bytes_per_s: between its memory and the host's, one direction, as reached; a default by generation
    (`Hardware.host_link`) where left out.
    link_bandwidth_bytes_per_s: to the other devices, one direction, all links together. link_topology: `switch`, all of it to any
    of them; `mesh`, an equal part to each of seven others; `bridge`, joins two, and PCIe does more; `pcie`, there is nothing
    faster. peer_to_peer: whether cards reach each other's memory over PCIe, or all goes through the host's. inter_node_*: to
    devices of other nodes, one direction and per device, and of one exchange; all_to_all_latency_s: of one expert dispatch or
    combine; all three take the default of `INTER_NODE` where left out. gemm_row_factors: by compute type. doubtful: keys of
    quantities that sources disagree on; each states its `relative_std`.
    """

    schema_version: Literal[1]
    name: str
    aliases: tuple[str, ...] = ()
    vendor: str
    kind: Kind
    compute_capability: str | None = None
    generation: str | None = None
    memory_bytes: Quantity
    memory_bytes_options: tuple[Positive, ...] = ()
    memory_bandwidth_bytes_per_s: Quantity
    peak_flops_per_s: dict[str, Quantity]
    compute_units: Annotated[int, Field(ge=1)]
    tdp_w: Positive | None = None
    link_bandwidth_bytes_per_s: Quantity | None = None
    link_topology: LinkTopology = "switch"
    peer_to_peer: bool = True
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
        """Devices of one architecture run the same kernels: the compute capability, or generation, or the device alone."""
        return self.compute_capability or self.generation or self.name
