"""Measurements as what parts are fitted to: inputs of a law, median seconds, the group that errs together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TypeVar

from calibration.fit import Observation
from calibration.measurement import Kind, Measurement, MeasurementFile
from simulator.calibrate.laws import Attention, Forward, Gemm
from simulator.calibrate.parts import Cells
from simulator.calibrate.pass_fitting import RowSeries

T = TypeVar("T")


def gemm_cells(measurements: Sequence[Measurement], dtype: str) -> Cells[Gemm]:
    """GEMMs of one type, grouped by shape."""

    def of(each: Measurement) -> Observation[Gemm]:
        m, n, k = (int(each.inputs[name]) for name in "mnk")
        return Observation(Gemm(m, n, k), each.median_s, f"{n}x{k}")

    return _cells([each for each in measurements if each.kind == "gemm" and each.inputs["dtype"] == dtype], of)


def attention_cells(measurements: Sequence[Measurement], kind: Kind, dtype: str) -> Cells[Attention]:
    """Attention of one kind, grouped by batch and context. A chunk of a prompt may run beside it."""

    def of(each: Measurement) -> Observation[Attention]:
        names = ("batch", "rows", "context", "heads", "kv_heads", "head_dim")
        batch, rows, context, heads, kv_heads, head_dim = (int(each.inputs[name]) for name in names)
        chunk, before = (int(each.inputs.get(name, 0)) for name in ("chunk", "before"))
        cell = Attention(batch, rows, context + rows, heads, kv_heads, head_dim, chunk, before)
        return Observation(cell, each.median_s, f"batch {batch}, context {context}" + (f", chunk {chunk}" if chunk else ""))

    return _cells([each for each in measurements if each.kind == kind and each.inputs["dtype"] == dtype], of)


def forward_cells(measurements: Sequence[Measurement], dtype: str, mode: str) -> Cells[Forward]:
    """Whole passes of one type and mode, grouped by model, batch and context."""

    def of(each: Measurement) -> Observation[Forward]:
        batch, rows, context = (int(each.inputs[name]) for name in ("batch", "rows", "context"))
        cell = Forward(str(each.inputs["model"]), batch, rows, context)
        return Observation(cell, each.median_s, f"{cell.model}, batch {batch}, context {context}")

    found = [each for each in measurements if each.kind == "forward"]
    return _cells([each for each in found if each.inputs["dtype"] == dtype and each.inputs["mode"] == mode], of)


def row_series(file: MeasurementFile, dtype: str, mode: str) -> RowSeries | None:
    """Passes of the main model, one sequence, at the context where most numbers of rows were fitted; None below two."""
    main = next(iter(file.header.models), "")
    by_context: dict[int, list[Measurement]] = {}
    for each in file.of("forward", split="fit"):
        inputs = each.inputs
        if (inputs["model"], inputs["dtype"], inputs["mode"], inputs["batch"]) == (main, dtype, mode, 1):
            by_context.setdefault(int(inputs["context"]), []).append(each)
    widest = max(by_context.values(), key=len, default=[])
    if len(widest) < 2:
        return None
    # Halves of the rounds share no disturbance.
    halves = [[half for each in widest if (half := each.of_rounds(parity)).seconds] for parity in (0, 1)]
    return RowSeries(*(forward_cells(each, dtype, mode).fit for each in (widest, *halves)))


def _cells(measurements: Sequence[Measurement], of: Callable[[Measurement], Observation[T]]) -> Cells[T]:
    by_split: dict[str, list[Observation[T]]] = {"fit": [], "held_out": [], "check": []}
    measured = [each for each in measurements if each.seconds]
    for each in measured:
        by_split[each.split].append(of(each))
    return Cells(by_split["fit"], by_split["held_out"], by_split["check"], split_half_noise(measured))


def split_half_noise(measurements: Sequence[Measurement]) -> float | None:
    """Doubt of a cell's median: half of |ln| between the medians of its even and its odd rounds; median over cells."""
    differences = []
    for each in measurements:
        rounds = each.round_medians_s
        if len(rounds) >= 2:
            even, odd = statistics.median(rounds[0::2]), statistics.median(rounds[1::2])
            differences.append(abs(math.log(even / odd)) / 2)
    return statistics.median(differences) if differences else None


def types_of(file: MeasurementFile, kind: Kind) -> list[str]:
    """Types that cells of a kind were measured in, in the order of the header."""
    seen = {str(each.inputs["dtype"]) for each in file.of(kind)}
    return [dtype for dtype in file.header.dtypes if dtype in seen] + sorted(seen - set(file.header.dtypes))
