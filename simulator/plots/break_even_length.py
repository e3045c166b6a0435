"""Figure of the break-even question for trees: τ*, the tokens per round that each tree and chain must yield, beside what they
do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.acceptance import band_for
from simulator.draft_tree import Tree
from simulator.plots.break_even import grey_beyond_memory
from simulator.plots.style import caption, new_figure, note, ordered_colours, plain_numbers, spread, styled
from simulator.plots.words import speculation_name
from simulator.printed_numbers import significant
from simulator.questions.break_even import BreakEven, BreakEvenPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READING = (
    "Lines: break-even acceptance length τ* = R of each tree (steps/width/nodes) and chain, with its 80 % interval. "
    "Dashed, same colour: the τ it yields (the middle of the measured band where acceptance is left open). "
    "Speculation wins while the dashed line is above the other. Decode only, full batch."
)


@styled
def break_even_length_figure(answer: BreakEven) -> Figure:
    """τ* against batch, a line for each shape that the scenario compares, a panel for each context."""
    figure = new_figure(break_even_length_title(answer), caption(answer.scenario, READING))
    shapes = answer.scenario.shapes
    asked = [point for point in answer.points if point.shape in shapes]
    top = 1.08 * max([*(point.r for point in asked if point.fits), *(shape.depth + 1 for shape in shapes)])
    panels = figure.subplots(1, len(answer.contexts), sharey=True, squeeze=False)[0]
    for axes, context in zip(panels, answer.contexts, strict=True):
        draw_break_even_length(axes, [point for point in asked if point.context_tokens == context], yields(answer), top)
        axes.set_title(f"at {context:,} tokens")
    panels[0].set_ylabel("break-even acceptance length τ* (tokens per round)")
    return figure


def draw_break_even_length(
    axes: Axes, points: Sequence[BreakEvenPoint], yielded: dict[Tree, float] | None = None, top: float = 10.0
) -> Axes:
    """One context: a line for each shape over the batches that the KV cache holds, and the τ it yields where that is known."""
    shapes = list(dict.fromkeys(point.shape for point in points))
    batches = sorted({point.batch for point in points})
    at_end = []
    for shape, colour in zip(shapes, ordered_colours(len(shapes)), strict=True):
        row = [point for point in points if point.shape == shape and point.fits]
        if not row:
            continue
        across = [point.batch for point in row]
        axes.plot(across, [point.r for point in row], color=colour, lw=2.4, label=shape.name)
        axes.fill_between(across, [point.r_low for point in row], [point.r_high for point in row], color=colour, alpha=0.15, lw=0)
        if yielded and shape in yielded:
            axes.plot([batches[0], across[-1]], [yielded[shape]] * 2, color=colour, ls=(0, (5, 3)), lw=1.6)
        at_end.append((row[-1].batch, min(row[-1].r, top), shape.name, colour))
    gap = 0.043 * top
    for (batch, _, text, colour), height in zip(
        at_end, spread([height for _, height, *_ in at_end], gap, gap / 2, top - gap / 2), strict=True
    ):
        note(axes, batch, height, text, (7, 0), color=colour, fontsize=9, zorder=5, ha="left", va="center")
    axes.set(xscale="log", xlim=(batches[0] / 1.3, batches[-1] * 4), ylim=(0, top))
    axes.set_xlabel("batch (sequences)")
    plain_numbers(axes.xaxis, batches[::2])
    grey_beyond_memory(axes, points, batches)
    return axes


def yields(answer: BreakEven) -> dict[Tree, float]:
    """τ of each shape that the scenario compares, at its own context; the geometric middle of the measured band where it is
    open."""
    found = {p.shape: p.mean_acceptance_length for p in answer.points if p.context_tokens == answer.own_context}
    lengths = {shape: found[shape] for shape in answer.scenario.shapes if found.get(shape) is not None}
    for shape in answer.scenario.shapes if answer.scenario.file.acceptance is None else ():
        band = band_for(answer.scenario.deployment.method, shape.steps, None if shape.is_chain else shape)
        if band is not None:
            lengths[shape] = math.sqrt(band.low * band.high)
    return {shape: length for shape, length in lengths.items() if length is not None}


def break_even_length_title(answer: BreakEven) -> str:
    """What the first tree needs at the smallest and the largest batch, at the workload's own context."""
    tree = next(shape for shape in answer.scenario.shapes if not shape.is_chain)
    row = [p for p in answer.points if p.shape == tree and p.context_tokens == answer.own_context and p.fits]
    name = f"{speculation_name(answer.scenario)}, {tree.name}"
    if not row:
        return f"Break-even of {name}: at {answer.own_context:,} tokens no batch fits into the KV cache"
    needs = [f"τ ≥ {significant(point.r)} at batch {point.batch}" for point in dict.fromkeys((row[0], row[-1]))]
    return f"To break even at {answer.own_context:,} tokens, {name}\nneeds {' and '.join(needs)}"
