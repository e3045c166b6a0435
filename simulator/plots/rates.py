"""Figure of a capacity question: latency against request rate without and with speculation, and the service level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.plots.style import ACCEPTANCE, PLAIN, SPECULATION, caption, new_figure, note, plain_numbers, styled
from simulator.plots.words import significant, speculation_name
from simulator.questions.capacity import CapacityAnswer, CapacityRow
from simulator.questions.sustained import LoadPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Metric of a service level → (words, field of a simulated rate).
METRICS = {
    "ttft": ("time to first token", "ttft_s"),
    "tpot": ("time per output token", "tpot_s"),
    "e2e": ("end-to-end latency", "e2e_latency_s"),
}
# Latencies this many times the limit, or the smallest, are beyond what the figure shows.
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
        return f"{name}, {how} (ms)" if self.metric != "e2e" else f"{name}, {how} (s)"

    @property
    def scale(self) -> float:
        return 1.0 if self.metric == "e2e" else 1e3

    def value(self, point: LoadPoint) -> float | None:
        distribution = getattr(point, METRICS[self.metric][1])
        return None if distribution is None else float(getattr(distribution, self.statistic))


def panels(answer: CapacityAnswer) -> list[Panel]:
    """One for each limit of the service level, at most three; without one, mean TPOT and 99th percentile of TTFT."""
    level = answer.scenario.file.service_level
    stated = [] if level is None else [Panel(metric, f"p{percentile:.0f}", limit) for metric, percentile, limit in level.limits()]
    return stated[:3] or [Panel("tpot", "mean", None), Panel("ttft", "p99", None)]


def shown_rows(answer: CapacityAnswer) -> list[tuple[CapacityRow, str, str]]:
    """(row, name, colour) of no speculation and of the way of drafting that carries most, those that were simulated."""
    simulated = [row for row in answer.rows if row.sustained is not None and row.sustained.points]
    drafting = [row for row in simulated if row is not answer.plain]
    found = [(answer.plain, "no speculation", PLAIN)] if answer.plain in simulated else []
    if drafting:
        best = max(drafting, key=lambda row: row.rate_per_s or 0.0)
        found.append((best, f"{speculation_name(answer.scenario)}, {best.label}", SPECULATION))
    return found


@styled
def rates_figure(answer: CapacityAnswer) -> Figure:
    """Latency against rate, a panel for each limit; a dot where the level is met no longer."""
    reading = (
        f"Every rate that was simulated, {answer.repetitions} × {answer.requests:,} requests each, the same for every line. "
        "Dots: the highest rate within the service level, with its 80 % interval. Dashed: the service level."
    )
    figure = new_figure(rates_title(answer), caption(answer.scenario, reading))
    shown = panels(answer)
    for axes, panel in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        draw_rates(axes, panel, shown_rows(answer))
        axes.set_xlabel("arrivals (requests per second)")
        axes.set_ylabel(panel.label)
    figure.axes[0].legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize=10)
    return figure


def draw_rates(axes: Axes, panel: Panel, rows: Sequence[tuple[CapacityRow, str, str]]) -> Axes:
    """One latency over the rate; the limit as a line."""
    lowest = []
    for row, name, colour in rows:
        assert row.sustained is not None
        found = [(point.rate_per_s, panel.value(point)) for point in row.sustained.points]
        line = [(rate, panel.scale * value) for rate, value in found if value is not None and value > 0]
        if not line:
            continue
        lowest.append(min(value for _, value in line))
        axes.plot([rate for rate, _ in line], [value for _, value in line], "o-", ms=3.5, lw=2.2, color=colour, label=name)
        at, rate = row.sustained.at_rate, row.sustained.rate
        value = None if at is None else panel.value(at)
        if rate is not None and value is not None:
            bar = [[max(rate.value - rate.low, 0.0)], [max(rate.high - rate.value, 0.0)]]
            axes.errorbar(rate.value, panel.scale * value, xerr=bar, fmt="o", ms=9, color=colour, capsize=4, lw=1.6, zorder=4)
            note(
                axes,
                rate.value,
                panel.scale * value,
                f"{significant(rate.value)}/s",
                (-8, 8),
                color=colour,
                ha="right",
                fontweight="bold",
            )
    axes.set(xscale="log", yscale="log")
    reference = panel.scale * panel.limit_s if panel.limit_s is not None else min(lowest, default=1.0)
    bottom = 0.8 * min([*lowest, reference])
    axes.set_ylim(bottom, max(BEYOND * reference, 2 * bottom))
    if panel.limit_s is not None:
        axes.axhline(panel.scale * panel.limit_s, color=ACCEPTANCE, ls=(0, (5, 3)), lw=1.6)
        unit = "ms" if panel.scale > 1 else "s"
        text = f"service level {panel.scale * panel.limit_s:g} {unit}"
        note(axes, axes.get_xlim()[0], panel.scale * panel.limit_s, text, (6, 5), color=ACCEPTANCE, va="bottom", fontsize=9)
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    return axes


def rates_title(answer: CapacityAnswer) -> str:
    """The rates that are carried."""
    found = [(row.rate_per_s, name) for row, name, _ in shown_rows(answer)]
    said = [
        f"{significant(rate)} with {name}" if name != "no speculation" else f"{significant(rate)} without speculation"
        for rate, name in found
        if rate
    ]
    if not said:
        return "No rate keeps the service level: 0 requests per second"
    level = " within the service level" if answer.scenario.file.service_level is not None else " before saturation"
    return f"Requests per second{level}: {', '.join(said)}"
