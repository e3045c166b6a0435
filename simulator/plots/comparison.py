"""Figure of a comparison: seconds per output token without and with speculation, an alternative a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.plots.style import PLAIN, SPECULATION, caption, new_figure, note, styled
from simulator.plots.words import is_known
from simulator.printed_numbers import significant, times
from simulator.questions.comparison import Alternative, ComparedScenarios

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What alternatives differ in, by the name that it is asked for.
AXIS_WORDS = {"method": "method", "draft-tp": "devices of the draft", "quantize": "type of weights", "hardware": "device"}


@styled
def comparison_figure(answer: ComparedScenarios) -> Figure:
    """Mean time per output token of each alternative that could be served."""
    reading = (
        "Grey: without speculation; blue: with it, its bar the 80 % interval of the gain (from one end of the acceptance "
        "measured for the method to the other, where the scenario states none). The gain is against the same alternative without "
        "speculation. Means over the same requests."
    )
    figure = new_figure(comparison_title(answer), caption(answer.scenario, reading))
    draw_comparison(figure.subplots(), served(answer))
    return figure


def served(answer: ComparedScenarios) -> list[Alternative]:
    """The alternatives with times to show."""
    return [row for row in answer.rows if row.plain_tpot_s is not None and row.gain is not None]


def draw_comparison(axes: Axes, rows: list[Alternative]) -> Axes:
    """Two dots an alternative, on one axis of milliseconds that begins at 0."""
    right = 0.0
    for y, row in enumerate(rows):
        assert row.plain_tpot_s is not None
        assert row.gain is not None
        plain_ms = 1e3 * row.plain_tpot_s
        shown = [1e3 * seconds for seconds in row.tpot_s]
        bounds = (plain_ms / row.gain.high, plain_ms / row.gain.low) if is_known(row.gain) else (min(shown), max(shown))
        axes.plot([plain_ms, min(shown)], [y, y], color="#C9CED6", lw=1.2, zorder=1)
        axes.plot(bounds, [y, y], color=SPECULATION, lw=6, alpha=0.35, solid_capstyle="butt", zorder=2)
        axes.plot(shown, [y] * len(shown), "o", color=SPECULATION, ms=8, zorder=4, label="with speculation" if y == 0 else None)
        axes.plot([plain_ms], [y], "D", color=PLAIN, ms=8, zorder=3, label="no speculation" if y == 0 else None)
        far = max(plain_ms, *bounds)
        gain = " to ".join(dict.fromkeys(times(plain_ms / each) for each in sorted(shown, reverse=True)))
        after = " to ".join(map(significant, sorted(set(shown))))
        note(axes, far, y, f"{gain}  ({significant(plain_ms)} → {after} ms)", (10, 0), va="center")
        right = max(right, far)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1.6 * right))
    axes.set_xlabel("mean time per output token (ms)")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return axes


def comparison_title(answer: ComparedScenarios) -> str:
    """Which is fastest, by its worse end."""
    rows = served(answer)
    if not rows:
        return "No alternative could be served"
    best = min(rows, key=lambda row: min(row.plain_tpot_s or 0.0, max(row.tpot_s)))
    seconds = min(best.plain_tpot_s or 0.0, max(best.tpot_s))
    how = "with" if seconds == max(best.tpot_s) else "without"
    return (
        f"Fastest by {AXIS_WORDS[answer.axis]}: {best.name} {how} speculation, {significant(1e3 * seconds)} ms per output token"
    )
