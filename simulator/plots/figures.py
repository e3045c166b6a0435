"""The figures of each answer, by name, and writing them into a folder. Importing this module does not import matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.plots.best_gamma import best_gamma_map
from simulator.plots.break_even import break_even_figure, chains
from simulator.plots.break_even_length import break_even_length_figure
from simulator.plots.inline import InlineFigure, inline
from simulator.plots.method_map import method_map_figure
from simulator.plots.rates import load_curve_figure
from simulator.plots.rounds import explained_round_figure, round_figure
from simulator.plots.speedup import speedup_figure
from simulator.plots.style import save_all
from simulator.plots.tornado import tornado_figure
from simulator.plots.traffic import latency_figure, load_figure
from simulator.questions.break_even import BreakEven
from simulator.questions.explanation import Explanation
from simulator.questions.load_curve import LoadCurve
from simulator.questions.method_map import MethodMap
from simulator.questions.sensitivity import Sensitivity
from simulator.simulation import SimulationResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run_figures(
    result: SimulationResult, moved: Sensitivity | None = None, curve: LoadCurve | None = None
) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of all that a run has to show. moved: what moves its verdict; curve: latency at other rates."""
    if result.best is not None:
        yield "speedup", speedup_figure(result)
        yield "round", round_figure(result)
    if moved is not None:
        yield "tornado", tornado_figure(moved)
    if curve is not None:
        yield "rates", load_curve_figure(curve)
    yield "latency", latency_figure(result)
    yield "load", load_figure(result)


def break_even_figures(answer: BreakEven) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of the break-even question; the map of the best γ needs an acceptance."""
    if chains(answer):
        yield "break_even", break_even_figure(answer)
    if any(point.tree is not None for point in answer.points):
        yield "break_even_length", break_even_length_figure(answer)
    if answer.best:
        yield "best_gamma", best_gamma_map(answer)


def method_map_figures(answer: MethodMap | None) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of the best method by batch and context, where methods are compared."""
    if answer is not None:
        yield "best_method", method_map_figure(answer)


def explanation_figures(answer: Explanation) -> Iterator[tuple[str, Figure]]:
    """(name, figure) of an explanation."""
    yield "round", explained_round_figure(answer)
    yield "tornado", tornado_figure(answer.sensitivity)


def drawn_into(folder: Path, figures: Iterable[tuple[str, Figure]], alts: Mapping[str, str]) -> dict[str, InlineFigure]:
    """Writes each figure into a folder that exists as NAME.png and NAME.svg; returns each as a part of a page. alts: by name."""
    drawn = {}
    for name, figure in figures:
        save_all([(name, figure)], folder)
        drawn[name] = inline(figure, name, alts[name])
    return drawn
