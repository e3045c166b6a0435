"""What a report says, in order, whatever it is written as: a verdict, then sections of text, tables, figures and settings.

Text may hold `code` between backquotes; nothing else is markup. `markdown` and `html` write a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.cost.spread import Estimate

# A cell longer than this is read as text.
SENTENCE = 32
Tone = Literal["good", "bad", "unsure", "neutral"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One number beside the verdict, with what it is and a remark."""

    value: str
    name: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The card on top. outcome: in two or three words; number: the answer's size and what it counts; interval: drawn as a bar
    around 1 (None: no ratio); sentences: the answer first; advice: what to do."""

    outcome: str
    tone: Tone
    sentences: tuple[str, ...]
    number: str = ""
    number_is: str = ""
    interval: Estimate | None = None
    facts: tuple[Fact, ...] = ()
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Cells as text; first column: what the row is."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    @classmethod
    def of(cls, header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Table:
        return cls(tuple(header), tuple(map(tuple, rows)), caption)

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers, and stand to the right."""
        columns = zip(self.header, *self.rows, strict=True)
        return tuple(bool(self.rows) and all(_is_number(cell) for cell in column[1:]) for column in columns)

    @property
    def prose(self) -> tuple[bool, ...]:
        """Which columns hold sentences, and need room."""
        return tuple(any(len(cell) > SENTENCE for cell in column) for column in zip(self.header, *self.rows, strict=True))


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure by its name; alt: what a reader who cannot see it is told. Left out where the figure was not drawn."""

    name: str
    alt: str


@dataclass(frozen=True, slots=True)
class Code:
    """Settings to paste. about: whose they are; language: of the block (yaml, sh, json)."""

    text: str
    about: str = ""
    language: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    """Inside a section, one level below its title."""

    text: str


Block = Text | Bullets | Table | Figure | Code | Heading


@dataclass(frozen=True, slots=True)
class Section:
    """A title and what stands below it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """One report. kind: which question it answers; title: scenario and outcome; asked: what was computed, in a sentence or two;
    ending: seed and versions."""

    kind: str
    title: str
    asked: str
    verdict: Verdict
    sections: tuple[Section, ...]
    ending: str = ""


def _is_number(cell: str) -> bool:
    return cell[:1] in set("0123456789–(+-−") or cell in ("off", "win", "lose", "close", "")
