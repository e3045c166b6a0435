"""A figure as part of a page that follows the reader's light or dark setting.

The title and the caption are the page's own text, every colour is a style variable `--cRRGGBB` whose value on dark
pages is `colour.on_dark`, and ids carry the figure's name, so that several figures share a page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from simulator.plots.colour import on_dark
from simulator.plots.style import svg_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Narrower than a slide: on a page the same type is larger.
PAGE_INCHES = (9.0, 4.9)
_HEX = re.compile(r"#[0-9a-fA-F]{6}\b")


@dataclass(frozen=True)
class InlineFigure:
    """A figure as a page shows it. title: its finding; reading: how to read it; source: of what it
    shows; colours: those it uses, lower case."""

    title: str
    reading: str
    source: str
    svg: str
    colours: frozenset[str]


def inline(figure: Figure, name: str, alt: str) -> InlineFigure:
    """The figure for a page. Takes its title and caption off: draw or save the slide before."""
    title, label = figure.get_suptitle(), str(figure.get_label())
    figure.suptitle("")
    figure.supxlabel("")
    figure.set_size_inches(*PAGE_INCHES)
    figure.set_facecolor("none")
    colours: set[str] = set()

    def variable(found: re.Match[str]) -> str:
        colours.add(found[0].lower())
        return f"var(--c{found[0][1:].lower()})"

    drawn = svg_text(figure, name)
    drawn = drawn[drawn.index("<svg") :].strip()
    head, body = drawn.split(">", 1)
    box = re.search(r'viewBox="[^"]+"', head)
    assert box is not None
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)  # of joins: the page has it
    body = re.sub(r' id="', f' id="{name}-', body)
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    body = re.sub(r'xlink:href="#', f'href="#{name}-', body)
    body = _HEX.sub(variable, body)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box[0]} role="img" aria-label="{escape(alt)}"'
    reading, _, source = label.rpartition("\n")
    return InlineFigure(" ".join(title.split()), reading, source, f"{head}>{body}", frozenset(colours))


def colour_rules(figures: list[InlineFigure]) -> tuple[str, str]:
    """Style declarations of all colours used: (on light pages, on dark ones)."""
    colours = sorted(frozenset[str]().union(*(figure.colours for figure in figures)))
    light = " ".join(f"--c{colour[1:]}: {colour};" for colour in colours)
    return light, " ".join(f"--c{colour[1:]}: {on_dark(colour)};" for colour in colours)
