"""Figure of the best method and γ over batch and context: regions by method, told apart by words too."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from simulator.plots.cells import batch_by_context, hatch_cell
from simulator.plots.colour import ink_on
from simulator.plots.style import caption, new_figure, styled
from simulator.plots.words import batches_in_words
from simulator.printed_numbers import times
from simulator.questions.method_map import NONE, MethodCell, MethodMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Tints of Okabe and Ito's palette; each differs from its neighbours in lightness as well. Further methods begin again, with
# their letter to tell them apart.
GROUNDS = ("#8ECAE6", "#F3C66B", "#7CC8A8", "#F6EFA6", "#DDA5C6", "#E8955F", "#B9CCE8")
NONE_GROUND = "#E4E4E4"
# A method's name stands in its cells where all are at most so long; else a letter does, which the legend explains.
SHORT_NAME = 14
LINE = 9
# Of the names of others that are near.
NEAR_LINE = 15


@styled
def method_map_figure(answer: MethodMap) -> Figure:
    """Best method and γ, and the speedup, over batch × context."""
    reading = (
        "In each cell: the way to draft that decodes fastest, its best γ or tree (steps/width/nodes; of those within 3 % the one "
        "of fewest rows), and its decode speedup over no speculation with its 80 % interval. ≈: another is within 3 %. none = no "
        "method gains (the best factor is below). Hatched: the KV cache does not hold that batch under any."
    )
    figure = new_figure(method_map_title(answer), caption(answer.scenario, reading))
    draw_method_map(figure.subplots(), answer)
    return figure


def letters(answer: MethodMap) -> dict[str, str]:
    """What stands for each method in its cells: its name, or a letter where names that the map needs are long."""
    seen = {name for cell in answer.cells for name in (cell.method, *cell.near)}
    is_short = max(map(len, seen)) <= SHORT_NAME
    return {name: name if is_short or name == NONE else chr(ord("A") + index) for index, name in enumerate(answer.methods)}


def draw_method_map(axes: Axes, answer: MethodMap) -> Axes:
    """A cell for each batch and context, coloured and named by method, with lines around each region."""
    from matplotlib.patches import Patch, Rectangle

    batches, contexts = answer.batches, answer.contexts
    short = letters(answer)
    place = {(cell.batch, cell.context_tokens): cell for cell in answer.cells}
    for (batch, context), cell in place.items():
        x, y = batches.index(batch), contexts.index(context)
        ground = ground_of(answer, cell.method)
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=ground, edgecolor="white", lw=0.8))
        if not cell.fits:
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="white", alpha=0.6, lw=0))
            hatch_cell(axes, x, y)
        _label(axes, x, y, cell, short, ink_on(ground) if cell.fits else "#595959")
    _outline(axes, answer, place)
    shown = [name for name in answer.methods if any(cell.method == name for cell in answer.cells)]
    named = [name if short[name] == name else f"{short[name]}: {name}" for name in shown]
    patches = [Patch(facecolor=ground_of(answer, name), edgecolor="#595959", lw=0.8) for name in shown]
    axes.legend(patches, named, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3 if len(max(named, key=len)) < 32 else 2)
    return batch_by_context(axes, batches, contexts, margin=0.02)


def ground_of(answer: MethodMap, method: str) -> str:
    """The colour of a method: by its place in the scenario."""
    return NONE_GROUND if method == NONE else GROUNDS[answer.methods.index(method) % len(GROUNDS)]


def _label(axes: Axes, x: int, y: int, cell: MethodCell, short: dict[str, str], ink: str) -> None:
    name = "\n".join(textwrap.wrap(short[cell.method], LINE, break_long_words=False))
    where: Any = {"ha": "center", "va": "center", "color": ink}
    axes.text(x, y + 0.24, name, fontsize=9 if "\n" in name else 10, fontweight="bold", linespacing=0.95, **where)
    axes.text(x, y - 0.02, ", ".join(part for part in (cell.drafts, times(cell.speedup)) if part), fontsize=9, **where)
    axes.text(x, y - 0.19, _bounds(cell), fontsize=7.5, **where)
    if cell.near:
        near = ", ".join(short[name] for name in cell.near)
        axes.text(x, y - 0.36, f"≈ {textwrap.shorten(near, NEAR_LINE, placeholder=' …')}", fontsize=7.5, **where)


def _bounds(cell: MethodCell) -> str:
    return f"{times(cell.speedup_low).removesuffix('×')}–{times(cell.speedup_high).removesuffix('×')}"


def _outline(axes: Axes, answer: MethodMap, place: dict[tuple[int, int], MethodCell]) -> None:
    """A line wherever the method changes."""
    batches, contexts = answer.batches, answer.contexts
    for y, context in enumerate(contexts):
        for x, batch in enumerate(batches):
            own = place[batch, context].method
            if x + 1 < len(batches) and place[batches[x + 1], context].method != own:
                axes.plot([x + 0.5] * 2, [y - 0.5, y + 0.5], color="#262626", lw=2)
            if y + 1 < len(contexts) and place[batch, contexts[y + 1]].method != own:
                axes.plot([x - 0.5, x + 0.5], [y + 0.5] * 2, color="#262626", lw=2)


def method_map_title(answer: MethodMap) -> str:
    """Which method at the workload's own context, as the batch grows."""
    row = [cell for cell in answer.cells if cell.fits and cell.context_tokens == answer.own_context]
    if not row:
        return f"At {answer.own_context:,} tokens no batch fits into the KV cache"
    parts: list[str] = []
    first = row[0]
    for before, cell in zip(row, [*row[1:], None], strict=True):
        if cell is None or cell.method != first.method:
            parts.append(f"{first.method} at batch {batches_in_words(first.batch, before.batch)}")
            first = cell or first
    return f"Fastest at {answer.own_context:,} tokens: " + ", ".join(parts)
