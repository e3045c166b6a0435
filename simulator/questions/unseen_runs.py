"""Predictions of runs that nobody had seen while the model was built: those made first, which stay for good, and today's.

The first were made once, by the version named here, right after `published_cases/unseen_cases.csv` had been written down: out of
sample. Later versions were improved with these runs in sight, by terms with sources of their own: their scores are not. Later
sets, from other sources, are predicted once each, by a version built with the help of those before (`--unseen --freeze`).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from simulator.prediction import Prediction, predict_table
from simulator.questions.accuracy import DEAD_BAND, Scored, log_ratio
from simulator.questions.published_cases import UNSEEN, PublishedCase, published_cases, table_path
from simulator.unseen_sets import UnseenSet, unseen_sets

FIRST = UnseenSet(1).first
FIRST_VERSION = "05c4260"
# What two runs may differ in beside their ids and what was measured.
CHOICES = {"γ": "num_speculative_tokens", "batch": "batch", "engine": "engine"}


@dataclass(frozen=True)
class Choices:
    """Runs of one laboratory that differ in one thing. pairs: those whose speedups are 5 % apart; right: share of them in order;
    loss: mean share of the best speedup that is lost by taking the one predicted to be best; worst: largest such share."""

    differ_in: str
    pairs: int
    right: float
    loss: float
    worst: float


class LaterSet(UnseenSet):
    """A set of unseen runs after the first."""

    @property
    def cases(self) -> tuple[PublishedCase, ...]:
        return published_cases(self.table)

    def scored(self) -> tuple[str, list[Scored]] | None:
        """The version that predicted it, and its runs beside what it said; None while it waits."""
        if self.waits:
            return None
        rows = _rows(self.first)
        return rows[0]["version"], _scored([_as_kept(row) for row in rows], self.table)

    def predicted(self) -> list[Scored]:
        """Its runs predicted by this version: for the one score that is kept, and beside it; not for looking at before."""
        return _scored(predict_table(table_path(self.table)), self.table)


def later_sets() -> list[LaterSet]:
    """All of them, the second first."""
    return [LaterSet(each.number) for each in unseen_sets() if each.number > 1]


def first_scored() -> list[Scored]:
    """The unseen runs beside what was first predicted for them."""
    return _scored([_as_kept(row) for row in _rows(FIRST)])


def scored_now() -> list[Scored]:
    """The unseen runs beside what this version predicts; runs it does not price are among them."""
    return _scored(predict_table(table_path(UNSEEN)))


def priced(scored: Sequence[Scored]) -> list[Scored]:
    """Those that were not refused."""
    return [each for each in scored if each.prediction.status == "ok"]


def choices(scored: Sequence[Scored], differ_in: str) -> Choices:
    """How well predictions choose between runs that differ in one of `CHOICES`."""
    groups: dict[str, list[Scored]] = {}
    for each in priced(scored):
        point = each.case.point.model_copy(update={"id": "", "mean_acceptance_length": None, CHOICES[differ_in]: None})
        groups.setdefault(each.case.family + point.model_dump_json(), []).append(each)
    several = [group for group in groups.values() if len(group) > 1]
    pairs = [
        (log_ratio(one.case.measured_speedup, other.case.measured_speedup), _predicted(one) > _predicted(other))
        for group in several
        for one, other in combinations(group, 2)
    ]
    apart = [(measured > 0) == predicted for measured, predicted in pairs if abs(measured) > math.log(DEAD_BAND[1])]
    losses = [_measured_loss(group) for group in several]
    return Choices(differ_in, len(apart), float(np.mean(apart)), float(np.mean(losses)), max(losses))


def _measured_loss(group: Sequence[Scored]) -> float:
    return 1 - max(group, key=_predicted).case.measured_speedup / max(each.case.measured_speedup for each in group)


def _predicted(each: Scored) -> float:
    return each.prediction.speedup or 0.0


def _rows(table: str) -> list[dict[str, str]]:
    with table_path(table).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _scored(predictions: Sequence[Prediction], table: str = UNSEEN) -> list[Scored]:
    return [Scored(case, prediction) for case, prediction in zip(published_cases(table), predictions, strict=True)]


def _as_kept(row: dict[str, str]) -> Prediction:
    if row["status"] != "ok":
        return Prediction(row["id"], "unsupported", row["reason"])
    speedup, low, high = (float(row[name]) for name in ("speedup", "speedup_low", "speedup_high"))
    return Prediction(row["id"], "ok", speedup=speedup, speedup_low=low, speedup_high=high)
