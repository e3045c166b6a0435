"""Figures of one round: what τ buys beside what R costs, and the milliseconds of R term by term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator import theory
from simulator.cost.round import RoundCost
from simulator.draft_tree import Tree
from simulator.plots.colour import INK, ink_on
from simulator.plots.style import (
    LOSE_INK,
    LOSE_TINT,
    PLAIN,
    SPECULATION,
    WIN_TINT,
    caption,
    deployment_caption,
    new_figure,
    note,
    styled,
)
from simulator.plots.words import interval, is_known
from simulator.printed_numbers import milliseconds, significant, times
from simulator.questions.explanation import Explanation
from simulator.simulation import Comparison, SimulationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
# Terms below this part of a plain step are drawn together as "other".
SMALL_TERM = 0.02


def best_of(result: SimulationResult) -> Comparison:
    """The comparison that figures show. Raises ValueError for a scenario without speculation."""
    if result.best is None:
        raise ValueError("this figure needs a scenario with speculation")
    return result.best


# ----------------------------------------------------------------------------------------------------- speedup against τ


@dataclass(frozen=True)
class SpeedupTable:
    """Decode speedup against τ at the run's batch and context: ours with its 80 % interval, and the textbook formula's."""

    mean_acceptance_length: Floats
    speedup: Floats
    low: Floats
    high: Floats
    textbook: Floats


def speedup_table(comparison: Comparison, points: int = 50) -> SpeedupTable:
    """τ from 1 (nothing accepted) to γ+1 (everything)."""
    gamma, r = comparison.variant.gamma, comparison.r
    drafted = comparison.round.num_speculative_tokens
    tau = np.linspace(1, gamma + 1, points)
    textbook = np.array([theory.textbook_speedup(float(t), drafted, comparison.round.cost_coefficient) for t in tau])
    return SpeedupTable(tau, tau / r.value, tau / r.high, tau / r.low, textbook)


@styled
def speedup_figure(result: SimulationResult) -> Figure:
    """Speedup against τ, with the break-even R and the simulated run marked."""
    comparison = best_of(result)
    reading = (
        f"Line: decode speedup τ/R at batch {comparison.batch} and context {comparison.context:,.0f} tokens, the means of the "
        "run without speculation; band: 80 % interval. Diamond: the whole simulation, where faster rounds also change the batch."
    )
    figure = new_figure(speedup_title(comparison), caption(result.scenario, reading))
    runs = [other for other in result.comparisons if other.variant.drafting == comparison.variant.drafting]
    draw_speedup(figure.subplots(), comparison, runs)
    return figure


def draw_speedup(axes: Axes, comparison: Comparison, runs: Sequence[Comparison] = ()) -> Axes:
    """τ/R with its band, the textbook line, win and lose regions, and the simulated runs (`comparison` where left out)."""
    table, gamma, r = speedup_table(comparison), comparison.variant.gamma, comparison.r.value
    runs = runs or (comparison,)
    gains = [run.tpot.high if is_known(run.tpot) else run.tpot.value for run in runs if run.tpot is not None]
    top = max(1.12 * float(table.textbook[-1]), 1.12 * float(table.speedup[-1]), *(1.2 * gain for gain in gains))
    left, right = 1 - 0.03 * gamma, 1 + 1.03 * gamma
    edge = min(max(r, left), right)
    axes.axvspan(left, edge, color=LOSE_TINT, lw=0)
    axes.axvspan(edge, right, color=WIN_TINT, lw=0)
    axes.axhline(1, color=INK, lw=1)
    axes.fill_between(table.mean_acceptance_length, table.low, table.high, color=SPECULATION, alpha=0.22, lw=0)
    axes.plot(table.mean_acceptance_length, table.speedup, color=SPECULATION, lw=2.6, label="τ/R, this model")
    axes.plot(
        table.mean_acceptance_length, table.textbook, color=PLAIN, ls=(0, (5, 3)), label="τ/(γc + 1), textbook: verification free"
    )
    for run in runs:
        _mark_run(axes, run, in_full=run is comparison)
    axes.set(xlim=(left, right), ylim=(0, top))
    axes.set_xlabel("mean acceptance length τ (tokens per round, bonus included)")
    axes.set_ylabel("speedup over no speculation (×)")
    axes.legend(loc="upper left")
    _mark_break_even(axes, comparison, [run.mean_acceptance_length for run in runs])
    return axes


def _mark_break_even(axes: Axes, comparison: Comparison, taus: Sequence[float]) -> None:
    """R on the axis of τ, or that no τ wins."""
    left, right = axes.get_xlim()
    r, rate = comparison.r.value, comparison.break_even_acceptance_rate
    if r > right:
        note(axes, left, 0, "no τ wins", (8, 6), color=LOSE_INK, fontsize=12)
        return
    axes.plot([r, r], [0, 1], color=INK, ls=":", lw=1.8)
    text = f"break-even\nτ = R = {significant(r)}" + ("" if rate is None else f"\nα* = {rate:.2f}")
    room = 0.13 * (right - left)
    is_left = r - left > room and not any(r - room < tau < r for tau in taus)
    note(axes, r, 0, text, (-6 if is_left else 6, 5), ha="right" if is_left else "left", va="bottom")
    note(axes, right, 0, "speculation wins", (-6, 5), ha="right", va="bottom", color=SPECULATION, fontsize=12)


def _mark_run(axes: Axes, comparison: Comparison, in_full: bool) -> None:
    """The simulated τ on the line, and what the simulation gained with it; the higher mark has its words above."""
    tau, r, gain = comparison.mean_acceptance_length, comparison.r.value, comparison.tpot
    gamma, decode = comparison.variant.gamma, comparison.mean_acceptance_length / comparison.r.value
    axes.plot([tau, tau], [0, decode], color=SPECULATION, lw=1, ls=":")
    axes.plot(tau, decode, "o", color=SPECULATION, ms=8, zorder=4)
    low = high = decode
    if gain is not None:
        low, high = (gain.low, gain.high) if is_known(gain) else (gain.value, gain.value)
        axes.errorbar(tau, gain.value, [[gain.value - low], [high - gain.value]], color=INK, capsize=4, lw=1.6)
        axes.plot(tau, gain.value, "D", color=INK, ms=7, zorder=5)
    if not in_full:
        text = f"τ = {significant(tau)}" + ("" if gain is None else f"\ngain {times(gain.value)}")
        side = "right" if tau < r else "left"
        note(axes, tau, decode if gain is None else gain.value, text, (-10 if tau < r else 10, 0), ha=side, va="center")
        return
    is_lower = gain is None or gain.value >= decode
    to_left = (tau < r and tau > 1 + 0.2 * gamma) or tau > 1 + 0.8 * gamma
    place = {"ha": "right" if to_left else "left", "va": "top" if is_lower else "bottom"}
    text = f"τ = {significant(tau)} as simulated\nτ/R = {times(decode)}"
    note(axes, tau, decode, text, (-10 if to_left else 10, -12 if is_lower else 12), color=SPECULATION, **place)
    if gain is not None:
        side = "right" if tau > 1 + 0.7 * gamma else "left" if tau < 1 + 0.15 * gamma else "center"
        text = f"time per output token as simulated:\ngain {times(gain.value)} ({interval(gain)})"
        note(axes, tau, high if is_lower else low, text, (0, 9 if is_lower else -9), ha=side, va="bottom" if is_lower else "top")


def speedup_title(comparison: Comparison) -> str:
    """τ against R, in words."""
    tau, r, gamma = comparison.mean_acceptance_length, comparison.r.value, comparison.variant.gamma
    if r > gamma + 1:
        return f"No acceptance repays a round: it costs R = {significant(r)} plain steps and yields at most {gamma + 1} tokens"
    side, gain = "above" if tau > r else "below", comparison.tpot
    text = f"Drafts yield τ = {significant(tau)} tokens per round, {side} the break-even of R = {significant(r)}"
    if gain is None or (gain.value > 1) == (tau > r):
        return text
    return text + f",\nyet under this load time per output token is {_times_shorter(gain.value)}"


def _times_shorter(gain: float) -> str:
    return f"{times(gain)} shorter" if gain > 1 else f"{times(1 / gain)} longer"


# ------------------------------------------------------------------------------------------------------ one round, by term


@dataclass(frozen=True)
class Bar:
    """One stacked bar: (term, seconds), in the order of drawing."""

    label: str
    terms: tuple[tuple[str, float], ...]

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.terms)


def round_table(cost: RoundCost, tau: float | None) -> tuple[Bar, ...]:
    """A plain step, a round, and where τ is known the round per emitted token; terms below `SMALL_TERM` of a plain step become
    "other"."""
    small_s = SMALL_TERM * cost.plain_step_s
    large = [term.name for term in (*cost.verify, *cost.draft) if term.seconds >= small_s]
    plain = [(term.name, term.seconds) for term in cost.plain]
    speculative = [(term.name, term.seconds) for term in (*cost.verify, *cost.draft)]
    one_round = _grouped(speculative, large)
    bars = (Bar("plain step\n= 1 token", _grouped(plain, large)), Bar("one round", one_round))
    if tau is None:
        return bars
    return (*bars, Bar("round ÷ τ\n= 1 token", tuple((name, seconds / tau) for name, seconds in one_round)))


def _grouped(terms: Sequence[tuple[str, float]], large: Sequence[str]) -> tuple[tuple[str, float], ...]:
    other_s = sum(seconds for name, seconds in terms if name not in large)
    return (*((name, seconds) for name, seconds in terms if name in large), ("other", other_s))


@styled
def round_figure(result: SimulationResult) -> Figure:
    """One plain step beside one round, term by term."""
    comparison = best_of(result)
    where = f"At batch {comparison.batch} and context {comparison.context:,.0f} tokens, the means of the run without speculation."
    figure = new_figure(round_title(comparison), caption(result.scenario, f"{where} {_colours_mean(comparison.shape)}"))
    draw_round(figure.subplots(), round_table(comparison.round, comparison.mean_acceptance_length))
    return figure


@styled
def explained_round_figure(answer: Explanation) -> Figure:
    """The same at the operating point of an explanation."""
    tau, r = answer.mean_acceptance_length, significant(answer.r.value)
    yields = "" if tau is None else f" and yields {significant(tau)} tokens"
    where = f"At batch {answer.batch} and context {answer.context_tokens:,.0f} tokens."
    title = f"One round of {answer.shape.name} costs {r} plain steps{yields}"
    figure = new_figure(title, deployment_caption(answer.deployment, f"{where} {_colours_mean(answer.shape)}"))
    draw_round(figure.subplots(), round_table(answer.cost, tau))
    return figure


def _colours_mean(shape: Tree) -> str:
    rows = f"γ + 1 = {shape.nodes}" if shape.is_chain else f"the {shape.nodes} nodes of {shape.name}"
    return f"Blue and grey: the target's pass (one row per sequence, or {rows}); orange: drafting."


def draw_round(axes: Axes, bars: Sequence[Bar]) -> Axes:
    """Stacked bars in milliseconds, labelled where they are wide enough; the others in the legend."""
    names = list(dict.fromkeys(name for bar in bars for name, _ in bar.terms))
    colours = dict(zip(names, _term_colours(names), strict=True))
    widest_s = max(bar.seconds for bar in bars)
    for row, bar in enumerate(bars):
        left = 0.0
        for name, seconds in bar.terms:
            axes.barh(
                row,
                1e3 * seconds,
                left=1e3 * left,
                height=0.62,
                color=colours[name],
                edgecolor="white",
                lw=1,
                label=name if row == 1 else None,
            )
            label = _words(name).replace(": ", ":\n") if name.startswith("draft") else _words(name).replace(" ", "\n")
            if seconds > (0.012 + 0.0082 * max(map(len, label.split("\n")))) * widest_s:
                ink = ink_on(colours[name])
                text = f"{label}\n{significant(1e3 * seconds)}"
                axes.text(1e3 * (left + seconds / 2), row, text, ha="center", va="center", color=ink, fontsize=9.5)
            left += seconds
        axes.text(1e3 * left + 8 * widest_s, row, milliseconds(bar.seconds), va="center", fontweight="bold", fontsize=12)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=11)
    axes.set(xlim=(0, 1e3 * widest_s * 1.13), ylim=(len(bars) - 0.5, -0.5))
    axes.set_xlabel("time (ms)")
    axes.grid(visible=False, axis="y")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles, [_words(label) for label in labels], loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5, fontsize=9)
    return axes


def _words(term: str) -> str:
    named = {"lm_head": "LM head", "draft_first_pass": "draft: first pass", "draft_later_passes": "draft: later passes"}
    return named.get(term, term.replace("draft_", "draft: ").replace("_", " "))


def _term_colours(names: Sequence[str]) -> list[str]:
    """Blues for the device's work on the target, oranges for drafting, greys for host and the rest."""
    blues, oranges, greys = (iter(shades) for shades in (_BLUES, _ORANGES, _GREYS))
    chosen = []
    for name in names:
        shades = (
            oranges
            if name.startswith("draft")
            else greys
            if name in ("host", "broadcast", "round_overhead", "launch_wait", "other")
            else blues
        )
        chosen.append(next(shades))
    return chosen


_BLUES = ("#084C8D", "#2873AC", "#82BADC", "#A6CDE6", "#CFE1F2", "#E3EEF8")
_ORANGES = ("#8A4500", "#B35C00", "#E8A20C", "#F5C767", "#FBE3B0")
_GREYS = ("#525252", "#727272", "#B0B0B0", "#C8C8C8", "#DADADA")


def round_title(comparison: Comparison) -> str:
    """R and τ in words."""
    r, tau = comparison.r.value, comparison.mean_acceptance_length
    return f"One round of {comparison.shape.name} costs {significant(r)} plain steps and yields {significant(tau)} tokens"
