"""Figure of a fitted device: measured matrices, the fitted law, the datasheet's roofline with its ridge, residuals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.cost.roofline import gemm
from simulator.hardware import Hardware
from simulator.number_format import FORMATS
from simulator.plots.colour import INK
from simulator.plots.style import ACCEPTANCE, PLAIN, SPECULATION, WIN_TINT, new_figure, note, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
# A row that costs less than a tenth more is as good as free.
FREE = 1.10
_READING = (
    "Left: one matrix, time against rows in the pass. Roofline: the larger of bytes over bandwidth and FLOPs over FLOP/s at "
    "the profile's peaks; ridge: where they are equal. Tinted: rows that cost less than 10 % more than one. "
    "Right: modelled over measured, all matrices; open dots were held out of the fit."
)


@dataclass(frozen=True, slots=True)
class GemmPoint:
    """One measured matrix product of m rows; held_out: not given to the fit."""

    rows: int
    n: int
    k: int
    seconds: float
    held_out: bool


@dataclass(frozen=True)
class FitTable:
    """What is drawn: one matrix's law and roofline by rows, ridge and last free row; the residuals of all points."""

    shape: tuple[int, int]
    rows: Floats
    modelled_s: Floats
    roofline_s: Floats
    ridge_rows: float
    free_rows: int
    residuals: Floats


def fit_table(points: Sequence[GemmPoint], hardware: Hardware, dtype: str) -> FitTable:
    """The matrix measured at most row counts, the largest of equals, is drawn. Raises ValueError for no point."""
    if not points:
        raise ValueError("a figure of a fit needs measured points")
    counts = Counter((point.n, point.k) for point in points)
    n, k = max(counts, key=lambda shape: (counts[shape], shape[0] * shape[1]))
    size, largest = FORMATS[dtype].bytes, max(point.rows for point in points if (point.n, point.k) == (n, k))
    rows = np.unique(np.round(np.geomspace(1, max(largest, 2), 400)))
    modelled = np.array([gemm(int(m), n, k, size, hardware, dtype).seconds for m in rows])
    peak = hardware.profile.memory_bandwidth_bytes_per_s.value
    rate = hardware.profile.peak_flops_per_s[dtype].value
    moved, flops = size * n * k + 2.0 * rows * (n + k), 2.0 * rows * n * k
    each = [gemm(point.rows, point.n, point.k, size, hardware, dtype).seconds / point.seconds - 1 for point in points]
    # Equal times: 2·m·n·k/F = (size·n·k + 2·m·(n + k))/BW.
    slope = 2.0 * n * k / rate - 2.0 * (n + k) / peak
    ridge = size * n * k / peak / slope if slope > 0 else float("inf")
    one = gemm(1, n, k, size, hardware, dtype).seconds
    free = next((m for m in range(1, 4097) if gemm(m + 1, n, k, size, hardware, dtype).seconds >= FREE * one), 4096)
    return FitTable((n, k), rows, modelled, np.maximum(moved / peak, flops / rate), ridge, free, np.array(each))


@styled
def fit_figure(points: Sequence[GemmPoint], hardware: Hardware, dtype: str, source: str) -> Figure:
    """Measured points, fitted law, roofline with ridge point; residuals beside them. source: where the points are from."""
    table = fit_table(points, hardware, dtype)
    held = np.array([point.held_out for point in points])
    judged = np.abs(table.residuals[held]) if held.any() else np.abs(table.residuals)
    where = "matrices and rows it was not fitted to" if held.any() else "what it was fitted to"
    free = f"up to {table.free_rows} rows cost about as much as one" if table.free_rows > 1 else "no second row is free"
    title = f"{hardware.name}, {dtype}: {free};\nthe fit is {100 * np.median(judged):.1f} % off on {where}"
    figure = new_figure(title, f"{_READING}\nSource: {source}")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_fit(left, points, table)
    draw_residuals(right, points, table)
    return figure


def draw_fit(axes: Axes, points: Sequence[GemmPoint], table: FitTable) -> Axes:
    """Time against rows of one matrix."""
    n, k = table.shape
    axes.axvspan(0.9, table.free_rows, color=WIN_TINT, lw=0, zorder=0)
    axes.plot(table.rows, 1e6 * table.roofline_s, color=PLAIN, ls=(0, (4, 3)), lw=1.5, label="roofline of the peaks")
    axes.plot(table.rows, 1e6 * table.modelled_s, color=SPECULATION, label="fitted law")
    own = [point for point in points if (point.n, point.k) == table.shape]
    for held_out, face, label in ((False, INK, "measured, fitted"), (True, "white", "measured, held out")):
        chosen = [point for point in own if point.held_out == held_out]
        if chosen:
            axes.plot([p.rows for p in chosen], [1e6 * p.seconds for p in chosen], "o", ms=5, mfc=face, mec=INK, label=label)
    axes.set(xscale="log", yscale="log", xlabel="rows in the pass", ylabel="time (µs)", title=f"matrix of {n} × {k}")
    if table.ridge_rows <= table.rows[-1]:
        height = 1e6 * float(np.interp(table.ridge_rows, table.rows, table.roofline_s))
        axes.plot([table.ridge_rows], [height], "D", ms=6, color=ACCEPTANCE)
        text = f"ridge: {table.ridge_rows:.0f} rows"
        note(axes, table.ridge_rows, height, text, (-8, -2), ha="right", color=ACCEPTANCE, fontsize=9.5)
    _ticks(axes, table.rows[-1])
    low, high = axes.get_ylim()
    marks = [step * 10.0**power for power in range(-1, 9) for step in (1, 1.5, 2, 3, 5, 7) if low <= step * 10.0**power <= high]
    axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
    axes.legend(loc="upper left")
    return axes


def draw_residuals(axes: Axes, points: Sequence[GemmPoint], table: FitTable) -> Axes:
    """Modelled over measured, against rows."""
    for held_out, face in ((False, INK), (True, "white")):
        chosen = [(p.rows, r) for p, r in zip(points, 100 * table.residuals, strict=True) if p.held_out == held_out]
        if chosen:
            axes.plot(*zip(*chosen, strict=True), "o", ms=3.5, mfc=face, mec=INK, mew=0.7, alpha=0.65)
    axes.axhline(0, color=SPECULATION, lw=1.2)
    reach = max(20.0, 1.1 * float(np.max(np.abs(100 * table.residuals))))
    last = max(point.rows for point in points)
    axes.set(
        xscale="log", ylim=(-reach, reach), xlabel="rows in the pass", ylabel="modelled against measured (%)", title="residuals"
    )
    _ticks(axes, last)
    return axes


def _ticks(axes: Axes, last: float) -> None:
    """Rows at powers of four, or of two where there are few."""
    step = 2 if last > 64 else 1
    ticks = [2**power for power in range(0, 14, step) if 2**power <= last]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(0.9, 1.1 * last)
