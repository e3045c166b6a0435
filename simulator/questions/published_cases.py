"""Published runs of speculation: what was run, where it was reported, and the ratio of throughputs that was measured.

`published_cases/cases.csv` holds one run a row: the columns of `predict --table`, a family (runs of one source, engine and
laboratory, which share their errors), a citation and `measured_speedup`. Numbers are as posted, not measured here.
`published_cases/unseen_cases.csv` holds, in the same columns and with a note each, runs that were written down before anybody had
seen a prediction of them: no constant is fitted on them, and how wide intervals are only on what was first predicted for them.
`unseen_cases_2.csv` and those that follow it hold later sets of such runs.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simulator import resources
from simulator.prediction import OperatingPoint, table_rows
from simulator.spec import Document, check
from simulator.unseen_sets import FOLDER, UnseenSet

BUILT_ON, UNSEEN = "cases.csv", UnseenSet(1).table


@dataclass(frozen=True)
class PublishedCase:
    """One run of a shipped table. family: what it shares its errors with."""

    family: str
    citation: str
    point: OperatingPoint
    measured_speedup: float
    table: str = BUILT_ON

    @property
    def measured_r(self) -> float:
        """The round cost ratio as the source measured it, prefill included: τ / speedup."""
        assert self.point.mean_acceptance_length is not None
        return self.point.mean_acceptance_length / self.measured_speedup

    @property
    def document(self) -> Document:
        return Document(f"{FOLDER}/{self.table}", self.point.model_dump(exclude_none=True))


@cache
def published_cases(table: str = BUILT_ON) -> tuple[PublishedCase, ...]:
    """All cases of a shipped table, in its order."""
    path = table_path(table)
    with path.open(encoding="utf-8", newline="") as file:
        told = list(csv.DictReader(file))
    points = [check(OperatingPoint, row.document) for row in table_rows(str(path))]
    return tuple(
        PublishedCase(row["family"], row["citation"], point, float(row["measured_speedup"]), table)
        for row, point in zip(told, points, strict=True)
    )


def table_path(table: str) -> Path:
    """A file beside the shipped cases."""
    return resources.folder(FOLDER) / table


def sources(cases: Iterable[PublishedCase], shown: int = 2) -> str:
    """Who published the cases: repositories and threads without the file in them, or what a page is about.

    >>> cited = [PublishedCase("D", text, OperatingPoint.model_construct(), 1.0) for text in ("a/b docs/c.md", "a/b#3, comment")]
    >>> sources(cited)
    'a/b, a/b#3'
    """
    found = list(dict.fromkeys(_source(case.citation) for case in cases))
    more = f" and {len(found) - shown} more" if len(found) > shown else ""
    return ", ".join(found[:shown]) + more


def _source(citation: str) -> str:
    if citation.startswith("public index file"):
        return citation.partition(": ")[2]
    words = re.sub(r" (#\d+)", r"\1", citation.removeprefix("https://")).split(maxsplit=1)
    return words[0].rstrip(",")


def by(cases: Iterable[PublishedCase], key: Callable[[PublishedCase], str]) -> dict[str, list[int]]:
    """Places of the cases of each group, in order of first appearance."""
    groups: dict[str, list[int]] = {}
    for place, case in enumerate(cases):
        groups.setdefault(key(case), []).append(place)
    return groups
