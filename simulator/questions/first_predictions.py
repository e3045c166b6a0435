"""What was predicted first for runs never seen, which is out of sample for good: by set, each run beside its speedup."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from simulator.questions.published_cases import PublishedCase, published_cases, table_path
from simulator.unseen_sets import unseen_sets


@dataclass(frozen=True)
class FirstPrediction:
    """One run of a set, and the speedup that was predicted for it once."""

    set_number: int
    case: PublishedCase
    speedup: float


def first_predictions() -> list[FirstPrediction]:
    """Of every set that was predicted, without the runs that were refused; the first set first."""
    found = []
    for each in unseen_sets():
        if each.waits:
            continue
        with table_path(each.first).open(encoding="utf-8", newline="") as file:
            speedups = {row["id"]: float(row["speedup"]) for row in csv.DictReader(file) if row["speedup"]}
        found += [
            FirstPrediction(each.number, case, speedups[case.point.id])
            for case in published_cases(each.table)
            if case.point.id in speedups
        ]
    return found
