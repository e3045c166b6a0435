"""What is wrong with a hardware profile beyond its types."""

from __future__ import annotations

import re
from collections.abc import Iterator

from simulator.hardware.coefficients import BY_TYPE, Coefficients
from simulator.hardware.profile import OVER_PCIE, HardwareProfile
from simulator.hardware.quantity import Quantity
from simulator.spec import Document, Location, Problem, nearest


def _range_problems(profile: HardwareProfile, document: Document) -> list[Problem]:
    """Numbers that the cost model divides by, versions it compares, and what is said of links that there are none of."""
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
    if not profile.peer_to_peer and profile.link_topology not in OVER_PCIE:
        found.append(document.problem(("peer_to_peer",), f"goes with link_topology {' or '.join(OVER_PCIE)}", False))
    for kind, table in profile.all_reduce.items():
        if not table.by_devices or min(table.by_devices) < 2:
            found.append(document.problem(("all_reduce", kind, "by_devices"), "must hold numbers of devices from 2 up"))
    return found


def profile_problems(profile: HardwareProfile, document: Document) -> list[Problem]:
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
