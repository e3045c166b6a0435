"""A page as one HTML file: offline, without scripts or requests, light and dark, for screens and paper."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from simulator.cost.spread import Estimate
from simulator.plots.inline import InlineFigure, colour_rules
from simulator.plots.words import interval, is_known
from simulator.printed_numbers import times, unbroken
from simulator.reports.page import Figure, Page, Section

if TYPE_CHECKING:
    from jinja2 import Environment

# Width of the bar of an interval, and the room left of and right of what it must show, as a factor.
BAR_WIDTH, BAR_ROOM = 400.0, 1.2


def html(page: Page, figures: Mapping[str, InlineFigure]) -> str:
    """The page with its figures inside; those that were not drawn are left out. Everything but the figures is escaped."""
    light, dark = colour_rules(list(figures.values()))
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            page=page,
            sections=[section for section in page.sections if _shown(section, figures)],
            figures=figures,
            bar=None if page.verdict.interval is None else _bar(page.verdict.interval),
            style=style(),
            light=light,
            dark=dark,
        )
    )


@cache
def style() -> str:
    """The style sheet of every page."""
    return (files("simulator.reports") / "templates" / "page.css").read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    found = Environment(
        loader=PackageLoader("simulator.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["kind_of"] = lambda block: type(block).__name__
    found.filters |= {
        "rich": _rich,
        "breakable": _breakable,
        "short_source": lambda text: text.partition(": ")[0],
        "slug": _slug,
        "whole_words": lambda text: text.replace("-", "\u2011"),  # a title in large type does not break at hyphens
        "first_upper": lambda text: text[:1].upper() + text[1:],
    }
    return found


def _rich(text: str) -> str:
    """Text with what stands between backquotes as code, escaped; ``γ = 5`` and ``80 %`` stay in one line."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(unbroken(text)))))


def _breakable(text: object) -> str:
    """Text that is escaped already, which may break after the underscores of a long name."""
    from markupsafe import Markup

    return Markup(str(text).replace("_", "_<wbr>"))  # Markup itself would escape the tag


def _slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.casefold()).strip("-")


def _shown(section: Section, figures: Mapping[str, InlineFigure]) -> bool:
    return any(not isinstance(block, Figure) or block.name in figures for block in section.blocks)


@dataclass(frozen=True, slots=True)
class _Bar:
    """Places on the drawn line, and its words."""

    low: float
    width: float
    value: float
    one: float
    text: str
    alt: str


def _bar(gain: Estimate) -> _Bar | None:
    """The interval of a gain on a logarithmic line that also shows 1, no change; None where requests were too few for one."""
    if not is_known(gain):
        return None
    left, right = math.log(min(gain.low, 1.0) / BAR_ROOM), math.log(max(gain.high, 1.0) * BAR_ROOM)

    def place(value: float) -> float:
        return round(BAR_WIDTH * (math.log(value) - left) / (right - left), 1)

    text = f"80 % interval {interval(gain)}; dashed: 1×, no change"
    low = place(gain.low)
    return _Bar(low, max(place(gain.high) - low, 2.0), place(gain.value), place(1.0), text, f"{times(gain.value)}, {text}")
