"""A table as lines of text that fit a width: text wraps between words, numbers and ``γ = 5`` never; what is too wide goes on
below.

Two blanks stand between columns. A column is of numbers where most of its cells begin with one; it is set to the right.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.printed_numbers import unbroken

GAP = 2
_NUMBER = re.compile(r"[-+(]?\d")


@dataclass(frozen=True)
class TextTable:
    """Lines of the heading, and of the rows below it."""

    heading: tuple[str, ...]
    body: tuple[str, ...]


def text_tables(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[TextTable]:
    """The table in one piece, or in several under one another that each begin with its first column.

    >>> for table in text_tables(["by", "gain"], [["eagle3 (own)", "1.90–2.12"], ["ngram", "–"]], 20):
    ...     print("\\n".join((*table.heading, *table.body)))
    by           gain
    eagle3  1.90–2.12
    (own)
    ngram           –
    """
    columns = [_Column.of([name, *(row[place] for row in rows)], place) for place, name in enumerate(header)]
    for piece in _pieces(columns, width):
        wrapped = [[_wrapped(text, most) for text in each.texts] for each, most in zip(piece, _widths(piece, width), strict=True)]
        heading, *body = (
            _lines(cells, [column.numbers for column in piece], [_longest(column) for column in wrapped], from_below=place == 0)
            for place, cells in enumerate(zip(*wrapped, strict=True))
        )
        yield TextTable(tuple(heading), tuple(line for row in body for line in row))


@dataclass(frozen=True)
class _Column:
    """The heading and the cells below it. least: characters below which a number, or a word, would be cut."""

    texts: tuple[str, ...]
    numbers: bool
    least: int
    natural: int

    @classmethod
    def of(cls, texts: Sequence[str], place: int) -> _Column:
        heading, *cells = texts = [unbroken(text) for text in texts]
        told = [cell for cell in cells if any(map(str.isalnum, cell))]
        numbers = place > 0 and sum(bool(_NUMBER.match(cell)) for cell in told) > len(told) / 2
        whole = [word for text in ([heading] if numbers else texts) for word in text.split(" ")] + (cells if numbers else [])
        return cls(tuple(texts), numbers, max(map(len, whole), default=0), max(map(len, texts)))


def _pieces(columns: list[_Column], width: int) -> Iterator[list[_Column]]:
    """Columns that stand side by side: all, or the first one again with as many of the others as there is room for."""
    first, *others = columns
    taken = [first]
    for column in others:
        if len(taken) > 1 and _needed([*taken, column]) > width:
            yield taken
            taken = [first]
        taken.append(column)
    yield taken


def _needed(columns: Sequence[_Column]) -> int:
    return sum(column.least + GAP for column in columns) - GAP


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """What each column gets: all it asks for, or at least what it cannot do without, text before headings of numbers."""
    widths = [column.least for column in columns]
    if sum(widths) + GAP * (len(columns) - 1) > width:  # one word is wider than the page
        return [min(column.least, max((width - GAP * (len(columns) - 1)) // len(columns), 1)) for column in columns]
    for numbers in (False, True):
        asking = [place for place, column in enumerate(columns) if column.numbers == numbers]
        spare = width - sum(widths) - GAP * (len(columns) - 1)
        wanted = sum(columns[place].natural - widths[place] for place in asking)
        for place in asking:
            more = columns[place].natural - widths[place]
            widths[place] += more if wanted <= spare else more * spare // wanted
    return widths


def _wrapped(text: str, width: int) -> list[str]:
    return [text] if len(text) <= width else textwrap.wrap(text, width, break_on_hyphens=False)


def _longest(column: Sequence[Sequence[str]]) -> int:
    return max(len(line) for cell in column for line in cell)


def _lines(cells: Sequence[Sequence[str]], numbers: Sequence[bool], widths: Sequence[int], from_below: bool) -> Iterator[str]:
    """One row, as many lines as its longest cell takes. from_below: shorter cells end with it instead of beginning with it."""
    height = max(map(len, cells))
    padded = []
    for cell in cells:
        blank = [""] * (height - len(cell))
        padded.append([*blank, *cell] if from_below else [*cell, *blank])
    for parts in zip(*padded, strict=True):
        placed = (
            part.rjust(width) if right else part.ljust(width) for part, right, width in zip(parts, numbers, widths, strict=True)
        )
        yield (" " * GAP).join(placed).replace("\u00a0", " ").rstrip()
