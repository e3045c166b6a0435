"""Figures of the γ to run at, over batch and context: of the break-even question and of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.plots.cells import batch_by_context, hatch_cell
from simulator.plots.colour import ink_on
from simulator.plots.style import LOSE_TINT, caption, new_figure, styled
from simulator.plots.words import batches_in_words
from simulator.printed_numbers import times
from simulator.questions.break_even import BestGamma, BreakEven
from simulator.questions.schedule import ScheduleAnswer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def best_gamma_map(answer: BreakEven) -> Figure:
    """Best γ and its speedup over batch × context. Raises ValueError without an acceptance: then no γ is best."""
    if not answer.best:
        raise ValueError("the map of the best γ needs a scenario that states its acceptance")
    reading = (
        "In each cell: best γ or tree (steps/width/nodes), and the decode speedup it gives; of those within 3 % of the best "
        "the one of fewest rows is taken. "
        "off = no γ wins (its best factor is below). Hatched: the KV cache does not hold that batch."
    )
    figure = new_figure(best_gamma_title(answer), caption(answer.scenario, reading))
    draw_best_gamma(figure.subplots(), answer.best)
    return figure


@styled
def schedule_figure(answer: ScheduleAnswer) -> Figure:
    """The γ to run at over batch × context, ties smoothed."""
    cells = [
        BestGamma(cell.batch, cell.context_tokens, cell.num_speculative_tokens, cell.speedup, cell.fits) for cell in answer.cells
    ]
    reading = (
        "In each cell: the γ to run at, and its decode speedup; of those within 3 % of the most tokens per second the smallest. "
        "off = a plain step is best. Hatched: the KV cache does not hold that batch."
    )
    figure = new_figure(schedule_title(answer), caption(answer.scenario, reading))
    draw_best_gamma(figure.subplots(), cells)
    return figure


def schedule_title(answer: ScheduleAnswer) -> str:
    """The table at the workload's own context."""
    parts = [
        f"{'off' if gamma == 0 else f'γ = {gamma}'} at batch {batches_in_words(first, last)}"
        for first, last, gamma in answer.table[:4]
    ]
    more = ", …" if len(answer.table) > 4 else ""
    return f"At {answer.own_context:,} tokens: {', '.join(parts)}{more}"


def draw_best_gamma(axes: Axes, best: Sequence[BestGamma]) -> Axes:
    """A cell for each batch and context, coloured by γ."""
    from matplotlib.patches import Rectangle

    batches = sorted({cell.batch for cell in best})
    contexts = sorted({cell.context_tokens for cell in best})
    for cell in best:
        x, y, gamma = batches.index(cell.batch), contexts.index(cell.context_tokens), cell.num_speculative_tokens
        face = _cell_colour(gamma)
        axes.add_patch(
            Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor="white", lw=2, alpha=1.0 if cell.fits else 0.3)
        )
        ink = ink_on(face) if cell.fits else "#6b6b6b"
        if not cell.fits:
            hatch_cell(axes, x, y)
        axes.text(
            x,
            y + 0.13,
            f"γ = {gamma}" if gamma and not cell.tree else cell.name,
            ha="center",
            va="center",
            color=ink,
            fontsize=12,
            fontweight="bold",
        )
        axes.text(x, y - 0.22, times(cell.speedup), ha="center", va="center", color=ink, fontsize=10.5)
    return batch_by_context(axes, batches, contexts)


def _cell_colour(gamma: int) -> str:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return LOSE_TINT if gamma == 0 else to_hex(colormaps["Blues"](0.08 + 0.36 * min(gamma, 8) / 8))


def best_gamma_title(answer: BreakEven) -> str:
    """How the best γ moves with batch, at the shortest and the longest context that fit."""
    cells = [cell for cell in answer.best if cell.fits]
    if not cells:
        return "No batch of these contexts fits into the KV cache"
    if all(cell.num_speculative_tokens == 0 for cell in cells):
        return "Speculation off everywhere: nothing wins at this acceptance"
    contexts = sorted({cell.context_tokens for cell in cells})
    rows = [[cell for cell in cells if cell.context_tokens == context] for context in dict.fromkeys((contexts[0], contexts[-1]))]
    return f"Best {'shape' if any(cell.tree for cell in cells) else 'γ'} at " + ",\nat ".join(
        f"{row[0].context_tokens:,} tokens: {_along(row)}" for row in rows
    )


def _along(row: Sequence[BestGamma]) -> str:
    first, last = row[0], row[-1]
    if all(cell.name == first.name for cell in row):
        return f"{first.name} up to batch {last.batch}"
    return f"{first.name} at batch {first.batch}, {last.name} at batch {last.batch}"
