"""Figure of the accuracy question: predicted against measured R, and the error over what a run asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simulator.draft_tree import read_tree
from simulator.plots.style import ACCEPTANCE, PLAIN, SPECULATION, new_figure, note, plain_numbers, styled
from simulator.printed_numbers import significant
from simulator.questions.accuracy import Scored, score
from simulator.questions.engine_fit import UNFITTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Relative error within which a prediction is called near.
NEAR = 0.2
# Ends of both axes of R: nearly all runs lie within, and those that do not are marked at the edge.
ENDS = (0.9, 5.0)


@styled
def accuracy_figure(scored: Sequence[Scored]) -> Figure:
    """R predicted with each run's family left out of the fit beside what was measured; errors by verified rows and by batch."""
    total = score(scored)
    figure = new_figure(
        f"R of runs whose family was not fitted: half err by less than {100 * total.median:.0f} %, nine in ten by less than "
        f"{100 * total.p90:.0f} %",
        f"{total.cases} published runs (published_cases/cases.csv), constants refitted without each run's family. Band: ±20 %. "
        "Grey: families on which nothing is fitted.",
    )
    grid = figure.add_gridspec(2, 2)
    draw_against(figure.add_subplot(grid[:, 0]), scored)
    draw_errors(figure.add_subplot(grid[0, 1]), scored, _rows, "rows verified per sequence")
    draw_errors(figure.add_subplot(grid[1, 1]), scored, lambda each: each.case.point.batch, "batch (sequences)")
    return figure


def draw_against(axes: Axes, scored: Sequence[Scored]) -> Axes:
    """Predicted R over measured R, both on logarithmic axes."""
    axes.set(xscale="log", yscale="log", xlabel="measured R (plain steps)", ylabel="predicted R (plain steps)")
    axes.fill_between(ENDS, [end / (1 + NEAR) for end in ENDS], [end * (1 + NEAR) for end in ENDS], color="#F0F0F0", lw=0)
    axes.plot(ENDS, ENDS, color=PLAIN, lw=1)
    within = [each for each in scored if _at_the_edge(each) == _both_r(each)]
    _points(axes, within, lambda each: each.case.measured_r, _predicted_r)
    axes.set(xlim=ENDS, ylim=ENDS)
    _mark_beyond(axes, [each for each in scored if _at_the_edge(each) != _both_r(each)])
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    return axes


def _mark_beyond(axes: Axes, beyond: Sequence[Scored]) -> None:
    """Runs that the axes do not reach, at their edge, and how far they go."""
    if not beyond:
        return
    axes.plot(*zip(*map(_at_the_edge, beyond), strict=True), "^", ms=7, mew=0, color=ACCEPTANCE, clip_on=False, zorder=4)
    furthest = max(value for each in beyond for value in _both_r(each))
    text = f"triangles: {len(beyond)} run{'s' if len(beyond) > 1 else ''} beyond the axes, R up to {significant(furthest)}"
    note(axes, ENDS[1], ENDS[0], text, (-6, 6), ha="right", va="bottom", fontsize=9, color=ACCEPTANCE)


def _both_r(each: Scored) -> tuple[float, float]:
    """R measured and predicted."""
    return each.case.measured_r, _predicted_r(each)


def _at_the_edge(each: Scored) -> tuple[float, float]:
    """The same, where the axes end at the latest."""
    measured, predicted = (min(max(value, ENDS[0]), ENDS[1]) for value in _both_r(each))
    return measured, predicted


def draw_errors(axes: Axes, scored: Sequence[Scored], along: Callable[[Scored], float], name: str) -> Axes:
    """Signed relative error of R over some property of the runs."""
    axes.set(xscale="log", xlabel=name, ylabel="error of R (%)")
    axes.axhspan(-100 * NEAR, 100 * NEAR, color="#F0F0F0", lw=0)
    axes.axhline(0, color=PLAIN, lw=1)
    _points(axes, scored, along, lambda each: 100 * each.error)
    plain_numbers(axes.xaxis)
    return axes


def _points(axes: Axes, scored: Sequence[Scored], x: Callable[[Scored], float], y: Callable[[Scored], float]) -> None:
    for unfitted, colour in ((True, PLAIN), (False, SPECULATION)):
        group = [each for each in scored if (each.case.family in UNFITTED) == unfitted]
        axes.plot([x(e) for e in group], [y(e) for e in group], "o", ms=4, alpha=0.45, mew=0, color=colour)


def _predicted_r(each: Scored) -> float:
    assert each.prediction.mean_acceptance_length is not None
    assert each.prediction.speedup is not None
    return each.prediction.mean_acceptance_length / each.prediction.speedup


def _rows(each: Scored) -> float:
    point = each.case.point
    if point.tree_shape is not None:
        return float(read_tree(point.tree_shape).nodes)
    assert point.num_speculative_tokens is not None
    return point.num_speculative_tokens + 1.0
