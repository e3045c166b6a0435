"""A fitted device as a hardware profile: datasheet peaks where the device is known, measured ones where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from calibration.measurement import Header, MeasurementFile
from simulator.calibrate.report import FitReport
from simulator.hardware import (
    LAYER_KINDS,
    Coefficients,
    Hardware,
    HardwareProfile,
    Kind,
    Quantity,
    RowFactors,
    filled,
    find_hardware,
)
from simulator.spec import check, parse_yaml
from simulator.whole_file import write_whole

_KINDS: dict[str, Kind] = {"cpu": "cpu", "cuda": "gpu", "mps": "unified"}
_VENDORS = ("NVIDIA", "AMD", "Intel", "Apple")
# What a measured peak may be off: cells repeat to about this.
_PEAK_DOUBT = 0.05


def peaks_of(file: MeasurementFile) -> Hardware:
    """The device without fitted coefficients: the known profile's peaks, else the best that was measured.

    A CPU's datasheet speaks of all its cores; fractions of what some of them reach say nothing, so its peaks are measured.
    """
    header = file.header
    if header.peaks and header.device != "cpu":
        known = find_hardware(header.peaks).profile
        return filled(known.model_copy(update={"coefficients": {}, "gemm_row_factors": {}, "aliases": ()}), "measured")
    # Arrays that the last cache holds say nothing of the memory.
    streams = [each for each in file.of("copy", "read", "triad") if float(each.inputs["bytes"]) >= 2 * header.cache_bytes]
    bandwidth = max((_rate(each.inputs["moved_bytes"], each.median_s) for each in streams), default=0.0)
    gemms = [(each, 2.0 * int(each.inputs["m"]) * int(each.inputs["n"]) * int(each.inputs["k"])) for each in file.of("gemm")]
    # A matrix read once per pass is a stream too.
    bandwidth = max(
        bandwidth,
        *(_rate(int(e.inputs["n"]) * int(e.inputs["k"]) * _BYTES[str(e.inputs["dtype"])], e.median_s) for e, _ in gemms),
    )
    rate = max(_rate(flops, each.median_s) for each, flops in gemms)
    dtypes = dict.fromkeys(str(each.inputs["dtype"]) for each, _ in gemms)
    what = f"best measured on {_threads(header)}" if header.device == "cpu" else "best measured"
    memory = Quantity(value=float(header.memory_bytes), source="measured", note="as the system reports it")
    profile = HardwareProfile(
        schema_version=1,
        # A part of a CPU is no such CPU.
        name=f"{header.device_name}, {_threads(header)}" if header.device == "cpu" else header.device_name,
        vendor=next((vendor for vendor in _VENDORS if vendor.casefold() in header.device_name.casefold()), "unknown"),
        kind=_KINDS.get(header.device, "accelerator"),
        compute_capability=header.compute_capability or None,
        memory_bytes=memory,
        memory_bandwidth_bytes_per_s=_peak(bandwidth, what),
        # One rate for all types, so that fractions compare: a type that the device emulates has a small one.
        peak_flops_per_s={dtype: _peak(rate, f"{what}, in any type") for dtype in dtypes},
        compute_units=max(header.compute_units, 1),
        doubtful=("memory_bandwidth_bytes_per_s", *(f"peak_flops_per_s.{dtype}" for dtype in dtypes)),
    )
    return filled(profile, "measured")


_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


def _rate(amount: object, seconds: float) -> float:
    return float(str(amount)) / seconds


def _peak(value: float, note: str) -> Quantity:
    return Quantity(value=float(f"{value:.4g}"), source="measured", note=note, relative_std=_PEAK_DOUBT)


# ----------------------------------------------------------------------------------------------------------------- YAML


def profile_text(report: FitReport) -> str:
    """The profile as YAML. The same measurements give the same bytes."""
    profile, header = report.hardware.profile, report.header
    lines = [
        f"# {header.device_name}: measured with PyTorch; verdict: {report.verdict.level}.",
        *(f"# {reason}" for reason in report.verdict.reasons),
        f"# Measured {header.started} for {header.minutes:g} min: {_environment(header)}.",
        "schema_version: 1",
        f"name: {_text(profile.name)}",
        f"vendor: {_text(profile.vendor)}",
        f"kind: {profile.kind}",
    ]
    if profile.compute_capability:
        lines.append(f"compute_capability: {_text(profile.compute_capability)}")
    lines += [
        f"memory_bytes: {_quantity(profile.memory_bytes)}",
        f"memory_bandwidth_bytes_per_s: {_quantity(profile.memory_bandwidth_bytes_per_s)}",
        "peak_flops_per_s:",
        *(f"  {dtype}: {_quantity(peak)}" for dtype, peak in profile.peak_flops_per_s.items()),
        f"compute_units: {profile.compute_units}",
    ]
    if profile.tdp_w:
        lines.append(f"tdp_w: {profile.tdp_w:g}")
    if profile.link_bandwidth_bytes_per_s:
        lines.append(f"link_bandwidth_bytes_per_s: {_quantity(profile.link_bandwidth_bytes_per_s)}")
        lines.append(f"link_topology: {profile.link_topology}")
    if not profile.peer_to_peer:
        lines.append("peer_to_peer: false")
    fitted = list(_coefficients(report.hardware.coefficients))
    lines += ["coefficients:", *fitted] if fitted else ["coefficients: {}"]
    if profile.gemm_row_factors:
        lines += ["gemm_row_factors:", *(line for item in profile.gemm_row_factors.items() for line in _factors(*item))]
    lines += _all_reduce(profile)
    if profile.doubtful:
        lines.append(f"doubtful: [{', '.join(profile.doubtful)}]")
    lines += ["sources:", f"  - {_text(f'measurements sha256:{report.sha256}')}", f"  - {_text(_environment(header))}"]
    lines += [f"  - {_text(source)}" for source in profile.sources]
    text = "\n".join(lines) + "\n"
    check(HardwareProfile, parse_yaml(text, header.device_name))
    return text


def write_profile(report: FitReport, path: Path) -> None:
    """Writes the profile; the file is there whole or not at all."""
    text = profile_text(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def _environment(header: Header) -> str:
    parts = [f"torch {header.torch}", f"transformers {header.transformers}"]
    if header.driver:
        parts.append(f"driver {header.driver}")
    if header.device == "cpu":
        parts += [_threads(header), f"load {header.load_average:.1f}"]
    return ", ".join([*parts, f"clock {header.clock}"])


def _threads(header: Header) -> str:
    return f"{header.threads} thread{'s' if header.threads > 1 else ''}"


def _coefficients(coefficients: Coefficients) -> Iterator[str]:
    """What was fitted; assumed values, and those of layers that no device is asked for, are left to the reader's defaults."""
    for name in Coefficients.model_fields:
        value = getattr(coefficients, name)
        if isinstance(value, Quantity):
            if value.source != "assumed" and name not in LAYER_KINDS:
                yield f"  {name}: {_quantity(value)}"
        elif value is not None:
            fitted = {dtype: item for dtype, item in value.items() if item.source != "assumed"}
            if fitted:
                yield f"  {name}:"
                yield from (f"    {dtype}: {_quantity(item)}" for dtype, item in fitted.items())


def _factors(dtype: str, factors: RowFactors) -> Iterator[str]:
    yield f"  {dtype}:"
    yield f"    source: {factors.source}"
    yield f"    note: {_text(factors.note)}"
    if factors.relative_std is not None:
        yield f"    relative_std: {factors.relative_std:g}"
    yield f"    by_rows: {{{', '.join(f'{rows}: {value:g}' for rows, value in factors.by_rows.items())}}}"


def _all_reduce(profile: HardwareProfile) -> Iterator[str]:
    tables = {kind: table for kind, table in profile.all_reduce.items() if table.source != "assumed"}
    if tables:
        yield "all_reduce:"
    for kind, table in tables.items():
        yield from (f"  {kind}:", f"    source: {table.source}", f"    note: {_text(table.note)}")
        if table.relative_std is not None:
            yield f"    relative_std: {table.relative_std:g}"
        yield "    by_devices:"
        for devices, cost in table.by_devices.items():
            values = ", ".join(f"{name}: {_value(value)}" for name, value in cost.model_dump(exclude_none=True).items())
            yield f"      {devices}: {{{values}}}"


def _quantity(quantity: Quantity) -> str:
    parts = [f"value: {_value(quantity.value)}", f"source: {quantity.source}"]
    if quantity.relative_std is not None:
        parts.append(f"relative_std: {quantity.relative_std:g}")
    if quantity.note:
        parts.append(f"note: {_text(quantity.note)}")
    return f"{{{', '.join(parts)}}}"


def _value(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 and value == int(value) and value < 1e12 else f"{value:.10g}"


def _text(text: str) -> str:
    """In double quotes, as YAML reads it back."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
