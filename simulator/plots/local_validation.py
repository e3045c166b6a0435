"""Figure of a local validation: speedup predicted against measured, and where the time of each case goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.plots.style import LOSE_TINT, PLAIN, SPECULATION, WIN_TINT, new_figure, ordered_colours, plain_numbers, styled
from simulator.questions.decoding_replay import TERMS
from simulator.questions.local_validation import OTHER, SPEEDUP_BAR, LocalCase, LocalValidation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def local_validation_figure(found: LocalValidation) -> Figure:
    """Left: speedups with the noise floor. Right: two bars a case, measured above predicted, by term, over the measured total."""
    machine = found.machine
    right = sum(case.sign_right for case in found.cases)
    figure = new_figure(
        f"Predicted totals err by {100 * found.mean_error:.1f} % on average; signs right in {right} of {len(found.cases)} cases",
        f"Real decoding on one thread of {machine.processor}, CPU time, {machine.blocks} blocks, load average "
        f"{machine.load_average:.1f} on {machine.cores} cores. Band: ±{100 * SPEEDUP_BAR:.0f} %; bars: two standard errors. "
        "Right: upper bar measured, lower bar predicted, both over the measured total. Nothing is fitted to speculative runs.",
    )
    grid = figure.add_gridspec(1, 2, width_ratios=(1, 1.5))
    draw_speedups(figure.add_subplot(grid[0]), found.cases)
    draw_terms(figure.add_subplot(grid[1]), found.cases)
    return figure


def draw_speedups(axes: Axes, cases: Sequence[LocalCase]) -> Axes:
    """Predicted over measured speedup; win and loss on tinted ground."""
    values = [value for case in cases for value in (case.measured_speedup, case.predicted_speedup)]
    low, high = 0.9 * min(values), 1.1 * max(values)
    axes.set(xscale="log", yscale="log", xlabel="measured speedup (×)", ylabel="predicted speedup (×)")
    for start, end, tint in ((1.0, high, WIN_TINT), (low, 1.0, LOSE_TINT)):
        if start < end:
            axes.fill_between([start, end], start, end, color=tint, lw=0)
    ends = [low, high]
    axes.fill_between(
        ends, [e * (1 - SPEEDUP_BAR) for e in ends], [e * (1 + SPEEDUP_BAR) for e in ends], color=PLAIN, alpha=0.18, lw=0
    )
    axes.plot(ends, ends, color=PLAIN, lw=1)
    for batch, face in sorted({case.batch: case.batch == 1 for case in cases}.items()):
        own = [case for case in cases if case.batch == batch]
        x, y = [case.measured_speedup for case in own], [case.predicted_speedup for case in own]
        floors = [min(case.speedup_floor, 1.0) for case in own]
        doubt = [value * floor for value, floor in zip(x, floors, strict=True)]
        colour = SPECULATION if face else "white"
        axes.errorbar(
            x, y, xerr=doubt, fmt="o", ms=6, mfc=colour, mec=SPECULATION, ecolor=SPECULATION, lw=1, label=f"batch {batch}"
        )
    axes.set(xlim=ends, ylim=ends)
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    axes.legend(loc="upper left")
    return axes


def draw_terms(axes: Axes, cases: Sequence[LocalCase]) -> Axes:
    """Measured and predicted seconds by term, as shares of each case's measured total."""
    names = [name for name in (*TERMS, OTHER) if any(name in case.speculative.measured.terms for case in cases)]
    colours = dict(zip(names, ordered_colours(len(names)), strict=True))
    for row, case in enumerate(cases):
        total_s = case.speculative.measured.total_s
        for time, offset in ((case.speculative.measured, -0.2), (case.speculative.predicted, 0.2)):
            left = 0.0
            for name in names:
                share = 100 * time.terms.get(name, 0.0) / total_s
                axes.barh(row + offset, share, 0.36, left, color=colours[name], label=name if row == 0 and offset < 0 else None)
                left += share
    axes.axvline(100, color=PLAIN, lw=1)
    labels = [f"{case.draft} γ={case.gamma}, {case.kind}, {case.batch}" for case in cases]
    axes.set_yticks(range(len(cases)), labels, fontsize=max(5.0, min(8.0, 130 / len(cases))))
    axes.set(xlabel="share of the measured total (%)", ylim=(len(cases) - 0.4, -0.6))
    axes.grid(visible=False, axis="y")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, 1.12), ncols=4, fontsize=7.5)
    return axes
