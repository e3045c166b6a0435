"""Figure of what τ buys beside what R costs: decode speedup over every acceptance, with the simulated run on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator import theory
from simulator.plots.colour import INK
from simulator.plots.style import LOSE_INK, LOSE_TINT, PLAIN, SPECULATION, WIN_TINT, caption, new_figure, note, styled
from simulator.plots.words import interval, is_known
from simulator.printed_numbers import significant, times
from simulator.simulation import Comparison, SimulationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]


def best_of(result: SimulationResult) -> Comparison:
    """The comparison that figures show. Raises ValueError for a scenario without speculation."""
    if result.best is None:
        raise ValueError("this figure needs a scenario with speculation")
    return result.best


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
