"""Figure of one round: the milliseconds of R term by term, beside a plain step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from simulator.cost.round import RoundCost
from simulator.draft_tree import Tree
from simulator.plots.colour import ink_on
from simulator.plots.speedup import best_of
from simulator.plots.style import caption, deployment_caption, new_figure, styled
from simulator.printed_numbers import milliseconds, significant
from simulator.questions.explanation import Explanation
from simulator.simulation import Comparison, SimulationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Terms below this part of a plain step are drawn together as `OTHER`.
SMALL_TERM = 0.02
OTHER = "other"


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
    `OTHER`."""
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
    return (*((name, seconds) for name, seconds in terms if name in large), (OTHER, other_s))


@styled
def round_figure(result: SimulationResult) -> Figure:
    """One plain step beside one round, term by term."""
    comparison = best_of(result)
    where = f"At batch {comparison.batch} and context {comparison.context:,.0f} tokens, the means of the run without speculation."
    figure = new_figure(round_title(comparison), caption(result.scenario, f"{where} {_colours_mean(comparison.shape)}"))
    bars = round_table(comparison.round, comparison.mean_acceptance_length)
    draw_round(figure.subplots(), bars, host_terms(comparison.round))
    return figure


@styled
def explained_round_figure(answer: Explanation) -> Figure:
    """The same at the operating point of an explanation."""
    tau, r = answer.mean_acceptance_length, significant(answer.r.value)
    yields = "" if tau is None else f" and yields {significant(tau)} tokens"
    where = f"At batch {answer.batch} and context {answer.context_tokens:,.0f} tokens."
    title = f"One round of {answer.shape.name} costs {r} plain steps{yields}"
    figure = new_figure(title, deployment_caption(answer.deployment, f"{where} {_colours_mean(answer.shape)}"))
    draw_round(figure.subplots(), round_table(answer.cost, tau), host_terms(answer.cost))
    return figure


def _colours_mean(shape: Tree) -> str:
    rows = f"γ + 1 = {shape.nodes}" if shape.is_chain else f"the {shape.nodes} nodes of {shape.name}"
    return f"Blue: the target's pass (one row per sequence, or {rows}); orange: drafting; grey: the host, and what is small."


def draw_round(axes: Axes, bars: Sequence[Bar], host: Collection[str] = ()) -> Axes:
    """Stacked bars in milliseconds, labelled where they are wide enough; the others in the legend. host: names of its terms."""
    names = list(dict.fromkeys(name for bar in bars for name, _ in bar.terms))
    colours = term_colours(names, host)
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


def host_terms(cost: RoundCost) -> frozenset[str]:
    """Names of the terms in which the device waits for the host."""
    return frozenset(term.name for term in (*cost.plain, *cost.verify, *cost.draft) if term.bound == "host")


def term_colours(names: Sequence[str], host: Collection[str] = ()) -> dict[str, str]:
    """Blues for the device's work on the target, oranges for drafting, greys for host and the rest; by name, no two alike."""

    def shades_of(name: str) -> tuple[str, ...]:
        return _ORANGES if name.startswith("draft") else _GREYS if name in host or name == OTHER else _BLUES

    found: dict[str, str] = {}
    for shades in (_BLUES, _ORANGES, _GREYS):
        own = [name for name in names if shades_of(name) is shades]
        found.update(zip(own, _as_many(shades, len(own)), strict=True))
    return found


def _as_many(shades: Sequence[str], count: int) -> Sequence[str]:
    """The first of the shades, or where they do not suffice as many between them."""
    if count <= len(shades):
        return shades[:count]
    rgb = np.array([[int(shade[at : at + 2], 16) for at in (1, 3, 5)] for shade in shades])
    between = np.linspace(0, len(shades) - 1, count)
    mixed = np.array([np.interp(between, np.arange(len(shades)), channel) for channel in rgb.T]).T
    return ["#" + "".join(f"{round(part):02X}" for part in colour) for colour in mixed]


_BLUES = ("#084C8D", "#2873AC", "#82BADC", "#A6CDE6", "#CFE1F2", "#E3EEF8")
_ORANGES = ("#8A4500", "#B35C00", "#E8A20C", "#F5C767", "#FBE3B0")
_GREYS = ("#525252", "#727272", "#B0B0B0", "#C8C8C8", "#DADADA")


def round_title(comparison: Comparison) -> str:
    """R and τ in words."""
    r, tau = comparison.r.value, comparison.mean_acceptance_length
    return f"One round of {comparison.shape.name} costs {significant(r)} plain steps and yields {significant(tau)} tokens"
