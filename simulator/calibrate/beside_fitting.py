"""What a step takes beside its passes: logits turned into tokens, all-reduce between devices, and what only the host does."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from calibration.fit import FitError, Law, Observation, Parameter, fit
from calibration.measurement import Measurement, MeasurementFile
from simulator.calibrate.laws import with_coefficients
from simulator.calibrate.parts import Cells, Part, judged, rounded
from simulator.cost.roofline import all_reduce_s, logits_s
from simulator.hardware import AllReduceCost, AllReduceTable, Hardware

T = TypeVar("T")
_SAMPLING = (Parameter("sampling_bandwidth_fraction", 0.3, 1e-4, 1.0),)
_ALL_REDUCE = (
    Parameter("alpha_s", 1e-5, 0.0, 1e-2),
    Parameter("bandwidth_bytes_per_s", 5e10, 1e7, 1e13),
    Parameter("large_message_bandwidth_bytes_per_s", 1e11, 1e7, 1e13),
)


class Logits(NamedTuple):
    """Rows of logits that become tokens."""

    rows: int
    vocab_size: int


class Message(NamedTuple):
    """One all-reduce."""

    devices: int
    bytes: int


def fit_sampling(hardware: Hardware, file: MeasurementFile) -> Part[Logits]:
    """The bandwidth of a pass over logits, from greedy choice, which is one."""

    def of(each: Measurement) -> Observation[Logits]:
        return Observation(Logits(int(each.inputs["rows"]), int(each.inputs["vocab_size"])), each.median_s)

    def law(values: Mapping[str, float], cells: Sequence[Logits]) -> list[float]:
        device = with_coefficients(hardware, values)
        return [logits_s(cell.rows, cell.vocab_size, 1.0, device) for cell in cells]

    greedy = [each for each in file.of("sampling") if each.inputs["method"] == "greedy"]
    return _fitted(Part[Logits]("sampling", "one pass over the logits"), law, _SAMPLING, _cells(greedy, of))


def fit_all_reduce(file: MeasurementFile) -> list[Part[Message]]:
    """A start, and bytes over a bandwidth, another one beyond 1 MiB; for each number of devices."""

    def of(each: Measurement) -> Observation[Message]:
        return Observation(Message(int(each.inputs["devices"]), int(each.inputs["bytes"])), each.median_s)

    def law(values: Mapping[str, float], cells: Sequence[Message]) -> list[float]:
        return [all_reduce_s(cell.bytes, *(values[parameter.name] for parameter in _ALL_REDUCE)) for cell in cells]

    parts = []
    measured = file.of("all_reduce")
    for devices in sorted({int(each.inputs["devices"]) for each in measured}):
        cells = _cells([each for each in measured if int(each.inputs["devices"]) == devices], of)
        parts.append(_fitted(Part[Message](f"all-reduce over {devices} devices", "start and bytes"), law, _ALL_REDUCE, cells))
    return parts


def _cells(measured: Sequence[Measurement], of: Callable[[Measurement], Observation[T]]) -> Cells[T]:
    fitted, held_out = ([of(each) for each in measured if each.split == split] for split in ("fit", "held_out"))
    return Cells(fitted, held_out)


def _fitted(part: Part[T], law: Law[T], parameters: Sequence[Parameter], cells: Cells[T]) -> Part[T]:
    try:
        found = fit(law, parameters, cells.fit)
    except FitError as error:
        return replace(part, problem=str(error))
    return judged(replace(part, fit=found, values=found.values), partial(law, found.values), cells)


def with_all_reduce(hardware: Hardware, parts: Sequence[Part[Message]], note: str) -> Hardware:
    """`hardware` with the measured sizes in its NCCL table."""
    found = {
        int(part.name.split()[2]): AllReduceCost(**{name: rounded(value) for name, value in part.values.items()})
        for part in parts
        if not part.problem
    }
    if not found:
        return hardware
    before = hardware.profile.all_reduce.get("nccl")
    kept = dict(before.by_devices) if before and before.source != "assumed" else {}
    table = AllReduceTable(source="fitted", note=note, by_devices={**kept, **found})
    tables = {**hardware.profile.all_reduce, "nccl": table}
    return replace(hardware, profile=hardware.profile.model_copy(update={"all_reduce": tables}))


def host_lines(file: MeasurementFile) -> list[str]:
    """What the host does beside the passes, part of an engine's constants and not of a device's, as lines of text."""
    medians = {each.kind: each.median_s * 1e6 for each in file.of("launch", "synchronize")}
    lines = [f"one launch {medians['launch']:.1f} µs"] if "launch" in medians else []
    if "synchronize" in medians:
        lines.append(f"launch and wait {medians['synchronize']:.1f} µs")
    crops = [each.median_s / int(each.inputs["layers"]) for each in file.of("kv_crop")]
    if crops:
        lines.append(f"cropping the KV cache {statistics.median(crops) * 1e6:.1f} µs a layer")
    by_method: dict[str, dict[int, float]] = {}
    for each in file.of("sampling"):
        by_method.setdefault(str(each.inputs["method"]), {})[int(each.inputs["rows"])] = each.median_s
    greedy, drawn = by_method.get("greedy", {}), by_method.get("multinomial", {})
    times = [drawn[rows] / greedy[rows] for rows in greedy.keys() & drawn.keys()]
    if times:
        lines.append(f"softmax and a draw {statistics.median(times):.0f} times as long as an arg-max")
    return [f"Host: {'; '.join(lines)}"] if lines else []
