"""Predictions of runs that nobody had seen while the model was built: those made first, which stay for good, and today's.

The first were made once, by the version named here, right after `published_cases/unseen_cases.csv` had been written down. Later
versions may answer better; no constant or term may be chosen by these runs, or they are unseen no longer.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence

from simulator.prediction import Prediction, predict_table
from simulator.questions.accuracy import Scored
from simulator.questions.published_cases import UNSEEN, published_cases, table_path

FIRST = "unseen_first.csv"
FIRST_VERSION = "05c4260"


def first_scored() -> list[Scored]:
    """The unseen runs beside what was first predicted for them."""
    with table_path(FIRST).open(encoding="utf-8", newline="") as file:
        return _scored([_as_kept(row) for row in csv.DictReader(file)])


def scored_now() -> list[Scored]:
    """The unseen runs beside what this version predicts; runs it does not price are among them."""
    return _scored(predict_table(table_path(UNSEEN)))


def priced(scored: Sequence[Scored]) -> list[Scored]:
    """Those that were not refused."""
    return [each for each in scored if each.prediction.status == "ok"]


def _scored(predictions: Sequence[Prediction]) -> list[Scored]:
    return [Scored(case, prediction) for case, prediction in zip(published_cases(UNSEEN), predictions, strict=True)]


def _as_kept(row: dict[str, str]) -> Prediction:
    if row["status"] != "ok":
        return Prediction(row["id"], "unsupported", row["reason"])
    speedup, low, high = (float(row[name]) for name in ("speedup", "speedup_low", "speedup_high"))
    return Prediction(row["id"], "ok", speedup=speedup, speedup_low=low, speedup_high=high)
