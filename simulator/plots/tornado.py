"""Figure of what moves a verdict: a bar to either side for each thing that could be otherwise, the longest on top."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.plots.colour import INK
from simulator.plots.style import (
    ACCEPTANCE,
    SPECULATION,
    deployment_caption,
    new_figure,
    note,
    styled,
)
from simulator.printed_numbers import significant, times
from simulator.questions.sensitivity import Change, Lever, Sensitivity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Most bars, and the smallest effect that gets one.
MOST_BARS, LEAST_EFFECT = 10, 0.005
# Letters of a lever's name in one line beside its bar.
NAME_COLUMNS = 26


@styled
def tornado_figure(answer: Sensitivity) -> Figure:
    """What moves the speedup (or R, where acceptance is open), one change at a time."""
    of = "decode speedup" if answer.speedup is not None else "break-even R"
    reading = (
        f"Each bar: one thing changed, all else as it is, at batch {answer.batch} and context {answer.context_tokens:,.0f} "
        f"tokens, {answer.shape.name}. Blue: better with speculation; red: worse."
        + (" Dashed: where the speedup would be 1." if _break_even_in_sight(answer) is not None else "")
    )
    figure = new_figure(tornado_title(answer), deployment_caption(answer.deployment, reading))
    axes = figure.subplots()
    draw_tornado(axes, shown_levers(answer), answer.speedup is None)
    axes.set_xlabel(f"change of the {of} (%)")
    if (place := _break_even_in_sight(answer)) is not None:
        axes.axvline(place, color=INK, ls=(0, (5, 3)), lw=1.4)
        note(axes, place, axes.get_ylim()[1], "speedup 1", (0, 4), ha="center", va="bottom", fontsize=9, annotation_clip=False)
    return figure


def shown_levers(answer: Sensitivity) -> list[Lever]:
    """Those long enough to see, the longest first."""
    return [lever for lever in answer.levers if lever.reach >= LEAST_EFFECT][:MOST_BARS]


def draw_tornado(axes: Axes, levers: Sequence[Lever], of_r: bool = False) -> Axes:
    """A row for each lever; the words at a bar's end say which way it was turned. of_r: a larger R is worse."""
    import textwrap

    for row, lever in enumerate(levers):
        for change in lever.changes:
            effect = 100 * change.effect
            if abs(effect) < 0.05:
                continue
            colour = SPECULATION if (effect > 0) != of_r else ACCEPTANCE
            axes.barh(row, effect, height=0.6, color=colour, alpha=0.85, lw=0)
            # Two changes to one side: the words of the smaller stand on the other.
            beside = any(other.effect * effect > 0 and abs(other.effect) > abs(change.effect) for other in lever.changes)
            right = (effect > 0) != beside
            side = {"ha": "left" if right else "right", "va": "center", "fontsize": 9}
            note(axes, 0.0 if beside else effect, row, _words(change, lever), (5 if right else -5, 0), **side)
    axes.axvline(0, color=INK, lw=1.2)
    names = ["\n".join(textwrap.wrap(lever.name, NAME_COLUMNS)) for lever in levers]
    axes.set_yticks(range(len(levers)), names, fontsize=9.5)
    axes.set(xlim=_limits(levers), ylim=(max(len(levers), 1) - 0.45, -0.55))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    return axes


def _words(change: Change, lever: Lever) -> str:
    """``+10 %: +5.8 %``: what was done, and what it did."""
    done = change.change.removeprefix(lever.name).strip() if change.change != lever.name else ""
    done = f"γ {done.partition(' instead')[0]}" if done.startswith("=") else done
    return f"{done}: {100 * change.effect:+.1f} %".removeprefix(": ").replace("-", "−")


def _limits(levers: Sequence[Lever]) -> tuple[float, float]:
    """Ends of the axis (%): all bars, and room for the words at their ends."""
    effects = [100 * change.effect for lever in levers for change in lever.changes]
    room = 75 * max((lever.reach for lever in levers), default=0.01)
    return min([*effects, 0.0]) - room, max([*effects, 0.0]) + room


def _break_even_in_sight(answer: Sensitivity) -> float | None:
    """The change (%) after which the speedup would be 1, where the axis reaches it."""
    if answer.speedup is None:
        return None
    place, (low, high) = 100 * (1 / answer.speedup.value - 1), _limits(shown_levers(answer))
    return place if low < place < high else None


def tornado_title(answer: Sensitivity) -> str:
    """The change that moves most, and to where."""
    levers = shown_levers(answer)
    if not levers:
        return f"Nothing that was tried moves the answer by {100 * LEAST_EFFECT:g} %"
    change = max(levers[0].changes, key=lambda each: abs(each.effect))
    if answer.speedup is None or change.speedup is None:
        return f"What moves R = {significant(answer.r.value)} most: {change.change}, to {significant(change.r)}"
    return f"What moves the decode speedup of {times(answer.speedup.value)} most: {change.change}, to {times(change.speedup)}"
