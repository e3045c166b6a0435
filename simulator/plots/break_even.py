"""Figure of the break-even question: the acceptance rate that each γ needs, against batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from simulator import theory
from simulator.acceptance import band_for
from simulator.plots.style import (
    ACCEPTANCE,
    NOT_POSSIBLE,
    caption,
    new_figure,
    note,
    ordered_colours,
    plain_numbers,
    spread,
    styled,
)
from simulator.plots.words import speculation_name
from simulator.questions.break_even import BreakEven, BreakEvenPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Height of a label on the axis of α, as a part of its length.
LABEL_GAP = 0.043
# Rates closer than this are drawn as one line.
SAME_RATE = 0.03


@styled
def break_even_figure(answer: BreakEven) -> Figure:
    """α* against batch, a line for each γ, a panel for each context."""
    gamma = chosen_gamma(answer)
    figure = new_figure(break_even_title(answer, gamma), caption(answer.scenario, _reading(gamma)))
    band = acceptance_band(answer)
    top = min(max([*(point.break_even_acceptance_rate or 0 for point in answer.points), *(band or ()), 0.2]) * 1.12, 1.0)
    panels = figure.subplots(1, len(answer.contexts), sharey=True, squeeze=False)[0]
    for axes, context in zip(panels, answer.contexts, strict=True):
        draw_break_even(axes, [point for point in chains(answer) if point.context_tokens == context], gamma, top)
        axes.set_title(f"at {context:,} tokens")
        if band is not None:
            _draw_acceptance(axes, band)
    if band is not None:
        _label_acceptance(panels[-1], band)
    panels[0].set_ylabel("break-even acceptance rate α* (fraction)")
    return figure


def chains(answer: BreakEven) -> list[BreakEvenPoint]:
    """The points of chains: trees have no α*."""
    return [point for point in answer.points if point.tree is None]


def draw_break_even(axes: Axes, points: Sequence[BreakEvenPoint], shaded_gamma: int, top: float = 1.0) -> Axes:
    """One context: a line for each γ over the batches that the KV cache holds; × where it ends because no acceptance wins."""
    gammas = sorted({point.num_speculative_tokens for point in points})
    batches = sorted({point.batch for point in points})
    never: list[int] = []
    at_end: list[tuple[float, float, str, tuple[float, ...], bool]] = []
    for gamma, colour in zip(gammas, ordered_colours(len(gammas)), strict=True):
        chosen = gamma == shaded_gamma
        row = [point for point in points if point.num_speculative_tokens == gamma and point.fits]
        rates = [math.nan if p.break_even_acceptance_rate is None else p.break_even_acceptance_rate for p in row]
        axes.plot([p.batch for p in row], rates, color=colour, lw=3.0 if chosen else 1.6, label=f"γ = {gamma}")
        if chosen:
            _shade(axes, row, colour)
        crossed = _beside_impossible(row)
        axes.plot([b for b, _ in crossed], [rate for _, rate in crossed], "x", ms=8, mew=2.2, color=colour)
        possible = [(p.batch, rate) for p, rate in zip(row, rates, strict=True) if not math.isnan(rate)]
        if possible and possible[-1][0] == row[-1].batch:
            at_end.append((*possible[-1], f"γ={gamma}", colour, chosen))
        elif possible:
            _label_line(axes, *possible[-1], f"γ={gamma}", colour, chosen, to_left=True)
        elif row:
            never.append(gamma)
    if never:
        note(axes, batches[0], top, f"no α wins with γ = {', '.join(map(str, never))}", (2, -6), va="top", fontsize=9)
    gap = LABEL_GAP * top
    heights = spread([height for _, height, *_ in at_end], gap, gap / 2, top - gap / 2)
    for (batch, _, text, colour, chosen), height in zip(at_end, heights, strict=True):
        _label_line(axes, batch, height, text, colour, chosen)
    axes.set(xscale="log", xlim=(batches[0] / 1.3, batches[-1] * 4), ylim=(0, top))
    axes.set_xlabel("batch (sequences)")
    plain_numbers(axes.xaxis, batches[::2])
    grey_beyond_memory(axes, points, batches)
    return axes


def _label_line(
    axes: Axes, batch: float, height: float, text: str, colour: tuple[float, ...], chosen: bool, to_left: bool = False
) -> None:
    place = {"ha": "right" if to_left else "left", "va": "center", "fontweight": "bold" if chosen else "normal"}
    note(axes, batch, height, text, (-8 if to_left else 7, 0), color=colour, fontsize=9, zorder=5, **place)


def _beside_impossible(row: Sequence[BreakEvenPoint]) -> list[tuple[int, float]]:
    """(batch, α*) of the points next to a batch without an α*."""
    rates = {point.batch: point.break_even_acceptance_rate for point in row}
    neighbours = [*pairwise(rates), *((after, before) for before, after in pairwise(rates))]
    beside = [(batch, rates[batch]) for batch, other in neighbours if rates[other] is None]
    return sorted({(batch, rate) for batch, rate in beside if rate is not None})


def _shade(axes: Axes, row: Sequence[BreakEvenPoint], colour: tuple[float, ...]) -> None:
    """The 80 % interval of α*: R at α* with the relative doubt of R."""
    bounds = [(point.batch, *interval_of(point)) for point in row if point.break_even_acceptance_rate is not None]
    if bounds:
        batch, low, high = zip(*bounds, strict=True)
        axes.fill_between(batch, low, high, color=colour, alpha=0.22, lw=0)


def interval_of(point: BreakEvenPoint) -> tuple[float, float]:
    """80 % interval of α*; its upper end is 1 where even that would not repay the upper R."""
    gamma = point.num_speculative_tokens
    r = theory.mean_acceptance_length(point.break_even_acceptance_rate or 0.0, gamma)
    low, high = (theory.break_even_acceptance_rate(r * bound / point.r, gamma) for bound in (point.r_low, point.r_high))
    return low or 0.0, 1.0 if high is None else high


def grey_beyond_memory(axes: Axes, points: Sequence[BreakEvenPoint], batches: Sequence[int]) -> None:
    """Greys the batches that the KV cache does not hold."""
    fitting = [point.batch for point in points if point.fits]
    too_large = [batch for batch in batches if batch > max(fitting, default=0)]
    if not too_large:
        return
    edge = math.sqrt(too_large[0] * max(fitting)) if fitting else batches[0] / 1.3
    axes.axvspan(edge, axes.get_xlim()[1], color=NOT_POSSIBLE, alpha=0.55, lw=0, zorder=0.5)
    right, top = axes.get_xlim()[1] / 1.12, axes.get_ylim()[1]
    axes.text(right, 0.98 * top, "beyond the KV cache", fontsize=8.5, ha="right", va="top", color="#595959", rotation=90)


def _draw_acceptance(axes: Axes, band: tuple[float, float]) -> None:
    low, high = band
    if high - low > SAME_RATE:
        axes.axhspan(low, high, color=ACCEPTANCE, alpha=0.10, lw=0)
    for level in (low, high) if high - low > SAME_RATE else ((low + high) / 2,):
        axes.axhline(level, color=ACCEPTANCE, ls=(0, (5, 3)), lw=1.5)


def _label_acceptance(axes: Axes, band: tuple[float, float]) -> None:
    """To the right of the last panel, where no line can meet it."""
    low, high = band
    text = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to\n{high:.2f}"
    place = {"va": "center", "fontsize": 10, "annotation_clip": False}
    note(axes, axes.get_xlim()[1], (low + high) / 2, f"here\nα =\n{text}", (5, 0), color=ACCEPTANCE, **place)


def chosen_gamma(answer: BreakEven) -> int:
    """The γ whose interval is shown: the best for one sequence at the workload's context where that is known and asked for,
    else the scenario's first, else the middle one."""
    gammas = sorted({point.num_speculative_tokens for point in chains(answer)})
    at_own = [
        (point.speedup, -point.num_speculative_tokens)
        for point in chains(answer)
        if point.speedup is not None
        and point.context_tokens == answer.own_context
        and point.batch == answer.batches[0]
        and point.num_speculative_tokens in answer.scenario.gammas
    ]
    if at_own:
        return -max(at_own)[1]
    return next((gamma for gamma in answer.scenario.gammas if gamma in gammas), gammas[len(gammas) // 2])


def acceptance_band(answer: BreakEven) -> tuple[float, float] | None:
    """Lowest and highest α that would give the scenario's τ at its own γ; the method's measured band where it states none."""
    lengths = {point.num_speculative_tokens: point.mean_acceptance_length for point in chains(answer)}
    rates = []
    for gamma in answer.scenario.gammas:
        tau = lengths.get(gamma)
        band = band_for(answer.scenario.deployment.method, gamma) if answer.scenario.file.acceptance is None else None
        for length in (tau,) if band is None else (band.low, band.high):
            if length is not None:
                rates.append(theory.acceptance_rate_for(min(max(length, 1.0), gamma + 1.0), gamma))
    return (min(rates), max(rates)) if rates else None


def break_even_title(answer: BreakEven, gamma: int) -> str:
    """What is needed at the smallest and the largest batch, at the workload's own context."""
    context = answer.own_context if answer.own_context in answer.contexts else answer.contexts[0]
    row = [p for p in chains(answer) if p.num_speculative_tokens == gamma and p.context_tokens == context and p.fits]
    name = speculation_name(answer.scenario)
    if not row:
        return f"Break-even acceptance of {name}: at {context:,} tokens no batch fits into the KV cache"
    needs = [f"{_need(point)} at batch {point.batch}" for point in dict.fromkeys((row[0], row[-1]))]
    return f"To break even at {context:,} tokens, {name} with γ = {gamma}\nneeds {' and '.join(needs)}"


def _need(point: BreakEvenPoint) -> str:
    rate = point.break_even_acceptance_rate
    return "more than is possible" if rate is None else f"α ≥ {rate:.2f}"


def _reading(gamma: int) -> str:
    return (
        f"Acceptance above a line: that γ is faster than no speculation; below: slower. Shaded: 80 % interval for γ = {gamma}. "
        "× ends a line where, at the batch beside it, even accepting every draft would lose. Decode only, full batch."
    )
