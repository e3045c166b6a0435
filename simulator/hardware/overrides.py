"""HardwareOverride: a profile with numbers replaced by a scenario."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.hardware.assumed_all_reduce import assumed_all_reduce
from simulator.hardware.coefficients import BY_TYPE
from simulator.hardware.device import Hardware
from simulator.hardware.links import pcie_bytes_per_s
from simulator.hardware.profile import OVER_PCIE, HardwareProfile, LinkTopology
from simulator.hardware.quantity import Quantity
from simulator.spec import Document, Location, Spec, SpecError

_OF_LINKS = ("link_bandwidth_bytes_per_s", "link_topology", "peer_to_peer")


class HardwareOverride(Spec):
    """``hardware: {base: h100_sxm, memory_bandwidth_fraction: 0.7}``: a profile with coefficients replaced.

    What is said of links (``{base: a30, link_topology: pcie}``: no bridge) replaces its table of all-reduce by an assumed one.
    """

    base: str
    memory_bytes: Annotated[float, Field(ge=1e6, le=1e16)] | None = None
    memory_bandwidth_bytes_per_s: Annotated[float, Field(ge=1e6, le=1e18)] | None = None
    compute_units: Annotated[int, Field(ge=1, le=10**6)] | None = None
    memory_bandwidth_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    flops_fraction: Annotated[float, Field(gt=0, le=1)] | dict[str, Annotated[float, Field(gt=0, le=1)]] | None = None
    gemm_overhead_s: Annotated[float, Field(ge=0, le=10)] | None = None
    gemm_smoothness: Annotated[float, Field(ge=1, le=16)] | None = None
    gemm_tile_rows: Annotated[float, Field(ge=1, le=512)] | None = None
    gemm_least_tile_rows: Annotated[float, Field(ge=0, le=512)] | None = None
    gemm_fill_k: Annotated[float, Field(ge=0, le=65536)] | None = None
    gemm_wave_power: Annotated[float, Field(ge=0, le=1)] | None = None
    gemm_walk_s_per_k: Annotated[float, Field(ge=0, le=1)] | None = None
    gemm_walk_longest_s: Annotated[float, Field(ge=0, le=10)] | None = None
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
    host_time_factor: Annotated[float, Field(gt=0, le=100)] | None = None
    sampling_bandwidth_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    replay_gap_s: Annotated[float, Field(ge=0, le=10)] | None = None
    expert_bandwidth_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    expert_overhead_s: Annotated[float, Field(ge=0, le=10)] | None = None
    expert_row_correlation: Annotated[float, Field(ge=0, le=1)] | None = None
    expert_popularity_shape: Annotated[float, Field(gt=0, le=1e6)] | None = None
    grouped_routing_correlation: Annotated[float, Field(gt=0, le=1)] | None = None
    state_overhead_s: Annotated[float, Field(ge=0, le=10)] | None = None
    state_row_s: Annotated[float, Field(ge=0, le=10)] | None = None
    link_bandwidth_bytes_per_s: Annotated[float, Field(ge=1e6, le=1e16)] | None = None
    link_topology: LinkTopology | None = None
    peer_to_peer: bool | None = None
    host_link_bandwidth_bytes_per_s: Annotated[float, Field(ge=1e6, le=1e16)] | None = None
    inter_node_bandwidth_bytes_per_s: Annotated[float, Field(ge=1e6, le=1e16)] | None = None
    inter_node_latency_s: Annotated[float, Field(ge=0, le=10)] | None = None
    all_to_all_latency_s: Annotated[float, Field(ge=0, le=10)] | None = None


def override(hardware: Hardware, change: HardwareOverride, document: Document, location: Location = ("hardware",)) -> Hardware:
    """`hardware` with the coefficients that `change` names replaced. Raises `SpecError` for a type the device lacks, and for what
    is said of PCIe where no devices are joined by it."""
    if change.peer_to_peer is not None and (change.link_topology or hardware.profile.link_topology) not in OVER_PCIE:
        must = f"goes with link_topology {' or '.join(OVER_PCIE)}: {hardware.name} is not joined by PCIe"
        raise SpecError([document.problem((*location, "peer_to_peer"), must, change.peer_to_peer)])
    given = {name: value for name, value in change.model_dump(exclude_none=True).items() if name != "base"}
    profile: dict[str, object] = {}
    coefficients: dict[str, object] = {}
    for name, value in given.items():
        if name == "flops_fraction":
            coefficients[name] = _override_flops(hardware, value, document, (*location, name))
        elif name in ("compute_units", "link_topology", "peer_to_peer"):
            profile[name] = value
        else:
            changed = profile if name in HardwareProfile.model_fields else coefficients
            changed[name] = Quantity(value=value, source="override", note="set in the scenario")
            if f"{name}_by_type" in BY_TYPE:
                # The scenario's number is for every type.
                coefficients[f"{name}_by_type"] = {}
    if change.link_topology == "pcie" and hardware.profile.link_topology != "pcie":
        # Without its faster link a device has the slot.
        slot = Quantity(value=pcie_bytes_per_s(hardware.profile), source="assumed", note="PCIe x16 of the device's generation")
        profile.setdefault("link_bandwidth_bytes_per_s", slot)
    joined = hardware.profile.model_copy(update=profile)
    if any(_said(getattr(joined, name)) != _said(getattr(hardware.profile, name)) for name in _OF_LINKS):
        # Tables are of the links that were there before.
        joined = joined.model_copy(update={"all_reduce": assumed_all_reduce(joined)})
    return Hardware(hardware.profile_id, joined, hardware.coefficients.model_copy(update=coefficients))


def _said(value: object) -> object:
    """A number without where it is from."""
    return value.value if isinstance(value, Quantity) else value


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
