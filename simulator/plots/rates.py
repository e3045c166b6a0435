"""Figures of latency against request rate, without and with speculation: of a capacity question, and around a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.cost.spread import Estimate
from simulator.plots.colour import INK
from simulator.plots.style import ACCEPTANCE, PLAIN, SPECULATION, caption, legend_above, new_figure, note, plain_numbers, styled
from simulator.plots.words import drafting_name
from simulator.printed_numbers import significant
from simulator.questions.capacity import CapacityAnswer
from simulator.questions.load_curve import LoadCurve
from simulator.questions.sustained import LoadPoint
from simulator.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Metric of a service level → (words, field of a simulated rate).
METRICS = {
    "ttft": ("time to first token", "ttft_s"),
    "tpot": ("time per output token", "tpot_s"),
    "e2e": ("end-to-end latency", "e2e_latency_s"),
}
# Latencies this many times the limit are beyond what the figure shows.
BEYOND = 6.0


@dataclass(frozen=True, slots=True)
class Panel:
    """One latency at one statistic: seconds that are allowed, None without a limit."""

    metric: str
    statistic: str
    limit_s: float | None

    @property
    def label(self) -> str:
        name = METRICS[self.metric][0]
        how = "mean" if self.statistic == "mean" else f"{self.statistic.removeprefix('p')}th percentile"
        return f"{name}, {how} ({self.unit})"

    @property
    def unit(self) -> str:
        return "s" if self.metric == "e2e" else "ms"

    @property
    def scale(self) -> float:
        return 1.0 if self.metric == "e2e" else 1e3

    def value(self, point: LoadPoint) -> float | None:
        distribution = getattr(point, METRICS[self.metric][1])
        return None if distribution is None else float(getattr(distribution, self.statistic))


def panels(scenario: Scenario) -> list[Panel]:
    """One for each limit of the service level, at most three; without one, mean TPOT and 99th percentile of TTFT."""
    level = scenario.file.service_level
    stated = [] if level is None else [Panel(metric, f"p{percentile:.0f}", limit) for metric, percentile, limit in level.limits()]
    return stated[:3] or [Panel("tpot", "mean", None), Panel("ttft", "p99", None)]


@dataclass(frozen=True)
class Line:
    """One variant. carried: the rate that keeps the service level, where it was looked for."""

    name: str
    colour: str
    points: tuple[LoadPoint, ...]
    carried: Estimate | None = None

    @property
    def at_carried(self) -> LoadPoint | None:
        rate = self.carried
        return None if rate is None else next((each for each in self.points if each.rate_per_s == rate.value), None)


PLAIN_NAME = "no speculation"


def lines_of(answer: CapacityAnswer) -> list[Line]:
    """No speculation and the way of drafting that carries most, of those that were simulated."""
    simulated = [row for row in answer.rows if row.sustained is not None and row.sustained.points]
    shown = [(answer.plain, PLAIN_NAME, PLAIN)] if answer.plain in simulated else []
    best = answer.drafting or next((row for row in simulated if row is not answer.plain), None)
    if best is not None:
        shown.append((best, drafting_name(answer.scenario, best.label), SPECULATION))
    return [
        Line(name, colour, row.sustained.points, row.sustained.rate) for row, name, colour in shown if row.sustained is not None
    ]


def lines_of_curve(curve: LoadCurve) -> list[Line]:
    """No speculation, and the best of a run."""
    names = [(PLAIN_NAME, PLAIN), *((drafting_name(curve.scenario, label), SPECULATION) for label, _ in curve.lines[1:])]
    return [Line(name, colour, points) for (name, colour), (_, points) in zip(names, curve.lines, strict=True)]


@styled
def rates_figure(answer: CapacityAnswer) -> Figure:
    """Latency against rate, a panel for each limit; a dot where the level is met no longer."""
    stated = answer.scenario.file.service_level is not None
    kept = "within the service level" if stated else "before saturation"
    reading = (
        f"Every rate that was simulated, up to {answer.repetitions} × {answer.requests:,} requests each, the same for every "
        f"line. Dots: the highest rate {kept}, with its 80 % interval.{' Dashed: the service level.' if stated else ''}"
    )
    figure = new_figure(rates_title(answer), caption(answer.scenario, reading))
    _draw_panels(figure, panels(answer.scenario), lines_of(answer))
    return figure


@styled
def load_curve_figure(curve: LoadCurve) -> Figure:
    """The same around the rate of a run."""
    shown = panels(curve.scenario)
    level = "" if curve.scenario.file.service_level is None else " Dashed, level: the service level."
    reading = (
        f"{len(curve.lines[0][1])} rates up to just beyond saturation, the first {curve.requests:,} requests of the run at each, "
        f"the same for every line. Upright: the scenario's own rate.{level}"
    )
    figure = new_figure(load_curve_title(curve, shown[0]), caption(curve.scenario, reading))
    _draw_panels(figure, shown, lines_of_curve(curve), curve.own_rate_per_s)
    return figure


def _draw_panels(figure: Figure, shown: Sequence[Panel], lines: Sequence[Line], own_rate_per_s: float | None = None) -> None:
    for axes, panel in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        draw_rates(axes, panel, lines)
        if own_rate_per_s is not None:
            axes.axvline(own_rate_per_s, color=INK, ls=":", lw=1.4)
        axes.set_xlabel("arrivals (requests per second)")
        axes.set_ylabel(panel.label)
    named = max((axes.get_legend_handles_labels() for axes in figure.axes), key=lambda found: len(found[0]))
    legend_above(figure.axes[0], *named)


def draw_rates(axes: Axes, panel: Panel, lines: Sequence[Line]) -> Axes:
    """One latency over the rate; the limit as a line."""
    lowest = []
    for line in lines:
        found = [(point.rate_per_s, panel.value(point)) for point in line.points]
        drawn = [(rate, panel.scale * value) for rate, value in found if value is not None and value > 0]
        if not drawn:
            continue
        lowest.append(min(value for _, value in drawn))
        across, up = zip(*drawn, strict=True)
        axes.plot(across, up, "o-", ms=3.5, lw=2.2, color=line.colour, label=line.name)
        _mark_carried(axes, panel, line)
    axes.set(xscale="log", yscale="log")
    if lowest and panel.limit_s is None:
        axes.set_ylim(bottom=0.8 * min(lowest))
    elif panel.limit_s is not None:
        limit = panel.scale * panel.limit_s
        axes.set_ylim(0.8 * min([*lowest, limit]), BEYOND * limit)
    if panel.limit_s is not None:
        axes.axhline(panel.scale * panel.limit_s, color=ACCEPTANCE, ls=(0, (5, 3)), lw=1.6)
        text = f"service level {panel.scale * panel.limit_s:g} {panel.unit}"
        note(axes, axes.get_xlim()[0], panel.scale * panel.limit_s, text, (6, 5), color=ACCEPTANCE, va="bottom", fontsize=9)
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    return axes


def _mark_carried(axes: Axes, panel: Panel, line: Line) -> None:
    """The rate that is carried, with its interval."""
    rate, value = line.carried, None if line.at_carried is None else panel.value(line.at_carried)
    if rate is None or value is None:
        return
    bar = [[max(rate.value - rate.low, 0.0)], [max(rate.high - rate.value, 0.0)]]
    axes.errorbar(rate.value, panel.scale * value, xerr=bar, fmt="o", ms=9, color=line.colour, capsize=4, lw=1.6, zorder=4)
    place = {"color": line.colour, "ha": "left", "va": "top", "fontweight": "bold"}
    note(axes, rate.value, panel.scale * value, f"{significant(rate.value)}/s", (8, -8), **place)


def rates_title(answer: CapacityAnswer) -> str:
    """The rates that are carried."""
    found = [(line.carried.value, line.name) for line in lines_of(answer) if line.carried is not None]
    if not found:
        return "No rate keeps the service level: 0 requests per second"
    said = [f"{significant(rate)} {_with(name)}" for rate, name in found]
    level = " within the service level" if answer.scenario.file.service_level is not None else " before saturation"
    return f"Requests per second{level}: {', '.join(said)}"


def load_curve_title(curve: LoadCurve, panel: Panel) -> str:
    """One latency at the middle rate."""
    points = [(name, line[len(line) // 2]) for name, line in ((each.name, each.points) for each in lines_of_curve(curve))]
    found = [(name, panel.value(point)) for name, point in points]
    said = [f"{significant(panel.scale * value)} {panel.unit} {_with(name)}" for name, value in found if value is not None]
    name, rate = panel.label.rpartition(" (")[0], significant(points[0][1].rate_per_s)
    return f"At {rate} requests per second, {name}: {', '.join(said)}"


def _with(name: str) -> str:
    return "without speculation" if name == PLAIN_NAME else f"with {name}"
