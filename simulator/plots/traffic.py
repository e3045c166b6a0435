"""Figures of a run: what users feel, and what speculation does to the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.plots.style import PLAIN, SPECULATION, caption, legend_above, new_figure, note, plain_numbers, styled
from simulator.plots.words import drafting_name
from simulator.printed_numbers import milliseconds, significant
from simulator.serving.metrics import Value, window_of
from simulator.simulation import Comparison, SimulationResult, Variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
TIME_BINS = 300


def latency_table(variant: Variant, value: Value) -> Floats:
    """Sorted values in seconds of the requests that the summary counts, (requests,)."""
    seconds = value(window_of(variant.result.records).measured)
    return np.sort(seconds[~np.isnan(seconds)])


def variants(result: SimulationResult) -> tuple[tuple[Variant, str, str], ...]:
    """(variant, name, colour): without speculation, and the best with it."""
    shown = [(result.plain, "no speculation", PLAIN)]
    if result.best is not None:
        shown.append((result.best.variant, drafting_name(result.scenario, result.best.variant.label), SPECULATION))
    return tuple(shown)


@styled
def latency_figure(result: SimulationResult) -> Figure:
    """Distributions of time per output token and of end-to-end latency."""
    measured = result.plain.summary.measured
    reading = (
        f"Share of requests at or below each value; dots: medians. {measured:,} requests; warm-up left out as in the summary."
    )
    figure = new_figure(latency_title(result), caption(result.scenario, reading))
    left, right = figure.subplots(1, 2, sharey=True)
    draw_latency(left, result, lambda records: records.tpot_s, 1e3)
    left.set(xlabel="time per output token (ms)", ylabel="share of requests (%)")
    draw_latency(right, result, lambda records: records.e2e_latency_s, 1.0)
    right.set(xlabel="end-to-end latency (s)")
    # Every request has an end; answers of one token have no time per token.
    legend_above(left, *right.get_legend_handles_labels())
    return figure


def draw_latency(axes: Axes, result: SimulationResult, value: Value, scale: float) -> Axes:
    """Empirical distribution of each variant, median marked; `scale` turns seconds into the axis' unit."""
    drawn = [(scale * latency_table(variant, value), name, colour) for variant, name, colour in variants(result)]
    medians = {name: float(np.median(values)) for values, name, _ in drawn if values.size}
    for values, name, colour in drawn:
        if not values.size:
            continue
        axes.step(values, 100 * np.arange(1, len(values) + 1) / len(values), where="post", color=colour, lw=2.4, label=name)
        axes.plot(medians[name], 50, "o", color=colour, ms=8)
        is_right = len(medians) == 1 or medians[name] > min(medians.values())
        place = {"ha": "left" if is_right else "right", "va": "center", "fontweight": "bold"}
        note(axes, medians[name], 50, significant(medians[name]), (9 if is_right else -9, 0), color=colour, **place)
    axes.set(xscale="log", ylim=(0, 101))
    plain_numbers(axes.xaxis)
    return axes


def latency_title(result: SimulationResult) -> str:
    """Medians without and with speculation."""
    plain = result.plain.summary
    distribution = plain.tpot_s or plain.e2e_latency_s
    if distribution is None:
        return "No request was served"
    name = "time per output token" if plain.tpot_s else "end-to-end latency"
    if result.best is None:
        return f"Median {name} without speculation: {milliseconds(distribution.p50)}"
    other = result.best.variant.summary
    changed = other.tpot_s if plain.tpot_s else other.e2e_latency_s
    after = milliseconds(changed.p50) if changed else "none"
    return f"Median {name}: {milliseconds(distribution.p50)} without speculation, {after} with it{_end(result.best)}"


# ----------------------------------------------------------------------------------------------------- load over time


@dataclass(frozen=True)
class LoadTable:
    """Means per equal bin of simulated time, (bins,): sequences, requests, and the used part of the KV cache."""

    time_s: Floats
    running: Floats
    waiting: Floats
    kv_used: Floats


def load_table(variant: Variant, end_s: float, bins: int = TIME_BINS) -> LoadTable:
    """Time-weighted means over [0, end_s]; an idle engine counts as empty."""
    steps = variant.result.steps
    edges = np.linspace(0.0, end_s, bins + 1)
    start_s, seconds = steps.column("start_s"), steps.column("seconds")
    knots = np.column_stack([start_s, start_s + seconds]).ravel()

    def mean(name: str) -> Floats:
        grown = np.cumsum(steps.column(name) * seconds)
        total = np.column_stack([grown - steps.column(name) * seconds, grown]).ravel()
        area: Floats = np.diff(np.interp(edges, knots, total)) / np.diff(edges)
        return area

    return LoadTable((edges[:-1] + edges[1:]) / 2, mean("running"), mean("waiting"), mean("used_blocks") / variant.kv_blocks)


@styled
def load_figure(result: SimulationResult) -> Figure:
    """Running sequences, waiting requests and KV cache over time."""
    end_s = max(
        float(np.max(v.result.steps.column("start_s") + v.result.steps.column("seconds"), initial=0))
        for v, _, _ in variants(result)
    )
    reading = f"Means over {TIME_BINS} equal spans of simulated time, from the first arrival until the last request is finished."
    figure = new_figure(load_title(result), caption(result.scenario, reading))
    panels = figure.subplots(3, 1, sharex=True)
    for variant, name, colour in variants(result):
        table = load_table(variant, end_s)
        rows = (table.running, table.waiting, 100 * table.kv_used)
        for axes, values in zip(panels, rows, strict=True):
            axes.plot(table.time_s, values, color=colour, lw=1.6, label=name)
    label_load(panels, end_s)
    return figure


def label_load(panels: Sequence[Axes], end_s: float) -> None:
    """Units, ranges and the legend of the three panels."""
    from matplotlib.ticker import MaxNLocator

    for axes, label in zip(panels, ("running\n(sequences)", "waiting\n(requests)", "KV cache\nused (%)"), strict=True):
        axes.set_ylabel(label)
        axes.set(xlim=(0, end_s), ylim=(0, max(axes.get_ylim()[1], 1.0)))
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    if not any(np.asarray(line.get_ydata()).any() for line in panels[1].get_lines()):
        note(panels[1], end_s / 2, 0.5, "no request ever waits for a place", ha="center", va="center", fontsize=11)
    panels[0].legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize=11)
    panels[-1].set_xlabel("simulated time (s)")


def load_title(result: SimulationResult) -> str:
    """Mean running sequences without and with speculation."""
    running = result.plain.summary.load.mean_running or 0.0
    if result.best is None:
        return f"{significant(running)} sequences run at a time, on average"
    other = result.best.variant.summary.load.mean_running or 0.0
    with_it = f"{significant(other)} with it{_end(result.best)}"
    return f"Sequences running at a time: {significant(running)} without speculation, {with_it}"


def _end(comparison: Comparison) -> str:
    """Which end of the measured band a run with open acceptance takes, from its label."""
    _, bracket, end = comparison.variant.label.partition(" (")
    return bracket + end
