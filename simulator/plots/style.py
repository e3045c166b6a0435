"""How every figure looks: one set of sizes and colours, a title that says the finding, a caption that says the source."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from simulator.cost.deployment import Deployment
from simulator.plots.colour import INK, readable
from simulator.plots.words import devices_of, provenance, short_acceptance_source, short_name, source_counts, speculation_name
from simulator.scenario import Scenario
from simulator.whole_file import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")

# 1600 × 900 pixels: one slide.
SIZE_INCHES = (10.0, 5.625)
DOTS_PER_INCH = 160
CAPTION_COLUMNS = 165
TITLE_COLUMNS = 74

# Okabe and Ito's palette, told apart with any colour vision.
PLAIN = "#7a7a7a"
SPECULATION = "#0072B2"
ACCEPTANCE = "#CC3311"
WIN_TINT = "#DCEBF7"
LOSE_TINT = "#FBE9D0"
LOSE_INK = "#9A6700"
NOT_POSSIBLE = "#D9D9D9"

RC: Any = {
    "font.size": 11,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "axes.edgecolor": "#8c8c8c",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "hatch.color": "#bdbdbd",
    "hatch.linewidth": 0.6,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.w_pad": 0.06,
}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draws in the style above and leaves the caller's settings alone."""

    @functools.wraps(draw)
    def inside(*args: P.args, **kwargs: P.kwargs) -> Figure:
        from matplotlib import rc_context

        with rc_context(RC):
            return draw(*args, **kwargs)

    return inside


def new_figure(title: str, caption: str) -> Figure:
    """An empty slide with its finding on top and its source at the bottom; call within `styled`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained", facecolor="white")
    figure.set_label(caption)  # unwrapped, for pages that set it in their own type
    figure.suptitle(_wrapped(title), x=0.012, ha="left", fontsize=15, fontweight="bold")
    lines = [part for paragraph in caption.split("\n") for part in textwrap.wrap(paragraph, CAPTION_COLUMNS)]
    figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=7.6, color="#595959")
    return figure


def _wrapped(title: str) -> str:
    """In even lines; breaks already in the title stay, and none comes beside a sign."""
    for sign in "=≥":
        title = title.replace(f" {sign} ", f"\u00a0{sign}\u00a0")
    lines = title.split("\n")
    return "\n".join(line if len(line) <= TITLE_COLUMNS else textwrap.fill(line, len(line) // 2 + 8) for line in lines)


def caption(scenario: Scenario, reading: str = "") -> str:
    """How to read the figure, and where its numbers come from."""
    constants = provenance(scenario)
    counts = (source_counts(constants, "hardware"), source_counts(constants, "engine"))
    name = speculation_name(scenario) if scenario.deployment.speculative else ""
    source = (
        f"Scenario {scenario.name}, seed {scenario.file.seed}: {_deployed(scenario.deployment, name, counts, scenario.devices)}"
    )
    if cited := short_acceptance_source(scenario):
        source += f" Acceptance: {cited}" + ("" if cited.endswith("…") else ".")
    return f"{reading}\n{source}" if reading else source


def deployment_caption(deployment: Deployment, reading: str) -> str:
    """The same where only an operating point was asked about."""
    name = deployment.method_name if deployment.speculative else ""
    return f"{reading}\n{_deployed(deployment, name)}"


def _deployed(deployment: Deployment, drafting: str, counts: tuple[str, str] | None = None, devices: str = "") -> str:
    """Models, devices and engine, and how many constants of the latter two have which source."""
    models = short_name(deployment.target.name) + (f" with {drafting}" if drafting else "")
    hardware, engine = counts or ("", "")
    return (
        f"{models}; {devices or devices_of(deployment)}{f' (constants: {hardware})' if hardware else ''}; "
        f"{deployment.engine.name}{f' ({engine})' if engine else ''}."
    )


def save(figure: Figure, path: str | Path) -> None:
    """Writes a PNG; the file is there whole or not at all."""
    from matplotlib import rc_context

    with whole_file(Path(path)) as file, rc_context(RC):
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH)


def save_all(figures: Iterable[tuple[str, Figure]], folder: Path) -> tuple[str, ...]:
    """Writes each figure as NAME.png and NAME.svg into a folder that exists; returns the names."""
    names = []
    for name, figure in figures:
        save(figure, folder / f"{name}.png")
        (folder / f"{name}.svg").write_text(svg_text(figure, name), encoding="utf-8", newline="\n")
        names.append(name)
    return tuple(names)


def svg_text(figure: Figure, name: str) -> str:
    """The figure as an SVG document whose ids follow from `name`. Same figure, same bytes."""
    from matplotlib import rc_context

    text = StringIO()
    with rc_context({**RC, "svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()


def plain_numbers(axis: Axis, ticks: Sequence[float] | None = None) -> None:
    """Tick labels 1, 2, 4 … instead of powers; `ticks` fixes where they stand, else 1-2-5 per decade or round steps."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, MaxNLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    automatic: Locator = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]) if high < 5 * low else LogLocator(subs=(1.0, 2.0, 5.0))
    axis.set_major_locator(automatic if ticks is None else FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def ordered_colours(count: int) -> list[tuple[float, ...]]:
    """`count` colours from dark to light, in perceptual order; the lightest is still clear of a white ground."""
    from matplotlib import colormaps

    return [tuple(colormaps["viridis"](0.62 * index / max(count - 1, 1))) for index in range(count)]


def note(axes: Axes, x: float, y: float, text: str, offset: tuple[float, float] = (0, 0), **settings: Any) -> None:
    """Text at a point of the data, moved by `offset` (points of type), on a light ground that keeps lines from crossing it; a
    `color` that could not be read is darkened."""
    from matplotlib.colors import to_hex

    ground = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.8}
    settings["color"] = readable(to_hex(settings.get("color", INK)))
    axes.annotate(text, (x, y), offset, textcoords="offset points", **{"fontsize": 10, "bbox": ground, **settings})


def legend_above(axes: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """The legend of several panels above the first, outside of the layout: a long name must not narrow the panel below it."""
    axes.set_title(" ", fontsize=15)  # room for it
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize=10).set_in_layout(False)


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions moved apart, in their order, until neighbours are `gap` apart; groups stay centred where the bounds allow.

    >>> spread([0.0, 0.1, 2.0], 1.0, -5.0, 5.0)
    [-0.45, 0.55, 2.0]
    >>> spread([0.0, 0.1, 2.0], 1.0, 0.0, 5.0)
    [0.0, 1.0, 2.0]
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    groups: list[list[int]] = []
    for index in order:
        groups.append([index])
        while len(groups) > 1 and _start(groups[-1], positions, gap) - _end(groups[-2], positions, gap) < gap:
            last = groups.pop()
            groups[-1] += last
    placed = list(positions)
    for group in groups:
        for rank, index in enumerate(group):
            placed[index] = round(_start(group, positions, gap) + rank * gap, 9)
    for index in order:
        placed[index] = low = max(placed[index], low)
        low += gap
    for index in reversed(order):
        placed[index] = high = min(placed[index], high)
        high -= gap
    return placed


def _start(group: list[int], positions: Sequence[float], gap: float) -> float:
    return sum(positions[index] for index in group) / len(group) - gap * (len(group) - 1) / 2


def _end(group: list[int], positions: Sequence[float], gap: float) -> float:
    return _start(group, positions, gap) + gap * (len(group) - 1)
